//! One endpoint, and relays for when it does not answer: a member and a server of its network.
use super::*;

/// A calls B at link 0, and both may use the relay at link 1. B has no endpoint for A.
fn world() -> World {
    world_of(&[10, 20])
}

/// The same with these one-way delays.
fn world_of(delays: &[u64]) -> World {
    let mut world = World::new(&[PathPolicy::Best, PathPolicy::Fallback], delays);
    world.indirect(1, through(1));
    world.ends[1] = Paths::new(&[PathPolicy::Fallback], START);
    world.ends[1].put(0, through(1), START);
    world.ends[1].heard(seen_from(0, 0), START);
    world.ends[1].established(START);
    world
}

fn cut(world: &mut World, link: usize, lost: bool) {
    world.links[link].loss = [if lost { 1_000 } else { 0 }; 2];
}

fn both(world: &World) -> [Option<Locator>; 2] {
    [world.active(0), world.active(1)]
}

const DIRECT: fn() -> [Option<Locator>; 2] = || [Some(locator(1, 0)), Some(locator(0, 0))];
const RELAYED: fn() -> [Option<Locator>; 2] = || [Some(through(1)); 2];

#[test]
fn nothing_is_asked_without_traffic_and_no_relay_while_the_endpoint_answers() {
    let mut world = world();
    world.traffic = false;
    world.run(Duration::from_secs(600));
    assert_eq!(world.probes, 0);
    world.traffic = true;
    world.run(Duration::from_secs(60));
    assert!(world.asked[&0] > 500 && !world.asked.contains_key(&1), "{:?}", world.asked);
    world.traffic = false;
    world.run(Duration::from_secs(60));
    let probes = world.probes;
    world.run(Duration::from_secs(600));
    assert_eq!((world.probes, both(&world)), (probes, DIRECT()));
}

#[test]
fn an_endpoint_that_answers_no_more_is_replaced_within_a_second_and_comes_back() {
    let mut world = world();
    world.run(Duration::from_secs(5));
    for _ in 0..3 {
        cut(&mut world, 0, true);
        world.run(Duration::from_secs(1));
        assert_eq!(both(&world), RELAYED());
        world.run(Duration::from_secs(20));
        assert_eq!(both(&world), RELAYED());
        cut(&mut world, 0, false);
        // After each recent failure, more answers are needed until a path is trusted.
        world.run(Duration::from_secs(10));
        assert_eq!(both(&world), DIRECT());
        let relay = world.asked[&1];
        world.run(Duration::from_secs(60));
        assert_eq!(world.asked[&1], relay, "the relay is left alone");
    }
}

/// A relay is a reserve, however near it is: its work is at the expense of others.
#[test]
fn a_far_endpoint_that_answers_is_used_in_place_of_a_near_relay() {
    let mut world = world_of(&[200, 2]);
    world.run(Duration::from_secs(5));
    cut(&mut world, 0, true);
    world.run(Duration::from_secs(5));
    assert_eq!(both(&world), RELAYED());
    cut(&mut world, 0, false);
    world.run(Duration::from_secs(20));
    assert_eq!(both(&world), DIRECT());
    let relay = world.asked[&1];
    world.run(Duration::from_secs(60));
    assert_eq!(both(&world), DIRECT());
    // An answer that arrives a little later than the ones before counts as missed.
    assert!(world.asked[&1] <= relay + 5, "{} requests through the relay", world.asked[&1] - relay);
}

#[test]
fn what_was_cut_while_nothing_was_sent_is_noticed_with_the_first_traffic() {
    let mut world = world();
    world.run(Duration::from_secs(5));
    world.traffic = false;
    world.run(Duration::from_secs(600));
    cut(&mut world, 0, true);
    world.run(Duration::from_secs(600));
    world.traffic = true;
    world.run(Duration::from_millis(1_500));
    assert_eq!(both(&world), RELAYED());
    // In the other direction: the first initiation goes to the locator of the last answer, the next one to all.
    assert_eq!(world.ends[0].first_locators(), [through(1), locator(1, 0)]);
}

#[test]
fn the_only_endpoint_moves_with_the_peer_and_relays_do_not() {
    let mut world = world();
    world.run(Duration::from_secs(5));
    let end = &mut world.ends[0];
    assert_eq!((end.first_locators(), end.locators()), (vec![locator(1, 0)], vec![locator(1, 0), through(1)]));
    // The peer's packets come from elsewhere, as after a change of its address.
    end.heard(locator(1, 5), world.now);
    assert_eq!(end.locators(), [locator(1, 5), through(1)], "and nobody asks where it was");
    assert_eq!(end.changes(world.now).and_then(|choice| choice.active), Some(locator(1, 5)));
    end.heard(through(7), world.now);
    assert_eq!(end.locators(), [through(7), locator(1, 5), through(1)]);
}

#[test]
fn several_endpoints_are_watched_as_ever_and_the_relay_is_not() {
    let mut world = World::new(&[PathPolicy::Best, PathPolicy::Best, PathPolicy::Fallback], &[10, 12, 20]);
    world.indirect(2, through(2));
    world.traffic = false;
    world.run(Duration::from_secs(300));
    assert!(world.asked[&0] >= 10 && world.asked[&1] >= 10 && !world.asked.contains_key(&2), "{:?}", world.asked);
    world.traffic = true;
    world.run(Duration::from_secs(1));
    cut(&mut world, 0, true);
    cut(&mut world, 1, true);
    world.run(Duration::from_secs(2));
    assert_eq!(world.active(0), Some(through(2)));
}

/// Nothing was ever answered, because the first traffic begins after the cut.
#[test]
fn a_peer_that_never_answered_a_request_is_asked_through_relays() {
    let mut world = world();
    cut(&mut world, 0, true);
    world.run(Duration::from_millis(1_500));
    assert_eq!(both(&world), RELAYED());
}

/// Through a relay alone, as when the endpoint never answered.
#[test]
fn a_peer_that_was_only_ever_heard_through_a_relay_is_asked_there() {
    let mut world = world();
    cut(&mut world, 0, true);
    for end in 0..2 {
        let mut paths = Paths::new(
            if end == 0 { &[PathPolicy::Best, PathPolicy::Fallback] } else { &[PathPolicy::Fallback] },
            START,
        );
        if end == 0 {
            paths.put(0, locator(1, 0), START);
        }
        paths.put(1 - end, through(1), START);
        paths.heard(through(1), START);
        paths.established(START);
        world.ends[end] = paths;
    }
    world.run(Duration::from_secs(5));
    assert_eq!(both(&world), RELAYED());
    cut(&mut world, 0, false);
    world.run(Duration::from_secs(5));
    assert_eq!(world.active(0), Some(locator(1, 0)));
}

/// The peer has found the way to this end, and sends only its requests by it. Then the relay dies by which it was heard
/// before.
#[test]
fn a_peer_that_asks_directly_is_reached_when_the_relay_is_gone() {
    for cut_after in [0, 20, 300, 5_000] {
        let mut world = world();
        let mut paths = Paths::new(&[PathPolicy::Fallback], START);
        paths.put(0, through(1), START);
        paths.heard(through(1), START);
        paths.established(START);
        world.ends[1] = paths;
        world.run(cut_after * MS);
        cut(&mut world, 1, true);
        world.run(Duration::from_secs(3));
        assert_eq!(both(&world), DIRECT(), "cut after {cut_after} ms");
    }
}

/// Each end is a relay for others, for which a way through a second relay does not count.
#[test]
fn an_endpoint_that_becomes_known_is_tried_at_once_and_then_left_alone() {
    for answers in [true, false] {
        let mut world = world();
        world.traffic = false;
        cut(&mut world, 0, !answers);
        for end in 0..2 {
            let policies = [PathPolicy::Best, PathPolicy::Fallback];
            let mut paths = Paths::new(if end == 0 { &policies } else { &policies[1..] }, START);
            paths.put(1 - end, through(1), START);
            paths.heard(through(1), START);
            paths.established(START);
            world.ends[end] = paths;
        }
        world.run(Duration::from_secs(60));
        let active = |world: &World| world.ends.each_ref().map(|end| end.active_locator().map(bare));
        assert_eq!((active(&world), world.probes), (RELAYED(), 0));
        let now = world.now;
        world.ends[0].put(0, locator(1, 0), now);
        world.run(Duration::from_secs(2));
        assert_eq!(active(&world), if answers { DIRECT() } else { RELAYED() });
        assert!((1..20).contains(&world.probes), "{}", world.probes);
        let probes = world.probes;
        world.run(Duration::from_secs(600));
        assert_eq!(world.probes, probes);
    }
}

/// A peer that forwards a request from elsewhere causes a few requests to that locator, and nothing else.
#[test]
fn a_locator_that_answers_nothing_is_asked_and_not_used() {
    let mut world = world();
    world.run(Duration::from_secs(5));
    let request = Request {
        version: Version::V1,
        path: 0,
        active: Some(0),
        usable: 1,
        weights: [0; MAX_SHARES],
        interval: CARRYING,
        clock: world.now.as_nanos(),
        nonce: Some(0),
        token: 0,
    };
    let elsewhere = locator(0, 9);
    let mut orders = vec![];
    world.ends[1].request(elsewhere, &request, 7, world.now, &mut orders);
    world.orders(1, orders);
    world.run(Duration::from_secs(60));
    assert_eq!(both(&world), DIRECT());
    assert!(world.asked.get(&9).is_none_or(|asked| *asked <= 3), "{:?}", world.asked);
}
