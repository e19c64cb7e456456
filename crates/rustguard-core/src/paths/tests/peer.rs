//! The peer's properties and messages: other programs, other locators, its requests.
use super::*;

#[test]
fn a_stock_peer_is_not_pestered_and_its_endpoints_are_tried_by_handshakes() {
    let mut world = World::new(&[PathPolicy::Weighted(1), PathPolicy::Best], &[10, 20]);
    world.answers = false;
    world.run(Duration::from_secs(600));
    assert_eq!(world.probes, u64::from(MISSED), "a few by the path that it was heard by, and no more in this session");
    assert_eq!(world.active(0), Some(locator(1, 0)), "where it was heard");
    assert!(world.choices[0].known.is_empty(), "heard elsewhere, it has moved");
    assert!(world.handshakes.is_empty() && world.states.is_empty());
    // Data without an answer.
    let began = world.now;
    world.unanswered = Some(began);
    world.run(Duration::from_secs(20));
    assert!(world.handshakes[0].since(began) <= UNANSWERED + 2 * LOOK, "{:?}", world.handshakes[0].since(began));
    assert!(world.handshakes.len() <= 4, "{}", world.handshakes.len());
    assert_eq!(world.ends[0].locators(), [locator(1, 0), locator(1, 1)], "an initiation goes everywhere");
    // The answer comes by the other locator.
    let now = world.now;
    world.ends[0].heard(seen_from(1, 1), now);
    world.ends[0].established(now);
    world.unanswered = None;
    world.run(Duration::from_secs(10));
    assert_eq!(world.active(0), Some(locator(1, 1)));
    assert_eq!(world.probes, 2 * u64::from(MISSED), "it may have become another program");
    // The same by the path that was used before.
    let now = world.now;
    world.ends[0].established(now);
    world.run(Duration::from_secs(10));
    assert_eq!(world.probes, 3 * u64::from(MISSED));
}

#[test]
fn a_stock_program_in_the_locator_of_one_that_answered_is_left_alone() {
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
    assert_eq!(world.active(0), Some(locator(1, 1)));
    assert!(world.choices[0].known.is_empty() && world.choices[0].spread.is_empty());
}

#[test]
fn a_peer_that_roams_is_followed_and_comes_back() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.links.push(Link { delay: 15 * MS, loss: [0, 0], indirect: None });
    world.run(2_000 * MS);
    // B moves: the configured locators are abandoned.
    for link in 0..2 {
        world.links[link].loss = [1_000, 1_000];
    }
    let now = world.now;
    world.ends[0].heard(seen_from(1, 2), now);
    world.orders(0, vec![]);
    assert_eq!(world.active(0), Some(locator(1, 2)), "at once");
    // It moves again, before anything else is known: the locator before is forgotten.
    world.ends[0].heard(seen_from(1, 7), now);
    assert_eq!(world.ends[0].locators(), [seen_from(1, 7), locator(1, 0), locator(1, 1)]);
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
    assert_eq!(world.active(1), Some(locator(0, 7)), "at once");
}

#[test]
fn what_follows_lets_go_when_nothing_comes_any_more() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(2_000 * MS);
    assert!(!world.ends[1].is_plain());
    let now = world.now;
    world.ends[0].configure(&[(PathPolicy::Best, None)], false, now);
    world.run(4_000 * MS);
    assert!(world.ends[1].is_plain() && world.active(1).is_none(), "wherever it is heard, as in WireGuard");
    assert_eq!(world.ends[1].deadline(), None);
}

/// The requests of the ends while they greet; the requests of path 0 come from `from` at B.
fn asked(nonce: Option<u32>, clock: u64) -> Request {
    let (version, token) = (Version::V1, 0);
    Request { version, path: 0, active: Some(0), usable: 1, weights: [0; 8], interval: CARRYING, clock, nonce, token }
}

/// The nonce of the only reply, and its destination.
fn replied(orders: &mut Vec<Order>) -> (Locator, u32) {
    match core::mem::take(orders)[..] {
        [Order::Probe { to, probe: Probe::Reply(reply) }] => (to, reply.nonce),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_locator_is_believed_when_its_nonce_has_come_back() {
    let (mut b, mut orders) = (Paths::new(&[], START), vec![]);
    let (home, elsewhere) = (seen_from(0, 0), seen_from(0, 7));
    b.request(home, &asked(Some(0), 1), 11, START, &mut orders);
    assert_eq!(replied(&mut orders), (home, 11));
    assert!(b.active_locator().is_none() && !b.is_plain(), "nothing goes there yet, and the nonce is remembered");
    b.request(home, &asked(Some(11), 2), 12, START, &mut orders);
    assert_eq!(replied(&mut orders).1, 11);
    let active = |b: &mut Paths| b.changes(START).map(|choice| choice.active.map(bare));
    assert_eq!(active(&mut b), Some(Some(bare(home))));

    // An attacker on the way forwards requests from another address: they are answered there, and the flows stay.
    for clock in 3..9 {
        b.request(elsewhere, &asked(Some(11), clock), 20 + clock as u32, START, &mut orders);
        assert_eq!(replied(&mut orders).1, 23, "one nonce for one locator");
        assert_eq!(active(&mut b), Some(Some(bare(home))));
    }
    // The content is the peer's word all the same.
    b.request(elsewhere, &Request { usable: 0, ..asked(Some(11), 9) }, 40, START, &mut orders);
    orders.clear();
    assert_eq!(b.report()[0].state, State::Down);
    // A nonce for another locator proves nothing.
    b.request(seen_from(0, 8), &asked(Some(23), 10), 30, START, &mut orders);
    assert_eq!(replied(&mut orders), (seen_from(0, 8), 30));
    assert_eq!(active(&mut b), Some(Some(bare(home))));
    // The peer has really moved.
    b.request(seen_from(0, 8), &asked(Some(30), 11), 31, START, &mut orders);
    assert_eq!(replied(&mut orders).1, 30);
    assert_eq!(active(&mut b), Some(Some(locator(0, 8))));

    // A locator that is not proven in time is forgotten, and so is a proven one.
    let later = START + PROMISES * CARRYING + PATIENCE[0];
    b.tick(Observation { session: true, data: 0, unanswered: None }, &mut search(), later, &mut orders);
    assert!(b.is_plain() && b.deadline().is_none());
}

#[test]
fn a_program_without_nonces_is_believed_as_ever() {
    let (mut b, mut orders) = (Paths::new(&[], START), vec![]);
    for (locator, clock) in [(seen_from(0, 0), 1), (seen_from(0, 7), 2)] {
        b.request(locator, &asked(None, clock), 11, START, &mut orders);
        assert_eq!(replied(&mut orders).1, 0);
        assert_eq!(b.changes(START).and_then(|choice| choice.active).map(bare), Some(bare(locator)));
    }
}

#[test]
fn a_nonce_is_returned_soon_and_no_more_often_than_flows_are_probed() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 20]);
    world.run(100 * MS);
    for end in 0..2 {
        assert!(world.active(end).is_some(), "end {end} has learned a locator within 100 ms");
    }
    world.traffic = false;
    world.run(Duration::from_secs(60));
    // Each answer has another nonce, as if each request came from another locator.
    let (mut sent, begun) = (0, world.now);
    let a = &mut world.ends[0];
    let mut now = begun;
    while now < begun + Duration::from_secs(60) {
        now = a.deadline().expect("idle paths are probed").max(now);
        let mut orders = vec![];
        a.tick(Observation { session: true, data: world.data, unanswered: None }, &mut search(), now, &mut orders);
        for order in orders {
            if let Order::Probe { probe: Probe::Request(request), .. } = order {
                sent += 1;
                now = now + MS;
                a.reply(&request.reply(sent + 1_000_000, locator(1, 0)), &search(), now, &mut vec![]);
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
        world.ends[0].reply(&Request { path, clock, ..request }.reply(9, locator(1, 0)), &search(), now, &mut orders);
    }
    assert!(orders.is_empty());
    assert_eq!(trips(&world.ends[0]), before, "answers to nothing");
    for link in &mut world.links {
        link.loss = [1_000, 1_000];
    }
    world.run(210 * MS);
    for path in [0, 1] {
        world.ends[0].reply(
            &Request { path, clock: u64::MAX, ..request }.reply(9, locator(1, 0)),
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
    assert_eq!(request.reply(0, locator(0, 1)).seen, Some(address(0, 1).remote));
}
