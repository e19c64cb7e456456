//! Many peers at once: a handshake is due with each of them, and the caller has other work too.
use crate::sim::{at, peer_config, secret, secs, seed_or};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::node::{Action, Node, PeerId};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeSet, time::Duration};

const PEERS: usize = 20_000;
/// The most that one call of `tick` may cost, in initiations of about 80 µs.
const SLICE: usize = 16;

/// A node with this many peers, none of which has a session.
fn crowd(rng: &mut StdRng) -> (Node, Vec<PeerId>) {
    let mut node = Node::new(at(Duration::ZERO).instant, rng);
    node.set_private_key(Some(secret(rng)), &mut Vec::new());
    let add = |_| node.add_peer(peer_config(PublicKey(rng.random()))).expect("a new peer");
    let peers = (0..PEERS).map(add).collect();
    (node, peers)
}

/// The peers whose handshakes one tick begins.
fn tick(node: &mut Node, clock: Duration, rng: &mut StdRng) -> Vec<PeerId> {
    let mut out = Vec::new();
    node.tick(at(clock), rng, &mut out);
    let send = |action| if let Action::Send { peer, .. } = action { Some(peer) } else { None };
    out.into_iter().filter_map(send).collect()
}

/// The order in which the peers get their initiations, one second after they are due.
fn greeted(node: &mut Node, rng: &mut StdRng) -> Vec<PeerId> {
    let clock = secs(1);
    let mut order = Vec::new();
    while node.deadline().is_some_and(|deadline| deadline <= at(clock).instant) {
        let now = tick(node, clock, rng);
        assert!((1..=SLICE).contains(&now.len()), "{} initiations in one tick", now.len());
        order.extend(now);
    }
    order
}

#[test]
fn twenty_thousand_handshakes_that_are_due_at_once_take_many_short_turns() {
    let mut rng = StdRng::seed_from_u64(seed_or(401));
    let (mut node, peers) = crowd(&mut rng);
    // The last peer is the most important one.
    for (n, &peer) in peers.iter().rev().enumerate() {
        node.handshake_at(peer, at(Duration::ZERO).instant + Duration::from_nanos(n as u64));
    }
    let first = tick(&mut node, secs(1), &mut rng);
    assert_eq!(first, peers.iter().rev().take(SLICE).copied().collect::<Vec<_>>(), "in the order of their times");
    // A packet for a peer that has to wait: its handshake begins at once.
    let mut out = Vec::new();
    node.handshake_wanted(peers[0], at(secs(1)), &mut rng, &mut out);
    assert!(matches!(out[..], [Action::Send { peer, .. }] if peer == peers[0]), "{out:?}");

    let rest = greeted(&mut node, &mut rng);
    assert_eq!(rest.len(), PEERS - SLICE - 1);
    assert_eq!(rest.into_iter().collect::<BTreeSet<_>>().len(), PEERS - SLICE - 1, "none twice");
}

#[test]
fn twenty_thousand_persistent_keepalives_of_an_interface_that_was_set_up_take_many_short_turns() {
    let mut rng = StdRng::seed_from_u64(seed_or(402));
    let (mut node, peers) = crowd(&mut rng);
    let mut out = Vec::new();
    node.stop(&mut out);
    for &peer in &peers {
        node.set_persistent_keepalive(peer, Some(secs(25)), at(Duration::ZERO), &mut rng, &mut out);
        node.start(peer, at(Duration::ZERO), &mut rng, &mut out);
    }
    node.resume(at(secs(1)), &mut Vec::new());
    assert_eq!(greeted(&mut node, &mut rng).into_iter().collect::<BTreeSet<_>>().len(), PEERS);
}
