//! Filters and the modes of the source check in whole devices, over in-memory transports: `B` is between `A` and `C`.

use super::support::{Node, at, inner, key, packet};
use ipnet::IpNet;
use rustguard_core::time::Instant;
use rustguard_device::{
    Builder, Device, DropReason, PeerUpdate, Relay, SourceCheck, Update,
    filter::{Origin, Packet, RouteDecision, Verdict},
    routing::{Action, Event, NextHops, Role, RoutingEngine, SourceRule},
};
use rustguard_tun::memory::MemoryNet;
use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

struct Three {
    a: Node,
    b: Node,
    c: Node,
}

impl Three {
    /// `middle` builds B, and `peer` completes B's peers. A and C send everything to B.
    fn new(middle: Builder, peer: fn(PeerUpdate, u8) -> PeerUpdate) -> Self {
        let net = MemoryNet::default();
        let everything = || {
            let peer = PeerUpdate::new(key(2)).endpoint(at(2)).allowed_ip("0.0.0.0/0".parse::<IpNet>().unwrap());
            Device::builder().peer(peer)
        };
        let middle =
            [1, 3].into_iter().fold(middle, |middle, n| middle.peer(peer(PeerUpdate::new(key(n)).endpoint(at(n)), n)));
        let (a, c) = (Node::start(&net, 1, everything()), Node::start(&net, 3, everything()));
        Self { a, b: Node::start(&net, 2, middle), c }
    }

    /// Waits until B has handled all packets of A: B's host gets the packet that A sends now, and none before it.
    fn settled(&self) {
        let last = packet(1, 2, b"the last of these");
        self.a.host.send(&last).unwrap();
        assert_eq!(self.b.next(), last, "B's host gets something else");
    }
}

fn own_address(peer: PeerUpdate, n: u8) -> PeerUpdate {
    peer.allowed_ip(IpNet::from(IpAddr::from(inner(n))))
}

fn relay() -> Builder {
    Device::builder().relay(Relay::Always { local: vec![[10, 0, 0, 2].into()] })
}

/// The bytes of a packet that hops do not change.
fn constant(packet: &[u8]) -> (&[u8], &[u8]) {
    (&packet[..8], &packet[12..])
}

#[tokio::test]
async fn a_filter_decides_about_peers_and_sees_who_they_are() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&seen);
    let lab = Three::new(
        relay().filter(move |packet| {
            list.lock().unwrap().push((packet.origin, packet.route));
            match packet.bytes.get(20) {
                Some(b'd') => Verdict::Drop,
                Some(b'b') => Verdict::Bounce,
                Some(b'f') => Verdict::Forward(key(3)),
                Some(b'u') => Verdict::Forward(key(9)),
                _ => Verdict::Pass,
            }
        }),
        own_address,
    );
    for payload in [&b"drop"[..], b"bounce", b"unknown", b"pass"] {
        lab.a.host.send(&packet(1, 3, payload)).unwrap();
    }
    // Packets for an address that no peer has, and for B itself.
    lab.a.host.send(&packet(1, 77, b"forward")).unwrap();
    lab.a.host.send(&packet(1, 2, b"forward")).unwrap();
    assert_eq!(lab.b.next(), packet(1, 3, b"bounce"));
    for (to, payload) in [(3, &b"pass"[..]), (77, b"forward"), (2, b"forward")] {
        let got = lab.c.next();
        assert_eq!((got[8], constant(&got)), (63, constant(&packet(1, to, payload))));
    }
    lab.settled();
    assert_eq!(lab.b.dropped(DropReason::Filtered).await, 1);
    assert_eq!(lab.b.dropped(DropReason::NoRoute).await, 1);
    let there = (Origin::Peer(key(1)), RouteDecision::Forward(key(3)));
    let here = (Origin::Peer(key(1)), RouteDecision::Deliver);
    assert_eq!(*seen.lock().unwrap(), [there, there, there, there, here, here, here]);
}

#[tokio::test]
async fn a_filter_decides_about_the_host() {
    let lab = Three::new(
        relay().filter(|packet| match (packet.origin, packet.bytes.get(20)) {
            (Origin::Host, Some(b'd')) => Verdict::Drop,
            (Origin::Host, Some(b'b')) => Verdict::Bounce,
            (Origin::Host, Some(b'h')) => Verdict::Deliver,
            (Origin::Host, Some(b'f')) => Verdict::Forward(key(3)),
            (Origin::Host, Some(b'g')) => Verdict::Forward(key(1)),
            (Origin::Host, Some(b'n')) => {
                assert_eq!(packet.route, RouteDecision::Unreachable);
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }),
        own_address,
    );
    for (to, payload) in [
        (1, &b"drop"[..]),
        (1, b"bounce"),
        (77, b"forward"),
        (77, b"go to A"),
        (77, b"nobody"),
        (77, b"here"),
        (1, b"pass"),
    ] {
        lab.b.host.send(&packet(2, to, payload)).unwrap();
    }
    // The ICMP answer to the unreachable packet overtakes the others of its batch.
    let (answers, back): (Vec<_>, Vec<_>) = (0..3).map(|_| lab.b.next()).partition(|packet| packet[9] == 1);
    assert_eq!(back, [packet(2, 1, b"bounce"), packet(2, 77, b"here")]);
    assert_eq!(answers.len(), 1);
    assert!(answers[0].ends_with(&packet(2, 77, b"nobody")), "host unreachable");
    assert_eq!(lab.c.next(), packet(2, 77, b"forward"), "a packet from B's own host keeps its hop limit");
    assert_eq!(lab.a.next(), packet(2, 77, b"go to A"));
    assert_eq!(lab.a.next(), packet(2, 1, b"pass"));
    lab.settled();
    assert_eq!(lab.b.dropped(DropReason::Filtered).await, 1);
    assert_eq!(lab.b.dropped(DropReason::NoRoute).await, 1);
}

#[tokio::test]
async fn a_filter_that_wants_everything_gets_no_foreign_source() {
    for wish in [Verdict::Deliver, Verdict::Bounce, Verdict::Forward(key(3))] {
        let lab = Three::new(
            relay().filter(move |packet| {
                if packet.origin == Origin::Host {
                    return Verdict::Pass;
                }
                assert_eq!(packet.head.source, IpAddr::from([10, 0, 0, 1]), "the filter is not asked");
                if packet.bytes[20..] == *b"the last of these" { Verdict::Pass } else { wish }
            }),
            own_address,
        );
        for source in [3, 2, 77] {
            lab.a.host.send(&packet(source, 3, b"not mine")).unwrap();
        }
        lab.settled();
        assert_eq!(lab.b.dropped(DropReason::SourceNotAllowed).await, 3);
        // C got none of them either: this is its first packet.
        let first = packet(2, 3, b"for C");
        lab.b.host.send(&first).unwrap();
        assert_eq!(lab.c.next(), first);
    }
}

#[tokio::test]
async fn a_peer_that_has_come_or_gone_is_known_to_a_filter_at_once() {
    let lab = Three::new(
        relay().filter(|packet: &Packet<'_>| match packet.bytes.get(20) {
            Some(b'f') => Verdict::Forward(key(3)),
            _ => Verdict::Pass,
        }),
        own_address,
    );
    lab.a.host.send(&packet(1, 2, b"forward")).unwrap();
    lab.c.next();
    let remove = PeerUpdate::remove(key(3));
    lab.b.device.update(Update::new().peer(remove)).await.unwrap();
    lab.a.host.send(&packet(1, 2, b"forward")).unwrap();
    lab.settled();
    assert_eq!(lab.b.dropped(DropReason::NoRoute).await, 1);
}

/// Routes the allowed IPs of each peer to it. Permits the source 10.0.0.1, and sources outside the allowed IPs.
struct Engine;

impl RoutingEngine for Engine {
    fn handle(&mut self, event: Event<'_>, _: Instant, out: &mut Vec<Action>) {
        let Event::Peer { peer, config } = event else { return };
        out.extend(config.allowed_ips.iter().map(|&prefix| Action::Install { prefix, hops: NextHops::single(peer) }));
        for prefix in ["10.0.0.1/32", "172.16.0.0/12"] {
            let prefix = prefix.parse().expect("a prefix");
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Any });
        }
    }
}

/// Peers with the allowed IPs 10.0.0.0/29, of which A announces only 10.0.0.1.
fn bounded(role: Role) -> fn(PeerUpdate, u8) -> PeerUpdate {
    match role {
        Role::Router => |peer, _| peer.allowed_ip("10.0.0.0/29".parse::<IpNet>().unwrap()).role(Role::Router),
        Role::Server | Role::Gateway => {
            |peer, _| peer.allowed_ip("10.0.0.0/29".parse::<IpNet>().unwrap()).role(Role::Server)
        }
        Role::Client | Role::Member => {
            |peer, _| peer.allowed_ip("10.0.0.0/29".parse::<IpNet>().unwrap()).role(Role::Client)
        }
    }
}

#[tokio::test]
async fn routers_sources_in_each_mode_of_the_check() {
    // (mode, role, whether 10.0.0.5 passes, packets counted as not announced, as passed unannounced, as not allowed)
    for (mode, role, passes, refused, let_through, not_allowed) in [
        (SourceCheck::Enforce, Role::Router, false, 2, 0, 2),
        (SourceCheck::Log, Role::Router, true, 0, 2, 2),
        (SourceCheck::Off, Role::Router, true, 0, 0, 2),
        (SourceCheck::Enforce, Role::Client, false, 0, 0, 4),
        (SourceCheck::Log, Role::Client, false, 0, 0, 4),
        (SourceCheck::Off, Role::Client, false, 0, 0, 4),
        // A server of a network forwards only sealed datagrams.
        (SourceCheck::Off, Role::Server, false, 0, 0, 4),
    ] {
        let builder = Device::builder().routing(Engine).source_check(mode).relay(Relay::Off);
        let lab = Three::new(builder, bounded(role));
        // While a session begins, later packets may overtake packets that wait for it.
        lab.settled();
        let unannounced = packet(5, 2, b"not announced");
        let beyond = packet(9, 2, b"beyond the bounds");
        let by_mistake = {
            let mut packet = packet(9, 2, b"beyond, though the engine permits it");
            packet[12..16].copy_from_slice(&[172, 16, 0, 1]);
            packet
        };
        for sent in [&unannounced, &unannounced, &beyond, &by_mistake] {
            lab.a.host.send(sent).unwrap();
        }
        if passes {
            assert_eq!((lab.b.next(), lab.b.next()), (unannounced.clone(), unannounced), "{mode:?}");
        }
        lab.settled();
        assert_eq!(lab.b.dropped(DropReason::SourceNotAnnounced).await, refused, "{mode:?} {role:?}");
        assert_eq!(lab.b.dropped(DropReason::SourceNotAllowed).await, not_allowed, "{mode:?} {role:?}");
        assert_eq!(lab.b.device.status().await.unwrap().unannounced, let_through, "{mode:?} {role:?}");
    }
}
