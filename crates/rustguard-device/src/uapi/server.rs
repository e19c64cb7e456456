//! The socket.

use super::{Errno, Request, parse, response};
use crate::{config::UpdateError, device::DeviceHandle};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinHandle,
};
use zeroize::Zeroizing;

/// Where `wg` looks for sockets.
pub const SOCKET_DIR: &str = "/var/run/wireguard";
/// Clients at a time; more wait.
const CLIENTS: usize = 16;
/// The longest line of a request, in bytes.
const LINE_MAX: u64 = 1024;
/// Bytes read at a time: ten thousand peers are megabytes, and every turn between client and daemon costs a reschedule.
const READ_BUFFER: usize = 128 * 1024;
/// The longest request, in bytes: a million allowed IPs fit.
const REQUEST_MAX: usize = 64 << 20;

/// A socket that is being served. Dropping it stops that and removes the socket.
pub struct Server {
    path: PathBuf,
    task: JoinHandle<()>,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process serves an interface of this name.
    #[error("{0} is in use: another WireGuard process serves this interface; end that one first")]
    InUse(PathBuf),
    /// Anything else.
    #[error("cannot open the control socket {path}: {cause}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

impl Server {
    /// Opens the socket of `interface` in [`SOCKET_DIR`] and serves it from a task of the current tokio runtime. A socket
    /// that a killed process left behind is replaced.
    ///
    /// # Errors
    /// See [`ServerError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        Self::start_in(Path::new(SOCKET_DIR), interface, device)
    }

    /// As [`start`](Self::start), in another folder.
    ///
    /// # Errors
    /// See [`ServerError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_in(dir: &Path, interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        let path = dir.join(format!("{interface}.sock"));
        let io = |cause| ServerError::Io { path: path.clone(), cause };
        fs::create_dir_all(dir).map_err(io)?;
        if !remove_dead(&path).map_err(io)? {
            return Err(ServerError::InUse(path));
        }
        let listener = listen(&path).map_err(io)?;
        let task = tokio::spawn(accept(listener, device));
        Ok(Self { path, task })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // Gone already: somebody cleaned up for us.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the socket that a killed process left behind for `interface`; one that is served stays.
///
/// # Errors
/// When the socket cannot be removed.
pub fn clean_up(interface: &str) -> io::Result<()> {
    remove_dead(&Path::new(SOCKET_DIR).join(format!("{interface}.sock"))).map(drop)
}

/// Removes a socket that nobody listens to; false when somebody does.
fn remove_dead(path: &Path) -> io::Result<bool> {
    if StdUnixStream::connect(path).is_ok() {
        return Ok(false);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

/// Nobody can connect before the mode is right: a connection needs listen(2).
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket)))
}

async fn accept(listener: UnixListener, device: DeviceHandle) {
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(permit) = Arc::clone(&clients).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let device = device.clone();
                tokio::spawn(async move {
                    // A client that goes away in mid-sentence is no concern of ours.
                    let _ = serve(stream, &device).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("the control socket refused a client: {error}");
                // Out of descriptors, most likely: do not spin.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Request after request, until the client closes or breaks the protocol.
async fn serve(stream: UnixStream, device: &DeviceHandle) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    while let Some(request) = read_request(&mut read).await? {
        let (body, result) = match parse(&request) {
            Ok(Request::Get { names }) => match device.status_with_secrets().await {
                Some((status, secrets)) => (response::status(&status, &secrets, names), Ok(())),
                None => (Zeroizing::default(), Err(Errno::EIO)),
            },
            Ok(Request::GetRouting) => match device.routing().await {
                Some(status) => (response::routing(&status), Ok(())),
                None => (Zeroizing::default(), Err(Errno::EIO)),
            },
            Ok(Request::Set(update)) => {
                (Zeroizing::default(), device.update(*update).await.map_err(|error| errno(&error)))
            }
            Err(errno) => (Zeroizing::default(), Err(errno)),
        };
        write.write_all(body.as_bytes()).await?;
        write.write_all(response::end(result).as_bytes()).await?;
    }
    Ok(())
}

/// The lines up to a blank one; `None` at the end of the stream.
async fn read_request(read: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<Option<Zeroizing<String>>> {
    let mut request = Zeroizing::new(String::new());
    // A line of its own: tokio's read_line checks the whole string it appends to, every time.
    let mut line = Zeroizing::new(Vec::with_capacity(256));
    loop {
        line.clear();
        if (&mut *read).take(LINE_MAX).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if *line == b"\n" {
            // wg may send a blank line more than needed between requests.
            if request.is_empty() {
                continue;
            }
            return Ok(Some(request));
        }
        if !line.ends_with(b"\n") || request.len() > REQUEST_MAX {
            return Err(invalid("a line or a request is too long"));
        }
        request.push_str(std::str::from_utf8(&line).map_err(|_| invalid("not UTF-8"))?);
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn errno(error: &UpdateError) -> Errno {
    tracing::warn!("{error}");
    match error {
        UpdateError::Port { cause, .. } | UpdateError::Fwmark { cause, .. } => match cause.kind() {
            io::ErrorKind::AddrInUse => Errno::EADDRINUSE,
            io::ErrorKind::PermissionDenied => Errno::EACCES,
            _ => cause.raw_os_error().map_or(Errno::EIO, Errno),
        },
        _ => Errno::EIO,
    }
}
