//! Control's work is shared out: one peer keeps the routing engine busy, and another one has its handshake nevertheless. The test
//! holds both peers' datagrams in its hands, and lets the engine go on one packet at a time.

use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{
    Device, MemoryBinder, PeerUpdate,
    routing::{Action, Event, RoutingEngine},
};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{self, MemoryHost, MemoryNet, MemorySocket},
};
use std::{
    net::SocketAddr,
    sync::mpsc,
    time::{Duration, Instant as Clock},
};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);
/// The protocol (RFC 3692) of the engine's own packets.
const OWN: u8 = 254;

fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51820))
}

fn key(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

/// An engine that says when it begins with a packet, and ends with it when it may.
struct Gated {
    begun: mpsc::Sender<()>,
    may_end: mpsc::Receiver<()>,
}

impl RoutingEngine for Gated {
    fn handle(&mut self, event: Event<'_>, _: Instant, _: &mut Vec<Action>) {
        if let Event::Packet { .. } = event {
            // The test is over when there is no other end.
            let _ = self.begun.send(());
            let _ = self.may_end.recv();
        }
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&OWN))
    }
}

/// A device with the key 2, and sockets in the places of its peers 1 and 3.
struct Lab {
    // Dropped before the device, which waits for its engine.
    begun: mpsc::Receiver<()>,
    may_end: mpsc::Sender<()>,
    _device: Device,
    _host: MemoryHost,
    sockets: [MemorySocket; 2],
    slab: Vec<u8>,
}

impl Lab {
    fn new() -> Self {
        let net = MemoryNet::default();
        let (tun, host) = memory::tun().unwrap();
        let sockets = [1, 3].map(|n| net.bind(at(n)).unwrap());
        let slab = vec![0; sockets[0].recv_slab_len()];
        let ((begun, begun_out), (may_end_in, may_end)) = (mpsc::channel(), mpsc::channel());
        let peers = [1, 3].map(|n| {
            let allowed: ipnet::IpNet = "10.0.0.0/24".parse().unwrap();
            PeerUpdate::new(key(n).public_key()).allowed_ip(allowed).endpoint(at(n))
        });
        let binder = MemoryBinder::new(net, at(2));
        let device = Device::builder().private_key(key(2)).routing(Gated { begun, may_end });
        let device = peers.into_iter().fold(device, |device, peer| device.peer(peer)).start_with(tun, binder).unwrap();
        Self { begun: begun_out, may_end: may_end_in, _device: device, _host: host, sockets, slab }
    }

    fn send(&mut self, from: usize, datagram: &[u8]) {
        let len = datagram.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        self.sockets[from].send(datagram, &[Transmit { to: Endpoint { remote: at(2), local: None }, segments, ds: 0 }]);
    }

    /// What has come there.
    fn arrived(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        self.sockets[at].recv(&mut self.slab, &mut received).unwrap();
        let spans = received.iter().flat_map(|received| received.segments.pieces());
        spans.map(|span| self.slab[span.offset..span.offset + span.len].to_vec()).collect()
    }

    /// The engine has begun with one more packet.
    fn until_begun(&self) {
        self.begun.recv_timeout(LONG).expect("the engine gets a packet");
    }
}

/// The protocol in the test's hand.
struct Peer {
    tunnel: Tunnel,
    now: Now,
}

impl Peer {
    fn new(n: u8) -> Self {
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1 << 30) };
        let mut tunnel = Tunnel::new(1_420, now, &mut rand::rng());
        tunnel.set_private_key(Some(key(n)), now, &mut rand::rng());
        let other = PeerConfig::new(key(2).public_key());
        tunnel.add_peer(other, Some(at(2)), &["0.0.0.0/0".parse().unwrap()], now, &mut rand::rng()).unwrap();
        Self { tunnel, now }
    }

    fn outgoing(&mut self) -> Vec<Vec<u8>> {
        let outputs = std::iter::from_fn(|| self.tunnel.poll());
        outputs
            .filter_map(|out| if let Output::Transmit { datagram, .. } = out { Some(datagram) } else { None })
            .collect()
    }

    fn sends(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut buffer = [&[0; HEADROOM][..], packet, &[0; TAILROOM]].concat();
        let sealed = self.tunnel.send(&mut buffer, packet.len(), self.now, &mut rand::rng()).unwrap();
        let mut datagrams: Vec<_> = sealed.map(|sealed| sealed.datagram.to_vec()).into_iter().collect();
        datagrams.extend(self.outgoing());
        datagrams
    }
}

fn engine_packet(from: u8) -> Vec<u8> {
    vec![0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, OWN, 0, 0, 10, 0, 0, from, 10, 0, 0, 2]
}

#[test]
fn a_handshake_waits_for_no_queue_of_the_engine() {
    const BEFORE: usize = 20;
    let mut lab = Lab::new();
    let mut router = Peer::new(1);
    for initiation in router.sends(&engine_packet(1)) {
        lab.send(0, &initiation);
    }
    let started = Clock::now();
    let mut response = loop {
        assert!(started.elapsed() < LONG, "no session");
        if let Some(response) = lab.arrived(0).pop() {
            break response;
        }
        std::thread::yield_now();
    };
    router.tunnel.receive(at(2), &mut response, router.now, &mut rand::rng()).unwrap();
    let mut packets = router.outgoing();
    packets.extend((0..250).flat_map(|_| router.sends(&engine_packet(1))));
    let initiation = Peer::new(3).sends(&engine_packet(3)).remove(0);
    for (n, packet) in packets.iter().enumerate() {
        if n == BEFORE {
            lab.send(1, &initiation);
        }
        lab.send(0, packet);
    }
    // One worker has one queue for both: with the packet behind it, the initiation has come to control.
    for _ in 0..=BEFORE {
        lab.until_begun();
        lab.may_end.send(()).unwrap();
    }
    // So many of the engine's packets may be in a round.
    for _ in 0..4 {
        lab.until_begun();
        lab.may_end.send(()).unwrap();
    }
    lab.until_begun();
    let answers = lab.arrived(1);
    assert!(answers.iter().any(|answer| answer[0] == 2), "no response among {} datagrams", answers.len());
}
