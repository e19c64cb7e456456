//! The socket over which another process asks a tunnel to take over its file.
//!
//! `/run/rustguard/NAME.sock` is for root and the user of the process only. A client sends a [`Request`] as one line of
//! JSON, and gets an [`Answer`] in the same form.

use super::{error::ReloadError, words::Line};
use crate::{chain::chain, conf::FileError, run_file};
use rustguard_device::unix_socket::{Access, Client, UnixSocket, answer, within};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _},
    sync::{mpsc, oneshot},
};

/// The longest request in bytes. It has little more than a path.
const REQUEST_MAX: u64 = 16 << 10;
/// The longest answer in bytes: a line for each of 100,000 peers.
const ANSWER_MAX: u64 = 256 << 20;
/// Requests that wait while one is carried out. More clients wait outside.
const WAITING: usize = 16;
/// The longest wait for an answer: the programs for DNS and the guard may take their time, and other reloads come
/// first.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sent", into = "Sent")]
#[non_exhaustive]
pub enum Request {
    /// To take over a file.
    Reload(Reload),
    /// To tell the network that this machine leaves it.
    Leave,
    /// That this machine changes its key in the network.
    Rotate,
}

/// Which file a tunnel is to take over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reload {
    /// Another file than the one that the tunnel has. An absolute path.
    pub file: Option<PathBuf>,
    /// Only compare, and change nothing.
    pub dry_run: bool,
}

/// A request as it is sent. Other versions of the program ask and are asked: `leave` and `rotate` come before a file.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Sent {
    #[serde(default)]
    file: Option<PathBuf>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    leave: bool,
    #[serde(default)]
    rotate: bool,
}

impl From<Sent> for Request {
    fn from(Sent { file, dry_run, leave, rotate }: Sent) -> Self {
        match (leave, rotate) {
            (true, _) => Self::Leave,
            (_, true) => Self::Rotate,
            _ => Self::Reload(Reload { file, dry_run }),
        }
    }
}

impl From<Request> for Sent {
    fn from(request: Request) -> Self {
        match request {
            Request::Reload(Reload { file, dry_run }) => Self { file, dry_run, ..Self::default() },
            Request::Leave => Self { leave: true, ..Self::default() },
            Request::Rotate => Self { rotate: true, ..Self::default() },
        }
    }
}

/// What a tunnel answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// The changes were made, or would be made.
    Changes {
        /// The file that was read.
        file: PathBuf,
        /// The changes.
        changes: Vec<Line>,
    },
    /// The network was told that this machine leaves it.
    Left {
        /// Whether the server that issues the roster has heard it.
        heard: bool,
    },
    /// This machine changes its key in the network.
    Rotating {
        /// The public key that it gets, in base64.
        public_key: String,
    },
    /// Nothing was changed, or not all of it could be undone.
    Refused {
        /// Why.
        error: String,
        /// The file that has mistakes, if that is the reason. [`conf::parse`](crate::conf::parse) reports all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invalid: Option<PathBuf>,
    },
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Pending {
    /// What is wanted.
    pub request: Request,
    answer: oneshot::Sender<Answer>,
}

impl Reload {
    /// The tunnel's own file.
    pub fn new() -> Self {
        Self::default()
    }

    /// This file.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Only to compare.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

impl Answer {
    /// Nothing was changed.
    pub fn refused(error: impl Into<String>) -> Self {
        Self::Refused { error: error.into(), invalid: None }
    }
}

impl From<ReloadError> for Answer {
    fn from(error: ReloadError) -> Self {
        let invalid = match &error {
            ReloadError::File(FileError::Invalid { path, .. }) => Some(path.clone()),
            _ => None,
        };
        Self::Refused { error: chain(&error), invalid }
    }
}

impl Pending {
    /// Answers the client.
    pub fn answer(self, answer: Answer) {
        // The client may have gone.
        let _ = self.answer.send(answer);
    }
}

/// The socket of a tunnel. Dropping this removes it.
#[derive(Debug)]
pub struct Server {
    requests: mpsc::Receiver<Pending>,
    _socket: UnixSocket,
}

impl Server {
    /// Opens the socket of `interface` and serves it from a task of the current tokio runtime.
    ///
    /// # Errors
    /// Errors of the system, and [`io::ErrorKind::AddrInUse`] if another process serves this socket.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(interface: &str) -> io::Result<Self> {
        let (sender, requests) = mpsc::channel(WAITING);
        let refusal = line(&Answer::refused("only root may reload a tunnel; run as root, or with sudo"))?;
        let socket = UnixSocket::start(&run_file::reload_socket(interface), Access::Owner, refusal, move |client| {
            serve(client, sender.clone())
        })?;
        Ok(Self { requests, _socket: socket })
    }

    /// The next request. Requests that come meanwhile wait.
    pub async fn next(&mut self) -> Pending {
        match self.requests.recv().await {
            Some(request) => request,
            // The socket's task has a sender, so this does not happen.
            None => std::future::pending().await,
        }
    }
}

async fn serve(client: Client, requests: mpsc::Sender<Pending>) -> io::Result<()> {
    let (read, mut write) = client.stream.into_split();
    let mut text = String::new();
    let mut read = tokio::io::BufReader::new(read.take(REQUEST_MAX));
    within(read.read_line(&mut text)).await?;
    let request: Request = match serde_json::from_str(&text) {
        Ok(request) => request,
        Err(error) => {
            let error = format!("the request is not understood: {error}; is another version of rustguard running?");
            return answer(&mut write, &line(&Answer::refused(error))?).await;
        }
    };
    let (sender, answered) = oneshot::channel();
    if requests.send(Pending { request, answer: sender }).await.is_ok()
        && let Ok(said) = answered.await
    {
        answer(&mut write, &line(&said)?).await?;
    }
    Ok(())
}

fn line(answer: &Answer) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(answer).map_err(io::Error::from)?;
    line.push(b'\n');
    Ok(line)
}

/// Why a tunnel was not asked, or has not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No process has this socket.
    #[error("{0} is not up, or another program has brought it up; `rustguard up {0}` brings it up")]
    NotServed(String),
    /// The socket belongs to another user.
    #[error("{} belongs to another user; run as root, or with sudo", .0.display())]
    Denied(PathBuf),
    /// The process has ended before its answer.
    #[error("{0} ended before it answered; its log says why")]
    Ended(String),
    /// The process is still at it.
    #[error("{interface} has not answered in {} s, and may still take the file over: its log says how that ends", limit.as_secs())]
    NotYet {
        /// The interface.
        interface: String,
        /// The time that was waited.
        limit: Duration,
    },
    /// Another error of the system.
    #[error("cannot ask {interface} to reload: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Asks the tunnel of `interface`, and waits for its answer.
///
/// # Errors
/// See [`AskError`].
pub fn ask(interface: &str, request: &Request) -> Result<Answer, AskError> {
    ask_at(&run_file::reload_socket(interface), interface, request, PATIENCE)
}

fn ask_at(path: &Path, interface: &str, request: &Request, limit: Duration) -> Result<Answer, AskError> {
    let interface = interface.to_owned();
    let other = |source| AskError::Io { interface: interface.clone(), source };
    let mut stream = StdUnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NotServed(interface.clone()),
        io::ErrorKind::PermissionDenied => AskError::Denied(path.to_owned()),
        _ => other(error),
    })?;
    stream.set_read_timeout(Some(limit)).map_err(other)?;
    let mut line = serde_json::to_vec(request).map_err(|error| other(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(other)?;
    let mut text = String::new();
    // A read that takes longer than its limit fails with EAGAIN (socket(7)).
    let read = BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut text);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => AskError::NotYet { interface: interface.clone(), limit },
        _ => other(error),
    })?;
    if text.is_empty() {
        return Err(AskError::Ended(interface));
    }
    serde_json::from_str(&text).map_err(|error| other(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_process_that_does_not_answer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wg0.sock");
        let ask = || ask_at(&path, "wg0", &Request::Reload(Reload::new()), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(ask(), AskError::NotServed(_)));
        // The kernel accepts the connection, and nobody reads.
        let _listener = UnixListener::bind(&path).unwrap();
        let error = ask();
        assert!(
            matches!(error, AskError::NotYet { .. }) && error.to_string().contains("wg0 has not answered"),
            "{error}"
        );
    }

    /// What other versions send and understand.
    #[test]
    fn requests_on_the_wire() {
        for (text, request) in [
            (r#"{"file":null,"dry_run":false,"leave":false,"rotate":false}"#, Request::Reload(Reload::new())),
            (
                r#"{"file":"/etc/wg0.conf","dry_run":true,"leave":false,"rotate":false}"#,
                Request::Reload(Reload::new().file("/etc/wg0.conf").dry_run(true)),
            ),
            (r#"{"file":null,"dry_run":false,"leave":true,"rotate":false}"#, Request::Leave),
            (r#"{"file":null,"dry_run":false,"leave":false,"rotate":true}"#, Request::Rotate),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        assert_eq!(serde_json::from_str::<Request>("{}").unwrap(), Request::Reload(Reload::new()));
    }
}
