//! Sessions through a peer, over in-memory transports: A – R – B. A and B have no addresses of each other.

use super::support::{LONG, Node, at, inner, key, packet};
use rustguard_core::constants::REKEY_TIMEOUT;
use rustguard_device::{
    Builder, Connection, Device, DropReason, EndpointSpec, Event, PeerStatus, PeerUpdate, Relayed, Update, Way,
};
use rustguard_tun::memory::MemoryNet;
use std::time::Duration;

const A: u8 = 1;
const R: u8 = 2;
const B: u8 = 3;

/// The relay R, and nodes A and B on either side.
struct Three {
    net: MemoryNet,
    a: Node,
    r: Node,
    b: Node,
}

fn start(net: &MemoryNet, n: u8) -> Node {
    Node::start(net, n, builder())
}

fn builder() -> Builder {
    Device::builder().mtu(1_360)
}

/// An update that adds node `n`, with its own address as the allowed IP.
fn peer(n: u8) -> PeerUpdate {
    PeerUpdate::new(key(n)).allowed_ip(std::net::IpAddr::from(inner(n)))
}

impl Node {
    async fn has(&self, peer: PeerUpdate) {
        self.device.update(Update::new().peer(peer)).await.unwrap();
    }

    async fn peer(&self, n: u8) -> PeerStatus {
        let status = self.device.status().await.unwrap();
        status.peers.into_iter().find(|peer| peer.public_key == key(n)).unwrap()
    }

    /// Waits until `is` accepts the peer's status.
    async fn until(&self, n: u8, is: impl Fn(&PeerStatus) -> bool) {
        let waited = async {
            while !is(&self.peer(n).await) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(LONG, waited).await.is_ok(), "{:?}", self.peer(n).await);
    }
}

impl Three {
    async fn new(forward: bool) -> Self {
        let net = MemoryNet::default();
        let [a, b] = [A, B].map(|n| start(&net, n));
        let r = Node::start(&net, R, builder().forward(forward));
        for node in [&a, &b] {
            node.has(peer(R).endpoint(at(R))).await;
            r.has(peer(node.n)).await;
        }
        // B learns the way to A from A's first message.
        a.has(peer(B).endpoint(EndpointSpec::Peer(key(R)))).await;
        b.has(peer(A)).await;
        let three = Self { net, a, r, b };
        three.meet(&three.b);
        three
    }

    /// Lets the relay learn this node's address, by a packet.
    fn meet(&self, node: &Node) {
        let hello = packet(node.n, R, b"hello");
        node.host.send(&hello).unwrap();
        assert_eq!(self.r.next(), hello);
    }

    fn carries_both_ways(&self, count: usize) {
        for n in 0..count {
            let (there, back) = (packet(A, B, &[n as u8; 1_000]), packet(B, A, &[n as u8; 900]));
            self.a.host.send(&there).unwrap();
            assert_eq!(self.b.next(), there);
            self.b.host.send(&back).unwrap();
            assert_eq!(self.a.next(), back);
        }
    }

    /// Checks that the relay's host got no packet: its next packet is the one that is sent now.
    fn nothing_reached_the_relay(&self) {
        self.meet(&self.b);
    }
}

#[tokio::test]
async fn a_session_goes_through_a_peer_that_passes_it_on_unread() {
    let three = Three::new(true).await;
    three.carries_both_ways(100);
    three.nothing_reached_the_relay();
    for (node, other) in [(&three.a, B), (&three.b, A)] {
        let status = node.peer(other).await;
        assert_eq!((status.through, status.endpoint), (Some(key(R)), None), "{}", node.n);
        assert_eq!(node.device.status().await.unwrap().drops, []);
    }
    let status = three.r.device.status().await.unwrap();
    assert!(status.forward && status.forwarded >= 202, "{}", status.forwarded);
    assert_eq!((status.relayed, &status.drops[..]), (0, &[][..]), "no packet of theirs was decrypted");
}

/// Members learn of each other by a roster, one a moment before the other. A packet in between does not wait for the
/// node's next initiation.
#[tokio::test]
async fn an_initiation_is_repeated_until_the_peer_knows_who_sends_it() {
    let net = MemoryNet::default();
    let [a, b] = [A, B].map(|n| start(&net, n));
    let r = Node::start(&net, R, builder().forward(true));
    for node in [&a, &b] {
        node.has(peer(R).endpoint(at(R))).await;
        r.has(peer(node.n)).await;
        node.host.send(&packet(node.n, R, b"hello")).unwrap();
        assert_eq!(r.next(), packet(node.n, R, b"hello"));
    }
    let mut events = a.device.events();
    a.has(peer(B).endpoint(EndpointSpec::Peer(key(R)))).await;
    let first = packet(A, B, b"first");
    a.host.send(&first).unwrap();
    b.until_dropped(DropReason::ForwardSender, 1).await;
    b.has(peer(A)).await;
    assert_eq!(b.next(), first);
    let complete = async {
        loop {
            if let Event::HandshakeComplete { peer, took, .. } = events.recv().await.expect("an event")
                && peer == key(B)
            {
                return took;
            }
        }
    };
    let took = tokio::time::timeout(LONG, complete).await.expect("a session");
    assert!(took.is_some_and(|took| took < REKEY_TIMEOUT), "{took:?}: by the next initiation");
}

/// At its start, a member of a large network begins sessions with a few peers only.
#[tokio::test]
async fn few_of_many_peers_behind_a_relay_are_greeted() {
    let net = MemoryNet::default();
    let a = Node::start(&net, A, builder().greet(true));
    let r = Node::start(&net, R, builder().forward(true));
    r.has(peer(A)).await;
    a.has(peer(R).endpoint(at(R))).await;
    let hello = packet(A, R, b"hello");
    a.host.send(&hello).unwrap();
    assert_eq!(r.next(), hello);
    let behind = (10..110).map(|n| peer(n).endpoint(EndpointSpec::Peer(key(R))));
    // Peers are greeted in their order: the last peer's initiation comes after all others.
    a.device.update(Update::new().peers(behind).peer(peer(120).endpoint(at(120)))).await.unwrap();
    a.until(120, |peer| matches!(peer.connection, Connection::Connecting { .. })).await;
    let status = a.device.status().await.unwrap();
    let greeted = status.peers.iter().filter(|peer| matches!(peer.connection, Connection::Connecting { .. }));
    assert_eq!(greeted.count(), 16 + 1);
}

#[tokio::test]
async fn a_peer_that_does_not_forward_drops_and_counts_what_it_should() {
    let three = Three::new(false).await;
    three.a.host.send(&packet(A, B, b"lost")).unwrap();
    three.r.until_dropped(DropReason::ForwardOff, 1).await;
    three.nothing_reached_the_relay();
    assert_eq!(three.b.peer(A).await.handshakes, 0);
    assert!(three.a.peer(B).await.last_handshake.is_none());
    // The relay begins to forward, without a restart.
    three.r.device.update(Update::new().forward(true)).await.unwrap();
    three.a.device.handshake_now().await;
    assert_eq!(three.b.next(), packet(A, B, b"lost"));
    three.carries_both_ways(3);
}

#[tokio::test]
async fn a_relay_that_comes_later_and_goes_again_is_a_way_meanwhile() {
    let net = MemoryNet::default();
    let [a, b] = [A, B].map(|n| start(&net, n));
    let r = Node::start(&net, R, builder().forward(true));
    b.has(peer(R).endpoint(at(R))).await;
    b.has(peer(A)).await;
    r.has(peer(A)).await;
    r.has(peer(B).endpoint(at(B))).await;
    a.has(peer(B).endpoint(EndpointSpec::Peer(key(R)))).await;
    assert_eq!(a.peer(B).await.through, None);
    a.host.send(&packet(A, B, b"waits")).unwrap();
    a.has(peer(R).endpoint(at(R))).await;
    assert_eq!(a.peer(B).await.through, Some(key(R)));
    assert_eq!(b.next(), packet(A, B, b"waits"), "by handshakes with the relay, and through it");
    let three = Three { net, a, r, b };
    three.carries_both_ways(3);

    // Both nodes lose the way when the relay is removed: A has configured the way, B has learned it.
    for (node, other) in [(&three.a, B), (&three.b, A)] {
        node.has(PeerUpdate::remove(key(R))).await;
        let status = node.peer(other).await;
        assert_eq!((status.through, status.endpoint), (None, None));
        node.host.send(&packet(node.n, other, b"nowhere")).unwrap();
        assert_eq!(node.next()[9], 1, "the host is told by ICMP");
        node.has_dropped(DropReason::NoEndpoint, 1).await;
    }
    // Timestamps of initiations advance every 17 ms: the relay would consider an earlier initiation a replay, and the
    // next one would come after 5 s.
    tokio::time::sleep(Duration::from_millis(20)).await;
    for node in [&three.a, &three.b] {
        let before = three.r.peer(node.n).await.handshakes;
        node.has(peer(R).endpoint(at(R))).await;
        three.meet(node);
        // Until its control thread has handled the new handshake, the relay seals in a session that this node has
        // forgotten.
        three.r.until(node.n, |peer| peer.handshakes > before).await;
    }
    three.carries_both_ways(3);
}

#[tokio::test]
async fn a_relay_that_was_restarted_is_a_way_again() {
    let Three { net, a, r, b } = Three::new(true).await;
    let three = Three { net, a, r, b };
    three.carries_both_ways(3);
    let Three { net, a, r, b } = three;
    r.device.shutdown().await;
    // A node that is just sending to it holds its address a little longer.
    let free = async {
        while net.bind(at(R)).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, free).await.expect("its address is free");
    let r = Node::start(&net, R, builder().forward(true));
    for node in [&a, &b] {
        r.has(peer(node.n).endpoint(at(node.n))).await;
    }
    let three = Three { net, a, r, b };
    // The relay has no sessions. Both nodes would notice, like any WireGuard; here the test tells them.
    for node in [&three.a, &three.b] {
        node.device.handshake_now().await;
        node.until(R, |peer| peer.handshakes >= 2).await;
    }
    three.carries_both_ways(10);
}

#[tokio::test]
async fn an_address_is_taken_when_the_peer_is_heard_there() {
    let three = Three::new(true).await;
    three.carries_both_ways(3);
    let events = [(three.a.device.events(), B), (three.b.device.events(), A)];
    three.a.has(peer(B).endpoint(at(B))).await;
    assert_eq!(three.a.peer(B).await.endpoint, Some(at(B)));
    three.carries_both_ways(3);
    assert_eq!((three.b.peer(A).await.endpoint, three.b.peer(A).await.through), (Some(at(A)), None));
    // The relay may count earlier datagrams a moment later.
    let direct = async {
        let mut forwarded = three.r.device.status().await.unwrap().forwarded;
        loop {
            three.carries_both_ways(3);
            let before = std::mem::replace(&mut forwarded, three.r.device.status().await.unwrap().forwarded);
            if before == forwarded {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, direct).await.expect("the relay gets nothing more");
    for (mut events, other) in events {
        let changed = async {
            loop {
                if let Event::WayChanged { peer, before, now, .. } = events.recv().await.unwrap() {
                    return (peer, before, now);
                }
            }
        };
        let changed = tokio::time::timeout(LONG, changed).await.expect("the event");
        assert_eq!(changed, (key(other), Some(Way::Relayed(key(R))), Way::Direct(at(other))));
    }
}

#[tokio::test]
async fn a_way_through_a_peer_that_is_itself_behind_one_carries_nothing() {
    let three = Three::new(true).await;
    three.carries_both_ways(1);
    // A fourth node, which A would reach through B.
    three.a.has(peer(4).endpoint(EndpointSpec::Peer(key(B)))).await;
    three.a.host.send(&packet(A, 4, b"too deep")).unwrap();
    three.a.until_dropped(DropReason::ForwardNoWay, 1).await;
    // A peer is not reached through itself either.
    three.a.has(peer(5).endpoint(EndpointSpec::Peer(key(5)))).await;
    assert_eq!(three.a.peer(5).await.through, None);
}

/// Without a session, no state of the peer's ways is kept. Still, `status` shows the way that the first packet will
/// take.
#[tokio::test]
async fn a_silent_peer_has_another_relay_when_its_first_is_removed() {
    const C: u8 = 4;
    let a = start(&MemoryNet::default(), A);
    for n in [R, C] {
        a.has(peer(n).endpoint(at(n))).await;
    }
    let through = [R, C].map(|n| EndpointSpec::Peer(key(n)).into());
    a.has(peer(B).endpoints(through)).await;
    let silent = a.peer(B).await;
    assert_eq!((silent.way(), silent.not_direct), (Some(Way::Relayed(key(R))), Some(Relayed::Idle)));
    let ways: Vec<_> = silent.paths.iter().map(|path| (path.through, path.active)).collect();
    assert_eq!(ways, [(Some(key(R)), true), (Some(key(C)), false)]);
    a.has(PeerUpdate::remove(key(R))).await;
    a.until(B, |peer| peer.way() == Some(Way::Relayed(key(C)))).await;
    assert!(a.peer(B).await.paths[1].active);
}
