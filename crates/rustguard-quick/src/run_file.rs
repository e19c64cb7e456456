//! `/run/rustguard/NAME.pid`: the process that runs an interface.
//!
//! The process locks the file (flock) while it lives. A second tunnel with the same name is therefore refused. After
//! SIGKILL a new one can start, because the kernel releases the lock when the process ends.

use crate::error::RunFileError;
use rustguard_device::interface::{RUN_DIR, run_file};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
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

/// Replaces a file in `/run`, or makes it. Others see the old contents or the new, and only root can read it. It is not synchronized with
/// a disk: `/run` is in memory, and where it is not, its files mean nothing after a restart of the machine.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Made with mode 0600.
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
                // A process that may open the file may also lock it, and could so prevent this one from starting.
                .mode(0o600)
                .open(&path)
                .map_err(not_writable(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(up(interface, read(&mut file)));
                }
                Err(TryLockError::Error(source)) => return Err(RunFileError::NotLocked { path, source }),
            }
            // An earlier process may have removed the file between our open and our lock.
            if fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
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

/// The id of the process that runs `interface` now; `None` if there is none.
pub fn running(interface: &str) -> Option<i32> {
    // A text that is not a valid name, for example a path, leads to a file that does not exist.
    let mut file = File::open(run_file(interface, "pid")).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read(&mut file),
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
        Some(process) => Err(up(interface, Some(process))),
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
fn up(interface: &str, process: Option<i32>) -> RunFileError {
    let log = Some(run_file(interface, "log")).filter(|log| log.exists());
    RunFileError::Up { interface: interface.to_owned(), process, log }
}

fn not_writable(path: &Path) -> impl Fn(io::Error) -> RunFileError {
    move |source| RunFileError::NotWritable { path: path.to_owned(), source }
}

fn read(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
