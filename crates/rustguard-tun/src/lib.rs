//! TUN queues, UDP sockets, waiting and clocks. This crate makes every system call of the data path. All `unsafe` code
//! of RustGuard is in this crate, except for the SIMD module of `rustguard-crypto`.
//!
//! The data path works on a *slab*, a byte buffer that a worker owns. Received packets are written into the slab, at
//! places that the caller chooses. Packets to send are read from the slab. Both happen in batches.
#![deny(unsafe_code)]

pub mod clock;
pub mod environment;
pub mod memory;
pub mod namespace;
pub mod offload;
pub mod reach;
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
use wait::Ready;

/// Bytes kept free before every packet that is read from a TUN. The WireGuard header goes there.
pub const HEADROOM: usize = 16;
/// Bytes kept free after every packet that is read from a TUN, for padding (up to 15) and the tag (16).
pub const TAILROOM: usize = 32;

/// Pieces of a slab at equal distances. Every piece has `len` bytes, except for the last one, which has `last_len`
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// The offset of the first piece in the slab.
    pub offset: usize,
    /// The bytes from the start of one piece to the start of the next.
    pub stride: usize,
    /// The number of pieces, at least one.
    pub count: usize,
    /// The length of each piece except for the last, in bytes.
    pub len: usize,
    /// The length of the last piece in bytes, at most `len`.
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

/// A contiguous part of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The offset of the first byte in the slab.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// The local end of a path, as the kernel reported it (IP_PKTINFO, IPV6_PKTINFO). Replies leave from this address
/// (sticky source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The local address to which the datagram was sent.
    pub ip: IpAddr,
    /// The index of the interface that received the datagram; 0 when unknown.
    pub interface: u32,
    /// Whether datagrams must leave through that interface, even if the kernel's routes prefer another one. `ip` may
    /// then be the unspecified address. A received datagram never has this set.
    pub bound: bool,
}

/// The address of a peer, and the local address from which datagrams to it leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The peer's address. IPv4 is never given as an IPv4-mapped IPv6 address.
    pub remote: SocketAddr,
    /// The local address, once it is known.
    pub local: Option<LocalAddr>,
    /// The local port to which the peer sent, and from which datagrams to it leave; 0 while it is not known. It only
    /// matters where sockets listen at several ports, and stays when the local address is forgotten.
    pub local_port: u16,
}

impl Endpoint {
    /// A peer's address, to which datagrams leave from the address and port that are chosen for it.
    pub fn new(remote: SocketAddr) -> Self {
        Self { remote, local: None, local_port: 0 }
    }
}

/// A received datagram, or several datagrams of one sender that the kernel has joined (GRO). The pieces lie end to end:
/// `segments.stride == segments.len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender's address, and the local address to which the datagram was sent.
    pub from: Endpoint,
    /// The place in the slab.
    pub segments: Segments,
    /// The explicit congestion notification of the IP header (RFC 3168): the lower two bits of the DS field. It is the
    /// same for all pieces.
    pub ecn: u8,
}

/// Datagrams to one endpoint. Each piece is one datagram. With GSO, one system call sends all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: Endpoint,
    /// The place in the slab.
    pub segments: Segments,
    /// The DS field of the IP headers (RFC 2474): six bits of DSCP and two bits of congestion notification.
    pub ds: u8,
}

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The number of datagrams that the kernel accepted.
    pub sent: usize,
    /// The number of datagrams that the kernel refused after every remedy (a full buffer, EMSGSIZE, an unreachable
    /// network, …).
    pub failed: usize,
    /// The number of datagrams that were sent without their sticky source, because it no longer existed. The caller
    /// forgets that source.
    pub source_lost: usize,
}

/// A lane of sessions: a source port from which only one worker sends, and at which nothing is received. Datagrams that
/// another host's workers send in lanes arrive at the worker that the lane's number selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The number, from 1 on.
    pub number: u8,
    /// The port. Datagrams to an [`Endpoint`] with this local port leave from it.
    pub port: u16,
    /// The number of workers over which datagrams in lanes are spread.
    pub workers: u8,
}

/// One queue of an interface that carries IP packets.
pub trait TunQueue: Send + 'static {
    /// Reads the next packet or super-packet. Its segments are written to `slab` from `at` on, each with [`HEADROOM`]
    /// bytes before it. Where there are several segments, the stride has room for the text padded to 16 bytes (but not
    /// beyond `mtu`) and for the tag. Datagrams that are sealed in place therefore lie end to end. `Ok(None)` means
    /// that nothing is there now.
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>>;
    /// Writes packets to the host, in order. Their headers may be changed (coalescing). Returns the number of refused
    /// packets.
    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize>;
    /// Becomes readable when [`read`](Self::read) has something.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The maximum number of bytes that one `read` writes to the slab, headroom and tailroom included.
    fn max_read(&self) -> usize;

    /// Whether the packets of a flow come out of the queue that the flow's last packet to the host was written to, if
    /// that was not long ago. A kernel's interface with several queues does this. A flow is identified by addresses,
    /// protocol and ports.
    fn learns_flows(&self) -> bool {
        false
    }
}

/// The most descriptors of a [`Network`]. This crate's networks have at most 24: two for each of eight ports, and eight
/// for single senders.
pub const MAX_FDS: usize = 256;

/// The sockets of one worker.
pub trait Network: Send + 'static {
    /// Receives the waiting datagrams into `slab` and appends them to `out`. `Ok(())` with nothing appended means that
    /// nothing is there now.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()>;

    /// As [`recv`](Self::recv), but asks only the ready ones of the [`fds`](Self::fds). By default, the whole network
    /// is asked.
    fn recv_ready(&mut self, _ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.recv(slab, out)
    }

    /// Sends a batch. It never waits, and a datagram that fails does not delay the others.
    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent;

    /// Sends one datagram with this hop limit, over IPv4. Routers that forward it let answers through from then on, and
    /// the datagram may get no further. By default, as for a network without routers, nothing is sent.
    fn send_near(&mut self, _datagram: &[u8], _to: Endpoint, _hops: u8) -> Sent {
        Sent::default()
    }

    /// Receives datagrams from this address separately, if the network can: they then fill only their own buffer, and
    /// wait only for their own turn. Call this for the few addresses that send the most. `owner` is the number of the
    /// sender at this address. An owner of several addresses may lose one of its buffers to other owners.
    fn separate(&mut self, _from: &Endpoint, _owner: u64) {}

    /// The lane in which this worker may send, if it has one.
    fn lane(&self) -> Option<Lane> {
        None
    }

    /// Sets the firewall mark (SO_MARK) of datagrams that are sent from now on. A network without marks does nothing. A
    /// network that wraps another one passes the call on.
    ///
    /// # Errors
    /// The mark is not permitted.
    fn set_fwmark(&self, _mark: u32) -> io::Result<()> {
        Ok(())
    }

    /// The descriptors that become readable when [`recv`](Self::recv) has something, by their numbers from 0 on; `None`
    /// after the last. There are at most [`MAX_FDS`]. They change only with [`separate`](Self::separate).
    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>>;

    /// All descriptors, in the order of their numbers.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>>
    where
        Self: Sized,
    {
        (0..MAX_FDS).map_while(|n| self.fd(n))
    }

    /// The number of bytes that a slab must have for `recv`.
    fn recv_slab_len(&self) -> usize;
}

/// `None` is a closed network: it receives nothing, and every datagram to send fails.
impl<N: Network> Network for Option<N> {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.as_mut().map_or(Ok(()), |network| network.recv(slab, out))
    }

    fn recv_ready(&mut self, ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.as_mut().map_or(Ok(()), |network| network.recv_ready(ready, slab, out))
    }

    fn separate(&mut self, from: &Endpoint, owner: u64) {
        if let Some(network) = self {
            network.separate(from, owner);
        }
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        match self {
            Some(network) => network.send(slab, batch),
            None => Sent { failed: batch.iter().map(|transmit| transmit.segments.count).sum(), ..Sent::default() },
        }
    }

    fn send_near(&mut self, datagram: &[u8], to: Endpoint, hops: u8) -> Sent {
        match self {
            Some(network) => network.send_near(datagram, to, hops),
            None => Sent { failed: 1, ..Sent::default() },
        }
    }

    fn lane(&self) -> Option<Lane> {
        self.as_ref().and_then(Network::lane)
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.as_ref().map_or(Ok(()), |network| network.set_fwmark(mark))
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.as_ref().and_then(|network| network.fd(n))
    }

    fn recv_slab_len(&self) -> usize {
        self.as_ref().map_or(0, Network::recv_slab_len)
    }
}

impl<N: Network + ?Sized> Network for Box<N> {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        (**self).recv(slab, out)
    }

    fn recv_ready(&mut self, ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        (**self).recv_ready(ready, slab, out)
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        (**self).send(slab, batch)
    }

    fn send_near(&mut self, datagram: &[u8], to: Endpoint, hops: u8) -> Sent {
        (**self).send_near(datagram, to, hops)
    }

    fn separate(&mut self, from: &Endpoint, owner: u64) {
        (**self).separate(from, owner);
    }

    fn lane(&self) -> Option<Lane> {
        (**self).lane()
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        (**self).set_fwmark(mark)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        (**self).fd(n)
    }

    fn recv_slab_len(&self) -> usize {
        (**self).recv_slab_len()
    }
}

/// Runs the examples of README.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
