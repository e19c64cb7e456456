//! One end, whose peer may send anything.
use super::*;

impl Paths {
    /// The bytes of memory on the heap.
    fn memory(&self) -> usize {
        let discovery = self.discovery.as_ref().map_or(0, |discovery| discovery.memory());
        self.own.capacity() * size_of::<crate::paths::path::OwnPath>() + discovery
    }
}

/// One end, whose peer may send anything.
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
        let seen = Observation { session: true, data: self.data, unanswered: None };
        self.paths.tick(seen, &mut self.search, self.now, &mut orders);
        self.carry_out(orders);
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
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
        let mut orders = vec![];
        self.paths.candidates(&message, &mut self.search, self.now, &mut orders);
        self.carry_out(orders);
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
        let from = Locator::from(Address::new(victim(1 << 20 | step)));
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
        let from = Locator::from(Address::new(address.parse().expect("an address")));
        let request = crate::paths::Request::about_no_path(0, 0);
        alone.paths.request(from, &request, 1, alone.now, &mut vec![]);
        alone.tick();
        alone.now = alone.now + 100 * MS;
    }
    assert!(alone.probes.is_empty(), "{:?}", alone.probes);
    // Other addresses are probed: the test can fail.
    alone.told(2, [address([192, 0, 2, 1], 1)]);
    alone.tick();
    assert_eq!(alone.probes.len(), 1);
    // A prefix of a tunnel that was added since.
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
    // The peer got one of the two, with the same clock, and tries to make the other count as answered too.
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
    // An old answer does not count.
    let locators: Vec<_> = alone.paths.locators();
    assert!(locators.contains(&Address::new(itself).into()) && !locators.contains(&Address::new(victim).into()));
    // The path that was found is probed by its number; again the answer has to come from there.
    alone.probes.clear();
    alone.now = alone.now + 10 * SECOND;
    let until = alone.now + 3 * SECOND;
    while alone.now < until {
        alone.tick();
        for (_, to, request) in core::mem::take(&mut alone.probes) {
            if to == itself {
                // Besides, the peer has kept an earlier request to this locator.
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
    // A peer on the way of an initiation has handed it in.
    let courier = Locator::Peer(PeerId(1));
    alone.paths.heard(courier, alone.now);
    assert_eq!(alone.paths.changes(alone.now).and_then(|choice| choice.active), Some(RELAY));
    assert!(!alone.paths.locators().contains(&courier));
    // If there is no other locator, it is as good as any.
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
    // In another session, the peer may have started over.
    alone.paths.established(alone.now);
    alone.told(1, [old]);
    alone.tick();
    assert_eq!(alone.probes.last().map(|(_, to, _)| *to), Some(old));
}

/// A peer that hears that we have its list sends to our router, which must expect that by then: see the head of
/// `discovery.rs`.
#[test]
fn our_router_is_open_before_the_peer_hears_that_we_have_its_list() {
    let mut alone = Alone::new();
    let locator = address([198, 51, 100, 2], PORT);
    let list = vec![Candidate { address: locator, kind: CandidateKind::Seen }];
    let mut opened = 0;
    for generation in 1..=3 {
        let message = Candidates { generation, look: generation == 1, list: list.clone(), ..Candidates::default() };
        let mut orders = vec![];
        alone.paths.candidates(&message, &mut alone.search, alone.now, &mut orders);
        // A round begins, in which all candidates are probed again.
        let seen = Observation { session: true, data: 0, unanswered: None };
        alone.paths.tick(seen, &mut alone.search, alone.now, &mut orders);
        let begun = orders.iter().position(|order| {
            matches!(order, Order::Open { to, .. } | Order::Probe { to: Locator::Address(to), .. } if to.remote == locator)
        });
        let told = orders.iter().position(|order| matches!(order, Order::Tell { message, .. } if message.known != 0));
        assert!(told.is_some() && (begun.is_none() || begun < told), "{generation}: {orders:?}");
        opened += usize::from(begun.is_some());
        alone.now = alone.now + 10 * SECOND;
    }
    assert!(opened > 0, "nothing was probed");
}

#[test]
fn a_locator_that_a_request_came_from_is_probed_when_the_list_comes_later() {
    let mut alone = Alone::new();
    let (first, second) = (address([192, 0, 2, 1], 1), address([192, 0, 2, 2], 1));
    let probed = |alone: &Alone, locator| alone.probes.iter().any(|(_, to, _)| *to == locator);
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
            let seen = Observation { session: true, data: 0, unanswered: None };
            alone.paths.tick(seen, &mut alone.search, alone.now, &mut orders);
            count += told(&orders);
            if answered {
                let known = alone.search.generation();
                let answer = Candidates { answer: true, known, ..Candidates::default() };
                alone.paths.candidates(&answer, &mut alone.search, alone.now, &mut vec![]);
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
    // In our own LAN there is no NAT in between, and another uplink has another address.
    search.seen_by(PeerId(3), address([192, 168, 0, 2], PORT), START);
    search.seen_by(PeerId(4), address([198, 51, 100, 2], 77), START);
    assert!(!search.maps_per_destination());
    search.seen_by(PeerId(2), seen(1_001), START);
    assert!(search.maps_per_destination());
    let kinds: Vec<_> = search.candidates().iter().map(|candidate| candidate.kind).collect();
    let seen_there = CandidateKind::Seen;
    assert_eq!(kinds, [CandidateKind::Interface, seen_there, seen_there, seen_there]);
    // A liar changes nothing else; and a full list has room for addresses that others see.
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
    let locator = address([192, 0, 2, 1], 1);
    alone.told(1, [locator]);
    alone.tick();
    let reply = alone.probes[0].2.reply(0, RELAY);
    alone.paths.reply(&reply, &alone.search, alone.now, &mut vec![]);
    assert!(alone.is_direct());
    // The locator no longer answers, and the peer continues to call.
    for step in 0..6_000 {
        alone.now = alone.now + 100 * MS;
        alone.told(2 + step, [locator]);
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
