//! `/run/rustguard/NAME.pid`: which process runs an interface.
//!
//! The file is locked (flock) as long as its process lives, so that a second `up` of the same name is refused, and one
//! after a SIGKILL is not: the kernel takes the lock away with the process.

use anyhow::{Context as _, Result, bail};
/// Where run files, host records and the logs of detached tunnels are.
pub(crate) use rustguard_device::interface::RUN_DIR as DIR;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Our own file, locked. Dropping it removes and unlocks it.
pub(crate) struct RunFile {
    path: PathBuf,
    left_behind: bool,
    _locked: File,
}

impl RunFile {
    /// Takes the name for this process.
    pub(crate) fn claim(interface: &str) -> Result<Self> {
        let path = path(interface, "pid")?;
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                // Whoever may open it may lock it, and keep us from starting.
                .mode(0o600)
                .open(&path)
                .with_context(|| not_writable(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    bail!(is_up(interface, read(&mut file)));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).context(format!("cannot lock {}", path.display()));
                }
            }
            // The process before us may have removed the file between our open and our lock.
            if fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
                let left_behind = file.metadata()?.len() > 0;
                file.set_len(0)?;
                write!(file, "{}", std::process::id()).with_context(|| not_writable(&path))?;
                return Ok(Self { path, left_behind, _locked: file });
            }
        }
    }
}

impl RunFile {
    /// Whether a process that was killed had this name before.
    pub(crate) fn left_behind(&self) -> bool {
        self.left_behind
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The process that runs `interface` now; `None` when nobody does.
pub(crate) fn running(interface: &str) -> Option<i32> {
    // What is no name, a path for example, joins to a file that does not exist.
    let mut file = File::open(Path::new(DIR).join(format!("{interface}.pid"))).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read(&mut file),
        // We have got the lock, so nobody runs. Closing the file gives it back.
        _ => None,
    }
}

/// Refuses a name that a process has. Whoever needs it to stay free takes it by [`RunFile::claim`].
pub(crate) fn check_free(interface: &str) -> Result<()> {
    match running(interface) {
        Some(process) => bail!(is_up(interface, Some(process))),
        None => Ok(()),
    }
}

fn is_up(interface: &str, process: Option<i32>) -> String {
    let by = process.map(|process| format!(" (process {process})")).unwrap_or_default();
    format!("{interface} is up already{by}; `rustguard down {interface}` ends it")
}

/// Where a file of an interface is; makes the folder.
pub(crate) fn path(interface: &str, extension: &str) -> Result<PathBuf> {
    let path = Path::new(DIR).join(format!("{interface}.{extension}"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(DIR).with_context(|| not_writable(&path))?;
    Ok(path)
}

/// Names the file and the remedy.
pub(crate) fn not_writable(path: &Path) -> String {
    format!("cannot write {}; a tunnel needs CAP_NET_ADMIN: run as root, or with sudo", path.display())
}

fn read(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
