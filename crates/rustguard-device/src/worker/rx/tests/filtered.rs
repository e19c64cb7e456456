//! The embedder's filter after the source check: each verdict, and that no verdict lets a wrong source pass.

use super::*;
use crate::{
    config::SourceCheck,
    filter::{Origin, Packet, RouteDecision, Verdict},
    relay::RelayRule,
    shared::peer::Bounds,
};
use proptest::prelude::*;
use rustguard_core::{
    packet::take_hop,
    routing::{PeerRoutes, Role, Target},
    session::Opener,
};
use rustguard_tun::memory::MemorySocket;
use std::{cell::RefCell, net::SocketAddr};

/// The peers: the first one sends, the other two receive.
const KEYS: [PublicKey; 3] = [PublicKey([1; 32]), PublicKey([2; 32]), PublicKey([3; 32])];

/// Peers 2 and 3, which receive.
struct Others {
    network: MemorySocket,
    ends: Vec<(MemorySocket, Opener)>,
}

/// Peer n has 10.0.0.n. Packets for 10.0.0.2 and .3 are relayed, packets for .50 go to this host by `Deliver`. All
/// peers have sessions.
fn lab(filter: impl Fn(&Packet<'_>) -> Verdict + Send + Sync + 'static) -> (Lab, Others) {
    let mut lab = Lab::new();
    lab.shared.filter = Some(Box::new(filter));
    lab.table.relay_rule = RelayRule::Always { local: Arc::default() };
    let net = MemoryNet::default();
    let mut routes = RouteTable::default();
    let mut ends = Vec::new();
    for n in 1..=3_u32 {
        let prefix = format!("10.0.0.{n}/32").parse().unwrap();
        routes.permit(PeerId(n), prefix, SourceRule::Longest);
        routes.install(prefix, Target::Peer(PeerId(n)));
        if n > 1 {
            let peer = PeerShared::new(PeerId(n), KEYS[n as usize - 1], Arc::default());
            let (sealer, opener) = testing::session(INDEX, MADE);
            peer.sealer.store(Some(Arc::new(sealer)));
            let at: SocketAddr = format!("192.0.2.{n}:{n}").parse().unwrap();
            peer.way.store(Some(Arc::new(Endpoint::new(at).into())));
            ends.push((net.bind(at).unwrap(), opener));
            lab.table.peers.insert(PeerId(n), Arc::new(peer));
        }
    }
    lab.table.keys = lab.table.peers.iter().map(|(&id, peer)| (peer.public_key(), id)).collect();
    lab.table.routes = routes.snapshot();
    (lab, Others { network: net.bind("192.0.2.9:9".parse().unwrap()).unwrap(), ends })
}

/// Peers, and the packets that they get.
type ForPeers = Vec<(u32, Vec<u8>)>;

/// A packet from 10.0.0.`from` for 10.0.0.`to`, with hops left.
fn for_peer(from: u8, to: u8) -> [u8; 32] {
    let mut packet = packet(from);
    (packet[8], packet[19]) = (64, to);
    packet
}

impl Others {
    /// Sends the packets for these peers, and lists which peer gets which packet, in the order of arrival.
    fn flush(&mut self, lab: &mut Lab) -> ForPeers {
        lab.rx.relay.flush(&mut lab.rx.slab, &mut self.network, &lab.table, MADE, &lab.shared);
        let mut got = Vec::new();
        for (n, (end, opener)) in (2..).zip(&mut self.ends) {
            let (mut slab, mut received) = (vec![0; end.recv_slab_len()], Vec::new());
            while {
                end.recv(&mut slab, &mut received).unwrap();
                !received.is_empty()
            } {
                for Received { segments, .. } in received.drain(..) {
                    for piece in segments.pieces() {
                        let Some(Kind::Data { counter, .. }) = Kind::of(&slab[piece.offset..piece.offset + piece.len])
                        else {
                            panic!("no transport message")
                        };
                        let frame = Frame { offset: piece.offset + HEADER_LEN, len: piece.len - OVERHEAD, counter };
                        let mut opened = [false];
                        opener.open(&mut slab, &[frame], &mut opened);
                        assert!(opened[0], "sealed for peer {n}");
                        got.push((n, slab[frame.offset..frame.offset + frame.len].to_vec()));
                    }
                }
            }
        }
        got
    }
}

fn send(lab: &mut Lab, others: &mut Others, packets: &[[u8; 32]]) -> (Vec<Vec<u8>>, ForPeers) {
    let sealed: Vec<_> = packets.iter().map(|packet| lab.sealed(packet)).collect();
    let (host, _) = lab.receive(&sealed.iter().map(Vec::as_slice).collect::<Vec<_>>(), NOW);
    (host, others.flush(lab))
}

fn a_hop_later(mut packet: [u8; 32]) -> Vec<u8> {
    assert!(take_hop(&mut packet));
    packet.to_vec()
}

#[test]
fn the_filter_sees_the_packet_its_origin_and_the_route() {
    thread_local!(static SEEN: RefCell<Vec<(Origin, RouteDecision, Vec<u8>)>> = const { RefCell::new(Vec::new()) });
    let (mut lab, mut others) = lab(|packet| {
        assert_eq!(packet.head.len, packet.bytes.len());
        SEEN.with_borrow_mut(|seen| seen.push((packet.origin, packet.route, packet.bytes.to_vec())));
        Verdict::Pass
    });
    let mut padded = for_peer(1, 3);
    padded[3] = 27;
    let packets = [for_peer(1, 2), for_peer(1, 50), padded];
    let (host, relayed) = send(&mut lab, &mut others, &packets);
    let seen = SEEN.take();
    let routes = [RouteDecision::Forward(KEYS[1]), RouteDecision::Deliver, RouteDecision::Forward(KEYS[2])];
    let bytes = [&packets[0][..], &packets[1], &padded[..27]];
    assert_eq!(seen.len(), 3);
    for ((seen, routed), bytes) in seen.iter().zip(routes).zip(bytes) {
        assert_eq!((seen.0, seen.1, &seen.2[..]), (Origin::Peer(KEYS[0]), routed, bytes));
    }
    // `Pass` gives the same result as no filter.
    assert_eq!(host, [packets[1].to_vec()]);
    assert_eq!(relayed, [(2, a_hop_later(packets[0])), (3, a_hop_later(padded))]);
    lab.table.relay_rule = RelayRule::Isolate;
    assert_eq!(send(&mut lab, &mut others, &packets[..1]), (vec![], vec![]));
    assert_eq!(SEEN.take()[0].1, RouteDecision::Isolated);
    assert_eq!(lab.shared.drops.snapshot(), [(DropReason::Isolated, 1)]);
}

#[test]
fn each_verdict_does_what_it_says() {
    let (there, here) = (for_peer(1, 2), for_peer(1, 50));
    let cases: [(Verdict, _, _, _); 6] = [
        (Verdict::Deliver, vec![there.to_vec(), here.to_vec()], vec![], vec![]),
        (Verdict::Bounce, vec![there.to_vec(), here.to_vec()], vec![], vec![]),
        (Verdict::Drop, vec![], vec![], vec![(DropReason::Filtered, 2)]),
        (Verdict::Forward(KEYS[2]), vec![], vec![(3, a_hop_later(there)), (3, a_hop_later(here))], vec![]),
        (Verdict::Forward(PublicKey([9; 32])), vec![], vec![], vec![(DropReason::NoRoute, 2)]),
        (Verdict::Pass, vec![here.to_vec()], vec![(2, a_hop_later(there))], vec![]),
    ];
    for (verdict, host, peers, drops) in cases {
        let (mut lab, mut others) = lab(move |_| verdict);
        assert_eq!(send(&mut lab, &mut others, &[there, here]), (host, peers), "{verdict:?}");
        assert_eq!(lab.shared.drops.snapshot(), drops, "{verdict:?}");
    }
}

#[test]
fn what_needs_a_router_goes_to_the_host_though_a_filter_forwards_it() {
    let (mut lab, mut others) = lab(|_| Verdict::Forward(KEYS[1]));
    let last_hop = {
        let mut packet = for_peer(1, 50);
        packet[8] = 1;
        packet
    };
    assert_eq!(send(&mut lab, &mut others, &[last_hop]), (vec![last_hop.to_vec()], vec![]));
}

#[test]
fn a_run_stays_a_run() {
    // The host gets one packet in the middle, and one is dropped. The other packets leave as adjacent datagrams.
    let (mut lab, _) = lab(|packet| match packet.bytes[20] {
        3 => Verdict::Drop,
        5 => Verdict::Deliver,
        _ => Verdict::Forward(KEYS[2]),
    });
    let packets: [[u8; 32]; 8] = std::array::from_fn(|n| {
        let mut packet = for_peer(1, 2);
        packet[20] = n as u8;
        packet
    });
    let sealed: Vec<_> = packets.iter().map(|packet| lab.sealed(packet)).collect();
    lab.receive(&sealed.iter().map(Vec::as_slice).collect::<Vec<_>>(), NOW);
    let table = std::mem::take(&mut lab.table);
    let mut network = Counting::default();
    lab.rx.relay.flush(&mut lab.rx.slab, &mut network, &table, MADE, &lab.shared);
    assert_eq!(network.0, [3, 1, 2], "0 1 2, 4, 6 7");
}

/// Counts the datagrams of each transmit.
#[derive(Default)]
struct Counting(Vec<usize>);

impl Network for Counting {
    fn recv(&mut self, _: &mut [u8], _: &mut Vec<Received>) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, _: &[u8], batch: &[rustguard_tun::Transmit]) -> rustguard_tun::Sent {
        self.0.extend(batch.iter().map(|transmit| transmit.segments.count));
        rustguard_tun::Sent::default()
    }

    fn fd(&self, _: usize) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn recv_slab_len(&self) -> usize {
        0
    }
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let key = prop_oneof![3 => (0..3_usize).prop_map(|n| KEYS[n]), 1 => Just(PublicKey([9; 32]))];
    prop_oneof![
        Just(Verdict::Pass),
        Just(Verdict::Deliver),
        Just(Verdict::Bounce),
        Just(Verdict::Drop),
        key.prop_map(Verdict::Forward)
    ]
}

proptest! {
    /// With any verdicts for any packets, each packet that leaves this node has a source that its sender may use: by
    /// cryptokey routing, or with an engine by the bounds and the announcements.
    #[test]
    fn no_verdict_lets_a_wrong_source_pass(
        answers in proptest::collection::vec(verdicts(), 1..8),
        packets in proptest::collection::vec((0_u8..8, 0_u8..8, 0_u8..3), 1..40),
        engine in proptest::option::of((0_u8..32, any::<bool>(), 0_usize..3)),
        relaying in 0..3,
    ) {
        let mode = engine.map(|(.., mode)| [SourceCheck::Enforce, SourceCheck::Log, SourceCheck::Off][mode]);
        // The engine permits 10.0.0.1/32. The bounds are the prefix of this length around 10.0.0.1.
        let length = engine.map(|(bits, ..)| 27 + bits % 6);
        let role = engine.map(|(_, router, _)| if router { Role::Router } else { Role::Client });
        let may = |source: u8| match (mode, length, role) {
            (Some(mode), Some(length), Some(role)) => {
                let bounded = source >> (32 - length) == 1 >> (32 - length);
                bounded && (source == 1 || (mode != SourceCheck::Enforce && role == Role::Router))
            }
            _ => source == 1,
        };
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let (mut lab, mut others) = lab(move |packet: &Packet<'_>| {
            // The filter does not see packets of other sources.
            assert!(packet.bytes[21] == 1, "asked about {:?}", packet.head);
            answers[asked.fetch_add(1, Ordering::Relaxed) % answers.len()]
        });
        lab.table.relay_rule =
            [RelayRule::Never, RelayRule::Isolate, RelayRule::Always { local: Arc::default() }][relaying as usize].clone();
        if let (Some(mode), Some(length), Some(role)) = (mode, length, role) {
            lab.shared.source_check = mode;
            let net = ipnet::IpNet::new([10, 0, 0, 1].into(), length).unwrap().trunc();
            let config = PeerRoutes { allowed_ips: vec![net], role };
            lab.table.peers[&PeerId(1)].bounds.store(Some(Arc::new(Bounds::new(PeerId(1), &config))));
        }
        let packets: Vec<[u8; 32]> = packets.iter().enumerate().map(|(n, &(source, to, hops))| {
            let mut packet = for_peer(source, to);
            (packet[8], packet[20], packet[21]) = (hops, n as u8, u8::from(may(source)));
            packet
        }).collect();
        let (host, peers) = send(&mut lab, &mut others, &packets);
        let good = packets.iter().filter(|packet| may(packet[15])).count();
        for packet in host.iter().chain(peers.iter().map(|(_, packet)| packet)) {
            prop_assert!(may(packet[15]), "from 10.0.0.{}", packet[15]);
        }
        // Each permitted packet is in exactly one place: at the host, at a peer, or counted. (Peer 1 has no session
        // here: packets back to it wait for one.)
        let mut waiting = lab.table.peers[&PeerId(1)].waiting.lock();
        let staged = std::iter::from_fn(|| waiting.pop(&lab.shared.waiting_bytes)).count();
        let dropped: u64 = lab.shared.drops.snapshot().iter().map(|&(_, n)| n).sum();
        prop_assert_eq!(host.len() + peers.len() + staged + dropped as usize, packets.len());
        prop_assert!(host.len() + peers.len() + staged <= good);
    }
}
