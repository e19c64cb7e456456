//! The journal lines of a confined tunnel.

use super::{
    client::{get, unexpected},
    line::Line,
    task::{Answer, Failure, Task},
};
use std::{
    io,
    sync::mpsc::{SyncSender, TrySendError, sync_channel},
    thread,
};
use tokio::sync::mpsc;

/// The longest text of a line, and of a field, in bytes.
const LONGEST: usize = 64 << 10;
/// The most fields of a line. Our lines have each field once.
const FIELDS: usize = 16;
/// The most lines that wait. A tunnel waits for each of them.
const WAITING: usize = 16;

/// Refuses lines that our log never has.
fn check(line: &Line) -> Result<(), Failure> {
    let texts = line.fields.iter().map(|(_, value)| value).chain([&line.target, &line.text]);
    if line.fields.len() > FIELDS || texts.into_iter().any(|text| text.len() > LONGEST) {
        return Err(Failure::refused("a line that is too long for the journal"));
    }
    Ok(())
}

/// Has the privileged helper write a line into the journal, and waits until it is written. `None` without a helper:
/// then the caller itself has the right to do it.
///
/// # Errors
/// The journal does not accept the line, or the privileged helper has ended.
pub fn log(line: Line) -> Option<io::Result<()>> {
    Some(match get()?.ask_now(Task::Log(line)) {
        Answer::Done => Ok(()),
        Answer::Failed(failure) => Err(failure.into_io()),
        answer => Err(unexpected(&answer)),
    })
}

/// The thread of the privileged helper that writes lines: a journal that hangs delays no hook.
#[derive(Debug)]
pub(crate) struct Journal {
    lines: SyncSender<(u64, Line)>,
    written: mpsc::Receiver<(u64, Answer)>,
}

impl Journal {
    pub(crate) fn start(mut write: impl FnMut(&Line) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let (lines, wanted) = sync_channel::<(u64, Line)>(WAITING);
        let (done, written) = mpsc::channel(WAITING);
        thread::Builder::new().name("journal".to_owned()).spawn(move || {
            for (number, line) in wanted {
                let answer = write(&line).map_or_else(|error| Answer::Failed(error.into()), |()| Answer::Done);
                if done.blocking_send((number, answer)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { lines, written })
    }

    /// Has a line written. [`written`](Self::written) returns the outcome of this task.
    pub(crate) fn write(&self, number: u64, line: Line) -> Result<(), Failure> {
        check(&line)?;
        self.lines.try_send((number, line)).map_err(|error| match error {
            TrySendError::Full(_) => Failure::refused("too many lines at a time"),
            TrySendError::Disconnected(_) => Failure::refused("nobody writes into the journal"),
        })
    }

    /// The next task that is done.
    pub(crate) async fn written(&mut self) -> (u64, Answer) {
        match self.written.recv().await {
            Some(done) => done,
            // The thread has ended, and gives no more answers.
            None => std::future::pending().await,
        }
    }
}
