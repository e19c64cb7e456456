//! Loss, restarts, clocks and disk errors.
use crate::sim::{Sim, seconds};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    client::JoinError,
    server::InviteOptions,
};
use std::time::Duration;

#[test]
fn lost_doubled_and_reordered_datagrams_end_in_success_or_a_clean_failure() {
    let (mut joined, mut not_accepted) = (0, 0);
    for seed in 0..150 {
        let mut sim = Sim::new(seed);
        (sim.loss, sim.duplicates, sim.delay) = (30, 20, 400);
        let token = match seed % 3 {
            0 => sim.invite().to_text().to_string(),
            1 => sim.open(None, false),
            _ => sim.open(Some("mysecret"), false),
        };
        let node = sim.join(&token);
        // A window is open for 60 seconds, and an invite is valid for a day.
        assert!(sim.run(seconds(3600)) || seed % 3 != 0, "seed {seed}");
        match &sim.nodes[node].outcome {
            Some(Ok(_)) => {
                sim.check(node);
                joined += 1;
            }
            // A proof that was lost eleven times looks like a wrong code. The user enters it again.
            Some(Err(JoinError::NotAccepted)) if seed % 3 != 0 => not_accepted += 1,
            None if seed % 3 != 0 => not_accepted += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
        assert!(sim.server.ledger().leases().len() <= 1, "seed {seed}");
    }
    assert!(joined >= 140 && joined + not_accepted == 150, "{joined} joined, {not_accepted} did not");
}

/// Runs to the `n`th delivery, calls `then`, and runs to the end. Returns false if there were fewer deliveries.
fn interrupted(sim: &mut Sim, n: usize, then: impl FnOnce(&mut Sim)) -> bool {
    while sim.sent.len() < n {
        if sim.is_done() || !sim.step(sim.now.instant + seconds(60)) {
            return false;
        }
    }
    then(sim);
    true
}

#[test]
fn server_restarted_between_any_two_messages() {
    let mut n = 1;
    loop {
        let mut sim = Sim::new(50);
        let token = sim.invite().to_text();
        let node = sim.join(&token);
        if !interrupted(&mut sim, n, Sim::restart_server) {
            break;
        }
        assert!(sim.run(seconds(120)), "restarted after datagram {n}");
        sim.check(node);
        assert_eq!(sim.server.ledger().leases().len(), 1);
        sim.handshake(node);
        n += 1;
    }
    assert!(n > 4, "{n}");
    // By code: the window ends with the process. The joiner is told, or continues to ask.
    for n in 1..8 {
        let mut sim = Sim::new(51);
        let code = sim.open(None, false);
        let node = sim.join(&code);
        assert!(interrupted(&mut sim, n, Sim::restart_server), "datagram {n}");
        if sim.run(seconds(60)) {
            assert_eq!(sim.failed(node), JoinError::NotAccepted, "restarted after datagram {n}");
        }
        assert!(sim.server.ledger().leases().len() <= 1);
    }
}

#[test]
fn client_restarted_with_its_key_gets_the_same_lease() {
    for n in 1..=4 {
        for by_code in [false, true] {
            let mut sim = Sim::new(52);
            let token = if by_code { sim.open(None, false) } else { sim.invite().to_text().to_string() };
            let node = sim.join(&token);
            assert!(interrupted(&mut sim, n, |sim| sim.restart_client(0, &token)), "datagram {n}");
            assert!(sim.run(seconds(30)), "datagram {n}");
            sim.check(node);
            assert_eq!(sim.server.ledger().leases().len(), 1);
        }
    }
}

#[test]
fn joining_again_gives_the_same_lease_and_preshared_key() {
    let mut sim = Sim::new(53);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let before = sim.joined(node).clone();
    sim.pass(seconds(3600));
    sim.restart_client(node, &token);
    assert!(sim.run(seconds(2)));
    sim.check(node);
    // A lost answer cannot leave both ends with different keys.
    assert_eq!(*sim.joined(node), before);
    assert_eq!(sim.audited(AuditEvent::Admitted).len(), 1);
    assert_eq!(sim.audited(AuditEvent::Rejoined).len(), 1);
    let id = rustguard_enroll::token::Invite::parse(&token).expect("an invite").id();
    assert_eq!(sim.server.ledger().invite(&id).map(|record| record.uses_left), Some(0), "no use was counted twice");
}

#[test]
fn client_restarted_with_its_key_lost_needs_another_invite() {
    let mut sim = Sim::new(54);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let answers = sim.answers();
    sim.join_as(&token, [77; 32]);
    assert!(!sim.run(seconds(30)));
    assert_eq!(sim.answers(), answers, "silence");
    assert!(sim.refusals().iter().all(|reason| *reason == Reason::UsedToken));
    assert!(sim.audited(AuditEvent::Refused)[0].public_key.is_some());
    let token = sim.invite().to_text();
    let other = sim.join_as(&token, [77; 32]);
    sim.nodes[1].outcome = Some(Err(JoinError::TokenSpent));
    assert!(sim.run(seconds(2)));
    sim.check(other);
}

#[test]
fn the_last_answer_lost_for_good_is_repaired_by_beginning_again() {
    let mut sim = Sim::new(55);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    while sim.audited(AuditEvent::Admitted).is_empty() {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    // The grant was sent. From now on nothing arrives for longer than a session lives.
    sim.loss = 100;
    sim.pass(seconds(1));
    sim.nodes[node].outcome = None;
    sim.restart_client(node, &token);
    sim.pass(seconds(30));
    sim.loss = 0;
    assert!(sim.run(seconds(30)));
    sim.check(node);
    assert_eq!(sim.server.ledger().leases().len(), 1);
}

#[test]
fn clock_moved_either_way_on_the_joiner() {
    for skew in [-1_600_000_000, -86_400, 86_400, 3_000_000_000] {
        let mut sim = Sim::new(56);
        let token = sim.invite_with(InviteOptions::default().with_uses(2)).to_text();
        let right = sim.join(&token);
        let wrong = sim.join_from(&token, [3; 32], "203.0.113.7:1".parse().expect("an address"), skew);
        assert!(sim.run(seconds(5)));
        sim.check(right);
        sim.check(wrong);
        // The clock is set to the right or a wrong time, and the machine joins again after its last session has ended.
        sim.nodes[wrong].skew = -skew.min(1_600_000_000);
        sim.restart_client(wrong, &token);
        assert!(sim.run(seconds(40)), "{skew}");
        sim.check(wrong);
    }
}

#[test]
fn clock_moved_either_way_on_the_server() {
    for by in [-30 * 86_400, -3600, 3600] {
        let mut sim = Sim::new(57);
        let token = sim.invite().to_text();
        let code = sim.open(None, false);
        sim.set_clock(by);
        let nodes = [sim.join(&token), sim.join(&code)];
        assert!(sim.run(seconds(10)), "{by}");
        nodes.iter().for_each(|&node| sim.check(node));
        // The window uses the monotonic clock.
        assert!(sim.server.window().is_some());
        sim.pass(seconds(60));
        assert!(sim.server.window().is_none());
    }
}

#[test]
fn nothing_goes_out_that_is_not_on_disk() {
    let mut sim = Sim::new(58);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    sim.broken.set(true);
    assert!(sim.run(seconds(5)));
    assert_eq!(sim.failed(node), JoinError::ServerFailed);
    assert!(sim.peers.is_empty() && sim.server.ledger().leases().len() == 0);
    assert_eq!(sim.refusals(), [Reason::StoreFailed]);
    sim.broken.set(false);
    sim.restart_client(node, &token);
    assert!(sim.run(seconds(30)));
    sim.check(node);
    // Expiry that cannot be written is tried again, but not continuously.
    sim.broken.set(true);
    sim.pass(seconds(100));
    assert!(sim.peers.contains_key(&sim.public_key(node)));
    sim.broken.set(false);
    sim.pass(seconds(6));
    assert!(sim.peers.is_empty());
}

#[test]
fn an_endpoint_that_changes_between_messages_is_no_obstacle() {
    let mut sim = Sim::new(59);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    while sim.sent.len() < 2 {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    // The response is on its way to the old address. The next ones go to the new address.
    sim.nodes[node].address = "203.0.113.200:9".parse().expect("an address");
    assert!(sim.run(seconds(30)));
    sim.check(node);
    assert!(sim.now.instant.since(rustguard_core::time::Instant::from_nanos(1 << 40)) < Duration::from_secs(30));
}
