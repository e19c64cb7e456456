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

/// A way between the ends, one place at each: how long it takes, what it loses in each direction, in thousandths.
#[derive(Clone, Copy)]
struct Link {
    delay: Duration,
    loss: [u32; 2],
    /// It is no address by UDP, but this.
    detour: Option<Place>,
}

/// Endpoint `n` of B is reached by link `n`, and B sees A there from an address of its own.
struct World {
    now: Instant,
    seed: u64,
    links: Vec<Link>,
    /// A, which has the endpoints configured, and B, which has not.
    ends: [Paths; 2],
    /// What B knows of A when it is a program that answers.
    answers: bool,
    /// Traffic flows: each end sends data now and then.
    traffic: bool,
    data: u64,
    unanswered: Option<Instant>,
    flying: BTreeMap<(Instant, u64), (usize, usize, Probe)>,
    sent: u64,
    probes: u64,
    handshakes: Vec<Instant>,
    states: Vec<(Instant, usize, bool)>,
    elsewhere: Vec<(Instant, usize)>,
    choices: [Choice; 2],
    search: Search,
    changes: Vec<(Instant, usize, Choice)>,
}

/// The place at end `at` of link `n`, as seen from the other end.
fn address(at: usize, n: usize) -> Address {
    Address::new(SocketAddr::from(([10, 0, n as u8, at as u8 + 1], 51_820)))
}

fn place(at: usize, n: usize) -> Place {
    address(at, n).into()
}

fn seen_from(at: usize, n: usize) -> Place {
    let other = [10, 0, n as u8, 2 - at as u8];
    Address { local: Some(IpAddr::from(other)), interface: n as u32 + 1, ..address(at, n) }.into()
}

/// A way through a peer, as link `n`.
fn through(n: usize) -> Place {
    Place::Peer(PeerId(n as u32))
}

/// A transport of the embedder's, as link `n`.
fn by_transport(n: usize) -> Place {
    Address::new(TransportAddress::new(n as u64).into()).into()
}

/// Where a place is, whatever address of ours belongs to it.
fn bare(place: Place) -> Place {
    place.address().map_or(place, |at| Address::new(at.remote).into())
}

fn search() -> Search {
    Search::new([7; 32])
}

impl World {
    fn new(policies: &[PathPolicy], delays: &[u64]) -> Self {
        let links = delays.iter().map(|&ms| Link { delay: ms as u32 * MS, loss: [0, 0], detour: None }).collect();
        let mut a = Paths::new(policies, START);
        for n in 0..policies.len() {
            a.put(n, place(1, n), START);
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
            handshakes: vec![],
            states: vec![],
            elsewhere: vec![],
            choices: Default::default(),
            search: search(),
            changes: vec![],
        };
        world.ends[0].heard(place(1, 0), START);
        world.ends.iter_mut().for_each(|end| end.established(START));
        world
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.seed >> 33) * u64::from(below)) >> 31) as u32
    }

    fn send(&mut self, end: usize, to: Place, probe: Probe) {
        self.probes += 1;
        let link = match to {
            Place::Peer(PeerId(link)) => link as usize,
            Place::Address(Address { remote: SocketAddr::V4(remote), .. }) => usize::from(remote.ip().octets()[2]),
            Place::Address(Address { remote, .. }) => {
                TransportAddress::of(remote).expect("no other IPv6").number() as usize
            }
        };
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
                Order::Tell { .. } | Order::Observe => unreachable!("no direct ways are looked for"),
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
                        let from = self.links[link].detour.unwrap_or(seen_from(1 - end, link));
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
                    let seen = Seen { session: true, data: self.data, unanswered: self.unanswered };
                    self.ends[end].tick(seen, &mut self.search, self.now, &mut orders);
                    self.orders(end, orders);
                }
            }
        }
        self.now = end_of_time;
    }

    fn active(&self, end: usize) -> Option<Place> {
        self.choices[end].active.map(bare)
    }

    fn spread(&self, end: usize) -> Vec<(Place, u8)> {
        self.choices[end].spread.iter().map(|(share, place)| (bare(*place), share.weight)).collect()
    }

    /// Link `n` is this detour.
    fn detour(&mut self, n: usize, at: Place) {
        self.links[n].detour = Some(at);
        self.ends[0].put(n, at, self.now);
    }

    fn both_use(&self, link: usize) -> bool {
        (0..2).all(|end| self.active(end) == Some(place(1 - end, link)))
    }

    /// How long after `from` each end stopped using `link`.
    fn left(&self, link: usize, from: Instant) -> [Duration; 2] {
        let uses = |end: usize, choice: &Choice| {
            let it = place(1 - end, link);
            choice.active.map(bare) == Some(it) || choice.spread.iter().any(|(_, place)| bare(*place) == it)
        };
        [0, 1].map(|end| {
            assert!(!uses(end, &self.choices[end]), "end {end} still uses link {link}");
            let left = self.changes.iter().rev().filter(|(_, of, _)| *of == end);
            let left = left.take_while(|(_, _, choice)| !uses(end, choice)).last().expect("it did change");
            left.0.since(from)
        })
    }
}

#[test]
fn traffic_that_begins_with_little_is_noticed_and_a_keepalive_is_not_looked_after_for_long() {
    for (more, expected) in [(500, true), (0, false)] {
        let mut a = Paths::new(&[PathPolicy::Best; 2], START);
        (0..2).for_each(|n| a.put(n, place(1, n), START));
        a.heard(place(1, 0), START);
        a.established(START);
        a.wake(START);
        let mut data = 60;
        for n in 0..8 {
            let seen = Seen { session: true, data, unanswered: None };
            a.tick(seen, &mut search(), START + n * LOOK, &mut vec![]);
            data += more;
        }
        assert_eq!((a.has_traffic(), a.next_look.is_some()), (expected, expected), "{more} bytes after the first");
    }
}

#[test]
fn the_best_of_those_that_work_is_used_by_both_ends() {
    let mut world = World::new(&[PathPolicy::Best; 3], &[30, 10, 20]);
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    assert!(world.spread(0).is_empty() && world.spread(1).is_empty());
    let states: Vec<_> = world.ends[0].report().iter().map(|path| (path.state, path.active)).collect();
    assert_eq!(states, [(State::Up, false), (State::Up, true), (State::Up, false)]);
    // A stream one way has no answers, and needs none where the path is known to work.
    world.unanswered = Some(START);
    world.run(10 * STEADY);
    assert!(world.handshakes.is_empty());
    world.unanswered = None;
    // It gets slower than the second best; a little is not enough.
    world.links[1].delay = 21 * MS;
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    world.links[1].delay = 60 * MS;
    world.run(STEADY / 2);
    assert!(world.both_use(1), "a short spell is not enough either");
    world.links[1].delay = 10 * MS;
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    world.links[1].delay = 40 * MS;
    world.run(10 * STEADY);
    assert!(world.both_use(2));
}

#[test]
fn an_address_is_better_than_a_way_through_a_peer_unless_it_is_much_longer() {
    an_address_is_better_unless_it_is_much_longer_than(through(0));
}

#[test]
fn an_address_is_better_than_a_transport_of_the_embedders_unless_it_is_much_longer() {
    an_address_is_better_unless_it_is_much_longer_than(by_transport(0));
}

fn an_address_is_better_unless_it_is_much_longer_than(detour: Place) {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 55]);
    world.detour(0, detour);
    world.run(10 * STEADY);
    assert!(world.both_use(1), "round trips of 20 and 110 ms: a detour is not taken because it is a little shorter");
    world.links[1].delay = 200 * MS;
    world.run(10 * STEADY);
    assert_eq!([0, 1].map(|end| world.active(end)), [Some(detour); 2]);
    world.links[1].delay = 40 * MS;
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    // It fails, and is taken as soon as it is trusted again: no margin, no waiting for STEADY.
    world.links[1].loss = [1_000, 1_000];
    world.run(2 * STEADY);
    assert!(!world.both_use(1));
    world.links[1].loss = [0, 0];
    let began = world.now;
    while world.now.since(began) < STEADY && !world.both_use(1) {
        world.run(10 * MS);
    }
    assert!(world.both_use(1));
    world.run(20 * STEADY);
    // It fails: what is in reserve takes over as fast as an address would.
    world.links[1].loss = [1_000, 0];
    let lost = world.now;
    world.run(STEADY);
    assert!(world.left(1, lost).into_iter().max() < Some(600 * MS), "{:?}", world.left(1, lost));
    assert_eq!([0, 1].map(|end| world.active(end)), [Some(detour); 2]);
}

#[test]
fn addresses_of_transports_are_neither_told_nor_probed() {
    let mut search = search();
    let at = SocketAddr::from(TransportAddress::new(7));
    assert!(!search.allows(at), "whoever tells of one");
    assert!(!search.set_candidates(vec![Candidate { address: at, kind: CandidateKind::Configured }], START));
    assert!(!search.seen_by(PeerId(1), at, START));
    assert_eq!(search.candidates(), []);
    let request = Request::about_no_path(1, 0);
    assert_eq!(request.reply(0, Address::new(at).into()).seen, None);
    assert_eq!(request.reply(0, place(0, 1)).seen, Some(address(0, 1).remote));
}

#[test]
fn a_lost_path_is_left_within_half_a_second_by_both_ends() {
    let mut all = vec![];
    for seed in 0..300 {
        for loss in [[1_000, 1_000], [1_000, 0], [0, 1_000]] {
            let policy = if seed % 2 == 0 { PathPolicy::Best } else { PathPolicy::Weighted(1) };
            let mut world = World::new(&[policy; 2], &[10, 20]);
            world.seed = seed;
            world.run(5_000 * MS + Duration::from_millis(seed));
            assert!(world.both_use(0));
            world.links[0].loss = loss;
            let lost = world.now;
            world.run(3_000 * MS);
            assert!(world.both_use(1), "seed {seed}, loss {loss:?}");
            let [ours, theirs] = world.left(0, lost);
            if loss == [0, 1_000] {
                // Who does not hear the path fail hears of it at once, by the other.
                assert!(theirs <= ours + 21 * MS, "seed {seed}: {ours:?}, then {theirs:?}");
            }
            all.push(ours.max(theirs));
            assert!(*all.last().unwrap() < 480 * MS, "seed {seed}, loss {loss:?}: {:?}", all.last());
            assert_eq!(world.states.last().map(|&(_, path, up)| (path, up)), Some((0, false)));
        }
    }
    all.sort();
    println!("until both ends have left a lost path: {:?} (median), {:?} (longest)", all[all.len() / 2], all.last());
}

#[test]
fn flows_are_spread_by_both_ends_and_only_over_what_works() {
    let mut world = World::new(&[PathPolicy::Weighted(2), PathPolicy::Weighted(1), PathPolicy::Best], &[10, 30, 1]);
    world.run(2_000 * MS);
    for end in 0..2 {
        assert_eq!(world.spread(end), [(place(1 - end, 0), 2), (place(1 - end, 1), 1)]);
    }
    // The one in reserve is faster, and stays in reserve.
    assert!(world.both_use(0));
    world.links[0].loss = [1_000, 1_000];
    let lost = world.now;
    world.run(2_000 * MS);
    assert!(world.both_use(1) && world.spread(0).is_empty() && world.spread(1).is_empty());
    assert!(world.left(0, lost) < [550 * MS; 2]);
    // In ten seconds: one a second there, one and its answer by the reserve, five by the path in use.
    let before = world.probes;
    world.run(10_000 * MS);
    let probes = world.probes - before;
    assert!((120..=135).contains(&probes), "what is lost is asked once a second: {probes}");
    world.links[1].loss = [1_000, 1_000];
    world.run(2_000 * MS);
    assert!(world.both_use(2));
    for link in &mut world.links {
        link.loss = [0, 0];
    }
    world.run(2_000 * MS);
    assert!(world.both_use(0) && world.spread(0).len() == 2 && world.spread(1).len() == 2);
}

#[test]
fn a_path_that_fails_again_and_again_has_to_prove_itself_for_longer() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    let mut until_back = vec![];
    for _ in 0..4 {
        world.links[0].loss = [1_000, 1_000];
        world.run(2_000 * MS);
        world.links[0].loss = [0, 0];
        let back = world.now;
        world.run(8_000 * MS);
        let &(at, path, up) = world.states.last().unwrap();
        assert!(up && path == 0);
        until_back.push(at.since(back));
    }
    assert!(until_back[0] < 2_000 * MS, "{until_back:?}");
    assert!(until_back[3] > 4_000 * MS, "{until_back:?}");
}

#[test]
fn a_lossy_path_gives_few_false_alarms() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    for link in &mut world.links {
        link.loss = [10, 10];
    }
    world.run(Duration::from_secs(6 * 3600));
    let alarms = world.states.iter().filter(|(_, _, up)| !up).count();
    println!("{alarms} false alarms in six hours of traffic with 1 % loss each way, two paths");
    assert!(alarms <= 6, "{alarms}");
}

#[test]
fn a_tunnel_without_traffic_is_nearly_silent() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    world.traffic = false;
    world.run(BUSY);
    let before = world.probes;
    world.run(Duration::from_secs(3_600));
    let probes = world.probes - before;
    assert!((4 * 143..=4 * 145).contains(&probes), "two paths, there and back, every 25 s: {probes}");
    assert!(world.both_use(0), "and what is known stays known");
    // What fails in the meantime is seen as soon as there is something to send.
    world.links[0].loss = [1_000, 1_000];
    world.run(Duration::from_secs(5));
    world.traffic = true;
    let began = world.now;
    world.run(2_000 * MS);
    assert!(world.both_use(1));
    assert!(world.left(0, began) < [550 * MS; 2]);
}

#[test]
fn a_stock_peer_is_not_pestered_and_its_endpoints_are_tried_by_handshakes() {
    let mut world = World::new(&[PathPolicy::Weighted(1), PathPolicy::Best], &[10, 20]);
    world.answers = false;
    world.run(Duration::from_secs(600));
    assert_eq!(world.probes, u64::from(MISSED), "a few by the path that it was heard by, and no more in this session");
    assert_eq!(world.active(0), Some(place(1, 0)), "where it was heard");
    assert!(world.choices[0].known.is_empty(), "heard elsewhere, it has moved");
    assert!(world.handshakes.is_empty() && world.states.is_empty());
    // Data, and no answer.
    let began = world.now;
    world.unanswered = Some(began);
    world.run(Duration::from_secs(20));
    assert!(world.handshakes[0].since(began) <= UNANSWERED + 2 * LOOK, "{:?}", world.handshakes[0].since(began));
    assert!(world.handshakes.len() <= 4, "{}", world.handshakes.len());
    assert_eq!(world.ends[0].places(), [place(1, 0), place(1, 1)], "an initiation goes everywhere");
    // The answer comes by the other.
    let now = world.now;
    world.ends[0].heard(seen_from(1, 1), now);
    world.ends[0].established(now);
    world.unanswered = None;
    world.run(Duration::from_secs(10));
    assert_eq!(world.active(0), Some(place(1, 1)));
    assert_eq!(world.probes, 2 * u64::from(MISSED), "it may have become another program");
    // By the same path as before, too.
    let now = world.now;
    world.ends[0].established(now);
    world.run(Duration::from_secs(10));
    assert_eq!(world.probes, 3 * u64::from(MISSED));
}

#[test]
fn a_stock_program_in_the_place_of_one_that_answered_is_left_alone() {
    let mut world = World::new(&[PathPolicy::Weighted(1); 2], &[10, 20]);
    world.run(2_000 * MS);
    assert!(!world.choices[0].known.is_empty() && world.ends[0].works(0));
    world.answers = false;
    world.run(5_000 * MS);
    assert!(!world.ends[0].works(0) && !world.ends[0].works(1));
    let (now, before) = (world.now, world.probes);
    world.ends[0].heard(seen_from(1, 1), now);
    world.ends[0].established(now);
    world.run(Duration::from_secs(100));
    assert_eq!(world.probes - before, u64::from(MISSED), "asked like any stock peer");
    assert_eq!(world.active(0), Some(place(1, 1)));
    assert!(world.choices[0].known.is_empty() && world.choices[0].spread.is_empty());
}

#[test]
fn when_nothing_works_handshakes_look_for_what_does() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    for link in &mut world.links {
        link.loss = [1_000, 1_000];
    }
    world.unanswered = Some(world.now);
    world.run(Duration::from_secs(20));
    assert!(!world.ends[0].certain());
    assert!((3..=5).contains(&world.handshakes.len()), "{:?}", world.handshakes);
    world.links[1].loss = [0, 0];
    world.unanswered = None;
    world.run(Duration::from_secs(5));
    assert!(world.both_use(1) && world.ends[0].certain());
}

#[test]
fn a_path_that_is_lost_is_looked_for_elsewhere_now_and_then() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.links.push(Link { delay: 5 * MS, loss: [1_000, 1_000], detour: None });
    world.run(2_000 * MS);
    world.links[0].loss = [1_000, 1_000];
    let lost = world.now;
    world.run(2_000 * MS);
    assert_eq!(world.elsewhere.iter().map(|&(_, path)| path).collect::<Vec<_>>(), [0]);
    assert!(world.elsewhere[0].0.since(lost) < 480 * MS, "at once");
    // It is, but does not work there either: that is no news, and is tried again after a while.
    let now = world.now;
    world.ends[0].put(0, place(1, 2), now);
    world.run(Duration::from_secs(60));
    assert_eq!(world.elsewhere.len(), 3, "{:?}", world.elsewhere);
    assert_eq!(world.states.iter().filter(|(_, _, up)| !up).count(), 1, "{:?}", world.states);
    world.links[2].loss = [0, 0];
    world.run(10 * STEADY);
    assert!(world.both_use(2) && world.elsewhere.len() <= 4);
}

#[test]
fn pinned_is_pinned() {
    let mut world = World::new(&[PathPolicy::Best, PathPolicy::Pinned], &[10, 20]);
    world.run(2_000 * MS);
    assert_eq!(world.active(0), Some(place(1, 1)));
    assert!(world.choices[0].pinned && world.ends[0].places() == [place(1, 1)]);
    let now = world.now;
    world.ends[0].heard(seen_from(1, 7), now);
    world.links[1].loss = [1_000, 1_000];
    world.run(5_000 * MS);
    assert_eq!(world.active(0), Some(place(1, 1)), "wherever it is heard, and whatever becomes of the path");
    let alone = Paths::new(&[PathPolicy::Pinned], now);
    assert!(!alone.is_plain() && Paths::new(&[PathPolicy::Best], now).is_plain());
}

#[test]
fn a_peer_that_roams_is_followed_and_comes_back() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.links.push(Link { delay: 15 * MS, loss: [0, 0], detour: None });
    world.run(2_000 * MS);
    // B moves: the places that were configured are deserted.
    for link in 0..2 {
        world.links[link].loss = [1_000, 1_000];
    }
    let now = world.now;
    world.ends[0].heard(seen_from(1, 2), now);
    world.orders(0, vec![]);
    assert_eq!(world.active(0), Some(place(1, 2)), "at once");
    // And again, before anything else is known: the place before is forgotten.
    world.ends[0].heard(seen_from(1, 7), now);
    assert_eq!(world.ends[0].places(), [seen_from(1, 7), place(1, 0), place(1, 1)]);
    world.ends[0].heard(seen_from(1, 2), now);
    assert_eq!(world.ends[0].report().len(), 3);
    world.orders(0, vec![]);
    world.run(5_000 * MS);
    assert!(world.both_use(2));
    assert!(world.choices[0].known.contains(&seen_from(1, 2)));
    for link in 0..2 {
        world.links[link].loss = [0, 0];
    }
    world.links[2].loss = [1_000, 1_000];
    world.run(5_000 * MS);
    assert!(world.both_use(0));
}

#[test]
fn who_is_heard_by_a_path_that_is_in_reserve_has_not_moved() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    let now = world.now;
    world.ends[0].heard(seen_from(1, 1), now);
    assert!(world.ends[0].report()[0].active && !world.ends[0].report()[1].active);
}

#[test]
fn who_follows_goes_along_when_the_other_end_has_a_new_address() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    let now = world.now;
    world.ends[1].heard(seen_from(0, 7), now);
    world.orders(1, vec![]);
    assert_eq!(world.active(1), Some(place(0, 7)), "at once");
}

#[test]
fn what_follows_lets_go_when_nothing_comes_any_more() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    assert!(!world.ends[1].is_plain());
    let now = world.now;
    world.ends[0].configure(&[PathPolicy::Best], false, now);
    world.run(4_000 * MS);
    assert!(world.ends[1].is_plain() && world.active(1).is_none(), "wherever it is heard, as in WireGuard");
    assert_eq!(world.ends[1].deadline(), None);
}

#[test]
fn two_paths_to_one_address_are_told_apart_by_ours() {
    let mut b = Paths::new(&[], START);
    let asked = |path, usable| Request {
        version: Version::V1,
        token: 0,
        path,
        active: Some(0),
        usable,
        weights: [1, 1, 0, 0, 0, 0, 0, 0],
        interval: CARRYING,
        clock: START.as_nanos(),
        nonce: None,
    };
    let from = |n: u8| Address { local: Some(IpAddr::from([10, 0, n, 2])), interface: n.into(), ..address(0, 0) };
    let by = |n: u8| Place::from(from(n));
    let mut orders = vec![];
    b.request(by(1), &asked(0, 3), 7, START, &mut orders);
    b.request(by(2), &asked(1, 3), 7, START, &mut orders);
    let to: Vec<_> = orders.iter().map(|order| matches!(order, Order::Probe { to, .. } if *to == by(2))).collect();
    assert_eq!(to, [false, true], "the answer goes back the way that the question came");
    let choice = b.changes(START).unwrap();
    assert_eq!(choice.spread.iter().map(|(_, place)| *place).collect::<Vec<_>>(), [by(1), by(2)]);
    assert_eq!(choice.active, Some(by(1)));
    assert!(from(1).covers(&from(1)) && !from(1).covers(&from(2)));
    let anywhere = |n| Address { interface: 0, ..from(n) };
    assert!(!anywhere(1).covers(&anywhere(2)), "by our address alone");
    assert!(!from(1).covers(&Address { interface: 2, ..from(1) }), "by the interface alone");
    // An older request that comes late says nothing any more; a path of which the peer hears nothing is left.
    let late = Request { clock: START.as_nanos() - 1, active: Some(1), ..asked(0, 0) };
    b.request(by(3), &late, 7, START, &mut orders);
    assert!(b.changes(START).is_none());
    b.request(by(2), &Request { clock: START.as_nanos() + 1, ..asked(1, 2) }, 7, START, &mut orders);
    let choice = b.changes(START).unwrap();
    assert!(choice.spread.is_empty());
    // One is left: the kernel's routes are good enough for it when the other is forgotten.
    let later = START + PROMISES * CARRYING + PATIENCE[0];
    b.request(by(2), &Request { clock: START.as_nanos() + 2, active: Some(1), ..asked(1, 2) }, 7, later, &mut orders);
    b.tick(Seen { session: true, data: 0, unanswered: None }, &mut search(), later, &mut vec![]);
    assert_eq!(b.changes(later).unwrap().active, Some(Address { interface: 0, ..from(2) }.into()));
    // What is over, or of before a new session, does not make a peer look old whose clock began anew.
    b.request(by(1), &Request { clock: 1, active: Some(0), ..asked(0, 3) }, 7, later, &mut orders);
    assert_eq!(b.changes(later).unwrap().active, Some(by(1)));
    b.established(later);
    b.request(by(2), &Request { clock: 2, active: Some(1), ..asked(1, 2) }, 7, later, &mut orders);
    assert_eq!(b.changes(later).unwrap().active, Some(by(2)));
}

/// What the ends say while they greet; the requests of path 0 come from `from` at B.
fn asked(nonce: Option<u32>, clock: u64) -> Request {
    let (version, token) = (Version::V1, 0);
    Request { version, path: 0, active: Some(0), usable: 1, weights: [0; 8], interval: CARRYING, clock, nonce, token }
}

/// The nonce of the one reply, and where it went.
fn replied(orders: &mut Vec<Order>) -> (Place, u32) {
    match core::mem::take(orders)[..] {
        [Order::Probe { to, probe: Probe::Reply(reply) }] => (to, reply.nonce),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_place_is_believed_when_its_nonce_has_come_back() {
    let (mut b, mut orders) = (Paths::new(&[], START), vec![]);
    let (home, elsewhere) = (seen_from(0, 0), seen_from(0, 7));
    b.request(home, &asked(Some(0), 1), 11, START, &mut orders);
    assert_eq!(replied(&mut orders), (home, 11));
    assert!(b.active_place().is_none() && !b.is_plain(), "nothing goes there yet, and the nonce is remembered");
    b.request(home, &asked(Some(11), 2), 12, START, &mut orders);
    assert_eq!(replied(&mut orders).1, 11);
    let active = |b: &mut Paths| b.changes(START).map(|choice| choice.active.map(bare));
    assert_eq!(active(&mut b), Some(Some(bare(home))));

    // Somebody on the way forwards requests from another address: they are answered there, and the flows stay.
    for clock in 3..9 {
        b.request(elsewhere, &asked(Some(11), clock), 20 + clock as u32, START, &mut orders);
        assert_eq!(replied(&mut orders).1, 23, "one nonce for one place");
        assert_eq!(active(&mut b), Some(Some(bare(home))));
    }
    // What the peer says is its word all the same.
    b.request(elsewhere, &Request { usable: 0, ..asked(Some(11), 9) }, 40, START, &mut orders);
    orders.clear();
    assert_eq!(b.report()[0].state, State::Down);
    // A nonce for another place proves nothing.
    b.request(seen_from(0, 8), &asked(Some(23), 10), 30, START, &mut orders);
    assert_eq!(replied(&mut orders), (seen_from(0, 8), 30));
    assert_eq!(active(&mut b), Some(Some(bare(home))));
    // It has moved indeed.
    b.request(seen_from(0, 8), &asked(Some(30), 11), 31, START, &mut orders);
    assert_eq!(replied(&mut orders).1, 30);
    assert_eq!(active(&mut b), Some(Some(place(0, 8))));

    // A place that is not proven in time is forgotten, and so is one that was.
    let later = START + PROMISES * CARRYING + PATIENCE[0];
    b.tick(Seen { session: true, data: 0, unanswered: None }, &mut search(), later, &mut orders);
    assert!(b.is_plain() && b.deadline().is_none());
}

#[test]
fn a_program_without_nonces_is_believed_as_ever() {
    let (mut b, mut orders) = (Paths::new(&[], START), vec![]);
    for (place, clock) in [(seen_from(0, 0), 1), (seen_from(0, 7), 2)] {
        b.request(place, &asked(None, clock), 11, START, &mut orders);
        assert_eq!(replied(&mut orders).1, 0);
        assert_eq!(b.changes(START).and_then(|choice| choice.active).map(bare), Some(bare(place)));
    }
}

#[test]
fn a_nonce_is_returned_soon_and_no_more_often_than_flows_are_probed() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(100 * MS);
    for end in 0..2 {
        assert!(world.active(end).is_some(), "end {end} has learned a place within 100 ms");
    }
    world.traffic = false;
    world.run(Duration::from_secs(60));
    // Another nonce with every answer, as if each request came from another place.
    let (mut sent, begun) = (0, world.now);
    let a = &mut world.ends[0];
    let mut now = begun;
    while now < begun + Duration::from_secs(60) {
        now = a.deadline().expect("idle paths are probed").max(now);
        let mut orders = vec![];
        a.tick(Seen { session: true, data: world.data, unanswered: None }, &mut search(), now, &mut orders);
        for order in orders {
            if let Order::Probe { probe: Probe::Request(request), .. } = order {
                sent += 1;
                now = now + MS;
                a.reply(&request.reply(sent + 1_000_000, place(1, 0)), &search(), now, &mut vec![]);
            }
        }
    }
    assert!((300..=2 * 60 * 5 + 2).contains(&sent), "{sent} in a minute");
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    let (now, mut orders) = (world.now, vec![]);
    let trips = |paths: &Paths| paths.report().iter().map(|path| path.round_trip).collect::<Vec<_>>();
    let before = trips(&world.ends[0]);
    let request = Request {
        version: Version::V1,
        token: 0,
        path: 7,
        active: None,
        usable: 0,
        weights: [0; 8],
        interval: Duration::MAX,
        clock: u64::MAX,
        nonce: None,
    };
    for (path, clock) in [(0, START.as_nanos()), (1, START.as_nanos()), (5, 0), (7, u64::MAX)] {
        world.ends[0].reply(&Request { path, clock, ..request }.reply(9, place(1, 0)), &search(), now, &mut orders);
    }
    assert!(orders.is_empty());
    assert_eq!(trips(&world.ends[0]), before, "answers to nothing");
    for link in &mut world.links {
        link.loss = [1_000, 1_000];
    }
    world.run(210 * MS);
    for path in [0, 1] {
        world.ends[0].reply(
            &Request { path, clock: u64::MAX, ..request }.reply(9, place(1, 0)),
            &search(),
            now,
            &mut orders,
        );
    }
    assert_eq!(trips(&world.ends[0]), before, "answers to what will be asked");
    for link in &mut world.links {
        link.loss = [0, 0];
    }
    world.ends[1].request(seen_from(0, 9), &request, 7, now, &mut orders);
    let [Order::Probe { to, probe: Probe::Reply(Reply { path: 7, clock: u64::MAX, .. }) }] = orders[..] else {
        panic!("{orders:?}");
    };
    assert!(to.covers(&seen_from(0, 9)));
    world.run(2_000 * MS);
    assert!(world.both_use(0));
}

mod direct;
mod idle;
mod nat;
