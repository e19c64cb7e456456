//! Members change their keys: the lease stays, and nobody else gets either of the two keys.
use crate::sim::{Sim, seconds};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    ledger::OLD_KEY_TIME,
    server::NewPeer,
};
use std::time::Duration;

const NEW: PublicKey = PublicKey([7; 32]);
const NEWER: PublicKey = PublicKey([8; 32]);

fn rotate(sim: &mut Sim, member: &PublicKey, to: &PublicKey) -> bool {
    sim.admin(|server, now, _, actions| server.rotated(member, to, now, actions))
}

#[test]
fn a_member_with_another_key_keeps_its_lease() {
    let (mut sim, keys) = Sim::with_members(600, 2);
    let before = sim.server.ledger().lease(&keys[0]).expect("a lease").clone();
    assert!(rotate(&mut sim, &keys[0], &NEW));
    assert_eq!(sim.changes, 1);
    assert!(sim.peers.contains_key(&NEW) && !sim.peers.contains_key(&keys[0]));
    let events: Vec<_> = sim.audit.iter().map(|record| (record.event, record.public_key)).collect();
    assert_eq!(events, [(AuditEvent::KeyRotated, Some(NEW))]);
    // The member repeats the request, because the answer was lost.
    assert!(rotate(&mut sim, &keys[0], &NEW) && rotate(&mut sim, &NEW, &NEW));
    assert_eq!(sim.changes, 1);
    // The change survives a restart of the server.
    sim.restart_server();
    let ledger = sim.server.ledger();
    let lease = ledger.lease(&NEW).expect("the lease").clone();
    assert_eq!((lease.v4, lease.v6, &lease.name, lease.created), (before.v4, before.v6, &before.name, before.created));
    assert_eq!(lease.old_key.map(|old| old.public_key), Some(keys[0]));
    assert_eq!(ledger.formerly(&keys[0]).map(|lease| lease.public_key), Some(NEW));
    assert!(ledger.lease(&keys[0]).is_none());

    sim.pass(OLD_KEY_TIME + seconds(1));
    assert_eq!(sim.server.ledger().lease(&NEW).expect("the lease").old_key, None);
    assert!(sim.changes > 0, "the roster has it no more");
    assert!(sim.server.ledger().formerly(&keys[0]).is_none());
}

#[test]
fn a_key_that_another_machine_has_or_had_is_refused() {
    let (mut sim, keys) = Sim::with_members(601, 3);
    let own = *sim.server.public_key();
    assert!(rotate(&mut sim, &keys[1], &NEW));
    sim.admin(|server, now, _, actions| server.remove_peer(&keys[2], now, actions).expect("a peer"));
    for (taken, what) in
        [(own, "the server's"), (NEW, "another's"), (keys[1], "one before"), (keys[2], "a removed one's")]
    {
        assert!(!rotate(&mut sim, &keys[0], &taken), "{what}");
        sim.pass(seconds(600));
    }
    assert!(sim.server.ledger().lease(&keys[0]).is_some_and(|lease| lease.old_key.is_none()));
    let refused = sim.audit.iter().filter(|record| record.reason == Some(Reason::KeyTaken)).map(|record| record.count);
    assert_eq!(refused.sum::<u32>(), 3);
    // A joiner cannot have a key that a member had a moment ago either: two machines would have it in one roster.
    let add = sim.admin(|server, now, rng, actions| {
        server.add_peer(keys[1], NewPeer::default().with_name("other".to_owned()), now, rng, actions).map(drop)
    });
    assert!(add.unwrap_err().to_string().contains("had this key"));
}

#[test]
fn a_removed_machine_cannot_change_its_key() {
    let (mut sim, keys) = Sim::with_members(602, 1);
    sim.admin(|server, now, _, actions| server.remove_peer(&keys[0], now, actions).expect("a peer"));
    sim.changes = 0;
    // There is nothing to store, so the member is not asked to repeat it.
    assert!(rotate(&mut sim, &keys[0], &NEW));
    assert_eq!((sim.changes, sim.server.ledger().leases().len(), sim.peers.len()), (0, 0, 0));
}

#[test]
fn a_member_that_changes_its_key_all_the_time_is_heard_less_and_less_often() {
    let (mut sim, keys) = Sim::with_members(603, 1);
    assert!(rotate(&mut sim, &keys[0], &NEW));
    sim.pass(Duration::from_millis(1));
    assert!(!rotate(&mut sim, &NEW, &NEWER), "not at once");
    sim.pass(seconds(1));
    assert!(rotate(&mut sim, &NEW, &NEWER));
    sim.pass(seconds(1));
    assert!(!rotate(&mut sim, &NEWER, &NEW), "the pause is longer, and it is a member's and not a key's");
    sim.pass(seconds(1));
    assert!(rotate(&mut sim, &NEWER, &keys[0]), "a key that it had before the last one is free");
    assert_eq!(sim.server.ledger().leases().map(|lease| lease.public_key).collect::<Vec<_>>(), [keys[0]]);
}

/// The server has changed its own key. The holder of an earlier invite checks that the server has the old key. All
/// others learn the new key.
#[test]
fn invites_from_before_the_server_changed_its_key_go_on_until_the_old_key_ends() {
    let mut sim = Sim::new(610);
    let invites: Vec<_> = (0..3).map(|_| sim.invite().to_text()).collect();
    let (old, new) = (*sim.server.public_key(), StaticSecret::from_bytes([5; 32]));
    let of_old = sim.identity();
    // One joiner is in the middle of its exchange.
    let meanwhile = sim.join(&invites[0]);
    sim.pass(Duration::from_millis(25));
    assert!(sim.admin(|server, _, _, _| server.set_keys(new.clone(), Some(of_old))).is_ok());
    let before = sim.join(&invites[1]);
    let fresh = sim.invite().to_text();
    let after = sim.join(&fresh);
    assert!(sim.run(seconds(60)));
    let code = sim.open(None, false);
    let by_code = sim.join(&code);
    assert!(sim.run(seconds(60)));
    for (node, key) in [(meanwhile, old), (before, old), (after, new.public_key()), (by_code, new.public_key())] {
        let joined = sim.nodes[node].outcome.as_ref().expect("an end").as_ref().expect("joined");
        assert_eq!(joined.server, key, "node {node}");
    }
    // Neither of the two keys can become the key of a peer.
    for key in [old, new.public_key()] {
        let added = sim.admin(|server, now, rng, actions| server.add_peer(key, NewPeer::default(), now, rng, actions));
        assert!(added.is_err(), "the server's own key");
    }
    assert!(sim.admin(|server, _, _, _| server.set_keys(new.clone(), None)).is_ok());
    let late = sim.join(&invites[2]);
    sim.run(seconds(120));
    assert!(!matches!(sim.nodes[late].outcome, Some(Ok(_))), "the old key is answered no more");
}
