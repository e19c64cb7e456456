//! The log. A terminal gets sentences, a file gets lines with time and level, and the journal gets priorities and
//! fields. `--log-format` chooses another form.
//!
//! A separate thread writes the log of a tunnel, because a pipe without a reader or a blocked journal must not stop the
//! tunnel. Entries that do not fit into the queue are lost and counted. Their number is written before the next entry.
//!
//! Conventions for events: the message is a sentence. An event about one peer has its name in the field `peer` and not
//! in the message; people see `NAME: message`. Programs also get the field `interface`, which this module adds.

mod entry;
mod file;
mod filter;
mod journal;
mod outlet;
mod queue;

use crate::{
    arguments::logging::{LogFormat, Logging},
    output::{colour::Palette, screen::can_overwrite},
};
use entry::{Entry, Form};
use file::detached_log;
pub(crate) use file::{LOG_MAX, older};
use journal::Journal;
pub(crate) use journal::for_a_tunnel as journal_for_a_tunnel;
use outlet::{Outlet, Status};
use queue::Queue;
use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::OnceLock,
    time::Duration,
};
pub(crate) use systemd_journal_logger::connected_to_journal as stderr_is_journal;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    layer::{Context, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

/// The most entries in the queue.
const QUEUE: usize = 1_024;
/// The time for which the end of the process waits for the queue.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interface of this process, which is a field of every entry for programs.
static INTERFACE: OnceLock<String> = OnceLock::new();
/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

/// The kind of command that this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It runs a tunnel: logs at the level info through the queue, and never waits for a reader.
    Tunnel,
    /// It runs a tunnel in the place of wireguard-go, and obeys `LOG_LEVEL` too.
    WireguardGo,
    /// Other commands log warnings, and write them without another thread, because only a process with a single thread
    /// can enter a user namespace.
    Other,
}

/// Opens the log. Messages wait in the queue until [`start`], because some steps need a process with a single thread
/// and come before it.
///
/// # Errors
/// `RUSTGUARD_LOG` is wrong: the text names its value and what is allowed.
pub(crate) fn init(kind: Kind, logging: &Logging) -> Result<(), String> {
    let default = match kind {
        Kind::Tunnel => LevelFilter::INFO,
        Kind::WireguardGo => {
            filter::of_wireguard_go(std::env::var("LOG_LEVEL").ok().as_deref()).unwrap_or(LevelFilter::INFO)
        }
        Kind::Other => LevelFilter::WARN,
    };
    let filter = filter::filter(logging, default)?;
    let form = form(kind, logging.log_format, stderr_is_journal(), io::stderr().is_terminal());
    let log = LOG.get_or_init(|| {
        let queue = (kind != Kind::Other).then(|| {
            let sink: Box<dyn io::Write + Send> = match detached_log() {
                Some(file) => Box::new(file),
                None => Box::new(io::stderr()),
            };
            // A sandbox may hide the journal's socket. Then the priorities go with the lines on standard error.
            let journal = (form == Form::Priority).then(Journal::default);
            Queue::new(Outlet { sink, journal, ..Outlet::stderr(form) }, QUEUE)
        });
        let is_live = form == Form::Plain && io::stderr().is_terminal() && can_overwrite();
        Log { is_live, form, queue }
    });
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    Ok(())
}

/// Starts the thread of the log, if this kind of command has one.
pub(crate) fn start() {
    if let Some(queue) = LOG.get().and_then(|log| log.queue.as_ref()) {
        queue.start();
    }
}

/// The form of messages on standard error.
fn form(kind: Kind, wanted: Option<LogFormat>, is_journal: bool, is_terminal: bool) -> Form {
    match wanted {
        Some(LogFormat::Plain) => Form::Plain,
        Some(LogFormat::Text) => Form::Text,
        Some(LogFormat::Json) => Form::Json,
        None if is_journal => Form::Priority,
        None if kind == Kind::Other || is_terminal => Form::Plain,
        None => Form::Text,
    }
}

/// Sets the interface of this process. It is a field of every later entry for programs.
pub(crate) fn set_interface(name: &str) {
    // A process has one interface.
    let _ = INTERFACE.set(name.to_owned());
}

/// Whether the messages are for people. Programs get entries only.
pub(crate) fn is_for_people() -> bool {
    LOG.get().is_none_or(|log| matches!(log.form, Form::Plain | Form::Text))
}

/// Writes the reason why the process ends, and waits until all is written, for at most [`PATIENCE`]. Has to be called
/// before the process ends.
pub(crate) fn finish(reason: Option<&str>) {
    let reason = reason.map(Entry::last);
    match LOG.get() {
        Some(Log { queue: Some(queue), .. }) => drop(queue.finish(reason, PATIENCE)),
        log => {
            let form = log.map_or(Form::Plain, |log| log.form);
            reason.iter().for_each(|reason| Outlet::stderr(form).write(reason));
        }
    }
}

/// Waits until all messages are written, for at most [`PATIENCE`]. Later output of other processes on the same terminal
/// then comes after them.
pub(crate) fn settle() {
    finish(None);
}

/// Shows the log of the process in the background, in the form of this process.
pub(crate) fn pass_on(log: &str) {
    finish(None);
    let form = LOG.get().map_or(Form::Plain, |log| log.form);
    let mut outlet = Outlet::stderr(form);
    for line in log.lines() {
        match Entry::of_text(line).filter(|_| form != Form::Text) {
            Some(entry) => outlet.write(&entry),
            // Output of hooks, and diagnostics.
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }
}

/// Shows the reason for a wait until the result is dropped: in the last line of the terminal, with the seconds that
/// have passed. Messages in between appear above that line. Without a terminal, nothing is shown.
pub(crate) fn wait_for(text: &str) -> Waiting {
    let queue = LOG.get().filter(|_| is_live()).and_then(|log| log.queue.as_ref());
    if let Some(queue) = queue {
        queue.set_status(Some(Status::new(text)));
    }
    Waiting { queue }
}

/// Whether [`wait_for`] shows anything: standard error is a terminal, and messages are wanted there.
pub(crate) fn is_live() -> bool {
    LOG.get().is_some_and(|log| log.is_live) && tracing::enabled!(Level::INFO)
}

/// As `wait_for`. Without a terminal, it writes one message.
pub(crate) fn say_and_wait_for(text: &str) -> Waiting {
    let waiting = wait_for(text);
    if waiting.queue.is_none() {
        tracing::info!("{text}");
    }
    waiting
}

/// A wait of the user, which ends when this is dropped.
#[must_use]
pub(crate) struct Waiting {
    queue: Option<&'static Queue>,
}

impl Waiting {
    /// Changes the reason for the wait. Messages explain the change.
    pub(crate) fn now_for(&self, text: &str) {
        if let Some(queue) = self.queue {
            queue.set_status(Some(Status::new(text)));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(queue) = self.queue {
            queue.set_status(None);
        }
    }
}

struct Log {
    /// Standard error is a terminal whose last line can be overwritten.
    is_live: bool,
    form: Form,
    queue: Option<Queue>,
}

impl<S: Subscriber> Layer<S> for &'static Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let entry = Entry::of_event(event);
        match &self.queue {
            Some(queue) => queue.send(entry),
            None => Outlet::stderr(self.form).write(&entry),
        }
    }
}

impl Outlet {
    fn stderr(form: Form) -> Self {
        Self { form, palette: Palette::of(&io::stderr()), sink: Box::new(io::stderr()), journal: None, status: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_a_file_and_the_journal_get_different_forms() {
        for (kind, wanted, is_journal, is_terminal, expected) in [
            (Kind::Tunnel, None, false, true, Form::Plain),
            (Kind::Tunnel, None, false, false, Form::Text),
            (Kind::WireguardGo, None, false, false, Form::Text),
            (Kind::Tunnel, None, true, false, Form::Priority),
            (Kind::Other, None, true, false, Form::Priority),
            (Kind::Other, None, false, false, Form::Plain),
            (Kind::Tunnel, Some(LogFormat::Plain), false, false, Form::Plain),
            (Kind::Tunnel, Some(LogFormat::Text), false, true, Form::Text),
            (Kind::Tunnel, Some(LogFormat::Json), true, false, Form::Json),
        ] {
            assert_eq!(form(kind, wanted, is_journal, is_terminal), expected, "{kind:?} {wanted:?}");
        }
    }
}
