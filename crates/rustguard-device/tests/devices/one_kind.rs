//! A device gets as much of one kind of input as it takes, from a peer, from its host or from a stranger: a newcomer completes its
//! handshake meanwhile, and its first packet arrives.
//!
//! The network is in memory and loses what its queue of 500 cannot hold, as a socket does. So the newcomer repeats what is
//! lost, and the test fails if nothing of that gets through for twenty seconds. Probes are held back before they come to control
//! (`worker/rx/tests/probes.rs`), handshakes of strangers are in `drops.rs`.

use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{
    Datagrams, Device, DropReason, MemoryBinder, PeerUpdate,
    routing::{Action, Event, RoutingEngine},
};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{self, MemoryHost, MemoryNet, MemorySocket},
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant as Clock},
};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);
/// How often the newcomer repeats what may be lost: less often than anybody is limited to.
const AGAIN: Duration = Duration::from_millis(100);
/// The protocols (RFC 3692) of the engine's own packets, and of others.
const ENGINE: u8 = 254;
const OTHER: u8 = 253;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A router's packets for the routing engine.
    Engine,
    /// A peer's packets, each from another port than the one before.
    Roaming,
    /// The host's packets for a peer that never answers.
    Staging,
    /// A stranger's datagrams of another protocol on the port.
    Protocol,
}

fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51_820))
}

fn key(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

fn packet(from: u8, to: u8, protocol: u8) -> Vec<u8> {
    vec![0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, to]
}

/// Tells who has sent it something.
struct Listens(mpsc::Sender<u8>);

impl RoutingEngine for Listens {
    fn handle(&mut self, event: Event<'_>, _: Instant, _: &mut Vec<Action>) {
        if let Event::Packet { packet, .. } = event {
            // The test is over when there is no other end.
            let _ = self.0.send(packet[15]);
        }
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&ENGINE))
    }
}

/// A device with the key and number 2, its peers 1 and 3, and a silent one, 9.
struct Lab {
    kind: Kind,
    net: MemoryNet,
    device: Device,
    host: Arc<MemoryHost>,
    engine: mpsc::Receiver<u8>,
    /// Nobody takes them.
    _datagrams: Datagrams,
}

impl Lab {
    fn new(kind: Kind) -> Self {
        let net = MemoryNet::default();
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(Duration::ZERO)).unwrap();
        let (builder, datagrams) = Device::builder().datagrams(|datagram| datagram.first() == Some(&b'x'), 16);
        let mut builder = builder.private_key(key(2));
        for n in [1, 3, 9] {
            let allowed: ipnet::IpNet = format!("10.0.0.{n}/32").parse().unwrap();
            builder = builder.peer(PeerUpdate::new(key(n).public_key()).allowed_ip(allowed).endpoint(at(n)));
        }
        let (told, engine) = mpsc::channel();
        if kind == Kind::Engine {
            builder = builder.routing(Listens(told));
        }
        let device = builder.start_with(tun, MemoryBinder::new(net.clone(), at(2))).unwrap();
        Self { kind, net, device, host: Arc::new(host), engine, _datagrams: datagrams }
    }

    /// What a peer sends that is to arrive, in this laboratory.
    fn packet_of(&self, n: u8) -> Vec<u8> {
        packet(n, 2, if self.kind == Kind::Engine { ENGINE } else { OTHER })
    }

    /// Whether something from the newcomer has arrived; takes what is there.
    fn has_arrived(&self) -> bool {
        let mut buffer = [0; 2_048];
        let mut sources: Vec<u8> = self.engine.try_iter().collect();
        while self.host.recv(&mut buffer).is_ok() {
            sources.push(buffer[15]);
        }
        sources.contains(&3)
    }

    /// How much of the flood the device has taken for one.
    async fn flooded(&self) -> u64 {
        let status = self.device.status().await.unwrap();
        let dropped = |reason| status.dropped(reason);
        match self.kind {
            Kind::Engine => dropped(DropReason::EngineLimit),
            // All are good, and 64 bytes long.
            Kind::Roaming => status.peers.iter().map(|peer| peer.rx_bytes / 64).sum(),
            Kind::Staging => dropped(DropReason::StagingFull),
            Kind::Protocol => dropped(DropReason::DatagramQueueFull),
        }
    }

    /// Floods until told to end.
    fn flood(&self, mut peer: Peer, end: Arc<AtomicBool>) -> JoinHandle<u64> {
        let (kind, host, data) = (self.kind, self.host.clone(), self.packet_of(1));
        let mut elsewhere = self.net.bind(at(11)).unwrap();
        thread::spawn(move || {
            let mut sent = 0;
            while !end.load(Ordering::Relaxed) {
                match kind {
                    Kind::Engine => peer.sends(&data).iter().for_each(|datagram| send(&mut peer.socket, datagram)),
                    Kind::Roaming => {
                        for (n, datagram) in peer.sends(&data).iter().enumerate() {
                            let odd = (sent + n as u64) % 2 == 1;
                            send(if odd { &mut elsewhere } else { &mut peer.socket }, datagram);
                        }
                    }
                    // A full queue takes no more: the host's flood is as fast as it is read.
                    Kind::Staging => drop(host.send(&packet(2, 9, OTHER))),
                    Kind::Protocol => send(&mut elsewhere, b"x"),
                }
                sent += 1;
            }
            sent
        })
    }
}

/// The protocol in the test's hand, with the key `n`.
struct Peer {
    tunnel: Tunnel,
    now: Now,
    socket: MemorySocket,
    slab: Vec<u8>,
}

impl Peer {
    fn new(lab: &Lab, n: u8) -> Self {
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1 << 30) };
        let mut tunnel = Tunnel::new(1_420, now, &mut rand::rng());
        tunnel.set_private_key(Some(key(n)), now, &mut rand::rng());
        let other = PeerConfig::new(key(2).public_key());
        tunnel.add_peer(other, Some(at(2)), &["0.0.0.0/0".parse().unwrap()], now, &mut rand::rng()).unwrap();
        let socket = lab.net.bind(at(n)).unwrap();
        let slab = vec![0; socket.recv_slab_len()];
        Self { tunnel, now, socket, slab }
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

    /// Takes what has come; what is to be said to it.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        self.socket.recv(&mut self.slab, &mut received).unwrap();
        for span in received.iter().flat_map(|received| received.segments.pieces()) {
            let datagram = &mut self.slab[span.offset..span.offset + span.len];
            // A second response to one initiation is refused.
            let _ = self.tunnel.receive(at(2), datagram, self.now, &mut rand::rng());
        }
        self.outgoing()
    }

    /// Sends the initiation, again and again, until a response makes a session of it.
    fn shakes_hands(&mut self, packet: &[u8]) {
        let initiation = self.sends(packet);
        let (started, mut due) = (Clock::now(), Duration::ZERO);
        loop {
            if started.elapsed() >= due {
                initiation.iter().for_each(|datagram| send(&mut self.socket, datagram));
                due += AGAIN;
            }
            let first = self.answers();
            if !first.is_empty() {
                first.iter().for_each(|datagram| send(&mut self.socket, datagram));
                return;
            }
            assert!(started.elapsed() < LONG, "the handshake starves");
            thread::yield_now();
        }
    }
}

fn send(socket: &mut MemorySocket, datagram: &[u8]) {
    let len = datagram.len();
    let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
    socket.send(datagram, &[Transmit { to: Endpoint { remote: at(2), local: None }, segments, ds: 0 }]);
}

async fn keeps_nobody_out(kind: Kind) {
    let lab = Lab::new(kind);
    let mut flooder = Peer::new(&lab, 1);
    flooder.shakes_hands(&lab.packet_of(1));
    let end = Arc::new(AtomicBool::new(false));
    let flood = lab.flood(flooder, end.clone());
    let arrives = async {
        while lab.flooded().await < 1_000 {
            lab.has_arrived();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, arrives).await.expect("the flood arrives");

    let mut newcomer = Peer::new(&lab, 3);
    let packet = lab.packet_of(3);
    newcomer.shakes_hands(&packet);
    let (started, mut due) = (Clock::now(), AGAIN);
    while !lab.has_arrived() {
        assert!(started.elapsed() < LONG, "the newcomer's packets starve");
        if started.elapsed() >= due {
            newcomer.sends(&packet).iter().for_each(|datagram| send(&mut newcomer.socket, datagram));
            due += AGAIN;
        }
        thread::yield_now();
    }
    end.store(true, Ordering::Relaxed);
    let sent = flood.join().unwrap();
    println!("{kind:?}: {sent} sent, {} taken for a flood", lab.flooded().await);
}

#[tokio::test]
async fn packets_for_the_engine_keep_nobody_out() {
    keeps_nobody_out(Kind::Engine).await;
}

#[tokio::test]
async fn a_peer_that_is_always_elsewhere_keeps_nobody_out() {
    keeps_nobody_out(Kind::Roaming).await;
}

#[tokio::test]
async fn packets_for_a_peer_that_never_answers_keep_nobody_out() {
    keeps_nobody_out(Kind::Staging).await;
}

#[tokio::test]
async fn another_protocol_on_the_port_keeps_nobody_out() {
    keeps_nobody_out(Kind::Protocol).await;
}
