//! The fate of a direct way when it is blocked, an end moves, or the traffic pauses.
use super::*;

#[test]
fn a_direct_way_that_is_blocked_costs_half_a_second_and_comes_back() {
    let (mut silent, mut back) = (vec![], [vec![], vec![]]);
    for seed in 0..12 {
        let mut world = direct_world([[EASY, Access::Open][seed as usize % 2], EASY], seed);
        world.run(seed as u32 * 17 * MS);
        world.blocked = true;
        world.run(20 * SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        silent.push(world.silence());
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
        // For a long time: the direct way is forgotten, and looked for every three minutes.
        world.run((seed % 2) as u32 * 300 * SECOND);
        world.blocked = false;
        let unblocked = world.now;
        world.run(200 * SECOND);
        back[seed as usize % 2].push(world.direct_after(unblocked).expect("both are direct again"));
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
    summary("silence when the direct way is blocked", silent);
    let [soon, late] = back;
    summary("until it is used again after 20 s", soon);
    assert!(late.iter().max() < Some(&(40 * SECOND)), "{late:?}");
    summary("until it is used again after five minutes", late);
}

#[test]
fn a_direct_way_that_is_blocked_for_hours_is_asked_less_and_less() {
    let mut world = direct_world([EASY; 2], 4);
    world.blocked = true;
    world.run(2 * SECOND);
    let mut counts = vec![];
    for minutes in [1, 9, 50, 60] {
        for end in &mut world.ends {
            end.asked = 0;
        }
        world.run(minutes * 60 * SECOND);
        counts.push(world.ends[0].asked);
    }
    println!("blocked: {counts:?} requests in the first minute, the next nine, fifty, and the hour after");
    // One locator, or two, if the end was seen at another port.
    assert!(counts[0] <= 2 * 30 && counts[1] <= 2 * 34 && counts[2] <= 2 * 121, "{counts:?}");
    assert_eq!(counts[3], 0, "it is forgotten");
    world.blocked = false;
    world.run(180 * SECOND);
    assert_eq!(world.direct(), [true; 2], "and found as at first");
}

#[test]
fn a_silent_end_is_found_again_when_both_sites_move() {
    for accesses in [[HARD; 2], [EASY; 2]] {
        for offline in [0, 1, 5, 15, 60] {
            let mut found = vec![];
            for seed in 0..4 {
                let mut world = World::new(accesses, seed);
                world.speaks = [true, false];
                world.begin();
                world.run(10 * SECOND + seed as u32 * 37 * MS);
                world.offline = offline > 0;
                for end in 0..2 {
                    world.move_site(end);
                }
                world.run(offline * SECOND);
                world.offline = false;
                world.count_silence();
                world.run(60 * SECOND);
                let silence = world.ends[1].longest_silence;
                assert!(silence < 2 * SECOND, "{accesses:?}, {offline} s, seed {seed}: {silence:?}");
                assert_eq!(world.direct(), [accesses == [EASY; 2]; 2], "seed {seed}: {:?}", world.why());
                found.push(silence);
            }
            summary(&std::format!("silence when both sites move, after {offline} s without a network"), found);
        }
    }
}

#[test]
fn a_nat_that_forgets_and_a_relay_that_dies() {
    let mut silent = vec![];
    for seed in 0..12 {
        let other = [EASY, Access::Open, Access::Behind(Kind { filtering: Dependence::Endpoint, ..easy() })];
        let mut world = direct_world([EASY, other[seed as usize % 3]], seed);
        world.relay_works = false;
        world.run(10 * SECOND);
        assert!(world.silence() < 100 * MS, "seed {seed}: what is direct needs no relay");
        world.relay_works = true;
        world.run(10 * SECOND);
        let forgot = world.now;
        world.nats[0].forget();
        world.run(30 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        silent.push(world.silence());
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?} since {forgot:?}", world.silence());
    }
    summary("silence when a NAT forgets", silent);
}

fn easy() -> Kind {
    match EASY {
        Access::Behind(kind) => kind,
        _ => unreachable!(),
    }
}

#[test]
fn one_roams_and_both_roam() {
    let mut silent = vec![];
    for seed in 0..24 {
        let mut world = direct_world([EASY; 2], seed);
        world.run(seed as u32 * 7 * MS);
        for end in 0..2 {
            if seed % 3 == 2 || seed % 3 == end as u64 {
                world.roam(end, [192, 168, end as u8, 77]);
            }
        }
        world.run(20 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}: {:?}", world.why());
        silent.push(world.silence());
        assert!(world.silence() < 600 * MS, "seed {seed}: {:?}", world.silence());
    }
    summary("silence when one or both roam", silent);
}

/// One end or both move, and then both again, while the search for the first locator goes on or has just ended. An end
/// may notice its own move or not: behind another router, it may have the same address.
#[test]
fn both_move_again_while_they_are_looked_for() {
    let cone = Access::Behind(Kind { filtering: Dependence::Endpoint, keeps_port: true, ..easy() });
    for accesses in [[cone, HARD], [EASY; 2]] {
        let mut found = [vec![], vec![]];
        for seed in 0..100 {
            let mut world = direct_world(accesses, seed);
            let (movers, notices) = (world.random(3), world.random(16));
            // In every second run, when the round of the first move begins.
            let pause = if seed % 2 == 0 { world.random(8_000) } else { 400 + world.random(150) };
            for end in (0..2).filter(|end| *end == movers as usize || movers == 2) {
                world.move_site(end);
                if notices & 1 << end != 0 {
                    world.notices_change(end);
                }
            }
            world.run(pause * MS);
            let moved = world.now;
            (0..2).for_each(|end| world.move_site(end));
            let later = world.random(30);
            world.run(later * MS);
            for end in (0..2).filter(|end| notices & 4 << end != 0) {
                world.notices_change(end);
            }
            world.run(20 * SECOND);
            let what = std::format!("{accesses:?}, seed {seed}, after {pause} ms, {movers} {notices:b}");
            assert_eq!(world.direct(), [true; 2], "{what}: {:?}", world.why());
            assert!(world.silence() < 2 * SECOND, "{what}: {:?}", world.silence());
            found[seed as usize % 2].push(world.direct_after(moved).expect("both are direct again"));
        }
        let [mut later, soon] = found;
        later.sort();
        assert!(later[later.len() / 2] < SECOND, "most need no other round: {later:?}");
        summary("until a direct way is used after two moves within eight seconds", later);
        summary("the same, when the second one comes when the first is noticed", soon);
    }
}

#[test]
fn silence_costs_nothing_and_the_next_packet_goes_through_the_relay_at_once() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        world.pause(LET_GO + SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        // The promises of the last probes expire.
        world.pause(150 * SECOND);
        let sent = world.sent;
        for end in &world.ends {
            assert_eq!(end.paths.deadline(), None, "seed {seed}");
        }
        world.pause(3_600 * SECOND);
        assert_eq!(world.sent, sent, "not one datagram");
        let now = world.now;
        world.resume(10 * SECOND);
        assert!(world.silence() < 100 * MS, "seed {seed}: {:?}", world.silence());
        let after = world.direct_after(now).expect("direct again");
        assert!(after < SECOND, "seed {seed}: {after:?}");
    }
}

#[test]
fn a_ping_in_a_second_finds_a_direct_way_and_notices_that_it_is_blocked() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        world.pause(LET_GO + 150 * SECOND);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
        world.ping(3);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        world.pause(BUSY + 10 * SECOND);
        world.blocked = true;
        world.ping(3);
        assert_eq!(world.direct(), [false; 2], "seed {seed}");
    }
}

#[test]
fn a_short_pause_keeps_the_direct_way() {
    let mut world = direct_world([EASY; 2], 3);
    let before = world.sent;
    world.pause(100 * SECOND);
    assert!(world.sent - before < 150, "{} datagrams in a pause", world.sent - before);
    world.resume(5 * SECOND);
    assert_eq!(world.direct(), [true; 2]);
    assert!(world.silence() < 50 * MS, "{:?}", world.silence());
}

#[test]
fn a_nat_with_short_timeouts_loses_no_traffic() {
    for seed in 0..6 {
        let mut world = direct_world([EASY; 2], seed);
        for nat in &mut world.nats {
            nat.timeout = 10 * SECOND;
        }
        world.pause(60 * SECOND);
        world.resume(30 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}");
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
}

/// A datagram that arrives after the router has lost its connections, or from a new address of the other end, takes the
/// port. Both ends are silent for as long as the router remembers the datagram, and find each other again. Meanwhile
/// the relay carries everything.
#[test]
fn a_router_that_takes_unasked_datagrams_is_passed_again() {
    let mut back = vec![];
    for seed in 0..24 {
        let mut world = direct_world([PLAIN; 2], seed);
        world.run(seed as u32 * 7 * MS);
        let happened = world.now;
        match seed % 4 {
            0 => world.nats[0].forget(),
            1 => world.nats.iter_mut().for_each(Nat::forget),
            2 => world.move_site(0),
            _ => (0..2).for_each(|end| world.move_site(end)),
        }
        world.run(100 * SECOND);
        assert_eq!(world.direct(), [true; 2], "seed {seed}: {:?}", world.why());
        assert!(world.silence() < 600 * MS, "seed {seed}: {:?}", world.silence());
        back.push(world.direct_after(happened).expect("both are direct again"));
    }
    summary("until it is used again", back);
}

/// Between busy machines, an answer may arrive later than messages that the other end has sent after it. No end sends
/// to a router that does not expect it.
#[test]
fn busy_machines_behind_routers_that_take_unasked_datagrams_meet_in_the_first_round() {
    for slowness in [100, 300, 700] {
        let mut late = vec![];
        for seed in 0..200 {
            let mut world = World::new([PLAIN; 2], seed);
            world.slowness = slowness * MS;
            world.begin();
            world.run(20 * SECOND);
            if world.direct() != [true; 2] {
                late.push(seed);
            }
        }
        assert!(late.is_empty(), "{slowness} ms: {late:?}");
    }
}

/// The relay is gone for good, and one end is started again after a while. It knows where the other end was, and its
/// handshake shows where it is itself; the other end has the session with the first packet in it. Both know each
/// other's locator, no matter what else has failed in between.
#[test]
fn an_end_that_is_started_again_is_reached_without_the_relay() {
    for n in 0..1_000 {
        let mut world = direct_world([Access::Open; 2], n);
        let inside = [0, 1].map(|end: usize| world.ends[end].inside);
        // How long before the handshake the end was stopped and the relay died, and how long the handshake takes.
        let [stopped, died, takes] = [2_000, 4_000, 1_000].map(|most| Duration::from_millis(world.random(most).into()));
        let handshake = START + 20 * SECOND;
        let (stop, die) = (START + (20 * SECOND - stopped), START + (20 * SECOND - died));
        world.traffic = world.random(2) == 0;
        let mut events = [(stop, false), (die, true)];
        events.sort();
        for (at, is_relay) in events {
            world.run(at.since(world.now));
            if is_relay {
                world.relay_works = false;
            } else {
                (world.blocked, world.speaks) = (true, [false, true]);
            }
        }
        world.run(handshake.since(world.now));

        let now = world.now;
        world.blocked = false;
        world.ends[0] = End::new(inside[0], None, false, n);
        world.ends[0].paths = Paths::look_for_direct_ways(&[PathPolicy::Best; 2], now);
        world.ends[0].paths.put(0, RELAY, now);
        world.ends[0].paths.put(1, Locator::from(Address::new(inside[1])), now);
        world.heard_directly(1, inside[0]);
        world.run(takes);
        world.heard_directly(0, inside[1]);
        for end in 0..2 {
            let now = world.now;
            world.ends[end].paths.established(now);
            world.ends[end].paths.wake(now);
            world.orders(end, vec![]);
        }
        world.speaks = [true; 2];
        world.resume(5 * SECOND);
        let how = std::format!("{n}: stopped {stopped:?} and without the relay {died:?} before, {takes:?}");
        assert_eq!(world.direct(), [true; 2], "{how}");
        assert!(world.silence() < 2 * SECOND, "{:?}: {how}", world.silence());
    }
}
