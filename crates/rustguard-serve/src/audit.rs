//! The audit log: a line of JSON for each decision.

use serde::Serialize;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// A log is renamed to `NAME.1` at this size, in bytes, and the previous `NAME.1` is dropped. Some hundred thousand lines are kept,
/// and refusals that go on for a year do not fill the disk.
const ROTATE: u64 = 16 << 20;

/// An open log. Lines are in the system's hands when [`write`](Self::write) returns; they survive the process, not a power cut.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    file: File,
    len: u64,
    rotate: u64,
}

impl AuditLog {
    /// Opens or makes the log, readable by its owner alone.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, rotate: ROTATE })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// Those of the system: the disk is full.
    pub(crate) fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if self.len + line.len() as u64 > self.rotate && self.len > 0 {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
            *self = Self { rotate: self.rotate, ..Self::open(&self.path)? };
        }
        // One write: lines of a process that is killed are whole.
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
            // A second process of the same name goes on where the first ended.
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
