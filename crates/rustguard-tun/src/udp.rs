//! The UDP sockets of a tunnel: IPv4 and, where the host has it, IPv6, on the same port. There may be several ports,
//! with such a pair each.
//!
//! A datagram that is longer than the path's MTU is fragmented, not refused. Only datagrams beyond the 65,507 bytes
//! that UDP can carry are refused. This host fragments where the kernel knows the path's MTU. Over IPv4, routers on the
//! path fragment as well, because the DF bit is not set (the kernel's WireGuard does the same). A tunnel whose MTU is
//! too large therefore works even where ICMP is lost.

mod bind;
mod lanes;
mod own;
mod send;

use crate::{
    Endpoint, Lane, LocalAddr, Network, Received, Segments, Sent, Span, Transmit,
    sys::{self, Messages, Outgoing},
    wait::Ready,
};
use bind::{Claim, Pair, bind, bind_pair, ports, set_mark};
use lanes::{LanePort, lane_ports};
use own::Owns;
use send::{MAX_SEGMENTS, longest_run, send_all};
use socket2::Socket;
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

/// The maximum number of ports.
pub const MAX_PORTS: usize = 8;
/// The maximum number of lanes.
pub const MAX_LANES: usize = 8;
/// The maximum number of messages in one system call that sends. Each message may be a run of datagrams.
pub(crate) const BATCH: usize = 64;
/// The maximum number of messages in one system call that receives. In measurements with runs of datagrams, throughput
/// does not grow beyond 8 messages (1 message: 0.81 of it, 4 messages: 0.94). The number bounds the memory that a flood
/// touches to half a megabyte.
const RECV_BATCH: usize = 8;
/// After this many batches, the socket after the one that last had a datagram is asked first. Each such attempt may
/// cost a system call without a result. The number is also the longest time, in batches, for which a flood on one
/// socket delays the next.
const OTHER_FIRST: usize = 8;
/// The distance in bytes between the places of received datagrams. Any UDP payload or run fits, so that none can stop
/// reception. The 1,536 bytes beyond 64 KiB keep the starts of the slots out of each other's cache sets: the caches
/// treat ordinary packets as if they lay end to end.
pub(crate) const SLOT: usize = 65_536 + 1_536;
/// The number of consecutive errors that [`Network::recv`] attributes to datagrams sent earlier.
pub(crate) const PENDING_ERRORS: usize = 16;

/// The settings of the sockets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpOptions {
    /// The port, the same for both families; 0 lets the system choose one.
    pub port: u16,
    /// Further ports, so that datagrams to this host and from it differ in their ports: all ports are different, there
    /// are at most [`MAX_PORTS`], and with several ports none is 0.
    pub more_ports: Vec<u16>,
    /// The firewall mark (SO_MARK) of all datagrams that are sent; 0 means no mark.
    pub fwmark: u32,
    /// Whether runs of datagrams are exchanged with the kernel as far as it supports them (UDP_SEGMENT since Linux
    /// 4.18, UDP_GRO since 5.0). If not, every datagram passes the kernel separately. That is for measurements, and
    /// for kernels and network drivers with bugs.
    pub offload: bool,
    /// The addresses of this host at which the sockets listen, at most one of each family. A family without an address
    /// gets no socket. Without any addresses, the sockets listen at all addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether several workers get a [`Lane`] each, at most [`MAX_LANES`] of them.
    pub lanes: bool,
}

impl UdpOptions {
    /// Settings with this port, without a mark, with offload.
    pub fn new(port: u16) -> Self {
        Self { port, ..Self::default() }
    }

    /// Sets the ports beyond the first.
    #[must_use]
    pub fn more_ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.more_ports = ports.into_iter().collect();
        self
    }

    /// Sets the firewall mark; 0 means no mark.
    #[must_use]
    pub fn fwmark(mut self, mark: u32) -> Self {
        self.fwmark = mark;
        self
    }

    /// Sets whether runs of datagrams are exchanged with the kernel.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = offload;
        self
    }

    /// Sets the addresses at which the sockets listen.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses = addresses.into_iter().collect();
        self
    }

    /// Sets whether several workers get a [`Lane`] each.
    #[must_use]
    pub fn lanes(mut self, lanes: bool) -> Self {
        self.lanes = lanes;
        self
    }
}

impl Default for UdpOptions {
    /// Settings with a port that the system chooses, without a mark, with offload.
    fn default() -> Self {
        Self { port: 0, more_ports: Vec::new(), fwmark: 0, offload: true, addresses: Vec::new(), lanes: false }
    }
}

/// The UDP sockets of one worker: for each port one for IPv4 and one for IPv6, if the host has both.
pub struct Udp {
    /// The sockets of each port. There is at least one port.
    pairs: Vec<Pair>,
    /// Sockets of single senders.
    owns: Owns,
    /// The port of the worker's lane.
    lane: Option<LanePort>,
    incoming: Messages<RECV_BATCH>,
    outgoing: Messages<BATCH>,
    /// The messages of one socket for the next system call. The queue is empty between calls.
    queue: Vec<Outgoing>,
    /// The pair to which the socket of the queue belongs.
    queue_pair: usize,
    /// The datagrams of a run that the kernel did not segment. It is empty between calls.
    singly: Vec<Outgoing>,
    /// Whether UDP_SEGMENT is used: the kernel knows it (Linux 4.18), and the settings allow it.
    segmentation: bool,
    /// As in the settings.
    offload: bool,
    /// The socket that is asked first: see [`socket`].
    first: usize,
    /// Counts calls of `recv`, to give the other sockets their turn.
    turn: usize,
}

impl Udp {
    /// Binds a socket of each family. A family that the host does not have is left out.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`] if the host does not have one of the
    /// addresses, [`io::ErrorKind::InvalidInput`] for two addresses of a family, or
    /// [`io::ErrorKind::PermissionDenied`] for a firewall mark without CAP_NET_ADMIN
    /// or a port below 1024. The messages name the port and the remedy.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let mut queues = Self::bind_queues(options, 1)?;
        Ok(queues.pop().expect("as many as were asked for"))
    }

    /// Binds this many pairs of sockets to one port, one for each worker (SO_REUSEPORT). The kernel distributes
    /// datagrams over them by a hash of both addresses and ports. The datagrams of one peer therefore reach one worker,
    /// in order, until the peer roams. [`set_fwmark`](Self::set_fwmark) sets the mark of one pair.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind), and [`io::ErrorKind::InvalidInput`] if `queues` is 0.
    pub fn bind_queues(options: &UdpOptions, queues: usize) -> io::Result<Vec<Self>> {
        if queues == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the number of UDP sockets is 0: ask for at least one",
            ));
        }
        // The first pair does not share the port while it binds. Otherwise it would join a program that already shares
        // the port. Once it is bound, it lets others join, and the kernel makes it a member of their group
        // (reuseport_add_sock).
        let pairs_of = |ports: &[u16], claim| {
            let pair = |&port: &u16| bind_pair(port, |domain, port| bind(domain, port, options, claim));
            ports.iter().map(pair).collect::<io::Result<Vec<_>>>()
        };
        let pairs = pairs_of(&ports(options)?, Claim::Alone)?;
        if queues > 1 {
            pairs.iter().flat_map(Pair::iter).try_for_each(|socket| socket.set_reuse_port(true))?;
        }
        let ports: Vec<_> = pairs.iter().map(|pair| pair.port).collect();
        let mut all = vec![Self::new(pairs, options.offload)];
        while all.len() < queues {
            all.push(Self::new(pairs_of(&ports, Claim::Shared)?, options.offload));
        }
        if options.lanes && queues > 1 {
            // If lanes fail, the sockets work without lanes.
            let lanes = lane_ports(&all[0].pairs, queues, options).unwrap_or_default();
            for (udp, lane) in all.iter_mut().zip(lanes) {
                udp.lane = Some(lane);
            }
        }
        Ok(all)
    }

    fn new(pairs: Vec<Pair>, offload: bool) -> Self {
        // Zero is the default value. A kernel refuses it only if it does not know the option.
        let segments = |socket| sys::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let segmentation = offload && pairs.iter().flat_map(Pair::iter).all(segments);
        Self {
            segmentation,
            offload,
            owns: Owns::default(),
            lane: None,
            singly: Vec::with_capacity(MAX_SEGMENTS),
            pairs,
            incoming: Messages::new(),
            outgoing: Messages::new(),
            queue: Vec::with_capacity(BATCH),
            queue_pair: 0,
            first: 0,
            turn: 0,
        }
    }

    /// The first port.
    pub fn port(&self) -> u16 {
        self.pairs[0].port
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.pairs.iter().map(|pair| pair.port)
    }

    /// The port of each of the [`fds`](Network::fds).
    pub(crate) fn fd_ports(&self) -> impl Iterator<Item = u16> {
        self.pairs.iter().flat_map(|pair| pair.iter().map(|_| pair.port))
    }

    /// The pair from which datagrams leave; the number after the last is the lane's pair. If the peer has not been
    /// heard at one of our ports yet, its address decides: different peers are spread over the ports, and each peer
    /// sees one port.
    fn pair_for(&self, to: &Endpoint) -> usize {
        if self.lane.as_ref().is_some_and(|lane| lane.pair.port == to.local_port) {
            return self.pairs.len();
        }
        if let [_] = *self.pairs {
            return 0;
        }
        let known = self.pairs.iter().position(|pair| pair.port == to.local_port);
        known.unwrap_or_else(|| spread(to.remote, self.pairs.len()))
    }

    /// Whether there is an IPv6 socket.
    pub fn has_ipv6(&self) -> bool {
        self.pairs.iter().any(|pair| pair.v6.is_some())
    }

    /// Changes SO_MARK for all handles; 0 means no mark.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] without CAP_NET_ADMIN.
    pub fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        let pairs = self.pairs.iter().chain(self.lane.iter().map(|lane| &lane.pair));
        pairs.flat_map(Pair::iter).try_for_each(|socket| set_mark(socket, mark))
    }

    /// A second handle on the same sockets. A worker owns one handle; a control thread sends handshakes through the
    /// other.
    ///
    /// # Errors
    /// The process has reached its limit of file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let pairs = self.pairs.iter().map(Pair::try_clone).collect::<io::Result<_>>()?;
        let lane = self.lane.as_ref().map(LanePort::try_clone).transpose()?;
        Ok(Self { lane, ..Self::new(pairs, self.segmentation) })
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets: Vec<_> = self.pairs.iter().map(|Pair { v4, v6, port }| (port, v4, v6)).collect();
        f.debug_struct("Udp").field("sockets", &sockets).finish_non_exhaustive()
    }
}

impl Network for Udp {
    /// Receives the waiting datagrams of one socket, up to 8 runs. An error that ICMP or an earlier `send` left on the
    /// socket is ignored.
    ///
    /// # Errors
    /// Only errors that persist: the socket is no longer usable.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.recv_ready(Ready::ALL, slab, out)
    }

    fn recv_ready(&mut self, ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.turn = (self.turn + 1) % OTHER_FIRST;
        // If the ready sockets are known, they take turns. Otherwise an attempt may cost a system call without a
        // result, so the socket that last had a datagram comes first.
        let other_first = ready != Ready::ALL || self.turn == 0;
        let sockets = 2 * self.pairs.len() + self.owns.len();
        let first = self.first + usize::from(other_first);
        for n in (first..first + sockets).map(|n| n % sockets) {
            let Some((socket, local_port)) = socket(&self.pairs, &self.owns, n) else { continue };
            if !ready.contains(position(&self.pairs, &self.owns, n)) {
                continue;
            }
            let count = receive(&mut self.incoming, socket, slab)?;
            for i in 0..count {
                let Some(datagram) = self.incoming.incoming(i) else { continue };
                // No UDP payload is longer than a slot. If one were, it would be cut off, and could not be authentic.
                if datagram.truncated {
                    continue;
                }
                out.push(Received {
                    from: Endpoint { remote: datagram.from, local: datagram.local, local_port },
                    segments: run_of(i * SLOT, datagram.len, datagram.size),
                    ecn: datagram.ecn,
                });
            }
            if count > 0 {
                self.first = n;
                if let Some(own) = n.checked_sub(2 * self.pairs.len()) {
                    self.owns.heard(own);
                }
                break;
            }
        }
        Ok(())
    }

    /// Connects a socket to the address. There are at most 8 such sockets. A socket that was silent for 10 s gives its
    /// place to others. Otherwise the owner with the most sockets gives up the one that was silent the longest.
    fn separate(&mut self, from: &Endpoint, owner: u64) {
        // Nothing is received at the lane's port.
        let Some(pair) = self.pairs.get(self.pair_for(from)) else { return };
        self.owns.add(from, owner, pair, self.offload);
    }

    /// Never waits. When a socket's buffer is full, the consecutive datagrams for the same address are dropped, and the
    /// next address is tried.
    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.send_by(slab, batch, &mut |messages, socket, slab, datagrams| messages.send(socket, slab, datagrams))
    }

    fn send_near(&mut self, datagram: &[u8], to: Endpoint, hops: u8) -> Sent {
        let mut sent = Sent::default();
        let (span, source) = (Span { offset: 0, len: datagram.len() }, source_for(&to));
        self.queue_pair = self.pair_for(&to);
        self.queue.push(Outgoing { span, to: to.remote, source, ds: 0, hops, size: span.len, count: 1 });
        self.flush(
            datagram,
            &mut |messages, socket, slab, datagrams| messages.send(socket, slab, datagrams),
            &mut sent,
        );
        sent
    }

    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(LanePort::lane)
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        Self::set_fwmark(self, mark)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.pairs.iter().flat_map(Pair::iter).map(AsFd::as_fd).chain(self.owns.fds()).nth(n)
    }

    fn recv_slab_len(&self) -> usize {
        RECV_BATCH * SLOT
    }
}

/// A socket and its port. The number is twice the pair's number for IPv4, and one more for IPv6. Sockets of single
/// senders follow.
fn socket<'a>(pairs: &'a [Pair], owns: &'a Owns, n: usize) -> Option<(&'a Socket, u16)> {
    if let Some(own) = n.checked_sub(2 * pairs.len()) {
        return owns.get(own).map(|own| (&own.socket, own.port));
    }
    let pair = &pairs[n / 2];
    Some((if n % 2 == 1 { pair.v6.as_ref() } else { pair.v4.as_ref() }?, pair.port))
}

/// The place of a socket in the order of the [`fds`](Network::fds).
fn position(pairs: &[Pair], owns: &Owns, n: usize) -> usize {
    (0..n).filter(|&before| socket(pairs, owns, before).is_some()).count()
}

/// A function that gives the first of some messages to the kernel. It returns how many the kernel accepted, or the
/// error of the first one.
pub(crate) type SendBy<'a> = dyn FnMut(&mut Messages<BATCH>, &Socket, &[u8], &[Outgoing]) -> io::Result<usize> + 'a;

impl Udp {
    /// As [`send`](Network::send), with `by` as the function that calls the kernel.
    pub(crate) fn send_by(&mut self, slab: &[u8], batch: &[Transmit], by: &mut SendBy<'_>) -> Sent {
        let mut sent = Sent::default();
        for &Transmit { to, segments, ds } in batch {
            let remote = to.remote;
            let (pair, source) = (self.pair_for(&to), source_for(&to));
            let longest = if self.segmentation { longest_run(&segments) } else { 1 };
            let mut first = 0;
            while first < segments.count {
                let count = longest.min(segments.count - first);
                let last = if first + count == segments.count { segments.last_len } else { segments.len };
                let offset = segments.offset + first * segments.stride;
                let span = Span { offset, len: (count - 1) * segments.stride + last };
                let other_family = self.queue.first().is_some_and(|first| first.to.is_ipv4() != remote.is_ipv4());
                if other_family || pair != self.queue_pair || self.queue.len() == BATCH {
                    self.flush(slab, by, &mut sent);
                    self.queue_pair = pair;
                }
                self.queue.push(Outgoing { span, to: remote, source, ds, hops: 0, size: segments.stride, count });
                first += count;
            }
        }
        self.flush(slab, by, &mut sent);
        sent
    }

    /// Sends the queue, whose messages all belong to one socket, and empties it.
    fn flush(&mut self, slab: &[u8], by: &mut SendBy<'_>, sent: &mut Sent) {
        let Self { pairs, lane, queue_pair, outgoing, queue, singly, .. } = self;
        let mut give = |socket: &Socket, datagrams: &[Outgoing]| by(outgoing, socket, slab, datagrams);
        if let Some(pair) = pairs.get(*queue_pair).or(lane.as_ref().map(|lane| &lane.pair)) {
            send_all(pair, &mut give, queue, singly, sent);
        }
        queue.clear();
    }
}

/// This host's address to send from, if it is known and of the right family.
fn source_for(to: &Endpoint) -> Option<LocalAddr> {
    to.local.filter(|local| local.ip.is_ipv4() == to.remote.is_ipv4())
}

/// The number below `count` that this address always has (FNV-1a of its bytes).
fn spread(remote: SocketAddr, count: usize) -> usize {
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let address = match remote.ip() {
        IpAddr::V4(ip) => ip.octets().iter().fold(0x811c_9dc5, hash),
        IpAddr::V6(ip) => ip.octets().iter().fold(0x811c_9dc5, hash),
    };
    // The low bits of FNV are only as good as the low bits of the bytes.
    let hash = remote.port().to_be_bytes().iter().fold(address, hash);
    ((u64::from(hash.wrapping_mul(0x9e37_79b1)) * count as u64) >> 32) as usize
}

/// The pieces of a received buffer. If the kernel joined several datagrams, each has `size` bytes.
pub(crate) fn run_of(offset: usize, len: usize, size: Option<usize>) -> Segments {
    let size = size.filter(|size| (1..len).contains(size)).unwrap_or(len);
    let count = if size == 0 { 1 } else { len.div_ceil(size) };
    Segments { offset, stride: size, count, len: size, last_len: len - (count - 1) * size }
}

/// recvmmsg, ignoring errors that are not the socket's own. It reports the error that is pending on the socket
/// (`sk_err`), which may come from another handle, and thereby clears it.
fn receive(messages: &mut Messages<RECV_BATCH>, socket: &Socket, slab: &mut [u8]) -> io::Result<usize> {
    let mut errors = 0;
    loop {
        match messages.recv(socket, slab, SLOT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if errors < PENDING_ERRORS => errors += 1,
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
