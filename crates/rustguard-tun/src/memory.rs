//! In-memory transports: a TUN queue whose other end is in this process, and a network without sockets. No root needed.
use crate::{Network, Received, Segments, Sent, Span, Transmit, TunQueue};
use std::{io, net::SocketAddr, os::fd::BorrowedFd};

/// The daemon's end of an in-memory interface.
pub struct MemoryTun(());
/// The application's end: sends and receives whole IP packets.
pub struct MemoryHost(());

/// Makes both ends.
pub fn tun() -> io::Result<(MemoryTun, MemoryHost)> {
    todo!()
}

impl MemoryHost {
    /// Gives a packet to the tunnel.
    pub fn send(&self, _packet: &[u8]) -> io::Result<()> {
        todo!()
    }
    /// Waits for a packet from the tunnel.
    pub fn recv(&self, _buffer: &mut [u8]) -> io::Result<usize> {
        todo!()
    }
    /// Limits how long [`recv`](Self::recv) waits.
    pub fn set_timeout(&self, _timeout: Option<std::time::Duration>) -> io::Result<()> {
        todo!()
    }
}
impl TunQueue for MemoryTun {
    fn read(&mut self, _slab: &mut [u8], _at: usize) -> io::Result<Option<Segments>> {
        todo!()
    }
    fn write(&mut self, _slab: &mut [u8], _packets: &[Span]) -> io::Result<usize> {
        todo!()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
    fn max_read(&self) -> usize {
        todo!()
    }
}

/// A network in memory: sockets with addresses; what is sent to an address nobody has is lost.
#[derive(Clone, Default)]
pub struct MemoryNet(());
/// One socket of it.
pub struct MemorySocket(());

impl MemoryNet {
    /// A socket with this address; fails when it is taken.
    pub fn bind(&self, _address: SocketAddr) -> io::Result<MemorySocket> {
        todo!()
    }
}
impl MemorySocket {
    /// A second handle on the same socket (control sends handshakes through one, the worker owns the other).
    pub fn try_clone(&self) -> io::Result<Self> {
        todo!()
    }
}
impl Network for MemorySocket {
    fn recv(&mut self, _slab: &mut [u8], _out: &mut Vec<Received>) -> io::Result<()> {
        todo!()
    }
    fn send(&mut self, _slab: &[u8], _batch: &[Transmit]) -> Sent {
        todo!()
    }
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::empty()
    }
    fn recv_slab_len(&self) -> usize {
        todo!()
    }
}
