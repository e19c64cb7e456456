//! A transport of the embedder's own, as a pair of sockets: the program receives the device's datagrams at its end, and
//! sends datagrams to the device there.

use crate::binder::{Binder, Bound};
use rustguard_core::paths::TransportAddress;
use rustguard_tun::{Endpoint, Network, Received, Segments, Sent, Span, Transmit, udp::UdpOptions};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv,
        recvmsg, sendmsg, socketpair,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};
use tokio::{io::Interest, net::UnixDatagram};

/// Bytes before each datagram: the number of its [`TransportAddress`].
const HEADER: usize = 8;
/// Bytes of the longest datagram, as of UDP.
const LONGEST: usize = 65_535;
/// Datagrams in one call of `recv`.
const BATCH: usize = 8;
/// Bytes between the places of received datagrams.
const SLOT: usize = HEADER + LONGEST + 1;

/// The device's end of a transport of the embedder's own, for [`WithTransport`](crate::WithTransport). The program has
/// the [other end](TransportEnd), and carries datagrams between that end and the peers by any means.
///
/// If the program reads too slowly, datagrams to it are lost, and counted as
/// [`SendFailed`](crate::DropReason::SendFailed).
pub struct Transport(Arc<OwnedFd>);

/// The program's end of a [`Transport`].
// This is a type for datagram sockets, and the only type in tokio that accepts a SOCK_SEQPACKET socket without
// `unsafe`. Only its `async_io` is used.
pub struct TransportEnd(UnixDatagram);

impl Transport {
    /// A transport, and the program's end of it.
    ///
    /// # Errors
    /// The process has reached its limit of file descriptors.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub fn new() -> io::Result<(Self, TransportEnd)> {
        // Unlike datagram sockets, these hold more than net.unix.max_dgram_qlen (10) datagrams.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (device, program) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(Arc::new(device)), TransportEnd(UnixDatagram::from_std(program.into())?)))
    }
}

impl TransportEnd {
    /// Waits for the next datagram that the device sends, and returns its destination and its length. Bytes beyond the
    /// length of `buffer` are lost; 65,535 are always enough. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the device has ended.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<(TransportAddress, usize)> {
        let received = self.0.async_io(Interest::READABLE, || {
            let mut number = [0; HEADER];
            let len = {
                let mut parts = [IoSliceMut::new(&mut number), IoSliceMut::new(buffer)];
                recvmsg(&self.0, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())?.bytes
            };
            let len = len.checked_sub(HEADER).ok_or_else(|| {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the device of this transport has ended")
            })?;
            Ok((TransportAddress::new(u64::from_ne_bytes(number)), len))
        });
        received.await
    }

    /// Gives the device a datagram that came from this address. Waits while the queue to the device is full, or its
    /// interface is down. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for more than 65,535 bytes; [`io::ErrorKind::BrokenPipe`] when the device has
    /// ended.
    pub async fn send(&self, from: TransportAddress, datagram: &[u8]) -> io::Result<()> {
        if datagram.len() > LONGEST {
            let message = format!("a datagram of {} bytes is too long: at most {LONGEST}", datagram.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.0.async_io(Interest::WRITABLE, || Ok(give(&self.0, from, datagram)?)).await
    }
}

fn give(socket: impl AsFd, at: TransportAddress, datagram: &[u8]) -> Result<(), Errno> {
    let number = at.number().to_ne_bytes();
    let parts = [IoSlice::new(&number), IoSlice::new(datagram)];
    sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL).map(drop)
}

impl Binder for Transport {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        // Several workers would change the order of the datagrams.
        let sockets = |receives: bool| {
            let socket = &self.0;
            (0..workers).map(move |n| TransportSocket { socket: Arc::clone(socket), receives: receives && n == 0 })
        };
        Ok(Bound::new(sockets(true), sockets(false), options.port))
    }
}

/// A [`Transport`] for one worker. It has no firewall mark: the program marks its own sockets.
struct TransportSocket {
    socket: Arc<OwnedFd>,
    receives: bool,
}

impl Network for TransportSocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        if !self.receives {
            return Ok(());
        }
        for at in (0..BATCH).map(|n| n * SLOT) {
            let slot = &mut slab[at..at + SLOT];
            let len = match recv(&*self.socket, &mut *slot, RecvFlags::empty()) {
                Ok((0, _)) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the program has closed its end"));
                }
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let Some((number, datagram)) = slot[..len].split_first_chunk() else { continue };
            let (number, len) = (u64::from_ne_bytes(*number), datagram.len());
            out.push(Received {
                from: Endpoint::new(TransportAddress::new(number).into()),
                segments: Segments { offset: at + HEADER, stride: len, count: 1, len, last_len: len },
                ecn: 0,
            });
        }
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let mut result = Sent::default();
        for transmit in batch {
            let to = TransportAddress::of(transmit.to.remote);
            for Span { offset, len } in transmit.segments.pieces() {
                let given = to.is_some_and(|to| give(&*self.socket, to, &slab[offset..offset + len]).is_ok());
                *(if given { &mut result.sent } else { &mut result.failed }) += 1;
            }
        }
        result
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        (self.receives && n == 0).then(|| self.socket.as_fd())
    }

    fn recv_slab_len(&self) -> usize {
        if self.receives { BATCH * SLOT } else { 0 }
    }
}
