//! The messages while there is little traffic or none.
use super::*;

#[test]
fn traffic_that_begins_with_little_is_noticed_and_a_keepalive_is_not_looked_after_for_long() {
    for (more, expected) in [(500, true), (0, false)] {
        let mut a = Paths::new(&[PathPolicy::Best; 2], START);
        (0..2).for_each(|n| a.put(n, locator(1, n), START));
        a.heard(locator(1, 0), START);
        a.established(START);
        a.wake(START);
        let mut data = 60;
        for n in 0..8 {
            let seen = Observation { session: true, data, unanswered: None };
            a.tick(seen, &mut search(), START + n * LOOK, &mut vec![]);
            data += more;
        }
        assert_eq!((a.has_traffic(), a.next_look.is_some()), (expected, expected), "{more} bytes after the first");
    }
}

/// Members have every server as a way to every other member. A silent pair costs nothing, no matter how many servers
/// there are.
#[test]
fn a_silent_pair_asks_through_none_of_its_relays() {
    let mut ends = [0, 1].map(|_| {
        let mut end = Paths::look_for_direct_ways(&[PathPolicy::Best; 3], START);
        (0..3).for_each(|n| end.put(n, through(n), START));
        end.established(START);
        end
    });
    let mut searches = [search(), search()];
    let mut flying: BTreeMap<(Instant, u64), (usize, Locator, Probe)> = BTreeMap::new();
    let (mut now, mut data, mut sent) = (START, 0, 0);
    let mut asked_in = |time: Duration, traffic: bool| {
        let (end_of_time, mut asked) = (now + time, [0; 3]);
        while now < end_of_time {
            now = now + 10 * MS;
            if traffic {
                data += 1_000;
                ends.iter_mut().for_each(|end| end.wake(now));
            }
            let mut orders: Vec<(usize, Vec<Order>)> = vec![];
            while flying.keys().next().is_some_and(|(at, _)| *at <= now) {
                let (_, (end, from, probe)) = flying.pop_first().expect("it was looked at");
                let mut out = vec![];
                match probe {
                    Probe::Request(request) => ends[end].request(from, &request, 7, now, &mut out),
                    Probe::Reply(reply) => ends[end].reply(&reply, &searches[end], now, &mut out),
                }
                orders.push((end, out));
            }
            for end in 0..2 {
                if ends[end].deadline().is_some_and(|at| at <= now) {
                    let mut out = vec![];
                    let seen = Observation { session: true, data, unanswered: None };
                    ends[end].tick(seen, &mut searches[end], now, &mut out);
                    orders.push((end, out));
                }
            }
            for (end, orders) in orders {
                for order in orders {
                    let Order::Probe { to, probe } = order else { continue };
                    if let (Locator::Peer(PeerId(relay)), Probe::Request(_)) = (to, &probe) {
                        asked[relay as usize] += 1;
                    }
                    sent += 1;
                    flying.insert((now + 20 * MS, sent), (1 - end, to, probe));
                }
            }
        }
        asked
    };
    let busy = asked_in(Duration::from_secs(10), true);
    println!("10 s of traffic: {busy:?} requests through each of three relays");
    // One relay carries the traffic, and the others are known to work.
    assert!(busy.iter().all(|asked| *asked >= 10) && busy.iter().min() < busy.iter().max());
    asked_in(Duration::from_secs(180), false);
    assert_eq!(asked_in(Duration::from_secs(600), false), [0; 3]);
    assert!(
        asked_in(Duration::from_secs(2), true).iter().all(|asked| *asked > 0),
        "all are asked when there is traffic again"
    );
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
    // A failure in the meantime is noticed as soon as there is something to send.
    world.links[0].loss = [1_000, 1_000];
    world.run(Duration::from_secs(5));
    world.traffic = true;
    let began = world.now;
    world.run(2_000 * MS);
    assert!(world.both_use(1));
    assert!(world.left(0, began) < [550 * MS; 2]);
}

/// A device keeps nothing for a peer whose paths rest: new paths from its endpoints have to be equivalent.
#[test]
fn paths_rest_without_a_session_unless_they_know_more_than_their_endpoints() {
    let silent = |session| Observation { session, data: 0, unanswered: None };
    let mut paths = Paths::look_for_direct_ways(&[PathPolicy::Best], START);
    paths.put(0, through(0), START);
    assert!(paths.rests());
    paths.established(START);
    assert!(!paths.rests());
    let (later, mut orders) = (START + Duration::from_secs(600), vec![]);
    for now in [START, later] {
        paths.tick(silent(true), &mut search(), now, &mut orders);
    }
    assert!(!paths.rests(), "there is a session");
    paths.ended();
    assert!(paths.rests());
    paths.heard(through(0), later);
    assert!(paths.rests(), "at a locator that is configured");
    paths.heard(locator(1, 0), later);
    assert!(!paths.rests(), "at another one, which no endpoint says");
}
