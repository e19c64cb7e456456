//! The queue of the log, and the thread that writes it.

use super::{
    entry::Entry,
    outlet::{Outlet, Status},
};
use std::{
    io::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};
use tracing::Level;

/// The time after which the status is written again, with the seconds that have passed.
const REDRAW: Duration = Duration::from_secs(1);

/// The sending end.
#[derive(Clone)]
pub(super) struct Queue {
    messages: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    /// The writer, which the thread gets when it starts.
    waiting: Arc<Mutex<Option<Writer>>>,
}

/// The receiving end of the queue, and the destination of its messages.
type Writer = (Receiver<Message>, Outlet);

enum Message {
    Entry(Entry),
    /// The reason for the wait from now on.
    Status(Option<Status>),
    /// Reports that everything before it is written.
    Finish(mpsc::Sender<()>),
}

impl Queue {
    /// A queue with room for this number of entries, which wait until the thread is [started](Self::start).
    pub(super) fn new(outlet: Outlet, room: usize) -> Self {
        let (sender, messages) = mpsc::sync_channel(room);
        Self { messages: sender, lost: Arc::default(), waiting: Arc::new(Mutex::new(Some((messages, outlet)))) }
    }

    /// Starts the thread, if that has not happened yet.
    pub(super) fn start(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((messages, mut outlet)) = waiting else { return };
        let lost = Arc::clone(&self.lost);
        let write = move || write_all(&messages, &mut outlet, &lost);
        if let Err(error) = thread::Builder::new().name("rg-log".to_owned()).spawn(write) {
            let _ =
                writeln!(io::stderr(), "rustguard: cannot start the thread of the log, so nothing is logged: {error}");
        }
    }

    /// Never waits. An entry that does not fit is lost, and counted.
    pub(super) fn send(&self, entry: Entry) {
        // The receiving end exists as long as the process.
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.messages.try_send(Message::Entry(entry))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Shows the reason for a wait in the last line of the terminal. Never blocks.
    pub(super) fn set_status(&self, status: Option<Status>) {
        // A full queue already has enough messages for the user.
        let _ = self.messages.try_send(Message::Status(status));
    }

    /// Writes one more entry, and waits until all is written, for at most `patience`. Returns whether it was.
    pub(super) fn finish(&self, last: Option<Entry>, patience: Duration) -> bool {
        self.start();
        let until = Instant::now() + patience;
        let (written, done) = mpsc::channel();
        for mut message in last.map(Message::Entry).into_iter().chain([Message::Finish(written)]) {
            while let Err(TrySendError::Full(back)) = self.messages.try_send(message) {
                if Instant::now() >= until {
                    return false;
                }
                message = back;
                thread::sleep(Duration::from_millis(5));
            }
        }
        !matches!(
            done.recv_timeout(until.saturating_duration_since(Instant::now())),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)
        )
    }
}

/// The work of the thread.
fn write_all(messages: &Receiver<Message>, outlet: &mut Outlet, lost: &AtomicU64) {
    loop {
        let message = if outlet.status.is_some() {
            match messages.recv_timeout(REDRAW) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    outlet.redraw();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        } else {
            let Ok(message) = messages.recv() else { return };
            message
        };
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} lines of the log are lost here: they were not read in time");
            outlet.write(&Entry::new(Level::WARN, &text));
        }
        match message {
            Message::Entry(entry) => outlet.write(&entry),
            Message::Status(status) => outlet.set_status(status),
            Message::Finish(written) => {
                outlet.flush();
                let _ = written.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::entry::Form, *};
    use crate::output::colour::Palette;
    use io::Write;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Takes lines only on request, like a pipe with a slow reader.
    struct Stalled {
        begun: mpsc::Sender<()>,
        go: Receiver<()>,
        taken: mpsc::Sender<String>,
    }

    impl Write for Stalled {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.begun.send(()).map_err(io::Error::other)?;
            self.go.recv().map_err(io::Error::other)?;
            self.taken.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start(sink: Stalled) -> Queue {
        let sink = Box::new(sink);
        let queue =
            Queue::new(Outlet { form: Form::Plain, palette: Palette::PLAIN, sink, journal: None, status: None }, 4);
        queue.start();
        queue
    }

    fn info(text: &str) -> Entry {
        Entry::new(Level::INFO, text)
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_lost_is_counted() {
        let (go, wait) = mpsc::channel();
        let (taken, read) = mpsc::channel();
        let (begun, stalled) = mpsc::channel();
        let queue = start(Stalled { begun, go: wait, taken });
        // `send` returns although nothing is read. The writer has one line, and four lines wait.
        queue.send(info("line 0"));
        stalled.recv_timeout(MINUTE).unwrap();
        for n in 1..100 {
            queue.send(info(&format!("line {n}")));
        }
        assert!(!queue.finish(Some(Entry::last("the end")), Duration::ZERO), "nor for the end");
        // The reader continues.
        for _ in 0..6 {
            go.send(()).unwrap();
        }
        let texts: Vec<_> = (0..6).map(|_| read.recv_timeout(MINUTE).unwrap()).collect();
        assert_eq!(texts[0], "line 0\n");
        assert!(texts[1].starts_with("rustguard: warning: 95 lines"), "{texts:?}");
        assert_eq!(texts[2..], ["line 1\n", "line 2\n", "line 3\n", "line 4\n"]);
    }

    #[test]
    fn the_end_waits_for_what_was_said_before() {
        let (go, wait) = mpsc::channel();
        let (taken, read) = mpsc::channel();
        let (begun, _stalled) = mpsc::channel();
        let queue = start(Stalled { begun, go: wait, taken });
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        queue.send(info("one"));
        queue.send(info("two"));
        assert!(queue.finish(Some(Entry::last("three")), MINUTE));
        assert_eq!(read.try_iter().collect::<Vec<_>>(), ["one\n", "two\n", "rustguard: three\n"]);
    }
}
