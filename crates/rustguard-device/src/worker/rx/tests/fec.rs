//! Packets that are rebuilt from parities, and useless parities. See [`rustguard_core::fec`].

use super::*;
use crate::{
    fec::Outgoing,
    seal::{Batch, Ecn, fec::Outbound},
};

/// A packet that contains this number and has `len` bytes.
fn numbered(number: u8, len: u8) -> Vec<u8> {
    let mut packet = packet(1).to_vec();
    packet.resize(len.into(), number);
    packet[3] = len;
    packet
}

/// The datagrams of a run with these packets, with a parity for every seven packets.
fn sent(lab: &Lab, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let net = MemoryNet::default();
    let (mut from, mut at) =
        (net.bind("192.0.2.1:1".parse().unwrap()).unwrap(), net.bind("192.0.2.2:2".parse().unwrap()).unwrap());
    let peer = PeerShared::new(PeerId(9), PublicKey([9; 32]), Arc::default());
    peer.way.store(Some(Arc::new(Endpoint::new("192.0.2.2:2".parse().unwrap()).into())));
    peer.outgoing_parities.store(Some(Arc::new(Outgoing::new(INDEX, 7))));
    let (mut slab, mut frames, mut parities) = (Vec::new(), Vec::new(), Outbound::default());
    for packet in packets {
        let offset = slab.len() + HEADER_LEN;
        slab.resize(offset, 0);
        slab.extend_from_slice(packet);
        slab.resize(slab.len() + TAG_LEN, 0);
        frames.push(Frame { offset, len: packet.len(), counter: 0 });
    }
    let reserved = lab.peer.reserve(MADE, packets.len()).unwrap();
    let mut batch = Batch {
        slab: &mut slab,
        transmits: &mut Vec::new(),
        relayed: None,
        parities: Some(&mut parities),
        lane: None,
        table: &lab.table,
        now: MADE,
        shared: &lab.shared,
    };
    assert!(batch.seal_with(&lab.peer, &reserved, &peer, &mut frames, Ecn::Packets));
    parities.send(&mut from, &lab.table, &lab.shared);
    assert_eq!(peer.parities.sent() as usize, packets.len() / 7);
    let (mut slab, mut received) = (vec![0; at.recv_slab_len()], Vec::new());
    at.recv(&mut slab, &mut received).unwrap();
    let spans = received.iter().flat_map(|received| received.segments.pieces());
    spans.map(|span| slab[span.offset..span.offset + span.len].to_vec()).collect()
}

/// A laboratory whose peer may send parities.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.shared.sessions.pin().get(INDEX).unwrap().accept_parities();
    lab
}

fn peer(lab: &Lab) -> &PeerShared {
    &lab.table.peers[&PeerId(1)]
}

/// These datagrams without the lost ones.
fn without<'a>(datagrams: &'a [Vec<u8>], lost: &[usize]) -> Vec<&'a [u8]> {
    let left = datagrams.iter().enumerate().filter(|(n, _)| !lost.contains(n));
    left.map(|(_, datagram)| &datagram[..]).collect()
}

#[test]
fn a_packet_that_was_lost_reaches_the_host_in_its_place() {
    for lost in 0..8 {
        let mut lab = lab();
        let packets: Vec<_> = (0..9).map(|n| numbered(n, 60)).collect();
        let datagrams = sent(&lab, &packets);
        assert_eq!(datagrams.len(), 10, "a parity behind the seventh");
        assert!(datagrams.iter().all(|datagram| datagram.len() == 60 + HEADER_LEN + TAG_LEN));
        let got = lab.receive(&without(&datagrams, &[lost]), NOW);
        assert_eq!(got, (packets.clone(), vec![]), "without {lost}");
        assert_eq!(peer(&lab).parities.rebuilt(), u64::from(lost != 7));
    }
}

#[test]
fn lengths_may_differ() {
    let mut lab = lab();
    let packets: Vec<_> = [60, 61, 44, 90, 33, 90, 90, 90, 90, 90, 90, 90].map(|len| numbered(len, len)).into();
    let datagrams = sent(&lab, &packets);
    assert_eq!(datagrams.len(), 13);
    // A packet's own header contains its length; the bytes after it are padding.
    assert_eq!(lab.receive(&without(&datagrams, &[2]), NOW), (packets, vec![]));
}

#[test]
fn two_that_are_lost_stay_lost_and_one_that_is_late_brings_the_other() {
    let mut lab = lab();
    let packets: Vec<_> = (0..7).map(|n| numbered(n, 60)).collect();
    let datagrams = sent(&lab, &packets);
    let (rest, none) = lab.receive(&without(&datagrams, &[2, 5]), NOW);
    assert_eq!((rest.len(), none), (5, vec![]));
    // Now the group is complete.
    let late = lab.receive(&[&datagrams[5]], NOW);
    assert_eq!(late, (vec![packets[2].clone(), packets[5].clone()], vec![]));
    // The datagram itself arrives late.
    assert_eq!(lab.receive(&[&datagrams[2]], NOW), (vec![], vec![(DropReason::Replayed, 1)]));
}

#[test]
fn a_parity_says_nothing_by_itself() {
    let mut lab = lab();
    let datagrams = sent(&lab, &[0, 1, 2, 3, 4, 5, 6].map(|n| numbered(n, 60)));
    let parity = &datagrams[7][..];
    // Notices of the sending direction.
    while lab.inbox.from_workers.notices.try_recv().is_ok() {}
    for _ in 0..100 {
        assert_eq!(lab.receive(&[parity, parity], NOW), (vec![], vec![]));
    }
    let from = peer(&lab);
    assert!(from.way.load().is_none(), "its source is nothing to go by: it may be a copy");
    assert_eq!(from.activity.rx_bytes(), 0);
    assert!(lab.inbox.from_workers.notices.try_recv().is_err());
    // All packets arrive, and the copies of parities rebuild none of them.
    let (got, drops) = lab.receive(&without(&datagrams, &[]), NOW);
    assert_eq!(got.len(), 7);
    assert!(drops.iter().all(|(reason, _)| *reason == DropReason::Replayed), "{drops:?}");
    assert_eq!(lab.receive(&[parity, parity], NOW), (vec![], drops));
}

#[test]
fn a_forged_parity_costs_a_failed_opening_and_nothing_else() {
    let mut lab = lab();
    let packets: Vec<_> = (0..7).map(|n| numbered(n, 60)).collect();
    let datagrams = sent(&lab, &packets);
    for byte in 8..datagrams[7].len() {
        let mut forged = datagrams[7].clone();
        forged[byte] ^= 1;
        let (got, drops) = lab.receive(&[&forged], NOW);
        assert_eq!((got.len(), &drops[..]), (0, &[(DropReason::Forged, (byte - 7) as u64)][..]));
    }
    let (got, _) = lab.receive(&without(&datagrams, &[3]), NOW);
    assert_eq!(got, packets, "the true one is none the worse for it");
}

#[test]
fn what_is_made_of_a_parity_passes_the_same_checks() {
    let mut lab = lab();
    let mut packets: Vec<_> = (0..7).map(|n| numbered(n, 60)).collect();
    packets[3][15] = 9;
    let datagrams = sent(&lab, &packets);
    let (got, drops) = lab.receive(&without(&datagrams, &[3]), NOW);
    assert_eq!((got.len(), drops), (6, vec![(DropReason::SourceNotAllowed, 1)]));
}

#[test]
fn nothing_is_kept_before_parities_are_accepted() {
    let mut lab = Lab::new();
    let datagrams = sent(&lab, &[0, 1, 2, 3, 4, 5, 6].map(|n| numbered(n, 60)));
    lab.receive(&without(&datagrams, &[3, 7]), NOW);
    assert_eq!(lab.rx.parities.received_len(&lab.rx.slab), lab.rx.slab.len(), "nor is there room for it");
    lab.shared.sessions.pin().get(INDEX).unwrap().accept_parities();
    assert_eq!(lab.receive(&[&datagrams[7]], NOW), (vec![], vec![]));
    assert_eq!(peer(&lab).parities.rebuilt(), 0);
}
