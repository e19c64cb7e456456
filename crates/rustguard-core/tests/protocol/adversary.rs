//! Attacks by somebody on the network path, or with a stolen key.
use crate::sim::{A, B, Sim, secret, seed_or};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{tunnel::Ignored, wire::Kind};
use std::net::SocketAddr;

/// The public keys of a simulation's hosts, as `Sim::new` draws them.
fn public_keys(seed: u64) -> [[u8; 32]; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    [secret(&mut rng).public_key().0, secret(&mut rng).public_key().0]
}

fn has(datagram: &[u8], piece: &[u8]) -> bool {
    datagram.windows(piece.len()).any(|window| window == piece)
}

/// How many bytes are equal at the same place in two datagrams, without type and reserved bytes.
fn alike(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).skip(4).filter(|(one, other)| one == other).count()
}

/// Neither the initiator's key nor equal bytes in later handshakes identify it.
#[test]
fn nothing_on_the_wire_tells_who_initiates() {
    let seed = seed_or(201);
    let mut sim = Sim::new(seed);
    let keys = public_keys(seed);
    let mut initiations = Vec::new();
    for number in 0..2 {
        sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
        sim.run(std::time::Duration::from_secs(1));
        sim.send(A, number);
        sim.run(std::time::Duration::from_secs(1));
    }
    assert_eq!(sim.hosts[B].delivered, [0, 1], "these were handshakes");
    for sent in &sim.sent {
        for key in &keys {
            assert!(!has(&sent.datagram, key), "{:?} holds a public key", sent.kind);
        }
        if sent.kind == Kind::Initiation {
            initiations.push(sent.datagram.clone());
        }
    }
    let [first, second] = &initiations[..] else { panic!("{} initiations", initiations.len()) };
    // Random bytes agree in one of 256 cases; MAC2 is zero in both.
    let same = alike(&first[..132], &second[..132]);
    assert!(same < 10, "{same} of 128 bytes are the same in two handshakes of one initiator");
}

#[test]
fn nothing_inside_is_on_the_wire() {
    let mut sim = Sim::connected(seed_or(202));
    let addresses = [sim.hosts[A].inner.octets(), sim.hosts[B].inner.octets()];
    let before = sim.sent.len();
    for _ in 0..2 {
        // The same packet twice: the ciphertexts must not look the same.
        sim.send(A, 0x5ec2_e7ed);
    }
    let sent = &sim.sent[before..];
    assert_eq!(sent.len(), 2);
    for sent in sent {
        assert!(!has(&sent.datagram, &0x5ec2_e7ed_u32.to_be_bytes()));
        assert!(!addresses.iter().any(|address| has(&sent.datagram, address)));
    }
    let text = |at: usize| &sent[at].datagram[16..];
    assert!(alike(text(0), text(1)) < 10, "equal packets look alike");
}

/// An attacker who sees a packet first can send it from elsewhere. It is authentic, and moves the session, once.
#[test]
fn a_packet_passed_on_from_elsewhere_moves_a_session_until_the_next_one() {
    let mut sim = Sim::connected(seed_or(203));
    let (home, elsewhere) = (sim.hosts[A].address, SocketAddr::from(([198, 51, 100, 9], 9)));
    let peer = sim.hosts[B].peer;
    sim.send(A, 1);
    let caught = sim.intercept().remove(0);
    assert_eq!(sim.give(B, elsewhere, &caught), Ok(()));
    assert_eq!(sim.hosts[B].tunnel.endpoint(peer), Some(elsewhere));
    sim.send(A, 2);
    let next = sim.intercept().remove(0);
    assert_eq!(sim.give(B, home, &next), Ok(()));
    assert_eq!(sim.hosts[B].tunnel.endpoint(peer), Some(home));
    for again in [&caught, &next] {
        assert!(matches!(sim.give(B, elsewhere, again), Err(Ignored::Replay(_))));
        assert_eq!(sim.hosts[B].tunnel.endpoint(peer), Some(home), "a repetition");
    }
}

/// An attacker with a recording, and later the responder's private key, can open the handshake and learn the initiator.
/// The session stays closed.
#[test]
fn a_private_key_and_a_recording_open_no_session() {
    let seed = seed_or(204);
    let mut sim = Sim::new(seed);
    sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
    let initiation = sim.intercept().remove(0);
    assert_eq!(sim.give(B, sim.hosts[A].address, &initiation), Ok(()));
    let response = sim.intercept().remove(0);
    assert_eq!(sim.give(A, sim.hosts[B].address, &response), Ok(()));
    sim.send(A, 1);
    let data = sim.intercept().pop().expect("a packet");

    // The same keys, but other random numbers.
    let mut thief = Sim::new(seed);
    thief.hosts[B].rng = StdRng::seed_from_u64(seed + 1);
    let from = thief.hosts[A].address;
    assert_eq!(thief.give(B, from, &initiation), Ok(()), "the key is the right one");
    let answer = thief.intercept().remove(0);
    let mut attempt = data.clone();
    // The index of the thief's session, which is not authenticated.
    attempt[4..8].copy_from_slice(&answer[4..8]);
    assert_eq!(thief.give(B, from, &attempt), Err(Ignored::Forged));
    assert_eq!(sim.give(B, from, &data), Ok(()), "the recording is sound");
}
