//! The destination of entries: standard error, the log file of a detached tunnel, or the journal.

use super::{
    INTERFACE,
    entry::{Entry, Form},
    journal::Journal,
};
use crate::{escape::escape, output::colour::Palette};
use rustix::termios::tcgetwinsize;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// Writes entries in one form.
pub(super) struct Outlet {
    pub(super) form: Form,
    pub(super) palette: Palette,
    pub(super) sink: Box<dyn Write + Send>,
    /// The way to the journal. While it does not work, entries go to `sink`.
    pub(super) journal: Option<Journal>,
    /// The reason for a wait, in the last line of the terminal.
    pub(super) status: Option<Status>,
}

/// The reason for a wait, and its start.
#[derive(Clone, Debug)]
pub(super) struct Status {
    text: String,
    since: Instant,
}

impl Status {
    pub(super) fn new(text: &str) -> Self {
        Self { text: escape(text).into_owned(), since: Instant::now() }
    }

    /// One line of at most `columns` characters. A longer one would wrap, and could not be overwritten.
    fn line(&self, elapsed: Duration, columns: usize) -> String {
        let seconds = elapsed.as_secs();
        let time = if seconds < 2 { String::new() } else { format!(" ({seconds} s)") };
        let room = columns.saturating_sub(time.len() + 2);
        self.text.chars().take(room).chain("…".chars()).chain(time.chars()).collect()
    }
}

impl Outlet {
    pub(super) fn write(&mut self, entry: &Entry) {
        let interface = INTERFACE.get().map(String::as_str);
        if let Some(journal) = &mut self.journal
            && journal.write(entry.journal_line()).is_ok()
        {
            return;
        }
        self.clear();
        // One call for the whole line, so that lines of other processes do not interrupt it. An error in writing the
        // log cannot be reported.
        let _ = self.sink.write_all(entry.line(self.form, self.palette, interface).as_bytes());
        self.redraw();
    }

    /// Shows another status in the last line, or none.
    pub(super) fn set_status(&mut self, status: Option<Status>) {
        self.clear();
        self.status = status;
        self.redraw();
    }

    /// Shows the status with the time that has passed.
    pub(super) fn redraw(&mut self) {
        if let Some(status) = &self.status {
            let columns = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20));
            let line = status.line(status.since.elapsed(), columns);
            let _ = write!(self.sink, "\r{line}\x1b[K");
            self.flush();
        }
    }

    fn clear(&mut self) {
        if self.status.is_some() {
            let _ = self.sink.write_all(b"\r\x1b[K");
        }
    }

    pub(super) fn flush(&mut self) {
        let _ = self.sink.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line_that_does_not_wrap() {
        let status = Status::new(&format!("waiting for {}\n", "x".repeat(100)));
        for seconds in [0, 5, 100_000] {
            let line = status.line(Duration::from_secs(seconds), 80);
            assert!(line.chars().count() < 80 && !line.contains('\n'), "{line}");
        }
        assert_eq!(Status::new("waiting").line(Duration::from_secs(12), 80), "waiting… (12 s)");
        assert_eq!(Status::new("waiting").line(Duration::ZERO, 80), "waiting…");
    }
}
