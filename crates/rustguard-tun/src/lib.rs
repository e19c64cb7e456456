//! TUN queues, UDP sockets, waiting and clocks: every system call of the data path, and all `unsafe`, in one crate.
//!
//! The data path works on a *slab*, a byte buffer that a worker owns. Everything read is written into it at places the
//! caller chooses, everything sent is read from it, in batches.
#![deny(unsafe_code)]

pub mod clock;
pub mod environment;
pub mod memory;
pub mod namespace;
pub mod offload;
mod sys;
#[cfg(test)]
mod testing;
pub mod tun;
pub mod udp;
pub mod uring;
pub mod wait;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

/// Bytes kept free before every packet read from a TUN: the WireGuard header goes there.
pub const HEADROOM: usize = 16;
/// Bytes kept free after every packet read from a TUN: padding (up to 15) and the tag (16).
pub const TAILROOM: usize = 32;

/// Equal-stride pieces of a slab. Every piece has `len` bytes but the last, which has `last_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// First byte of the first piece.
    pub offset: usize,
    /// From the first byte of one piece to the first byte of the next.
    pub stride: usize,
    /// How many pieces, at least one.
    pub count: usize,
    /// Bytes of each piece but the last.
    pub len: usize,
    /// Bytes of the last piece, at most `len`.
    pub last_len: usize,
}

impl Segments {
    /// Every piece, in order.
    pub fn pieces(self) -> impl ExactSizeIterator<Item = Span> {
        (0..self.count).map(move |i| Span {
            offset: self.offset + i * self.stride,
            len: if i + 1 == self.count { self.last_len } else { self.len },
        })
    }
}

/// A stretch of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Our side of a path, as the kernel reported it (IP_PKTINFO, IPV6_PKTINFO): replies leave from here (sticky source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The address that was addressed.
    pub ip: IpAddr,
    /// The interface it came in by; 0 when unknown.
    pub interface: u32,
    /// Datagrams must leave by that interface, whatever the kernel's routes prefer; `ip` may be unspecified then. Never set
    /// on what was received.
    pub bound: bool,
}

/// Where a peer is, and from where we talk to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The peer's address. IPv4 is never given as an IPv4-mapped IPv6 address.
    pub remote: SocketAddr,
    /// Ours, once known.
    pub local: Option<LocalAddr>,
}

/// A datagram, or with GRO several of one sender: `segments.stride == segments.len`, pieces lie end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// From whom, and to which of our addresses.
    pub from: Endpoint,
    /// Where it lies.
    pub segments: Segments,
    /// The explicit congestion notification of its IP header (RFC 3168), the lower two bits of the DS field; the same for all
    /// pieces.
    pub ecn: u8,
}

/// Datagrams for one endpoint; each piece is one datagram (with GSO, one system call for all).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: Endpoint,
    /// Where they lie.
    pub segments: Segments,
    /// The DS field of their IP headers (RFC 2474): six bits of DSCP, two of congestion notification.
    pub ds: u8,
}

/// What became of a batch that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams the kernel took.
    pub sent: usize,
    /// Datagrams it refused, after every remedy (a full buffer, EMSGSIZE, unreachable network, …).
    pub failed: usize,
    /// Datagrams whose sticky source had disappeared, sent again without (the caller forgets it).
    pub source_lost: usize,
}

/// One queue of an interface that carries IP packets.
pub trait TunQueue: Send + 'static {
    /// Reads the next packet, or super-packet, and lays its segments out in `slab` from `at` on, each with
    /// [`HEADROOM`] before it. The stride of several leaves room for text padded to 16 bytes, but not beyond `mtu`,
    /// and its tag: datagrams sealed in place lie end to end. `Ok(None)`: nothing there now.
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>>;
    /// Writes packets to the host, in order. Headers may be changed (coalescing). Returns how many were refused.
    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize>;
    /// Becomes readable when [`read`](Self::read) has something.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The most bytes one `read` may lay out, headroom and tailroom included.
    fn max_read(&self) -> usize;
}

/// The sockets of one worker.
pub trait Network: Send + 'static {
    /// Receives what is there into `slab`, and appends to `out`; `Ok(())` with nothing appended: nothing there now.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()>;
    /// Sends a batch, without waiting for anything. One datagram that fails never holds up the others.
    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent;
    /// Become readable when [`recv`](Self::recv) has something.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>>;
    /// Bytes a slab must have for `recv`.
    fn recv_slab_len(&self) -> usize;
}

/// A network that is closed while it is `None`: nothing comes, and nothing goes.
impl<N: Network> Network for Option<N> {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.as_mut().map_or(Ok(()), |network| network.recv(slab, out))
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        match self {
            Some(network) => network.send(slab, batch),
            None => Sent { failed: batch.iter().map(|transmit| transmit.segments.count).sum(), ..Sent::default() },
        }
    }

    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.iter().flat_map(Network::fds)
    }

    fn recv_slab_len(&self) -> usize {
        self.as_ref().map_or(0, Network::recv_slab_len)
    }
}

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
