//! Limits of a peer that forwards messages, or claims to.

use super::*;
use crate::seal::{Batch, Ecn, relayed::RelayedRuns};
use rustguard_core::{
    forward::{Header, Name},
    session::Opener,
};
use rustguard_crypto::x25519::StaticSecret;

/// The index of a session with peer 2, whose messages peer 1 forwards.
const INSIDE: u32 = 0x7654_3210;

fn name(peer: u8) -> Name {
    Name::of(&PublicKey([peer; 32]))
}

/// The lab, with the names of peers 1 and 2; this node is 9. Returns the sealer of peer 2 for us.
fn lab() -> (Lab, Sealer) {
    let mut lab = Lab::new();
    let (sealer, opener): (Sealer, Opener) = testing::session(INSIDE, MADE);
    let second = Arc::new(PeerShared::new(PeerId(2), PublicKey([2; 32]), Arc::default()));
    lab.shared.sessions.insert(Arc::new(opener), Arc::clone(&second));
    lab.table.peers.insert(PeerId(2), second);
    for peer in [1, 2] {
        lab.table.names.add(name(peer), PeerId(peer.into()));
    }
    lab.table.own_name = Some(name(9));
    let mut routes = RouteTable::default();
    routes.permit(PeerId(1), "10.0.0.1/32".parse().unwrap(), SourceRule::Longest);
    routes.permit(PeerId(2), "10.0.0.2/32".parse().unwrap(), SourceRule::Longest);
    lab.table.routes = routes.snapshot();
    (lab, sealer)
}

fn seal(sealer: &Sealer, text: &[u8]) -> Vec<u8> {
    let counter = sealer.reserve(MADE, 1).unwrap().first;
    let mut datagram = [&[0; HEADER_LEN][..], text, &[0; TAG_LEN]].concat();
    sealer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len: text.len(), counter }]);
    datagram
}

/// The text in which peer 1 forwards a message.
fn text(to: u8, from: u8, message: &[u8]) -> Vec<u8> {
    [&Header::new(name(to), name(from)).to_bytes()[..], message].concat()
}

fn second(lab: &Lab) -> Arc<PeerShared> {
    Arc::clone(&lab.table.peers[&PeerId(2)])
}

#[test]
fn a_message_that_a_peer_forwards_is_opened_in_the_same_batch_and_once() {
    let (mut lab, inside) = lab();
    let message = seal(&inside, &packet(2));
    let [first, replayed] = [0, 1].map(|_| lab.sealed(&text(9, 2, &message)));
    let direct = lab.sealed(&packet(1));
    let got = lab.receive(&[&direct, &first, &replayed], NOW);
    assert_eq!(got, (vec![packet(1).to_vec(), packet(2).to_vec()], vec![(DropReason::Replayed, 1)]));
    assert_eq!(second(&lab).relayed_by(), Some(PeerId(1)));
}

#[test]
fn a_relay_can_neither_forge_nor_swap_names_nor_nest() {
    let (mut lab, inside) = lab();
    // A message of peer 2's session, which the relay claims to be from itself, a stranger, or us.
    let message = seal(&inside, &packet(2));
    for from in [1, 7, 9] {
        let swapped = lab.sealed(&text(9, from, &message));
        assert_eq!(lab.receive(&[&swapped], NOW).0, Vec::<Vec<u8>>::new(), "from {from}");
    }
    // A message of the relay's own session inside that session.
    let own = lab.sealed(&packet(1));
    let from_another = lab.sealed(&text(9, 2, &own));
    // A message with changed bits.
    let mut broken = message.clone();
    *broken.last_mut().unwrap() ^= 1;
    let forged = lab.sealed(&text(9, 2, &broken));
    // A forwarded message in a forwarded message.
    let deeper = seal(&inside, &text(9, 1, &message));
    let nested = lab.sealed(&text(9, 2, &deeper));
    let (got, drops) = lab.receive(&[&from_another, &forged, &nested], NOW);
    assert_eq!(got, Vec::<Vec<u8>>::new());
    assert_eq!(drops, [(DropReason::Forged, 1), (DropReason::ForwardSender, 4), (DropReason::ForwardNested, 1)]);
    assert!(lab.rx.forward.own.is_empty());
}

#[test]
fn forged_messages_move_nobody() {
    let (mut lab, inside) = lab();
    let mut broken = seal(&inside, &packet(2));
    *broken.last_mut().unwrap() ^= 1;
    let forged = lab.sealed(&text(9, 2, &broken));
    lab.receive(&[&forged], NOW);
    assert!(second(&lab).way.load().is_none());
}

/// One relay cannot fill the queue that other peers' handshakes need.
#[test]
fn handshakes_by_a_relay_leave_room_for_those_of_others() {
    let (mut lab, _) = lab();
    (lab.shared, lab.inbox) = {
        let (shared, inbox) = testing::shared(64);
        let (peer, opener) = testing::session(INDEX, MADE);
        lab.peer = peer;
        shared.sessions.insert(Arc::new(opener), Arc::clone(&lab.table.peers[&PeerId(1)]));
        (shared, inbox)
    };
    let initiation = [&[1, 0, 0, 0][..], &[7; INITIATION_LEN - 4]].concat();
    for _ in 0..500 {
        let forwarded = lab.sealed(&text(9, 2, &initiation));
        lab.receive(&[&forwarded], NOW);
    }
    let (_, drops) = lab.receive(&[&initiation], NOW);
    let full = drops.iter().find(|(reason, _)| *reason == DropReason::HandshakeQueueFull).map(|(_, n)| *n);
    assert_eq!(full, Some(500 - 32 - 8), "half of the queue, and its share of the rest");
    let waiting = std::iter::from_fn(|| lab.inbox.handshakes.try_recv()).collect::<Vec<_>>();
    assert!(waiting.last().is_some_and(|message| matches!(message.from, Sender::Direct(_))));
}

#[test]
fn a_node_that_forwards_sends_one_for_one_and_only_for_whoever_it_is_from() {
    let (mut lab, inside) = lab();
    lab.table.forward = true;
    let other = Arc::new(PeerShared::new(PeerId(3), StaticSecret::from_bytes([3; 32]).public_key(), Arc::default()));
    other.way.store(Some(Arc::new(Endpoint::new("192.0.2.3:3".parse().unwrap()).into())));
    other.sealer.store(Some(Arc::new(testing::session(5, MADE).0)));
    lab.table.names.add(other.name(), PeerId(3));
    let to = other.name();
    lab.table.peers.insert(PeerId(3), other);
    let message = seal(&inside, &packet(2));
    let forward = |from: u8| [&Header::new(to, name(from)).to_bytes()[..], &message].concat();
    let datagrams = [1, 1, 2, 7].map(|from| lab.sealed(&forward(from)));
    let datagrams: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
    let (got, drops) = lab.receive(&datagrams, NOW);
    assert_eq!((got, drops), (vec![], vec![(DropReason::ForwardSender, 2)]));
    let net = MemoryNet::default();
    let (mut from, mut at) =
        (net.bind("192.0.2.2:2".parse().unwrap()).unwrap(), net.bind("192.0.2.3:3".parse().unwrap()).unwrap());
    lab.rx.forward.flush(&mut lab.rx.slab, &mut from, &lab.table, MADE, &lab.shared);
    let (mut slab, mut received) = (vec![0; at.recv_slab_len()], Vec::new());
    at.recv(&mut slab, &mut received).unwrap();
    let lengths: Vec<_> = received.iter().map(|received| received.segments.len).collect();
    assert_eq!(lengths, [datagrams[0].len(); 2], "as many bytes as came in");
}

/// A text that waited for a session with a relay is sealed for another peer already. Meanwhile the relay itself may be
/// reached through a peer.
#[test]
fn a_text_that_waited_for_a_relay_is_not_sealed_for_another_relay() {
    let (lab, _) = lab();
    let relay = second(&lab);
    relay.way.store(Some(Arc::new(Way::Relayed(PeerId(1)))));
    let first = &lab.table.peers[&PeerId(1)];
    first.way.store(Some(Arc::new(Endpoint::new("192.0.2.1:1".parse().unwrap()).into())));
    first.sealer.store(Some(Arc::new(testing::session(5, MADE).0)));
    let (sealer, _) = testing::session(6, MADE);
    let (net, mut relayed) = (MemoryNet::default(), RelayedRuns::default());
    let (mut from, mut at) =
        (net.bind("192.0.2.9:9".parse().unwrap()).unwrap(), net.bind("192.0.2.1:1".parse().unwrap()).unwrap());
    let message = seal(&sealer, &packet(2));
    let (staged, data) = (text(3, 9, &message), packet(2));
    for (texts, sent, refused) in
        [(vec![&staged[..]], 0, 1), (vec![&data[..], &staged], 1, 2), (vec![&data[..], &data], 2, 2)]
    {
        let (mut slab, mut frames) = (Vec::new(), Vec::new());
        for text in &texts {
            let offset = slab.len() + HEADER_LEN;
            slab.resize(offset, 0);
            slab.extend_from_slice(text);
            slab.resize(slab.len() + TAG_LEN, 0);
            frames.push(Frame { offset, len: text.len(), counter: 0 });
        }
        let reserved = sealer.reserve(MADE, texts.len()).unwrap();
        let mut batch = Batch {
            slab: &mut slab,
            transmits: &mut Vec::new(),
            relayed: Some(&mut relayed),
            parities: None,
            lane: None,
            table: &lab.table,
            now: MADE,
            shared: &lab.shared,
        };
        batch.seal_with(&sealer, &reserved, &relay, &mut frames, Ecn::Packets);
        relayed.send(&mut from, &lab.table, &lab.shared);
        let (mut slab, mut received) = (vec![0; at.recv_slab_len()], Vec::new());
        if sent > 0 {
            at.recv(&mut slab, &mut received).unwrap();
        }
        assert_eq!(received.iter().map(|received| received.segments.count).sum::<usize>(), sent);
        assert_eq!(lab.shared.drops.snapshot(), [(DropReason::ForwardNoWay, refused)]);
    }
}
