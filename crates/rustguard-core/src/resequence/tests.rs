//! Links in simulated time: each packet has its own delay, and the resequencer gets them in the order of arrival.

extern crate std;
use super::{flows::REMEMBERED, *};
use proptest::prelude::*;
use std::{collections::BTreeMap, println, vec};

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const MS: Duration = Duration::from_millis(1);
/// Three flows, each with its own place.
const FLOWS: [u32; 3] = [1 << 24, 2 << 24, 3 << 24];

/// A packet of the host at the other end.
#[derive(Clone, Copy, Debug)]
struct Packet {
    counter: u64,
    flow: u32,
    short: bool,
    arrives: Instant,
}

/// The packets that the host got, and when.
type Got = Vec<(Packet, Instant)>;

/// Passes packets through a resequencer as a worker does: packets that arrive at the same time are a batch. After a
/// batch, and at each deadline, packets that need not wait are released. Some counters are of packets that are not for
/// the host. Returns the packets that the host got, and the most packets that were held.
fn through(
    resequencer: &mut Resequencer<Packet>,
    packets: &[Packet],
    room: usize,
    is_for_host: impl Fn(u64) -> bool,
) -> (Got, usize) {
    let (mut got, mut most) = (Vec::new(), 0);
    for batch in arrival(packets).chunk_by(|a, b| a.arrives == b.arrives) {
        let now = batch[0].arrives;
        deadlines(resequencer, now, &mut got);
        for &packet in batch {
            if !is_for_host(packet.counter) {
                resequencer.passed(packet.counter, now);
                continue;
            }
            let has_room = resequencer.held() < room;
            if resequencer.take(packet.counter, packet.flow, packet.short, now, || has_room.then_some(packet)) {
                // A worker writes these before the released ones.
                got.push((packet, now));
            }
            most = most.max(resequencer.held());
        }
        resequencer.release(now, |packet| got.push((packet, now)));
    }
    deadlines(resequencer, BEGIN + Duration::from_secs(1 << 20), &mut got);
    assert_eq!(resequencer.held(), 0, "nothing stays");
    (got, most)
}

/// The order in which packets arrive.
fn arrival(packets: &[Packet]) -> Vec<Packet> {
    let mut packets = packets.to_vec();
    packets.sort_by_key(|packet| (packet.arrives, random(packet.counter)));
    packets
}

/// Lets the time pass until `end`.
fn deadlines(resequencer: &mut Resequencer<Packet>, end: Instant, got: &mut Got) {
    while let Some(deadline) = resequencer.deadline().filter(|&deadline| deadline <= end) {
        resequencer.release(deadline, |packet| got.push((packet, deadline)));
        assert!(resequencer.deadline().is_none_or(|next| next > deadline), "it is over");
    }
}

/// A stream of one flow: a packet each `pace`, with the delays of a link.
fn stream(count: u64, pace: Duration, flow: u32, delay: impl Fn(u64) -> Option<Duration>) -> Vec<Packet> {
    let packet = |counter| {
        let sent = BEGIN + pace * counter as u32;
        Some(Packet { counter, flow, short: false, arrives: sent + delay(counter)? })
    };
    (0..count).filter_map(packet).collect()
}

/// Random numbers without a generator: a hash (splitmix64).
fn random(of: u64) -> u64 {
    let x = of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A random extra delay up to `most`, independent for each packet.
fn jitter(most: Duration) -> impl Fn(u64) -> Duration {
    move |counter| Duration::from_nanos(random(counter) % most.as_nanos() as u64)
}

fn inversions(got: &[(Packet, Instant)]) -> usize {
    got.windows(2).filter(|two| two[0].0.counter > two[1].0.counter).count()
}

fn all(_: u64) -> bool {
    true
}

#[test]
fn a_link_that_reorders_brings_a_flow_in_order_once_it_is_known() {
    let jitter = jitter(4 * MS);
    let packets = stream(20_000, MS / 10, FLOWS[0], |counter| Some(jitter(counter)));
    let mut resequencer = Resequencer::new(0, BEGIN);
    let (got, _) = through(&mut resequencer, &packets, 512, all);
    let disorder: Vec<_> = got.chunks(1_000).map(inversions).collect();
    println!("{disorder:?}, {:?}", resequencer.hold());
    assert!(disorder[0] > 0, "nothing is held before");
    assert!(disorder[1..].iter().sum::<usize>() <= 20, "{disorder:?}");
    assert!((3 * MS..=5 * MS).contains(&resequencer.hold()), "as long as the jitter is: {:?}", resequencer.hold());
}

#[test]
fn where_nothing_is_overtaken_nothing_is_held_however_much_is_lost() {
    let packets = stream(20_000, MS / 10, FLOWS[0], |counter| (!random(counter).is_multiple_of(20)).then_some(MS));
    let mut resequencer = Resequencer::new(0, BEGIN);
    let (got, most) = through(&mut resequencer, &packets, 512, all);
    assert_eq!((inversions(&got), most), (0, 0));
    assert!(got.iter().all(|(packet, at)| packet.arrives == *at));
    assert!(resequencer.is_idle(BEGIN + REMEMBERED + MS));
}

#[test]
fn a_flow_in_order_has_no_delay_beside_one_that_is_not() {
    let jitter = jitter(4 * MS);
    let mut packets = stream(20_000, MS / 10, FLOWS[0], |counter| Some(jitter(counter)));
    // Acknowledgements may be overtaken.
    packets.iter_mut().filter(|packet| packet.counter % 3 == 1).for_each(|packet| {
        (packet.flow, packet.short) = (FLOWS[1], true);
    });
    packets.iter_mut().filter(|packet| packet.counter % 3 == 2).for_each(|packet| {
        (packet.flow, packet.arrives) = (FLOWS[2], BEGIN + MS / 10 * packet.counter as u32);
    });
    let (got, most) = through(&mut Resequencer::new(0, BEGIN), &packets, 512, all);
    assert!(most > 0);
    for (packet, at) in got {
        assert!(packet.flow == FLOWS[0] || at == packet.arrives, "{packet:?} at {at:?}");
    }
}

#[test]
fn short_packets_wait_behind_long_ones_of_their_flow() {
    let jitter = jitter(4 * MS);
    let mut packets = stream(5_000, MS / 10, FLOWS[0], |counter| Some(jitter(counter)));
    packets.iter_mut().for_each(|packet| packet.short = packet.counter % 2 == 1);
    let (got, _) = through(&mut Resequencer::new(0, BEGIN), &packets, 512, all);
    assert!(inversions(&got[1_000..]) <= 16, "{}", inversions(&got[1_000..]));
}

#[test]
fn where_most_packets_come_too_late_or_never_none_is_held() {
    let (wide, wider, narrow) = (jitter(10 * MS), jitter(40 * MS), jitter(4 * MS));
    let lossy = |counter: u64| (!random(!counter).is_multiple_of(2)).then(|| narrow(counter));
    for (what, packets) in [
        ("some later than is waited for", stream(20_000, MS / 10, FLOWS[0], |counter| Some(wide(counter)))),
        ("most later than is waited for", stream(20_000, MS / 10, FLOWS[0], |counter| Some(wider(counter)))),
        ("lost", stream(20_000, 3 * MS, FLOWS[0], lossy)),
    ] {
        let mut resequencer = Resequencer::new(0, BEGIN);
        through(&mut resequencer, &packets, 512, all);
        assert_eq!(resequencer.hold(), Duration::ZERO, "{what}");
    }
}

#[test]
fn a_link_that_gets_better_is_forgotten() {
    let jitter = jitter(4 * MS);
    let lossy = |counter: u64| (!random(counter).is_multiple_of(50)).then_some(MS);
    let delay = |counter| if counter < 5_000 { Some(jitter(counter)) } else { lossy(counter) };
    let packets = stream(60_000, MS / 2, FLOWS[0], delay);
    let mut resequencer = Resequencer::new(0, BEGIN);
    let (got, most) = through(&mut resequencer, &packets, 512, all);
    assert!(most > 0);
    let end = BEGIN + MS / 2 * 60_000;
    assert!(resequencer.is_idle(end));
    assert!(got.iter().filter(|(packet, _)| packet.counter > 20_000).all(|(packet, at)| packet.arrives == *at));
}

#[test]
fn a_new_session_keeps_what_is_known_of_the_link() {
    let jitter = jitter(4 * MS);
    let packets = stream(5_000, MS / 10, FLOWS[0], |counter| Some(jitter(counter)));
    let mut resequencer = Resequencer::new(0, BEGIN);
    through(&mut resequencer, &packets, 512, all);
    resequencer.restart(0);
    let (got, _) = through(&mut resequencer, &packets, 512, all);
    assert!(inversions(&got[..1_000]) <= 2, "{}", inversions(&got[..1_000]));
}

#[test]
fn a_restart_gives_out_what_is_held() {
    let mut resequencer = disordered();
    let now = BEGIN + Duration::from_secs(1);
    assert!(!resequencer.take(2_001, FLOWS[0], false, now, || Some(1)), "2,000 is missing");
    resequencer.restart(7);
    assert!(resequencer.take(7, FLOWS[1], false, now, || unreachable!()));
    let mut got = Vec::new();
    resequencer.release(now, |packet| got.push(packet));
    assert_eq!(got, [1]);
}

#[test]
fn a_copy_counts_for_nothing_and_takes_no_place() {
    let mut resequencer = disordered();
    let now = BEGIN + Duration::from_secs(1);
    assert!(!resequencer.take(2_001, FLOWS[0], false, now, || Some(1)));
    assert!(resequencer.take(2_001, FLOWS[0], false, now, || Some(2)), "what to do with it is not decided here");
    assert_eq!(resequencer.held(), 1);
    assert!(resequencer.take(2_000, FLOWS[0], false, now, || Some(3)));
    let mut got = Vec::new();
    resequencer.release(now, |packet| got.push(packet));
    assert_eq!((got, resequencer.held(), resequencer.deadline()), (vec![1], 0, None));

    let wide = jitter(10 * MS);
    let packets = arrival(&stream(20_000, MS / 10, FLOWS[0], |counter| Some(wide(counter))));
    let holds = |copies: usize| {
        let mut resequencer = Resequencer::new(0, BEGIN);
        let hold = |&Packet { counter, flow, short, arrives }: &Packet| {
            for _ in 0..copies {
                resequencer.take(counter, flow, short, arrives, || None::<()>);
            }
            resequencer.hold()
        };
        packets.iter().map(hold).collect::<Vec<_>>()
    };
    assert!(holds(1) == holds(4), "late packets have come in time, and often");
}

/// Of 300 packets, six are overtaken and arrive in time, and four arrive long after later ones.
#[test]
fn a_packet_that_was_given_up_is_late_and_not_lost_as_well() {
    let delay = |counter: u64| match (counter % 100, counter % 75) {
        (20 | 60, _) => 4 * MS / 10,
        (_, 40) => 400 * MS,
        _ => Duration::ZERO,
    };
    let packets = stream(16_000, MS / 10, FLOWS[0], |counter| Some(delay(counter)));
    let mut resequencer = Resequencer::new(0, BEGIN);
    through(&mut resequencer, &packets, 512, all);
    assert!(!resequencer.hold().is_zero(), "most of those that were overtaken come in time");
}

/// A resequencer whose first flow was out of order for two thousand packets; it holds none.
fn disordered() -> Resequencer<u64> {
    let (mut resequencer, jitter) = (Resequencer::new(0, BEGIN), jitter(4 * MS));
    let mut packets = stream(2_000, MS / 10, FLOWS[0], |counter| Some(jitter(counter)));
    packets.sort_by_key(|packet| packet.arrives);
    for Packet { counter, flow, short, arrives } in packets {
        resequencer.take(counter, flow, short, arrives, || Some(counter));
        resequencer.release(arrives, |_| {});
    }
    assert!(resequencer.held() == 0 && resequencer.hold() > 2 * MS);
    resequencer
}

#[test]
fn a_packet_behind_those_that_come_out_in_its_batch_stays_behind_them() {
    let mut resequencer = disordered();
    let now = BEGIN + Duration::from_secs(1);
    let mut take = |counter| resequencer.take(counter, FLOWS[0], false, now, || Some(counter));
    assert!(!take(2_001) && !take(2_002));
    assert!(take(2_000), "the first one");
    assert!(!take(2_003), "2,001 is not yet out");
    let mut got = Vec::new();
    resequencer.release(now, |packet| got.push(packet));
    assert_eq!(got, [2_001, 2_002, 2_003]);
    assert!(resequencer.take(2_004, FLOWS[0], false, now, || None));
}

#[test]
fn a_jump_of_the_counter_waits_for_nothing() {
    for jump in [GAP + 1, WINDOW, 1 << 40, u64::MAX - 10_000] {
        let mut resequencer = disordered();
        let now = BEGIN + Duration::from_secs(1);
        assert!(!resequencer.take(2_001, FLOWS[0], false, now, || Some(2_001)));
        let counter = 2_002 + jump;
        let at_once = resequencer.take(counter, FLOWS[0], false, now, || Some(counter));
        let mut got = Vec::new();
        resequencer.release(now, |packet| got.push(packet));
        assert_eq!((at_once, got), (false, vec![2_001, counter]), "in order");
        assert!(resequencer.take(2_000, FLOWS[0], false, now, || None), "nobody waits for it");
    }
}

/// A link that loses, delays and also carries packets for others, at random.
fn links() -> impl Strategy<Value = Vec<Packet>> {
    let delay = prop_oneof![4 => 0..4_000_u64, 2 => 0..200_u64, 1 => 0..20_000_u64];
    let packet = (0..3_usize, any::<bool>(), delay, prop_oneof![8 => 1..3_u64, 1 => 1..700_u64], 0..400_u64);
    prop::collection::vec(packet, 1..1_500).prop_map(|packets| {
        let (mut counter, mut sent) = (0, BEGIN);
        let mut link = Vec::new();
        for (flow, short, delay, step, pause) in packets {
            counter += step;
            sent = sent + Duration::from_micros(pause / 100 * 100);
            link.push(Packet {
                counter,
                flow: FLOWS[flow],
                short: short && flow > 0,
                arrives: sent + Duration::from_micros(delay / 100 * 100),
            });
        }
        link
    })
}

proptest! {
    #[test]
    fn each_packet_comes_out_once_in_time_and_flows_are_not_put_out_of_order(
        link in links(), room in prop_oneof![0..300_usize, Just(usize::MAX)], others in 1..20_u64,
    ) {
        let is_for_host = |counter: u64| !counter.is_multiple_of(others + 1);
        let mut arrived = arrival(&link);
        arrived.retain(|packet| is_for_host(packet.counter));
        let (got, most) = through(&mut Resequencer::new(0, BEGIN), &link, room, is_for_host);

        prop_assert!(most <= room);
        let counters = |packets: &mut dyn Iterator<Item = &Packet>| {
            let mut counters: Vec<_> = packets.map(|packet| packet.counter).collect();
            counters.sort_unstable();
            counters
        };
        prop_assert_eq!(counters(&mut got.iter().map(|(packet, _)| packet)), counters(&mut arrived.iter()));
        for (packet, at) in &got {
            prop_assert!(at.since(packet.arrives) <= LONGEST, "{packet:?} at {at:?}");
        }
        // If there is room, a packet is released before an earlier one of its flow only if it has arrived before it.
        let places: BTreeMap<u64, usize> = (0..).zip(&arrived).map(|(n, packet)| (packet.counter, n)).collect();
        let mut greatest: BTreeMap<u32, u64> = BTreeMap::new();
        for (Packet { counter, flow, .. }, _) in got {
            let greatest = greatest.entry(flow).or_insert(counter);
            prop_assert!(
                counter >= *greatest || room < usize::MAX || places[greatest] < places[&counter],
                "{greatest} before {counter}"
            );
            *greatest = counter.max(*greatest);
        }
    }
}
