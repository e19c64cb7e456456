//! The tunnel's end.

use super::task::{Answer, Failure, Said, Task, Told, frame, read_told};
use rustguard_device::unix_socket::{self, Access};
use std::{
    collections::HashMap,
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// The time for the start of the privileged helper. It takes milliseconds.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// The time for its end: it kills its running programs after two seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(4);
/// The time for a task that the caller waits for in place. All of these take milliseconds.
const IN_PLACE: Duration = Duration::from_secs(30);

/// The connection of this process, which gives up its rights only once, for all threads.
static CONNECTION: OnceLock<Connection> = OnceLock::new();

/// The connection to the privileged helper, if there is one.
pub(crate) fn get() -> Option<&'static Connection> {
    CONNECTION.get()
}

/// Whether this process has given up its rights, and has a privileged helper.
pub fn exists() -> bool {
    get().is_some()
}

/// The privileged helper. When this is dropped, it ends.
#[derive(Debug)]
pub struct Helper {
    child: Child,
}

impl Helper {
    /// Starts the privileged helper: `command` has to call [`run`](crate::helper_process::run). From then on, the
    /// helper does everything that needs a program or rights other than those for networks. Starts no thread.
    ///
    /// # Errors
    /// It does not start. This process then does everything itself, as before.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // It has its own process group: Ctrl-C is for the tunnel, which then has its hooks run.
        command.process_group(0).stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut child = command.spawn()?;
        // The command holds the other end, which has to be closed here so that the end of the process closes the
        // connection.
        drop(command);
        ours.set_read_timeout(Some(STARTS_WITHIN))?;
        let ready = read_told(&ours).and_then(|(told, _)| match told.answer {
            Answer::Done => Ok(()),
            answer => Err(io::Error::other(format!("{answer:?}"))),
        });
        if let Err(error) = ready {
            let _ = child.kill();
            let ended = child.wait()?;
            return Err(io::Error::new(error.kind(), format!("it has ended ({ended}): {error}")));
        }
        ours.set_read_timeout(None)?;
        let connection = Connection { stream: ours, state: Mutex::default(), reader: Once::new() };
        if CONNECTION.set(connection).is_err() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Self { child })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(connection) = get() {
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
        }
        let until = Instant::now() + ENDS_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The connection to the privileged helper.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    state: Mutex<State>,
    reader: Once,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: HashMap<u64, Waiting>,
    ended: bool,
    /// The socket that came with the last answer.
    socket: Option<OwnedFd>,
}

#[derive(Debug)]
enum Waiting {
    Task(oneshot::Sender<Answer>),
    Thread(mpsc::Sender<Answer>),
}

impl Waiting {
    fn tell(self, answer: Answer) {
        match self {
            Self::Task(sender) => drop(sender.send(answer)),
            Self::Thread(sender) => drop(sender.send(answer)),
        }
    }
}

impl Connection {
    /// Has a task done. Dropping the future ends the programs of the task, and blocks until they have ended, because
    /// nothing may be undone while changes are still being made.
    pub(crate) async fn ask(&'static self, task: Task) -> Answer {
        let (sender, answer) = oneshot::channel();
        let mut asked = match self.send(task, Waiting::Task(sender)) {
            Ok(number) => Asked { connection: self, number, answer: Some(answer) },
            Err(failure) => return Answer::Failed(failure),
        };
        let told = match &mut asked.answer {
            Some(answer) => answer.await.unwrap_or_else(|_| Answer::Failed(gone())),
            None => Answer::Failed(gone()),
        };
        asked.answer = None;
        told
    }

    /// Has a short task done, and blocks until its answer.
    pub(crate) fn ask_now(&'static self, task: Task) -> Answer {
        let (sender, answer) = mpsc::channel();
        match self.send(task, Waiting::Thread(sender)) {
            Ok(_) => answer.recv_timeout(IN_PLACE).unwrap_or_else(|_| Answer::Failed(gone())),
            Err(failure) => Answer::Failed(failure),
        }
    }

    /// Has a task done without waiting. Its answer is discarded.
    pub(super) fn tell(&'static self, task: Task) -> Result<(), Failure> {
        let (sender, _) = mpsc::channel();
        self.send(task, Waiting::Thread(sender)).map(drop)
    }

    fn send(&'static self, task: Task, waiting: Waiting) -> Result<u64, Failure> {
        self.reader.call_once(|| {
            let reader = thread::Builder::new().name("helper".to_owned());
            if reader.spawn(|| self.read()).is_err() {
                self.state().ended = true;
            }
        });
        let mut state = self.state();
        if state.ended {
            return Err(gone());
        }
        state.last += 1;
        let number = state.last;
        let frame = frame(&Said::Do { number, task })?;
        state.waiting.insert(number, waiting);
        // The lock is held, so that frames stay whole. The privileged helper reads at once.
        if (&self.stream).write_all(&frame).is_err() {
            state.waiting.remove(&number);
            return Err(gone());
        }
        Ok(number)
    }

    /// Passes answers on until the connection ends.
    fn read(&self) {
        while let Ok((Told { number, answer }, socket)) = read_told(&self.stream) {
            let mut state = self.state();
            if let Some(waiting) = state.waiting.remove(&number) {
                state.socket = socket.or(state.socket.take());
                drop(state);
                waiting.tell(answer);
            }
        }
        let mut state = self.state();
        state.ended = true;
        // Waiting callers then see that no answer will come.
        state.waiting.clear();
    }

    fn cancel(&self, number: u64) {
        let state = self.state();
        if state.waiting.contains_key(&number)
            && let Ok(frame) = frame(&Said::Cancel { number })
        {
            let _ = (&self.stream).write_all(&frame);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task without an answer yet.
struct Asked {
    connection: &'static Connection,
    number: u64,
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        self.connection.cancel(self.number);
        let until = Instant::now() + ENDS_WITHIN;
        while matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn gone() -> Failure {
    Failure::refused(
        "the process that starts programs for this tunnel has ended; `rustguard down` and `up` start both anew",
    )
}

/// Puts the [spare](crate::helper_process::spare) state folder in place of the state folder, in one step, and returns
/// the new path of the earlier state. `None` without a privileged helper: then the caller itself has the right to do
/// it.
///
/// # Errors
/// The folders cannot be exchanged. Nothing has changed then.
pub fn swap_state() -> Option<io::Result<PathBuf>> {
    Some(match get()?.ask_now(Task::SwapState) {
        Answer::Moved(before) => Ok(before),
        Answer::Failed(failure) => Err(failure.into_io()),
        answer => Err(unexpected(&answer)),
    })
}

/// Exchanges both folders again.
///
/// # Errors
/// As [`swap_state`].
pub fn swap_state_back() -> Option<io::Result<()>> {
    Some(match get()?.ask_now(Task::SwapStateBack) {
        Answer::Done => Ok(()),
        Answer::Failed(failure) => Err(failure.into_io()),
        answer => Err(unexpected(&answer)),
    })
}

/// Opens a socket of this tunnel, as [`unix_socket::open`] does. If there is a privileged helper, it opens the socket,
/// because this process cannot.
///
/// # Errors
/// As [`unix_socket::open`].
pub fn open_socket(path: &Path, access: Access) -> io::Result<OwnedFd> {
    let Some(connection) = get() else { return unix_socket::open(path, access) };
    let (path, group) = (std::path::absolute(path)?, access == Access::OwnerAndGroup);
    match connection.ask_now(Task::Listen { path, group }) {
        Answer::Done => connection.state().socket.take().ok_or_else(|| unexpected(&Answer::Done)),
        Answer::Failed(failure) => Err(failure.into_io()),
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("the privileged helper gave another answer: {answer:?}"))
}
