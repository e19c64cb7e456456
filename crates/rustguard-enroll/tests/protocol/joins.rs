//! Joins that succeed.
use crate::sim::{Sim, seconds};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    client::JoinError,
    lease::Terms,
    server::{InviteOptions, NewPeer},
};
use std::time::Duration;

#[test]
fn an_invite_joins_in_two_round_trips() {
    let mut sim = Sim::new(1);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(1)));
    sim.check(node);
    assert_eq!(sim.sent.len(), 4, "two messages each way");
    let joined = sim.joined(node);
    assert_eq!(joined.addresses[0].to_string(), "10.150.0.2/32");
    assert_eq!((joined.mtu, joined.keepalive, joined.port), (Some(1420), Some(25), None));
    assert_eq!(joined.search, ["example.org"]);
    assert_eq!(joined.routes.len(), 2, "the server's own address lies in the first");
    let admitted = sim.audited(AuditEvent::Admitted);
    assert_eq!(admitted.len(), 1);
    assert_eq!(admitted[0].name.as_deref(), Some("node-0"));
    assert_eq!(admitted[0].addresses.len(), 2);
    assert!(admitted[0].token.is_some() && admitted[0].public_key.is_some() && admitted[0].source.is_some());
    assert_eq!(sim.commits.get(), 2, "the invite and the lease: one durable write for each");
}

#[test]
fn a_code_and_a_passphrase_join() {
    for passphrase in [None, Some("mysecret")] {
        let mut sim = Sim::new(2);
        let token = sim.open(passphrase, false);
        let nodes = [sim.join(&token), sim.join(&token), sim.join(&token)];
        assert!(sim.run(seconds(2)));
        nodes.iter().for_each(|&node| sim.check(node));
        sim.check_all();
        let status = sim.server.window().expect("still open");
        assert_eq!((status.joined, status.attempts_left, status.code), (3, 5, passphrase.is_none()));
        assert!(sim.audited(AuditEvent::Admitted).iter().all(|record| record.token.is_none()));
    }
}

#[test]
fn a_lease_is_confirmed_by_a_handshake_or_freed() {
    let mut sim = Sim::new(3);
    let (a, b) = (sim.invite().to_text(), sim.invite().to_text());
    let (confirmed, silent) = (sim.join(&a), sim.join(&b));
    assert!(sim.run(seconds(2)));
    sim.handshake(confirmed);
    sim.pass(seconds(61));
    assert_eq!(sim.audited(AuditEvent::Confirmed).len(), 1);
    assert_eq!(sim.audited(AuditEvent::Removed)[0].reason, Some(Reason::NeverConfirmed));
    let peers: Vec<_> = sim.peers.keys().copied().collect();
    assert_eq!(peers, [sim.public_key(confirmed)]);
    // The use was given back, so the same invite works again.
    sim.restart_client(silent, &b);
    assert!(sim.run(seconds(2)));
    sim.check(silent);
}

#[test]
fn an_invite_with_three_uses_admits_three_and_its_terms_hold() {
    let mut sim = Sim::new(4);
    let terms = Terms::default().with_tags(vec!["lab".to_owned()]).with_ephemeral(true);
    let token = sim.invite_with(InviteOptions::default().with_uses(3).with_terms(terms)).to_text();
    let nodes = [sim.join(&token), sim.join(&token), sim.join(&token)];
    assert!(sim.run(seconds(2)));
    for node in nodes {
        sim.check(node);
        assert!(sim.joined(node).ephemeral);
        let lease = sim.server.ledger().lease(&sim.public_key(node)).expect("a lease");
        assert_eq!(lease.tags.first().map(String::as_str), Some("lab"));
    }
    sim.check_all();
    let fourth = sim.join(&token);
    assert!(!sim.run(seconds(20)));
    assert!(sim.nodes[fourth].outcome.is_none());
    assert_eq!(sim.refusals(), [Reason::UsedToken, Reason::UsedToken], "one at once, the others counted together");
}

#[test]
fn a_fixed_address_is_given() {
    let mut sim = Sim::new(5);
    let terms = Terms::default().with_addresses(vec!["10.150.0.77".parse().expect("an address")]);
    let token = sim.invite_with(InviteOptions::default().with_terms(terms)).to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    assert_eq!(sim.joined(node).addresses[0].to_string(), "10.150.0.77/32");
}

#[test]
fn two_joiners_at_once_on_the_last_address() {
    // There is one address besides the server's.
    let mut sim = Sim::with_pools(6, &["10.150.0.0/30"]);
    let tokens = [sim.invite().to_text(), sim.invite().to_text()];
    let nodes = [sim.join(&tokens[0]), sim.join(&tokens[1])];
    assert!(sim.run(seconds(2)));
    let (won, lost): (Vec<usize>, Vec<usize>) =
        nodes.iter().partition(|&&node| sim.nodes[node].outcome.as_ref().is_some_and(Result::is_ok));
    assert_eq!((won.len(), lost.len()), (1, 1));
    sim.check(won[0]);
    assert!(matches!(sim.failed(lost[0]), JoinError::PoolExhausted(_)), "{:?}", sim.failed(lost[0]));
    assert_eq!(sim.refusals(), [Reason::PoolExhausted]);
}

#[test]
fn many_machines_join_by_one_invite_over_a_bad_network() {
    let mut sim = Sim::new(7);
    (sim.loss, sim.duplicates, sim.delay) = (20, 10, 200);
    let token = sim.invite_with(InviteOptions::default().with_uses(40)).to_text();
    let nodes: Vec<_> = (0..40).map(|_| sim.join(&token)).collect();
    assert!(sim.run(seconds(120)));
    nodes.iter().for_each(|&node| sim.check(node));
    sim.check_all();
}

#[test]
fn a_server_that_comes_later_and_a_window_that_opens_later() {
    let mut sim = Sim::new(8);
    let node = sim.join("correct horse battery");
    sim.pass(seconds(600));
    assert_eq!(sim.answers(), 0, "silence");
    assert!(sim.sent.len() < 200, "at most one message in four seconds: {}", sim.sent.len());
    sim.open(Some("correct horse battery"), false);
    assert!(sim.run(seconds(10)));
    sim.check(node);
}

#[test]
fn retries_back_off_with_jitter() {
    let mut sim = Sim::new(9);
    let token = sim.invite().to_text();
    sim.loss = 100;
    sim.join(&token);
    sim.join(&token);
    let mut times = [Vec::new(), Vec::new()];
    let end = sim.now.instant + seconds(60);
    while sim.step(end) {
        for (i, times) in times.iter_mut().enumerate() {
            let count = sim.sent_by(i).len();
            times.resize(count, sim.now.instant);
        }
    }
    let pauses: Vec<_> = times[0].windows(2).map(|pair| pair[1].since(pair[0])).collect();
    for (i, pause) in pauses.iter().enumerate() {
        let nominal = Duration::from_millis(250 * 2_u64.pow(i.min(8) as u32)).min(seconds(5));
        assert!((nominal * 3 / 4..=nominal * 5 / 4).contains(pause), "pause {i}: {pause:?}");
    }
    assert_ne!(times[0][1..], times[1][1..], "two clients do not keep step");
}

#[test]
fn stock_apps_and_names() {
    let mut sim = Sim::new(10);
    let key = rustguard_crypto::x25519::StaticSecret::from_bytes([9; 32]).public_key();
    let lease = sim.admin(|server, now, rng, actions| {
        server.add_peer(key, NewPeer::default().with_name("phone".to_owned()), now, rng, actions).expect("room")
    });
    assert!(!lease.is_pending());
    assert_eq!(sim.peers[&key].preshared_key[..], lease.preshared_key.as_bytes()[..]);
    sim.admin(|server, now, _, actions| server.rename_peer(&key, "tablet", now, actions).expect("known"));
    assert_eq!(sim.peers[&key].name.as_deref(), Some("tablet"));
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    assert!(sim.peers.is_empty());
    let events: Vec<_> = sim.audit.iter().map(|record| record.event).collect();
    assert_eq!(events, [AuditEvent::PeerAdded, AuditEvent::Renamed, AuditEvent::Removed]);
}
