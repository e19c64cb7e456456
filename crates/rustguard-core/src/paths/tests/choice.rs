//! Which path is chosen, and how flows are spread.
use super::*;

#[test]
fn the_best_of_those_that_work_is_used_by_both_ends() {
    let mut world = World::new(&[PathPolicy::Best; 3], &[30, 10, 20]);
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    assert!(world.spread(0).is_empty() && world.spread(1).is_empty());
    let states: Vec<_> = world.ends[0].report().iter().map(|path| (path.state, path.active)).collect();
    assert_eq!(states, [(State::Up, false), (State::Up, true), (State::Up, false)]);
    // A stream in one direction has no answers, and needs none while the path is known to work.
    world.unanswered = Some(START);
    world.run(10 * STEADY);
    assert!(world.handshakes.is_empty());
    world.unanswered = None;
    // It gets slower than the second best; a small difference is not enough.
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

fn an_address_is_better_unless_it_is_much_longer_than(indirect: Locator) {
    let mut world = World::new(&[PathPolicy::Best; 2], &[10, 55]);
    world.indirect(0, indirect);
    world.run(10 * STEADY);
    assert!(world.both_use(1), "round trips of 20 and 110 ms: a indirect is not taken because it is a little shorter");
    world.links[1].delay = 200 * MS;
    world.run(10 * STEADY);
    assert_eq!([0, 1].map(|end| world.active(end)), [Some(indirect); 2]);
    world.links[1].delay = 40 * MS;
    world.run(10 * STEADY);
    assert!(world.both_use(1));
    // It fails, and is taken as soon as it is trusted again: without margin, without waiting for STEADY.
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
    // It fails: the reserve takes over as fast as an address would.
    world.links[1].loss = [1_000, 0];
    let lost = world.now;
    world.run(STEADY);
    assert!(world.left(1, lost).into_iter().max() < Some(600 * MS), "{:?}", world.left(1, lost));
    assert_eq!([0, 1].map(|end| world.active(end)), [Some(indirect); 2]);
}

/// 30 and 16 ms round trip: the surcharge for indirect paths does not hide that one is half as long as the other.
#[test]
fn of_two_relays_the_nearer_one_is_taken() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[15, 15]);
    (0..2).for_each(|n| world.indirect(n, through(n)));
    world.run(10 * STEADY);
    for (near, far) in [(0, 1), (1, 0), (0, 1)] {
        (world.links[near].delay, world.links[far].delay) = (8 * MS, 15 * MS);
        world.run(10 * STEADY);
        assert_eq!([0, 1].map(|end| world.active(end)), [Some(through(near)); 2]);
        // A little nearer is no reason to move flows.
        world.links[far].delay = 7 * MS;
        world.run(10 * STEADY);
        assert_eq!(world.active(0), Some(through(near)));
    }
}

#[test]
fn flows_are_spread_by_both_ends_and_only_over_what_works() {
    let mut world = World::new(&[PathPolicy::Weighted(2), PathPolicy::Weighted(1), PathPolicy::Best], &[10, 30, 1]);
    world.run(2_000 * MS);
    for end in 0..2 {
        assert_eq!(world.spread(end), [(locator(1 - end, 0), 2), (locator(1 - end, 1), 1)]);
    }
    // The path in reserve is faster, and stays in reserve.
    assert!(world.both_use(0));
    world.links[0].loss = [1_000, 1_000];
    let lost = world.now;
    world.run(2_000 * MS);
    assert!(world.both_use(1) && world.spread(0).is_empty() && world.spread(1).is_empty());
    assert!(world.left(0, lost) < [550 * MS; 2]);
    // In ten seconds: one request a second by the lost path, one request and its answer by the reserve, five by the
    // path in use.
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
fn pinned_is_pinned() {
    let mut world = World::new(&[PathPolicy::Best, PathPolicy::Pinned], &[10, 20]);
    world.run(2_000 * MS);
    assert_eq!(world.active(0), Some(locator(1, 1)));
    assert!(world.choices[0].pinned && world.ends[0].locators() == [locator(1, 1)]);
    let now = world.now;
    world.ends[0].heard(seen_from(1, 7), now);
    world.links[1].loss = [1_000, 1_000];
    world.run(5_000 * MS);
    assert_eq!(world.active(0), Some(locator(1, 1)), "wherever it is heard, and whatever becomes of the path");
    let alone = Paths::new(&[PathPolicy::Pinned], now);
    assert!(!alone.is_plain() && Paths::new(&[PathPolicy::Best], now).is_plain());
}

#[test]
fn a_path_that_works_stays_when_others_are_configured() {
    let mut world = World::new(&[PathPolicy::Best; 2], &[90, 20, 10]);
    world.run(6_000 * MS);
    assert_eq!(world.active(0), Some(locator(1, 1)));
    let (now, best) = (world.now, PathPolicy::Best);
    let a = &mut world.ends[0];
    a.configure(&[(best, None), (best, Some(1))], false, now);
    a.put(0, locator(1, 2), now);
    a.put(1, locator(1, 1), now);
    assert!(a.certain() && a.report()[1].active && a.report()[1].state == State::Up, "{:?}", a.report());
    assert_eq!(a.report()[0].state, State::Unknown, "it was not there before");
    // A locator where the peer was heard last is dropped if all endpoints are new.
    a.configure(&[(best, None); 2], false, now);
    a.put(0, locator(1, 0), now);
    a.put(1, locator(1, 2), now);
    assert!(!a.certain());
    world.run(4_000 * MS);
    assert_eq!(world.active(0), Some(locator(1, 2)));
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
    let by = |n: u8| Locator::from(from(n));
    let mut orders = vec![];
    b.request(by(1), &asked(0, 3), 7, START, &mut orders);
    b.request(by(2), &asked(1, 3), 7, START, &mut orders);
    let to: Vec<_> = orders.iter().map(|order| matches!(order, Order::Probe { to, .. } if *to == by(2))).collect();
    assert_eq!(to, [false, true], "the answer goes back the way that the question came");
    let choice = b.changes(START).unwrap();
    assert_eq!(choice.spread.iter().map(|(_, locator)| *locator).collect::<Vec<_>>(), [by(1), by(2)]);
    assert_eq!(choice.active, Some(by(1)));
    assert!(from(1).covers(&from(1)) && !from(1).covers(&from(2)));
    let anywhere = |n| Address { interface: 0, ..from(n) };
    assert!(!anywhere(1).covers(&anywhere(2)), "by our address alone");
    assert!(!from(1).covers(&Address { interface: 2, ..from(1) }), "by the interface alone");
    // An older request that arrives late has no effect; a path that the peer hears nothing by is left.
    let late = Request { clock: START.as_nanos() - 1, active: Some(1), ..asked(0, 0) };
    b.request(by(3), &late, 7, START, &mut orders);
    assert!(b.changes(START).is_none());
    b.request(by(2), &Request { clock: START.as_nanos() + 1, ..asked(1, 2) }, 7, START, &mut orders);
    let choice = b.changes(START).unwrap();
    assert!(choice.spread.is_empty());
    // One path is left: when the other is forgotten, the kernel's routes are sufficient for it.
    let later = START + PROMISES * CARRYING + PATIENCE[0];
    b.request(by(2), &Request { clock: START.as_nanos() + 2, active: Some(1), ..asked(1, 2) }, 7, later, &mut orders);
    b.tick(Observation { session: true, data: 0, unanswered: None }, &mut search(), later, &mut vec![]);
    assert_eq!(b.changes(later).unwrap().active, Some(Address { interface: 0, ..from(2) }.into()));
    // If the peer's clock has started over, state that has expired or is from before a new session does not make its
    // requests look old.
    b.request(by(1), &Request { clock: 1, active: Some(0), ..asked(0, 3) }, 7, later, &mut orders);
    assert_eq!(b.changes(later).unwrap().active, Some(by(1)));
    b.established(later);
    b.request(by(2), &Request { clock: 2, active: Some(1), ..asked(1, 2) }, 7, later, &mut orders);
    assert_eq!(b.changes(later).unwrap().active, Some(by(2)));
}
