//! Probes go to control, and do not change the peer's endpoint.

use super::*;
use crate::{path_set::PathSet, way::Way};
use rustguard_core::paths::{Choice, Probe, Request, Version};

const ASKED: Request = Request {
    version: Version::V1,
    token: 0,
    path: 1,
    active: None,
    usable: 0,
    weights: [0; 8],
    interval: Duration::from_millis(200),
    clock: 5,
    nonce: Some(0),
};

fn from() -> Endpoint {
    Endpoint::new("192.0.2.1:1".parse().unwrap())
}

fn peer(lab: &Lab) -> &PeerShared {
    &lab.table.peers[&PeerId(1)]
}

#[test]
fn a_probe_goes_to_control_and_moves_nobody() {
    let mut lab = Lab::new();
    let probe = Probe::Request(ASKED);
    let asked = lab.sealed(&probe.to_bytes());
    assert_eq!(lab.receive(&[&asked], NOW), (vec![], vec![]));
    assert_eq!(
        lab.inbox.from_workers.probes.try_recv().unwrap(),
        (PeerId(1), from().into(), ProbeMessage::Path(probe))
    );
    assert!(peer(&lab).way.load().is_none());
    assert_eq!(peer(&lab).overhead_rx.load(Ordering::Relaxed), asked.len() as u64);
    // A probe requires no answer except its own.
    let notices: Vec<_> = std::iter::from_fn(|| lab.inbox.from_workers.notices.try_recv().ok()).collect();
    assert!(!notices.iter().any(|signal| matches!(signal, Notice::Activity(_))), "{notices:?}");
    // A packet in the same run changes the endpoint.
    let (asked, packet) = (lab.sealed(&probe.to_bytes()), lab.sealed(&packet(1)));
    lab.receive(&[&asked, &packet], NOW);
    assert_eq!(peer(&lab).endpoint(), Some(from()));
}

#[test]
fn what_only_looks_like_a_probe_is_no_packet_either() {
    let mut lab = Lab::new();
    let mut text = Probe::Request(ASKED).to_bytes();
    text[4] = 99;
    let odd = lab.sealed(&text);
    assert_eq!(lab.receive(&[&odd], NOW), (vec![], vec![(DropReason::NotIp, 1)]));
    assert!(lab.inbox.from_workers.probes.try_recv().is_err());
    let forged = {
        let mut good = lab.sealed(&Probe::Request(ASKED).to_bytes());
        good[20] ^= 1;
        good
    };
    assert_eq!(lab.receive(&[&forged], NOW).1, [(DropReason::Forged, 1), (DropReason::NotIp, 1)]);
}

#[test]
fn probes_that_control_has_no_room_for_are_counted() {
    let mut lab = Lab::new();
    let asked: Vec<_> = (0..5).map(|_| lab.sealed(&Probe::Request(ASKED).to_bytes())).collect();
    let asked: Vec<_> = asked.iter().map(|asked| &asked[..]).collect();
    assert_eq!(lab.receive(&asked, NOW).1, [(DropReason::ProbeLimit, 3)]);
}

#[test]
fn a_peer_that_floods_with_probes_is_heard_as_often_as_they_can_be_worth() {
    let mut lab = Lab::new();
    let mut heard = 0;
    for ms in 0..1_000 {
        let asked: Vec<_> = (0..3).map(|_| lab.sealed(&Probe::Request(ASKED).to_bytes())).collect();
        let asked: Vec<_> = asked.iter().map(|asked| &asked[..]).collect();
        lab.receive(&asked, Duration::from_millis(ms));
        heard += std::iter::from_fn(|| lab.inbox.from_workers.probes.try_recv().ok()).count();
    }
    assert!((200..=200 + 64).contains(&heard), "{heard} of 3,000 in a second");
}

#[test]
fn a_peer_heard_by_a_known_path_has_not_moved() {
    let mut lab = Lab::new();
    let elsewhere = Endpoint::new("192.0.2.9:9".parse().unwrap());
    peer(&lab).way.store(Some(Arc::new(elsewhere.into())));
    let choice =
        Choice { known: vec![Way::from(elsewhere).locator(), Way::from(from()).locator()], ..Choice::default() };
    peer(&lab).path_set.store(PathSet::new(&choice, Some(&Arc::default())).map(Arc::new));
    let packet = lab.sealed(&packet(1));
    lab.receive(&[&packet], NOW);
    assert_eq!(peer(&lab).endpoint(), Some(elsewhere));
    let choice = Choice { known: vec![Way::from(elsewhere).locator()], ..Choice::default() };
    peer(&lab).path_set.store(PathSet::new(&choice, Some(&Arc::default())).map(Arc::new));
    let packet = lab.sealed(&super::packet(1));
    lab.receive(&[&packet], NOW);
    assert_eq!(peer(&lab).endpoint(), Some(from()));
}
