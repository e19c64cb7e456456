//! The control thread divides its time between peers: one peer keeps the routing engine busy, but another peer still
//! completes its handshake. The test carries the datagrams of both peers, and controls when the engine finishes each
//! packet.

use super::support::{ENGINE, LONG, Node, Peer, Socket, at, inner, ipv4, key};
use rustguard_core::time::Instant;
use rustguard_device::{
    Device, PeerUpdate,
    routing::{Action, Event, RoutingEngine},
};
use rustguard_tun::memory::MemoryNet;
use std::{sync::mpsc, time::Instant as Clock};

/// An engine that reports when it begins with a packet, and finishes the packet when the test permits it.
struct Gated {
    begun: mpsc::Sender<()>,
    may_end: mpsc::Receiver<()>,
}

impl RoutingEngine for Gated {
    fn handle(&mut self, event: Event<'_>, _: Instant, _: &mut Vec<Action>) {
        if let Event::Packet { .. } = event {
            // A closed channel means that the test is over.
            let _ = self.begun.send(());
            let _ = self.may_end.recv();
        }
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&ENGINE))
    }
}

/// Device 2, and sockets at the addresses of its peers 1 and 3.
struct Lab {
    // Dropped before the device, which waits for its engine.
    begun: mpsc::Receiver<()>,
    may_end: mpsc::Sender<()>,
    _node: Node,
    sockets: [Socket; 2],
}

impl Lab {
    fn new() -> Self {
        let net = MemoryNet::default();
        let sockets = [1, 3].map(|n| Socket::bind(&net, at(n)));
        let ((begun, begun_out), (may_end_in, may_end)) = (mpsc::channel(), mpsc::channel());
        let builder = Device::builder().routing(Gated { begun, may_end });
        let builder = [1, 3].into_iter().fold(builder, |builder, n| {
            let allowed: ipnet::IpNet = "10.0.0.0/24".parse().unwrap();
            builder.peer(PeerUpdate::new(key(n)).allowed_ip(allowed).endpoint(at(n)))
        });
        Self { begun: begun_out, may_end: may_end_in, _node: Node::start(&net, 2, builder), sockets }
    }

    /// Waits until the engine has begun with one more packet.
    fn until_begun(&self) {
        self.begun.recv_timeout(LONG).expect("the engine gets a packet");
    }
}

/// A packet of peer `from` for the engine of device 2.
fn engine_packet(from: u8) -> Vec<u8> {
    ipv4(inner(from), inner(2), ENGINE, &[])
}

#[test]
fn a_handshake_waits_for_no_queue_of_the_engine() {
    const BEFORE: usize = 20;
    let mut lab = Lab::new();
    let mut router = Peer::new(1);
    for initiation in router.sends(&engine_packet(1)) {
        lab.sockets[0].send(&initiation);
    }
    let started = Clock::now();
    let response = loop {
        assert!(started.elapsed() < LONG, "no session");
        if let Some(response) = lab.sockets[0].arrived().pop() {
            break response;
        }
        std::thread::yield_now();
    };
    router.takes(response).unwrap();
    let mut packets = router.outgoing();
    packets.extend((0..250).flat_map(|_| router.sends(&engine_packet(1))));
    let initiation = Peer::new(3).sends(&engine_packet(3)).remove(0);
    for (n, packet) in packets.iter().enumerate() {
        if n == BEFORE {
            lab.sockets[1].send(&initiation);
        }
        lab.sockets[0].send(packet);
    }
    // One worker has one queue for both peers. So when the packet behind the initiation has reached the control thread,
    // the initiation has reached it too.
    for _ in 0..=BEFORE {
        lab.until_begun();
        lab.may_end.send(()).unwrap();
    }
    // One round of the control thread may contain this many packets for the engine.
    for _ in 0..4 {
        lab.until_begun();
        lab.may_end.send(()).unwrap();
    }
    lab.until_begun();
    let answers = lab.sockets[1].arrived();
    assert!(answers.iter().any(|answer| answer[0] == 2), "no response among {} datagrams", answers.len());
}
