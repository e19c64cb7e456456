//! Removal, and attempts to return by every earlier grant. A removed key does not return. A machine with another key
//! returns only if the grant that admitted it was not withdrawn.
use crate::sim::{Sim, seconds};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    client::JoinError,
    ledger::LedgerError,
    server::{InviteOptions, NewPeer, ServerError},
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Grant {
    /// An invite for ten machines.
    Invite,
    Code,
    Passphrase,
    /// A passphrase, with approval by an administrator.
    Approval,
}

const ALL: [Grant; 4] = [Grant::Invite, Grant::Code, Grant::Passphrase, Grant::Approval];

fn give(sim: &mut Sim, grant: Grant) -> String {
    match grant {
        Grant::Invite => sim.invite_with(InviteOptions::default().with_uses(10)).to_text().to_string(),
        Grant::Code => sim.open(None, false),
        Grant::Passphrase => sim.open(Some("correct horse battery"), false),
        Grant::Approval => sim.open(Some("correct horse battery"), true),
    }
}

/// Lets the machine continue, and approves it when asked. Returns whether it is done within ten seconds.
fn run(sim: &mut Sim, node: usize) -> bool {
    let end = sim.now.instant + seconds(10);
    while sim.nodes[node].outcome.is_none() {
        if let Some(code) = sim.nodes[node].waiting.take() {
            // It may have been approved already, without knowing it yet.
            let _ = sim.admin(|server, now, _, actions| server.approve(code, now, actions));
        }
        if !sim.step(end) {
            return false;
        }
    }
    true
}

/// A machine joined by this grant and was removed.
fn removed(sim: &mut Sim, token: &str, withdraw: bool) -> usize {
    let node = sim.join(token);
    assert!(run(sim, node));
    sim.check(node);
    sim.handshake(node);
    let key = sim.public_key(node);
    remove(sim, &key, withdraw);
    assert!(sim.peers.is_empty(), "the device has forgotten it");
    node
}

fn remove(sim: &mut Sim, key: &PublicKey, withdraw: bool) {
    sim.admin(|server, now, _, actions| {
        if withdraw {
            server.withdraw_grant(key, now, actions).expect("known");
        }
        server.remove_peer(key, now, actions).expect("known")
    });
}

#[test]
fn a_removed_key_does_not_come_back_by_the_grant_it_had() {
    for (i, grant) in ALL.into_iter().enumerate() {
        let mut sim = Sim::new(200 + i as u64);
        let token = give(&mut sim, grant);
        let node = removed(&mut sim, &token, false);
        for _ in 0..3 {
            sim.restart_client(node, &token);
            assert!(run(&mut sim, node), "{grant:?}");
            assert_eq!(sim.failed(node), JoinError::Removed, "{grant:?}");
        }
        assert!(sim.refusals().iter().all(|reason| *reason == Reason::RemovedPeer), "{grant:?}");
        assert!(sim.peers.is_empty() && sim.server.ledger().leases().len() == 0, "{grant:?}");
        // No other grant from before the removal admits the key either, even after a restart.
        sim.restart_server();
        if grant == Grant::Invite {
            sim.restart_client(node, &token);
            assert!(run(&mut sim, node));
            assert_eq!(sim.failed(node), JoinError::Removed);
        }
        // A newer grant admits it.
        let token = give(&mut sim, grant);
        sim.restart_client(node, &token);
        assert!(run(&mut sim, node), "{grant:?}");
        sim.check(node);
    }
}

#[test]
fn no_grant_of_another_kind_that_was_given_before_brings_a_removed_key_back() {
    let mut sim = Sim::new(210);
    let (first, second) = (give(&mut sim, Grant::Invite), give(&mut sim, Grant::Invite));
    let window = give(&mut sim, Grant::Passphrase);
    let node = removed(&mut sim, &first, false);
    for token in [&first, &second, &window] {
        sim.restart_client(node, token);
        assert!(run(&mut sim, node));
        assert_eq!(sim.failed(node), JoinError::Removed);
    }
    // A peer added by hand, `peer add --conf`: the administrator's command is newer than the earlier removal, and the
    // next removal is newer still.
    let key = sim.public_key(node);
    let by_hand = |sim: &mut Sim| {
        let peer = NewPeer::default();
        sim.admin(|server, now, rng, actions| server.add_peer(key, peer, now, rng, actions).expect("room"));
        assert!(sim.peers.contains_key(&key));
    };
    by_hand(&mut sim);
    remove(&mut sim, &key, true);
    assert!(sim.peers.is_empty());
    for token in [&first, &second, &window] {
        sim.restart_client(node, token);
        assert!(run(&mut sim, node));
        assert_eq!(sim.failed(node), JoinError::Removed);
    }
    assert!(sim.server.window().is_some(), "there was nothing to withdraw");
    by_hand(&mut sim);
}

#[test]
fn a_machine_with_another_key_comes_back_unless_what_let_it_in_is_withdrawn() {
    for (i, grant) in ALL.into_iter().enumerate() {
        for withdraw in [false, true] {
            let mut sim = Sim::new(220 + i as u64);
            let token = give(&mut sim, grant);
            let node = sim.join(&token);
            assert!(run(&mut sim, node));
            sim.handshake(node);
            // The machine has started a second join under another key when it is removed, and afterwards starts a third
            // one under yet another key.
            let second = sim.join(&token);
            let answers = sim.answers();
            while sim.answers() == answers {
                assert!(sim.step(sim.now.instant + seconds(1)));
            }
            let key = sim.public_key(node);
            remove(&mut sim, &key, withdraw);
            let third = sim.join(&token);
            for again in [second, third] {
                run(&mut sim, again);
                let joined = matches!(sim.nodes[again].outcome, Some(Ok(_)));
                assert_eq!(joined, !withdraw, "{grant:?}: {:?}", sim.nodes[again].outcome);
            }
            assert_eq!(sim.peers.is_empty(), withdraw);
            let audited = |event| sim.audited(event).len();
            let counts = (audited(AuditEvent::InviteRevoked), audited(AuditEvent::WindowClosed));
            let withdrawn = usize::from(withdraw);
            let expected = if grant == Grant::Invite { (withdrawn, 0) } else { (0, withdrawn) };
            assert_eq!(counts, expected, "{grant:?}");
        }
    }
}

#[test]
fn others_who_came_by_a_withdrawn_invite_stay() {
    let mut sim = Sim::new(230);
    let token = give(&mut sim, Grant::Invite);
    let nodes = [sim.join(&token), sim.join(&token)];
    assert!(sim.run(seconds(5)));
    nodes.iter().for_each(|&node| sim.handshake(node));
    let key = sim.public_key(nodes[0]);
    remove(&mut sim, &key, true);
    assert_eq!(sim.peers.len(), 1);
    sim.check(nodes[1]);
    let unknown = sim.admin(|server, now, _, actions| server.withdraw_grant(&key, now, actions));
    assert!(matches!(unknown, Err(ServerError::Ledger(LedgerError::UnknownPeer(_)))));
    let line = sim.audited(AuditEvent::Removed).pop().expect("a line");
    assert!(line.token.is_some(), "by which invite it came");
}
