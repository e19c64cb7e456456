//! Packets in lanes of a session.

use super::*;
use rustguard_core::lanes::{MESSAGES, MOST, Message};

/// The counter `n` of a lane.
fn counter(lane: u8, n: u64) -> u64 {
    u64::from(lane) * MESSAGES + n
}

/// A laboratory whose peer may send in lanes.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.shared.sessions.pin().get(INDEX).unwrap().accept_lanes();
    lab
}

fn endpoint(lab: &Lab) -> Option<Endpoint> {
    lab.table.peers[&PeerId(1)].endpoint()
}

#[test]
fn each_lane_has_its_own_counters_and_lets_nothing_in_twice() {
    let mut lab = lab();
    let all: Vec<_> = (0..=MOST).map(|lane| lab.sealed_with(counter(lane, 5), &packet(1))).collect();
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let (got, drops) = lab.receive(&all, NOW);
    assert_eq!((got.len(), drops), (all.len(), vec![]));
    let (got, drops) = lab.receive(&all, NOW);
    assert_eq!((got.len(), drops), (0, vec![(DropReason::Replayed, all.len() as u64)]));
    // One lane advances; the others do not.
    let later = lab.sealed_with(counter(3, 1 << 40), &packet(1));
    let others = [0, 2, 4].map(|lane| lab.sealed_with(counter(lane, 4), &packet(1)));
    assert_eq!(lab.receive(&[&later, &others[0], &others[1], &others[2]], NOW).0.len(), 4);
    let old = lab.sealed_with(counter(3, 6), &packet(1));
    assert_eq!(lab.receive(&[&old], NOW).0.len(), 0, "older than the window of its lane");
}

#[test]
fn a_lane_never_moves_the_endpoint_and_lane_0_does() {
    let mut lab = lab();
    for lane in 1..=MOST {
        for text in [&packet(1)[..], &[], &Message::Request { session: INDEX, lane, round: 1 }.to_bytes()] {
            let good = lab.sealed_with(counter(lane, text.len() as u64), text);
            lab.receive(&[&good], NOW);
            assert_eq!(endpoint(&lab), None, "lane {lane}");
        }
    }
    assert!(lab.table.peers[&PeerId(1)].activity.rx_bytes() > 0, "they were received");
    let good = lab.sealed(&packet(1));
    lab.receive(&[&good], NOW);
    assert!(endpoint(&lab).is_some());
}

#[test]
fn what_is_forged_makes_no_window_and_what_has_no_lane_is_dropped() {
    let mut lab = lab();
    let windows = |lab: &Lab| {
        let pinned = lab.shared.sessions.pin();
        pinned.get(INDEX).unwrap().lane_windows()
    };
    for lane in 1..=127 {
        let mut forged = lab.sealed_with(counter(lane, 7), &packet(1));
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(lab.receive(&[&forged], NOW).0.len(), 0);
    }
    assert_eq!((windows(&lab), lab.shared.drops.snapshot()), (0, vec![(DropReason::Forged, 127)]));
    for lane in 1..=127 {
        let good = lab.sealed_with(counter(lane, 7), &packet(1));
        assert_eq!(lab.receive(&[&good], NOW).0.len(), usize::from(lane <= MOST));
    }
    assert_eq!(windows(&lab), usize::from(MOST));
    let drops = vec![(DropReason::Forged, 127), (DropReason::Replayed, 127 - u64::from(MOST))];
    assert_eq!(lab.shared.drops.snapshot(), drops);
}

/// As from a peer of another implementation, whose counters have no lanes.
#[test]
fn before_lanes_are_agreed_on_there_is_one_window() {
    let mut lab = Lab::new();
    let (early, leap, late) =
        (lab.sealed_with(5, &packet(1)), lab.sealed_with(counter(1, 0), &packet(1)), lab.sealed_with(6, &packet(1)));
    assert_eq!(
        lab.receive(&[&early, &leap, &late], NOW).0.len(),
        2,
        "a leap of the counter, which leaves the rest behind"
    );
    assert!(endpoint(&lab).is_some());
    assert_eq!(lab.shared.drops.snapshot(), [(DropReason::Late, 1)]);
}

#[test]
fn what_is_said_about_lanes_goes_to_control_as_far_as_probes_do() {
    let mut lab = lab();
    let texts = [Message::Question { session: INDEX }, Message::Answer { session: INDEX, threads: 2 }];
    for message in texts {
        let good = lab.sealed(&message.to_bytes());
        assert_eq!(lab.receive(&[&good], NOW), (vec![], vec![]));
        let (from, _, heard) = lab.inbox.from_workers.probes.try_recv().unwrap();
        assert_eq!((from, heard), (PeerId(1), ProbeMessage::Lanes(message)));
    }
    let many: Vec<_> = (0..1_000).map(|_| lab.sealed(&texts[0].to_bytes())).collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let (_, drops) = lab.receive(&many, NOW);
    assert_eq!(drops, [(DropReason::ProbeLimit, 998)], "two find room");
}
