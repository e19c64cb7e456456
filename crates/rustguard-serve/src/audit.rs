//! The audit log: one line of JSON for each decision.

use serde::Serialize;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// A log of this size, in bytes, is renamed to `NAME.1`, and the previous `NAME.1` is deleted. About a hundred thousand
/// lines are kept. Refusals that continue for a year do not fill the disk.
const ROTATE: u64 = 16 << 20;

/// An open log. When [`write`](Self::write) returns, the operating system has the line. It survives the end of the
/// process, but maybe not a power cut.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    file: File,
    len: u64,
    rotate: u64,
}

impl AuditLog {
    /// Opens or makes the log. Only its owner can read it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, rotate: ROTATE })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// Errors of the operating system, for example a full disk.
    pub(crate) fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if self.len + line.len() as u64 > self.rotate && self.len > 0 {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
            *self = Self { rotate: self.rotate, ..Self::open(&self.path)? };
        }
        // A single write, so that the lines of a process that is killed are complete.
        self.file.write_all(&line)?;
        self.len += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_the_log_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let mut log = AuditLog { rotate: 1_000, ..AuditLog::open(&path).unwrap() };
        for n in 0..300 {
            log.write(&serde_json::json!({ "n": n })).unwrap();
            // A second process appends to the same log.
            if n == 150 {
                log = AuditLog { rotate: 1_000, ..AuditLog::open(&path).unwrap() };
            }
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (new, old) = (read(&path), read(&dir.path().join("audit.jsonl.1")));
        assert!(new.len() <= 1_000 && old.len() <= 1_000 && old.len() > 900);
        let lines: Vec<serde_json::Value> =
            old.lines().chain(new.lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
        let first = 300 - lines.len() as u64;
        for (line, n) in lines.iter().zip(first..) {
            assert_eq!(line["n"], n);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
