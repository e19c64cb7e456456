//! In-memory transports: a TUN queue whose other end is in this process, and a network without sockets. They need no
//! root.
//!
//! Both behave like the kernel's transports in the points that matter. Queues are bounded, and packets beyond the bound
//! are refused or lost. The descriptors are readable exactly while something waits, or while there is room.
use crate::{
    Endpoint, HEADROOM, LocalAddr, Network, Received, Segments, Sent, Span, TAILROOM, Transmit, TunQueue,
    sys::{self, EventFd, PollFd},
};
use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// The number of packets that a queue holds, the same as in the kernel's TUN queue.
const QUEUE_LEN: usize = 500;
/// The length of the longest IP packet in bytes.
const MAX_PACKET: usize = 65_535;
/// The length of the longest UDP payload over IPv4 in bytes.
const MAX_DATAGRAM: usize = 65_507;
/// The maximum number of datagrams that one [`MemorySocket::recv`] takes.
const RECV_BATCH: usize = 64;

/// The daemon's end of an in-memory interface. Once the [`MemoryHost`] is dropped, reads and writes fail with
/// [`io::ErrorKind::NotConnected`], as they do on a deleted TUN.
#[derive(Debug)]
pub struct MemoryTun {
    from_host: Arc<Queue<Vec<u8>>>,
    to_host: Arc<Queue<Vec<u8>>>,
}

/// The application's end of an in-memory interface. It sends and receives whole IP packets.
#[derive(Debug)]
pub struct MemoryHost {
    to_tunnel: Arc<Queue<Vec<u8>>>,
    from_tunnel: Arc<Queue<Vec<u8>>>,
    timeout: Mutex<Option<Duration>>,
}

/// Creates both ends of an in-memory interface.
pub fn tun() -> io::Result<(MemoryTun, MemoryHost)> {
    let (down, up) = (Arc::new(Queue::new()?), Arc::new(Queue::new()?));
    let host = MemoryHost { to_tunnel: down.clone(), from_tunnel: up.clone(), timeout: Mutex::new(None) };
    Ok((MemoryTun { from_host: down, to_host: up }, host))
}

impl MemoryHost {
    /// Gives a packet to the tunnel.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the queue is full, [`io::ErrorKind::InvalidInput`] for more than 65,535
    /// bytes, [`io::ErrorKind::NotConnected`] when the [`MemoryTun`] was dropped.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        if packet.len() > MAX_PACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an IP packet has at most 65,535 bytes"));
        }
        match self.to_tunnel.push(packet.to_vec()) {
            Push::Queued => Ok(()),
            Push::Full => Err(io::ErrorKind::WouldBlock.into()),
            Push::Closed => Err(gone()),
        }
    }

    /// Waits for a packet from the tunnel. A packet that is longer than `buffer` is truncated.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after the time that [`set_timeout`](Self::set_timeout) set,
    /// [`io::ErrorKind::NotConnected`] when the [`MemoryTun`] was dropped and everything that it wrote was received.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = *lock(&self.timeout);
        let start = Instant::now();
        loop {
            match self.try_recv(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match sys::poll(&mut [PollFd::readable(self.fd())], left) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    /// As [`recv`](Self::recv), without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there, [`io::ErrorKind::NotConnected`] as for `recv`.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let packet = self.from_tunnel.pop()?.ok_or(io::ErrorKind::WouldBlock)?;
        let len = packet.len().min(buffer.len());
        buffer[..len].copy_from_slice(&packet[..len]);
        Ok(len)
    }

    /// Sets how long [`recv`](Self::recv) waits. `None`, the default, means no limit. With zero, it never waits.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *lock(&self.timeout) = timeout;
        Ok(())
    }

    /// This descriptor is readable when [`recv`](Self::recv) would not wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.from_tunnel.filled.as_fd()
    }

    /// This descriptor is readable when [`send`](Self::send) has room.
    pub fn room_fd(&self) -> BorrowedFd<'_> {
        self.to_tunnel.room.as_fd()
    }
}

impl Drop for MemoryHost {
    fn drop(&mut self) {
        self.to_tunnel.close();
        self.from_tunnel.close();
    }
}

impl Drop for MemoryTun {
    fn drop(&mut self) {
        self.from_host.close();
        self.to_host.close();
    }
}

impl TunQueue for MemoryTun {
    fn read(&mut self, slab: &mut [u8], at: usize, _mtu: usize) -> io::Result<Option<Segments>> {
        let Some(packet) = self.from_host.pop()? else { return Ok(None) };
        let (offset, len) = (at + HEADROOM, packet.len());
        slab[offset..offset + len].copy_from_slice(&packet);
        Ok(Some(Segments { offset, stride: HEADROOM + len + TAILROOM, count: 1, len, last_len: len }))
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        let mut refused = 0;
        for packet in packets {
            match self.to_host.push(slab[packet.offset..packet.offset + packet.len].to_vec()) {
                Push::Queued => {}
                Push::Full => refused += 1,
                Push::Closed => return Err(gone()),
            }
        }
        Ok(refused)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.from_host.filled.as_fd()
    }

    fn max_read(&self) -> usize {
        HEADROOM + MAX_PACKET + TAILROOM
    }
}

/// A network in memory, whose sockets have addresses. Datagrams to an address without a socket are lost.
#[derive(Clone, Default)]
pub struct MemoryNet(Arc<Mutex<HashMap<SocketAddr, Weak<Bound>>>>);

/// A socket of a [`MemoryNet`]. Its address is free again when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct MemorySocket(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    address: SocketAddr,
    net: MemoryNet,
    /// The datagrams that have arrived: the sender, the DS field and the bytes.
    arrived: Queue<(SocketAddr, u8, Vec<u8>)>,
}

impl MemoryNet {
    /// Opens a socket with this address.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when another socket has the address.
    pub fn bind(&self, address: SocketAddr) -> io::Result<MemorySocket> {
        let arrived = Queue::new()?;
        let mut sockets = lock(&self.0);
        if sockets.get(&address).is_some_and(|bound| bound.strong_count() > 0) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{address} is taken in this network")));
        }
        let bound = Arc::new(Bound { address, net: self.clone(), arrived });
        sockets.insert(address, Arc::downgrade(&bound));
        Ok(MemorySocket(bound))
    }

    fn at(&self, address: SocketAddr) -> Option<Arc<Bound>> {
        lock(&self.0).get(&address)?.upgrade()
    }
}

impl fmt::Debug for MemoryNet {
    /// Prints only the addresses. Sockets refer to their network, so printing them would never end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.0).keys()).finish()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut sockets = lock(&self.net.0);
        // Another socket may have taken the address since the last handle of this one was dropped.
        if sockets.get(&self.address).is_some_and(|bound| bound.strong_count() == 0) {
            sockets.remove(&self.address);
        }
    }
}

impl MemorySocket {
    /// A second handle on the same socket. A worker owns one handle; the control thread sends handshakes through the
    /// other.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// The address to which the socket is bound.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    fn local(&self) -> LocalAddr {
        LocalAddr { ip: self.0.address.ip(), interface: 0, bound: false }
    }
}

impl Network for MemorySocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        let mut offset = 0;
        for _ in 0..RECV_BATCH {
            // The next datagram may have any length, so it is taken only when the longest would fit.
            if slab.len() - offset < MAX_DATAGRAM {
                break;
            }
            let Some((from, ds, datagram)) = self.0.arrived.pop()? else { break };
            let len = datagram.len();
            slab[offset..offset + len].copy_from_slice(&datagram);
            out.push(Received {
                from: Endpoint { remote: from, local: Some(self.local()), local_port: self.0.address.port() },
                segments: Segments { offset, stride: len, count: 1, len, last_len: len },
                ecn: ds & 0b11,
            });
            offset += len;
        }
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let mut result = Sent::default();
        for transmit in batch {
            let there = self.0.net.at(transmit.to.remote);
            let lost = transmit.to.local.is_some_and(|local| !local.bound && local.ip != self.0.address.ip());
            for piece in transmit.segments.pieces() {
                let datagram = &slab[piece.offset..piece.offset + piece.len];
                if datagram.len() > MAX_DATAGRAM {
                    result.failed += 1;
                    continue;
                }
                if let Some(there) = &there {
                    // A full queue loses the datagram, as a real network does. The sender does not learn of it.
                    there.arrived.push((self.0.address, transmit.ds, datagram.to_vec()));
                }
                result.sent += 1;
                result.source_lost += usize::from(lost);
            }
        }
        result
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        (n == 0).then(|| self.0.arrived.filled.as_fd())
    }

    fn recv_slab_len(&self) -> usize {
        2 * MAX_DATAGRAM
    }
}

/// A bounded queue.
#[derive(Debug)]
struct Queue<T> {
    state: Mutex<State<T>>,
    /// Readable while there is something to take, and after the queue was closed.
    filled: EventFd,
    /// Readable while there is room, and after the queue was closed.
    room: EventFd,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

/// The result of adding an item.
enum Push {
    Queued,
    Full,
    Closed,
}

impl<T> Queue<T> {
    fn new() -> io::Result<Self> {
        let state = Mutex::new(State { items: VecDeque::new(), closed: false });
        let queue = Self { state, filled: EventFd::new()?, room: EventFd::new()? };
        queue.room.signal();
        Ok(queue)
    }

    // The eventfds are changed only under the lock, so that they always agree with the queue.

    fn push(&self, item: T) -> Push {
        let mut state = lock(&self.state);
        if state.closed {
            return Push::Closed;
        }
        if state.items.len() >= QUEUE_LEN {
            return Push::Full;
        }
        if state.items.is_empty() {
            self.filled.signal();
        }
        state.items.push_back(item);
        if state.items.len() == QUEUE_LEN {
            self.room.clear();
        }
        Push::Queued
    }

    fn pop(&self) -> io::Result<Option<T>> {
        let mut state = lock(&self.state);
        if state.items.len() == QUEUE_LEN {
            self.room.signal();
        }
        let item = state.items.pop_front();
        if item.is_none() && state.closed {
            return Err(gone());
        }
        if state.items.is_empty() && !state.closed {
            self.filled.clear();
        }
        Ok(item)
    }

    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.filled.signal();
        self.room.signal();
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the other end is gone")
}

/// Takes the lock, poisoned or not. No code here can panic half-way through a change while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn span(offset: usize, len: usize) -> Span {
        Span { offset, len }
    }

    fn readable(fd: BorrowedFd<'_>) -> bool {
        sys::poll(&mut [PollFd::readable(fd)], Some(Duration::ZERO)).unwrap() == 1
    }

    #[test]
    fn packets_cross_an_interface_both_ways_with_room_around_them() {
        let (mut tun, host) = tun().unwrap();
        let mut slab = vec![0; 10 + tun.max_read()];
        assert!(!readable(tun.fd()));
        assert_eq!(tun.read(&mut slab, 10, 1_420).unwrap(), None);
        host.send(b"down").unwrap();
        assert!(readable(tun.fd()));
        let packet = tun.read(&mut slab, 10, 1_420).unwrap().unwrap();
        assert_eq!((packet.offset, packet.count, packet.last_len), (10 + HEADROOM, 1, 4));
        assert_eq!(&slab[packet.offset..packet.offset + 4], b"down");
        assert!(!readable(tun.fd()), "taken, so nothing is there");

        slab[..4].copy_from_slice(b"upup");
        assert_eq!(tun.write(&mut slab, &[span(0, 2), span(0, 4)]).unwrap(), 0);
        let mut buffer = [0; 8];
        assert_eq!(host.recv(&mut buffer).unwrap(), 2);
        assert_eq!(host.recv(&mut buffer).unwrap(), 4);
        host.set_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(host.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_longest_packet_fits() {
        let (mut tun, host) = tun().unwrap();
        let mut slab = vec![0; tun.max_read()];
        host.send(&[7; MAX_PACKET]).unwrap();
        assert_eq!(tun.read(&mut slab, 0, 1_420).unwrap().unwrap().len, MAX_PACKET);
        assert_eq!(host.send(&[7; MAX_PACKET + 1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn full_queues_refuse_and_a_blocked_receiver_is_woken() {
        let (mut tun, host) = tun().unwrap();
        let packets = vec![span(0, 1); QUEUE_LEN + 3];
        assert_eq!(tun.write(&mut [0], &packets).unwrap(), 3);
        for _ in 0..QUEUE_LEN {
            assert!(readable(host.room_fd()));
            host.send(b"up").unwrap();
        }
        assert!(!readable(host.room_fd()));
        assert_eq!(host.send(b"up").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut slab = vec![0; tun.max_read()];
        assert!(tun.read(&mut slab, 0, 1_420).unwrap().is_some());
        assert!(readable(host.room_fd()));
        let mut buffer = [0; 1];
        for _ in 0..QUEUE_LEN {
            host.recv(&mut buffer).unwrap();
        }
        let writer = thread::spawn(move || {
            tun.write(&mut [9], &[span(0, 1)]).unwrap();
        });
        assert_eq!((host.recv(&mut buffer).unwrap(), buffer), (1, [9]));
        writer.join().unwrap();
        assert_eq!(host.send(&[0]).unwrap_err().kind(), io::ErrorKind::NotConnected, "the writer took its end along");
    }

    #[test]
    fn a_dropped_end_surfaces_at_the_other_after_what_was_queued() {
        let (mut tun, host) = tun().unwrap();
        host.send(b"last").unwrap();
        drop(host);
        let mut slab = vec![0; tun.max_read()];
        assert_eq!(tun.read(&mut slab, 0, 1_420).unwrap().unwrap().len, 4);
        assert!(readable(tun.fd()), "a closed end must not look idle");
        assert_eq!(tun.read(&mut slab, 0, 1_420).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(tun.write(&mut slab, &[span(0, 1)]).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    fn transmit(remote: SocketAddr, local: Option<LocalAddr>, len: usize) -> Transmit {
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        Transmit { to: Endpoint { local, ..Endpoint::new(remote) }, segments, ds: 0 }
    }

    #[test]
    fn datagrams_reach_the_address_they_name() {
        let net = MemoryNet::default();
        let (a, b) = ("192.0.2.1:1".parse().unwrap(), "[2001:db8::2]:2".parse().unwrap());
        let (mut ours, mut theirs) = (net.bind(a).unwrap(), net.bind(b).unwrap());
        assert_eq!(net.bind(a).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let slab: Vec<u8> = (0..=255).cycle().take(MAX_DATAGRAM + 1).collect();
        let foreign = LocalAddr { ip: "192.0.2.99".parse().unwrap(), interface: 0, bound: false };
        let nobody = "192.0.2.3:3".parse().unwrap();
        let batch = [
            transmit(b, None, 0),
            transmit(nobody, None, 5),
            transmit(b, None, MAX_DATAGRAM + 1),
            transmit(b, Some(foreign), MAX_DATAGRAM),
        ];
        assert_eq!(ours.send(&slab, &batch), Sent { sent: 3, failed: 1, source_lost: 1 });

        let (mut received, mut into) = (Vec::new(), vec![0; theirs.recv_slab_len()]);
        assert!(theirs.fds().all(readable));
        let mut second = theirs.try_clone().unwrap();
        second.recv(&mut into, &mut received).unwrap();
        assert_eq!(received.iter().map(|r| r.segments.last_len).collect::<Vec<_>>(), [0, MAX_DATAGRAM]);
        assert_eq!(received[0].from.remote, a);
        assert_eq!(received[0].from.local.unwrap().ip, b.ip());
        assert_eq!(into[..MAX_DATAGRAM], slab[..MAX_DATAGRAM]);
        theirs.recv(&mut into, &mut received).unwrap();
        assert_eq!(received.len(), 2);
    }

    #[test]
    fn an_address_is_free_again_when_the_last_handle_is_gone() {
        let net = MemoryNet::default();
        let a = "192.0.2.1:1".parse().unwrap();
        let first = net.bind(a).unwrap();
        let second = first.try_clone().unwrap();
        drop(first);
        assert!(net.bind(a).is_err());
        drop(second);
        assert_eq!(net.bind(a).unwrap().address(), a);
    }
}
