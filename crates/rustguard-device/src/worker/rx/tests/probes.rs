//! Probes are for control, and say nothing about where the peer is.

use super::*;
use crate::several::{Several, place};
use rustguard_core::paths::{Choice, Request};

const ASKED: Request =
    Request { path: 1, active: None, usable: 0, weights: [0; 8], interval: Duration::from_millis(200), clock: 5 };

fn from() -> Endpoint {
    Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None }
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
    assert_eq!(lab.inbox.probes.try_recv().unwrap(), (PeerId(1), from(), probe));
    assert!(peer(&lab).endpoint.load().is_none());
    assert_eq!(peer(&lab).talk_rx.load(Ordering::Relaxed), asked.len() as u64);
    assert_eq!(peer(&lab).activity.unanswered_since(), None);
    // A packet in the same run does.
    let (asked, packet) = (lab.sealed(&probe.to_bytes()), lab.sealed(&packet(1)));
    lab.receive(&[&asked, &packet], NOW);
    assert_eq!(peer(&lab).endpoint.load().as_deref(), Some(&from()));
}

#[test]
fn what_only_looks_like_a_probe_is_no_packet_either() {
    let mut lab = Lab::new();
    let mut text = Probe::Request(ASKED).to_bytes();
    text[4] = 99;
    let odd = lab.sealed(&text);
    assert_eq!(lab.receive(&[&odd], NOW), (vec![], vec![(DropReason::NotIp, 1)]));
    assert!(lab.inbox.probes.try_recv().is_err());
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
    assert_eq!(lab.receive(&asked, NOW).1, [(DropReason::ProbeQueueFull, 3)]);
}

#[test]
fn a_peer_heard_by_a_known_path_has_not_moved() {
    let mut lab = Lab::new();
    let elsewhere = Endpoint { remote: "192.0.2.9:9".parse().unwrap(), local: None };
    peer(&lab).endpoint.store(Some(Arc::new(elsewhere)));
    let choice = Choice { known: vec![place(&elsewhere), place(&from())], ..Choice::default() };
    peer(&lab).several.store(Several::new(&choice, &Arc::default()).map(Arc::new));
    let packet = lab.sealed(&packet(1));
    lab.receive(&[&packet], NOW);
    assert_eq!(peer(&lab).endpoint.load().as_deref(), Some(&elsewhere));
    let choice = Choice { known: vec![place(&elsewhere)], ..Choice::default() };
    peer(&lab).several.store(Several::new(&choice, &Arc::default()).map(Arc::new));
    let packet = lab.sealed(&super::packet(1));
    lab.receive(&[&packet], NOW);
    assert_eq!(peer(&lab).endpoint.load().as_deref(), Some(&from()));
}
