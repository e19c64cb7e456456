//! A server for Unix sockets: the control sockets of a tunnel and of programs that embed a device.
//!
//! - The socket has its mode before clients can connect.
//! - A socket that a killed process left behind is replaced. A socket that is served is not replaced.
//! - A client is served only if its credentials permit that, even if the mode of the socket was changed.
//! - At most [`CLIENTS`] clients are served at the same time, and more wait. [`within`] limits the time of each.

use rustix::process::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
            net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinHandle,
};

/// The number of clients that are served at a time. More clients wait.
pub const CLIENTS: usize = 16;
/// The time that a client may take for a request, and for each part of an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after a failed accept. The most likely cause is that the process has no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of bytes of an answer that a client has to read within [`PATIENCE`].
const PART: usize = 64 << 10;

/// A function that opens a listening socket: [`open`], or one that asks a process with more rights to do so.
pub type Opener = fn(&Path, Access) -> io::Result<OwnedFd>;

/// The users who may connect. Root and the user of this process always may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// The socket's owner may connect: mode 0600.
    Owner,
    /// The socket's owner and group may connect: mode 0660. `chgrp` admits another group.
    OwnerAndGroup,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::OwnerAndGroup => 0o660,
        }
    }

    /// Whether the mode would let this user connect to the socket at `path`.
    fn admits(self, path: &Path, uid: u32, gid: u32) -> bool {
        let by_file =
            |socket: fs::Metadata| socket.uid() == uid || (matches!(self, Self::OwnerAndGroup) && socket.gid() == gid);
        uid == 0 || uid == geteuid().as_raw() || fs::metadata(path).is_ok_and(by_file)
    }
}

/// An admitted client.
#[derive(Debug)]
#[non_exhaustive]
pub struct Client {
    /// The connection.
    pub stream: UnixStream,
    /// The client's user id.
    pub uid: u32,
}

/// A socket that is served. Dropping this stops the server and removes the socket. Connected clients are still served
/// until they disconnect.
#[derive(Debug)]
pub struct UnixSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl UnixSocket {
    /// Opens the socket at `path`, and serves it from a task of the current tokio runtime. `serve` makes a future for
    /// each client. A missing folder is created with mode 0755. A client that is not admitted receives the bytes of
    /// `refusal`.
    ///
    /// # Errors
    /// Errors of the system, and [`io::ErrorKind::AddrInUse`] if another process serves this socket.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start<F>(
        opener: Opener,
        path: &Path,
        access: Access,
        refusal: Vec<u8>,
        serve: impl Fn(Client) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = UnixListener::from_std(StdUnixListener::from(opener(path, access)?))?;
        let task = tokio::spawn(accept(listener, path.to_owned(), access, refusal, serve));
        Ok(Self { path: path.to_owned(), task })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.task.abort();
        // If the file no longer exists, another program has removed it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes a socket that no process listens to. If a process does, it returns false and leaves the socket.
///
/// # Errors
/// When the socket cannot be removed. [`io::ErrorKind::AlreadyExists`] if the path is another kind of file, which is
/// not removed.
pub fn remove_dead(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a socket"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        _ => {}
    }
    if StdUnixStream::connect(path).is_ok() {
        return Ok(false);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

/// Waits for `step` of a client for at most [`PATIENCE`].
///
/// # Errors
/// Errors of `step`, and [`io::ErrorKind::TimedOut`].
pub async fn within<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(PATIENCE, step).await?
}

/// Writes an answer to a client. Each part must be taken within [`PATIENCE`], but a long answer may take longer in
/// total.
///
/// # Errors
/// Errors of the system, and [`io::ErrorKind::TimedOut`].
pub async fn answer(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(PART) {
        within(stream.write_all(part)).await?;
    }
    Ok(())
}

/// Opens a socket that listens, and returns it without blocking. A missing folder is created with mode 0755. No client
/// can connect before the mode is set, because that needs listen(2).
///
/// # Errors
/// Errors of the system, and [`io::ErrorKind::AddrInUse`] if another process serves this socket.
pub fn open(path: &Path, access: Access) -> io::Result<OwnedFd> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    if !remove_dead(path)? {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(access.mode()))?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn accept<F>(listener: UnixListener, path: PathBuf, access: Access, refusal: Vec<u8>, serve: impl Fn(Client) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let clients = Arc::new(Semaphore::new(CLIENTS));
    let refusal: Arc<[u8]> = refusal.into();
    loop {
        let Ok(permit) = Arc::clone(&clients).acquire_owned().await else { return };
        let admitted = match listener.accept().await {
            Ok((stream, _)) => stream.peer_cred().map(|who| (stream, who)),
            Err(error) => Err(error),
        };
        match admitted {
            Ok((stream, who)) if access.admits(&path, who.uid(), who.gid()) => {
                let served = serve(Client { stream, uid: who.uid() });
                tokio::spawn(async move {
                    // A client that disconnects or takes too long does not affect others.
                    let _ = served.await;
                    drop(permit);
                });
            }
            Ok((stream, who)) => {
                tracing::warn!(uid = who.uid(), "{} refused a user", path.display());
                let refusal = Arc::clone(&refusal);
                tokio::spawn(async move {
                    let _ = refuse(stream, &refusal).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("{} refused a client: {error}", path.display());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Sends the refusal to a client. Its request is read and dropped, because closing a socket with unread bytes resets
/// the connection, and the client would not receive the refusal (unix(7)).
async fn refuse(mut stream: UnixStream, refusal: &[u8]) -> io::Result<()> {
    if refusal.is_empty() {
        return Ok(());
    }
    answer(&mut stream, refusal).await?;
    stream.shutdown().await?;
    within(tokio::io::copy(&mut stream.take(PART as u64), &mut tokio::io::sink())).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo(mut client: Client) -> io::Result<()> {
        let uid = client.uid.to_string();
        answer(&mut client.stream, uid.as_bytes()).await
    }

    async fn heard(path: &Path) -> String {
        let mut answer = String::new();
        UnixStream::connect(path).await.unwrap().read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_serves_once_and_goes_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        for (access, mode) in [(Access::Owner, 0o600), (Access::OwnerAndGroup, 0o660)] {
            let path = dir.path().join("run").join("rg0");
            let socket = UnixSocket::start(open, &path, access, Vec::new(), echo).unwrap();
            assert_eq!(fs::metadata(socket.path()).unwrap().mode() & 0o777, mode);
            let second = UnixSocket::start(open, &path, access, Vec::new(), echo).unwrap_err();
            assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
            assert!(!remove_dead(&path).unwrap(), "it is served");
            assert_eq!(heard(&path).await, geteuid().as_raw().to_string());
            drop(socket);
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn a_socket_that_a_killed_process_left_behind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg0");
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = UnixSocket::start(open, &path, Access::Owner, Vec::new(), echo).unwrap();
        assert_eq!(heard(&path).await, geteuid().as_raw().to_string());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("passwd"), dir.path().join("link"));
        fs::write(&file, "root").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let error = UnixSocket::start(open, path, Access::Owner, Vec::new(), echo).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(path).unwrap(), "root");
        }
    }

    #[tokio::test]
    async fn a_stranger_sees_the_refusal_whatever_it_has_sent_before() {
        for _ in 0..20 {
            let (mut stranger, ours) = UnixStream::pair().unwrap();
            stranger.write_all(b"a request\n").await.unwrap();
            let refusing = tokio::spawn(async move { refuse(ours, b"no\n").await });
            let mut heard = String::new();
            stranger.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "no\n");
            drop(stranger);
            refusing.await.unwrap().unwrap();
        }
    }

    #[test]
    fn strangers_are_turned_away_whatever_the_mode() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (own, group) = (geteuid().as_raw(), file.as_file().metadata().unwrap().gid());
        let stranger = own + 65_534;
        for access in [Access::Owner, Access::OwnerAndGroup] {
            assert!(access.admits(file.path(), 0, group + 1));
            assert!(access.admits(file.path(), own, group + 1));
            assert!(!access.admits(file.path(), stranger, group + 1));
        }
        assert!(Access::OwnerAndGroup.admits(file.path(), stranger, group));
        assert!(!Access::Owner.admits(file.path(), stranger, group));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (mut ours, _theirs) = tokio::io::duplex(1024);
        let error = answer(&mut ours, &[0; PART]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(within(std::future::pending::<io::Result<()>>()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
