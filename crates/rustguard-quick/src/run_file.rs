//! `/run/rustguard/NAME.pid`: the process that runs an interface.
//!
//! The process locks the file (flock) while it lives. A second tunnel with the same name is therefore refused. After
//! SIGKILL a new tunnel can start, because the kernel releases the lock when the process ends.
//!
//! The number in the file is for people, and never used for signals: a compromised tunnel can write any number there,
//! because its records are in this folder. The process has a second lock on the file, of fcntl. For this lock, the
//! kernel reports the process.

use rustguard_device::interface::{RUN_DIR, run_file};
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    process::{FlockType, fcntl_getlk},
};
use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// The locked run file of this process. Dropping it removes and unlocks it.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    left_behind: bool,
    _locked: File,
}

/// Replaces a file in `/run`, or makes it. Others see the old contents or the new, and only root can read it. It is not
/// synchronized with a disk: `/run` is usually in memory, and its files have no meaning after a restart of the machine.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // It is created with mode 0600.
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(contents)?;
    file.persist(path)?;
    Ok(())
}

impl RunFile {
    /// Claims the name for this process.
    ///
    /// # Errors
    /// [`RunFileError::Up`] if another process has it.
    pub fn claim(interface: &str) -> Result<Self, RunFileError> {
        let path = create_path(interface, "pid")?;
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                // A process that can open the file can also lock it, and could thus prevent this process from starting.
                .mode(0o600)
                .open(&path)
                .map_err(not_writable(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(up(interface, Runner::of(&file)));
                }
                Err(TryLockError::Error(source)) => return Err(RunFileError::NotLocked { path, source }),
            }
            // An earlier process may have removed the file between our open and our lock.
            if fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
                // The kernel would release this lock if this process closed another descriptor of the file
                // (fcntl_locking(2)). This process never does.
                fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
                    .map_err(|error| RunFileError::NotLocked { path: path.clone(), source: error.into() })?;
                let written = || {
                    let left_behind = file.metadata()?.len() > 0;
                    file.set_len(0)?;
                    write!(file, "{}", std::process::id())?;
                    Ok(left_behind)
                };
                let left_behind = { written }().map_err(not_writable(&path))?;
                return Ok(Self { path, left_behind, _locked: file });
            }
        }
    }

    /// Whether an earlier process with this name was killed.
    pub fn left_behind(&self) -> bool {
        self.left_behind
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The process that runs an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Runner {
    /// The id of the process. `None` if this process cannot see it: it is in another PID namespace, or it is not a
    /// tunnel.
    pub process: Option<i32>,
}

impl Runner {
    fn of(file: &File) -> Self {
        let lock = fcntl_getlk(file, &FlockType::WriteLock.into()).ok().flatten();
        let process = lock.and_then(|lock| lock.pid).map(|process| process.as_raw_nonzero().get());
        // Locks of other kinds belong to files, and have the number -1 (fcntl_locking(2)).
        Self { process: process.filter(|process| *process > 0) }
    }
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}"),
            None => f.write_str("a process that cannot be seen from here"),
        }
    }
}

/// The process that runs `interface` now; `None` if no process does. A process that calls this for its own interface
/// loses the lock that identifies it.
pub fn running(interface: &str) -> Option<Runner> {
    // A text that is not a valid name, for example a path, leads to a file that does not exist.
    let file = File::open(run_file(interface, "pid")).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(Runner::of(&file)),
        // This process got the lock, so no other process runs the interface. Closing the file releases the lock.
        _ => None,
    }
}

/// Returns an error if a process has the name. To reserve the name, use [`RunFile::claim`].
///
/// # Errors
/// [`RunFileError::Up`].
pub fn check_free(interface: &str) -> Result<(), RunFileError> {
    match running(interface) {
        Some(runner) => Err(up(interface, runner)),
        None => Ok(()),
    }
}

/// The path of an interface's file. Makes the folder.
///
/// # Errors
/// [`RunFileError::NotWritable`].
pub fn create_path(interface: &str, extension: &str) -> Result<PathBuf, RunFileError> {
    let path = run_file(interface, extension);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(RUN_DIR).map_err(not_writable(&path))?;
    Ok(path)
}

/// The error about a running tunnel, with the place of its log.
fn up(interface: &str, runner: Runner) -> RunFileError {
    let log = Some(run_file(interface, "log")).filter(|log| log.exists());
    RunFileError::Up { interface: interface.to_owned(), process: runner.process, log }
}

fn not_writable(path: &Path) -> impl Fn(io::Error) -> RunFileError {
    move |source| RunFileError::NotWritable { path: path.to_owned(), source }
}

/// The socket for reload requests to a tunnel.
pub(crate) fn reload_socket(interface: &str) -> PathBuf {
    run_file(interface, "sock")
}

/// The reason why an interface cannot be claimed for this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunFileError {
    /// The folder or the file cannot be written.
    #[error("cannot write {}{}", path.display(), to_write(source.kind()))]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be locked.
    #[error("cannot lock {}", path.display())]
    NotLocked {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process runs this interface.
    #[error(
        "{interface} is up already{}{}; `rustguard down {interface}` ends it",
        process.map(|process| format!(" (process {process})")).unwrap_or_default(),
        log.as_ref().map(|log| format!(", and its log is {}", log.display())).unwrap_or_default()
    )]
    Up {
        /// The interface.
        interface: String,
        /// The process id, if this process can see it.
        process: Option<i32>,
        /// The log of the process, if it runs in the background.
        log: Option<PathBuf>,
    },
}

/// The remedy if a file in `/run` cannot be written.
fn to_write(refused: io::ErrorKind) -> &'static str {
    match refused {
        io::ErrorKind::PermissionDenied => "; a tunnel needs CAP_NET_ADMIN: run as root, or with sudo",
        io::ErrorKind::StorageFull => "; /run is full: `df /run` shows its size, `du -x /run` what takes the space",
        io::ErrorKind::ReadOnlyFilesystem => "; /run has to be writable: mount -t tmpfs tmpfs /run",
        _ => "",
    }
}
