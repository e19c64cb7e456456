//! Limits of a peer's packets to the routing engine: none from a client, none longer than the MTU, and no more than its
//! share.

use super::*;
use crate::shared::peer::{Bounds, ENGINE_PACKETS};
use rustguard_core::routing::{PeerRoutes, Role};

/// A lab whose peer has this role, and where all packets are for the engine.
fn lab(role: Role) -> Lab {
    let mut lab = Lab::new();
    lab.shared.is_engine_packet = Some(|_| true);
    let config = PeerRoutes { allowed_ips: vec!["10.0.0.0/8".parse().unwrap()], role };
    lab.table.peers[&PeerId(1)].bounds.store(Some(Arc::new(Bounds::new(PeerId(1), &config))));
    lab
}

/// How many of these packets of `len` bytes reach the engine's queue, which is emptied after each.
fn taken(lab: &mut Lab, count: u32, len: usize, after: Duration) -> usize {
    let mut text = packet(1).to_vec();
    text.resize(len, 0);
    text[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    let sent = (0..count).map(|_| {
        let sealed = lab.sealed(&text);
        lab.receive(&[&sealed], after);
        usize::from(lab.inbox.from_workers.engine.try_recv().is_ok())
    });
    sent.sum()
}

fn dropped(lab: &Lab, reason: DropReason) -> u64 {
    lab.shared.drops.snapshot().into_iter().find(|&(r, _)| r == reason).map_or(0, |(_, n)| n)
}

#[test]
fn a_client_reaches_no_engine() {
    let mut lab = lab(Role::Client);
    assert_eq!(taken(&mut lab, 3, 100, NOW), 0);
    assert_eq!(lab.shared.drops.snapshot(), [(DropReason::EngineNotARouter, 3)]);
}

#[test]
fn a_packet_is_no_longer_than_the_mtu_or_the_smallest_path() {
    let mut lab = lab(Role::Router);
    for (mtu, longest) in [(1_420, 1_420), (1_280, 1_280), (576, 1_280), (9_000, 9_000)] {
        lab.shared.mtu.store(mtu, Ordering::Relaxed);
        let before = dropped(&lab, DropReason::EngineTooLong);
        assert_eq!(taken(&mut lab, 1, longest, NOW), 1, "MTU {mtu}");
        assert_eq!(taken(&mut lab, 1, longest + 1, NOW), 0, "MTU {mtu}");
        assert_eq!(dropped(&lab, DropReason::EngineTooLong) - before, 1, "MTU {mtu}");
    }
}

#[test]
fn a_router_has_its_share_by_bytes() {
    let burst = ENGINE_PACKETS.burst;
    for (len, each) in [(60, 1), (256, 1), (257, 2), (1_280, 5)] {
        let mut lab = lab(Role::Router);
        let (taken, expected) = (taken(&mut lab, burst + 10, len, NOW), burst / each);
        assert_eq!(taken, expected as usize, "{len} bytes");
        assert_eq!(dropped(&lab, DropReason::EngineLimit), u64::from(burst + 10 - expected), "{len} bytes");
    }
    let mut lab = lab(Role::Router);
    taken(&mut lab, burst, 100, NOW);
    assert_eq!(taken(&mut lab, 20, 100, NOW + ENGINE_PACKETS.interval * 7), 7, "and then the rate");
}
