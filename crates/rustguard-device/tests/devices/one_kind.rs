//! A device is flooded with one kind of input, from a peer, from its host or from a stranger. Meanwhile a new peer
//! completes its handshake, and its first packet arrives.
//!
//! The network is in memory. Like a real socket it loses datagrams when its queue (500 datagrams) is full. So the new
//! peer repeats lost datagrams, and the test fails if no repetition arrives in twenty seconds. Two related tests are
//! elsewhere: probes are dropped before they reach the control thread (`worker/rx/tests/probes.rs`), and `drops` has
//! the handshakes of strangers.

use super::support::{ENGINE, EXPERIMENT, LONG, Node, Peer, Socket, at, inner, ipv4, key};
use rustguard_core::time::Instant;
use rustguard_device::{
    Datagrams, Device, DropReason, PeerUpdate,
    routing::{Action, Event, RoutingEngine},
};
use rustguard_tun::memory::MemoryNet;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant as Clock},
};

/// The interval at which the newcomer repeats datagrams that may be lost. No rate limit of the device is lower.
const AGAIN: Duration = Duration::from_millis(100);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A router's packets for the routing engine.
    Engine,
    /// A peer's packets, each from another port than the previous one.
    Roaming,
    /// The host's packets for a peer that never answers.
    Staging,
    /// A stranger's datagrams of another protocol on the port.
    Protocol,
}

/// An engine that reports the last byte of the sources of its packets.
struct Listens(mpsc::Sender<u8>);

impl RoutingEngine for Listens {
    fn handle(&mut self, event: Event<'_>, _: Instant, _: &mut Vec<Action>) {
        if let Event::Packet { packet, .. } = event {
            // A closed channel means that the test is over.
            let _ = self.0.send(packet[15]);
        }
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&ENGINE))
    }
}

/// Device 2 with its peers 1 and 3, and the silent peer 9.
struct Lab {
    kind: Kind,
    net: MemoryNet,
    node: Arc<Node>,
    engine: mpsc::Receiver<u8>,
    /// Never read, so that the queue of the other protocol fills up.
    _datagrams: Datagrams,
}

impl Lab {
    fn new(kind: Kind) -> Self {
        let net = MemoryNet::default();
        let (mut builder, datagrams) = Device::builder().datagrams(|datagram| datagram.first() == Some(&b'x'), 16);
        for n in [1, 3, 9] {
            let allowed = ipnet::Ipv4Net::from(inner(n));
            builder = builder.peer(PeerUpdate::new(key(n)).allowed_ip(allowed).endpoint(at(n)));
        }
        let (told, engine) = mpsc::channel();
        if kind == Kind::Engine {
            builder = builder.routing(Listens(told));
        }
        let node = Node::start(&net, 2, builder);
        node.host.set_timeout(Some(Duration::ZERO)).unwrap();
        Self { kind, net, node: Arc::new(node), engine, _datagrams: datagrams }
    }

    /// A packet of peer `n` that the device delivers, to the engine or to the host.
    fn packet_of(&self, n: u8) -> Vec<u8> {
        ipv4(inner(n), inner(2), if self.kind == Kind::Engine { ENGINE } else { EXPERIMENT }, &[])
    }

    /// Takes all packets that have arrived, and returns whether one is from the newcomer.
    fn has_arrived(&self) -> bool {
        let mut buffer = [0; 2_048];
        let mut sources: Vec<u8> = self.engine.try_iter().collect();
        while self.node.host.recv(&mut buffer).is_ok() {
            sources.push(buffer[15]);
        }
        sources.contains(&3)
    }

    /// The number of packets of the flood that the device has handled.
    async fn flooded(&self) -> u64 {
        let status = self.node.device.status().await.unwrap();
        let dropped = |reason| status.dropped(reason);
        match self.kind {
            Kind::Engine => dropped(DropReason::EngineLimit),
            // All these packets are accepted, and are 64 bytes long.
            Kind::Roaming => status.peers.iter().map(|peer| peer.rx_bytes / 64).sum(),
            Kind::Staging => dropped(DropReason::StagingFull),
            Kind::Protocol => dropped(DropReason::DatagramQueueFull),
        }
    }

    /// Floods the device until `end` is set. Returns the number of packets of the flood.
    fn flood(&self, mut peer: Remote, end: Arc<AtomicBool>) -> JoinHandle<u64> {
        let (kind, node, data) = (self.kind, Arc::clone(&self.node), self.packet_of(1));
        let mut elsewhere = Socket::bind(&self.net, at(11));
        thread::spawn(move || {
            let mut sent = 0;
            while !end.load(Ordering::Relaxed) {
                match kind {
                    Kind::Engine => peer.sends(&data),
                    Kind::Roaming => {
                        for (n, datagram) in peer.peer.sends(&data).iter().enumerate() {
                            let odd = (sent + n as u64) % 2 == 1;
                            if odd { &mut elsewhere } else { &mut peer.socket }.send(datagram);
                        }
                    }
                    // Waits while the queue is full: the host's flood is as fast as the device reads it.
                    Kind::Staging => drop(node.host.send(&ipv4(inner(2), inner(9), EXPERIMENT, &[]))),
                    Kind::Protocol => elsewhere.send(b"x"),
                }
                sent += 1;
            }
            sent
        })
    }
}

/// A peer at its socket.
struct Remote {
    peer: Peer,
    socket: Socket,
}

impl Remote {
    fn new(lab: &Lab, n: u8) -> Self {
        Self { peer: Peer::new(n), socket: Socket::bind(&lab.net, at(n)) }
    }

    fn sends(&mut self, packet: &[u8]) {
        self.peer.sends(packet).iter().for_each(|datagram| self.socket.send(datagram));
    }

    /// Repeats an initiation until a response completes the session and `packet` is sent.
    fn shakes_hands(&mut self, packet: &[u8]) {
        let initiation = self.peer.sends(packet);
        let (started, mut due) = (Clock::now(), Duration::ZERO);
        loop {
            if started.elapsed() >= due {
                initiation.iter().for_each(|datagram| self.socket.send(datagram));
                due += AGAIN;
            }
            for datagram in self.socket.arrived() {
                // A second response to one initiation is refused.
                let _ = self.peer.takes(datagram);
            }
            let first = self.peer.outgoing();
            if !first.is_empty() {
                first.iter().for_each(|datagram| self.socket.send(datagram));
                return;
            }
            assert!(started.elapsed() < LONG, "the handshake starves");
            thread::yield_now();
        }
    }
}

async fn keeps_nobody_out(kind: Kind) {
    let lab = Lab::new(kind);
    let mut flooder = Remote::new(&lab, 1);
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

    let mut newcomer = Remote::new(&lab, 3);
    let packet = lab.packet_of(3);
    newcomer.shakes_hands(&packet);
    let (started, mut due) = (Clock::now(), AGAIN);
    while !lab.has_arrived() {
        assert!(started.elapsed() < LONG, "the newcomer's packets starve");
        if started.elapsed() >= due {
            newcomer.sends(&packet);
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
