//! The control socket, `/run/rustguard/NAME.ctl`: a line of JSON asks, a line of JSON answers.
//!
//! Who may ask: root, the user the server runs as, and the group of the socket (root's; `chgrp` gives it to others). The
//! socket's mode, 0660, says the same to the kernel, and the credentials of whoever connects are checked again: a mode is
//! changed quickly.

use crate::request::{Answer, Request};
use rustguard_device::interface::run_file;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs,
    io::{self, BufRead as _, BufReader as StdBufReader, Write as _},
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
};

/// Callers at a time; more wait.
const CALLERS: usize = 16;
/// The longest request, in bytes. The longest there is, a peer to add with its name, is some hundred.
const REQUEST_MAX: u64 = 16 << 10;
/// How long a caller may take for its request, or to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request, who makes it, and where the answer goes.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) uid: u32,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// A socket that is being served. Dropping it stops that and removes the socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody serves this interface.
    #[error("nobody serves {interface}: start it with `rustguard serve{}`", if interface == crate::DEFAULT_INTERFACE { String::new() } else { format!(" --interface {interface}") })]
    NotServed {
        /// The interface.
        interface: String,
    },
    /// This user may not.
    #[error("{} is closed to you: run as root, or with sudo", .0.display())]
    Denied(PathBuf),
    /// The server refuses.
    #[error("{0}")]
    Refused(String),
    /// It broke off in the middle.
    #[error("the server did not answer: {0}")]
    Io(#[from] io::Error),
}

/// Where the socket of `interface` is.
pub fn socket_path(interface: &str) -> PathBuf {
    run_file(interface, "ctl")
}

/// Asks the server of `interface`, and waits for its answer.
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
    let mut answer = String::new();
    StdBufReader::new(stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(AskError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_str(&answer).map_err(io::Error::from)? {
        Answer::Refused { error } => Err(AskError::Refused(error)),
        answer => Ok(answer),
    }
}

impl ControlSocket {
    /// Opens the socket at `path` and passes requests on, from a task of the current tokio runtime. A socket that a killed
    /// process left behind is replaced.
    ///
    /// # Errors
    /// Those of the system, and `AddrInUse` where another process serves it.
    pub(crate) fn start(path: PathBuf, calls: mpsc::Sender<Call>) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        }
        if StdUnixStream::connect(&path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let task = tokio::spawn(accept(listen(&path)?, path.clone(), calls));
        Ok(Self { path, task })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
        // Gone already: somebody cleaned up for us.
        let _ = fs::remove_file(&self.path);
    }
}

/// Nobody can connect before the mode is right: a connection needs listen(2).
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket)))
}

async fn accept(listener: UnixListener, path: PathBuf, calls: mpsc::Sender<Call>) {
    let callers = Arc::new(Semaphore::new(CALLERS));
    loop {
        let Ok(permit) = Arc::clone(&callers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (calls, path) = (calls.clone(), path.clone());
                tokio::spawn(async move {
                    // A caller that goes away, or takes too long, is no concern of ours.
                    let _ = serve(stream, &path, &calls).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("the control socket refused a caller: {error}");
                // Out of descriptors, most likely: do not spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// One request, one answer.
async fn serve(stream: UnixStream, path: &Path, calls: &mpsc::Sender<Call>) -> io::Result<()> {
    let who = stream.peer_cred()?;
    let (read, mut write) = stream.into_split();
    // Heard out in any case: who is cut short while still speaking does not hear the answer.
    let request = tokio::time::timeout(PATIENCE, read_request(read)).await??;
    let answer = if may_ask(path, who.uid(), who.gid()) {
        match request {
            Ok(request) => {
                let (answer, answered) = oneshot::channel();
                let call = Call { request, uid: who.uid(), answer };
                let sent = calls.send(call).await.is_ok();
                let ending = Answer::refused("the server is shutting down");
                if sent { answered.await.unwrap_or(ending) } else { ending }
            }
            Err(error) => Answer::refused(format!("no request: {error}")),
        }
    } else {
        tracing::warn!(uid = who.uid(), "the control socket refused a user");
        Answer::refused("this user may not control the server: run as root, or with sudo")
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    tokio::time::timeout(PATIENCE, write.write_all(&line)).await?
}

async fn read_request(read: impl tokio::io::AsyncRead + Unpin) -> io::Result<serde_json::Result<Request>> {
    let mut line = Vec::new();
    BufReader::new(read.take(REQUEST_MAX)).read_until(b'\n', &mut line).await?;
    Ok(serde_json::from_slice(&line))
}

/// Whether the mode 0660 lets this user in, whatever the mode is now.
fn may_ask(path: &Path, uid: u32, gid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw() || fs::metadata(path).is_ok_and(|socket| socket.gid() == gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_and_the_socket_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("rg0.ctl");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entered = runtime.enter();
        let (calls, mut called) = mpsc::channel(1);
        let socket = ControlSocket::start(path.clone(), calls.clone()).unwrap();
        drop(entered);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let (end, ended) = oneshot::channel::<()>();
        let server = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut uids = Vec::new();
                let answering = async {
                    while let Some(call) = called.recv().await {
                        assert!(matches!(call.request, Request::Close));
                        uids.push(call.uid);
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
        let second = ControlSocket::start(path.clone(), calls).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "a second server");
        // Nonsense, too much of it, and nothing at all.
        for bytes in [&b"nonsense\n"[..], &[b' '; 20 << 10], b"{\"command\":\"shutdown\"}\n"] {
            let mut stream = StdUnixStream::connect(&path).unwrap();
            // The server may have had enough before the end.
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

    #[test]
    fn strangers_are_turned_away_whatever_the_mode() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let group = file.as_file().metadata().unwrap().gid();
        assert!(may_ask(file.path(), 0, group + 1));
        assert!(may_ask(file.path(), rustix::process::geteuid().as_raw(), group + 1));
        assert!(may_ask(file.path(), 65_534, group));
        assert!(!may_ask(file.path(), 65_534, group + 1));
    }
}
