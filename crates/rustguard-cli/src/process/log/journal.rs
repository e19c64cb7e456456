//! The journal's native protocol, which has priorities and fields.

use super::INTERFACE;
use rustguard_quick::helper::{self, Level, Line};
use std::io;
use systemd_journal_logger::JournalLog;

/// The field with the name of this process's interface.
const OF_INTERFACE: &str = "interface";

/// The connection of a tunnel's log to the journal: through the privileged helper, or without a helper through this
/// process itself.
#[derive(Default)]
pub(super) struct Journal {
    /// A socket that reaches all services of the machine. A confined process must not have it, so it is opened with
    /// the first line.
    socket: Option<JournalLog>,
}

impl Journal {
    /// Writes a line, and waits until it is written.
    pub(super) fn write(&mut self, line: Line) -> io::Result<()> {
        if helper::exists() {
            return helper::log(line).unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()));
        }
        self.write_here(&line)
    }

    /// Writes a line from this process itself.
    fn write_here(&mut self, line: &Line) -> io::Result<()> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(JournalLog::new()?),
        };
        let interface = INTERFACE.get().map(|name| (OF_INTERFACE, &**name));
        let fields: Vec<_> =
            interface.into_iter().chain(line.fields.iter().map(|(field, value)| (field.name(), &**value))).collect();
        socket.journal_send(
            &log::Record::builder()
                .level(match line.level {
                    Level::Error => log::Level::Error,
                    Level::Warn => log::Level::Warn,
                    Level::Info => log::Level::Info,
                    Level::Debug => log::Level::Debug,
                    Level::Trace => log::Level::Trace,
                })
                .target(&line.target)
                .args(format_args!("{}", line.text))
                .key_values(&fields)
                .build(),
        )
    }
}

/// Writes the lines of a confined tunnel, as its privileged helper.
pub(crate) fn for_a_tunnel(interface: &str) -> impl FnMut(&Line) -> io::Result<()> + Send + use<> {
    super::set_interface(interface);
    let mut journal = Journal::default();
    move |line| journal.write_here(line)
}
