//! The server of the socket.

use super::{Errno, Request, parse, response};
use crate::{
    config::UpdateError,
    device::DeviceHandle,
    error::Closed,
    unix_socket::{self, Access, Client, Opener, UnixSocket, answer, remove_dead, within},
};
use std::{
    io,
    path::{Path, PathBuf},
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use zeroize::Zeroizing;

/// The folder in which `wg` looks for sockets.
pub const SOCKET_DIR: &str = "/var/run/wireguard";
/// The longest line of a request, in bytes.
const LINE_MAX: u64 = 1024;
/// The size of the read buffer in bytes. A request with ten thousand peers has megabytes, and every switch between
/// client and daemon costs a reschedule.
const READ_BUFFER: usize = 128 * 1024;
/// The longest request in bytes. A million allowed IPs fit.
const REQUEST_MAX: usize = 64 << 20;

/// A socket that is served. Dropping this stops the server and removes the socket.
pub struct Server(UnixSocket);

/// The reason why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process serves an interface of this name.
    #[error("{0} is in use: another WireGuard process serves this interface; end that one first")]
    InUse(PathBuf),
    /// Another error of the system.
    #[error("cannot open the control socket {path}: {cause}")]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

impl Server {
    /// Opens the socket of `interface` in [`SOCKET_DIR`], and serves it from a task of the current tokio runtime. If a
    /// killed process left a socket behind, it is replaced.
    ///
    /// # Errors
    /// See [`ServerError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        Self::start_by(unix_socket::open, interface, device)
    }

    /// As [`start`](Self::start), with a socket from `opener`.
    ///
    /// # Errors
    /// See [`ServerError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_by(opener: Opener, interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        Self::at(opener, Path::new(SOCKET_DIR), interface, device)
    }

    /// As [`start`](Self::start), in another folder.
    ///
    /// # Errors
    /// See [`ServerError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_in(dir: &Path, interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        Self::at(unix_socket::open, dir, interface, device)
    }

    fn at(opener: Opener, dir: &Path, interface: &str, device: DeviceHandle) -> Result<Self, ServerError> {
        let path = dir.join(format!("{interface}.sock"));
        // A client without permission gets no answer: the connection is closed.
        match UnixSocket::start(opener, &path, Access::Owner, Vec::new(), move |client| serve(client, device.clone())) {
            Ok(socket) => Ok(Self(socket)),
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => Err(ServerError::InUse(path)),
            Err(cause) => Err(ServerError::Io { path, cause }),
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Removes the socket that a killed process left behind for `interface`. A socket that is served is not removed.
///
/// # Errors
/// When the socket cannot be removed.
pub fn clean_up(interface: &str) -> io::Result<()> {
    remove_dead(&Path::new(SOCKET_DIR).join(format!("{interface}.sock"))).map(drop)
}

/// Answers requests until the client closes the connection, breaks the protocol, or takes too long for a request that
/// it has begun. Between requests the client may be silent, because programs that watch a tunnel keep one connection.
async fn serve(client: Client, device: DeviceHandle) -> io::Result<()> {
    let (read, mut write) = client.stream.into_split();
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    while let Some(request) = next_request(&mut read).await? {
        let (body, result) = match parse(&request) {
            Ok(Request::Get) => match device.status_with_secrets().await {
                Ok((status, secrets)) => (response::get(&status, &secrets), Ok(())),
                Err(Closed) => (Zeroizing::default(), Err(Errno::EIO)),
            },
            Ok(Request::GetStatus) => match device.status().await {
                Ok(status) => (response::status(&status), Ok(())),
                Err(Closed) => (Zeroizing::default(), Err(Errno::EIO)),
            },
            Ok(Request::GetRouting) => match device.routing().await {
                Ok(status) => (response::routing(&status), Ok(())),
                Err(Closed) => (Zeroizing::default(), Err(Errno::EIO)),
            },
            Ok(Request::Ping { peer, timeout }) => (response::ping(&device.ping(&peer, timeout).await), Ok(())),
            Ok(Request::Set(update)) => {
                (Zeroizing::default(), device.update(*update).await.map_err(|error| errno(&error)))
            }
            Err(errno) => (Zeroizing::default(), Err(errno)),
        };
        answer(&mut write, body.as_bytes()).await?;
        answer(&mut write, response::end(result).as_bytes()).await?;
    }
    Ok(())
}

/// Waits without limit until a request begins, and at most [`PATIENCE`](crate::unix_socket::PATIENCE) for the rest of
/// it. Returns `None` at the end of the stream.
async fn next_request(read: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<Option<Zeroizing<String>>> {
    loop {
        match read.fill_buf().await?.first() {
            None => return Ok(None),
            // wg may send an additional blank line between requests.
            Some(b'\n') => read.consume(1),
            Some(_) => return within(read_request(read)).await,
        }
    }
}

/// Reads lines up to a blank line. Returns `None` at the end of the stream.
async fn read_request(read: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<Option<Zeroizing<String>>> {
    let mut request = Zeroizing::new(String::new());
    // Each line has a buffer of its own, because tokio's read_line checks the whole string to which it appends every
    // time.
    let mut line = Zeroizing::new(Vec::with_capacity(256));
    loop {
        line.clear();
        if (&mut *read).take(LINE_MAX).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if *line == b"\n" {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_socket::PATIENCE;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test(start_paused = true)]
    async fn a_client_may_be_silent_between_requests_but_not_within_one() {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut server = BufReader::new(server);
        let asked = tokio::spawn(async move {
            tokio::time::sleep(PATIENCE * 100).await;
            client.write_all(b"\n\nget=1\n\nset=1\n").await.unwrap();
            client
        });
        assert_eq!(next_request(&mut server).await.unwrap().unwrap().as_str(), "get=1\n");
        let _open = asked.await.unwrap();
        assert_eq!(next_request(&mut server).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
