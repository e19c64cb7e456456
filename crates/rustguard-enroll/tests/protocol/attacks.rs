//! Attacks by outsiders, which all have no effect.
use crate::sim::{Datagram, Sim, seconds, server_address};
use rand::{Rng as _, RngExt as _};
use rustguard_crypto::{hash, x25519::StaticSecret};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    client::JoinError,
    server::InviteOptions,
    store::LeaseStore as _,
    token::Invite,
};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

const ELSEWHERE: &str = "203.0.113.66:666";

fn elsewhere() -> SocketAddr {
    ELSEWHERE.parse().expect("an address")
}

/// The durable state that an outsider might change.
fn durable(sim: &Sim) -> (u32, usize, Vec<(String, u32)>) {
    let ledger = sim.server.ledger();
    let invites = ledger.invites().map(|invite| (invite.id.to_string(), invite.uses_left)).collect();
    (sim.commits.get(), ledger.leases().len(), invites)
}

/// Makes MAC1 valid. Anyone who knows the server's public key can do this.
fn sign(sim: &Sim, datagram: &mut [u8]) {
    let end = datagram.len() - 32;
    let key = hash::hash(&[b"rge-mac1", &sim.server.public_key().0]);
    let mac1 = hash::mac(&key, &[&datagram[..end]]);
    datagram[end..end + 16].copy_from_slice(&mac1);
}

#[test]
fn wrong_expired_used_and_revoked_tokens_get_silence_and_an_audit_line() {
    let mut sim = Sim::new(80);
    let expired = sim.invite_with(InviteOptions::default().with_expires(seconds(60)));
    let (used, revoked) = (sim.invite(), sim.invite());
    let foreign = Invite::generate(*sim.server.public_key(), None, &mut sim.rng).expect("no endpoint");
    let node = sim.join(&used.to_text());
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    sim.admin(|server, now, _, actions| server.revoke_invite(&revoked.id(), now, actions).expect("known"));
    sim.pass(seconds(61));
    let (before, answers) = (durable(&sim), sim.answers());
    let cases = [
        (&foreign, Reason::UnknownToken),
        (&expired, Reason::ExpiredToken),
        (&revoked, Reason::RevokedToken),
        (&used, Reason::UsedToken),
    ];
    for (invite, reason) in cases {
        sim.nodes.clear();
        sim.join_as(&invite.to_text(), [42; 32]);
        assert!(!sim.run(seconds(5)));
        let refused = sim.audited(AuditEvent::Refused);
        let record = refused.iter().find(|record| record.reason == Some(reason)).expect("a record");
        assert_eq!((record.count, &record.token), (1, &Some(invite.id())));
    }
    assert_eq!((durable(&sim), sim.answers()), (before, answers));
    // A token of another server has no valid MAC1 here, so there is nothing to log.
    let other = Sim::new(81).invite();
    let lines = sim.audit.len();
    sim.nodes.clear();
    sim.join(&other.to_text());
    assert!(!sim.run(seconds(5)));
    assert_eq!(sim.answers(), answers);
    assert!(sim.audit.len() <= lines + 4, "what was counted before is told");
}

#[test]
fn a_token_revoked_half_way_is_told_inside_the_session() {
    let mut sim = Sim::new(82);
    let invite = sim.invite();
    let node = sim.join(&invite.to_text());
    while sim.answers() < 1 {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    sim.admin(|server, now, _, actions| server.revoke_invite(&invite.id(), now, actions).expect("known"));
    assert!(sim.run(seconds(5)));
    assert_eq!(sim.failed(node), JoinError::TokenSpent);
}

#[test]
fn replayed_requests_by_invite_change_nothing_and_tell_nothing() {
    let mut sim = Sim::new(83);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let (address, messages) = (sim.nodes[node].address, sim.sent_by(node));
    let (before, grant) = (durable(&sim), sim.joined(node).clone());
    let lines = sim.audit.len();
    for wait in [0, 20, 86_400] {
        sim.pass(seconds(wait));
        for from in [address, elsewhere()] {
            for message in &messages {
                let answers = sim.ask(from, message);
                // The answer, if any, can be read by the original sender only. It is never longer than the request (the
                // simulated network checks this).
                assert!(answers.len() <= 1);
                assert!(answers.iter().all(|answer| !contains(answer, &grant.preshared_key[..])));
            }
        }
    }
    assert_eq!(durable(&sim), before);
    assert_eq!(sim.peers.len(), 1);
    assert!(sim.audit.len() <= lines + 2, "{:#?}", &sim.audit[lines..]);
    // The replayed request of a removed peer gets no answer any more.
    let key = sim.public_key(node);
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    let before = durable(&sim);
    for message in &messages {
        assert!(sim.ask(elsewhere(), message).is_empty());
    }
    assert_eq!(durable(&sim), before);
}

#[test]
fn a_replayed_initiation_does_not_disturb_a_session_under_way() {
    let mut sim = Sim::new(84);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    let first = sim.nodes[node].client.poll(sim.now, &mut sim.rng).expect("alive").expect("an initiation");
    // The answer gets lost, and the joiner's process starts again a second later. The attacker has recorded the first
    // initiation.
    sim.loss = 100;
    sim.pass(seconds(1));
    sim.loss = 0;
    sim.restart_client(node, &token);
    while sim.answers() < 1 {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    assert!(sim.ask(elsewhere(), &first).is_empty());
    assert!(sim.run(seconds(1)), "at once");
    sim.check(node);
}

#[test]
fn replayed_requests_by_code_in_the_same_and_in_a_later_window() {
    let mut sim = Sim::new(85);
    let code = sim.open(Some("mysecret"), false);
    let node = sim.join(&code);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let (address, messages, before) = (sim.nodes[node].address, sim.sent_by(node), durable(&sim));
    // In the same window: an answered message gets the same answer again while the session lives. From another source
    // it needs a cookie.
    for message in &messages {
        for answer in sim.ask(elsewhere(), message) {
            assert!(answer.len() <= message.len());
        }
        sim.ask(address, message);
    }
    assert_eq!(sim.server.window().expect("open").attempts_left, 5);
    sim.pass(seconds(90));
    sim.open(Some("mysecret"), false);
    for from in [address, elsewhere()] {
        for message in &messages {
            for answer in sim.ask(from, message) {
                assert_eq!(
                    answer.len(),
                    64,
                    "a cookie for its own address at most, or a share for which it has no scalar"
                );
            }
        }
    }
    assert_eq!(durable(&sim), before);
}

#[test]
fn a_stolen_state_file_and_recorded_traffic_enrol_nobody() {
    let mut sim = Sim::new(86);
    let used = sim.invite_with(InviteOptions::default().with_uses(2));
    let unused = sim.invite();
    let node = sim.join(&used.to_text());
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    sim.restart_server();
    // The complete stored state, in the store's own format, in which each key is 32 consecutive bytes.
    let state = sim.kept().load().expect("readable").expect("something");
    let rustguard_enroll::store::State { time: _, serial: _, leases, invites, released, removed } = state;
    let invites: Vec<_> = invites.into_values().collect();
    let leases: Vec<_> = leases.into_values().collect();
    let (released, removed): (Vec<_>, Vec<_>) = (released.into_values().collect(), removed.into_values().collect());
    let text = postcard::to_allocvec(&(invites, leases, released, removed)).expect("serialisable");
    for invite in [&used, &unused] {
        assert!(contains(&text, &invite.public_key().0), "the public half is there");
        let secret = base32_seed(&invite.to_text());
        assert!(!contains(&text, &secret));
        let key = hash::hash(&[b"RustGuard enrolment v1 invite key", &secret]);
        assert_eq!(StaticSecret::from_bytes(key).public_key(), invite.public_key(), "it is the seed");
        assert!(!contains(&text, &key));
    }
    // Without the seed, the best use of this data is a replay of the recorded message.
    let before = durable(&sim);
    for message in sim.sent_by(node) {
        sim.ask(elsewhere(), &message);
    }
    assert_eq!(durable(&sim), before);
}

/// The seed in an invite's text: bytes 33 to 65 of the decoded base32.
fn base32_seed(text: &str) -> [u8; 32] {
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
    for symbol in text["rg1-".len()..].bytes() {
        let value = match symbol {
            b'a'..=b'z' => symbol - b'a',
            _ => symbol - b'2' + 26,
        };
        (bits, held) = (bits << 5 | u32::from(value), held + 5);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes[33..65].try_into().expect("32 bytes")
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn a_removed_peer_comes_back_by_a_new_invite_only() {
    let mut sim = Sim::new(87);
    let old = sim.invite_with(InviteOptions::default().with_uses(5)).to_text();
    let node = sim.join(&old);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let key = sim.public_key(node);
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    assert!(sim.peers.is_empty());
    sim.pass(seconds(20));
    sim.restart_client(node, &old);
    assert!(sim.run(seconds(5)));
    assert_eq!(sim.failed(node), JoinError::Removed);
    assert_eq!(sim.refusals().last(), Some(&Reason::RemovedPeer));
    assert!(sim.peers.is_empty());
    let new = sim.invite().to_text();
    sim.restart_client(node, &new);
    assert!(sim.run(seconds(30)));
    sim.check(node);
}

#[test]
fn a_removed_peers_grant_is_not_heard_again() {
    let mut sim = Sim::new(94);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    let messages = sim.sent_by(node);
    assert!(messages.iter().all(|message| sim.ask(elsewhere(), message).len() == 1), "the session lives");
    let key = sim.public_key(node);
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    let claim = messages.last().expect("a claim");
    assert!(sim.ask(elsewhere(), claim).is_empty());
    assert!(sim.peers.is_empty());
}

#[test]
fn a_peer_removed_between_its_messages_does_not_get_in() {
    let mut sim = Sim::new(88);
    let token = sim.invite_with(InviteOptions::default().with_uses(2)).to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    sim.pass(seconds(20));
    sim.restart_client(node, &token);
    let answers = sim.answers();
    while sim.answers() == answers {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    let key = sim.public_key(node);
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    assert!(sim.run(seconds(120)));
    assert_eq!(sim.failed(node), JoinError::Removed);
    assert!(sim.peers.is_empty());
}

#[test]
fn a_flood_of_garbage_and_of_valid_macs_while_an_honest_client_joins() {
    let mut sim = Sim::new(89);
    let token = sim.invite().to_text();
    let code = sim.open(Some("mysecret"), false);
    let nodes = [sim.join(&token), sim.join(&code)];
    let before = durable(&sim);
    let mut answered = [0_usize; 3];
    let end = sim.now.instant + seconds(20);
    while !sim.is_done() {
        assert!(sim.step(end), "the honest ones did not get through");
        for _ in 0..300 {
            let spoofed = SocketAddr::new(IpAddr::from(sim.rng.random::<u32>().to_be_bytes()), 7);
            // Garbage of each type, then the same with a valid MAC1.
            let kind = sim.rng.random_range(0x4567_7201_u32..=0x4567_7209);
            let mut message = vec![0; *[116, 1212, 1232].get(sim.rng.random_range(0..3)).expect("one of three")];
            sim.rng.fill_bytes(&mut message);
            message[..4].copy_from_slice(&kind.to_le_bytes());
            answered[0] += sim.ask(spoofed, &message).len();
            message.resize(1232, 0);
            message[..4].copy_from_slice(&0x4567_7201_u32.to_le_bytes());
            sign(&sim, &mut message);
            answered[1] += sim.ask(spoofed, &message).len();
            answered[2] += 1;
        }
    }
    nodes.iter().for_each(|&node| sim.check(node));
    assert_eq!(answered[0], 0, "garbage gets no answer");
    assert!(answered[1] > 0 && answered[1] < answered[2], "the flood gets cookies, once it is one");
    assert_eq!(durable(&sim).1, before.1 + 2);
    // 20 s at most, with one line in ten seconds for each effect of the flood.
    assert!(sim.audit.len() < 15, "{:#?}", sim.audit);
}

#[test]
fn under_load_an_honest_client_shows_its_cookie() {
    let mut sim = Sim::new(90);
    let token = sim.invite().to_text();
    let mut garbage = vec![0; 1232];
    garbage[..4].copy_from_slice(&0x4567_7201_u32.to_le_bytes());
    sim.delay = 1;
    let node = sim.join(&token);
    let mut cookies = 0;
    while !sim.is_done() {
        for i in 0..400_u32 {
            garbage[100..104].copy_from_slice(&(i + cookies * 400).to_le_bytes());
            sign(&sim, &mut garbage);
            let from = SocketAddr::new(IpAddr::from((0x0b00_0000 + i).to_be_bytes()), 7);
            sim.ask(from, &garbage);
        }
        cookies += 1;
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    sim.check(node);
    let address = sim.nodes[node].address;
    assert!(sim.sent.iter().any(|datagram| datagram.to == address && datagram.bytes.len() == 64), "it got a cookie");
}

#[test]
fn forged_answers_move_nothing() {
    let mut sim = Sim::new(91);
    let token = sim.invite().to_text();
    let code = sim.open(None, false);
    let nodes = [sim.join(&token), sim.join(&code)];
    let mut seen = 0;
    while !sim.is_done() {
        assert!(sim.step(sim.now.instant + seconds(30)));
        // Each answer of the server also arrives modified in one place, before the genuine one. The reply with the
        // share has no authentication of its own. Its protection is an index that only attackers on the path know.
        let fresh = sim.sent[seen..].to_vec();
        for datagram in fresh {
            if datagram.from != server_address() || datagram.bytes[0] == 5 {
                continue;
            }
            for _ in 0..20 {
                let mut bytes = datagram.bytes.clone();
                let at = sim.rng.random_range(0..bytes.len());
                // Only the keys cover the index of the session, so a change is detected one message later.
                if datagram.bytes[0] == 2 && (12..20).contains(&at) {
                    continue;
                }
                bytes[at] ^= 1 << sim.rng.random_range(0..8);
                let forged = Datagram { bytes, ..datagram };
                sim.deliver(&forged);
            }
        }
        seen = sim.sent.len();
    }
    nodes.iter().for_each(|&node| sim.check(node));
}

#[test]
fn changed_requests_move_nothing() {
    let mut sim = Sim::new(92);
    let token = sim.invite().to_text();
    let code = sim.open(None, false);
    let nodes = [sim.join(&token), sim.join(&code)];
    let mut seen = 0;
    while !sim.is_done() {
        assert!(sim.step(sim.now.instant + seconds(30)));
        let fresh = sim.sent[seen..].to_vec();
        for datagram in fresh {
            if datagram.to != server_address() {
                continue;
            }
            for _ in 0..20 {
                let mut bytes = datagram.bytes.clone();
                let at = sim.rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << sim.rng.random_range(0..8);
                let before = durable(&sim);
                sim.ask(elsewhere(), &bytes);
                assert_eq!(durable(&sim), before);
            }
        }
        seen = sim.sent.len();
    }
    nodes.iter().for_each(|&node| sim.check(node));
    assert_eq!(sim.server.window().expect("open").attempts_left, 5);
}

#[test]
fn sessions_are_bounded_and_those_of_one_invite_leave_room_for_others() {
    let mut sim = Sim::new(93);
    sim.delay = 1;
    let crowd = sim.invite_with(InviteOptions::default().with_uses(60_000)).to_text();
    let honest = sim.invite().to_text();
    // A holder of an invite starts again and again, with a new key each time, and never continues.
    let mut answered = 0;
    for i in 0..1200_u32 {
        let mut key = [0; 32];
        key[8..12].copy_from_slice(&i.to_le_bytes());
        let node = sim.join_as(&crowd, key);
        let message = sim.nodes[node].client.poll(sim.now, &mut sim.rng).expect("alive").expect("an initiation");
        let from = SocketAddr::new(IpAddr::from((0x0b00_0000 + i).to_be_bytes()), 7);
        answered += sim.ask(from, &message).iter().filter(|answer| answer.len() > 64).count();
        sim.nodes.clear();
        sim.pass(Duration::from_millis(5));
    }
    assert_eq!(answered, 256, "MAX_PER_INVITE, within the 15 seconds that a session lives");
    let node = sim.join(&honest);
    assert!(sim.run(seconds(5)));
    sim.check(node);
}
