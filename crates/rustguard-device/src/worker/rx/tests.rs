//! Packets that a worker drops, and the counter of each reason. The test provides time and datagrams.

use super::*;
use crate::shared::{peer::PeerShared, table::Table, testing};
use rustguard_core::{
    cookie::{Maker, Standing},
    node::{Action, Dropped, Node, PeerId},
    noise::WIREGUARD,
    routing::{RouteTable, SourceRule},
    session::{REPLAY_WINDOW, Sealer},
    time::Now,
    wire::{INITIATION_LEN, Initiation, Message},
};
use rustguard_crypto::{
    aead::TAG_LEN,
    x25519::{PublicKey, StaticSecret},
};
use rustguard_tun::{
    Endpoint, Segments,
    memory::{self, MemoryHost, MemoryNet},
};
use std::{sync::Arc, time::Duration};

/// When the session was made.
const MADE: Instant = Instant::from_nanos(1_000_000_000);
const INDEX: u32 = 0x1234_5678;

/// A worker's receiving direction with one session, and the peer at the other end.
struct Lab {
    rx: Rx,
    lanes: Lanes,
    host: MemoryHost,
    table: Table,
    shared: Shared,
    inbox: testing::Inbox,
    peer: Sealer,
    /// The ECN field of received datagrams.
    ecn: u8,
}

impl Lab {
    /// With room for two handshake messages on their way to control.
    fn new() -> Self {
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(Duration::ZERO)).unwrap();
        let (shared, inbox) = testing::shared(2);
        let (peer, opener) = testing::session(INDEX, MADE);
        let from = Arc::new(PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default()));
        shared.sessions.insert(Arc::new(opener), Arc::clone(&from));
        let mut routes = RouteTable::default();
        routes.permit(PeerId(1), "10.0.0.1/32".parse().unwrap(), SourceRule::Longest);
        let routes = routes.snapshot();
        let table = Table { routes, peers: [(PeerId(1), from)].into_iter().collect(), ..Table::default() };
        let network = MemoryNet::default().bind("192.0.2.2:2".parse().unwrap()).unwrap();
        Self { rx: Rx::new(&network), lanes: Lanes::of(vec![tun]), host, table, shared, inbox, peer, ecn: 0 }
    }

    /// A transport message of the peer.
    fn sealed(&self, text: &[u8]) -> Vec<u8> {
        self.sealed_with(self.peer.reserve(MADE, 1).unwrap().first, text)
    }

    /// The same, with this counter.
    fn sealed_with(&self, counter: u64, text: &[u8]) -> Vec<u8> {
        let mut datagram = [&[0; HEADER_LEN][..], text, &[0; TAG_LEN]].concat();
        self.peer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len: text.len(), counter }]);
        datagram
    }

    /// Receives a batch, `after` the session was made. Returns the packets that the host gets, and all drops so far.
    fn receive(&mut self, datagrams: &[&[u8]], after: Duration) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
        let from = Endpoint::new("192.0.2.1:1".parse().unwrap());
        self.rx.received.clear();
        let mut offset = 0;
        for datagram in datagrams {
            let len = datagram.len();
            self.rx.slab[offset..offset + len].copy_from_slice(datagram);
            let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
            self.rx.received.push(Received { from, segments, ecn: self.ecn });
            offset += len;
        }
        let decision = Decision::new(&self.table, &self.shared);
        self.rx.collect(&mut self.lanes, &decision, MADE + after, &self.shared);
        self.lanes.flush(&mut self.rx.slab).unwrap();
        self.rx.resequence.release(&mut self.lanes, MADE + after).unwrap();
        let mut buffer = [0; 2_048];
        let got = std::iter::from_fn(|| self.host.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()));
        (got.collect(), self.shared.drops.snapshot())
    }
}

/// An IPv4 packet from the last byte of 10.0.0.0/24, as long as padding would make it.
fn packet(from: u8) -> [u8; 32] {
    let mut packet = [0; 32];
    packet[0] = 0x45;
    packet[3] = 32;
    packet[12..20].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, 2]);
    packet
}

mod engine;
mod fec;
mod filtered;
mod forwarded;
mod lanes;
mod probes;
mod reordered;
mod sources;

const NOW: Duration = Duration::ZERO;

#[test]
fn a_good_packet_reaches_the_host_and_no_counter() {
    let mut lab = Lab::new();
    let good = lab.sealed(&packet(1));
    assert_eq!(lab.receive(&[&good], NOW), (vec![packet(1).to_vec()], vec![]));
}

/// Control would switch the session too late for the host's answer: after a restart, the peer could not open the
/// answer.
#[test]
fn the_packet_that_confirms_a_session_is_answered_in_it() {
    for (index, waits, expected) in [(INDEX, false, 9), (INDEX + 1, false, 7), (INDEX, true, 7)] {
        let mut lab = Lab::new();
        let peer = Arc::clone(&lab.shared.sessions.pin().get(INDEX).unwrap().peer);
        let [dead, next] = [7, 9].map(|index| Arc::new(testing::session(index, MADE).0));
        peer.sealer.store(Some(dead));
        {
            let mut waiting = peer.waiting.lock();
            waiting.next = Some((index, next));
            if waits {
                waiting.push(&packet(1), &lab.shared.waiting_bytes);
            }
        }
        let good = lab.sealed(&packet(1));
        assert_eq!(lab.receive(&[&good], NOW), (vec![packet(1).to_vec()], vec![]));
        assert_eq!(peer.sealer.load().as_ref().unwrap().receiver(), expected, "{index:#x}, packets wait: {waits}");
    }
}

#[test]
fn what_is_no_message_is_malformed_and_stops_nothing() {
    let mut lab = Lab::new();
    let good = lab.sealed(&packet(1));
    let nonsense: [&[u8]; 6] = [&[], &[4], &[4, 0, 0], &[5; 64], &[0xff; 1_200], &[4, 0, 1, 0, 0, 0, 0, 0]];
    let batch = [&nonsense[..3], &[&good], &nonsense[3..]].concat();
    let drops = vec![(DropReason::Malformed, 5), (DropReason::Empty, 1)];
    assert_eq!(lab.receive(&batch, NOW), (vec![packet(1).to_vec()], drops));
}

#[test]
fn what_the_routing_engine_claims_goes_to_it_alone_and_is_counted_where_it_finds_no_room() {
    let mut lab = Lab::new();
    lab.shared.is_engine_packet = Some(|packet| packet.get(15) == Some(&9));
    // The source is not allowed for the peer's other packets.
    let claimed = lab.sealed(&packet(9));
    let good = lab.sealed(&packet(1));
    assert_eq!(lab.receive(&[&claimed, &good], NOW), (vec![packet(1).to_vec()], vec![]));
    let (from, got) = lab.inbox.from_workers.engine.try_recv().unwrap();
    assert_eq!((from, &*got), (PeerId(1), &packet(9)[..]));
    let more = [lab.sealed(&packet(9)), lab.sealed(&packet(9)), lab.sealed(&packet(9))];
    let more: Vec<&[u8]> = more.iter().map(Vec::as_slice).collect();
    assert_eq!(lab.receive(&more, NOW), (vec![], vec![(DropReason::EngineQueueFull, 1)]));
    // Forged packets do not reach the engine.
    let mut forged = lab.sealed(&packet(9));
    *forged.last_mut().unwrap() ^= 1;
    while lab.inbox.from_workers.engine.try_recv().is_ok() {}
    lab.receive(&[&forged], NOW);
    assert!(lab.inbox.from_workers.engine.try_recv().is_err());
}

/// Only authentic packets count: a sender of many gets a socket of its own.
#[test]
fn who_knows_no_key_is_not_among_the_busiest() {
    let mut lab = Lab::new();
    let receive = |lab: &mut Lab, batch: &dyn Fn(&Lab) -> Vec<Vec<u8>>| {
        for _ in 0..20 {
            let batch = batch(lab);
            lab.receive(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>(), NOW);
        }
        lab.rx.busy.take().map(|(_, peer)| peer)
    };
    let forged = |lab: &Lab| {
        let mut forged = lab.sealed(&packet(1));
        *forged.last_mut().unwrap() ^= 1;
        vec![forged; 100]
    };
    assert_eq!(receive(&mut lab, &forged), None);
    let replayed = lab.sealed(&packet(1));
    assert_eq!(receive(&mut lab, &|_| vec![replayed.clone(); 100]), None);
    assert_eq!(receive(&mut lab, &|_| vec![vec![4; 64]; 100]), None);
    assert_eq!(receive(&mut lab, &|lab| (0..100).map(|_| lab.sealed(&packet(1))).collect()), Some(PeerId(1)));
}

#[test]
fn an_index_that_nobody_has_is_unknown() {
    let mut lab = Lab::new();
    let good = lab.sealed(&packet(1));
    let mut other = good.clone();
    other[4] ^= 1;
    assert_eq!(lab.receive(&[&other, &good, &other], NOW).1, [(DropReason::UnknownIndex, 2)]);
}

#[test]
fn a_session_is_expired_at_reject_after_time_and_not_before() {
    let mut lab = Lab::new();
    let reject_after = Duration::from_secs(180);
    let (last, late) = (lab.sealed(&packet(1)), lab.sealed(&packet(1)));
    assert_eq!(lab.receive(&[&last], reject_after - Duration::from_nanos(1)).0.len(), 1);
    assert_eq!(lab.receive(&[&late, &late], reject_after), (vec![], vec![(DropReason::SessionExpired, 2)]));
}

#[test]
fn one_bit_anywhere_is_a_forgery() {
    let mut lab = Lab::new();
    let good = lab.sealed(&packet(1));
    // The counter, the text, the tag.
    for at in 8..good.len() {
        let mut forged = good.clone();
        forged[at] ^= 0x10;
        lab.receive(&[&forged], NOW);
    }
    let forged = good.len() as u64 - 8;
    assert_eq!(lab.receive(&[&good], NOW), (vec![packet(1).to_vec()], vec![(DropReason::Forged, forged)]));
}

#[test]
fn a_counter_of_before_is_replayed() {
    let mut lab = Lab::new();
    let first = lab.sealed(&packet(1));
    let second = lab.sealed(&packet(1));
    assert_eq!(lab.receive(&[&second, &first, &first, &second], NOW).0.len(), 2);
    assert_eq!(lab.receive(&[&first], NOW), (vec![], vec![(DropReason::Replayed, 3)]));
}

#[test]
fn what_comes_behind_the_replay_window_is_late() {
    let mut lab = Lab::new();
    let [slow, quick] = [0, REPLAY_WINDOW].map(|counter| lab.sealed_with(counter, &packet(1)));
    let late = vec![(DropReason::Late, 2)];
    assert_eq!(lab.receive(&[&quick, &slow, &slow], NOW), (vec![packet(1).to_vec()], late));
}

#[test]
fn text_that_is_no_ip_is_counted_and_a_keepalive_is_not() {
    let mut lab = Lab::new();
    let texts: [&[u8]; 4] = [b"not IP at all...", &packet(1)[..16], &[0; 16], &[]];
    let datagrams = texts.map(|text| lab.sealed(text));
    let batch = datagrams.each_ref().map(Vec::as_slice);
    assert_eq!(lab.receive(&batch, NOW), (vec![], vec![(DropReason::NotIp, 3)]));
}

#[test]
fn a_source_of_somebody_else_is_not_allowed() {
    let mut lab = Lab::new();
    let (honest, other) = (lab.sealed(&packet(1)), lab.sealed(&packet(9)));
    let expected = (vec![packet(1).to_vec()], vec![(DropReason::SourceNotAllowed, 1)]);
    assert_eq!(lab.receive(&[&other, &honest], NOW), expected);
}

/// Each datagram's own header counts, not the header of the previous run.
#[test]
fn congestion_on_the_way_reaches_the_inner_packet() {
    let mut lab = Lab::new();
    let mut inner = packet(1);
    inner[1] = 0b10;
    for (inner_ecn, outer, expected) in [(2, 3, 3), (2, 0, 2), (0, 3, 0), (2, 1, 1), (3, 0, 3)] {
        inner[1] = inner_ecn;
        lab.ecn = outer;
        let sealed = [lab.sealed(&inner), lab.sealed(&inner)];
        let (got, drops) = lab.receive(&[&sealed[0], &sealed[1]], NOW);
        assert_eq!(got.iter().map(|packet| packet[1]).collect::<Vec<_>>(), [expected; 2]);
        assert_eq!(drops, []);
    }
}

#[test]
fn handshakes_beyond_what_control_can_take_are_counted_and_data_passes() {
    let mut lab = Lab::new();
    let mut initiation = [0; INITIATION_LEN];
    initiation[0] = 1;
    let good = lab.sealed(&packet(1));
    let (got, drops) = lab.receive(&[&initiation, &initiation, &initiation, &initiation, &good], NOW);
    assert_eq!((got.len(), drops), (1, vec![(DropReason::HandshakeQueueFull, 2)]));
    let waiting = std::iter::from_fn(|| lab.inbox.handshakes.try_recv());
    assert_eq!(waiting.map(|message| message.len).collect::<Vec<_>>(), [INITIATION_LEN; 2]);
}

/// Initiations with a valid MAC1 fill their queue, from any claimed address. An initiation with a wrong MAC1 takes no
/// place. An initiation with a cookie has another queue, which control reads first.
#[test]
fn handshakes_of_proven_sources_pass_a_queue_full_of_others() {
    let mut lab = Lab::new();
    let mut rng = rand::rng();
    let now = Now { instant: MADE, unix: Duration::from_secs(1 << 30) };
    let (ours, mut actions) = (StaticSecret::from_bytes([2; 32]), Vec::new());
    let mut node = Node::new(MADE, &mut rng);
    node.set_private_key(Some(ours.clone()), &mut actions);
    let [Action::SetScreen(Some(screen))] = &actions[..] else { panic!("{actions:?}") };
    lab.shared.handshakes.screen.store(Some(Arc::new(screen.clone())));

    let from: std::net::SocketAddr = "192.0.2.1:1".parse().unwrap();
    let mut maker = Maker::new(&WIREGUARD, &ours.public_key());
    let mut unproven = Initiation::build(1, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
    maker.sign(&mut unproven, MADE);
    let mut invalid = unproven;
    invalid[20] ^= 1;
    // A cookie for the address.
    let replies = (0..100).find_map(|_| {
        actions.clear();
        let dropped = node.handle(from, &unproven, now, &mut rng, &mut actions);
        (dropped == Err(Dropped::CookieSent)).then(|| actions.pop())
    });
    let Some(Some(Action::Reply { datagram })) = replies else { panic!("a cookie reply") };
    let Some(Message::CookieReply(reply)) = Message::parse(&datagram) else { panic!("a cookie reply") };
    assert!(maker.accept(&reply, MADE));
    let mut proven = Initiation::build(2, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
    maker.sign(&mut proven, MADE);

    let mut batch: Vec<&[u8]> = vec![&invalid; 3];
    batch.extend([&unproven[..]; 5]);
    batch.push(&proven);
    // The first invalid initiation goes to control, which counts it.
    let dropped = vec![(DropReason::HandshakeQueueFull, 3), (DropReason::HandshakeRefused, 2)];
    assert_eq!(lab.receive(&batch, NOW), (vec![], dropped));
    let waiting = std::iter::from_fn(|| lab.inbox.handshakes.try_recv()).map(|message| message.standing);
    let expected = [Standing::Proven, Standing::Unproven, Standing::Unproven].map(Some);
    assert_eq!(waiting.collect::<Vec<_>>(), expected);
}
