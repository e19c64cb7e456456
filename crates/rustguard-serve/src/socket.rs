//! The control socket, `/run/rustguard/NAME.ctl`: each request is a line of JSON, and so is each answer.
//!
//! Root, the user of the server, and the owner and group of the socket may send requests ([`Access::OwnerAndGroup`]).
//! The group is root's; `chgrp` admits others. The kernel enforces this by the mode 0660. The server checks the
//! credentials again, because the mode may have been changed.

use crate::request::{Answer, Request};
use rustguard_device::{
    interface::run_file,
    unix_socket::{Access, Client, PATIENCE, UnixSocket, answer, within},
};
use std::{
    io::{self, BufRead as _, BufReader as StdBufReader, Write as _},
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    sync::{mpsc, oneshot},
};
use zeroize::Zeroizing;

/// The longest request, in bytes. The longest real one, which adds a peer with its name, has some hundred.
const REQUEST_MAX: u64 = 16 << 10;

/// Who gives a command.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The user, or that of this process.
    pub(crate) uid: u32,
    /// The session of the status page, if the command comes from there.
    pub(crate) session: Option<String>,
}

impl Caller {
    /// This process itself.
    pub(crate) fn own() -> Self {
        Self { uid: rustix::process::getuid().as_raw(), session: None }
    }
}

/// A request, who gives it, and the channel for the answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) caller: Caller,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No server runs for this interface.
    #[error("nobody serves {interface}: start it with `rustguard serve{}`", if interface == crate::DEFAULT_INTERFACE { String::new() } else { format!(" --interface {interface}") })]
    NotServed {
        /// The interface.
        interface: String,
    },
    /// This user must not connect.
    #[error("{} is closed to you: run as root, or with sudo", .0.display())]
    Denied(PathBuf),
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer has another form.
    #[error(
        "the answer of the server is not understood ({0}); if rustguard was updated while the server ran, restart the \
         server"
    )]
    NotUnderstood(String),
    /// The connection failed.
    #[error("the server did not answer: {0}")]
    Io(#[from] io::Error),
}

/// The path of the socket of `interface`.
pub fn socket_path(interface: &str) -> PathBuf {
    run_file(interface, "ctl")
}

/// Sends a request to the server of `interface`, and waits for its answer.
///
/// # Errors
/// See [`AskError`].
pub fn ask(interface: &str, request: &Request) -> Result<Answer, AskError> {
    ask_at(&socket_path(interface), interface, request)
}

fn ask_at(path: &Path, interface: &str, request: &Request) -> Result<Answer, AskError> {
    let mut stream = StdUnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            AskError::NotServed { interface: interface.to_owned() }
        }
        io::ErrorKind::PermissionDenied => AskError::Denied(path.to_owned()),
        _ => AskError::Io(error),
    })?;
    stream.set_read_timeout(Some(PATIENCE * 2))?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    // It may have keys.
    let mut answer = Zeroizing::new(String::new());
    StdBufReader::new(stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(AskError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_str(&answer).map_err(|error| AskError::NotUnderstood(error.to_string()))? {
        Answer::Refused { error } => Err(AskError::Refused(error)),
        answer => Ok(answer),
    }
}

/// Opens the socket at `path` and passes requests to `calls`, in a task of the current tokio runtime.
///
/// # Errors
/// See [`UnixSocket::start`].
pub(crate) fn listen(path: &Path, calls: mpsc::Sender<Call>) -> io::Result<UnixSocket> {
    let refusal = line(&Answer::refused("this user may not control the server: run as root, or with sudo"))?;
    UnixSocket::start(path, Access::OwnerAndGroup, refusal.to_vec(), move |client| serve(client, calls.clone()))
}

/// Handles one request and its answer.
async fn serve(client: Client, calls: mpsc::Sender<Call>) -> io::Result<()> {
    let caller = Caller { uid: client.uid, session: None };
    let (read, mut write) = client.stream.into_split();
    let reply = match within(read_request(read)).await? {
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            let sent = calls.send(Call { request, caller, answer }).await.is_ok();
            let ending = Answer::refused("the server is shutting down");
            if sent { answered.await.unwrap_or(ending) } else { ending }
        }
        Err(error) => Answer::refused(format!("no request: {error}")),
    };
    answer(&mut write, &line(&reply)?).await
}

async fn read_request(read: impl tokio::io::AsyncRead + Unpin) -> io::Result<serde_json::Result<Request>> {
    let mut line = Vec::new();
    BufReader::new(read.take(REQUEST_MAX)).read_until(b'\n', &mut line).await?;
    Ok(serde_json::from_slice(&line))
}

fn line(answer: &Answer) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(serde_json::to_vec(answer)?);
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt as _};

    #[test]
    fn the_answer_of_another_version_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg0.ctl");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            StdBufReader::new(&client).read_line(&mut String::new()).unwrap();
            client.write_all(b"{\"answer\":\"status\",\"port\":1}\n").unwrap();
        });
        let error = ask_at(&path, "rg0", &Request::Status).unwrap_err().to_string();
        assert!(error.contains("missing field") && error.contains("restart the server"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn a_request_is_answered_once_and_the_socket_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("rg0.ctl");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entered = runtime.enter();
        let (calls, mut called) = mpsc::channel(1);
        let socket = listen(&path, calls.clone()).unwrap();
        drop(entered);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let (end, ended) = oneshot::channel::<()>();
        let server = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut uids = Vec::new();
                let answering = async {
                    while let Some(call) = called.recv().await {
                        assert!(matches!(call.request, Request::Close));
                        uids.push(call.caller.uid);
                        let first = uids.len() == 1;
                        call.answer.send(if first { Answer::Done } else { Answer::refused("not twice") }).unwrap();
                    }
                };
                tokio::select! { () = answering => {} _ = ended => {} }
                drop(socket);
                uids
            })
        });
        assert!(matches!(ask_at(&path, "rg0", &Request::Close), Ok(Answer::Done)));
        assert_eq!(ask_at(&path, "rg0", &Request::Close).unwrap_err().to_string(), "not twice");
        let second = listen(&path, calls).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "a second server");
        // Invalid input, input that is too long, and an unknown command.
        for bytes in [&b"nonsense\n"[..], &[b' '; 20 << 10], b"{\"command\":\"shutdown\"}\n"] {
            let mut stream = StdUnixStream::connect(&path).unwrap();
            // The server may close the connection before the end.
            let _ = stream.write_all(bytes);
            let mut answer = String::new();
            let _ = StdBufReader::new(stream).read_line(&mut answer);
            assert!(answer.is_empty() || answer.contains("no request"), "{answer}");
        }
        drop(StdUnixStream::connect(&path).unwrap());
        end.send(()).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(server.join().unwrap(), [uid, uid]);
        assert!(!path.exists());
        let error = ask_at(&path, "rg0", &Request::Close).unwrap_err().to_string();
        assert_eq!(error, "nobody serves rg0: start it with `rustguard serve`");
    }
}
