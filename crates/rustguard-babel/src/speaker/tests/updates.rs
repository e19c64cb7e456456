//! Updates and retractions that neighbours send.
use super::*;

/// RFC 8966 §4.6.9.
#[test]
fn a_wildcard_retraction_ends_all_routes_of_that_neighbour() {
    let mut lab = Lab::new(&[A, B]);
    for (peer, prefix) in [(A, "10.1.0.0/16"), (A, "fd01::/16"), (B, "10.2.0.0/16")] {
        lab.announces(peer, net(prefix), route(5, 1, 100));
    }
    lab.says(A, |packet| packet.retract_all(INTERVAL));
    lab.pass(300);
    assert_eq!(lab.fib.keys().copied().collect::<Vec<_>>(), [net("10.2.0.0/16")]);
}

/// RFC 8966 §3.5.1 and §3.7.3.
#[test]
fn what_was_announced_bounds_what_is_feasible() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    assert_eq!((lab.hops(p()), lab.told(B, p())), (vec![A], vec![Some(route(5, 1, 100 + COST))]));
    assert!(lab.told(A, p()).is_empty(), "split horizon");
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert_eq!(lab.hops(p()), [A], "it may lead back here");
    lab.announces(B, p(), route(5, 1, 99 + COST));
    assert_eq!(lab.hops(p()), [A, B], "it cannot");
    // The feasibility distance outlives the route, for a limited time.
    lab.retracts(A, p());
    lab.retracts(B, p());
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert!(lab.selected(p()).is_none());
    lab.retracts(B, p());
    lab.pass(u64::try_from((SOURCE_GC + SWEEP_INTERVAL).as_millis()).expect("minutes"));
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert_eq!(lab.hops(p()), [B]);
}

/// RFC 8966 §3.5.3.
#[test]
fn an_unfeasible_update_of_the_selected_route_is_not_followed() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 65_535, 100));
    lab.announces(A, p(), route(5, 65_535, 500));
    assert_eq!((lab.hops(p()), lab.selected(p())), (vec![A], Some(route(5, 65_535, 100 + COST))), "kept");
    assert_eq!(lab.requests()[..1], [(A, id(5), 0, 128)], "and asked about, only there");
    assert_eq!(lab.babel.counters().unfeasible, 1);
    lab.announces(A, p(), route(5, 0, 500));
    assert_eq!(lab.selected(p()), Some(route(5, 0, 500 + COST)));
    // If another feasible route is at least as short, the route is unselected at once.
    lab.announces(B, p(), route(5, 0, 550));
    lab.announces(A, p(), route(5, 0, 700));
    assert_eq!(lab.hops(p()), [B]);
    // A route to another origin is another route: the old one is unselected in any case.
    lab.babel.sources.announced(p(), route(6, 1, 10), None, lab.now);
    lab.announces(B, p(), route(6, 1, 50));
    assert_ne!(lab.hops(p()), [B]);
}

/// RFC 8966 §3.5.4: a covering prefix must not be used meanwhile.
#[test]
fn a_retracted_prefix_is_held_until_all_neighbours_know() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(B, net("0.0.0.0/0"), route(4, 1, 100));
    lab.announces(A, p(), route(5, 1, 100));
    lab.acks = false;
    lab.retracts(A, p());
    assert!(lab.fib[&p()].is_unreachable() && !lab.fib[&net("0.0.0.0/0")].is_unreachable());
    lab.acks = true;
    lab.pass(2_000);
    assert!(!lab.fib.contains_key(&p()), "all have acknowledged");
    // An acknowledgment of the earlier announcement does not count. A neighbour that is gone need not acknowledge.
    lab.announces(A, p(), route(5, 2, 100));
    lab.acks = false;
    lab.retracts(A, p());
    lab.pass(500);
    assert!(lab.fib[&p()].is_unreachable());
    lab.alive.clear();
    lab.pass(2_000);
    assert!(!lab.fib.contains_key(&p()));
    // A route ends the hold.
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.acks = false;
    lab.retracts(A, p());
    lab.announces(B, p(), route(5, 1, 50));
    assert_eq!(lab.hops(p()), [B]);
}

/// RFC 8966 §3.8.2.3.
#[test]
fn routes_are_asked_about_before_they_expire_and_their_permission_lasts_longer() {
    let mut lab = Lab::new(&[A]);
    lab.says(A, |packet| packet.update(p(), route(5, 1, 100), 100, None));
    lab.pass(3_000);
    assert!(lab.hops(p()) == [A] && lab.permitted.contains(&(A, p())));
    lab.sent.clear();
    lab.pass(200);
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) })));
    lab.pass(320);
    assert!(lab.selected(p()).is_none() && lab.permitted.contains(&(A, p())), "3.5 intervals, then one of grace");
    lab.pass(1_000);
    assert!(lab.permitted.is_empty());
    lab.says(A, |packet| packet.update(p(), route(5, 1, 90), u16::MAX, None));
    lab.pass(60_000);
    assert_eq!(lab.hops(p()), [A], "an announcement that is never repeated");
}

/// RFC 8966 Appendix C.
#[test]
fn refused_updates_are_counted_and_end_the_route() {
    let pins = vec![Pin { prefix: net("10.7.0.0/16"), origin: id(7) }];
    let mut lab = Lab::with(Config { pins, max_routes: 3, ..Config::new(PublicKey([9; 32])) }, &[A, B]);
    lab.peer(A, Role::Router, &["10.0.0.0/8"]);
    for (prefix, origin) in
        [("10.7.1.0/24", 7), ("10.7.2.0/24", 6), ("11.0.0.0/8", 5), ("0.0.0.0/0", 5), ("224.0.0.0/8", 5)]
    {
        lab.announces(A, net(prefix), route(origin, 1, 100));
    }
    assert_eq!(lab.fib.keys().copied().collect::<Vec<_>>(), [net("10.7.1.0/24")]);
    lab.announces(A, net("10.7.1.0/24"), route(6, 1, 100));
    assert_eq!(lab.hops(net("10.7.1.0/24")), []);
    for i in 0..5 {
        lab.announces(A, net(&format!("10.8.{i}.0/24")), route(5, 1, 100));
    }
    let counters = lab.babel.counters();
    assert_eq!(
        (counters.pinned, counters.outside_allowed_ips, counters.martian, counters.too_many_routes),
        (2, 2, 1, 3)
    );
    assert_eq!(lab.babel.neighbours().next().map(|neighbour| neighbour.routes), Some(3));
}

#[test]
fn narrower_allowed_ips_retract_and_wider_ones_ask() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    lab.peer(A, Role::Router, &["10.2.0.0/16"]);
    lab.pass(50);
    assert_eq!((lab.hops(p()), lab.told(B, p())), (vec![], vec![None]));
    assert!(lab.permitted.is_empty());
    lab.sent.clear();
    lab.peer(A, Role::Router, &["10.0.0.0/8"]);
    lab.pass(20);
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: None })));
}

#[test]
fn a_retraction_that_may_have_been_reordered_is_asked_about() {
    let mut lab = Lab::new(&[A]);
    let asked = |lab: &mut Lab| {
        lab.sent.clear();
        lab.retracts(A, p());
        lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) }))
    };
    lab.announces(A, p(), route(5, 1, 100));
    assert!(asked(&mut lab), "the announcement may be the later one");
    assert!(!asked(&mut lab), "there was nothing to retract");
    lab.sent.clear();
    lab.announces(A, p(), route(5, 1, 90));
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) })), "nor may this be the later one");
    lab.pass(1_500);
    lab.retracts(A, p());
    lab.pass(1_500);
    lab.sent.clear();
    lab.announces(A, p(), route(5, 2, 100));
    lab.pass(1_500);
    assert!(!asked(&mut lab), "long after");
}
