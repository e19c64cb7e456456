//! Datagrams.

use crate::inner::{Shared, to_smol};
use smoltcp::{
    iface::SocketHandle,
    socket::udp::{PacketBuffer, PacketMetadata, SendError, Socket},
    wire::IpEndpoint,
};
use std::{future::poll_fn, io, net::SocketAddr, sync::Arc, task::Poll};

/// Datagrams and bytes that a socket buffers in each direction.
const DATAGRAMS: usize = 64;
const BYTES: usize = 128 * 1_024;

/// A UDP socket inside the tunnel.
pub struct UdpSocket {
    shared: Arc<Shared>,
    handle: SocketHandle,
    port: u16,
}

impl UdpSocket {
    pub(crate) fn new(shared: &Arc<Shared>, port: u16) -> io::Result<Self> {
        let mut inner = shared.lock();
        inner.check_room()?;
        let port = inner.take_port(port)?;
        let buffer = || PacketBuffer::new(vec![PacketMetadata::EMPTY; DATAGRAMS], vec![0; BYTES]);
        let mut socket = Socket::new(buffer(), buffer());
        // The port is not 0, and the socket is new.
        let _ = socket.bind(port);
        let handle = inner.add(socket, port);
        drop(inner);
        Ok(Self { shared: Arc::clone(shared), handle, port })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a datagram. Waits while the socket's buffer is full. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a datagram that never fits or an address without a port,
    /// [`io::ErrorKind::NotConnected`] when the device has ended.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        let endpoint = IpEndpoint::new(to_smol(to.ip()), to.port());
        let sent: io::Result<()> = poll_fn(|context| {
            let mut inner = self.shared.lock();
            if inner.has_ended() {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            let socket = inner.sockets.get_mut::<Socket<'_>>(self.handle);
            if bytes.len() > socket.payload_send_capacity() {
                return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
            }
            match socket.send_slice(bytes, endpoint) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(SendError::BufferFull) => {
                    socket.register_send_waker(context.waker());
                    Poll::Pending
                }
                Err(SendError::Unaddressable) => Poll::Ready(Err(io::ErrorKind::InvalidInput.into())),
            }
        })
        .await;
        self.shared.wake();
        sent
    }

    /// Receives a datagram. A longer one is truncated. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when the device has ended.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|context| {
            let mut inner = self.shared.lock();
            if inner.has_ended() {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            let socket = inner.sockets.get_mut::<Socket<'_>>(self.handle);
            match socket.recv() {
                Ok((bytes, meta)) => {
                    let len = bytes.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&bytes[..len]);
                    let from = SocketAddr::new(meta.endpoint.addr.into(), meta.endpoint.port);
                    Poll::Ready(Ok((len, from)))
                }
                Err(_) => {
                    socket.register_recv_waker(context.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.shared.lock().remove(self.handle);
    }
}
