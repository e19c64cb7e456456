//! Timers: keepalives, retries, rekeys, expiry, odd clocks.
use crate::sim::{A, B, Sim, at, ms, packet, secs, seed_or};
use rustguard_core::{
    node::Event,
    time::{Instant, Now},
    tunnel::{HEADROOM, TAILROOM},
    wire::Kind,
};
use std::time::Duration;

#[test]
fn passive_keepalive_ten_seconds_after_data_and_never_after_a_keepalive() {
    let mut sim = Sim::connected(seed_or(9));
    sim.run(secs(60));
    sim.sent.clear();
    let start = sim.clock;
    sim.send(A, 1);
    sim.run(secs(4));
    sim.send(A, 2);
    sim.run(secs(20));
    let keepalives: Vec<_> = sim.sent.iter().filter(|sent| sent.is_keepalive()).collect();
    assert_eq!(keepalives.len(), 1, "{keepalives:?}");
    assert_eq!(keepalives[0].by, B);
    assert_eq!(keepalives[0].at, start + secs(10) + ms(10), "ten seconds after the first data arrived");

    // Any sent packet settles it, and the one keepalive is the last packet.
    sim.sent.clear();
    sim.send(A, 3);
    sim.run(secs(5));
    sim.send(B, 4);
    sim.run(secs(600));
    let keepalives: Vec<_> = sim.sent.iter().filter(|sent| sent.is_keepalive()).collect();
    assert_eq!(keepalives.len(), 1, "A owes one for B's data, B owes none: {keepalives:?}");
    assert_eq!(keepalives[0].by, A);
}

#[test]
fn idle_peers_exchange_nothing_for_ten_minutes() {
    let mut sim = Sim::connected(seed_or(91));
    sim.run(secs(30));
    sim.sent.clear();
    sim.run(secs(600));
    assert!(sim.sent.is_empty(), "{:?}", sim.sent);
    let expired = |event: &(Duration, Event)| matches!(event.1, Event::SessionExpired { .. });
    for host in &sim.hosts {
        assert!(host.events.iter().any(expired));
        assert_eq!(host.tunnel.deadline(), None, "nothing left to wait for");
    }
}

#[test]
fn persistent_keepalive_starts_a_handshake_and_keeps_still_under_traffic() {
    let mut sim = Sim::new(seed_or(10));
    sim.with(A, |host, now| {
        host.tunnel.set_persistent_keepalive(host.peer, Some(secs(25)), now, &mut host.rng);
    });
    assert_eq!(sim.initiations(A), 1, "at once");
    sim.run(secs(100));
    let keepalives = sim.count(A, |sent| sent.is_keepalive());
    assert_eq!(keepalives, 4, "one to confirm the session, three by the clock");
    assert_eq!(sim.count(B, |sent| sent.is_keepalive()), 0);

    sim.sent.clear();
    for number in 0..60 {
        sim.send(A, number);
        sim.send(B, number);
        sim.run(secs(1));
    }
    assert_eq!(sim.count(A, |sent| sent.is_keepalive()), 1, "only to confirm the rekey");
    sim.with(A, |host, now| host.tunnel.set_persistent_keepalive(host.peer, None, now, &mut host.rng));
    sim.run(secs(20));
    sim.sent.clear();
    sim.run(secs(600));
    assert_eq!(sim.count(A, |_| true), 0);
}

#[test]
fn persistent_keepalive_goes_on_after_a_handshake_was_given_up() {
    let mut sim = Sim::new(seed_or(101));
    sim.network.loss = 1.0;
    sim.with(A, |host, now| {
        host.tunnel.set_persistent_keepalive(host.peer, Some(secs(25)), now, &mut host.rng);
    });
    sim.run(secs(300));
    sim.network.loss = 0.0;
    sim.hosts[A].events.clear();
    sim.run(secs(60));
    assert!(sim.hosts[A].events.iter().any(|(_, event)| matches!(event, Event::HandshakeComplete { .. })));
}

#[test]
fn a_clock_that_goes_back_never_panics() {
    let mut sim = Sim::connected(seed_or(13));
    let back = Now { instant: Instant::from_nanos(1), unix: Duration::ZERO };
    sim.send(A, 1);
    let mut data = sim.intercept().remove(0);
    let destination = sim.hosts[B].inner;
    for who in [A, B] {
        let host = &mut sim.hosts[who];
        host.tunnel.tick(back, &mut host.rng);
        host.tunnel.set_persistent_keepalive(host.peer, Some(secs(1)), back, &mut host.rng);
        host.tunnel.handshake_now(host.peer, back, &mut host.rng);
    }
    let (from, host) = (sim.hosts[A].address, &mut sim.hosts[B]);
    assert!(host.tunnel.receive(from, &mut data, back, &mut host.rng).unwrap().is_some());
    let host = &mut sim.hosts[A];
    let packet = packet(host.inner, destination, 2);
    let mut buffer = [&[0; HEADROOM][..], &packet, &[0; TAILROOM]].concat();
    assert!(host.tunnel.send(&mut buffer.clone(), packet.len(), back, &mut host.rng).is_ok());
    // And to the end of time.
    let end = Now { instant: Instant::from_nanos(u64::MAX), unix: Duration::MAX };
    host.tunnel.tick(end, &mut host.rng);
    assert!(host.tunnel.send(&mut buffer, packet.len(), end, &mut host.rng).is_ok());
}

#[test]
fn sleep_counts() {
    let mut sim = Sim::connected(seed_or(131));
    // Nothing runs for an hour, then both wake up.
    sim.clock += secs(3600);
    sim.send(A, 1);
    assert_eq!(sim.initiations(A), 1, "the session is long dead");
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, [1]);
}

#[test]
fn retries_every_five_seconds_and_gives_up_after_ninety() {
    let mut sim = Sim::new(seed_or(14));
    sim.network.loss = 1.0;
    sim.send(A, 1);
    sim.run(secs(200));
    let times: Vec<_> = sim.sent.iter().map(|sent| sent.at).collect();
    assert!((17..=18).contains(&times.len()), "{times:?}");
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (secs(5)..=ms(5_333)).contains(gap)), "{gaps:?}");
    assert!(gaps.windows(2).any(|pair| pair[0] != pair[1]), "with jitter");
    assert!(matches!(sim.hosts[A].events[..], [(when, Event::HandshakeFailed { .. })] if when == secs(90)));

    // The staged packets are gone, and the next packet starts over.
    sim.network.loss = 0.0;
    sim.send(A, 2);
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, [2]);
}

#[test]
fn the_initiator_rekeys_after_120_seconds() {
    let mut sim = Sim::connected(seed_or(141));
    for number in 0..400 {
        sim.send(A, number);
        sim.send(B, number);
        sim.run(secs(1));
    }
    let rekeys: Vec<_> = sim.sent.iter().filter(|sent| sent.kind == Kind::Initiation).map(|sent| sent.at).collect();
    assert_eq!(sim.initiations(B), 0, "the responder leaves it to the initiator");
    assert_eq!(rekeys.len(), 3, "{rekeys:?}");
    assert!(rekeys.windows(2).all(|pair| pair[1] - pair[0] >= secs(120) && pair[1] - pair[0] <= secs(121)));
    assert_eq!(sim.hosts[A].delivered.len(), 400);
    assert_eq!(sim.hosts[B].delivered.len(), 400);
}

#[test]
fn at_165_seconds_the_responder_starts_one_on_receive_and_at_180_the_session_is_dead() {
    let mut sim = Sim::connected(seed_or(142));
    // The initiator's own attempts are lost.
    let home = sim.hosts[B].address;
    let mut first = None;
    for number in 0..178 {
        sim.send(A, number);
        for datagram in sim.intercept() {
            if Kind::of(&datagram) != Some(Kind::Initiation) {
                let from = sim.hosts[A].address;
                assert_eq!(sim.give(B, from, &datagram), Ok(()));
            }
        }
        if first.is_none() && sim.initiations(B) > 0 {
            first = Some(sim.clock);
        }
        sim.clock += secs(1);
    }
    assert!(first.is_some_and(|first| first >= secs(165) && first <= secs(167)), "{first:?}");
    assert_eq!(sim.hosts[B].delivered.len(), 178);

    sim.send(A, 1000);
    let last = sim.intercept().pop().expect("data");
    sim.clock += secs(3);
    let from = sim.hosts[A].address;
    assert_eq!(sim.give(B, from, &last), Err(rustguard_core::tunnel::Ignored::Expired));
    sim.sent.clear();
    sim.send(A, 1001);
    assert_eq!(sim.count(A, |sent| matches!(sent.kind, Kind::Data { .. })), 0, "nothing is sealed after 180 s");
    assert_ne!(from, home);
}

#[test]
fn keys_are_erased_after_540_seconds() {
    let mut sim = Sim::connected(seed_or(143));
    sim.run(secs(700));
    for host in &sim.hosts {
        let expired: Vec<_> =
            host.events.iter().filter(|(_, event)| matches!(event, Event::SessionExpired { .. })).collect();
        assert_eq!(expired.len(), 1);
        assert!(expired[0].0 >= secs(540) && expired[0].0 <= secs(541), "{expired:?}");
    }
}

#[test]
fn a_dead_peer_is_noticed_fifteen_seconds_after_sending() {
    let mut sim = Sim::connected(seed_or(144));
    sim.run(secs(30));
    sim.sent.clear();
    sim.network.loss = 1.0;
    let start = sim.clock;
    sim.send(A, 1);
    sim.run(secs(16));
    let initiation = sim.sent.iter().find(|sent| sent.kind == Kind::Initiation).expect("a new handshake");
    assert!((start + secs(15)..=start + ms(15_333)).contains(&initiation.at), "{:?}", initiation.at - start);
}

#[test]
fn a_round_trip_of_two_seconds_works() {
    let mut sim = Sim::new(seed_or(15));
    sim.network.delay = secs(1)..=secs(1);
    sim.send(A, 1);
    sim.run(secs(4));
    assert_eq!(sim.hosts[B].delivered, [1]);
    assert_eq!(sim.initiations(A), 1);
    let took = Some(secs(2));
    assert!(
        sim.hosts[A]
            .events
            .iter()
            .any(|(_, event)| matches!(event, Event::HandshakeComplete { took: t, .. } if *t == took))
    );
    assert_eq!(sim.hosts[A].tunnel.node().last_handshake(sim.hosts[A].peer), Some(at(secs(2)).unix));
}

#[test]
fn one_way_traffic_rekeys_in_time_and_never_stalls() {
    for (seed, sender) in [(171, A), (172, B)] {
        let mut sim = Sim::connected(seed_or(seed));
        for number in 0..6_000 {
            sim.send(sender, number);
            sim.run(ms(100));
        }
        let delivered = &sim.hosts[1 - sender].delivered;
        assert_eq!(delivered.len(), 6_000, "nothing was late or lost, whoever initiated");
        assert!(delivered.is_sorted());
        let rekeys = sim.initiations(A) + sim.initiations(B);
        assert!((4..=5).contains(&rekeys), "{rekeys} in ten minutes");
    }
}

#[test]
fn back_and_forth_traffic_wakes_the_node_once_in_ten_seconds() {
    let mut sim = Sim::connected(seed_or(200));
    sim.run(secs(20));
    let mut ticks = 0;
    let mut last = sim.hosts[A].tunnel.deadline();
    for number in 0..900 {
        sim.send(A, number);
        sim.run(ms(50));
        sim.send(B, number);
        sim.run(ms(50));
        let deadline = sim.hosts[A].tunnel.deadline();
        ticks += usize::from(deadline != last);
        last = deadline;
    }
    assert!(ticks <= 12, "{ticks} in 90 s");
    assert_eq!(sim.count(A, |sent| sent.is_keepalive()), 0);
}

#[test]
fn who_greets_after_a_restart_is_reached_at_once_and_who_does_not_after_fifteen_seconds() {
    for greets in [true, false] {
        let mut sim = Sim::connected(seed_or(151));
        sim.run(secs(30));
        sim.restart(B);
        sim.sent.clear();
        if greets {
            sim.with(B, |host, now| host.tunnel.greet(host.peer, now.instant + ms(5)));
            sim.run(ms(100));
            assert_eq!(sim.initiations(B), 1);
        }
        sim.send(A, 7);
        sim.run(ms(20));
        assert_eq!(sim.hosts[B].delivered, if greets { vec![7] } else { vec![] });
        // WireGuard's own timers: A begins a handshake if nothing has come back for 15 s.
        sim.run(secs(14));
        assert_eq!(sim.initiations(A), 0);
        sim.run(secs(2));
        assert_eq!(sim.initiations(A), usize::from(!greets));
    }
}

#[test]
fn greetings_that_nobody_answers_end_soon_and_in_silence_unless_there_is_something_to_send() {
    let greeted = |sends: Option<Duration>| {
        let mut sim = Sim::new(seed_or(152));
        sim.network.loss = 1.0;
        sim.with(A, |host, now| host.tunnel.greet(host.peer, now.instant + ms(300)));
        if let Some(after) = sends {
            sim.run(after);
            let before = sim.initiations(A);
            sim.send(A, 1);
            let at_once = sim.initiations(A) - before;
            assert_eq!(at_once, usize::from(before == 0), "a packet does not wait for the greeting's time");
        }
        sim.run(secs(200));
        let failed =
            sim.hosts[A].events.iter().filter(|event| matches!(event.1, Event::HandshakeFailed { .. })).count();
        assert_eq!(sim.hosts[A].tunnel.deadline(), None, "nothing is tried any more");
        (sim.initiations(A), failed)
    };
    assert_eq!(greeted(None), (3, 0));
    for after in [ms(0), ms(100), ms(400), secs(7)] {
        let (initiations, failed) = greeted(Some(after));
        assert!(
            failed == 1 && (17..=20).contains(&initiations),
            "{after:?}: {initiations} initiations, {failed} failed"
        );
    }
}

#[test]
fn two_that_greet_each_other_make_one_session() {
    let mut sim = Sim::new(seed_or(153));
    sim.restart(B);
    for who in [A, B] {
        // Both do it before anything from the other has arrived.
        sim.with(who, |host, now| host.tunnel.greet(host.peer, now.instant + ms(who as u64 * 15)));
    }
    sim.run(secs(30));
    assert_eq!((sim.initiations(A), sim.initiations(B)), (1, 0));
    sim.send(B, 3);
    sim.run(ms(20));
    assert_eq!(sim.hosts[A].delivered, [3]);
}
