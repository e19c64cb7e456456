//! A routing engine in its seat, over in-memory transports: what it is told, and what comes of what it wants. `B` is between `A` and
//! `C`, and its engine says what a test has written for it.

use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{
    Builder, Device, DropReason, MemoryBinder, PeerUpdate, Relay, Update,
    routing::{Action, Event, NextHop, NextHops, Role, RoutingEngine, Signal, SourceRule},
};
use rustguard_tun::memory::{self, MemoryHost, MemoryNet};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);

/// What an engine was told, in words, and what it is to want when it is told something the next time.
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

    /// Protocol 254 (RFC 3692) is its own.
    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|packet| packet.get(9) == Some(&254))
    }

    fn leave(&mut self, _: Instant, out: &mut Vec<Action>) {
        self.0.told.lock().unwrap().push("leave".to_owned());
        out.append(&mut self.0.wants.lock().unwrap());
    }
}

fn secret(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

fn key(n: u8) -> PublicKey {
    secret(n).public_key()
}

fn at(n: u8) -> SocketAddr {
    ([192, 0, 2, n], 51_820).into()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// IPv4 with a protocol for experiments; nobody here looks at the checksum.
fn packet(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0x40, 0, 64, 253, 0, 0];
    packet.extend([10, 0, 0, from, 10, 0, 0, to]);
    packet.extend(payload);
    packet
}

fn start(net: &MemoryNet, n: u8, builder: Builder) -> (Device, MemoryHost) {
    let (tun, host) = memory::tun().unwrap();
    host.set_timeout(Some(LONG)).unwrap();
    let binder = MemoryBinder::new(net.clone(), at(n));
    (builder.private_key(secret(n)).start_with(tun, binder).unwrap(), host)
}

fn next(host: &MemoryHost) -> Vec<u8> {
    let mut buffer = [0; 2_048];
    let n = host.recv(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

/// A is peer 0 of B, C is peer 1; B's engine decides.
struct Three {
    a: (Device, MemoryHost),
    b: (Device, MemoryHost),
    c: (Device, MemoryHost),
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
        let (a, c) = (start(&memory, 1, everything()), start(&memory, 3, everything()));
        Self { a, b: start(&memory, 2, middle), c, script }
    }

    /// The engine wants this, and it is done when this returns.
    async fn wants(&self, actions: impl IntoIterator<Item = Action>) {
        self.script.wants.lock().unwrap().extend(actions);
        self.update(PeerUpdate::new(key(1)).role(Role::Router)).await;
        assert!(self.script.wants.lock().unwrap().is_empty(), "it was not asked");
    }

    async fn update(&self, peer: PeerUpdate) {
        self.b.0.update(Update::new().peer(peer)).await.unwrap();
    }

    /// What the engine was told since the last call, signals left out.
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

    async fn dropped(&self, reason: DropReason) -> u64 {
        self.b.0.status().await.unwrap().dropped(reason)
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
    // Both have the same: nobody loses anything, as it is with an engine.
    three.update(PeerUpdate::new(key(1)).allowed_ip(net("10.0.1.7/24")).role(Role::Client)).await;
    three.update(PeerUpdate::new(key(1)).without_allowed_ip(net("10.0.0.0/24"))).await;
    assert_eq!(three.told(), ["peer 0 Client [10.0.0.0/24, 10.0.1.0/24]", "peer 0 Client [10.0.1.0/24]"]);
    three.update(PeerUpdate::new(key(1)).replace_allowed_ips([net("10.0.2.0/24")])).await;
    three.b.0.update(Update::new().announce([net("10.8.0.0/16")])).await.unwrap();
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
    let Three { b: (b, _), script, .. } = three;
    b.shutdown().await;
    assert_eq!(script.told.lock().unwrap().last().map(String::as_str), Some("leave"));
}

#[tokio::test]
async fn what_an_engine_wants_is_done() {
    let three = Three::new(&[]);
    let (a, b, c) = (&three.a.1, &three.b.1, &three.c.1);
    three.wants([to("10.0.0.1/32", &[A]), to("10.0.0.3/32", &[C]), permit(A, "10.0.0.1/32")]).await;
    // Sources, until that is over.
    let from_a = packet(1, 2, b"permitted");
    a.send(&from_a).unwrap();
    assert_eq!(next(b), from_a);
    three.wants([Action::Forbid { peer: A, prefix: net("10.0.0.1/32") }, permit(A, "10.0.0.4/32")]).await;
    a.send(&packet(1, 2, b"forbidden")).unwrap();
    let other = packet(4, 2, b"another source");
    a.send(&other).unwrap();
    assert_eq!(next(b), other);
    assert_eq!(three.dropped(DropReason::SourceNotAnnounced).await, 1);

    // Routes, the flag that passes a member over, and their end.
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
    assert_eq!(next(c), for_c, "nobody else is there for it");
    assert_eq!(three.dropped(DropReason::NoRoute).await, 1);

    three.wants([Action::Keep { bytes: vec![1, 2, 3] }]).await;
    assert_eq!(*three.script.kept.lock().unwrap(), [[1, 2, 3]]);
}

/// What is the host's own stays so, whatever an engine says of it.
#[tokio::test]
async fn nobody_takes_what_is_announced() {
    let three = Three::new(&["10.0.0.2/32"]);
    let (b, c) = (&three.b.1, &three.c.1);
    three
        .wants([to("10.0.0.0/24", &[C]), to("10.0.0.2/32", &[C]), Action::Remove { prefix: net("10.0.0.2/32") }])
        .await;
    let own = packet(2, 2, b"own");
    let other = packet(2, 9, b"other");
    b.send(&own).unwrap();
    b.send(&other).unwrap();
    assert_eq!(next(c), other, "the own address was taken, or removed");
    // Not any more: then it is in the prefix that covers it.
    three.b.0.update(Update::new().announce([])).await.unwrap();
    b.send(&own).unwrap();
    assert_eq!(next(c), own);
}

/// The engine's own packets: a session is made for them, they reach the other engine and no host, and are no traffic.
#[tokio::test]
async fn packets_between_engines() {
    let three = Three::new(&[]);
    let mut own = packet(2, 1, b"from engine to engine");
    own[9] = 254;
    three.wants([Action::Send { peer: C, packet: own.clone() }]).await;
    three.until_told(&format!("{:?} 1", Signal::HandshakeComplete)).await;
    three.wants([Action::Send { peer: C, packet: own.clone() }]).await;
    // C has no engine: for it that is a packet like any other.
    assert_eq!(next(&three.c.1), own);
    let mut answer = packet(3, 2, b"and back");
    answer[9] = 254;
    three.c.1.send(&answer).unwrap();
    three.until_told(&format!("packet of {C:?}, {} bytes", answer.len())).await;
}

/// What WireGuard sees of a peer is told several times a second.
#[tokio::test]
async fn signals_come_again_and_again() {
    let three = Three::new(&[]);
    for _ in 0..3 {
        three.script.told.lock().unwrap().clear();
        three.a.1.send(&packet(1, 2, &[0; 400])).unwrap();
        for signal in ["heard, data true", "Carried"] {
            three.until_told(&format!("{signal} {}", A.0)).await;
        }
    }
}
