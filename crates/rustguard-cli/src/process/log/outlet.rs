//! Where entries go: standard error, the log file of a detached tunnel, or the journal.

use super::entry::{Entry, Form};
use crate::output::colour::Palette;
use std::{io::Write, sync::OnceLock};
use systemd_journal_logger::JournalLog;

/// The interface of this process, which is a field of every entry for programs.
pub(super) static INTERFACE: OnceLock<String> = OnceLock::new();

/// Writes entries in one form.
pub(super) struct Outlet {
    pub(super) form: Form,
    pub(super) palette: Palette,
    pub(super) sink: Box<dyn Write + Send>,
    /// The journal's socket. While it does not work, entries go to `sink`.
    pub(super) journal: Option<JournalLog>,
}

impl Outlet {
    pub(super) fn write(&mut self, entry: &Entry) {
        let interface = INTERFACE.get().map(String::as_str);
        if let Some(journal) = &self.journal
            && entry.send(journal, interface).is_ok()
        {
            return;
        }
        // One call for the whole line, so that lines of other processes do not interrupt it. An error in writing the log
        // cannot be reported.
        let _ = self.sink.write_all(entry.line(self.form, self.palette, interface).as_bytes());
    }

    pub(super) fn flush(&mut self) {
        let _ = self.sink.flush();
    }
}
