//! Which sources a peer may use with a routing engine, in each mode of the check.

use super::*;
use crate::{config::SourceCheck, shared::peer::Bounds};
use rustguard_core::routing::{PeerRoutes, Role};

/// The peer's allowed IPs are 10.0.0.0/30. It has announced 10.0.0.1; the engine permits 10.0.0.8 by mistake.
fn lab(mode: SourceCheck, role: Role) -> Lab {
    let mut lab = Lab::new();
    lab.shared.source_check = mode;
    let mut routes = RouteTable::default();
    for prefix in ["10.0.0.1/32", "10.0.0.8/32"] {
        routes.permit(PeerId(1), prefix.parse().unwrap(), SourceRule::Any);
    }
    lab.table.routes = routes.snapshot();
    bound(&lab, "10.0.0.0/30", role);
    lab
}

fn bound(lab: &Lab, prefix: &str, role: Role) {
    let config = PeerRoutes { allowed_ips: vec![prefix.parse().unwrap()], role };
    lab.table.peers[&PeerId(1)].bounds.store(Some(Arc::new(Bounds::new(PeerId(1), &config))));
}

/// Sends packets from addresses with these last bytes. Returns the last bytes of sources that reach the host, and the
/// drops.
fn send(lab: &mut Lab, sources: &[u8], after: Duration) -> (Vec<u8>, Vec<(DropReason, u64)>) {
    let sealed: Vec<_> = sources.iter().map(|&source| lab.sealed(&packet(source))).collect();
    let (got, drops) = lab.receive(&sealed.iter().map(Vec::as_slice).collect::<Vec<_>>(), after);
    (got.iter().map(|packet| packet[15]).collect(), drops)
}

/// 1 is announced, 2 is only within the bounds, 8 is permitted outside the bounds, and 77 is neither. Repeated, as in a
/// run.
const SOURCES: [u8; 10] = [1, 1, 2, 2, 1, 8, 8, 77, 77, 1];

/// Every host sends multicast, also from addresses outside the peer's allowed IPs. Multicast from the peer's own
/// address reaches the host.
#[test]
fn multicast_of_a_peer_has_a_counter_of_its_own() {
    let mut lab = Lab::new();
    let everywhere = [[224, 0, 0, 251], [255, 255, 255, 255], [10, 0, 0, 2]];
    let sealed = [77, 1].map(|source| {
        everywhere.map(|to| {
            let mut packet = packet(source);
            packet[16..20].copy_from_slice(&to);
            lab.sealed(&packet)
        })
    });
    let datagrams: Vec<_> = sealed.iter().flatten().map(Vec::as_slice).collect();
    let (got, drops) = lab.receive(&datagrams, NOW);
    assert_eq!(got.len(), 3);
    assert_eq!(drops, [(DropReason::SourceNotAllowed, 1), (DropReason::Multicast, 2)]);
    assert_eq!(lab.table.peers[&PeerId(1)].drops.snapshot(), drops);
}

#[test]
fn enforced_a_router_needs_an_announcement_and_its_allowed_ips() {
    let expected = vec![(DropReason::SourceNotAllowed, 4), (DropReason::SourceNotAnnounced, 2)];
    let mut lab = lab(SourceCheck::default(), Role::Router);
    assert_eq!(send(&mut lab, &SOURCES, NOW), (vec![1, 1, 1, 1], expected));
    assert_eq!(lab.shared.unannounced.packets(), 0);
}

#[test]
fn logged_or_off_its_allowed_ips_are_enough_and_still_needed() {
    for (mode, counted) in [(SourceCheck::Log, 2), (SourceCheck::Off, 0)] {
        let mut lab = lab(mode, Role::Router);
        let expected = (vec![1, 1, 2, 2, 1, 1], vec![(DropReason::SourceNotAllowed, 4)]);
        assert_eq!(send(&mut lab, &SOURCES, NOW), expected, "{mode:?}");
        assert_eq!(lab.shared.unannounced.packets(), counted, "{mode:?}");
    }
}

#[test]
fn a_client_is_strict_in_every_mode() {
    for mode in [SourceCheck::Enforce, SourceCheck::Log, SourceCheck::Off] {
        let mut lab = lab(mode, Role::Client);
        let expected = (vec![1, 1, 1, 1], vec![(DropReason::SourceNotAllowed, 6)]);
        assert_eq!(send(&mut lab, &SOURCES, NOW), expected, "{mode:?}");
    }
}

#[test]
fn without_an_engine_there_is_no_mode() {
    for mode in [SourceCheck::Enforce, SourceCheck::Log, SourceCheck::Off] {
        let mut lab = Lab::new();
        lab.shared.source_check = mode;
        let expected = (vec![1, 1, 1, 1], vec![(DropReason::SourceNotAllowed, 6)]);
        assert_eq!(send(&mut lab, &SOURCES, NOW), expected, "{mode:?}");
    }
}

#[test]
fn allowed_ips_that_shrink_hold_at_once() {
    let mut lab = lab(SourceCheck::Off, Role::Router);
    assert_eq!(send(&mut lab, &[1, 2, 3], NOW).0, [1, 2, 3]);
    bound(&lab, "10.0.0.1/32", Role::Router);
    assert_eq!(send(&mut lab, &[1, 2, 3], NOW), (vec![1], vec![(DropReason::SourceNotAllowed, 2)]));
}

#[test]
fn what_is_let_through_is_logged_now_and_then() {
    let unannounced = crate::logged_counter::LoggedCounter::default();
    let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
    let logged = [5, 5, 6, 34, 35, 36, 65, 64, 66].map(|seconds| unannounced.count(at(seconds)));
    assert_eq!(logged, [true, false, false, false, true, false, true, false, false]);
    assert_eq!(unannounced.packets(), 9);
}
