//! Connections.

use crate::{
    backlog::{listening, socket},
    inner::{Inner, Shared, to_smol},
};
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{RecvError, Socket, State},
    time::Duration as SmolDuration,
    wire::IpEndpoint,
};
use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long a connection that begins here waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the other end of a connection may leave bytes without an acknowledgement (RFC 5482).
const SILENCE: SmolDuration = SmolDuration::from_secs(300);

/// A TCP connection inside the tunnel. When it is dropped, it is closed, and what was written is still sent.
pub struct TcpStream {
    shared: Arc<Shared>,
    handle: SocketHandle,
    peer: SocketAddr,
}

pub(crate) async fn connect(shared: &Arc<Shared>, to: SocketAddr) -> io::Result<TcpStream> {
    let stream = {
        let mut inner = shared.lock();
        inner.check_room()?;
        let port = inner.take_port(0)?;
        let mut socket = socket(inner.buffer());
        socket.set_timeout(Some(SILENCE));
        let endpoint = IpEndpoint::new(to_smol(to.ip()), to.port());
        if let Err(error) = socket.connect(inner.interface.context(), endpoint, port) {
            inner.free_port(port);
            let why = format!("{to} cannot be reached from the addresses of this tunnel: {error}");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        let handle = inner.add(socket, port);
        TcpStream { shared: Arc::clone(shared), handle, peer: to }
    };
    shared.wake();
    let established = poll_fn(|context| {
        let mut inner = shared.lock();
        if inner.has_ended() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, "the tunnel has ended")));
        }
        let socket = inner.sockets.get_mut::<Socket<'_>>(stream.handle);
        match socket.state() {
            State::SynSent | State::SynReceived => {
                socket.register_send_waker(context.waker());
                Poll::Pending
            }
            State::Closed => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("{to} refuses"))))
            }
            _ => Poll::Ready(Ok(())),
        }
    });
    match tokio::time::timeout(PATIENCE, established).await {
        Ok(established) => established.map(|()| stream),
        Err(_) => {
            // Nothing is sent any more.
            shared.lock().sockets.get_mut::<Socket<'_>>(stream.handle).abort();
            let why = format!("{to} did not answer within {} s", PATIENCE.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        }
    }
}

impl TcpStream {
    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.shared.lock();
        let has_ended = inner.has_ended();
        let socket = inner.sockets.get_mut::<Socket<'_>>(self.handle);
        if socket.can_recv() {
            let read = socket.recv(|bytes| {
                let len = bytes.len().min(buffer.remaining());
                buffer.put_slice(&bytes[..len]);
                (len, ())
            });
            drop(inner);
            // The window may have opened.
            self.shared.wake();
            return Poll::Ready(read.map_err(|_| broken(has_ended)));
        }
        if socket.may_recv() {
            socket.register_recv_waker(context.waker());
            return Poll::Pending;
        }
        // The other end has closed, or the connection is broken.
        match socket.recv(|_| (0, ())) {
            Err(RecvError::Finished) => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(broken(has_ended))),
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.shared.lock();
        let has_ended = inner.has_ended();
        let socket = inner.sockets.get_mut::<Socket<'_>>(self.handle);
        if !socket.may_send() {
            return Poll::Ready(Err(broken(has_ended)));
        }
        if !socket.can_send() {
            socket.register_send_waker(context.waker());
            return Poll::Pending;
        }
        let written = socket.send_slice(bytes);
        drop(inner);
        self.shared.wake();
        Poll::Ready(written.map_err(|_| broken(has_ended)))
    }

    /// What was written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().sockets.get_mut::<Socket<'_>>(self.handle).close();
        self.shared.wake();
        Poll::Ready(Ok(()))
    }
}

fn broken(has_ended: bool) -> io::Error {
    match has_ended {
        true => io::Error::new(io::ErrorKind::NotConnected, "the tunnel has ended"),
        false => io::ErrorKind::ConnectionReset.into(),
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.close(self.handle);
        drop(inner);
        self.shared.wake();
    }
}

/// Connections that others begin, at a port of all addresses of the stack.
pub struct TcpListener {
    shared: Arc<Shared>,
    port: u16,
}

impl TcpListener {
    pub(crate) fn new(shared: &Arc<Shared>, port: u16) -> io::Result<Self> {
        let mut inner = shared.lock();
        inner.check_room()?;
        let port = inner.take_port(port)?;
        inner.add_backlog(port);
        drop(inner);
        Ok(Self { shared: Arc::clone(shared), port })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection. Cancel safe. Those of an address that has [`MAX_FROM_ONE`](crate::MAX_FROM_ONE)
    /// already are reset.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when the device has ended.
    pub async fn accept(&mut self) -> io::Result<TcpStream> {
        poll_fn(|context| {
            let mut inner = self.shared.lock();
            if inner.has_ended() {
                return Poll::Ready(Err(broken(true)));
            }
            // With the most connections, others wait in the backlog.
            let has_room = inner.may_accept(context.waker());
            let places = inner.backlogs.get(&self.port).map_or(0, Vec::len);
            let mut is_refused = false;
            for place in 0..places {
                let Some(handle) = inner.backlogs.get(&self.port).and_then(|places| places.get(place)).copied() else {
                    break;
                };
                let socket = inner.sockets.get_mut::<Socket<'_>>(handle);
                let state = socket.state();
                let peer = socket.remote_endpoint().map(|peer| SocketAddr::new(peer.addr.into(), peer.port));
                match (state, peer) {
                    (State::Established | State::CloseWait, Some(peer)) if has_room => {
                        socket.set_timeout(Some(SILENCE));
                        self.free(&mut inner, place);
                        if inner.accept(handle, peer.ip()) {
                            let shared = Arc::clone(&self.shared);
                            return Poll::Ready(Ok(TcpStream { shared, handle, peer }));
                        }
                        inner.reset(handle);
                        is_refused = true;
                    }
                    // One that was broken before it was accepted.
                    (State::Closed | State::TimeWait, _) => {
                        self.free(&mut inner, place);
                        inner.remove(handle);
                    }
                    _ => {}
                }
                if let Some(handle) = inner.backlogs.get(&self.port).and_then(|places| places.get(place)).copied() {
                    inner.sockets.get_mut::<Socket<'_>>(handle).register_recv_waker(context.waker());
                }
            }
            if is_refused {
                self.shared.wake();
            }
            Poll::Pending
        })
        .await
    }

    /// Lets another socket listen at a place.
    fn free(&self, inner: &mut Inner, place: usize) {
        let fresh = listening(inner, self.port);
        if let Some(place) = inner.backlogs.get_mut(&self.port).and_then(|places| places.get_mut(place)) {
            *place = fresh;
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.remove_backlog(self.port);
        inner.free_port(self.port);
        drop(inner);
        self.shared.wake();
    }
}
