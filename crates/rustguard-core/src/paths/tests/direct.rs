//! Two ends that reach each other through a relay and look for a direct way, with NATs of every kind between them.
extern crate std;
use super::nat::{DEPENDENCES, Dependence, Kind, Nat};
use crate::{
    paths::{
        Candidate, CandidateKind, Candidates, Choice, Locator, Observation, Order, PathPolicy, Paths, Probe, Relayed,
        Search, State, discovery::LET_GO, locator::Address, probe::NO_PATH, timing::BUSY,
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
const RELAY: Locator = Locator::Peer(PeerId(9));
const PORT: u16 = 51_820;
/// One-way delay between any two machines that are not in one LAN.
const DELAY: Duration = Duration::from_millis(20);
/// Between two packets of data.
const DATA: Duration = Duration::from_millis(20);

/// The access of an end to the rest of the world.
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
    /// The destination of data without a choice: the locator where the peer was last heard.
    endpoint: Locator,
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
    /// How often each end has moved to another site, and at which site the relay has last heard it.
    site: [u32; 2],
    relay_knows: [u32; 2],
    /// Neither end reaches anybody.
    offline: bool,
    traffic: bool,
    /// The ends that send data.
    speaks: [bool; 2],
    observers: u32,
    /// The longest extra delay of anything, as between busy machines.
    slowness: Duration,
    flying: BTreeMap<(Instant, u64), (usize, Locator, What)>,
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
            slowness: Duration::ZERO,
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

    /// A random extra delay.
    fn slow(&mut self) -> Duration {
        if self.slowness.is_zero() {
            return Duration::ZERO;
        }
        MS * self.random(self.slowness.as_millis() as u32)
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

    /// Where a datagram from this end to that address arrives: at which end, from which source, after which delay.
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

    fn send(&mut self, end: usize, to: Locator, what: What) {
        let arrives = match to {
            Locator::Peer(_) => {
                // The relay's session keeps its mapping open.
                self.keep_relay_mapping(end);
                let carries = self.relay_works && !self.offline;
                if carries {
                    self.relay_knows[end] = self.site[end];
                }
                carries.then_some((1 - end, RELAY, 2 * DELAY))
            }
            Locator::Address(at) => self.route(end, at.remote).map(|(at, from, delay)| {
                let local = Some(self.ends[at].inside.ip());
                (at, Locator::from(Address { local, interface: 2, ..Address::new(from) }), delay)
            }),
        };
        if let Some((at, from, delay)) = arrives {
            let jitter = Duration::from_micros(self.random(400).into()) + self.slow();
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
                    if let (Probe::Request(request), Locator::Address(at)) = (&probe, to) {
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
                        let slow = self.slow();
                        self.flying.insert((self.now + 2 * DELAY + slow, self.sent), event);
                    }
                }
                // The router forwards it, and the next one drops it.
                Order::Open { to, .. } => {
                    assert!(self.ends[end].search.allows(to.remote), "{to:?}");
                    self.ends[end].probes.entry(to.remote).or_default().push(self.now);
                    if let Some(nat) = self.ends[end].nat {
                        self.nats[nat].out(self.ends[end].inside, to.remote, self.now);
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

    fn arrive(&mut self, end: usize, from: Locator, what: What) {
        let random = self.random(u32::MAX >> 1);
        let now = self.now;
        let me = &mut self.ends[end];
        let mut orders = vec![];
        match what {
            What::Probe(Probe::Request(request)) if me.old && request.version > crate::paths::Version::V1 => {}
            What::Candidates(_) if me.old => {}
            What::Probe(Probe::Request(request)) => me.paths.request(from, &request, random, now, &mut orders),
            What::Probe(Probe::Reply(reply)) => me.paths.reply(&reply, &me.search, now, &mut orders),
            What::Candidates(message) => me.paths.candidates(&message, &mut me.search, now, &mut orders),
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

    /// An authenticated message came from there.
    fn heard_directly(&mut self, end: usize, from: SocketAddr) {
        let (from, now) = (Locator::from(Address::new(from)), self.now);
        let me = &mut self.ends[end];
        if !me.choice.pinned && !me.choice.known.iter().any(|known| known.covers(&from)) {
            me.endpoint = from;
            me.paths.heard(from, now);
        }
        self.orders(end, vec![]);
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
                    let seen = Observation { session: true, data: me.data, unanswered: None };
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

    /// The only traffic is one ping a second, from the first end to the second, which answers by the way on which it
    /// was reached.
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

    /// The end's router gets another public address. The end itself does not notice.
    fn move_site(&mut self, end: usize) {
        self.site[end] += 1;
        let nat = &mut self.nats[self.ends[end].nat.expect("behind a NAT")];
        nat.ip = Ipv4Addr::new(198, 51, 100 + self.site[end] as u8, end as u8 + 1);
        nat.forget();
    }

    /// The end gets another address, behind the same NAT or none.
    fn roam(&mut self, end: usize, ip: [u8; 4]) {
        self.ends[end].inside = address(ip, PORT);
        self.notices_change(end);
    }

    /// The end's kernel reports another network.
    fn notices_change(&mut self, end: usize) {
        let now = self.now;
        let me = &mut self.ends[end];
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

const EASY: Access = Access::Behind(Kind {
    mapping: Dependence::Endpoint,
    filtering: Dependence::AddressAndPort,
    keeps_port: false,
    hairpin: false,
    takes_unasked: false,
});
const HARD: Access = Access::Behind(Kind {
    mapping: Dependence::AddressAndPort,
    filtering: Dependence::AddressAndPort,
    keeps_port: false,
    hairpin: false,
    takes_unasked: false,
});

/// Linux with one rule, `masquerade`, and no firewall.
const PLAIN: Access = Access::Behind(Kind {
    mapping: Dependence::AddressAndPort,
    filtering: Dependence::AddressAndPort,
    keeps_port: true,
    hairpin: false,
    takes_unasked: true,
});

/// Two ends with a direct way.
fn direct_world(accesses: [Access; 2], seed: u64) -> World {
    let mut world = World::new(accesses, seed);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.direct(), [true; 2], "seed {seed}");
    world.count_silence();
    world
}

/// The median and the longest of many runs.
fn summary(what: &str, mut all: Vec<Duration>) {
    all.sort();
    println!("{what}: {:?} (median), {:?} (longest of {})", all[all.len() / 2], all[all.len() - 1], all.len());
}

mod changes;
mod one_end;
mod reach;
