//! A Unix socket or a TCP port for a server beside the tunnel: metrics, or a page for people. The resources that
//! strangers can hold are bounded.

mod address;

use crate::unix_socket::{self, Access, Opener, UnixSocket};
pub use address::{Address, AddressError};
use rustix::process::geteuid;
use socket2::{Domain, Socket, Type};
use std::{
    collections::VecDeque,
    fs, io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Notify,
    task::AbortHandle,
};

/// How long the kernel keeps data that a client does not acknowledge, even after the connection was closed (tcp(7),
/// TCP_USER_TIMEOUT).
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// The number of bytes that the kernel keeps for a client that does not read. The kernel doubles it (socket(7),
/// SO_SNDBUF).
const SEND_BUFFER: usize = 256 << 10;
/// The pause after a failed accept. The most likely cause is that the process has no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Why something cannot be served at an address. The message names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another program has the address, or the socket.
    #[error("cannot serve {what} at {address}: another program listens there already; give each tunnel {of_its_own}", of_its_own = of_its_own(.address))]
    Taken {
        /// The service.
        what: &'static str,
        /// The address.
        address: Address,
    },
    /// This machine does not have the address.
    #[error(
        "cannot serve {what} at {address}: this machine does not have this address; `ip addr` lists those that it has"
    )]
    NotOurs {
        /// The service.
        what: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// Other users may change the folder of the socket: they could put their own socket in its place.
    #[error("cannot serve {what} at {socket}: other users may change {folder}: choose another folder, or chmod go-w {folder}", socket = .socket.display(), folder = .folder.display())]
    UnsafeFolder {
        /// The service.
        what: &'static str,
        /// The path of the socket.
        socket: PathBuf,
        /// The folder, or one above it.
        folder: PathBuf,
    },
    /// The path belongs to another kind of file.
    #[error("cannot serve {what} at {path}: the file exists and is not a socket; choose another path, or remove it", path = .path.display())]
    NotASocket {
        /// The service.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Another error of the system.
    #[error("cannot serve {what} at {address}: {cause}")]
    Io {
        /// The service.
        what: &'static str,
        /// The address.
        address: Address,
        /// The cause.
        cause: io::Error,
    },
}

fn of_its_own(address: &Address) -> &'static str {
    match address {
        Address::Unix(_) => "a socket of its own",
        Address::Tcp(_) => "a port of its own, or 0 for any free one",
    }
}

/// A connection.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection for T {}

/// A service, in words for messages, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// The service: `metrics`.
    pub what: &'static str,
    /// The users who may connect to a Unix socket.
    pub access: Access,
    /// The function that opens a Unix socket.
    pub opener: Opener,
    /// The number of TCP connections at a time. A further connection ends the oldest one of the client with the most
    /// connections, so that no client keeps others out or interrupts their work.
    pub connections: usize,
}

/// Serves connections on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Opens the socket or the port, and begins to accept. `serve` makes a future for each connection, on the thread
    /// with this name. `own` are addresses that the machine does not have yet, but will have soon: the tunnel's.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn start<F>(
        thread: &str,
        at: &Address,
        purpose: Purpose,
        own: &[IpAddr],
        serve: impl Fn(Box<dyn Connection>) -> F + Send + Sync + 'static,
    ) -> Result<Self, BindError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let io = |cause| BindError::Io { what: purpose.what, address: at.clone(), cause };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
        let serve = Arc::new(serve);
        let (entered, for_unix) = (runtime.enter(), Arc::clone(&serve));
        let opened = match at {
            Address::Unix(path) => Open::unix(path, purpose, move |client| {
                let served = for_unix(Box::new(client.stream));
                async move {
                    served.await;
                    Ok(())
                }
            }),
            Address::Tcp(at) => Open::tcp(*at, purpose, own),
        };
        drop(entered);
        let open = match opened {
            Ok(open) => open,
            Err(error) => {
                // Dropping the runtime would wait for its threads. It has none, but tokio forbids this inside a
                // runtime.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = open.local_addr().map_or_else(|| at.clone(), Address::Tcp);
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = open.accept(|stream| serve(Box::new(stream))) => {}
                    () = stopped.notified() => {}
                }
                // The socket has to be closed within the runtime that serves it.
                drop(open);
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(thread.to_owned()).spawn(run).map_err(io)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The address. If [`start`](Self::start) was given port 0, it has the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic of that thread.
            let _ = thread.join();
        }
    }
}

/// The open socket or port, within a tokio runtime.
struct Open(Kind, Purpose);

enum Kind {
    Unix { _socket: UnixSocket },
    Tcp(TcpListener),
}

impl Open {
    fn unix<F>(
        path: &Path,
        purpose: Purpose,
        serve: impl Fn(unix_socket::Client) -> F + Send + 'static,
    ) -> Result<Self, BindError>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let what = purpose.what;
        let io = |cause| BindError::Io { what, address: Address::Unix(path.to_owned()), cause };
        let mut real = path.to_owned();
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(io)?;
            // From here on, the path has no symbolic link that its owner could point elsewhere.
            let folder = folder.canonicalize().map_err(io)?;
            real = folder.join(name);
            if let Some(folder) = writable_by_others(&folder).map_err(io)? {
                return Err(BindError::UnsafeFolder { what, socket: path.to_owned(), folder });
            }
        }
        let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec();
        match UnixSocket::start(purpose.opener, &real, purpose.access, refusal, serve) {
            Ok(socket) => Ok(Self(Kind::Unix { _socket: socket }, purpose)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(BindError::Taken { what, address: Address::Unix(path.into()) })
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(BindError::NotASocket { what, path: path.into() })
            }
            Err(error) => Err(io(error)),
        }
    }

    fn tcp(at: SocketAddr, purpose: Purpose, own: &[IpAddr]) -> Result<Self, BindError> {
        let what = purpose.what;
        let io = |cause| BindError::Io { what, address: Address::Tcp(at), cause };
        let listener = listen(at, own).map_err(|cause| match cause.kind() {
            io::ErrorKind::AddrInUse => BindError::Taken { what, address: Address::Tcp(at) },
            io::ErrorKind::AddrNotAvailable => BindError::NotOurs { what, address: at },
            _ => io(cause),
        })?;
        TcpListener::from_std(listener).map(|listener| Self(Kind::Tcp(listener), purpose)).map_err(io)
    }

    /// The address and port; `None` for a Unix socket.
    fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Unix { .. } => None,
            Kind::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    /// Accepts connections without end. `serve` makes a future for each.
    async fn accept<F>(&self, serve: impl Fn(tokio::net::TcpStream) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = match &self.0 {
            // The Unix socket has a task of its own.
            Kind::Unix { .. } => return std::future::pending().await,
            Kind::Tcp(listener) => listener,
        };
        let mut connections = Connections::new(self.1.connections);
        loop {
            match listener.accept().await {
                Ok((stream, from)) => connections.add(from.ip(), tokio::spawn(serve(stream)).abort_handle()),
                // The other end may have gone already, or the process has no free descriptors.
                Err(error) => {
                    tracing::debug!("a connection for {} failed: {error}", self.1.what);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// The connections, the oldest first.
struct Connections {
    open: VecDeque<(Client, AbortHandle)>,
    most: usize,
}

/// An IPv4 address, or the /64 of an IPv6 address, because a host has its whole /64.
type Client = IpAddr;

fn client(from: IpAddr) -> Client {
    match from.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

impl Connections {
    fn new(most: usize) -> Self {
        Self { open: VecDeque::new(), most }
    }

    fn add(&mut self, from: IpAddr, connection: AbortHandle) {
        self.open.retain(|(_, connection)| !connection.is_finished());
        self.open.push_back((client(from), connection));
        if self.open.len() <= self.most {
            return;
        }
        let of = |client: Client| self.open.iter().filter(|(other, _)| *other == client).count();
        let most = self.open.iter().map(|(client, _)| of(*client)).max();
        // Among clients with equally many, the oldest connection ends.
        if let Some(oldest) = self.open.iter().position(|(client, _)| Some(of(*client)) == most)
            && let Some((_, connection)) = self.open.remove(oldest)
        {
            connection.abort();
        }
    }
}

fn listen(at: SocketAddr, own: &[IpAddr]) -> io::Result<StdTcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    // A tunnel that is restarted takes the port again, although connections of before linger (tcp(7), TIME_WAIT).
    socket.set_reuse_address(true)?;
    if own.contains(&at.ip()) {
        // The interface gets the address later (ip(7), IP_FREEBIND).
        match at {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    // Connections inherit the listening socket's options.
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&at.into())?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The first folder, from this one upwards, in which another user may replace files. The path has no symbolic links. In
/// a folder such as `/tmp` with the sticky bit, users may not replace the folders of others, but they may make a socket
/// before we do.
fn writable_by_others(folder: &Path) -> io::Result<Option<PathBuf>> {
    for (above, folder) in folder.ancestors().enumerate() {
        let metadata = fs::metadata(folder)?;
        let sticky = above > 0 && metadata.mode() & 0o1000 != 0;
        let foreign = metadata.uid() != 0 && metadata.uid() != geteuid().as_raw();
        if foreign || metadata.mode() & 0o022 != 0 && !sticky {
            return Ok(Some(folder.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTIONS: usize = 16;

    #[tokio::test]
    async fn a_client_with_many_connections_ends_its_own() {
        let mut connections = Connections::new(CONNECTIONS);
        let mut open = |from: &str| {
            let task = tokio::spawn(std::future::pending::<()>());
            connections.add(from.parse().unwrap(), task.abort_handle());
            task
        };
        let scraper = open("192.0.2.1");
        // These addresses are one host. An IPv4 address and its form in an IPv6 socket are one host too.
        let floods: Vec<_> = (0..100).map(|n| open(&format!("2001:db8::{n:x}"))).collect();
        let second = open("::ffff:192.0.2.1");
        // All tasks take a turn, in which the aborted ones end.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let ended: Vec<bool> = floods.iter().map(tokio::task::JoinHandle::is_finished).collect();
        assert!(!scraper.is_finished() && !second.is_finished());
        assert_eq!(ended.iter().filter(|ended| !**ended).count(), CONNECTIONS - 2);
        assert!(ended[..86].iter().all(|ended| *ended), "the oldest ones");
    }
}
