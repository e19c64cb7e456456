//! The own router-id and sequence numbers.
use super::*;
use crate::speaker::identity::STORED_AHEAD;

#[test]
fn the_seqno_continues_after_a_restart() {
    let config = |start| Config { start, ..Config::new(PublicKey([9; 32])) };
    let mut lab = Lab::with(config(Start::First), &[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    let first = lab.selected(p()).expect("announced").seqno;
    for step in 1..300 {
        lab.pass(60);
        let own = lab.babel.router_id();
        lab.says(A, |packet| packet.seqno_request(p(), own, first.plus(step), 1));
    }
    let last = lab.selected(p()).expect("announced").seqno;
    assert_eq!((last, lab.kept.len()), (first.plus(299), 2));
    let kept = lab.kept.pop().expect("two");
    let mut again = Lab::with(config(Start::Stored(kept)), &[A]);
    again.tell(Event::Announce { prefix: p(), metric: 0 });
    assert!(again.selected(p()).expect("announced").seqno.newer_than(last));
    assert_eq!(again.babel.router_id(), lab.babel.router_id());
}

/// After a start without numbers, and with gateways that share a key, other nodes see different nodes, but pins see the
/// same node.
#[test]
fn a_start_without_stored_numbers_takes_another_router_id() {
    let key = PublicKey([9; 32]);
    let mut seen = BTreeSet::new();
    let mut number = 0;
    for start in [Start::First, Start::Random, Start::Stored(vec![1]), Start::Stored(vec![1, 2])] {
        for _ in 0..4 {
            number += 1;
            let mut rng = StdRng::seed_from_u64(number);
            let id = Babel::new(Config { start: start.clone(), ..Config::new(key) }, &mut rng).router_id();
            assert!(seen.insert(id), "{start:?} gives {id} again");
            assert!(id.is_of_same_key(RouterId::of_key(&key)));
        }
    }
}

/// Another node announces a number that this one never used: the stored numbers were lost, or another node has this
/// router-id.
#[test]
fn a_number_that_was_never_announced_is_overtaken_or_changes_the_router_id() {
    let start = || Lab::with(Config { start: Start::First, ..Config::new(PublicKey([9; 32])) }, &[A]);
    let other = net("10.5.2.0/24");
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Then {
        Nothing,
        Overtakes,
        Renumbers,
    }
    for (what, prefix, ahead, then) in [
        ("what was said", p(), 0, Then::Nothing),
        ("what an earlier run has said", p(), u16::MAX, Then::Nothing),
        ("more than was said", p(), 1, Then::Overtakes),
        ("much more than was said", p(), SEQNO_LEAP, Then::Overtakes),
        ("more than there is a number for", p(), SEQNO_LEAP + 1, Then::Renumbers),
        ("the most that is newer", p(), 0x7fff, Then::Renumbers),
        ("what this run does not announce", other, 0, Then::Renumbers),
        ("what an earlier run announced", other, u16::MAX, Then::Nothing),
    ] {
        let mut lab = start();
        lab.tell(Event::Announce { prefix: p(), metric: 0 });
        lab.tell(Event::Announce { prefix: net("10.2.0.0/16"), metric: 0 });
        lab.pass(50);
        let (own, kept) = (lab.babel.router_id(), lab.kept.len());
        let seqno = lab.selected(p()).expect("announced").seqno;
        lab.announces(A, prefix, Announcement { router_id: own, seqno: seqno.plus(ahead), metric: 96 });
        let id = lab.babel.router_id();
        assert_eq!((id != own, lab.kept.len() > kept), (then == Then::Renumbers, then != Then::Nothing), "{what}");
        assert!(id.is_of_same_key(own));
        let expected = if then == Then::Overtakes { seqno.plus(ahead + STORED_AHEAD) } else { seqno };
        for own in [p(), net("10.2.0.0/16")] {
            assert_eq!(lab.selected(own), Some(Announcement { router_id: id, seqno: expected, metric: 0 }), "{what}");
        }
        lab.pass(50);
        let told = lab.told(A, p());
        assert_eq!(
            told.last().copied().flatten().map(|route| (route.router_id, route.seqno)),
            Some((id, expected)),
            "{what}"
        );
        assert!(!lab.fib.contains_key(&other), "{what}");
        let kept = lab.kept.last().expect("kept").clone();
        let config = Config { start: Start::Stored(kept), ..Config::new(PublicKey([9; 32])) };
        let mut again = Lab::with(config, &[A]);
        again.tell(Event::Announce { prefix: p(), metric: 0 });
        let again = again.selected(p()).expect("announced");
        assert!(again.router_id == id && again.seqno.newer_than(expected), "{what}: {again:?}");
        // If it happens again, the node changes its router-id instead, but not twice within ten seconds.
        lab.announces(A, p(), Announcement { router_id: id, seqno: expected.plus(1), metric: 96 });
        let second = lab.babel.router_id();
        assert_eq!(second != id, then == Then::Overtakes, "{what}");
        lab.pass(10_000);
        lab.announces(A, other, Announcement { router_id: second, seqno: expected.plus(9_000), metric: 96 });
        assert_ne!(lab.babel.router_id(), second, "{what}");
    }
}

/// A node that announces under this router-id again and again gets a bounded number of answers.
#[test]
fn forged_numbers_have_a_bounded_effect() {
    let mut lab = Lab::with(Config { start: Start::First, ..Config::new(PublicKey([9; 32])) }, &[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    lab.pass(50);
    let period = u64::try_from(SOURCE_GC.as_millis()).expect("minutes");
    for round in 0..2 {
        let (mut ids, mut leaps) = (BTreeSet::from([lab.babel.router_id()]), 0);
        let mut before = lab.selected(p()).expect("announced").seqno;
        for _ in 0..period / 4_000 {
            let id = lab.babel.router_id();
            for ahead in [SEQNO_LEAP, 1, 0x7fff, 0x8000] {
                let seqno = lab.selected(p()).expect("announced").seqno.plus(ahead);
                lab.announces(A, p(), Announcement { router_id: id, seqno, metric: 96 });
                lab.says(A, |packet| packet.seqno_request(p(), id, seqno, 1));
                lab.pass(980);
                let seqno = lab.selected(p()).expect("announced").seqno;
                leaps += u32::from(seqno.ahead_of(before) > 1);
                before = seqno;
            }
            ids.insert(lab.babel.router_id());
        }
        assert!(ids.len() <= 5 && leaps <= 2, "round {round}: {} router-ids, {leaps} leaps", ids.len());
        assert!(round > 0 || ids.len() > 1 && leaps == 1, "round {round}: {} router-ids, {leaps} leaps", ids.len());
    }
}
