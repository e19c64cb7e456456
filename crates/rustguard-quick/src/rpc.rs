//! Requests to a process that runs a tunnel, over a Unix socket: a client sends one line of JSON, and gets one line
//! back.
//!
//! A tunnel of `up` answers [`reload::Request`](crate::reload::Request)s, a server answers requests of
//! `rustguard-serve`.

use crate::helper::open_socket;
use rustguard_device::unix_socket::{self, Access, Client, UnixSocket, within};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufRead as _, BufReader as StdBufReader, Read as _, Write as _},
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use zeroize::Zeroizing;

/// The longest request in bytes. The longest real requests have a path, or a peer with its name.
const REQUEST_MAX: u64 = 16 << 10;
/// The longest answer in bytes: a line for each of 100,000 peers.
const ANSWER_MAX: u64 = 256 << 20;

/// The answer of a process.
pub trait Answer: Serialize + DeserializeOwned {
    /// The request was refused, for this reason.
    fn refused(error: String) -> Self;
}

/// The reason why a process could not be asked, or has not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No process has this socket.
    #[error("nobody serves {}", .0.display())]
    NotServed(PathBuf),
    /// This user must not connect.
    #[error("{} is closed to you: run as root, or with sudo", .0.display())]
    Denied(PathBuf),
    /// The process has ended before its answer.
    #[error("the process behind {} ended before it answered; its log says why", .0.display())]
    Ended(PathBuf),
    /// The process is still busy with the request.
    #[error(
        "the process behind {} has not answered in {} s, and may still do what it was asked for: its log says how that ends",
        path.display(),
        limit.as_secs()
    )]
    NotYet {
        /// The socket.
        path: PathBuf,
        /// The time of the wait.
        limit: Duration,
    },
    /// The answer has another form.
    #[error(
        "the answer is not understood ({0}); if rustguard was updated meanwhile, restart what still runs the version before"
    )]
    NotUnderstood(serde_json::Error),
    /// Another error of the system.
    #[error("cannot ask by {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Opens the socket at `path`, and answers requests from tasks of the current tokio runtime: each through `answer`,
/// which also gets the client's user id. A client that [`Access`] does not admit gets the refusal `denied`.
///
/// # Errors
/// Errors of the system, and [`io::ErrorKind::AddrInUse`] if another process serves this socket.
///
/// # Panics
/// Outside a tokio runtime.
pub fn serve<Q, A, F>(
    path: &Path,
    access: Access,
    denied: &str,
    answer: impl Fn(Q, u32) -> F + Clone + Send + Sync + 'static,
) -> io::Result<UnixSocket>
where
    Q: DeserializeOwned + Send + 'static,
    A: Answer + Send + 'static,
    F: Future<Output = A> + Send + 'static,
{
    let denied = line(&A::refused(denied.to_owned()))?.to_vec();
    UnixSocket::start(open_socket, path, access, denied, move |client| one(client, answer.clone()))
}

/// Handles one request and its answer.
async fn one<Q, A, F>(client: Client, answer: impl Fn(Q, u32) -> F) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Answer,
    F: Future<Output = A>,
{
    let uid = client.uid;
    let (read, mut write) = client.stream.into_split();
    let mut text = Vec::new();
    within(BufReader::new(read.take(REQUEST_MAX)).read_until(b'\n', &mut text)).await?;
    let answer = match serde_json::from_slice(&text) {
        Ok(request) => answer(request, uid).await,
        Err(error) => {
            A::refused(format!("the request is not understood: {error}; is another version of rustguard running?"))
        }
    };
    unix_socket::answer(&mut write, &line(&answer)?).await
}

/// Sends a request to the process that serves `path`, and waits for its answer, for `limit` at most.
///
/// # Errors
/// See [`AskError`].
pub fn ask<A: Answer>(path: &Path, request: &impl Serialize, limit: Duration) -> Result<A, AskError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NotServed(path.to_owned()),
        io::ErrorKind::PermissionDenied => AskError::Denied(path.to_owned()),
        // A read that takes longer than its limit fails with EAGAIN (socket(7)).
        io::ErrorKind::WouldBlock => AskError::NotYet { path: path.to_owned(), limit },
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => AskError::Ended(path.to_owned()),
        _ => AskError::Io { path: path.to_owned(), source: error },
    };
    let mut stream = StdUnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    stream.write_all(&line(request).map_err(failed)?).map_err(failed)?;
    // The answer may contain keys.
    let mut answer = Zeroizing::new(String::new());
    StdBufReader::new(stream.take(ANSWER_MAX)).read_line(&mut answer).map_err(failed)?;
    if answer.is_empty() {
        return Err(AskError::Ended(path.to_owned()));
    }
    serde_json::from_str(&answer).map_err(AskError::NotUnderstood)
}

fn line(value: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(serde_json::to_vec(value)?);
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::{
        fs,
        os::unix::{fs::MetadataExt as _, net::UnixListener},
        thread,
    };
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(60);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Said {
        Number(u64),
        Refused(String),
    }

    impl Answer for Said {
        fn refused(error: String) -> Self {
            Self::Refused(error)
        }
    }

    #[test]
    fn each_request_is_answered_and_the_socket_goes_with_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run").join("rg0.sock");
        let (started, has_started) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let served = path.clone();
        let process = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let double = |number: u64, uid: u32| async move {
                    if number == 7 { Said::refused(format!("not for {uid}")) } else { Said::Number(2 * number) }
                };
                let socket = serve(&served, Access::OwnerAndGroup, "closed", double).unwrap();
                let second = serve(&served, Access::Owner, "closed", double).unwrap_err();
                assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "another process");
                started.send(()).unwrap();
                let _ = ended.await;
                drop(socket);
            });
        });
        has_started.recv().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(ask::<Said>(&path, &21_u64, LONG).unwrap(), Said::Number(42));
        let refusal = format!("not for {}", rustix::process::geteuid().as_raw());
        assert_eq!(ask::<Said>(&path, &7_u64, LONG).unwrap(), Said::Refused(refusal));
        // Invalid input, and input that is too long.
        for bytes in [&b"nonsense\n"[..], b"{}\n", &[b' '; 20 << 10]] {
            let mut stream = StdUnixStream::connect(&path).unwrap();
            // The process may close the connection before the end.
            let _ = stream.write_all(bytes);
            let mut answer = String::new();
            let _ = StdBufReader::new(stream).read_line(&mut answer);
            assert!(answer.is_empty() || answer.contains("the request is not understood"), "{answer}");
        }
        drop(StdUnixStream::connect(&path).unwrap());
        end.send(()).unwrap();
        process.join().unwrap();
        assert!(!path.exists());
        assert!(matches!(ask::<Said>(&path, &1_u64, LONG), Err(AskError::NotServed(_))));
    }

    #[test]
    fn a_process_that_does_not_answer_is_told_from_one_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wg0.sock");
        // The kernel accepts the connection, but no process reads from it.
        let listener = UnixListener::bind(&path).unwrap();
        let error = ask::<Said>(&path, &1_u64, Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error, AskError::NotYet { .. }), "{error}");
        drop(listener.accept().unwrap());
        let process = thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            StdBufReader::new(&client).read_line(&mut String::new()).unwrap();
        });
        let error = ask::<Said>(&path, &1_u64, LONG).unwrap_err();
        assert!(matches!(error, AskError::Ended(_)), "{error}");
        process.join().unwrap();
    }

    #[test]
    fn the_answer_of_another_version_is_called_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rg0.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let process = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            StdBufReader::new(&client).read_line(&mut String::new()).unwrap();
            client.write_all(b"{\"later\":1}\n").unwrap();
        });
        let error = ask::<Said>(&path, &1_u64, LONG).unwrap_err().to_string();
        assert!(error.contains("unknown variant") && error.contains("restart what still runs"), "{error}");
        process.join().unwrap();
    }
}
