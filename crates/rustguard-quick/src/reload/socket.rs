//! The socket over which another process asks a tunnel to take over its file.
//!
//! `/run/rustguard/NAME.sock` is for root and the user of the process only. A client sends a [`Request`] as one line of
//! JSON, and gets an [`Answer`] in the same form.

use super::{error::ReloadError, words::Line};
use crate::{chain::chain, conf::FileError, rpc, run_file::reload_socket};
use rustguard_device::unix_socket::{Access, UnixSocket};
use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// The most queued requests while one is carried out. Further clients wait for a place in the queue.
const WAITING: usize = 16;
/// The longest wait for an answer. The programs for DNS and for the firewall may be slow, and other reloads may come
/// first.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sent", into = "Sent")]
#[non_exhaustive]
pub enum Request {
    /// Take over a file.
    Reload(Reload),
    /// Tell the network that this machine leaves it.
    Leave,
    /// Change the key of this machine in the network.
    Rotate,
}

/// A request to take over a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reload {
    /// The absolute path of another file. `None`: the tunnel's own file.
    pub file: Option<PathBuf>,
    /// Only compare, and change nothing.
    pub dry_run: bool,
}

/// A request as it is sent, compatible with other versions of the program: `leave` and `rotate` take precedence over a
/// file.
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

/// The answer of a tunnel.
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
        /// Its new public key, in base64.
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
    /// The request.
    pub request: Request,
    answer: oneshot::Sender<Answer>,
}

impl Reload {
    /// A request for the tunnel's own file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets another file.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Sets whether the tunnel only compares.
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

impl rpc::Answer for Answer {
    fn refused(error: String) -> Self {
        Self::refused(error)
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
        let denied = "only root may reload a tunnel; run as root, or with sudo";
        let socket = rpc::serve(&reload_socket(interface), Access::Owner, denied, move |request, _| {
            let sender = sender.clone();
            async move {
                let (answer, answered) = oneshot::channel();
                let sent = sender.send(Pending { request, answer }).await.is_ok();
                let ending = || Answer::refused("the tunnel is shutting down");
                if sent { answered.await.unwrap_or_else(|_| ending()) } else { ending() }
            }
        })?;
        Ok(Self { requests, _socket: socket })
    }

    /// The next request. Later requests wait.
    pub async fn next(&mut self) -> Pending {
        match self.requests.recv().await {
            Some(request) => request,
            // The socket's task has a sender, so this does not happen.
            None => std::future::pending().await,
        }
    }
}

/// The reason why a tunnel could not be asked, or has not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No process of `up` runs the interface.
    #[error("{0} is not up, or another program has brought it up; `rustguard up {0}` brings it up")]
    NotServed(String),
    /// Another cause.
    #[error(transparent)]
    Other(rpc::AskError),
}

/// Asks the tunnel of `interface`, and waits for its answer.
///
/// # Errors
/// See [`AskError`].
pub fn ask(interface: &str, request: &Request) -> Result<Answer, AskError> {
    rpc::ask(&reload_socket(interface), request, PATIENCE).map_err(|error| match error {
        rpc::AskError::NotServed(_) => AskError::NotServed(interface.to_owned()),
        error => AskError::Other(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form that other versions send and understand.
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
