//! Route requests and seqno requests, of neighbours and of this node.
use super::*;

/// RFC 8966 §3.8.1.1.
#[test]
fn route_requests_are_answered_by_an_update_or_a_retraction() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.pass(2_000);
    lab.told(B, p());
    for (prefix, answer) in
        [(p(), Some(route(5, 1, 100 + COST))), (net("10.9.0.0/16"), None), (net("10.1.0.0/17"), None)]
    {
        lab.says(B, |packet| packet.route_request(Some(prefix)));
        lab.pass(20);
        assert_eq!(lab.told(B, prefix), [answer], "{prefix}");
    }
    for _ in 0..5 {
        lab.says(B, |packet| packet.route_request(None));
    }
    lab.pass(900);
    assert_eq!(lab.told(B, p()).len(), 1, "full dumps are limited");
}

/// RFC 8966 §3.8.1.2.
#[test]
fn a_request_raises_the_own_seqno_by_one_and_no_more() {
    let mut lab = Lab::new(&[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    lab.tell(Event::Announce { prefix: net("10.2.0.0/16"), metric: 0 });
    lab.pass(100);
    let own = lab.babel.router_id();
    let first = lab.selected(p()).expect("announced").seqno;
    lab.told(A, p());
    for (asked, answer) in [(first, 0), (first.plus(1), 1), (first.plus(900), 2), (first.plus(0xffff), 2)] {
        lab.pass(100);
        lab.says(A, |packet| packet.seqno_request(p(), own, asked, 1));
        lab.pass(20);
        // A node that only heard this run does not need a number that is so far ahead.
        assert_eq!(lab.babel.router_id() != own, answer == 2, "{asked:?}");
        let expected = Announcement { router_id: lab.babel.router_id(), seqno: first.plus(answer), metric: 0 };
        assert_eq!(lab.told(A, p()).first(), Some(&Some(expected)), "{asked:?}");
        lab.pass(2_000);
        lab.told(A, p());
    }
    assert_eq!(lab.selected(net("10.2.0.0/16")).expect("announced").seqno, first, "others are left alone");
    lab.says(A, |packet| packet.seqno_request(p(), id(77), Seqno(1), 1));
    lab.pass(20);
    assert_eq!(lab.told(A, p()).len(), 1, "another origin is an answer to any request");
}

/// RFC 8966 §3.8.1.2.
#[test]
fn requests_are_forwarded_to_one_neighbour_and_the_answer_comes_back() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 190));
    assert_eq!(lab.hops(p()), [A, B], "B in reserve");
    lab.pass(2_000);
    lab.sent.clear();
    let ask = |lab: &mut Lab, who, seqno: u16, hop_count| {
        lab.says(who, |packet| packet.seqno_request(p(), id(5), Seqno(seqno), hop_count));
        lab.pass(20);
        lab.requests()
    };
    assert_eq!(ask(&mut lab, C, 2, 1), [], "it ends here");
    assert_eq!(ask(&mut lab, C, 2, 7), [(A, id(5), 2, 6)]);
    assert_eq!(ask(&mut lab, C, 2, 7), [], "just now");
    assert_eq!(ask(&mut lab, A, 3, 7), [(B, id(5), 3, 6)], "not to who asks");
    assert_eq!(ask(&mut lab, C, 1, 7), [], "there is an answer");
    assert_eq!(lab.told(C, p()), [Some(route(5, 1, 100 + COST))]);
    lab.announces(A, p(), route(5, 3, 100));
    assert_eq!(lab.told(C, p()), [Some(route(5, 3, 100 + COST))], "urgent for who asked");
}

#[test]
fn a_newer_seqno_on_a_route_that_is_not_selected_does_not_end_the_request() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 190));
    lab.says(C, |packet| packet.seqno_request(p(), id(5), Seqno(2), 64));
    lab.pass(20);
    assert_eq!(lab.requests(), [(A, id(5), 2, 63)]);
    // The answer comes from B, but A is still selected: no neighbour gets an update, and A is asked once more.
    lab.told(C, p());
    lab.announces(B, p(), route(5, 2, 190));
    assert_eq!((lab.hops(p())[0], lab.told(C, p())), (A, vec![]));
    assert_eq!(lab.requests(), [(A, id(5), 2, 128)]);
    lab.announces(A, p(), route(5, 2, 100));
    assert_eq!(lab.told(C, p()), [Some(route(5, 2, 100 + COST))]);
}

/// RFC 8966 §3.8.2.1.
#[test]
fn without_a_feasible_route_all_neighbours_are_asked_until_one_answers() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 65_535, 100));
    lab.announces(B, p(), route(5, 65_535, 300));
    lab.announces(C, p(), route(5, 65_535, 400));
    lab.requests();
    lab.retracts(A, p());
    assert_eq!(lab.requests(), [(B, id(5), 0, 128), (C, id(5), 0, 128)]);
    assert_eq!(lab.told(A, p()).last(), Some(&None));
    lab.pass(40_000);
    assert_eq!(lab.requests().iter().filter(|(to, ..)| *to == B).count(), 6, "it does not give up");
    lab.announces(C, p(), route(5, 0, 400));
    assert_eq!((lab.hops(p()), lab.told(B, p()).last()), (vec![C], Some(&Some(route(5, 0, 400 + COST)))));
    lab.requests();
    lab.pass(40_000);
    assert_eq!(lab.requests(), []);
}

/// RFC 8966 §3.8.2.2.
#[test]
fn a_much_better_unfeasible_route_is_asked_for_a_few_times() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(A, p(), route(5, 2, 3_000));
    lab.babel.sources.announced(p(), route(6, 1, 50), None, lab.now);
    lab.requests();
    lab.announces(B, p(), route(6, 1, 200));
    assert_eq!(lab.hops(p()), [A]);
    lab.pass(60_000);
    let requests = lab.requests();
    assert!(
        requests.len() == 4 && requests.iter().all(|&(to, origin, seqno, _)| (to, origin, seqno) == (B, id(6), 2)),
        "{requests:?}"
    );
}
