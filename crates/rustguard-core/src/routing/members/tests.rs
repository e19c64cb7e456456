use super::{
    super::{PeerRoutes, Role, RouteTable, StaticRoutes, Target},
    *,
};
use alloc::{collections::BTreeMap, format, string::String};
use core::net::IpAddr;
use proptest::prelude::*;

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const SITE: &str = "192.168.1.0/24";

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A peer's part of the simulation.
#[derive(Clone, Copy, Default)]
struct Node {
    alive: bool,
    round_trip: Duration,
    session: bool,
    watched: bool,
    /// When the answer to a question arrives here.
    answer: Option<Instant>,
    answer_took: Duration,
    /// The first data without an answer.
    unanswered: Option<Instant>,
    heard: bool,
    asked: u32,
}

/// An engine on a device in simulated time: its actions are carried out as the device does it, and it gets the events
/// that the device reports.
struct World {
    engine: Members,
    table: RouteTable,
    now: Instant,
    nodes: BTreeMap<PeerId, Node>,
    /// Every holder that the prefixes had, and when it became one.
    moves: Vec<(Instant, IpNet, PeerId)>,
}

impl World {
    /// Peers with these prefixes and round trips, all alive and without sessions.
    fn new(peers: &[(PeerId, u64, &[&str])]) -> Self {
        let mut world = Self {
            engine: Members::default(),
            table: RouteTable::default(),
            now: Instant::from_nanos(1 << 40),
            nodes: BTreeMap::new(),
            moves: Vec::new(),
        };
        for &(peer, round_trip, prefixes) in peers {
            world.nodes.insert(peer, Node { alive: true, round_trip: ms(round_trip), ..Node::default() });
            world.set(peer, prefixes);
        }
        world
    }

    fn set(&mut self, peer: PeerId, prefixes: &[&str]) {
        let config = PeerRoutes { allowed_ips: prefixes.iter().map(|text| net(text)).collect(), role: Role::Client };
        self.tell(Event::Peer { peer, config: &config });
    }

    fn node(&mut self, peer: PeerId) -> &mut Node {
        self.nodes.get_mut(&peer).expect("a peer of this world")
    }

    fn tell(&mut self, event: Event<'_>) -> usize {
        let mut actions = Vec::new();
        self.engine.handle(event, self.now, &mut actions);
        let count = actions.len();
        for action in actions {
            self.carry_out(action);
        }
        count
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Install { prefix, hops } => {
                let holder = hops.pick(0, |_| true).expect("somebody has it");
                self.moves.push((now, prefix, holder));
                self.table.install(prefix, hops.into());
            }
            Action::Remove { prefix } => self.table.remove(prefix),
            Action::Permit { peer, prefix, rule } => self.table.permit(peer, prefix, rule),
            Action::Forbid { peer, prefix } => self.table.forbid(peer, prefix),
            Action::Watch { peer, on } => {
                if let Some(node) = self.nodes.get_mut(&peer) {
                    assert_ne!(node.watched, on, "{peer:?} twice");
                    node.watched = on;
                }
            }
            Action::Ask { peer } => {
                let node = self.node(peer);
                node.asked += 1;
                if node.alive && node.answer.is_none() {
                    // Without a session, a handshake comes first.
                    let took = node.round_trip * if node.session { 1 } else { 2 };
                    (node.answer, node.answer_took) = (Some(now + took), node.round_trip);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn holder(&self, address: &str) -> Option<PeerId> {
        let address: IpAddr = address.parse().expect("an address");
        match self.table.snapshot().target(address) {
            Some(Target::Peer(peer)) => Some(*peer),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a packet to an address. Returns the peer that got it.
    fn send(&mut self, address: &str) -> Option<PeerId> {
        let peer = self.holder(address)?;
        let now = self.now;
        let node = self.node(peer);
        if !node.session {
            if node.alive && node.answer.is_none() {
                (node.answer, node.answer_took) = (Some(now + node.round_trip), node.round_trip);
            }
            self.tell(Event::Signal { peer, signal: Signal::SessionWanted });
        } else if node.alive {
            node.heard = true;
        } else {
            node.unanswered.get_or_insert(now);
        }
        Some(peer)
    }

    /// Lets time pass, in steps of 10 ms. The device samples every 100 ms.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + ms(10);
            let now = self.now;
            if self.engine.deadline().is_some_and(|at| at <= now) {
                self.tell(Event::Time);
            }
            let sampled = (now.as_nanos() / 10_000_000).is_multiple_of(10);
            for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
                let node = self.node(peer);
                let mut signals = Vec::new();
                if node.answer.take_if(|at| *at <= now).is_some() && node.alive {
                    if !node.session {
                        node.session = true;
                        signals.push(Signal::HandshakeComplete);
                    }
                    signals.push(Signal::RoundTrip(node.answer_took));
                }
                if sampled && node.watched {
                    if core::mem::take(&mut node.heard) {
                        node.unanswered = None;
                        signals.push(Signal::Heard { data: Some(now) });
                    }
                    if node.unanswered.is_some_and(|since| now.since(since) >= ms(250)) {
                        node.unanswered = None;
                        signals.push(Signal::Unanswered);
                    }
                }
                for signal in signals {
                    self.tell(Event::Signal { peer, signal });
                }
            }
        }
    }

    /// Sends a packet every 20 ms for this time. Returns the longest time in which they went to no living peer.
    fn stream(&mut self, address: &str, time: Duration) -> Duration {
        let (end, mut good, mut gap) = (self.now + time, self.now, Duration::ZERO);
        while self.now < end {
            let peer = self.send(address).expect("a holder");
            if self.node(peer).alive {
                good = self.now;
            }
            gap = gap.max(self.now.since(good));
            self.pass(ms(20));
        }
        gap
    }

    fn asked(&self) -> u32 {
        self.nodes.values().map(|node| node.asked).sum()
    }
}

fn two() -> World {
    World::new(&[(A, 40, &[SITE, "10.0.0.1/32"]), (B, 10, &[SITE, "10.0.0.2/32"])])
}

#[test]
fn the_nearer_gets_it_with_the_first_traffic() {
    let mut world = two();
    world.pass(ms(60_000));
    assert_eq!(world.asked(), 0, "without traffic nobody is asked");
    assert_eq!(world.engine.deadline(), None);
    assert_eq!(world.holder("192.168.1.7"), Some(A), "nothing is known yet");
    world.stream("192.168.1.7", ms(1_000));
    assert_eq!(world.holder("192.168.1.7"), Some(B));
    assert_eq!((world.holder("10.0.0.1"), world.holder("10.0.0.2")), (Some(A), Some(B)));
}

#[test]
fn the_next_takes_over_within_a_second_and_flows_stay_when_it_comes_back() {
    let mut world = two();
    world.stream("192.168.1.7", ms(5_000));
    world.node(B).alive = false;
    let gap = world.stream("192.168.1.7", ms(5_000));
    assert!(gap < ms(1_000), "{gap:?}");
    assert_eq!(world.holder("192.168.1.7"), Some(A));
    world.node(B).alive = true;
    assert_eq!(world.stream("192.168.1.7", ms(120_000)), Duration::ZERO);
    assert_eq!(world.holder("192.168.1.7"), Some(A), "flows stay");
    world.pass(QUIET + ms(100));
    assert_eq!(world.holder("192.168.1.7"), Some(B), "the pause is over");
}

/// An idle sender notices it with its first packet.
#[test]
fn a_holder_that_died_while_nobody_sent() {
    for has_session in [true, false] {
        let mut world = two();
        world.stream("192.168.1.7", ms(2_000));
        world.pass(ms(600_000));
        let asked = world.asked();
        world.node(B).alive = false;
        world.node(B).session = has_session;
        world.pass(ms(600_000));
        assert_eq!(world.asked(), asked, "nobody asks while nobody sends");
        let gap = world.stream("192.168.1.7", ms(2_000));
        assert!(gap < ms(1_000), "session: {has_session}, {gap:?}");
        assert_eq!(world.holder("192.168.1.7"), Some(A));
    }
}

#[test]
fn a_lost_network_of_our_own_moves_nothing() {
    let mut world = two();
    world.stream("192.168.1.7", ms(5_000));
    let moves = world.moves.len();
    for peer in [A, B] {
        world.node(peer).alive = false;
    }
    world.stream("192.168.1.7", ms(8_000));
    for peer in [A, B] {
        world.node(peer).alive = true;
    }
    world.stream("192.168.1.7", ms(5_000));
    assert_eq!((world.moves.len(), world.holder("192.168.1.7")), (moves, Some(B)));
    // Also not if the other peer is heard first when the network is back.
    for peer in [A, B] {
        world.node(peer).alive = false;
    }
    world.stream("192.168.1.7", ms(3_000));
    world.tell(Event::Signal { peer: A, signal: Signal::RoundTrip(ms(40)) });
    world.pass(ms(200));
    world.tell(Event::Signal { peer: B, signal: Signal::Heard { data: None } });
    world.pass(ms(2_000));
    assert_eq!((world.moves.len(), world.holder("192.168.1.7")), (moves, Some(B)));
}

#[test]
fn near_equals_stay_where_they_are() {
    let mut world = World::new(&[(A, 20, &[SITE]), (B, 21, &[SITE])]);
    let mut seed = 7_u64;
    for _ in 0..200 {
        for peer in [A, B] {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.node(peer).round_trip = ms(19 + (seed >> 33) % 4);
        }
        world.stream("192.168.1.7", ms(500));
        world.pass(QUIET + ms(100));
    }
    assert_eq!(world.moves.len(), 2 - 1, "{:?}", world.moves);
}

/// A nearer member that fails again and again gets the traffic less and less often.
#[test]
fn a_member_that_flaps_is_preferred_less_and_less() {
    let mut world = two();
    let mut moves = Vec::new();
    for _ in 0..30 {
        world.node(B).alive = true;
        world.stream("192.168.1.7", ms(15_000));
        world.pass(QUIET + ms(100));
        let before = world.moves.len();
        world.stream("192.168.1.7", ms(1_000));
        world.node(B).alive = false;
        let gap = world.stream("192.168.1.7", ms(5_000));
        assert!(gap < ms(1_000), "{gap:?}");
        moves.push(world.moves.len() - before);
    }
    assert!(moves[15..].iter().sum::<usize>() <= 5, "{moves:?}");
}

/// Questions are few, no matter how long there is traffic and which peers are dead.
#[test]
fn what_is_asked_is_little() {
    let mut world = two();
    world.stream("192.168.1.7", ms(2_000));
    world.node(A).alive = false;
    let before = world.asked();
    world.stream("192.168.1.7", ms(600_000));
    let asked = world.asked() - before;
    assert!(asked < 80, "{asked} questions in 10 minutes");
    world.pass(ms(20_000));
    let before = world.asked();
    world.pass(ms(600_000));
    assert_eq!(world.asked(), before);
    assert_eq!(world.engine.deadline(), None);
}

#[test]
fn sleep_is_no_sign_of_anything() {
    let mut world = two();
    world.stream("192.168.1.7", ms(5_000));
    // Both are asked, and one has answered. Then the machine sleeps before the other answers.
    world.tell(Event::Signal { peer: B, signal: Signal::Unanswered });
    world.tell(Event::Signal { peer: A, signal: Signal::RoundTrip(ms(40)) });
    world.now = world.now + ms(600_000);
    world.tell(Event::Time);
    assert_eq!(world.holder("192.168.1.7"), Some(B));
}

/// All peers that have a prefix may send from it; no other peer may, even if it has a prefix that covers it.
#[test]
fn answers_may_come_from_each_who_has_it_and_from_no_other() {
    const SPOOFER: PeerId = PeerId(3);
    let world = World::new(&[
        (A, 10, &[SITE, "10.0.0.1/32"]),
        (B, 10, &[SITE, "10.0.0.2/32"]),
        (SPOOFER, 1, &["192.168.0.0/16", "10.0.0.3/32"]),
    ]);
    let routes = world.table.snapshot();
    let permits = |peer, text: &str| routes.permits(peer, text.parse().expect("an address"));
    assert!(permits(A, "192.168.1.7") && permits(B, "192.168.1.7"), "one of them does not hold it");
    assert!(!permits(SPOOFER, "192.168.1.7") && permits(SPOOFER, "192.168.2.7"));
    assert!(permits(A, "10.0.0.1") && !permits(A, "10.0.0.2") && !permits(SPOOFER, "10.0.0.1"));
}

/// Traffic of one peer does not affect the others, and a signal of a peer that shares nothing has no effect.
#[test]
fn one_event_among_a_thousand_members_touches_one() {
    let name = |n: u32| format!("10.{}.{}.0/24", n >> 8, n & 0xff);
    let names: Vec<[String; 2]> = (0..1_000).map(|n| [name(n), name((n + 1) % 1_000)]).collect();
    let all: Vec<Vec<&str>> = names.iter().map(|both| both.iter().map(String::as_str).collect()).collect();
    let peers: Vec<_> = (0..1_000).map(|n| (PeerId(n), 20, &all[n as usize][..])).collect();
    let mut world = World::new(&peers);
    for (peer, signal) in [(500, Signal::Unanswered), (500, Signal::RoundTrip(ms(9))), (501, Signal::Carried)] {
        let count = world.tell(Event::Signal { peer: PeerId(peer), signal });
        assert!(count <= 5, "{signal:?}: {count}");
    }
    assert!(world.engine.schedule.len() <= 4);
}

fn some_prefixes() -> impl Strategy<Value = Vec<IpNet>> {
    let one = (0_u8..4, 0_u8..3)
        .prop_map(|(high, len)| IpNet::new(IpAddr::from([high << 6, 0, 0, 0]), len).expect("a length").trunc());
    proptest::collection::vec(one, 0..4)
}

#[derive(Clone, Debug)]
enum Step {
    Set(u32, Vec<IpNet>),
    Remove(u32),
    Signal(u32, u8),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0_u32..4, some_prefixes()).prop_map(|(peer, nets)| Step::Set(peer, nets)),
        1 => (0_u32..4).prop_map(Step::Remove),
        6 => (0_u32..4, 0_u8..8).prop_map(|(peer, signal)| Step::Signal(peer, signal)),
        4 => (0_u16..30_000).prop_map(Step::Pass),
    ]
}

fn signal(kind: u8, now: Instant) -> Signal {
    match kind {
        0 => Signal::Heard { data: None },
        1 => Signal::Heard { data: Some(now) },
        2 => Signal::Carried,
        3 => Signal::Unanswered,
        4 => Signal::HandshakeComplete,
        5 => Signal::HandshakeFailed,
        6 => Signal::SessionWanted,
        _ => Signal::RoundTrip(Duration::from_nanos(now.as_nanos() % 90_000_000)),
    }
}

proptest! {
    /// For any events in any order: each prefix is held by one of the peers that have it, all of them may send from it,
    /// the holders are watched, and no state is left over.
    #[test]
    fn the_table_is_as_the_model(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::new(&[]);
        let mut model: BTreeMap<u32, BTreeSet<IpNet>> = BTreeMap::new();
        for peer in 0..4 {
            world.nodes.insert(PeerId(peer), Node::default());
        }
        for step in steps {
            match step {
                Step::Set(peer, nets) => {
                    let config = PeerRoutes { allowed_ips: nets.clone(), role: Role::Router };
                    world.tell(Event::Peer { peer: PeerId(peer), config: &config });
                    model.insert(peer, nets.into_iter().collect());
                }
                Step::Remove(peer) => {
                    world.tell(Event::PeerRemoved { peer: PeerId(peer) });
                    model.remove(&peer);
                }
                Step::Signal(peer, kind) => {
                    let signal = signal(kind, world.now);
                    world.tell(Event::Signal { peer: PeerId(peer), signal });
                }
                Step::Pass(time) => {
                    world.now = world.now + ms(time.into());
                    world.tell(Event::Time);
                }
            }
            let of = |net: &IpNet| -> Vec<PeerId> {
                model.iter().filter(|(_, nets)| nets.contains(net)).map(|(peer, _)| PeerId(*peer)).collect()
            };
            let all: BTreeSet<IpNet> = model.values().flatten().copied().collect();
            let routes = world.table.snapshot();
            let mut holders = BTreeSet::new();
            for high in 0..4 {
                let address = IpAddr::from([high << 6, 0, 0, 1]);
                let longest = all.iter().filter(|net| net.contains(&address)).max_by_key(|net| net.prefix_len());
                let owners = longest.map(of).unwrap_or_default();
                match routes.target(address) {
                    None => prop_assert!(owners.is_empty()),
                    Some(Target::Peer(peer)) => prop_assert!(owners.contains(peer), "{peer:?} {owners:?}"),
                    other => prop_assert!(false, "{other:?}"),
                }
                for peer in (0..4).map(PeerId) {
                    prop_assert_eq!(routes.permits(peer, address), owners.contains(&peer));
                }
            }
            for (net, prefix) in &world.engine.prefixes {
                prop_assert_eq!(prefix.ranking.len().max(1), of(net).len());
                prop_assert_ne!(prefix.ranking.len(), 1);
                if prefix.ranking.len() > 1 {
                    holders.insert(prefix.holder);
                    for (rank, peer) in &prefix.ranking {
                        prop_assert_eq!(*rank, world.engine.rank(*peer));
                    }
                }
            }
            for (peer, node) in &world.nodes {
                prop_assert_eq!(node.watched, holders.contains(peer), "{:?}", peer);
            }
            prop_assert_eq!(world.engine.prefixes.len(), all.len());
            let scheduled = world.engine.carriers.values().filter(|carrier| carrier.scheduled.is_some()).count();
            prop_assert_eq!(world.engine.schedule.len(), scheduled);
        }
    }

    /// Without overlaps the result is the same as with StaticRoutes.
    #[test]
    fn where_nothing_overlaps_it_is_as_in_wireguard(
        owners in proptest::collection::vec((0_u32..4, 0_u32..4), 1..20),
    ) {
        let (mut members, mut fixed) = (Members::default(), StaticRoutes::default());
        let mut tables = [RouteTable::default(), RouteTable::default()];
        let mut owner: BTreeMap<u32, u32> = BTreeMap::new();
        let net = |n: u32| IpNet::new(IpAddr::from([10, n as u8, 0, 0]), 15 + n as u8 % 2).expect("a length").trunc();
        for (n, to) in owners {
            // Taken from one peer first, then given to the next.
            for (peer, gone) in owner.get(&n).map(|from| (*from, true)).into_iter().chain([(to, false)]) {
                if gone { owner.remove(&n) } else { owner.insert(n, to) };
                let mine = owner.iter().filter(|(_, owner)| **owner == peer).map(|(n, _)| net(*n << 1));
                let config = PeerRoutes { allowed_ips: mine.collect(), role: Role::Router };
                let event = Event::Peer { peer: PeerId(peer), config: &config };
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                members.handle(event, Instant::default(), &mut ours);
                fixed.handle(event, Instant::default(), &mut theirs);
                for (table, actions) in tables.iter_mut().zip([ours, theirs]) {
                    for action in actions {
                        match action {
                            Action::Install { prefix, hops } => table.install(prefix, hops.into()),
                            Action::Remove { prefix } => table.remove(prefix),
                            Action::Permit { peer, prefix, rule } => table.permit(peer, prefix, rule),
                            Action::Forbid { peer, prefix } => table.forbid(peer, prefix),
                            other => prop_assert!(false, "{other:?}"),
                        }
                    }
                }
            }
            let [ours, theirs] = tables.each_ref().map(RouteTable::snapshot);
            for second in 0..10 {
                let address = IpAddr::from([10, second, 0, 1]);
                prop_assert_eq!(ours.target(address), theirs.target(address));
                for peer in (0..4).map(PeerId) {
                    prop_assert_eq!(ours.permits(peer, address), theirs.permits(peer, address));
                }
            }
        }
    }
}
