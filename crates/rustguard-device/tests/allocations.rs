//! In the steady state, a device allocates no memory. Workers of connected devices move many packets each way, and the
//! test counts the memory allocations of their threads.
//!
//! The test has its own in-memory transports, because `rustguard_tun::memory` allocates memory for each packet. Here,
//! datagrams travel in rings that exist before the count begins. The TUN generates packets, and checks the packets that
//! it gets. All of this runs on the worker's thread, so the TUN can start and end the count: [`alloc_tracker`] counts
//! each thread separately.
//!
//! Control threads are not counted: they allocate memory for each handshake and each request, but never for a packet.
//! Memory that aws-lc allocates in C is not counted. Its AEAD works in place.

use alloc_tracker::{Allocator, Operation, Session, ThreadSpan};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{
    Binder, Bound, Device, EndpointSpec, Event, PeerUpdate, Update,
    filter::{Packet, RouteDecision, Verdict},
};
use rustguard_tun::{
    Endpoint, HEADROOM, LocalAddr, Network, Received, Segments, Sent, Span, TAILROOM, Transmit, TunQueue,
    udp::UdpOptions,
};
use std::{
    alloc::System,
    cell::RefCell,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

/// Packets each way before the count begins. By then sessions are confirmed, endpoints are known and vectors have
/// grown.
const WARM_UP: u64 = 20_000;
/// Packets each way while allocations are counted.
const COUNTED: u64 = 30_000;
/// The same through a relay, where each packet costs four times as much.
const COUNTED_THROUGH: u64 = COUNTED / 4;
/// The tolerated number of allocations: a list may grow once more if a worker got no processor for long and then has
/// more packets at once than before. An allocation for each packet, or for each run of 64, would give thousands.
const GROWTH: u64 = 16;
/// A limit far above every wait in this test. Only a hang reaches it.
const LONG: Duration = Duration::from_secs(120);

const MTU: usize = 1_420;
/// The most packets in a super-packet: full segments in 64 KiB.
const SEGMENTS: usize = 46;
/// A full packet as a datagram: header and tag.
const DATAGRAM: usize = 16 + MTU + 16;
/// The same for a relay: with the header of forwarding, and one more header and tag.
const LONGEST: usize = 16 + 24 + DATAGRAM + 16;
/// The number of datagrams in a ring.
const RING: usize = 512;
/// The most datagrams that one `recv` takes. A worker's lists have room for this many, even if each datagram is a run
/// of its own. With more, the lists would grow once.
const RECEIVE: usize = 64;

#[tokio::test]
async fn packets_one_at_a_time() {
    steady_state(2, &[1], Links::Star(None)).await;
}

#[tokio::test]
async fn super_packets() {
    steady_state(2, &[SEGMENTS], Links::Star(None)).await;
}

#[tokio::test]
async fn all_sizes_and_several_peers() {
    steady_state(4, &[1, 1, 3, SEGMENTS, 1, 17], Links::Star(None)).await;
}

#[tokio::test]
async fn all_sizes_and_several_peers_through_a_filter() {
    // The filter repeats the decision of routing, so that peers are looked up by key in both directions.
    let filter = |packet: &Packet<'_>| match packet.route {
        RouteDecision::Forward(peer) => Verdict::Forward(peer),
        _ => Verdict::Deliver,
    };
    steady_state(4, &[1, 1, 3, SEGMENTS, 1, 17], Links::Star(Some(filter))).await;
}

#[tokio::test]
async fn all_sizes_through_a_relay() {
    steady_state(3, &[1, 1, 3, SEGMENTS, 1, 17], Links::ThroughFirst).await;
}

/// Which devices exchange packets.
#[derive(Clone, Copy)]
enum Links {
    /// The first device with all others, through this filter.
    Star(Option<fn(&Packet<'_>) -> Verdict>),
    /// The other devices with each other, through the first, which forwards.
    ThroughFirst,
}

/// Connects `nodes` devices. Each read of a TUN has as many packets as the next item of `shape`. Fails if a worker
/// counted an allocation.
async fn steady_state(nodes: u8, shape: &'static [usize], links: Links) {
    let counted = match links {
        Links::Star(_) => COUNTED,
        Links::ThroughFirst => COUNTED_THROUGH,
    };
    let rings: Arc<[Ring]> = (0..nodes).map(|_| Ring::new()).collect();
    let session = Session::new().no_stdout().no_file();
    let (done, all_done) = mpsc::channel();
    let keys: Vec<_> = (0..nodes).map(|n| StaticSecret::from_bytes([n + 1; 32])).collect();
    let gate = Arc::new(Gate::default());
    let (fd, mut opened) = io::pipe().unwrap();
    let mut devices = Vec::new();
    for n in 0..nodes {
        let others: Vec<_> = match links {
            Links::Star(_) if n == 0 => (1..nodes).collect(),
            Links::Star(_) => vec![0],
            Links::ThroughFirst if n == 0 => Vec::new(),
            Links::ThroughFirst => (1..nodes).filter(|&other| other != n).collect(),
        };
        let tun = Tun {
            node: n,
            others: others.clone(),
            shape,
            gate: Arc::clone(&gate),
            fd: fd.try_clone().unwrap(),
            reads: 0,
            sent: 0,
            received: vec![0; nodes.into()],
            count: session.operation(format!("worker {n}")),
            enough: WARM_UP + counted,
            counted: false,
            done: done.clone(),
        };
        let builder = match links {
            Links::Star(Some(filter)) => Device::builder().filter(filter),
            Links::Star(None) => Device::builder(),
            Links::ThroughFirst => Device::builder().forward(n == 0),
        };
        let device = builder
            .private_key(keys[usize::from(n)].clone())
            .start_with(tun, RingBinder { node: n, rings: Arc::clone(&rings) })
            .unwrap();
        let peer = |other: u8| {
            PeerUpdate::new(keys[usize::from(other)].public_key()).allowed_ip(ipnet::Ipv4Net::from(inner(other)))
        };
        let peers: Vec<_> = match n {
            // The first device has the endpoints of the others, and starts the handshakes.
            0 => (1..nodes).map(|other| peer(other).endpoint(outer(other))).collect(),
            _ => {
                let through = EndpointSpec::Peer(keys[0].public_key());
                let others = others.iter().filter(|&&other| other != 0);
                let others = others.map(|&other| peer(other).endpoint(through.clone()).direct(false));
                std::iter::once(peer(0)).chain(others).collect()
            }
        };
        device.update(Update::new().peers(peers)).await.unwrap();
        devices.push(device);
    }

    let mut events = devices[0].events();
    devices[0].handshake_now().await;
    for _ in 1..nodes {
        while !matches!(
            tokio::time::timeout(LONG, events.recv()).await.expect("a handshake").unwrap(),
            Event::HandshakeComplete { .. }
        ) {}
    }
    gate.open.store(true, Ordering::Release);
    opened.write_all(&[1]).unwrap();
    for _ in 0..nodes {
        all_done.recv_timeout(LONG).expect("every worker moves its packets");
    }
    let report = session.to_report();
    for (worker, measured) in report.operations() {
        assert_eq!(measured.total_iterations(), 1, "{worker} counted once");
        let (count, bytes) = (measured.total_allocations_count(), measured.total_bytes_allocated());
        assert!(
            count <= GROWTH,
            "{count} allocations, {bytes} bytes, of {worker} while more than {counted} packets passed each way"
        );
    }
    assert_eq!(report.operations().count(), usize::from(nodes));
    assert_eq!(gate.wrong.load(Ordering::Relaxed), 0, "every packet arrives as it was sent");
    for device in devices {
        device.shutdown().await;
    }
}

fn inner(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node)
}

fn outer(node: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, node), 51_820).into()
}

thread_local! {
    /// The count of this worker while it runs. A span stays on its thread, but a [`TunQueue`] may move to another one.
    static SPAN: RefCell<Option<ThreadSpan>> = const { RefCell::new(None) };
}

/// The state that the test and all its TUNs share.
#[derive(Default)]
struct Gate {
    /// The TUNs may begin to make packets. They never stop after that.
    open: AtomicBool,
    /// Packets that arrived.
    arrived: AtomicU64,
    /// Packets that arrived changed.
    wrong: AtomicU64,
}

/// Makes packets for `others` in turn, and counts the packets from them. Without others, it only observes the progress
/// of the other devices.
struct Tun {
    node: u8,
    others: Vec<u8>,
    shape: &'static [usize],
    gate: Arc<Gate>,
    /// Readable from the moment when the gate opens.
    fd: PipeReader,
    reads: usize,
    sent: u64,
    /// Packets received, by sender.
    received: Vec<u64>,
    count: Operation,
    /// The count ends after this many packets each way.
    enough: u64,
    counted: bool,
    done: mpsc::Sender<()>,
}

impl Tun {
    /// Begins or ends the count, by the number of packets that have passed each way.
    fn passed(&mut self, passed: u64) {
        SPAN.with_borrow_mut(|span| match span {
            None if passed >= WARM_UP && !self.counted => *span = Some(self.count.measure_thread().iterations(1)),
            Some(_) if passed >= self.enough => {
                // The TUN still makes packets, because the other workers may still count.
                drop(span.take());
                self.counted = true;
                // The receiver is gone if another worker has failed.
                let _ = self.done.send(());
            }
            _ => {}
        });
    }
}

impl TunQueue for Tun {
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        assert_eq!(mtu, MTU);
        if !self.gate.open.load(Ordering::Acquire) {
            return Ok(None);
        }
        if self.others.is_empty() {
            let ends = self.received.len() as u64 - 1;
            self.passed(self.gate.arrived.load(Ordering::Relaxed) / ends);
            return Ok(None);
        }
        let to = self.others[self.reads % self.others.len()];
        let count = self.shape[self.reads / self.others.len() % self.shape.len()];
        // A single packet may have any size. In a super-packet, only the last segment may be shorter.
        let last_len = 40 + self.reads * 7 % (MTU - 39);
        let len = if count == 1 { last_len } else { MTU };
        self.reads += 1;
        self.sent += count as u64;
        let segments = Segments { offset: at + HEADROOM, stride: DATAGRAM, count, len, last_len };
        for piece in segments.pieces() {
            fill(&mut slab[piece.offset..piece.offset + piece.len], self.node, to);
        }
        Ok(Some(segments))
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        for packet in packets {
            let packet = &slab[packet.offset..packet.offset + packet.len];
            let from = packet[15];
            self.received[usize::from(from)] += 1;
            if !intact(packet, from, self.node) {
                self.gate.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Each peer has to complete the warm-up, not only the sum of all.
        let each = self.others.iter().map(|&other| self.received[usize::from(other)]).min().unwrap_or(0);
        let passed = self.sent.min(each * self.others.len() as u64);
        self.gate.arrived.fetch_add(packets.len() as u64, Ordering::Relaxed);
        self.passed(passed);
        Ok(0)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn max_read(&self) -> usize {
        HEADROOM + SEGMENTS * DATAGRAM + TAILROOM
    }
}

/// An IPv4 packet with the fields that a worker reads: version, length and addresses. The other bytes are always the
/// same.
fn fill(packet: &mut [u8], from: u8, to: u8) {
    packet.fill(0x5a);
    packet[0] = 0x45;
    let len = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[12..16].copy_from_slice(&inner(from).octets());
    packet[16..20].copy_from_slice(&inner(to).octets());
}

fn intact(packet: &[u8], from: u8, to: u8) -> bool {
    let mut expected = [0; MTU];
    let expected = &mut expected[..packet.len()];
    fill(expected, from, to);
    packet == expected
}

/// A queue of datagrams to one node. A full ring drops further datagrams, as any network does.
struct Ring {
    queue: Mutex<Queue>,
    /// Readable while there are datagrams: a byte in a pipe, written and read while the queue is locked.
    arrived: PipeReader,
    signal: PipeWriter,
}

struct Queue {
    slots: Box<[Slot]>,
    first: usize,
    len: usize,
}

#[derive(Clone)]
struct Slot {
    from: u8,
    len: usize,
    bytes: [u8; LONGEST],
}

impl Ring {
    fn new() -> Self {
        let (arrived, signal) = io::pipe().unwrap();
        let slots = vec![Slot { from: 0, len: 0, bytes: [0; LONGEST] }; RING].into();
        Self { queue: Mutex::new(Queue { slots, first: 0, len: 0 }), arrived, signal }
    }

    fn push(&self, from: u8, datagram: &[u8]) {
        let mut queue = self.queue.lock().unwrap();
        if queue.len == RING {
            return;
        }
        let at = (queue.first + queue.len) % RING;
        let slot = &mut queue.slots[at];
        slot.bytes[..datagram.len()].copy_from_slice(datagram);
        (slot.from, slot.len) = (from, datagram.len());
        queue.len += 1;
        if queue.len == 1 {
            (&self.signal).write_all(&[1]).unwrap();
        }
    }
}

/// The socket of one node.
struct RingSocket {
    node: u8,
    rings: Arc<[Ring]>,
}

impl Network for RingSocket {
    /// Like GRO, joins datagrams of one sender and size to one run, of which the last may be shorter.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        let ring = &self.rings[usize::from(self.node)];
        let mut queue = ring.queue.lock().unwrap();
        let (mut offset, mut run_goes_on) = (0, false);
        for _ in 0..queue.len.min(RECEIVE) {
            let slot = &queue.slots[queue.first];
            slab[offset..offset + slot.len].copy_from_slice(&slot.bytes[..slot.len]);
            let from = Endpoint {
                remote: outer(slot.from),
                local: Some(LocalAddr { ip: outer(self.node).ip(), interface: 0, bound: false }),
                local_port: 51_820,
            };
            let len = slot.len;
            match out.last_mut() {
                Some(Received { from: last, segments, .. }) if run_goes_on && *last == from && len <= segments.len => {
                    segments.count += 1;
                    segments.last_len = len;
                    run_goes_on = len == segments.len;
                }
                _ => {
                    let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
                    out.push(Received { from, segments, ecn: 0 });
                    run_goes_on = true;
                }
            }
            offset += len;
            queue.first = (queue.first + 1) % RING;
            queue.len -= 1;
            if queue.len == 0 {
                (&ring.arrived).read_exact(&mut [0]).unwrap();
            }
        }
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let mut sent = 0;
        for Transmit { to, segments, .. } in batch {
            let SocketAddr::V4(to) = to.remote else { panic!("{to:?} is the address of no node") };
            for piece in segments.pieces() {
                let datagram = &slab[piece.offset..piece.offset + piece.len];
                self.rings[usize::from(to.ip().octets()[3])].push(self.node, datagram);
                sent += 1;
            }
        }
        Sent { sent, ..Sent::default() }
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        (n == 0).then(|| self.rings[usize::from(self.node)].arrived.as_fd())
    }

    fn recv_slab_len(&self) -> usize {
        RECEIVE * LONGEST
    }
}

/// Connects a device with the rings.
struct RingBinder {
    node: u8,
    rings: Arc<[Ring]>,
}

impl Binder for RingBinder {
    fn bind(&mut self, _options: &UdpOptions, _workers: usize) -> io::Result<Bound> {
        let socket = || RingSocket { node: self.node, rings: Arc::clone(&self.rings) };
        Ok(Bound::new(vec![socket()], vec![socket()], 51_820))
    }
}
