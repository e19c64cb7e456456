//! Joining a network: both ends have to support networks. Otherwise the machine joins a star.
use crate::sim::{Datagram, Sim, seconds};
use rustguard_enroll::server::{NewPeer, ServerError};

const NETWORK: [u8; 32] = [8; 32];

/// The offsets of the joiner's flags in a datagram, behind the timestamp of an initiation or the nonce of a proof.
const FLAGS_OF_INITIATION: usize = 92 + 12 + 32;
const FLAGS_OF_PROOF: usize = 12 + 32 + 32;
/// The offset of the flags in a grant.
const FLAGS_OF_GRANT: usize = 12 + 1088 + 1;
/// The flag of machines that can be members. In a grant, the flag says that the network's key is present.
const MEMBER: u8 = 2;

fn token(sim: &mut Sim, by_invite: bool) -> String {
    if by_invite { sim.invite().to_text().to_string() } else { sim.open(None, false) }
}

#[test]
fn the_key_of_the_network_goes_to_machines_that_ask_for_it() {
    for by_invite in [true, false] {
        for (network, member) in [(None, false), (None, true), (Some(NETWORK), false), (Some(NETWORK), true)] {
            let mut sim = Sim::new(300);
            sim.restart_server_with(network);
            sim.members = member;
            let token = token(&mut sim, by_invite);
            let node = sim.join(&token);
            assert!(sim.run(seconds(2)), "{network:?}, {member}");
            sim.check(node);
            assert_eq!(sim.joined(node).network, network.filter(|_| member), "{network:?}, {member}");
            let lease = sim.server.ledger().lease(&sim.public_key(node)).expect("a lease");
            assert_eq!(lease.member, network.is_some() && member, "{network:?}, {member}");
        }
    }
}

#[test]
fn a_network_key_of_zeros_is_no_network() {
    let mut sim = Sim::new(301);
    sim.restart_server_with(Some([0; 32]));
    sim.members = true;
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    assert_eq!(sim.joined(node).network, None);
}

/// The issuer of the roster is told of every change, and of nothing else.
#[test]
fn changes_of_members_are_told_once_each() {
    let mut sim = Sim::new(304);
    sim.restart_server_with(Some(NETWORK));
    sim.members = true;
    let told = |sim: &mut Sim| std::mem::take(&mut sim.changes);
    let (token, other) = (sim.invite().to_text(), sim.invite().to_text());
    assert_eq!(told(&mut sim), 0, "an invite is nobody");
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    assert_eq!(told(&mut sim), 1, "somebody came");
    sim.handshake(node);
    sim.restart_client(node, &token);
    assert!(sim.run(seconds(2)));
    assert_eq!(told(&mut sim), 0, "it was there already");
    let key = sim.public_key(node);
    sim.admin(|server, now, _, actions| server.rename_peer(&key, "box", now, actions).expect("known"));
    assert_eq!(told(&mut sim), 1, "another name");
    // An earlier version of the program, and back.
    for member in [false, true] {
        sim.pass(seconds(2));
        sim.members = member;
        sim.restart_client(node, &token);
        assert!(sim.run(seconds(2)));
        assert_eq!(told(&mut sim), 1, "another role");
        assert_eq!(sim.server.ledger().lease(&key).map(|lease| lease.member), Some(member));
    }
    // Adding an existing key by hand changes nothing.
    sim.admin(|server, now, rng, actions| server.add_peer(key, NewPeer::default(), now, rng, actions).expect("known"));
    assert_eq!(told(&mut sim), 0);
    sim.admin(|server, now, _, actions| server.remove_peer(&key, now, actions).expect("known"));
    assert_eq!(told(&mut sim), 1, "somebody was removed");
    sim.join(&other);
    assert!(sim.run(seconds(2)));
    assert_eq!(told(&mut sim), 1);
    sim.pass(seconds(61));
    assert_eq!(told(&mut sim), 1, "somebody never came");
}

/// Each change costs a commit, and a roster for everybody.
#[test]
fn a_machine_that_goes_back_and_forth_is_heard_less_and_less() {
    let mut sim = Sim::new(305);
    sim.restart_server_with(Some(NETWORK));
    sim.members = true;
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    sim.changes = 0;
    let mut said = 0;
    let start = sim.now.instant;
    while sim.now.instant < start + seconds(60) {
        sim.members = !sim.members;
        sim.restart_client(node, &token);
        assert!(sim.run(seconds(2)));
        let lease = sim.server.ledger().lease(&sim.public_key(node)).expect("a lease");
        assert_eq!(sim.joined(node).network.is_some(), lease.member && sim.members, "both know the same");
        said += 1;
        sim.pass(seconds(1));
    }
    assert!(said > 30 && (2..=7).contains(&sim.changes), "{} of {said}", sim.changes);
    // After a quiet time, its next change is accepted at once.
    sim.pass(seconds(600));
    sim.members = !sim.server.ledger().lease(&sim.public_key(node)).expect("a lease").member;
    sim.restart_client(node, &token);
    assert!(sim.run(seconds(2)));
    let lease = sim.server.ledger().lease(&sim.public_key(node)).expect("a lease");
    assert_eq!(lease.member, sim.members);
}

/// The roster has each key once. If a peer had the server's own key, nobody would get a roster any more.
#[test]
fn the_servers_own_key_is_no_peers() {
    let mut sim = Sim::new(306);
    sim.restart_server_with(Some(NETWORK));
    let own = *sim.server.public_key();
    let added = sim.admin(|server, now, rng, actions| server.add_peer(own, NewPeer::default(), now, rng, actions));
    assert!(matches!(added, Err(ServerError::OwnKey)), "{added:?}");
    assert_eq!((sim.server.ledger().leases().len(), sim.changes), (0, 0));
}

#[test]
fn a_machine_of_a_star_becomes_a_member_when_it_joins_again() {
    let mut sim = Sim::new(302);
    let token = sim.invite().to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(2)));
    sim.handshake(node);
    let before = sim.joined(node).clone();
    sim.restart_server_with(Some(NETWORK));
    sim.members = true;
    sim.restart_client(node, &token);
    assert!(sim.run(seconds(2)));
    let after = sim.joined(node);
    assert_eq!((after.network, &after.addresses), (Some(NETWORK), &before.addresses));
    assert_eq!(after.preshared_key, before.preshared_key, "its sessions go on");
}

/// ChaCha20 is a stream cipher: an attacker who knows the position of a flag can flip it in the sealed text. The tags
/// detect this.
#[test]
fn nobody_in_between_makes_a_star_of_a_network_or_a_network_of_a_star() {
    for (by_invite, network, member) in
        [(true, Some(NETWORK), true), (false, Some(NETWORK), true), (true, None, true), (true, Some(NETWORK), false)]
    {
        let mut sim = Sim::new(303);
        sim.restart_server_with(network);
        sim.members = member;
        let token = token(&mut sim, by_invite);
        let node = sim.join(&token);
        let (mut changed, mut seen) = (0, 0);
        // Every datagram arrives twice: first with its flag flipped, then as it was sent.
        while !sim.is_done() {
            assert!(sim.step(sim.now.instant + seconds(5)), "it comes to an end");
            let fresh = sim.sent[seen..].to_vec();
            for sent in fresh {
                let kind = sent.bytes[0];
                let at = match kind {
                    1 => FLAGS_OF_INITIATION,
                    6 => FLAGS_OF_PROOF,
                    9 => FLAGS_OF_GRANT,
                    _ => continue,
                };
                let mut bytes = sent.bytes;
                bytes[at] ^= MEMBER;
                // A wrong proof ends the exchange of its sender. It has no effect if it comes from elsewhere.
                let from = if kind == 6 { "203.0.113.66:666".parse().expect("an address") } else { sent.from };
                let state = |sim: &Sim| (sim.is_done(), sim.sent.len(), sim.server.ledger().leases().len());
                let before = state(&sim);
                sim.deliver(&Datagram { bytes, from, to: sent.to });
                assert_eq!(state(&sim), before, "message {kind}");
                changed += 1;
            }
            seen = sim.sent.len();
        }
        assert!(changed >= 2, "a first message or a proof, and a grant: {changed}");
        assert_eq!(sim.joined(node).network, network.filter(|_| member));
    }
}
