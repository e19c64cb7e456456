//! Updates that this node sends: triggered, periodic, for the host.
use super::*;

/// RFC 8966 §3.7.2.
#[test]
fn another_router_id_is_urgent_and_repeated_until_acknowledged() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.pass(1_000);
    lab.sent.clear();
    lab.acks = false;
    lab.says(A, |packet| packet.update(p(), route(6, 9, 100), INTERVAL, None));
    lab.pass(15);
    assert_eq!(lab.told(B, p()), [Some(route(6, 9, 100 + COST))]);
    // Four more copies are sent, and one when the neighbour is heard again.
    lab.pass(20_000);
    assert_eq!(lab.told(B, p()).len(), 5);
    lab.acks = true;
    lab.announces(A, p(), route(7, 9, 100));
    lab.pass(5_000);
    assert_eq!(lab.told(B, p()).len(), 1, "acknowledged");
}

#[test]
fn a_retraction_is_urgent_and_a_small_change_is_not_announced() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    lab.announces(A, p(), route(5, 1, 130));
    lab.pass(3_000);
    assert!(lab.told(B, p()).is_empty());
    lab.announces(A, p(), route(5, 2, 400));
    lab.pass(500);
    assert_eq!(lab.told(B, p()), [Some(route(5, 2, 400 + COST))]);
    lab.retracts(A, p());
    assert_eq!(lab.told(B, p()), [None]);
}

#[test]
fn prefixes_of_the_host_come_and_go() {
    let mut lab = Lab::new(&[A]);
    lab.tell(Event::Announce { prefix: net("10.5.1.1/24"), metric: 30 });
    lab.tell(Event::Announce { prefix: net("127.0.0.0/8"), metric: 0 });
    lab.pass(50);
    assert_eq!(lab.told(A, net("10.5.1.0/24")).iter().flatten().map(|route| route.metric).collect::<Vec<_>>(), [30]);
    assert!(lab.told(A, net("127.0.0.0/8")).is_empty() && lab.fib.is_empty());
    lab.announces(A, net("10.5.1.0/24"), Announcement { router_id: lab.babel.router_id(), seqno: Seqno(9), metric: 1 });
    assert!(lab.fib.is_empty(), "an echo");
    lab.tell(Event::Withdraw { prefix: net("10.5.1.0/24") });
    lab.pass(500);
    assert_eq!(lab.told(A, net("10.5.1.0/24")).last(), Some(&None));
    lab.pass(100_000);
    assert_eq!(lab.babel.routes().count(), 0);
}

/// RFC 8966 §4.6.9.
#[test]
fn leaving_retracts_everything() {
    let mut lab = Lab::new(&[A, B]);
    let mut out = Vec::new();
    lab.babel.leave(lab.now, &mut out);
    assert_eq!(out.len(), 2);
    for action in out {
        let Action::Send { packet, .. } = action else { panic!("{action:?}") };
        let (_, datagram) = ip::unwrap(&packet).expect("a packet");
        assert_eq!(Tlvs::new(datagram).expect("a packet").collect::<Vec<_>>(), [Tlv::Retraction { prefix: None }]);
    }
}

/// RFC 8966 §3.7.1.
#[test]
fn periodic_updates_repeat_what_is_selected() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    for _ in 0..3 {
        lab.says(A, |packet| packet.update(p(), route(5, 1, 100), INTERVAL, None));
        lab.pass(u64::try_from(UPDATE_INTERVAL.as_millis()).expect("seconds"));
        assert_eq!((lab.told(B, p()).len(), lab.told(A, p()).len()), (1, 0));
    }
    assert_eq!(MAX_ROUTES, 4_096);
}

/// RFC 8966 §3.7.4 (split horizon).
#[test]
fn a_new_next_hop_hears_a_retraction_and_the_old_one_the_new_route() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 110));
    lab.pass(2_000);
    assert_eq!((lab.hops(p()), lab.told(A, p())), (vec![A, B], vec![]));
    assert_eq!(lab.told(B, p()), [Some(route(5, 1, 100 + COST))]);
    lab.retracts(A, p());
    lab.pass(500);
    assert_eq!(lab.hops(p()), [B]);
    assert_eq!(lab.told(A, p()), [Some(route(5, 1, 110 + COST))]);
    assert_eq!(lab.told(B, p()), [None]);
}
