//! Lanes of a session between whole devices. The sockets are in memory, and each claims to be one of two workers'
//! sockets.

use super::support::{LONG, Node, at, inner, key, packet};
use rustguard_device::{Binder, Bound, Device};
use rustguard_tun::{
    Lane, Network, Received, Sent, Transmit,
    memory::{MemoryNet, MemorySocket},
    udp::UdpOptions,
};
use std::{
    io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const PORT: u16 = 99;

/// The datagrams that a device sends from its lane's port.
#[derive(Default)]
struct Seen {
    /// They do not arrive.
    blocked: AtomicBool,
    /// The number of datagrams, and of data packets among them, which are longer than messages about lanes.
    datagrams: AtomicUsize,
    data: AtomicUsize,
}

struct Laned {
    net: MemoryNet,
    address: SocketAddr,
    seen: Arc<Seen>,
}

struct LanedSocket {
    main: MemorySocket,
    lane: MemorySocket,
    seen: Arc<Seen>,
}

impl Binder for Laned {
    fn bind(&mut self, _options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        assert_eq!(workers, 1);
        let (main, lane) = (self.net.bind(self.address)?, self.net.bind(SocketAddr::new(self.address.ip(), PORT))?);
        let clone = || {
            Ok::<_, io::Error>(LanedSocket {
                main: main.try_clone()?,
                lane: lane.try_clone()?,
                seen: Arc::clone(&self.seen),
            })
        };
        Ok(Bound::new(vec![clone()?], vec![clone()?], self.address.port()))
    }
}

impl Network for LanedSocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.main.recv(slab, out)
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let mut all = Sent::default();
        for transmit in batch {
            let by_lane = transmit.to.local_port == PORT;
            if by_lane {
                let segments = transmit.segments;
                self.seen.datagrams.fetch_add(segments.count, Ordering::SeqCst);
                let data = segments.pieces().filter(|piece| piece.len > 48).count();
                self.seen.data.fetch_add(data, Ordering::SeqCst);
                if self.seen.blocked.load(Ordering::SeqCst) {
                    all.sent += segments.count;
                    continue;
                }
            }
            let socket = if by_lane { &mut self.lane } else { &mut self.main };
            let Sent { sent, failed, .. } = socket.send(slab, &[*transmit]);
            (all.sent, all.failed) = (all.sent + sent, all.failed + failed);
        }
        all
    }

    fn lane(&self) -> Option<Lane> {
        Some(Lane { number: 1, port: PORT, workers: 2 })
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.main.fd(n)
    }

    fn recv_slab_len(&self) -> usize {
        self.main.recv_slab_len()
    }
}

/// Two devices that are peers, and their datagrams in lanes.
async fn pair() -> ([Node; 2], [Arc<Seen>; 2]) {
    let net = MemoryNet::default();
    let seen = [Arc::<Seen>::default(), Arc::default()];
    let node = |n: u8| {
        let binder = Laned { net: net.clone(), address: at(n), seen: Arc::clone(&seen[usize::from(n - 1)]) };
        Node::start_on(binder, n, Device::builder())
    };
    let nodes = [node(1), node(2)];
    for (n, other) in [(0, 1), (1, 0)] {
        let allowed = ipnet::Ipv4Net::from(inner(nodes[other].n)).into();
        nodes[n].knows(&nodes[other], &[allowed], n == 0).await;
    }
    (nodes, seen)
}

/// Sends streams of packets from the first to the second until `enough` is true. No packet is lost.
async fn stream_until(nodes: &[Node; 2], mut enough: impl AsyncFnMut() -> bool) {
    let stream = async {
        for round in 0_u32.. {
            for n in 0..64_u8 {
                nodes[0].host.send(&packet(1, 2, &[&round.to_le_bytes()[..], &[n; 100]].concat())).unwrap();
            }
            let mut heard: Vec<_> = (0..64).map(|_| nodes[1].next()[24]).collect();
            heard.sort_unstable();
            assert_eq!(heard, (0..64).collect::<Vec<_>>());
            if enough().await {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, stream).await.expect("it becomes so");
}

async fn lanes(node: &Node) -> u8 {
    node.device.status().await.unwrap().peers[0].lanes
}

#[tokio::test]
async fn a_stream_gets_lanes_which_move_no_endpoint_and_lose_nothing() {
    let (nodes, seen) = pair().await;
    stream_until(&nodes, async || lanes(&nodes[0]).await == 1).await;
    stream_until(&nodes, async || seen[0].data.load(Ordering::SeqCst) >= 1_000).await;
    // The second device has sent no stream, but it was asked for lanes.
    stream_until(&nodes, async || lanes(&nodes[1]).await == 1).await;
    let status = nodes[1].device.status().await.unwrap();
    assert_eq!(status.peers[0].endpoint, Some(at(1)));
    assert_eq!(status.peers[0].public_key, key(1));
}

#[tokio::test]
async fn what_does_not_arrive_by_lanes_goes_without() {
    let (nodes, seen) = pair().await;
    seen[0].blocked.store(true, Ordering::SeqCst);
    stream_until(&nodes, async || seen[0].datagrams.load(Ordering::SeqCst) > 0).await;
    for _ in 0..10 {
        stream_until(&nodes, async || true).await;
    }
    assert_eq!((lanes(&nodes[0]).await, seen[0].data.load(Ordering::SeqCst)), (0, 0));
}
