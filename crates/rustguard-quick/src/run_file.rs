//! `/run/rustguard/NAME.pid`: which process runs an interface.
//!
//! The file is locked (flock) as long as its process lives, so that a second tunnel of the same name is refused, and one
//! after a SIGKILL is not: the kernel takes the lock away with the process.

use crate::error::RunFileError;
use rustguard_device::interface::{RUN_DIR, run_file};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The run file of this process, locked. Dropping it removes and unlocks it.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    left_behind: bool,
    _locked: File,
}

impl RunFile {
    /// Takes the name for this process.
    ///
    /// # Errors
    /// [`RunFileError::Up`] when another process has it.
    pub fn claim(interface: &str) -> Result<Self, RunFileError> {
        let path = create_path(interface, "pid")?;
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                // A process that may open the file may also lock it, which would keep this one from starting.
                .mode(0o600)
                .open(&path)
                .map_err(not_writable(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(RunFileError::Up { interface: interface.to_owned(), process: read(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(RunFileError::NotLocked { path, source }),
            }
            // The process before this one may have removed the file between our open and our lock.
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

    /// Whether a process that was killed had this name before.
    pub fn left_behind(&self) -> bool {
        self.left_behind
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The process that runs `interface` now; `None` when none does.
pub fn running(interface: &str) -> Option<i32> {
    // A text that is not a name, for example a path, leads to a file that does not exist.
    let mut file = File::open(run_file(interface, "pid")).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read(&mut file),
        // This process has got the lock, so no other runs the interface. Closing the file gives it back.
        _ => None,
    }
}

/// Refuses a name that a process has. To keep it free, take it by [`RunFile::claim`].
///
/// # Errors
/// [`RunFileError::Up`].
pub fn check_free(interface: &str) -> Result<(), RunFileError> {
    match running(interface) {
        Some(process) => Err(RunFileError::Up { interface: interface.to_owned(), process: Some(process) }),
        None => Ok(()),
    }
}

/// Where a file of an interface is; makes the folder.
///
/// # Errors
/// [`RunFileError::NotWritable`].
pub fn create_path(interface: &str, extension: &str) -> Result<PathBuf, RunFileError> {
    let path = run_file(interface, extension);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(RUN_DIR).map_err(not_writable(&path))?;
    Ok(path)
}

fn not_writable(path: &Path) -> impl Fn(io::Error) -> RunFileError {
    move |source| RunFileError::NotWritable { path: path.to_owned(), source }
}

fn read(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
