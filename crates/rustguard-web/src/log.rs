//! The end of the audit log, for people.

use crate::text::shown;
use serde::Deserialize;
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// How many bytes are read, from the end. A line has some 300.
const READ: u64 = 96 << 10;
/// The most lines that are shown.
const LINES: usize = 200;

/// A line of the audit log. Fields that this page does not know are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    pub(crate) time: u64,
    pub(crate) event: String,
    reason: Option<String>,
    source: Option<String>,
    uid: Option<u32>,
    by: Option<String>,
    token: Option<String>,
    name: Option<String>,
    addresses: Vec<String>,
    prefixes: Vec<String>,
    tags: Vec<String>,
    count: Option<u32>,
}

impl Entry {
    /// The event, in words.
    pub(crate) fn words(&self) -> String {
        shown(&self.event.replace('-', " "))
    }

    /// The origin of the command: a session of the page, or a user of the machine.
    pub(crate) fn who(&self) -> String {
        match (&self.by, self.uid) {
            (Some(by), Some(uid)) => format!("{} (user {uid})", shown(by)),
            (Some(by), None) => shown(by),
            (None, Some(0)) => "root".to_owned(),
            (None, Some(uid)) => format!("user {uid}"),
            (None, None) => String::new(),
        }
    }

    /// The subject of the event.
    pub(crate) fn about(&self) -> String {
        let name = self.name.as_deref().map(shown);
        let addresses = self.addresses.iter().take(4).map(|address| shown(address));
        name.into_iter().chain(addresses).collect::<Vec<_>>().join(", ")
    }

    /// All other information.
    pub(crate) fn details(&self) -> String {
        let list = |what: &str, list: &[String]| {
            let list: Vec<_> = list.iter().take(8).map(|item| shown(item)).collect();
            (!list.is_empty()).then(|| format!("{what} {}", list.join(", ")))
        };
        let parts = [
            self.reason.as_deref().map(|reason| shown(&reason.replace('-', " "))),
            self.source.as_deref().map(|source| format!("from {}", shown(source))),
            self.token.as_deref().map(|token| format!("invite {}", shown(token))),
            list("prefixes", &self.prefixes),
            list("tags", &self.tags),
            self.count.map(|count| format!("{count} times")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The last lines, the newest first.
///
/// # Errors
/// Errors of the system.
pub(crate) fn last(path: &Path) -> io::Result<Vec<Entry>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(READ);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes)?;
    let mut lines: Vec<_> = bytes.split(|&byte| byte == b'\n').collect();
    if start > 0 {
        // The first part is an incomplete line.
        lines.remove(0);
    }
    Ok(lines.iter().rev().filter_map(|line| serde_json::from_slice(line).ok()).take(LINES).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn the_last_lines_whatever_stands_between_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let mut text = String::new();
        for n in 0..5_000 {
            writeln!(text, "{{\"time\":{n},\"event\":\"window-opened\",\"uid\":0,\"new\":[1]}}").unwrap();
        }
        text += "not JSON\n{\"time\":9,\"event\":\"removed\",\"by\":\"web: al\\u202eice#3\",\"name\":\"<b>\",\"addresses\":[\"10.0.0.2\"],\"reason\":\"command\",\"count\":3}\n{\"ti";
        std::fs::write(&path, &text).unwrap();
        let entries = last(&path).unwrap();
        assert_eq!(entries.len(), LINES);
        let entry = &entries[0];
        assert_eq!(
            [entry.words(), entry.who(), entry.about(), entry.details()],
            ["removed", "web: al\\u{202e}ice#3", "<b>, 10.0.0.2", "command, 3 times"]
        );
        assert_eq!(
            (entries[1].time, entries[1].words(), entries[1].who()),
            (4_999, "window opened".to_owned(), "root".to_owned())
        );
        std::fs::write(&path, "{\"time\":1,\"event\":\"left\"}\n").unwrap();
        assert_eq!(last(&path).unwrap().len(), 1);
        assert!(last(&dir.path().join("none")).is_err());
    }
}
