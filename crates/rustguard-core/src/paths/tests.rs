//! Two ends, the paths between them, and a clock.
extern crate std;
use super::{timing::*, *};
use crate::peer::PeerId;
use alloc::{collections::BTreeMap, vec};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::println;

const MS: Duration = Duration::from_millis(1);
const START: Instant = Instant::from_nanos(5_000_000_000);

/// A way between the ends, with one locator at each: its delay, and its loss in each direction, in thousandths.
#[derive(Clone, Copy)]
struct Link {
    delay: Duration,
    loss: [u32; 2],
    /// It is not an address by UDP, but this locator.
    indirect: Option<Locator>,
}

/// Endpoint `n` of B is reached by link `n`, and B sees A there from an address of its own.
struct World {
    now: Instant,
    seed: u64,
    links: Vec<Link>,
    /// A, which has the endpoints configured, and B, which has not.
    ends: [Paths; 2],
    /// Whether B is a program that answers.
    answers: bool,
    /// There is traffic: each end sends data now and then.
    traffic: bool,
    data: u64,
    unanswered: Option<Instant>,
    flying: BTreeMap<(Instant, u64), (usize, usize, Probe)>,
    sent: u64,
    probes: u64,
    /// The probes by link.
    asked: BTreeMap<usize, u64>,
    handshakes: Vec<Instant>,
    states: Vec<(Instant, usize, bool)>,
    elsewhere: Vec<(Instant, usize)>,
    choices: [Choice; 2],
    search: Search,
    changes: Vec<(Instant, usize, Choice)>,
}

/// The locator at end `at` of link `n`, as seen from the other end.
fn address(at: usize, n: usize) -> Address {
    Address::new(SocketAddr::from(([10, 0, n as u8, at as u8 + 1], 51_820)))
}

fn locator(at: usize, n: usize) -> Locator {
    address(at, n).into()
}

fn seen_from(at: usize, n: usize) -> Locator {
    let other = [10, 0, n as u8, 2 - at as u8];
    Address { local: Some(IpAddr::from(other)), interface: n as u32 + 1, ..address(at, n) }.into()
}

/// A way through a peer, as link `n`.
fn through(n: usize) -> Locator {
    Locator::Peer(PeerId(n as u32))
}

/// A transport of the embedder, as link `n`.
fn by_transport(n: usize) -> Locator {
    Address::new(TransportAddress::new(n as u64).into()).into()
}

/// A locator without our own address.
fn bare(locator: Locator) -> Locator {
    locator.address().map_or(locator, |at| Address::new(at.remote).into())
}

fn search() -> Search {
    Search::new([7; 32])
}

impl World {
    fn new(policies: &[PathPolicy], delays: &[u64]) -> Self {
        let links = delays.iter().map(|&ms| Link { delay: ms as u32 * MS, loss: [0, 0], indirect: None }).collect();
        let mut a = Paths::new(policies, START);
        for n in 0..policies.len() {
            a.put(n, locator(1, n), START);
        }
        let ends = [a, Paths::new(&[], START)];
        let mut world = Self {
            now: START,
            seed: 1,
            links,
            ends,
            answers: true,
            traffic: true,
            data: 0,
            unanswered: None,
            flying: BTreeMap::new(),
            sent: 0,
            probes: 0,
            asked: BTreeMap::new(),
            handshakes: vec![],
            states: vec![],
            elsewhere: vec![],
            choices: Default::default(),
            search: search(),
            changes: vec![],
        };
        world.ends[0].heard(locator(1, 0), START);
        world.ends.iter_mut().for_each(|end| end.established(START));
        world
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.seed >> 33) * u64::from(below)) >> 31) as u32
    }

    fn send(&mut self, end: usize, to: Locator, probe: Probe) {
        self.probes += 1;
        let link = match to {
            Locator::Peer(PeerId(link)) => link as usize,
            Locator::Address(Address { remote: SocketAddr::V4(remote), .. }) => usize::from(remote.ip().octets()[2]),
            Locator::Address(Address { remote, .. }) => {
                TransportAddress::of(remote).expect("no other IPv6").number() as usize
            }
        };
        *self.asked.entry(link).or_default() += 1;
        let Some(&Link { delay, loss, .. }) = self.links.get(link) else { return };
        if self.random(1_000) >= loss[end] {
            let jitter = Duration::from_micros(self.random(400).into());
            self.sent += 1;
            self.flying.insert((self.now + delay + jitter, self.sent), (1 - end, link, probe));
        }
    }

    fn orders(&mut self, end: usize, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Probe { to, probe } => self.send(end, to, probe),
                Order::Handshake => self.handshakes.push(self.now),
                Order::State { path, up } => self.states.push((self.now, path, up)),
                Order::Elsewhere { path } => self.elsewhere.push((self.now, path)),
                Order::Open { .. } | Order::Tell { .. } | Order::Observe => {
                    unreachable!("no direct ways are looked for")
                }
            }
        }
        if let Some(choice) = self.ends[end].changes(self.now)
            && choice != self.choices[end]
        {
            self.choices[end] = choice.clone();
            self.changes.push((self.now, end, choice));
        }
    }

    fn run(&mut self, time: Duration) {
        let end_of_time = self.now + time;
        let mut next_data = self.now;
        loop {
            let arrival = self.flying.keys().next().map(|&(at, _)| at);
            let deadline = self.ends.iter().filter_map(Paths::deadline).min();
            let data = self.traffic.then_some(next_data);
            let Some(next) = [arrival, deadline, data].into_iter().flatten().min().filter(|&at| at <= end_of_time)
            else {
                break;
            };
            assert!(next >= self.now || deadline == Some(next), "time does not go back");
            self.now = next.max(self.now);
            if data.is_some_and(|at| at <= self.now) {
                self.data += 1_000;
                next_data = self.now + 100 * MS;
                let now = self.now;
                self.ends.iter_mut().for_each(|end| end.wake(now));
            }
            if arrival.is_some_and(|at| at <= self.now) {
                let (_, (end, link, probe)) = self.flying.pop_first().expect("it was looked at");
                let mut orders = vec![];
                match probe {
                    Probe::Request(request) if self.answers => {
                        let random = self.random(u32::MAX >> 1);
                        let from = self.links[link].indirect.unwrap_or(seen_from(1 - end, link));
                        self.ends[end].request(from, &request, random, self.now, &mut orders);
                    }
                    Probe::Request(_) => {}
                    Probe::Reply(reply) => self.ends[end].reply(&reply, &self.search, self.now, &mut orders),
                }
                self.orders(end, orders);
            }
            for end in 0..2 {
                if self.ends[end].deadline().is_some_and(|at| at <= self.now) {
                    let mut orders = vec![];
                    let seen = Observation { session: true, data: self.data, unanswered: self.unanswered };
                    self.ends[end].tick(seen, &mut self.search, self.now, &mut orders);
                    self.orders(end, orders);
                }
            }
        }
        self.now = end_of_time;
    }

    fn active(&self, end: usize) -> Option<Locator> {
        self.choices[end].active.map(bare)
    }

    fn spread(&self, end: usize) -> Vec<(Locator, u8)> {
        self.choices[end].spread.iter().map(|(share, locator)| (bare(*locator), share.weight)).collect()
    }

    /// Makes link `n` this indirect path.
    fn indirect(&mut self, n: usize, at: Locator) {
        self.links[n].indirect = Some(at);
        self.ends[0].put(n, at, self.now);
    }

    fn both_use(&self, link: usize) -> bool {
        (0..2).all(|end| self.active(end) == Some(locator(1 - end, link)))
    }

    /// How long after `from` each end stopped using `link`.
    fn left(&self, link: usize, from: Instant) -> [Duration; 2] {
        let uses = |end: usize, choice: &Choice| {
            let it = locator(1 - end, link);
            choice.active.map(bare) == Some(it) || choice.spread.iter().any(|(_, locator)| bare(*locator) == it)
        };
        [0, 1].map(|end| {
            assert!(!uses(end, &self.choices[end]), "end {end} still uses link {link}");
            let left = self.changes.iter().rev().filter(|(_, of, _)| *of == end);
            let left = left.take_while(|(_, _, choice)| !uses(end, choice)).last().expect("it did change");
            left.0.since(from)
        })
    }
}

mod choice;
mod direct;
mod failures;
mod fallback;
mod idle;
mod nat;
mod peer;
mod quiet;
