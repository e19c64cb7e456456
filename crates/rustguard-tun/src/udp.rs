//! The UDP sockets of a tunnel: IPv4 and, where the host has it, IPv6, on the same port.
//!
//! Datagrams longer than the path takes are fragmented, not refused, except beyond the 65,507 bytes UDP itself can carry: here where
//! the kernel knows the path's MTU, and over IPv4 by routers on the way as well (no DF bit, as with the kernel's WireGuard), so that
//! a tunnel whose MTU is too large works where ICMP is lost.
use crate::{
    Endpoint, LocalAddr, Network, Received, Segments, Sent, Span, Transmit,
    sys::{self, Messages, Outgoing},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

/// Messages per system call that sends; each may be a run of datagrams.
pub(crate) const BATCH: usize = 64;
/// Messages per system call that receives: measured, throughput does not grow beyond 8 where each is a run (1: 0.81 of
/// it, 4: 0.94), and they bound the memory a flood touches to half a megabyte.
const RECV_BATCH: usize = 8;
/// Every how many batches the family is asked first that had nothing the last time: a system call in vain each time, and
/// the longest that a flood of the one keeps the other waiting.
const OTHER_FIRST: usize = 8;
/// Datagrams in one message at most (UDP_MAX_SEGMENTS of kernels before 6.9).
const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload over IPv4, which also bounds a run.
const MAX_PAYLOAD: usize = 65_507;
/// Bytes between the places of received datagrams. Any UDP payload or run fits, so that none can stop reception. The 1,536 bytes beyond
/// 64 KiB keep the beginnings of all slots out of each other's cache sets: in the caches, ordinary packets lie as
/// if end to end.
pub(crate) const SLOT: usize = 65_536 + 1_536;
/// A full send queue of the peer's TCP must fit: with the default 208 KiB single TCP loses a sixth of its throughput.
const RECEIVE_BUFFER: usize = 7 << 20;
/// The queueing discipline of a saturated link must drop before the socket's buffer is full, because all peers share that buffer,
/// also those behind other links. The kernel doubles this, and counts all memory of a packet: it is twice what fq_codel holds
/// (`memory_limit`, 32 MiB), and more than 1,000 packets of pfifo_fast.
const SEND_BUFFER: usize = 32 << 20;
/// How often a random port is drawn until both families agree.
const PORT_ATTEMPTS: usize = 64;
/// Errors in a row that [`Network::recv`] takes for those of datagrams sent earlier.
pub(crate) const PENDING_ERRORS: usize = 16;

/// What to bind.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Port, 0 for a random one, the same for both families.
    pub port: u16,
    /// SO_MARK on everything sent; 0 for none.
    pub fwmark: u32,
    /// Exchange runs of datagrams with the kernel (UDP_SEGMENT, UDP_GRO), as far as it is able to. Without, every
    /// datagram passes the kernel by itself; only for measurements and for kernels and devices that get it wrong.
    pub offload: bool,
}

impl Default for UdpOptions {
    /// A random port, no mark, with offload.
    fn default() -> Self {
        Self { port: 0, fwmark: 0, offload: true }
    }
}

/// Both sockets.
pub struct Udp {
    sockets: Pair,
    port: u16,
    incoming: Messages<RECV_BATCH>,
    outgoing: Messages<BATCH>,
    /// Messages of one family that wait for one system call; empty between calls.
    queue: Vec<Outgoing>,
    /// The datagrams of a run that the kernel would not segment; empty between calls.
    singly: Vec<Outgoing>,
    /// Whether the kernel knows UDP_SEGMENT (Linux 4.18), and is to use it.
    segmentation: bool,
    /// The family that had datagrams the last time, and is asked first.
    ipv6_first: bool,
    /// Calls of `recv`, for the other family's turn.
    turn: usize,
}

/// At least one of both is there.
struct Pair {
    v4: Option<Socket>,
    v6: Option<Socket>,
}

impl Udp {
    /// Binds both families; each is left out where the host has none of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], or [`io::ErrorKind::PermissionDenied`] for a firewall mark without CAP_NET_ADMIN
    /// or a port below 1024; the messages name the port and the remedy.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let mut queues = Self::bind_queues(options, 1)?;
        Ok(queues.pop().expect("as many as were asked for"))
    }

    /// Binds as many pairs of sockets to one port, one for each worker (SO_REUSEPORT). The kernel spreads datagrams over
    /// them by a hash of both addresses and ports: all of one peer come to one worker, and so in order, until the peer
    /// roams. [`set_fwmark`](Self::set_fwmark) is a matter of each.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind), and [`io::ErrorKind::InvalidInput`] for no queue at all.
    pub fn bind_queues(options: &UdpOptions, queues: usize) -> io::Result<Vec<Self>> {
        if queues == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no UDP socket was asked for: it takes at least one",
            ));
        }
        // The first does not share the port while it binds, or it would join whoever shares it already. Once bound, it
        // lets others join, and the kernel makes it one of their group (reuseport_add_sock).
        let (pair, port) = bind_pair(options.port, |domain, port| bind(domain, port, options, Claim::Alone))?;
        if queues > 1 {
            pair.iter().try_for_each(|socket| socket.set_reuse_port(true))?;
        }
        let mut all = vec![Self::new(pair, port, options.offload)];
        while all.len() < queues {
            let (pair, port) = bind_pair(port, |domain, port| bind(domain, port, options, Claim::Shared))?;
            all.push(Self::new(pair, port, options.offload));
        }
        Ok(all)
    }

    fn new(sockets: Pair, port: u16, offload: bool) -> Self {
        // Zero is the default; only a kernel that does not know the option refuses it.
        let segments = |socket| sys::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let segmentation = offload && sockets.iter().all(segments);
        Self {
            segmentation,
            singly: Vec::with_capacity(MAX_SEGMENTS),
            sockets,
            port,
            incoming: Messages::new(),
            outgoing: Messages::new(),
            queue: Vec::with_capacity(BATCH),
            ipv6_first: false,
            turn: 0,
        }
    }

    /// The port, chosen or given.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether IPv6 is there.
    pub fn has_ipv6(&self) -> bool {
        self.sockets.v6.is_some()
    }

    /// Changes SO_MARK, on all handles; 0 for none.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] without CAP_NET_ADMIN.
    pub fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.sockets.iter().try_for_each(|socket| set_mark(socket, mark))
    }

    /// A second handle on the same sockets (control sends handshakes through one, the worker owns the other).
    pub fn try_clone(&self) -> io::Result<Self> {
        let clone = |socket: &Option<Socket>| socket.as_ref().map(Socket::try_clone).transpose();
        let Pair { v4, v6 } = &self.sockets;
        Ok(Self::new(Pair { v4: clone(v4)?, v6: clone(v6)? }, self.port, self.segmentation))
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pair { v4, v6 } = &self.sockets;
        f.debug_struct("Udp").field("port", &self.port).field("v4", v4).field("v6", v6).finish_non_exhaustive()
    }
}

impl Network for Udp {
    /// What is waiting of one family, up to 8 runs of datagrams. An error that ICMP or an earlier `send` left on the socket
    /// is passed over.
    ///
    /// # Errors
    /// Only those that come again and again: the socket is of no use any more.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.turn = (self.turn + 1) % OTHER_FIRST;
        for ipv6 in [self.ipv6_first ^ (self.turn == 0), !self.ipv6_first ^ (self.turn == 0)] {
            let Some(socket) = (if ipv6 { &self.sockets.v6 } else { &self.sockets.v4 }) else { continue };
            let count = receive(&mut self.incoming, socket, slab)?;
            for i in 0..count {
                let Some(datagram) = self.incoming.incoming(i) else { continue };
                // No UDP payload is longer than a slot; if one were, what is cut off could not be authentic.
                if datagram.truncated {
                    continue;
                }
                out.push(Received {
                    from: Endpoint { remote: datagram.from, local: datagram.local },
                    segments: run_of(i * SLOT, datagram.len, datagram.size),
                    ecn: datagram.ecn,
                });
            }
            if count > 0 {
                self.ipv6_first = ipv6;
                break;
            }
        }
        Ok(())
    }

    /// Never waits. Where a socket's buffer is full, what is for the same address side by side is dropped, and the next address
    /// is tried.
    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.send_by(slab, batch, &mut |messages, socket, slab, datagrams| messages.send(socket, slab, datagrams))
    }

    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    fn recv_slab_len(&self) -> usize {
        RECV_BATCH * SLOT
    }
}

/// Gives the first of some messages to the kernel; returns how many it took, or the error of the first.
pub(crate) type SendBy<'a> = dyn FnMut(&mut Messages<BATCH>, &Socket, &[u8], &[Outgoing]) -> io::Result<usize> + 'a;

impl Udp {
    /// [`send`](Network::send), by this way to the kernel.
    pub(crate) fn send_by(&mut self, slab: &[u8], batch: &[Transmit], by: &mut SendBy<'_>) -> Sent {
        let mut sent = Sent::default();
        for &Transmit { to: Endpoint { remote, local }, segments, ds } in batch {
            let source = local.filter(|local| local.ip.is_ipv4() == remote.is_ipv4());
            let longest = if self.segmentation { longest_run(&segments) } else { 1 };
            let mut first = 0;
            while first < segments.count {
                let count = longest.min(segments.count - first);
                let last = if first + count == segments.count { segments.last_len } else { segments.len };
                let offset = segments.offset + first * segments.stride;
                let span = Span { offset, len: (count - 1) * segments.stride + last };
                let other_family = self.queue.first().is_some_and(|first| first.to.is_ipv4() != remote.is_ipv4());
                if other_family || self.queue.len() == BATCH {
                    self.flush(slab, by, &mut sent);
                }
                self.queue.push(Outgoing { span, to: remote, source, ds, size: segments.stride, count });
                first += count;
            }
        }
        self.flush(slab, by, &mut sent);
        sent
    }

    /// Sends the queue, all of one family, and empties it.
    fn flush(&mut self, slab: &[u8], by: &mut SendBy<'_>, sent: &mut Sent) {
        let Self { sockets, outgoing, queue, singly, .. } = self;
        let mut give = |socket: &Socket, datagrams: &[Outgoing]| by(outgoing, socket, slab, datagrams);
        send_all(sockets, &mut give, queue, singly, sent);
        queue.clear();
    }
}

/// Sends messages, all of one family, and goes on behind one that fails for good. A run that fails is sent again
/// datagram by datagram, in `singly`: the route may lead through a device that cannot segment (EIO), or have an MTU
/// below the datagrams' size (EINVAL, EMSGSIZE), which fragmentation would carry. Next time may be another route.
fn send_all(
    sockets: &Pair,
    give: &mut dyn FnMut(&Socket, &[Outgoing]) -> io::Result<usize>,
    mut rest: &mut [Outgoing],
    singly: &mut Vec<Outgoing>,
    sent: &mut Sent,
) {
    // About the first of the rest: how it was tried so far.
    let mut tries = Tries::default();
    while let Some(&first) = rest.first() {
        let Some(socket) = sockets.of(first.to) else {
            sent.failed += datagrams(rest);
            break;
        };
        let error = match give(socket, rest) {
            Ok(count) => {
                sent.sent += datagrams(&rest[..count]);
                rest = &mut rest[count..];
                if let Some(source) = tries.source_lost {
                    sent.source_lost += first.count + forget_source(rest, first.to, source);
                }
                tries = Tries::default();
                continue;
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // The socket's buffer is full, or the kernel has no memory. Whoever waited here would keep all peers waiting, and
            // what they send as well.
            Some(libc::EAGAIN | libc::ENOBUFS) => {
                let run = rest.iter().take_while(|datagram| datagram.to == first.to).count();
                sent.failed += datagrams(&rest[..run]);
                rest = &mut rest[run..];
                tries = Tries::default();
            }
            // Perhaps the error of another datagram. Only what comes again is this one's.
            _ if !tries.again => {
                tries.again = true;
                forget_pending_error(socket);
            }
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) if first.count > 1 => {
                singly.extend(pieces(rest[0]));
                if let Some(source) = tries.source_lost {
                    sent.source_lost += first.count + forget_source(rest, first.to, source);
                }
                send_all(sockets, give, singly, &mut Vec::new(), sent);
                singly.clear();
                rest = &mut rest[1..];
                tries = Tries::default();
            }
            // Our address may have moved away: the kernel finds another. An interface that was asked for is not exchanged.
            Some(libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENODEV)
                if first.source.is_some_and(|source| !source.bound) =>
            {
                tries = Tries { source_lost: rest[0].source.take(), ..Tries::default() };
            }
            _ => {
                sent.failed += first.count;
                rest = &mut rest[1..];
                tries = Tries::default();
            }
        }
    }
}

/// The pieces of a received buffer: of `size` bytes each where the kernel put several together.
pub(crate) fn run_of(offset: usize, len: usize, size: Option<usize>) -> Segments {
    let size = size.filter(|size| (1..len).contains(size)).unwrap_or(len);
    let count = if size == 0 { 1 } else { len.div_ceil(size) };
    Segments { offset, stride: size, count, len: size, last_len: len - (count - 1) * size }
}

/// How many of these datagrams one message may carry: only what lies end to end.
fn longest_run(segments: &Segments) -> usize {
    if segments.stride != segments.len || segments.len == 0 || segments.last_len == 0 {
        return 1;
    }
    (MAX_PAYLOAD / segments.len).clamp(1, MAX_SEGMENTS)
}

/// Each datagram of a message as a message of its own.
fn pieces(run: Outgoing) -> impl Iterator<Item = Outgoing> {
    let Outgoing { span, size, count, .. } = run;
    let end = span.offset + span.len;
    (0..count).map(move |i| {
        let offset = span.offset + i * size;
        let span = Span { offset, len: size.min(end - offset) };
        Outgoing { span, count: 1, ..run }
    })
}

fn datagrams(messages: &[Outgoing]) -> usize {
    messages.iter().map(|message| message.count).sum()
}

/// What was done for the datagram in front.
#[derive(Default)]
struct Tries {
    again: bool,
    source_lost: Option<LocalAddr>,
}

impl Pair {
    fn of(&self, remote: SocketAddr) -> Option<&Socket> {
        if remote.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.v4.iter().chain(&self.v6)
    }
}

/// Binds both families to one port with `bind`; a port of 0 is drawn anew until both agree.
fn bind_pair(port: u16, mut bind: impl FnMut(Domain, u16) -> io::Result<Socket>) -> io::Result<(Pair, u16)> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let v4 = if_available(bind(Domain::IPV4, port))?;
        let drawn = v4.as_ref().map_or(Ok(port), port_of)?;
        let v6 = match if_available(bind(Domain::IPV6, drawn)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port == 0 && attempts < PORT_ATTEMPTS => continue,
            v6 => v6?,
        };
        let Some(any) = v4.as_ref().or(v6.as_ref()) else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this host has neither IPv4 nor IPv6"));
        };
        let port = port_of(any)?;
        return Ok((Pair { v4, v6 }, port));
    }
}

/// A host may lack a family: not built in (EAFNOSUPPORT), or disabled (EADDRNOTAVAIL).
fn if_available(socket: io::Result<Socket>) -> io::Result<Option<Socket>> {
    match socket {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => Ok(None),
        socket => socket.map(Some),
    }
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    Ok(address.expect("a UDP socket has an IP address").port())
}

/// How a socket takes its port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Nobody else may have it.
    Alone,
    /// Together with those of the same user who share it.
    Shared,
}

fn bind(domain: Domain, port: u16, options: &UdpOptions, claim: Claim) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    let any: SockAddr = if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
        sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into()
    } else {
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into()
    };
    if options.fwmark != 0 {
        set_mark(&socket, options.fwmark)?;
    }
    socket.set_reuse_port(claim == Claim::Shared)?;
    enlarge_buffers(&socket);
    if options.offload {
        // Linux 5.0; older kernels deliver every datagram by itself.
        let _ = sys::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    socket.bind(&any).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            let message =
                format!("UDP port {port} is in use by another program: choose another ListenPort, or end that program");
            io::Error::new(error.kind(), message)
        }
        Some(libc::EACCES) => io::Error::new(
            error.kind(),
            format!("not permitted to use UDP port {port}: take one above 1023, or be root"),
        ),
        _ => error,
    })?;
    Ok(socket)
}

fn set_mark(socket: &Socket, mark: u32) -> io::Result<()> {
    socket.set_mark(mark).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(
            error.kind(),
            format!("not permitted to set the firewall mark {mark:#x}: it needs CAP_NET_ADMIN; run as root, or leave FwMark out"),
        ),
        _ => error,
    })
}

/// Beyond `net.core.rmem_max` and `wmem_max` only with CAP_NET_ADMIN; without, as far as they allow. A host that
/// allows nothing works, slower.
fn enlarge_buffers(socket: &Socket) {
    for (force, plain, size) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)]
    {
        let size = size as libc::c_int;
        if sys::set_option(socket, libc::SOL_SOCKET, force, size).is_err() {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, plain, size);
        }
    }
}

/// recvmmsg, past errors that are not the socket's own. It reports what was left on the socket (`sk_err`), also by what
/// another handle did, and forgets it thereby.
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

/// What the kernel left on the socket (`sk_err`: of ICMP, of a recvmmsg that stopped in mid-batch) hits the next
/// datagram, which is not to blame. What is wrong with a datagram itself shows again when it is offered again.
fn forget_pending_error(socket: &Socket) {
    // Its own failure would only mean that nothing was pending.
    let _ = socket.take_error();
}

/// Takes a source that was found lost from all that would leave from it too. Returns from how many.
fn forget_source(datagrams: &mut [Outgoing], to: SocketAddr, lost: LocalAddr) -> usize {
    let same = datagrams.iter_mut().filter(|datagram| datagram.to == to && datagram.source == Some(lost));
    same.map(|message| {
        message.source = None;
        message.count
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        namespace::isolated,
        testing::udp::{self as testing, here, receive_all, run_to, transmit},
    };

    fn open() -> Udp {
        testing::open()
    }

    #[test]
    fn datagrams_of_every_length_pass() {
        testing::datagrams_of_every_length_pass::<Udp>();
    }

    #[test]
    fn pieces_of_many_transmits_arrive_in_order() {
        testing::pieces_of_many_transmits_arrive_in_order::<Udp>();
    }

    #[test]
    fn c23_runs_of_every_shape_arrive_as_they_were_cut() {
        testing::runs_of_every_shape_arrive_as_they_were_cut::<Udp>();
    }

    #[test]
    fn congestion_notification_passes() {
        testing::congestion_notification_passes::<Udp>();
    }

    #[test]
    fn c23_runs_come_in_one_piece_where_the_kernel_does_that() {
        testing::runs_come_in_one_piece_where_the_kernel_does_that::<Udp>();
    }

    #[test]
    fn both_families_share_a_port_and_are_drained_fairly() {
        testing::both_families_share_a_port_and_are_drained_fairly::<Udp>();
    }

    #[test]
    fn a_bad_datagram_in_mid_batch_fails_alone() {
        testing::a_bad_datagram_in_mid_batch_fails_alone::<Udp>();
    }

    #[test]
    fn replies_leave_from_the_address_that_was_addressed() {
        testing::replies_leave_from_the_address_that_was_addressed::<Udp>();
    }

    #[test]
    fn a_source_that_moved_away_is_left_out() {
        testing::a_source_that_moved_away_is_left_out::<Udp>();
    }

    #[test]
    fn hosts_with_ipv6_disabled_run_on_ipv4() {
        testing::hosts_with_ipv6_disabled_run_on_ipv4::<Udp>();
    }

    #[test]
    fn a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody() {
        testing::a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody::<Udp>();
    }

    #[test]
    fn c23_a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again() {
        testing::a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again::<Udp>();
    }

    #[test]
    fn c28_a_message_has_at_most_64_datagrams_and_65507_bytes() {
        let longest = |len, stride, last_len| longest_run(&Segments { offset: 0, stride, count: 100, len, last_len });
        assert_eq!([longest(1, 1, 1), longest(1_023, 1_023, 9), longest(1_024, 1_024, 9)], [64, 64, 63]);
        assert_eq!([longest(1_452, 1_452, 1), longest(65_507, 65_507, 1)], [45, 1]);
        assert_eq!([longest(100, 116, 100), longest(7, 7, 0), longest(0, 0, 0)], [1, 1, 1], "gaps, empty datagrams");
        assert_eq!(run_of(5, 0, None), Segments { offset: 5, stride: 0, count: 1, len: 0, last_len: 0 });
        assert_eq!(run_of(5, 9, Some(0)).count, 1);
        assert_eq!(run_of(5, 9, Some(3)), Segments { offset: 5, stride: 3, count: 3, len: 3, last_len: 3 });
    }

    /// The kernel is asked once about each peer's run, whatever it says, and not again.
    #[test]
    fn what_a_full_buffer_refuses_is_dropped_run_by_run_without_waiting() {
        let mut udp = open();
        let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 1));
        let run = |n: u8, count: usize| {
            let segments = Segments { offset: 0, stride: 100, count, len: 100, last_len: 100 };
            Transmit { to: Endpoint { remote: at(n), local: None }, segments, ds: 0 }
        };
        let batch = [run(1, 64), run(1, 64), run(1, 3), run(2, 5), run(1, 7), run(2, 1)];
        for refusal in [libc::EAGAIN, libc::ENOBUFS] {
            let mut asked = Vec::new();
            let sent = udp.send_by(&[0; 6_400], &batch, &mut |_, _, _, messages| {
                asked.push(messages[0].to);
                // Who lives at 192.0.2.1 has a saturated link.
                let taken = messages.iter().take_while(|message| message.to == at(2)).count();
                if taken > 0 { Ok(taken) } else { Err(io::Error::from_raw_os_error(refusal)) }
            });
            assert_eq!(sent, Sent { sent: 6, failed: 138, source_lost: 0 });
            assert_eq!(asked, [at(1), at(2), at(1), at(2)]);
        }
    }

    #[test]
    fn without_offload_no_run_is_sent_nor_received() {
        isolated("datagrams singly", || {
            let (mut with, mut without) =
                (open(), Udp::bind(&UdpOptions { offload: false, ..UdpOptions::default() }).unwrap());
            let mut clone = without.try_clone().unwrap();
            for ip in ["127.0.0.1", "::1"] {
                let run = |to: &Udp| [run_to(here(ip, to), 1_000, 9, 500)];
                let (to_us, to_them) = (run(&without), run(&with));
                let all = Sent { sent: 9, ..Sent::default() };
                assert_eq!(with.send(&[1; 9_000], &to_us), all);
                assert_eq!(counts(&mut without, 9), [1; 9]);
                assert_eq!(without.send(&[1; 9_000], &to_them), all);
                assert_eq!(counts(&mut with, 9), [1; 9]);
                assert_eq!(clone.send(&[1; 9_000], &to_them), all);
                assert_eq!(counts(&mut with, 9), [1; 9]);
            }
        });
    }

    /// How many datagrams came in each piece; over loopback, what was sent has arrived.
    fn counts(udp: &mut Udp, datagrams: usize) -> Vec<usize> {
        let (mut slab, mut received) = (vec![0; udp.recv_slab_len()], Vec::new());
        while received.iter().map(|r: &Received| r.segments.count).sum::<usize>() < datagrams {
            let before = received.len();
            udp.recv(&mut slab, &mut received).unwrap();
            udp.recv(&mut slab, &mut received).unwrap();
            assert!(received.len() > before, "datagrams are missing");
        }
        received.iter().map(|r| r.segments.count).collect()
    }

    #[test]
    fn handles_share_sockets_and_their_errors_are_not_the_receivers() {
        isolated("two handles", || {
            let mut worker = open();
            let mut control = worker.try_clone().unwrap();
            assert_eq!(worker.port(), control.port());
            let to = here("127.0.0.1", &worker);
            let slab = vec![0; 70_000];
            let (good, bad) =
                (transmit(to, None, Span { offset: 0, len: 1 }), transmit(to, None, Span { offset: 0, len: 65_508 }));
            for _ in 0..20 {
                assert_eq!(control.send(&slab, &[good, bad, good]).sent, 2);
                assert_eq!(receive_all(&mut worker, 2).len(), 2);
            }
            // With IP_RECVERR the kernel leaves on the socket that nobody was at port 9.
            let v4 = control.sockets.v4.as_ref().unwrap();
            sys::set_option(v4, libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
            let nobody = transmit("127.0.0.1:9".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
            let one = Sent { sent: 1, ..Sent::default() };
            assert_eq!(control.send(&slab, &[nobody]), one);
            assert_eq!(worker.send(&slab, &[good]), one, "the error is not that of another datagram");
            assert_eq!(control.send(&slab, &[nobody]), one);
            assert_eq!(receive_all(&mut worker, 1).len(), 1, "nor the receiver's");
        });
    }

    /// A kernel that lacks a family cannot be had in a namespace: its answers are played here.
    #[test]
    fn a_missing_family_is_left_out() {
        let missing = |family| {
            move |domain, port| match domain == family {
                true => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
                false => bind(domain, port, &UdpOptions::default(), Claim::Alone),
            }
        };
        let (pair, port) = bind_pair(0, missing(Domain::IPV6)).unwrap();
        assert!(pair.v4.is_some() && pair.v6.is_none() && port != 0);
        let mut only_v4 = Udp::new(pair, port, true);
        let v6 = transmit("[::1]:1".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
        assert_eq!(only_v4.send(&[0], &[v6, v6]), Sent { sent: 0, failed: 2, source_lost: 0 });
        assert_eq!(only_v4.fds().count(), 1);

        let (pair, port) = bind_pair(0, missing(Domain::IPV4)).unwrap();
        assert!(pair.v4.is_none() && pair.v6.is_some() && port != 0);
        let neither = bind_pair(0, |_, _| Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)));
        assert_eq!(neither.err().unwrap().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_random_port_is_drawn_until_both_families_have_it() {
        let mut refusals = 3;
        let (pair, port) = bind_pair(0, |domain, port| {
            if domain == Domain::IPV6 && refusals > 0 {
                refusals -= 1;
                return Err(io::ErrorKind::AddrInUse.into());
            }
            bind(domain, port, &UdpOptions::default(), Claim::Alone)
        })
        .unwrap();
        assert!(pair.iter().all(|socket| port_of(socket).unwrap() == port));
        let error = bind_pair(0, |domain, port| match domain == Domain::IPV6 {
            true => Err(io::ErrorKind::AddrInUse.into()),
            false => bind(domain, port, &UdpOptions::default(), Claim::Alone),
        });
        assert_eq!(error.err().unwrap().kind(), io::ErrorKind::AddrInUse, "it does not go on for ever");
    }

    #[test]
    fn a_taken_port_is_named() {
        let first = open();
        let error = Udp::bind(&UdpOptions { port: first.port(), ..UdpOptions::default() }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&first.port().to_string()), "{error}");
    }

    #[test]
    fn sources_are_spread_over_the_queues_and_each_keeps_to_one() {
        isolated("several sockets on a port", || {
            let mut queues = Udp::bind_queues(&UdpOptions::default(), 4).unwrap();
            assert_eq!(queues.len(), 4);
            assert!(queues.iter().all(|queue| queue.port() == queues[0].port() && queue.has_ipv6()));
            let sources: Vec<_> = (0..64).map(|_| open()).collect();
            for ip in ["127.0.0.1", "::1"] {
                let to = transmit(here(ip, &queues[0]), None, Span { offset: 0, len: 1 });
                for round in 0..8 {
                    for source in &sources {
                        let mut source = source.try_clone().unwrap();
                        assert_eq!(source.send(&[round], &[to]).sent, 1);
                    }
                }
                let mut seen = std::collections::HashMap::new();
                for queue in &mut queues {
                    let (before, mut slab) = (seen.len(), vec![0; queue.recv_slab_len()]);
                    // Over loopback, what was sent has arrived.
                    loop {
                        let mut received = Vec::new();
                        queue.recv(&mut slab, &mut received).unwrap();
                        if received.is_empty() {
                            break;
                        }
                        for Received { from, segments, .. } in received {
                            let next = seen.entry(from.remote).or_insert(0);
                            for piece in segments.pieces() {
                                assert_eq!(slab[piece.offset], *next, "{}: in order, all to one queue", from.remote);
                                *next += 1;
                            }
                        }
                    }
                    // With 64 sources, one of four queues stays idle once in 25 million times.
                    assert!(seen.len() > before, "an idle queue");
                }
                assert_eq!(seen.len(), sources.len());
                assert!(seen.values().all(|&count| count == 8), "{seen:?}");
            }
        });
    }

    #[test]
    fn a_port_of_several_sockets_is_not_shared_with_others() {
        isolated("a shared port taken", || {
            let ours = Udp::bind_queues(&UdpOptions::default(), 2).unwrap();
            for queues in 1..3 {
                let error = Udp::bind_queues(&UdpOptions { port: ours[0].port(), ..UdpOptions::default() }, queues);
                let error = error.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
                assert!(error.to_string().contains(&ours[0].port().to_string()), "{error}");
            }
            // Nor does one that others would share become ours.
            let theirs = bind(Domain::IPV4, 0, &UdpOptions::default(), Claim::Shared).unwrap();
            let options = UdpOptions { port: port_of(&theirs).unwrap(), ..UdpOptions::default() };
            assert_eq!(Udp::bind_queues(&options, 2).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert_eq!(Udp::bind_queues(&UdpOptions::default(), 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            let options = UdpOptions { port: ours[0].port(), fwmark: 7, ..UdpOptions::default() };
            drop(ours);
            for queue in Udp::bind_queues(&options, 3).unwrap() {
                assert!(queue.sockets.iter().all(|socket| socket.mark().unwrap() == 7), "on every socket");
            }
        });
    }

    #[test]
    fn a_mark_is_set_on_both_families_and_all_handles() {
        isolated("firewall marks", || {
            let udp = Udp::bind(&UdpOptions { fwmark: 0xca6c, ..UdpOptions::default() }).unwrap();
            let marks = |udp: &Udp| udp.sockets.iter().map(|socket| socket.mark().unwrap()).collect::<Vec<_>>();
            assert_eq!(marks(&udp), [0xca6c; 2]);
            udp.try_clone().unwrap().set_fwmark(0).unwrap();
            assert_eq!(marks(&udp), [0; 2]);
        });
    }
}
