//! Two ends that reach each other through a relay and look for a direct way, with NATs of every kind between them.
extern crate std;
use super::nat::{DEPENDENCES, Dependence, Kind, Nat};
use crate::{
    paths::{
        Candidate, CandidateKind, Candidates, Choice, Order, PathPolicy, Paths, Place, Probe, Relayed, Search, Seen,
        State, discovery::LET_GO, probe::NO_PATH, timing::BUSY, types::Address,
    },
    peer::PeerId,
    time::Instant,
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use std::println;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const START: Instant = Instant::from_nanos(5_000_000_000);
const RELAY: Place = Place::Peer(PeerId(9));
const PORT: u16 = 51_820;
/// One way, between any two machines that are not in one LAN.
const DELAY: Duration = Duration::from_millis(20);
/// Between two packets of data.
const DATA: Duration = Duration::from_millis(20);

/// What stands between an end and the rest of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Open,
    Behind(Kind),
    /// All UDP is dropped, except to and from the relay.
    Firewall,
}

enum What {
    Probe(Probe),
    Candidates(Candidates),
    Data,
    /// The answer of an observer.
    Observed(PeerId, SocketAddr),
}

struct End {
    paths: Paths,
    search: Search,
    inside: SocketAddr,
    /// Its NAT, by its number.
    nat: Option<usize>,
    firewall: bool,
    choice: Choice,
    data: u64,
    /// Where data goes without a choice: where the peer was last heard.
    endpoint: Place,
    last_heard: Instant,
    longest_silence: Duration,
    /// When it began to use an address.
    direct_since: Option<Instant>,
    /// The program is of a version that knows no candidates and probes of version 1 only.
    old: bool,
    probes: BTreeMap<SocketAddr, Vec<Instant>>,
    /// Requests by paths that lead to an address.
    asked: u32,
    told: u32,
}

struct World {
    now: Instant,
    seed: u64,
    ends: [End; 2],
    nats: Vec<Nat>,
    /// Machines of one LAN reach each other there.
    lan: bool,
    /// Direct ways are blocked: everything between the two ends is dropped.
    blocked: bool,
    relay_works: bool,
    /// How often each end has moved to another site, and where the relay has heard it last.
    site: [u32; 2],
    relay_knows: [u32; 2],
    /// Neither end reaches anybody.
    offline: bool,
    traffic: bool,
    /// The ends that send data.
    speaks: [bool; 2],
    observers: u32,
    flying: BTreeMap<(Instant, u64), (usize, Place, What)>,
    sent: u64,
    next_data: Instant,
}

fn address(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::from((ip, port))
}

impl World {
    fn new(accesses: [Access; 2], seed: u64) -> Self {
        let mut nats = Vec::new();
        let ends = [0, 1].map(|end: usize| {
            let access = accesses[end];
            let nat = if let Access::Behind(kind) = access {
                nats.push(Nat::new(kind, Ipv4Addr::new(198, 51, 100, end as u8 + 1), seed + 3_000 * end as u64));
                Some(nats.len() - 1)
            } else {
                None
            };
            let ip = if nat.is_some() { [192, 168, end as u8, 2] } else { [203, 0, 113, 10 + end as u8] };
            End::new(address(ip, PORT), nat, access == Access::Firewall, seed + end as u64)
        });
        Self {
            now: START,
            seed,
            ends,
            nats,
            lan: true,
            blocked: false,
            relay_works: true,
            site: [0; 2],
            relay_knows: [0; 2],
            offline: false,
            traffic: true,
            speaks: [true; 2],
            observers: 2,
            flying: BTreeMap::new(),
            sent: 0,
            next_data: START,
        }
    }

    /// Both ends are behind one NAT.
    fn behind_one(kind: Kind, seed: u64) -> Self {
        let mut world = Self::new([Access::Behind(kind); 2], seed);
        world.nats.truncate(1);
        world.ends[1] = End::new(address([192, 168, 0, 3], PORT), Some(0), false, seed + 1);
        world
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.seed >> 33) * u64::from(below)) >> 31) as u32
    }

    /// The session begins: there is something to send.
    fn begin(&mut self) {
        let now = self.now;
        for end in &mut self.ends {
            end.paths.put(0, RELAY, now);
            end.paths.heard(RELAY, now);
            end.paths.established(now);
            end.paths.wake(now);
            end.last_heard = now;
        }
        for end in 0..2 {
            self.orders(end, vec![]);
        }
    }

    /// Where a datagram from this end to that address arrives: at which end, from where, after how long.
    fn route(&mut self, end: usize, to: SocketAddr) -> Option<(usize, SocketAddr, Duration)> {
        let other = 1 - end;
        let (from, nat) = (self.ends[end].inside, self.ends[end].nat);
        if self.ends[end].firewall || self.ends[other].firewall || self.blocked || self.offline {
            return None;
        }
        let one_lan = nat.is_some() && nat == self.ends[other].nat;
        if to == self.ends[other].inside && (nat.is_none() && self.ends[other].nat.is_none() || one_lan && self.lan) {
            return Some((other, from, if one_lan { MS / 2 } else { DELAY }));
        }
        let seen = match nat {
            Some(nat) => self.nats[nat].out(from, to, self.now),
            None => from,
        };
        let Some(theirs) = self.ends[other].nat else {
            return (to == self.ends[other].inside).then_some((other, seen, DELAY));
        };
        if to.ip() != self.nats[theirs].ip || one_lan && !self.nats[theirs].kind.hairpin {
            return None;
        }
        let inside = self.nats[theirs].inside(to.port(), seen, self.now)?;
        let at = self.ends.iter().position(|end| end.nat == Some(theirs) && end.inside == inside)?;
        Some((at, seen, DELAY))
    }

    fn send(&mut self, end: usize, to: Place, what: What) {
        let arrives = match to {
            Place::Peer(_) => {
                // The relay's session keeps its mapping open.
                self.keep_relay_mapping(end);
                let carries = self.relay_works && !self.offline;
                if carries {
                    self.relay_knows[end] = self.site[end];
                }
                carries.then_some((1 - end, RELAY, 2 * DELAY))
            }
            Place::Address(at) => self.route(end, at.remote).map(|(at, from, delay)| {
                let local = Some(self.ends[at].inside.ip());
                (at, Place::from(Address { local, interface: 2, ..Address::new(from) }), delay)
            }),
        };
        if let Some((at, from, delay)) = arrives {
            let jitter = Duration::from_micros(self.random(400).into());
            self.sent += 1;
            self.flying.insert((self.now + delay + jitter, self.sent), (at, from, what));
        }
    }

    fn observer(n: u32) -> SocketAddr {
        address([192, 0, 2, n as u8 + 1], PORT)
    }

    fn keep_relay_mapping(&mut self, end: usize) -> SocketAddr {
        match self.ends[end].nat {
            Some(nat) => self.nats[nat].out(self.ends[end].inside, Self::observer(0), self.now),
            None => self.ends[end].inside,
        }
    }

    fn orders(&mut self, end: usize, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Probe { to, mut probe } => {
                    if let (true, Probe::Reply(reply)) = (self.ends[end].old, &mut probe) {
                        reply.newest = reply.version;
                    }
                    if let (Probe::Request(request), Place::Address(at)) = (&probe, to) {
                        if request.path != NO_PATH {
                            self.ends[end].asked += 1;
                        } else {
                            assert!(self.ends[end].search.allows(at.remote), "{at:?}");
                            self.ends[end].probes.entry(at.remote).or_default().push(self.now);
                        }
                    }
                    self.send(end, to, What::Probe(probe));
                }
                Order::Tell { to, message } => {
                    self.ends[end].told += 1;
                    let text = message.to_bytes();
                    assert!(text.len() <= 336, "it fits every path");
                    let message = Candidates::parse(&text).expect("what is sent is understood");
                    self.send(end, to, What::Candidates(message));
                }
                Order::Observe => {
                    for n in 0..self.observers {
                        let seen = match self.ends[end].nat {
                            Some(nat) => self.nats[nat].out(self.ends[end].inside, Self::observer(n), self.now),
                            None => self.ends[end].inside,
                        };
                        self.sent += 1;
                        let event = (end, RELAY, What::Observed(PeerId(9 - n), seen));
                        self.flying.insert((self.now + 2 * DELAY, self.sent), event);
                    }
                }
                Order::State { .. } | Order::Elsewhere { .. } => {}
                Order::Handshake => {}
            }
        }
        let now = self.now;
        let end = &mut self.ends[end];
        if let Some(choice) = end.paths.changes(now) {
            end.choice = choice;
            let direct = end.choice.active.is_some_and(|active| active.relay().is_none());
            end.direct_since = if direct { end.direct_since.or(Some(now)) } else { None };
        }
    }

    fn arrive(&mut self, end: usize, from: Place, what: What) {
        let random = self.random(u32::MAX >> 1);
        let now = self.now;
        let me = &mut self.ends[end];
        let mut orders = vec![];
        match what {
            What::Probe(Probe::Request(request)) if me.old && request.version > crate::paths::Version::V1 => {}
            What::Candidates(_) if me.old => {}
            What::Probe(Probe::Request(request)) => me.paths.request(from, &request, random, now, &mut orders),
            What::Probe(Probe::Reply(reply)) => me.paths.reply(&reply, &me.search, now, &mut orders),
            What::Candidates(message) => me.paths.candidates(&message, &me.search, now, &mut orders),
            What::Observed(observer, seen) => {
                if me.search.seen_by(observer, seen, now) {
                    me.paths.candidates_changed(now);
                }
            }
            What::Data => {
                me.data += 200;
                me.longest_silence = me.longest_silence.max(now.since(me.last_heard));
                me.last_heard = now;
                me.paths.wake(now);
                if !me.choice.pinned && !me.choice.known.iter().any(|known| known.covers(&from)) {
                    me.endpoint = from;
                    me.paths.heard(from, now);
                }
            }
        }
        self.orders(end, orders);
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let arrival = self.flying.keys().next().map(|&(at, _)| at);
            let deadline = self.ends.iter().filter_map(|end| end.paths.deadline()).min();
            let data = self.traffic.then_some(self.next_data);
            let next = [arrival, deadline, data].into_iter().flatten().min();
            let Some(next) = next.filter(|&at| at <= until) else { break };
            self.now = next.max(self.now);
            let now = self.now;
            if data.is_some_and(|at| at <= now) {
                self.next_data = now + DATA;
                let speaks = self.speaks;
                for end in (0..2).filter(|&end| speaks[end]) {
                    self.ends[end].data += 200;
                    self.ends[end].paths.wake(now);
                    let to = self.ends[end].choice.active.unwrap_or(self.ends[end].endpoint);
                    self.send(end, to, What::Data);
                }
            }
            if arrival.is_some_and(|at| at <= now) {
                let (_, (end, from, what)) = self.flying.pop_first().expect("it was looked at");
                if from != RELAY || self.relay_knows[end] == self.site[end] {
                    self.arrive(end, from, what);
                }
            }
            for end in 0..2 {
                let me = &mut self.ends[end];
                if me.paths.deadline().is_some_and(|at| at <= now) {
                    let mut orders = vec![];
                    let seen = Seen { session: true, data: me.data, unanswered: None };
                    me.paths.tick(seen, &mut me.search, now, &mut orders);
                    assert!(me.paths.deadline().is_none_or(|at| at >= now), "a deadline stays in the past");
                    self.orders(end, orders);
                }
            }
        }
        self.now = until;
    }

    fn pause(&mut self, time: Duration) {
        self.traffic = false;
        self.run(time);
    }

    /// There is traffic again. The silence before does not count.
    fn resume(&mut self, time: Duration) {
        (self.traffic, self.next_data) = (true, self.now);
        for end in &mut self.ends {
            (end.last_heard, end.longest_silence) = (self.now, Duration::ZERO);
        }
        self.run(time);
    }

    /// No traffic but a ping in a second, from the first end to the second, which answers where it was reached.
    fn ping(&mut self, times: u32) {
        self.traffic = false;
        for _ in 0..times {
            for end in 0..2 {
                let to = self.ends[0].choice.active.unwrap_or(self.ends[0].endpoint);
                if end == 0 || to.relay().is_some() || !self.blocked {
                    self.ends[end].paths.asked(self.now);
                    self.orders(end, vec![]);
                }
            }
            self.run(SECOND);
        }
    }

    /// Measures silence from now on.
    fn count_silence(&mut self) {
        for end in &mut self.ends {
            (end.last_heard, end.longest_silence) = (self.now, Duration::ZERO);
        }
    }

    fn silence(&self) -> Duration {
        self.ends.iter().map(|end| end.longest_silence.max(self.now.since(end.last_heard))).max().expect("two ends")
    }

    fn direct(&self) -> [bool; 2] {
        [0, 1].map(|end| self.ends[end].choice.active.is_some_and(|active| active.relay().is_none()))
    }

    fn why(&self) -> [Option<Relayed>; 2] {
        [0, 1].map(|end| self.ends[end].paths.relayed(&self.ends[end].search))
    }

    /// When the later of both ends began to use a direct way.
    fn direct_after(&self, from: Instant) -> Option<Duration> {
        let since = |end: &End| end.direct_since.map(|at| at.since(from));
        Some(since(&self.ends[0])?.max(since(&self.ends[1])?))
    }

    /// The end's router has another address outside. The end itself does not notice.
    fn move_site(&mut self, end: usize) {
        self.site[end] += 1;
        let nat = &mut self.nats[self.ends[end].nat.expect("behind a NAT")];
        nat.ip = Ipv4Addr::new(198, 51, 100 + self.site[end] as u8, end as u8 + 1);
        nat.forget();
    }

    /// The end has another address, behind the same NAT or none.
    fn roam(&mut self, end: usize, ip: [u8; 4]) {
        let now = self.now;
        let me = &mut self.ends[end];
        me.inside = address(ip, PORT);
        let mut changed = me.search.network_changed(now);
        changed |= me.search.set_candidates(vec![candidate(me.inside)], now);
        me.paths.network_changed(now);
        if changed {
            me.paths.candidates_changed(now);
        }
        self.orders(end, vec![]);
    }
}

fn candidate(address: SocketAddr) -> Candidate {
    Candidate { address, kind: CandidateKind::Interface }
}

impl End {
    fn new(inside: SocketAddr, nat: Option<usize>, firewall: bool, seed: u64) -> Self {
        let mut secret = [7; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        let mut search = Search::new(secret);
        search.forbid(vec!["10.99.0.0/16".parse().expect("a prefix")]);
        search.set_candidates(vec![candidate(inside)], START);
        Self {
            paths: Paths::look_for_direct_ways(&[PathPolicy::Best], START),
            search,
            inside,
            nat,
            firewall,
            choice: Choice::default(),
            data: 0,
            endpoint: RELAY,
            last_heard: START,
            longest_silence: Duration::ZERO,
            direct_since: None,
            old: false,
            probes: BTreeMap::new(),
            asked: 0,
            told: 0,
        }
    }

    /// The most probes of candidates within any time of this length, to one address and to all.
    fn most_probes(&self, within: Duration) -> (usize, usize) {
        let most = |times: &[Instant]| {
            let count = |from: &Instant| times.iter().filter(|at| *at >= from && at.since(*from) < within).count();
            times.iter().map(count).max().unwrap_or(0)
        };
        let all: Vec<_> = self.probes.values().flatten().copied().collect();
        (self.probes.values().map(|times| most(times)).max().unwrap_or(0), most(&all))
    }
}

fn accesses() -> Vec<Access> {
    let mut all = vec![Access::Open, Access::Firewall];
    for mapping in DEPENDENCES {
        for filtering in DEPENDENCES {
            for keeps_port in [true, false] {
                all.push(Access::Behind(Kind { mapping, filtering, keeps_port, hairpin: false }));
            }
        }
    }
    all
}

/// What theory says (RFC 4787, RFC 5128): whether the ends can reach each other directly.
fn possible(accesses: [Access; 2]) -> bool {
    let [Some(a), Some(b)] = accesses.map(|access| match access {
        Access::Open => Some((true, Dependence::Endpoint)),
        Access::Behind(kind) => Some((kind.is_predictable(), kind.filtering)),
        Access::Firewall => None,
    }) else {
        return false;
    };
    let strict = |(_, filtering): (bool, Dependence)| filtering == Dependence::AddressAndPort;
    let open = |(_, filtering): (bool, Dependence)| filtering == Dependence::Endpoint;
    match (a.0, b.0) {
        (true, true) => true,
        // The port of the other is known by its first datagram, if that comes in.
        (true, false) => !strict(a),
        (false, true) => !strict(b),
        (false, false) => open(a) && !strict(b) || open(b) && !strict(a),
    }
}

#[test]
fn whatever_can_be_direct_becomes_direct_and_the_rest_stays_relayed() {
    let (mut took, mut relayed) = (vec![], 0);
    for (seed, a) in (1..).zip(accesses()) {
        for (other, b) in (1..).zip(accesses()) {
            let seed = 100 * seed + other;
            let mut world = World::new([a, b], seed);
            world.begin();
            world.run(5 * SECOND);
            let what = std::format!("{a:?} and {b:?}, seed {seed}");
            assert_eq!(world.direct(), [possible([a, b]); 2], "{what}: {:?}", world.why());
            assert!(world.silence() < 500 * MS, "{what}: {:?}", world.silence());
            for end in &world.ends {
                assert!(end.most_probes(60 * SECOND).0 <= 20, "{what}");
            }
            match world.direct_after(START) {
                Some(after) => took.push(after),
                None => relayed += 1,
            }
        }
    }
    took.sort();
    println!(
        "{} pairs became direct after {:?} (median), {:?} (longest); {relayed} stayed relayed",
        took.len(),
        took[took.len() / 2],
        took.last()
    );
    assert!(took.last() < Some(&SECOND), "links of 20 ms, 40 ms through the relay: {:?}", took.last());
}

const EASY: Access = Access::Behind(Kind {
    mapping: Dependence::Endpoint,
    filtering: Dependence::AddressAndPort,
    keeps_port: false,
    hairpin: false,
});
const HARD: Access = Access::Behind(Kind {
    mapping: Dependence::AddressAndPort,
    filtering: Dependence::AddressAndPort,
    keeps_port: false,
    hairpin: false,
});

/// Two ends that have become direct.
fn direct_world(accesses: [Access; 2], seed: u64) -> World {
    let mut world = World::new(accesses, seed);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.direct(), [true; 2], "seed {seed}");
    world.count_silence();
    world
}

/// Of many runs, the middle and the longest.
fn summary(what: &str, mut all: Vec<Duration>) {
    all.sort();
    println!("{what}: {:?} (median), {:?} (longest of {})", all[all.len() / 2], all[all.len() - 1], all.len());
}

#[test]
fn why_it_stays_relayed() {
    let why = |accesses| {
        let mut world = World::new(accesses, 5);
        world.begin();
        world.run(SECOND);
        assert_eq!(world.why(), [Some(Relayed::Looking); 2]);
        world.run(10 * SECOND);
        world.why()
    };
    assert_eq!(why([HARD; 2]), [Some(Relayed::BothMapPerDestination); 2]);
    assert_eq!(why([EASY, HARD]), [Some(Relayed::NoAnswer); 2]);
    assert_eq!(why([Access::Open, Access::Firewall]), [Some(Relayed::NoAnswer); 2]);
    assert_eq!(why([HARD, Access::Firewall]), [Some(Relayed::NoAnswer); 2]);

    let mut world = World::new([EASY; 2], 5);
    world.ends[1].paths = Paths::new(&[PathPolicy::Best], START);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.why(), [Some(Relayed::NoCandidates), Some(Relayed::Off)]);
    world.pause(LET_GO + BUSY);
    assert_eq!(world.why(), [Some(Relayed::Idle), Some(Relayed::Off)]);
    assert_eq!(direct_world([EASY; 2], 5).why(), [None; 2]);
}

#[test]
fn a_direct_way_that_is_blocked_costs_half_a_second_and_comes_back() {
    let (mut silent, mut back) = (vec![], [vec![], vec![]]);
    for seed in 0..12 {
        let mut world = direct_world([[EASY, Access::Open][seed as usize % 2], EASY], seed);
        world.run(seed as u32 * 17 * MS);
        world.blocked = true;
        world.run(20 * SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        silent.push(world.silence());
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
        // For long: what was found is forgotten, and looked for every three minutes.
        world.run((seed % 2) as u32 * 300 * SECOND);
        world.blocked = false;
        let unblocked = world.now;
        world.run(200 * SECOND);
        back[seed as usize % 2].push(world.direct_after(unblocked).expect("both are direct again"));
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
    summary("silence when the direct way is blocked", silent);
    let [soon, late] = back;
    summary("until it is used again after 20 s", soon);
    assert!(late.iter().max() < Some(&(40 * SECOND)), "{late:?}");
    summary("until it is used again after five minutes", late);
}

#[test]
fn a_direct_way_that_is_blocked_for_hours_is_asked_less_and_less() {
    let mut world = direct_world([EASY; 2], 4);
    world.blocked = true;
    world.run(2 * SECOND);
    let mut counts = vec![];
    for minutes in [1, 9, 50, 60] {
        for end in &mut world.ends {
            end.asked = 0;
        }
        world.run(minutes * 60 * SECOND);
        counts.push(world.ends[0].asked);
    }
    println!("blocked: {counts:?} requests in the first minute, the next nine, fifty, and the hour after");
    // One place, or two: the end may have been seen at another port.
    assert!(counts[0] <= 2 * 30 && counts[1] <= 2 * 34 && counts[2] <= 2 * 121, "{counts:?}");
    assert_eq!(counts[3], 0, "it is forgotten");
    world.blocked = false;
    world.run(180 * SECOND);
    assert_eq!(world.direct(), [true; 2], "and found as at first");
}

#[test]
fn a_silent_end_is_found_again_when_both_sites_move() {
    for accesses in [[HARD; 2], [EASY; 2]] {
        for offline in [0, 1, 5, 15, 60] {
            let mut found = vec![];
            for seed in 0..4 {
                let mut world = World::new(accesses, seed);
                world.speaks = [true, false];
                world.begin();
                world.run(10 * SECOND + seed as u32 * 37 * MS);
                world.offline = offline > 0;
                for end in 0..2 {
                    world.move_site(end);
                }
                world.run(offline * SECOND);
                world.offline = false;
                world.count_silence();
                world.run(60 * SECOND);
                let silence = world.ends[1].longest_silence;
                assert!(silence < 2 * SECOND, "{accesses:?}, {offline} s, seed {seed}: {silence:?}");
                assert_eq!(world.direct(), [accesses == [EASY; 2]; 2], "seed {seed}: {:?}", world.why());
                found.push(silence);
            }
            summary(&std::format!("silence when both sites move, after {offline} s without a network"), found);
        }
    }
}

#[test]
fn a_nat_that_forgets_and_a_relay_that_dies() {
    let mut silent = vec![];
    for seed in 0..12 {
        let other = [EASY, Access::Open, Access::Behind(Kind { filtering: Dependence::Endpoint, ..easy() })];
        let mut world = direct_world([EASY, other[seed as usize % 3]], seed);
        world.relay_works = false;
        world.run(10 * SECOND);
        assert!(world.silence() < 100 * MS, "seed {seed}: what is direct needs no relay");
        world.relay_works = true;
        world.run(10 * SECOND);
        let forgot = world.now;
        world.nats[0].forget();
        world.run(30 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        silent.push(world.silence());
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?} since {forgot:?}", world.silence());
    }
    summary("silence when a NAT forgets", silent);
}

fn easy() -> Kind {
    match EASY {
        Access::Behind(kind) => kind,
        _ => unreachable!(),
    }
}

#[test]
fn one_roams_and_both_roam() {
    let mut silent = vec![];
    for seed in 0..24 {
        let mut world = direct_world([EASY; 2], seed);
        world.run(seed as u32 * 7 * MS);
        for end in 0..2 {
            if seed % 3 == 2 || seed % 3 == end as u64 {
                world.roam(end, [192, 168, end as u8, 77]);
            }
        }
        world.run(20 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}: {:?}", world.why());
        silent.push(world.silence());
        assert!(world.silence() < 600 * MS, "seed {seed}: {:?}", world.silence());
    }
    summary("silence when one or both roam", silent);
}

#[test]
fn silence_costs_nothing_and_the_next_packet_goes_through_the_relay_at_once() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        world.pause(LET_GO + SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        // What the last probes have promised expires.
        world.pause(150 * SECOND);
        let sent = world.sent;
        for end in &world.ends {
            assert_eq!(end.paths.deadline(), None, "seed {seed}");
        }
        world.pause(3_600 * SECOND);
        assert_eq!(world.sent, sent, "not one datagram");
        let now = world.now;
        world.resume(10 * SECOND);
        assert!(world.silence() < 100 * MS, "seed {seed}: {:?}", world.silence());
        let after = world.direct_after(now).expect("direct again");
        assert!(after < SECOND, "seed {seed}: {after:?}");
    }
}

#[test]
fn a_ping_in_a_second_finds_a_direct_way_and_notices_that_it_is_blocked() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        world.pause(LET_GO + 150 * SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        world.ping(3);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        world.pause(BUSY + 10 * SECOND);
        world.blocked = true;
        world.ping(3);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
    }
}

#[test]
fn a_short_pause_keeps_the_direct_way() {
    let mut world = direct_world([EASY; 2], 3);
    let before = world.sent;
    world.pause(100 * SECOND);
    assert!(world.sent - before < 150, "{} datagrams in a pause", world.sent - before);
    world.resume(5 * SECOND);
    assert_eq!(world.direct(), [true; 2]);
    assert!(world.silence() < 50 * MS, "{:?}", world.silence());
}

#[test]
fn a_nat_with_short_timeouts_loses_no_traffic() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        for nat in &mut world.nats {
            nat.timeout = 10 * SECOND;
        }
        world.pause(60 * SECOND);
        world.resume(30 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
}

#[test]
fn behind_one_nat_the_lan_is_taken_and_where_there_is_none_the_hairpin() {
    for mapping in DEPENDENCES {
        for hairpin in [false, true] {
            let kind = Kind { mapping, filtering: Dependence::Address, keeps_port: false, hairpin };
            let mut world = World::behind_one(kind, 3);
            world.begin();
            world.run(10 * SECOND);
            assert_eq!(world.direct(), [true; 2]);
            let ips = [0, 1].map(|end| world.ends[end].choice.active.and_then(|active| Some(active.address()?.remote)));
            assert_eq!(ips, [1, 0].map(|other: usize| Some(world.ends[other].inside)), "{kind:?}");

            let mut world = World::behind_one(kind, 3);
            world.lan = false;
            world.begin();
            world.run(10 * SECOND);
            let expected = hairpin && mapping == Dependence::Endpoint;
            assert_eq!(world.direct(), [expected; 2], "{kind:?}: {:?}", world.why());
        }
    }
}

#[test]
fn what_stays_relayed_is_asked_for_every_three_minutes() {
    let mut world = World::new([HARD; 2], 9);
    world.begin();
    world.run(600 * SECOND);
    for end in &mut world.ends {
        (end.probes, end.told) = (BTreeMap::new(), 0);
    }
    world.count_silence();
    world.run(3_600 * SECOND);
    for end in &world.ends {
        let (most, all) = end.most_probes(3_600 * SECOND);
        println!("relayed for an hour: {all} probes of candidates, {most} to one address, {} messages", end.told);
        assert!(most <= 21 * 10 * 2 && all <= 21 * 10 * 3 * 2 && end.told <= 21 * 3 * 2, "{most}, {all}, {}", end.told);
    }
    assert!(world.silence() < 100 * MS);
}

#[test]
fn an_older_program_is_left_alone_and_reached_as_before() {
    for seed in 0..3 {
        let mut world = World::new([Access::Open; 2], seed);
        world.ends[1].old = true;
        world.ends[1].paths = Paths::new(&[], START);
        world.ends[0].paths = Paths::look_for_direct_ways(&[PathPolicy::Best; 2], START);
        let to = world.ends[1].inside;
        world.ends[0].paths.put(1, Address::new(to).into(), START);
        world.begin();
        world.run(60 * SECOND);
        assert_eq!(world.direct(), [true; 2], "by the configured address, and it follows");
        assert!(world.silence() < 100 * MS, "seed {seed}: {:?}", world.silence());
        assert!(world.ends[0].probes.is_empty(), "no probe of version 2");
        assert!(world.ends[0].told <= 6, "{} messages that nobody reads", world.ends[0].told);
        world.blocked = true;
        world.run(10 * SECOND);
        assert_eq!(world.direct(), [false; 2]);
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
}

#[test]
fn a_peer_that_goes_back_to_an_older_program_is_reached_as_before() {
    let mut world = World::new([Access::Open; 2], 5);
    world.ends[0].paths = Paths::look_for_direct_ways(&[PathPolicy::Best; 2], START);
    let to = world.ends[1].inside;
    world.ends[0].paths.put(1, Address::new(to).into(), START);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.direct(), [true; 2]);
    let now = world.now;
    (world.ends[1].old, world.ends[1].paths) = (true, Paths::new(&[], now));
    // The first session finds that nothing answers version 2.
    for _ in 0..2 {
        let now = world.now;
        world.ends.iter_mut().for_each(|end| end.paths.established(now));
        world.run(10 * SECOND);
    }
    let states: Vec<_> = world.ends[0].paths.report().iter().take(2).map(|path| path.state).collect();
    assert_eq!(states, [State::Up; 2]);
    assert_eq!(world.direct(), [true; 2]);
}

#[test]
fn a_newer_program_answers_an_older_one() {
    let mut world = World::new([Access::Open; 2], 4);
    world.ends[0].old = true;
    world.ends[0].paths = Paths::new(&[PathPolicy::Best; 2], START);
    let to = world.ends[1].inside;
    world.ends[0].paths.put(1, Address::new(to).into(), START);
    world.begin();
    world.run(60 * SECOND);
    assert!(world.direct()[0]);
    assert!(world.silence() < 100 * MS, "{:?}", world.silence());
    assert!(world.ends[1].probes.is_empty(), "a request of version 1 is no reason for one of version 2");
}

impl Paths {
    /// The bytes on the heap.
    fn memory(&self) -> usize {
        let discovery = self.discovery.as_ref().map_or(0, |discovery| discovery.memory());
        self.own.capacity() * size_of::<crate::paths::path::Own>() + discovery
    }
}

/// One end, whose peer says and answers what it likes.
struct Alone {
    now: Instant,
    paths: Paths,
    search: Search,
    data: u64,
    probes: Vec<(Instant, SocketAddr, crate::paths::Request)>,
}

impl Alone {
    fn new() -> Self {
        let mut end = End::new(address([203, 0, 113, 10], PORT), None, false, 1);
        end.paths.put(0, RELAY, START);
        end.paths.heard(RELAY, START);
        end.paths.established(START);
        Self { now: START, paths: end.paths, search: end.search, data: 0, probes: vec![] }
    }

    fn tick(&mut self) {
        self.data += 1_000;
        self.paths.wake(self.now);
        let mut orders = vec![];
        let seen = Seen { session: true, data: self.data, unanswered: None };
        self.paths.tick(seen, &mut self.search, self.now, &mut orders);
        for order in orders {
            if let Order::Probe { to, probe: Probe::Request(request) } = order {
                match to.address() {
                    Some(to) => self.probes.push((self.now, to.remote, request)),
                    // The way through the relay works.
                    None => {
                        let reply = request.reply(0, RELAY);
                        self.paths.reply(&reply, &self.search, self.now, &mut vec![]);
                    }
                }
            }
        }
    }

    fn is_direct(&mut self) -> bool {
        self.paths.changes(self.now);
        self.paths.relayed(&self.search).is_none()
    }

    fn told(&mut self, generation: u32, list: impl IntoIterator<Item = SocketAddr>) {
        let list = list.into_iter().map(candidate).collect();
        let message = Candidates { generation, look: true, list, ..Candidates::default() };
        self.paths.candidates(&message, &self.search, self.now, &mut vec![]);
    }
}

#[test]
fn a_peer_cannot_make_us_scan_or_flood() {
    let mut alone = Alone::new();
    let victim = |n: u32| address([203, 0, (n >> 8) as u8, n as u8], 1 + (n >> 16) as u16);
    // Every 100 ms another list, with a call to look, and requests from elsewhere; for ten minutes.
    for step in 0..6_000 {
        let list = (0..16).map(|n| if n < 8 { victim(step * 16 + n) } else { victim(n) });
        alone.told(step + 1, list);
        let from = Place::from(Address::new(victim(1 << 20 | step)));
        let request = crate::paths::Request::about_no_path(0, 0);
        alone.paths.request(from, &request, 1, alone.now, &mut vec![]);
        alone.tick();
        alone.now = alone.now + 100 * MS;
    }
    let from = START + 300 * SECOND;
    let minute: Vec<_> = alone.probes.iter().filter(|(at, ..)| *at >= from && at.since(from) < 60 * SECOND).collect();
    let mut by_address = BTreeMap::<SocketAddr, usize>::new();
    for (_, to, _) in &minute {
        *by_address.entry(*to).or_default() += 1;
    }
    let most = by_address.values().max().copied().unwrap_or(0);
    println!(
        "a hostile peer: {} probes in a minute, to {} addresses, at most {most} to one",
        minute.len(),
        by_address.len()
    );
    assert!(most <= 20, "{most}");
    assert!(minute.len() <= 2 * 480 && by_address.len() <= 2 * 48, "{} to {}", minute.len(), by_address.len());
    assert!(!alone.is_direct());
}

#[test]
fn many_peers_together_cannot_flood_one_host() {
    let mut search = Search::new([1; 32]);
    let mut all: Vec<Alone> = (0..200).map(|_| Alone::new()).collect();
    let mut sent = 0;
    for step in 0..100 {
        let now = START + step * 100 * MS;
        for (n, alone) in all.iter_mut().enumerate() {
            alone.now = now;
            core::mem::swap(&mut alone.search, &mut search);
            alone.told(step + 1, (0..16).map(|port| address([203, 0, 113, 99], 1 + n as u16 * 16 + port)));
            alone.tick();
            core::mem::swap(&mut alone.search, &mut search);
        }
        sent = all.iter().map(|alone| alone.probes.len()).sum();
    }
    println!("200 hostile peers: {sent} probes to one host in ten seconds");
    assert!(sent <= 128 + 100, "{sent}");
}

#[test]
fn no_probe_goes_where_no_peer_can_be() {
    let mut alone = Alone::new();
    let never = [
        "0.0.0.0:1",
        "0.1.2.3:1",
        "127.0.0.1:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "240.0.0.1:1",
        "169.254.1.1:1",
        "10.99.1.1:1",
        "192.0.2.1:0",
        "[::]:1",
        "[::1]:1",
        "[ff02::1]:1",
        "[fe80::1]:1",
        "[::ffff:127.0.0.1]:1",
        "[::ffff:10.99.1.1]:1",
        "203.0.113.10:51820",
    ];
    alone.told(1, never.iter().map(|text| text.parse().expect("an address")));
    for address in never {
        let from = Place::from(Address::new(address.parse().expect("an address")));
        let request = crate::paths::Request::about_no_path(0, 0);
        alone.paths.request(from, &request, 1, alone.now, &mut vec![]);
        alone.tick();
        alone.now = alone.now + 100 * MS;
    }
    assert!(alone.probes.is_empty(), "{:?}", alone.probes);
    // And the others are probed: the test can fail.
    alone.told(2, [address([192, 0, 2, 1], 1)]);
    alone.tick();
    assert_eq!(alone.probes.len(), 1);
    // A prefix of a tunnel that has come since.
    alone.search.forbid(vec!["192.0.2.0/24".parse().expect("a prefix")]);
    alone.now = alone.now + 50 * MS;
    alone.tick();
    assert_eq!(alone.probes.len(), 1);
}

#[test]
fn a_peer_cannot_say_that_it_is_where_it_is_not() {
    let mut alone = Alone::new();
    let (victim, itself) = (address([192, 0, 2, 1], 1), address([192, 0, 2, 2], 1));
    alone.told(1, [victim, itself]);
    alone.tick();
    let asked: BTreeMap<_, _> = alone.probes.iter().map(|(_, to, request)| (*to, *request)).collect();
    let (to_victim, to_itself) = (asked[&victim], asked[&itself]);
    alone.now = alone.now + MS;
    // It got one of the two, with the same clock, and would have the other answered as well.
    for token in [0, 1, to_itself.token ^ 1, to_itself.token.wrapping_add(1)] {
        for clock in [to_victim.clock, to_victim.clock - 1, to_victim.clock + 1, 0, u64::MAX] {
            for path in [NO_PATH, 0, 1, 2, 3] {
                let request = crate::paths::Request { token, clock, path, ..to_victim };
                let reply = request.reply(0, RELAY);
                alone.paths.reply(&reply, &alone.search, alone.now, &mut vec![]);
            }
        }
    }
    assert!(!alone.is_direct());
    let reply = to_itself.reply(0, RELAY);
    alone.paths.reply(&reply, &alone.search, alone.now, &mut vec![]);
    assert!(alone.is_direct());
    // An answer of long ago is none.
    let places: Vec<_> = alone.paths.places();
    assert!(places.contains(&Address::new(itself).into()) && !places.contains(&Address::new(victim).into()));
    // What was found is asked by its number; again the answer has to come from there.
    alone.probes.clear();
    alone.now = alone.now + 10 * SECOND;
    let until = alone.now + 3 * SECOND;
    while alone.now < until {
        alone.tick();
        for (_, to, request) in core::mem::take(&mut alone.probes) {
            if to == itself {
                // Besides, it has kept a request that it got there.
                let kept = crate::paths::Request { path: request.path, ..to_itself };
                let forged = crate::paths::Request { token: 7, ..request };
                let older = crate::paths::Request { version: crate::paths::Version::V1, ..forged };
                for answered in [older, forged, kept] {
                    alone.paths.reply(&answered.reply(0, RELAY), &alone.search, alone.now, &mut vec![]);
                }
            }
        }
        alone.now = alone.now + 10 * MS;
    }
    assert!(!alone.is_direct(), "it has left, and says that it has not");
}

#[test]
fn who_delivers_a_message_of_the_peer_is_no_way_to_it_while_there_is_another() {
    let mut alone = Alone::new();
    alone.tick();
    assert!(alone.paths.certain());
    // Somebody on the way of an initiation, who is a peer as well, has handed it in.
    let courier = Place::Peer(PeerId(1));
    alone.paths.heard(courier, alone.now);
    assert_eq!(alone.paths.changes(alone.now).and_then(|choice| choice.active), Some(RELAY));
    assert!(!alone.paths.places().contains(&courier));
    // Without another, it is as good as any.
    alone.paths.lose_relays(|relay| Some(relay) == RELAY.relay(), alone.now);
    alone.paths.heard(courier, alone.now);
    assert_eq!(alone.paths.changes(alone.now).and_then(|choice| choice.active), Some(courier));
}

#[test]
fn peers_take_turns() {
    let mut search = Search::new([1; 32]);
    let starts: Vec<_> = (0..1_000).map(|_| search.turn(START).since(START)).collect();
    assert!(starts.is_sorted(), "who comes first, begins first");
    let at_once = |time| starts.iter().filter(|start| **start == time).count();
    assert_eq!((at_once(Duration::ZERO), at_once(SECOND)), (32, 32));
    println!("the last of 1,000 peers that begin at once waits for {:?}", starts[999]);
    assert_eq!(search.turn(START + 60 * SECOND), START + 60 * SECOND);
}

#[test]
fn an_older_list_that_comes_late_is_none() {
    let mut alone = Alone::new();
    let (new, old) = (address([192, 0, 2, 1], 1), address([192, 0, 2, 2], 1));
    alone.told(8, [new]);
    alone.told(7, [old]);
    alone.tick();
    assert_eq!(alone.probes.iter().map(|(_, to, _)| *to).collect::<Vec<_>>(), [new]);
    // In another session, the peer may have begun anew.
    alone.paths.established(alone.now);
    alone.told(1, [old]);
    alone.tick();
    assert_eq!(alone.probes.last().map(|(_, to, _)| *to), Some(old));
}

#[test]
fn a_place_that_a_request_came_from_is_probed_when_the_list_comes_later() {
    let mut alone = Alone::new();
    let (first, second) = (address([192, 0, 2, 1], 1), address([192, 0, 2, 2], 1));
    let probed = |alone: &Alone, place| alone.probes.iter().any(|(_, to, _)| *to == place);
    alone.told(1, [first]);
    alone.tick();
    let (.., request) = alone.probes[0];
    alone.paths.reply(&request.reply(0, RELAY), &alone.search, alone.now, &mut vec![]);
    assert!(alone.is_direct());
    let request = crate::paths::Request::about_no_path(0, 0);
    alone.paths.request(Address::new(second).into(), &request, 1, alone.now, &mut vec![]);
    alone.tick();
    assert!(!probed(&alone, second), "a NAT may have made it for this one request");
    alone.told(2, [first, second]);
    alone.tick();
    assert!(probed(&alone, second));
}

#[test]
fn what_is_told_is_repeated_until_it_has_arrived() {
    let told = |orders: &[Order]| orders.iter().filter(|order| matches!(order, Order::Tell { .. })).count();
    for answered in [false, true] {
        let mut alone = Alone::new();
        let mut count = 0;
        for _ in 0..1_000 {
            let mut orders = vec![];
            let seen = Seen { session: true, data: 0, unanswered: None };
            alone.paths.tick(seen, &mut alone.search, alone.now, &mut orders);
            count += told(&orders);
            if answered {
                let known = alone.search.generation();
                let answer = Candidates { answer: true, known, ..Candidates::default() };
                alone.paths.candidates(&answer, &alone.search, alone.now, &mut vec![]);
            }
            alone.now = alone.now + 10 * MS;
        }
        assert_eq!(count, if answered { 1 } else { 6 });
    }
}

#[test]
fn what_several_observers_see_alike_hides_nothing_that_another_one_sees() {
    let mut search = Search::new([1; 32]);
    let seen = [address([198, 51, 100, 1], 1_000), "[2001:db8::1]:1000".parse().expect("an address")];
    search.seen_by(PeerId(1), seen[1], START);
    for other in 2..8 {
        search.seen_by(PeerId(other), seen[0], START + SECOND);
    }
    let told: Vec<_> = search.candidates().iter().map(|candidate| candidate.address).collect();
    assert_eq!(told, seen);
}

#[test]
fn several_observers_show_how_a_nat_maps_ports() {
    let mut search = Search::new([1; 32]);
    let own = candidate(address([192, 168, 0, 2], PORT));
    assert!(search.set_candidates(vec![own], START));
    assert!(!search.set_candidates(vec![own], START));
    let seen = |port| address([198, 51, 100, 1], port);
    assert!(search.seen_by(PeerId(1), seen(1_000), START));
    assert!(!search.seen_by(PeerId(2), seen(1_000), START), "the same once more is no news");
    // In our own LAN there is no NAT between, and another uplink has another address.
    search.seen_by(PeerId(3), address([192, 168, 0, 2], PORT), START);
    search.seen_by(PeerId(4), address([198, 51, 100, 2], 77), START);
    assert!(!search.maps_per_destination());
    search.seen_by(PeerId(2), seen(1_001), START);
    assert!(search.maps_per_destination());
    let kinds: Vec<_> = search.candidates().iter().map(|candidate| candidate.kind).collect();
    let seen_there = CandidateKind::Seen;
    assert_eq!(kinds, [CandidateKind::Interface, seen_there, seen_there, seen_there]);
    // A liar changes nothing but this; and a full list has room for what others see.
    assert!(!search.seen_by(PeerId(5), address([127, 0, 0, 1], 1), START));
    let many = (1..=40).map(|n| candidate(address([10, 0, 0, n], PORT))).collect();
    search.set_candidates(many, START);
    assert_eq!(search.candidates().len(), 16);
    assert_eq!(search.candidates().iter().filter(|candidate| candidate.kind == seen_there).count(), 4);
    assert!(search.network_changed(START) && !search.maps_per_destination());
}

#[test]
fn an_address_that_has_answered_and_has_another_owner_is_probed_as_a_stranger() {
    let mut alone = Alone::new();
    let place = address([192, 0, 2, 1], 1);
    alone.told(1, [place]);
    alone.tick();
    let reply = alone.probes[0].2.reply(0, RELAY);
    alone.paths.reply(&reply, &alone.search, alone.now, &mut vec![]);
    assert!(alone.is_direct());
    // It answers no more, and the peer goes on to call.
    for step in 0..6_000 {
        alone.now = alone.now + 100 * MS;
        alone.told(2 + step, [place]);
        alone.tick();
    }
    let from = START + 300 * SECOND;
    let minute = || alone.probes.iter().filter(|(at, ..)| *at >= from && at.since(from) < 60 * SECOND);
    let candidate = minute().filter(|(.., request)| request.path == NO_PATH).count();
    let path = minute().count() - candidate;
    println!("in a minute: {candidate} probes of the candidate, {path} by the path that it was");
    assert!(candidate <= 20, "{candidate}");
    assert!(path <= 13, "{path}");
}

/// 1,000 peers with traffic, whose direct ways do not work. Counts what one node sends.
#[test]
fn a_thousand_peers_are_searched_with_bounded_probes_work_and_memory() {
    let mut search = Search::new([1; 32]);
    let mut all: Vec<Alone> = (0..1_000).map(|_| Alone::new()).collect();
    let (mut by_second, mut most_at_once) = (vec![0; 70], 0);
    for step in 0..700 {
        let now = START + step * 100 * MS;
        for (n, alone) in all.iter_mut().enumerate() {
            alone.now = now;
            core::mem::swap(&mut alone.search, &mut search);
            if step == 0 {
                alone.told(1, (0..16).map(|port| address([198, 18, (n >> 8) as u8, n as u8], 1 + port)));
            }
            alone.tick();
            core::mem::swap(&mut alone.search, &mut search);
            let probes = core::mem::take(&mut alone.probes).len();
            most_at_once = most_at_once.max(probes);
            by_second[step as usize / 10] += probes;
        }
    }
    let sizes = (size_of::<Paths>(), all.iter().map(|alone| alone.paths.memory()).max());
    println!(
        "1,000 peers: {:?} probes a second at most, {} in the last; {most_at_once} of one peer at once; {sizes:?} bytes a peer",
        by_second.iter().max(),
        by_second[69]
    );
    assert!(by_second.iter().all(|&probes| probes <= 512 + 500), "{by_second:?}");
    assert!(most_at_once <= 20);
    assert!(sizes.1 <= Some(4_096));
}
