//! Keys that change while nodes run.
use crate::{
    handshakes::{initiation, initiations, node},
    sim::{at, secret, secs, seed_or},
};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::{Action, AddPeerError, Dropped, Event, Node, PeerId},
    wire::Kind,
};
use rustguard_crypto::x25519::PublicKey;
use std::{net::SocketAddr, time::Duration};

/// Gives an initiation to a node, and the node's answer to the initiator. Checks whether there is a session then.
fn shake_hands(
    initiator: &mut Node,
    responder: &mut Node,
    message: &[u8],
    clock: Duration,
    rng: &mut StdRng,
) -> Result<(), Dropped> {
    let (from, now, mut out) = (SocketAddr::from(([203, 0, 113, 1], 1000)), at(clock), Vec::new());
    responder.handle(from, message, now, rng, &mut out)?;
    let is_response = |datagram: &[u8]| Kind::of(datagram) == Some(Kind::Response);
    let answer = out.iter().find_map(|action| match action {
        Action::Send { datagram, .. } if is_response(datagram) => Some(datagram.clone()),
        _ => None,
    });
    let mut done = Vec::new();
    initiator.handle(from, &answer.expect("an answer"), now, rng, &mut done)?;
    assert!(done.iter().any(|action| matches!(action, Action::Event(Event::HandshakeComplete { .. }))));
    Ok(())
}

/// The second initiation of an attempt.
fn next_initiation(node: &mut Node, clock: Duration, rng: &mut StdRng) -> Vec<u8> {
    let mut out = Vec::new();
    node.tick(at(clock), rng, &mut out);
    initiations(&out).first().expect("an initiation").to_vec()
}

/// Two nodes that know each other, with their peers.
fn pair(rng: &mut StdRng) -> [(Node, PeerId); 2] {
    let (ours, theirs) = (secret(rng), secret(rng));
    [node(&ours, theirs.public_key(), rng), node(&theirs, ours.public_key(), rng)]
}

#[test]
fn a_peer_whose_key_changes_keeps_its_session_and_shakes_hands_with_the_new_key() {
    let mut rng = StdRng::seed_from_u64(seed_or(1));
    let [(mut one, other_of_one), (mut other, one_of_other)] = pair(&mut rng);
    let first = initiation(&mut one, other_of_one, secs(1), &mut rng);
    shake_hands(&mut one, &mut other, &first, secs(1), &mut rng).unwrap();

    let (new, stranger) = (secret(&mut rng), secret(&mut rng).public_key());
    let another = other.add_peer(crate::sim::peer_config(stranger)).unwrap();
    assert_eq!(other.set_peer_key(one_of_other, stranger), Err(AddPeerError::Exists(another)));
    assert_eq!(other.set_peer_key(one_of_other, other.public_key().unwrap()), Err(AddPeerError::OwnKey));
    let old = one.public_key().unwrap();
    other.set_peer_key(one_of_other, new.public_key()).unwrap();
    assert_eq!((other.peer_by_key(&new.public_key()), other.peer_by_key(&old)), (Some(one_of_other), None));

    // A node that has only the old key gets no answer any more.
    let late = initiation(&mut one, other_of_one, secs(10), &mut rng);
    let refused = shake_hands(&mut one, &mut other, &late, secs(10), &mut rng);
    assert_eq!(refused, Err(Dropped::UnknownPeer));

    let mut out = Vec::new();
    one.set_private_key(Some(new), &mut out);
    let kept = |out: &[Action]| !out.iter().any(|action| matches!(action, Action::RemoveOpener { .. }));
    assert!(kept(&out), "sessions stay");
    let again = initiation(&mut one, other_of_one, secs(20), &mut rng);
    shake_hands(&mut one, &mut other, &again, secs(20), &mut rng).unwrap();
    let back = initiation(&mut other, one_of_other, secs(30), &mut rng);
    shake_hands(&mut other, &mut one, &back, secs(30), &mut rng).unwrap();
}

#[test]
fn a_node_with_two_keys_is_known_by_both() {
    let mut rng = StdRng::seed_from_u64(seed_or(2));
    let [(mut one, other_of_one), (mut other, one_of_other)] = pair(&mut rng);
    let (old, new, psk) = (one.public_key().unwrap(), secret(&mut rng), [7; 32]);
    let their_key: PublicKey = other.public_key().unwrap();
    one.set_second_private_key(Some(new.clone()), true, [(their_key, psk)], &mut Vec::new());

    // With the first key, as before.
    let by_first = initiation(&mut other, one_of_other, secs(1), &mut rng);
    shake_hands(&mut other, &mut one, &by_first, secs(1), &mut rng).unwrap();
    // With the second key, and the preshared key that belongs to it.
    other.set_peer_key(one_of_other, new.public_key()).unwrap();
    let without_psk = initiation(&mut other, one_of_other, secs(10), &mut rng);
    let refused = shake_hands(&mut other, &mut one, &without_psk, secs(10), &mut rng);
    assert_eq!(refused, Err(Dropped::Forged), "the answer has another preshared key");
    other.set_preshared_key(one_of_other, psk);
    let by_second = initiation(&mut other, one_of_other, secs(20), &mut rng);
    shake_hands(&mut other, &mut one, &by_second, secs(20), &mut rng).unwrap();

    // An attempt alternates between both keys, because it does not know which one the other end knows.
    let first = initiation(&mut one, other_of_one, secs(30), &mut rng);
    let refused = shake_hands(&mut one, &mut other, &first, secs(30), &mut rng);
    assert_eq!(refused, Err(Dropped::UnknownPeer));
    let second = next_initiation(&mut one, secs(36), &mut rng);
    shake_hands(&mut one, &mut other, &second, secs(36), &mut rng).unwrap();

    // The second key is removed.
    one.set_second_private_key(None, true, [], &mut Vec::new());
    let too_late = initiation(&mut other, one_of_other, secs(50), &mut rng);
    assert_eq!(shake_hands(&mut other, &mut one, &too_late, secs(50), &mut rng), Err(Dropped::Mac1));
    other.set_peer_key(one_of_other, old).unwrap();
    other.set_preshared_key(one_of_other, [0; 32]);
    let by_first = initiation(&mut other, one_of_other, secs(60), &mut rng);
    shake_hands(&mut other, &mut one, &by_first, secs(60), &mut rng).unwrap();
}

/// Several nodes may have the second key: none of them begins a handshake with it, or the peer would take its answers
/// there. The preshared keys with it may be set later, peer by peer.
#[test]
fn a_second_key_that_only_answers_begins_no_handshake() {
    let mut rng = StdRng::seed_from_u64(seed_or(8));
    let [(mut one, other_of_one), (mut other, one_of_other)] = pair(&mut rng);
    let second = secret(&mut rng);
    one.set_second_private_key(Some(second.clone()), false, [], &mut Vec::new());
    one.set_second_preshared_key(other_of_one, [7; 32]);
    other.set_peer_key(one_of_other, second.public_key()).unwrap();
    other.set_preshared_key(one_of_other, [7; 32]);
    let by_second = initiation(&mut other, one_of_other, secs(1), &mut rng);
    shake_hands(&mut other, &mut one, &by_second, secs(1), &mut rng).unwrap();

    let first = initiation(&mut one, other_of_one, secs(30), &mut rng);
    assert_eq!(shake_hands(&mut one, &mut other, &first, secs(30), &mut rng), Err(Dropped::UnknownPeer));
    let again = next_initiation(&mut one, secs(36), &mut rng);
    assert_eq!(shake_hands(&mut one, &mut other, &again, secs(36), &mut rng), Err(Dropped::UnknownPeer));

    // A peer that knows this node by its own key takes the other key for that of another node. It is not answered
    // there while it has a session here.
    other.set_peer_key(one_of_other, one.public_key().unwrap()).unwrap();
    other.set_preshared_key(one_of_other, [0; 32]);
    let by_first = initiation(&mut other, one_of_other, secs(40), &mut rng);
    shake_hands(&mut other, &mut one, &by_first, secs(40), &mut rng).unwrap();
    // Its keepalives come every 25 seconds.
    one.activity_of(other_of_one).unwrap().keepalive_received(at(secs(55)).instant, 32);
    other.set_peer_key(one_of_other, second.public_key()).unwrap();
    other.set_preshared_key(one_of_other, [7; 32]);
    let beside = initiation(&mut other, one_of_other, secs(60), &mut rng);
    assert_eq!(shake_hands(&mut other, &mut one, &beside, secs(60), &mut rng), Err(Dropped::OtherKey));
    // It has restarted without the session, and is silent.
    let alone = initiation(&mut other, one_of_other, secs(86), &mut rng);
    shake_hands(&mut other, &mut one, &alone, secs(86), &mut rng).unwrap();
}

/// A peer that knows both keys has two peers for this node, but gets one session: packets of one would arrive in the
/// session of the other. A peer that knows only the second key, because it has restarted with an older state, waits for
/// a few seconds.
#[test]
fn a_peer_that_knows_both_keys_gets_no_session_with_the_second_beside_one_with_the_first() {
    let mut rng = StdRng::seed_from_u64(seed_or(7));
    let [(mut one, other_of_one), (mut other, one_of_other)] = pair(&mut rng);
    let second = secret(&mut rng);
    let of_second = other.add_peer(crate::sim::peer_config(second.public_key())).unwrap();
    let before = initiation(&mut one, other_of_one, secs(1), &mut rng);
    shake_hands(&mut one, &mut other, &before, secs(1), &mut rng).unwrap();
    one.set_second_private_key(Some(second.clone()), true, [], &mut Vec::new());

    // Also if the second key was set after the handshake with the first.
    let soon = initiation(&mut other, of_second, secs(3), &mut rng);
    assert_eq!(shake_hands(&mut other, &mut one, &soon, secs(3), &mut rng), Err(Dropped::OtherKey));
    let late = initiation(&mut other, of_second, secs(7), &mut rng);
    shake_hands(&mut other, &mut one, &late, secs(7), &mut rng).unwrap();

    // In both roles: for the node that answers with the first key, and for the node that is answered.
    let by_first = initiation(&mut other, one_of_other, secs(20), &mut rng);
    shake_hands(&mut other, &mut one, &by_first, secs(20), &mut rng).unwrap();
    let soon = initiation(&mut other, of_second, secs(24), &mut rng);
    assert_eq!(shake_hands(&mut other, &mut one, &soon, secs(24), &mut rng), Err(Dropped::OtherKey));
    let by_first = initiation(&mut one, other_of_one, secs(30), &mut rng);
    shake_hands(&mut one, &mut other, &by_first, secs(30), &mut rng).unwrap();
    // This record survives another call about the second key.
    one.set_second_private_key(Some(second), true, [], &mut Vec::new());
    let soon = initiation(&mut other, of_second, secs(32), &mut rng);
    assert_eq!(shake_hands(&mut other, &mut one, &soon, secs(32), &mut rng), Err(Dropped::OtherKey));
    let late = initiation(&mut other, of_second, secs(36), &mut rng);
    shake_hands(&mut other, &mut one, &late, secs(36), &mut rng).unwrap();
}

/// The handshakes before the change were with the key that is now the second one.
#[test]
fn who_had_a_handshake_just_before_the_key_changed_may_have_another_at_once() {
    let mut rng = StdRng::seed_from_u64(seed_or(8));
    let [(mut one, other_of_one), (mut other, one_of_other)] = pair(&mut rng);
    let old = secret(&mut rng);
    one.set_private_key(Some(old.clone()), &mut Vec::new());
    other.set_peer_key(one_of_other, old.public_key()).unwrap();
    let before = initiation(&mut one, other_of_one, secs(1), &mut rng);
    shake_hands(&mut one, &mut other, &before, secs(1), &mut rng).unwrap();
    one.set_private_key(Some(secret(&mut rng)), &mut Vec::new());
    one.set_second_private_key(Some(old), true, [], &mut Vec::new());
    let soon = initiation(&mut other, one_of_other, secs(2), &mut rng);
    shake_hands(&mut other, &mut one, &soon, secs(2), &mut rng).unwrap();
}
