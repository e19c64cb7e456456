//! `/run/rustguard/NAME.json`: who runs an interface, and what must be undone if that process is killed.
//!
//! The file is locked (flock) as long as its process lives, so that a second `up` of the same name is refused, and one
//! after a SIGKILL is not: the kernel takes the lock away with the process.

use anyhow::{Context as _, Result, bail};
use rustguard_device::host;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Where run files are.
pub(crate) const DIR: &str = "/run/rustguard";

/// What the file says.
#[derive(Serialize, Deserialize)]
pub(crate) struct Contents {
    /// Who runs the interface.
    pub(crate) pid: i32,
    /// The configuration it was started with; none for a bare interface.
    pub(crate) config: Option<PathBuf>,
    /// What to undo on the host.
    pub(crate) host: Option<host::Record>,
}

/// Our own file, locked. Dropping it unlocks and removes it.
pub(crate) struct RunFile {
    path: PathBuf,
    file: File,
}

impl RunFile {
    /// Takes the name for this process. Returns as well what a killed predecessor left to clean up.
    pub(crate) fn claim(interface: &str) -> Result<(Self, Option<Contents>)> {
        let path = path(interface);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(DIR)
            .with_context(|| format!("cannot create {DIR}: run as root, or with sudo"))?;
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .with_context(|| format!("cannot write {}: run as root, or with sudo", path.display()))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let by = read(&mut file).map(|contents| format!(" (process {})", contents.pid)).unwrap_or_default();
                    bail!("{interface} is up already{by}; `rustguard down {interface}` ends it");
                }
                Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {}", path.display())),
            }
            // The process before us may have removed the file between our open and our lock.
            if fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
                let left = read(&mut file);
                return Ok((Self { path, file }, left));
            }
        }
    }

    /// Writes what is to be known from now on.
    pub(crate) fn write(&mut self, contents: &Contents) -> Result<()> {
        let text = serde_json::to_vec_pretty(contents)?;
        // In place: the lock is on this inode. A torn write means a kill in the same microsecond; read() then sees nothing.
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&text)?;
        self.file.sync_data().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The process that runs `interface` now, and what it says of itself; `None` when nobody does.
pub(crate) fn running(interface: &str) -> Option<Contents> {
    let mut file = OpenOptions::new().read(true).open(path(interface)).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read(&mut file),
        // We hold the lock: so nobody runs. Closing the file gives it back.
        _ => None,
    }
}

fn path(interface: &str) -> PathBuf {
    Path::new(DIR).join(format!("{interface}.json"))
}

fn read(file: &mut File) -> Option<Contents> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
