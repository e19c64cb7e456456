//! The files of one folder, behind a trait: tests can replace the file system to simulate power cuts.
use super::FileStoreError;
use rustix::fs::{FlockOperation, flock};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The file operations that the log needs. Written bytes are durable after `sync`. Creations, renames and removals are
/// durable after `sync_folder`. Before that, a power cut may lose any of them.
pub(super) trait Files {
    /// The path of the folder, for messages.
    fn folder(&self) -> PathBuf;
    /// The path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// The names of all files.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// The contents of a file.
    fn read(&mut self, name: &str) -> io::Result<Zeroizing<Vec<u8>>>;
    /// Makes a file, or empties it.
    fn create(&mut self, name: &str) -> io::Result<()>;
    /// Appends to a file.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Cuts a file off.
    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()>;
    /// Makes a file's contents durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Renames a file. An existing file with the new name is replaced.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_folder(&mut self) -> io::Result<()>;
}

/// A locked folder on disk.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    handle: File,
    /// Files that were written to.
    open: BTreeMap<String, File>,
    /// The kernel holds the lock while this file is open, so a killed process keeps no lock.
    _lock: File,
}

/// The file that is locked. It contains the process id.
const LOCK: &str = "lock";

impl Disk {
    /// Opens the folder, makes it if need be (mode 0700), and locks it.
    pub(super) fn open(folder: &Path) -> Result<Self, FileStoreError> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| FileStoreError::Io { action, path, source }
        };
        if !folder.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io("create", folder))?;
            // The parent is synced, so that the folder itself still exists after a power cut.
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(io("sync", parent))?;
        }
        let handle = File::open(folder).map_err(io("open", folder))?;
        let metadata = handle.metadata().map_err(io("look at", folder))?;
        let (owner, us) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != us {
            return Err(FileStoreError::Owner { path: folder.to_owned(), owner, us });
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(FileStoreError::Exposed { path: folder.to_owned(), mode });
        }
        let path = folder.join(LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(&path).map_err(io("open", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut by = String::new();
                // The process id is helpful, but not required.
                let _ = lock.read_to_string(&mut by);
                let by = by.trim().parse::<u32>().map_or("another process".to_owned(), |pid| format!("process {pid}"));
                return Err(FileStoreError::Locked { path: folder.to_owned(), by });
            }
            Err(error) => return Err(io("lock", &path)(error.into())),
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(io("write", &path))?;
        Ok(Self { folder: folder.to_owned(), handle, open: BTreeMap::new(), _lock: lock })
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        if !self.open.contains_key(name) {
            let file = OpenOptions::new().append(true).open(self.folder.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(self.open.get_mut(name).expect("it was just put there"))
    }
}

impl Files for Disk {
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn read(&mut self, name: &str) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut file = File::open(self.folder.join(name))?;
        // The capacity is exact, because a vector that grows leaves copies of keys behind.
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mut bytes = Zeroizing::new(vec![0; len]);
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let path = self.folder.join(name);
        // An existing file could have a mode that lets other users read it.
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        self.open.insert(name.to_owned(), file);
        Ok(())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()> {
        self.file(name)?.set_len(len)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        // fdatasync(2) also writes the length if it is needed to read the data.
        self.file(name)?.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))?;
        self.open.remove(to);
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        fs::remove_file(self.folder.join(name))
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.handle.sync_all()
    }
}
