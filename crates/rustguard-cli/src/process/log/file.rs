//! The log of a detached tunnel: a file in `/run`, which is in memory. The file is limited to [`LOG_MAX`] bytes, and
//! one older file of that size is kept.

use rustguard_device::interface::RUN_DIR;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

/// The limit for the log of a detached tunnel, in bytes. It applies to the current file and to the older one.
pub(crate) const LOG_MAX: u64 = 1 << 20;

/// The log file of a detached tunnel, if standard error is one.
pub(super) fn detached_log() -> Option<BoundedFile> {
    let path = fs::read_link("/proc/self/fd/2").ok()?;
    if path.extension()? != "log" || path.parent()? != Path::new(RUN_DIR) {
        return None;
    }
    let file = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?);
    let taken = |file: &File| rustix::stdio::dup2_stderr(file).map_err(io::Error::from);
    Some(BoundedFile { file, path, max: LOG_MAX, taken })
}

/// A file that is renamed when it is full, and replaced by a new one.
pub(super) struct BoundedFile {
    file: File,
    path: PathBuf,
    max: u64,
    /// Called with a new file, to make it standard error, because panics and hooks write there.
    taken: fn(&File) -> io::Result<()>,
}

/// The path of the older file.
pub(crate) fn older(log: &Path) -> PathBuf {
    log.with_extension("log.old")
}

impl BoundedFile {
    fn put_aside(&mut self) -> io::Result<()> {
        // At the end of the tunnel the file is removed while this process still writes to it.
        let ours = self.file.metadata()?.ino();
        if fs::metadata(&self.path)?.ino() != ours {
            return Err(io::ErrorKind::NotFound.into());
        }
        fs::rename(&self.path, older(&self.path))?;
        let new = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&self.path)?;
        (self.taken)(&new)?;
        self.file = new;
        Ok(())
    }
}

impl Write for BoundedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The length comes from the file system, because hooks write to the file, too.
        if self.file.metadata()?.len() + line.len() as u64 > self.max && self.put_aside().is_err() {
            self.file.set_len(0)?;
        }
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_and_the_one_before_it_are_bounded_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wg0.log");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).unwrap();
        let mut log = BoundedFile { file, path: path.clone(), max: 10_000, taken: |_| Ok(()) };
        let sizes = || [&path, &older(&path)].map(|path| fs::metadata(path).map_or(0, |file| file.len()));
        for n in 0..1_000 {
            writeln!(log, "{n:099}").unwrap();
            assert!(sizes().iter().all(|&size| size <= 10_000), "{:?}", sizes());
        }
        assert_eq!(sizes(), [10_000, 10_000]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        for path in [&path, &older(&path)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(fs::read_to_string(&path).unwrap().ends_with("999\n"));
        // After the end of the tunnel the file is removed, and it must not come back.
        fs::remove_file(&path).unwrap();
        for _ in 0..200 {
            writeln!(log, "{:099}", 0).unwrap();
        }
        assert!(!path.exists() && log.file.metadata().unwrap().len() <= 10_000);
    }
}
