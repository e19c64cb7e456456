//! A routing engine in a device, over in-memory transports: which events it gets, and how the device performs its
//! actions. `B` is between `A` and `C`, and the test scripts the actions of its engine.

use super::support::{ENGINE, LONG, Node, at, key, next, packet};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use rustguard_device::{
    Device, DropReason, PeerUpdate, Relay, Update,
    routing::{Action, Event, NextHop, NextHops, Role, RoutingEngine, Signal, SourceRule},
};
use rustguard_tun::memory::MemoryNet;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// The events that an engine got, as text; the actions that it returns at the next event; and the state that it stored.
#[derive(Clone, Default)]
struct Script {
    told: Arc<Mutex<Vec<String>>>,
    wants: Arc<Mutex<Vec<Action>>>,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

struct Engine(Script);

impl RoutingEngine for Engine {
    fn handle(&mut self, event: Event<'_>, _: Instant, out: &mut Vec<Action>) {
        self.0.told.lock().unwrap().push(match event {
            Event::Peer { peer, config } => format!("peer {} {:?} {:?}", peer.0, config.role, config.allowed_ips),
            Event::PeerRemoved { peer } => format!("gone {}", peer.0),
            Event::Packet { peer, packet } => format!("packet of {peer:?}, {} bytes", packet.len()),
            Event::Signal { peer, signal: Signal::Heard { data } } => {
                format!("heard, data {} {}", data.is_some(), peer.0)
            }
            Event::Signal { peer, signal } => format!("{signal:?} {}", peer.0),
            Event::Announce { prefix, metric } => format!("announce {prefix} at {metric}"),
            Event::Withdraw { prefix } => format!("withdraw {prefix}"),
            Event::Time => "time".to_owned(),
            other => unreachable!("a version that tells {other:?}"),
        });
        out.append(&mut self.0.wants.lock().unwrap());
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&ENGINE))
    }

    fn leave(&mut self, _: Instant, out: &mut Vec<Action>) {
        self.0.told.lock().unwrap().push("leave".to_owned());
        out.append(&mut self.0.wants.lock().unwrap());
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Three devices. A is peer 0 of B, and C is peer 1. B's engine decides.
struct Three {
    a: Node,
    b: Node,
    c: Node,
    script: Script,
}

const A: PeerId = PeerId(0);
const C: PeerId = PeerId(1);

impl Three {
    fn new(announced: &[&str]) -> Self {
        let (memory, script) = (MemoryNet::default(), Script::default());
        let everything =
            || Device::builder().peer(PeerUpdate::new(key(2)).endpoint(at(2)).allowed_ip(net("0.0.0.0/0")));
        let kept = Arc::clone(&script.kept);
        let middle = [1, 3].into_iter().fold(Device::builder(), |middle, n| {
            middle.peer(PeerUpdate::new(key(n)).endpoint(at(n)).allowed_ip(net("10.0.0.0/24")))
        });
        let middle = middle
            .routing(Engine(script.clone()))
            .routing_state(move |bytes| kept.lock().unwrap().push(bytes.to_vec()))
            .announce(announced.iter().map(|text| net(text)))
            .relay(Relay::Off);
        let (a, c) = (Node::start(&memory, 1, everything()), Node::start(&memory, 3, everything()));
        Self { a, b: Node::start(&memory, 2, middle), c, script }
    }

    /// Makes the engine return these actions, and waits until the device has performed them.
    async fn wants(&self, actions: impl IntoIterator<Item = Action>) {
        self.script.wants.lock().unwrap().extend(actions);
        self.update(PeerUpdate::new(key(1)).role(Role::Router)).await;
        assert!(self.script.wants.lock().unwrap().is_empty(), "the engine was not asked");
    }

    async fn update(&self, peer: PeerUpdate) {
        self.b.device.update(Update::new().peer(peer)).await.unwrap();
    }

    /// The events that the engine got since the last call, without signals.
    fn told(&self) -> Vec<String> {
        let told = std::mem::take(&mut *self.script.told.lock().unwrap());
        let signal = |line: &String| {
            ["heard", "Carried", "Unanswered", "Handshake", "RoundTrip"].iter().any(|word| line.starts_with(word))
        };
        told.into_iter().filter(|line| !signal(line)).collect()
    }

    async fn until_told(&self, what: &str) {
        let told = async {
            while !self.script.told.lock().unwrap().iter().any(|line| line == what) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, told).await.unwrap_or_else(|_| panic!("{what}: {:?}", self.told()));
    }
}

fn to(prefix: &str, peers: &[PeerId]) -> Action {
    let members = peers.iter().map(|&peer| NextHop { peer, weight: 1 });
    Action::Install { prefix: net(prefix), hops: NextHops::new(members, None) }
}

fn permit(peer: PeerId, prefix: &str) -> Action {
    Action::Permit { peer, prefix: net(prefix), rule: SourceRule::Any }
}

#[tokio::test]
async fn an_engine_is_told_what_is_configured() {
    let three = Three::new(&["10.9.0.1/16"]);
    three.wants([]).await;
    let told = three.told();
    for line in ["announce 10.9.0.0/16 at 0", "peer 0 Router [10.0.0.0/24]", "peer 1 Router [10.0.0.0/24]"] {
        assert!(told.iter().any(|told| told == line), "{line}: {told:?}");
    }
    // Both peers have the same prefix. With an engine, neither peer loses it to the other.
    three.update(PeerUpdate::new(key(1)).allowed_ip(net("10.0.1.7/24")).role(Role::Client)).await;
    three.update(PeerUpdate::new(key(1)).without_allowed_ip(net("10.0.0.0/24"))).await;
    assert_eq!(three.told(), ["peer 0 Client [10.0.0.0/24, 10.0.1.0/24]", "peer 0 Client [10.0.1.0/24]"]);
    three.update(PeerUpdate::new(key(1)).replace_allowed_ips([net("10.0.2.0/24")])).await;
    three.b.device.update(Update::new().announce([net("10.8.0.0/16")])).await.unwrap();
    three.update(PeerUpdate::remove(key(1))).await;
    three.update(PeerUpdate::new(key(1)).allowed_ip(net("10.0.3.0/24"))).await;
    assert_eq!(
        three.told(),
        [
            "peer 0 Client [10.0.2.0/24]",
            "withdraw 10.9.0.0/16",
            "announce 10.8.0.0/16 at 0",
            "gone 0",
            "peer 2 Router [10.0.3.0/24]"
        ]
    );
    let Three { b, script, .. } = three;
    b.device.shutdown().await;
    assert_eq!(script.told.lock().unwrap().last().map(String::as_str), Some("leave"));
}

#[tokio::test]
async fn what_an_engine_wants_is_done() {
    let three = Three::new(&[]);
    let (a, b, c) = (&three.a.host, &three.b.host, &three.c.host);
    three.wants([to("10.0.0.1/32", &[A]), to("10.0.0.3/32", &[C]), permit(A, "10.0.0.1/32")]).await;
    // A source is permitted, and then forbidden.
    let from_a = packet(1, 2, b"permitted");
    a.send(&from_a).unwrap();
    assert_eq!(next(b), from_a);
    three.wants([Action::Forbid { peer: A, prefix: net("10.0.0.1/32") }, permit(A, "10.0.0.4/32")]).await;
    a.send(&packet(1, 2, b"forbidden")).unwrap();
    let other = packet(4, 2, b"another source");
    a.send(&other).unwrap();
    assert_eq!(next(b), other);
    assert_eq!(three.b.dropped(DropReason::SourceNotAnnounced).await, 1);

    // Routes, next hops that are not usable for a while, and the removal of a route.
    let for_c = packet(2, 3, b"for c");
    b.send(&for_c).unwrap();
    assert_eq!(next(c), for_c);
    three.wants([to("10.0.0.7/32", &[A, C]), Action::Neighbour { peer: A, cost: None }]).await;
    for flow in 0..20 {
        let sent = packet(100 + flow, 7, b"only C is usable");
        b.send(&sent).unwrap();
        assert_eq!(next(c), sent);
    }
    three.wants([Action::Neighbour { peer: A, cost: Some(1) }, Action::Neighbour { peer: C, cost: None }]).await;
    let sent = packet(2, 7, b"only A is usable");
    b.send(&sent).unwrap();
    assert_eq!(next(a), sent);
    three.wants([Action::Remove { prefix: net("10.0.0.7/32") }]).await;
    b.send(&sent).unwrap();
    b.send(&for_c).unwrap();
    assert_eq!(next(c), for_c, "the route is gone");
    assert_eq!(three.b.dropped(DropReason::NoRoute).await, 1);

    three.wants([Action::Keep { bytes: vec![1, 2, 3] }]).await;
    assert_eq!(*three.script.kept.lock().unwrap(), [[1, 2, 3]]);
}

/// The engine cannot change routes for prefixes that the host announces.
#[tokio::test]
async fn nobody_takes_what_is_announced() {
    let three = Three::new(&["10.0.0.2/32"]);
    let (b, c) = (&three.b.host, &three.c.host);
    three
        .wants([to("10.0.0.0/24", &[C]), to("10.0.0.2/32", &[C]), Action::Remove { prefix: net("10.0.0.2/32") }])
        .await;
    let own = packet(2, 2, b"own");
    let other = packet(2, 9, b"other");
    b.send(&own).unwrap();
    b.send(&other).unwrap();
    assert_eq!(next(c), other, "the engine took the host's own address, or removed it");
    // When the prefix is no longer announced, the route that covers it applies.
    three.b.device.update(Update::new().announce([])).await.unwrap();
    b.send(&own).unwrap();
    assert_eq!(next(c), own);
}

/// The engine's own packets start a session, and a peer's packets for the engine do not reach the host.
#[tokio::test]
async fn packets_between_engines() {
    let three = Three::new(&[]);
    let mut own = packet(2, 1, b"from engine to engine");
    own[9] = ENGINE;
    three.wants([Action::Send { peer: C, packet: own.clone() }]).await;
    three.until_told(&format!("{:?} 1", Signal::HandshakeComplete)).await;
    three.wants([Action::Send { peer: C, packet: own.clone() }]).await;
    // C has no engine, and treats it as an ordinary packet.
    assert_eq!(next(&three.c.host), own);
    let mut answer = packet(3, 2, b"and back");
    answer[9] = ENGINE;
    three.c.host.send(&answer).unwrap();
    three.until_told(&format!("packet of {C:?}, {} bytes", answer.len())).await;
}

/// The engine gets the signals of WireGuard about a peer repeatedly.
#[tokio::test]
async fn signals_come_again_and_again() {
    let three = Three::new(&[]);
    for _ in 0..3 {
        three.script.told.lock().unwrap().clear();
        three.a.host.send(&packet(1, 2, &[0; 400])).unwrap();
        for signal in ["heard, data true", "Carried"] {
            three.until_told(&format!("{signal} {}", A.0)).await;
        }
    }
}
