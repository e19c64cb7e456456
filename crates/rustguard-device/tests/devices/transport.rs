//! A transport of the embedder's own beside UDP: used while UDP is blocked, in reserve while it is not, and never
//! announced to peers.

use super::support::{LONG, Node, at, inner, key, packet, secret};
use rustguard_device::{
    Binder, Bound, Builder, DropReason, EndpointSpec, Event, MemoryBinder, PeerStatus, PeerUpdate, Transport,
    TransportAddress, TransportEnd, Update, Way, WithTransport,
};
use rustguard_tun::{Network, Received, Sent, Transmit, memory::MemoryNet, udp::UdpOptions};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// The address of the other device, on either side.
const OWN: TransportAddress = TransportAddress::new(7);

/// UDP in memory that can be blocked: all datagrams are then lost.
#[derive(Clone, Default)]
struct Firewall(Arc<AtomicBool>);

struct BehindFirewall<T> {
    inner: T,
    firewall: Firewall,
}

impl Binder for BehindFirewall<MemoryBinder> {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let bound = self.inner.bind(options, workers)?;
        let behind = |sockets: Vec<Box<dyn Network>>| {
            sockets.into_iter().map(|inner| BehindFirewall { inner, firewall: self.firewall.clone() })
        };
        Ok(Bound::new(behind(bound.workers), behind(bound.control), bound.port))
    }
}

impl<N: Network> Network for BehindFirewall<N> {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.inner.recv(slab, out)
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        if self.firewall.0.load(Relaxed) {
            let sent = batch.iter().map(|transmit| transmit.segments.count).sum();
            return Sent { sent, ..Sent::default() };
        }
        self.inner.send(slab, batch)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.inner.fd(n)
    }

    fn recv_slab_len(&self) -> usize {
        self.inner.recv_slab_len()
    }
}

impl Firewall {
    fn start(&self, net: &MemoryNet, n: u8, builder: Builder) -> (Node, TransportEnd) {
        let (transport, end) = Transport::new().unwrap();
        let udp = BehindFirewall { inner: MemoryBinder::new(net.clone(), at(n)), firewall: self.clone() };
        (Node::start_on(WithTransport::new(udp, transport), n, builder), end)
    }
}

/// Carries datagrams between the ends of two devices' transports.
fn carry(one: TransportEnd, two: TransportEnd) {
    let (one, two) = (Arc::new(one), Arc::new(two));
    for (from, to) in [(one.clone(), two.clone()), (two, one)] {
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_535];
            while let Ok((number, len)) = from.recv(&mut buffer).await {
                assert_eq!(number, OWN);
                to.send(OWN, &buffer[..len]).await.unwrap();
            }
        });
    }
}

fn peer(n: u8) -> PeerUpdate {
    PeerUpdate::new(key(n)).allowed_ip(IpAddr::from(inner(n)))
}

async fn knows(node: &Node, peer: PeerUpdate) {
    node.device.update(Update::new().peer(peer)).await.unwrap();
}

async fn status(node: &Node, n: u8) -> PeerStatus {
    let peers = node.device.status().await.unwrap().peers;
    peers.into_iter().find(|peer| peer.public_key == key(n)).unwrap()
}

/// Sends packets between two nodes until each node reaches the other by this way.
async fn until(one: &Node, two: &Node, ways: [Way; 2]) {
    let are = async {
        loop {
            let now = [status(one, two.n).await.way(), status(two, one.n).await.way()];
            if now == ways.map(Some) {
                return;
            }
            for (from, to) in [(one, two), (two, one)] {
                from.host.send(&packet(from.n, to.n, &[0; 100])).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(LONG, are).await.is_err() {
        panic!("{ways:?}: {:#?} {:#?}", status(one, two.n).await, status(two, one.n).await);
    }
}

/// Checks that a packet arrives, after the earlier packets that `until` has sent.
async fn carries(from: &Node, to: &Node, payload: &'static [u8]) {
    let sent = packet(from.n, to.n, payload);
    from.host.send(&sent).unwrap();
    to.host.set_timeout(Some(Duration::from_millis(1))).unwrap();
    let arrives = async {
        let mut buffer = [0; 2_000];
        loop {
            match to.host.recv(&mut buffer) {
                Ok(len) if buffer[..len] == sent => return,
                // The tasks that carry datagrams run on this thread.
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    tokio::time::timeout(LONG, arrives).await.expect("the packet arrives");
}

#[tokio::test]
async fn a_transport_carries_what_udp_does_not_and_is_in_reserve_otherwise() {
    let (net, firewall) = (MemoryNet::default(), Firewall::default());
    let (one, end_of_one) = firewall.start(&net, 1, Builder::default());
    let (two, end_of_two) = firewall.start(&net, 2, Builder::default());
    carry(end_of_one, end_of_two);
    let mut events = one.device.events();
    knows(&two, peer(1)).await;
    knows(&one, peer(2).endpoint(at(2)).endpoint(OWN)).await;
    let udp = [Way::Direct(at(2)), Way::Direct(at(1))];
    let own = [Way::Transport(OWN); 2];
    until(&one, &two, udp).await;

    firewall.0.store(true, Relaxed);
    until(&one, &two, own).await;
    carries(&one, &two, b"by the transport").await;
    carries(&two, &one, b"and back").await;
    let path = status(&one, 2).await.paths.into_iter().find(|path| path.active).unwrap();
    assert_eq!(path.endpoint, Some(OWN.into()));
    assert!(path.round_trip.is_some(), "it is measured");

    firewall.0.store(false, Relaxed);
    until(&one, &two, udp).await;
    carries(&one, &two, b"by UDP").await;
    let told = async {
        // There may be other events before: at the start, either way can be the first that answers.
        for expected in [(Some(udp[0]), own[0]), (Some(own[0]), udp[0])] {
            loop {
                if let Event::WayChanged { before, now, .. } = events.recv().await.unwrap()
                    && (before, now) == expected
                {
                    break;
                }
            }
        }
    };
    tokio::time::timeout(LONG, told).await.expect("the events");
    one.has_dropped(DropReason::SendFailed, 0).await;
}

#[tokio::test]
async fn direct_ways_are_found_by_a_transport_which_is_told_to_nobody() {
    let (net, firewall) = (MemoryNet::default(), Firewall::default());
    let mut trap = net.bind(OWN.into()).unwrap();
    let start = |n: u8| {
        let public = [at(n), OWN.into()].map(EndpointSpec::Address);
        firewall.start(&net, n, Builder::default().public_endpoints(public))
    };
    let ((one, end_of_one), (two, end_of_two)) = (start(1), start(2));
    carry(end_of_one, end_of_two);
    knows(&two, peer(1).direct(true)).await;
    knows(&one, peer(2).direct(true).endpoint(OWN)).await;
    until(&one, &two, [Way::Direct(at(2)), Way::Direct(at(1))]).await;
    let found = |peer: PeerStatus| peer.paths.into_iter().filter(|path| path.found).filter_map(|path| path.endpoint);
    assert_eq!(found(status(&one, 2).await).collect::<Vec<SocketAddr>>(), [at(2)]);
    let (mut slab, mut received) = (vec![0; trap.recv_slab_len()], Vec::new());
    trap.recv(&mut slab, &mut received).unwrap();
    assert!(received.is_empty(), "{} datagrams", received.len());
}

#[tokio::test]
async fn a_relay_is_reached_by_a_transport() {
    let (net, firewall) = (MemoryNet::default(), Firewall::default());
    let (one, end_of_one) = firewall.start(&net, 1, Builder::default().mtu(1_360));
    let (relay, end_of_relay) = firewall.start(&net, 2, Builder::default().mtu(1_360).forward(true));
    carry(end_of_one, end_of_relay);
    let three = Node::start(&net, 3, Builder::default().mtu(1_360));
    knows(&relay, peer(1)).await;
    knows(&relay, peer(3).endpoint(at(3))).await;
    knows(&three, peer(2).endpoint(at(2))).await;
    knows(&three, peer(1)).await;
    knows(&one, peer(2).endpoint(OWN)).await;
    knows(&one, peer(3).endpoint(EndpointSpec::Peer(key(2)))).await;
    carries(&one, &three, b"through the relay").await;
    carries(&three, &one, b"and back").await;
    assert_eq!(status(&one, 2).await.way(), Some(Way::Transport(OWN)));
    assert_eq!(status(&one, 3).await.way(), Some(Way::Relayed(key(2))));
    assert!(relay.device.status().await.unwrap().forwarded > 0);
}

#[cfg(feature = "kernel")]
#[test]
fn a_kernel_interface_has_a_transport_beside_udp() {
    // The device's threads and interface are in the network namespace of this thread.
    let thread = std::thread::spawn(|| {
        if let Err(error) = rustguard_tun::namespace::enter_network() {
            // Not eprintln!, which the test harness captures.
            let line = format!("skipped: a transport beside a kernel interface: no network namespace ({error})\n");
            io::Write::write_all(&mut io::stderr(), line.as_bytes()).unwrap();
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (transport, end) = Transport::new().unwrap();
            let builder = Builder::default().private_key(secret(1)).greet(true).peer(peer(2).endpoint(OWN));
            let device = builder.start_with_transport("rg-transport", transport).unwrap();
            let up = std::process::Command::new("ip").args(["link", "set", "rg-transport", "up"]).status();
            assert!(up.expect("iproute2").success());
            let mut buffer = [0; 2_000];
            let received = tokio::time::timeout(LONG, end.recv(&mut buffer)).await.expect("an initiation");
            assert_eq!(received.unwrap(), (OWN, 148));
            device.shutdown().await;
            let ended = async { while end.recv(&mut buffer).await.is_ok() {} };
            tokio::time::timeout(LONG, ended).await.expect("the program hears of the device's end");
            assert_eq!(end.send(OWN, b"late").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    });
    thread.join().unwrap();
}
