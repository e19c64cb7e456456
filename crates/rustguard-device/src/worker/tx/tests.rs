//! The filter on the host's packets. The test provides the TUN and the network.

use super::*;
use crate::{
    filter::{Origin, Packet, RouteDecision, Verdict},
    shared::{peer::PeerShared, testing},
};
use parking_lot::Mutex;
use rustguard_core::{
    routing::{RouteTable, Target},
    session::{OVERHEAD, Opener},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::{Endpoint, Received, Sent, TAILROOM, TunQueue};
use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
};

/// The length of a text, and the distance to the next one.
const TEXT: usize = 64;
const STRIDE: usize = TEXT + OVERHEAD;
const KEYS: [PublicKey; 2] = [PublicKey([1; 32]), PublicKey([2; 32])];

/// Returns super-packets with these numbers of segments for 10.0.0.1, and keeps the packets that are written to it. The
/// byte behind the addresses is a sequence number.
struct Tun {
    reads: VecDeque<usize>,
    endless: bool,
    next: u8,
    to: [u8; 4],
    written: Arc<Mutex<Vec<Vec<u8>>>>,
    fd: io::PipeReader,
}

impl TunQueue for Tun {
    fn read(&mut self, slab: &mut [u8], at: usize, _: usize) -> io::Result<Option<Segments>> {
        let Some(count) = self.reads.pop_front().or(self.endless.then_some(1)) else { return Ok(None) };
        let offset = at + HEADROOM;
        for piece in 0..count {
            let packet = &mut slab[offset + piece * STRIDE..][..TEXT];
            packet.fill(0);
            (packet[0], packet[3], packet[20]) = (0x45, TEXT as u8, self.next);
            packet[12..16].copy_from_slice(&[10, 0, 0, 9]);
            packet[16..20].copy_from_slice(&self.to);
            self.next = self.next.wrapping_add(1);
        }
        Ok(Some(Segments { offset, stride: STRIDE, count, len: TEXT, last_len: TEXT }))
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        self.written
            .lock()
            .extend(packets.iter().map(|packet| slab[packet.offset..packet.offset + packet.len].to_vec()));
        Ok(0)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn max_read(&self) -> usize {
        HEADROOM + 16 * STRIDE + TAILROOM
    }
}

/// Keeps the port and the datagrams of each transmit.
#[derive(Default)]
struct Net(Vec<(u16, Vec<Vec<u8>>)>);

impl Network for Net {
    fn recv(&mut self, _: &mut [u8], _: &mut Vec<Received>) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.0.extend(batch.iter().map(|Transmit { to, segments, .. }| {
            (
                to.remote.port(),
                segments.pieces().map(|piece| slab[piece.offset..piece.offset + piece.len].to_vec()).collect(),
            )
        }));
        Sent::default()
    }

    fn fd(&self, _: usize) -> Option<BorrowedFd<'_>> {
        None
    }

    fn recv_slab_len(&self) -> usize {
        0
    }
}

/// The result of one batch.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The peer's port, and the sequence numbers of the packets in each transmit.
    sent: Vec<(u16, Vec<u8>)>,
    /// The sequence numbers of packets that came back to the host.
    back: Vec<u8>,
    drops: Vec<(DropReason, u64)>,
}

/// Runs a batch of these reads. Peer 1 has 10.0.0.1; both peers have sessions.
fn batch(reads: &[usize], endless: bool, filter: Option<fn(&Packet<'_>) -> Verdict>) -> Outcome {
    batch_to([10, 0, 0, 1], reads, endless, filter, |_| {}).0
}

/// The same for this address, with peers that `change` has modified. Also returns all that is written to the TUN:
/// answers are longer than the host's packets.
fn batch_to(
    to: [u8; 4],
    reads: &[usize],
    endless: bool,
    filter: Option<fn(&Packet<'_>) -> Verdict>,
    change: fn(&Table),
) -> (Outcome, Vec<Vec<u8>>) {
    let (mut shared, _inbox) = testing::shared(2);
    shared.filter = filter.map(|filter| Box::new(filter) as crate::filter::Filter);
    let mut table = Table::default();
    let mut openers: Vec<Opener> = Vec::new();
    for (n, key) in (1..).zip(KEYS) {
        let peer = PeerShared::new(PeerId(n), key, Arc::default());
        let (sealer, opener) = testing::session(7, now());
        openers.push(opener);
        peer.sealer.store(Some(Arc::new(sealer)));
        let remote = ([192, 0, 2, 1], n as u16).into();
        peer.way.store(Some(Arc::new(Endpoint::new(remote).into())));
        table.peers.insert(PeerId(n), Arc::new(peer));
        table.keys.insert(key, PeerId(n));
    }
    let mut routes = RouteTable::default();
    routes.install("10.0.0.1/32".parse().unwrap(), Target::Peer(PeerId(1)));
    table.routes = routes.snapshot();
    table.own_name = Some(rustguard_core::forward::Name::of(&PublicKey([3; 32])));
    change(&table);
    shared.table.store(Arc::new(table));
    let written = Arc::default();
    let (fd, _) = io::pipe().unwrap();
    let tun = Tun { reads: reads.iter().copied().collect(), endless, next: 0, to, written: Arc::clone(&written), fd };
    let mut lanes = Lanes::of(vec![tun]);
    let mut net = Net::default();
    Tx::new(&lanes).run(&mut lanes, &mut net, false, &shared).unwrap();
    let opened = |port: u16, mut datagram: Vec<u8>| {
        let counter = u64::from_le_bytes(datagram[8..16].try_into().unwrap());
        let frame = Frame { offset: HEADER_LEN, len: datagram.len() - OVERHEAD, counter };
        let mut opened = [false];
        openers[usize::from(port) - 1].open(&mut datagram, &[frame], &mut opened);
        assert!(opened[0], "sealed for peer {port}");
        datagram[HEADER_LEN + 20]
    };
    let sent = net
        .0
        .into_iter()
        .map(|(port, datagrams)| (port, datagrams.into_iter().map(|datagram| opened(port, datagram)).collect()));
    let sent = sent.collect();
    let written = written.lock().clone();
    let back = written.iter().filter(|packet| packet.len() == TEXT).map(|packet| packet[20]).collect();
    (Outcome { sent, back, drops: shared.drops.snapshot() }, written)
}

/// Whether this is "destination unreachable, host" about a packet of `TEXT` bytes.
fn is_answer(packet: &[u8], to: [u8; 4]) -> bool {
    packet.len() == 28 + TEXT && packet[12..16] == to && packet[20..22] == [3, 1]
}

#[test]
fn the_host_hears_at_once_that_nobody_has_an_address() {
    let to = [10, 0, 0, 7];
    let (outcome, written) = batch_to(to, &[5, 1], false, None, |_| {});
    assert_eq!((outcome.sent, outcome.drops), (vec![], vec![(DropReason::NoRoute, 6)]));
    assert!(written.len() == 2 && written.iter().all(|packet| is_answer(packet, to)), "one for each read: {written:?}");
    let (outcome, written) = batch_to(to, &[5], false, Some(|_| Verdict::Pass), |_| {});
    assert_eq!((written.len(), outcome.drops), (5, vec![(DropReason::NoRoute, 5)]), "a filter looks at each");
}

#[test]
fn the_host_hears_at_once_that_a_peer_is_nowhere() {
    for with_session in [true, false] {
        let change: fn(&Table) = match with_session {
            true => |table| table.peers[&PeerId(1)].way.store(None),
            false => |table| {
                table.peers[&PeerId(1)].way.store(None);
                table.peers[&PeerId(1)].sealer.store(None);
            },
        };
        let (outcome, written) = batch_to([10, 0, 0, 1], &[2], false, None, change);
        assert_eq!((outcome.sent, outcome.drops), (vec![], vec![(DropReason::NoEndpoint, 2)]));
        assert!(written.len() == 2 && written.iter().all(|packet| is_answer(packet, [10, 0, 0, 1])));
    }
}

/// A relay that is reached through another one for a while is no reason for programs to give up. The choice of ways
/// sees data without an answer, as with other losses.
#[test]
fn what_is_for_a_relay_behind_another_is_lost_on_its_way() {
    let change: fn(&Table) = |table| {
        for (peer, relay) in [(1, 2), (2, 1)] {
            table.peers[&PeerId(peer)].way.store(Some(Arc::new(crate::way::Way::Relayed(PeerId(relay)))));
        }
    };
    let (outcome, written) = batch_to([10, 0, 0, 1], &[2], false, None, change);
    assert_eq!((outcome.sent, outcome.drops, written), (vec![], vec![(DropReason::ForwardNoWay, 2)], vec![]));
}

#[test]
fn what_is_for_all_is_neither_answered_nor_counted() {
    for to in [[224, 0, 0, 251], [239, 1, 2, 3], [255, 255, 255, 255]] {
        let (outcome, written) = batch_to(to, &[3], false, None, |_| {});
        assert_eq!((written.len(), outcome.sent, outcome.drops), (0, vec![], vec![]), "{to:?}");
    }
}

#[test]
fn answers_have_a_limit() {
    let (outcome, written) = batch_to([10, 0, 0, 7], &[1; 64], false, None, |_| {});
    assert_eq!(outcome.drops, [(DropReason::NoRoute, 64)]);
    assert!((50..64).contains(&written.len()), "a burst, and what the time brings: {}", written.len());
}

#[test]
fn without_a_filter_a_super_packet_has_one_way() {
    let expected = Outcome { sent: vec![(1, (0..9).collect())], back: vec![], drops: vec![] };
    assert_eq!(batch(&[5, 4], false, None), expected);
    assert_eq!(batch(&[5, 4], false, Some(|_| Verdict::Pass)), expected);
}

#[test]
fn a_filter_sees_each_packet_of_a_super_packet_and_what_is_left_of_it_stays_together() {
    let seen = batch(
        &[12],
        false,
        Some(|packet| {
            assert_eq!((packet.origin, packet.route), (Origin::Host, RouteDecision::Forward(KEYS[0])));
            assert_eq!((packet.bytes.len(), packet.head.len), (TEXT, TEXT));
            match packet.bytes[20] {
                3 => Verdict::Drop,
                6 => Verdict::Bounce,
                7 => Verdict::Deliver,
                9 | 10 => Verdict::Forward(KEYS[1]),
                11 => Verdict::Forward(PublicKey([7; 32])),
                _ => Verdict::Pass,
            }
        }),
    );
    let sent = vec![(1, vec![0, 1, 2]), (1, vec![4, 5]), (1, vec![8]), (2, vec![9, 10])];
    let drops = vec![(DropReason::NoRoute, 1), (DropReason::Filtered, 1)];
    assert_eq!(seen, Outcome { sent, back: vec![6, 7], drops });
}

#[test]
fn what_is_read_after_something_that_goes_back_does_not_overwrite_it() {
    let seen = batch(
        &[1, 2, 1, 1],
        false,
        Some(|packet| match packet.bytes[20] {
            0 | 2 | 3 => Verdict::Bounce,
            _ => Verdict::Pass,
        }),
    );
    assert_eq!(seen, Outcome { sent: vec![(1, vec![1]), (1, vec![4])], back: vec![0, 2, 3], drops: vec![] });
}

#[test]
fn a_host_whose_packets_are_all_dropped_does_not_keep_the_worker() {
    for filter in [(|_| Verdict::Drop) as fn(&Packet<'_>) -> Verdict, |_| Verdict::Bounce] {
        let Outcome { sent, back, drops } = batch(&[], true, Some(filter));
        let dropped: u64 = drops.iter().map(|&(_, n)| n).sum();
        assert_eq!((sent.len(), back.len() + dropped as usize), (0, BATCH));
    }
}
