//! Three devices over in-memory transports, A – B – C: which packets B relays from peer to peer, which it leaves to its
//! host, and that C sees no difference.

use super::support::{EXPERIMENT, LONG, Node, at, inner, key};
use ipnet::IpNet;
use rustguard_device::{Device, DropReason, Event, PeerUpdate, Relay, Update};
use rustguard_tun::memory::MemoryNet;
use std::net::{IpAddr, Ipv6Addr};

const MTU: u32 = 1_420;
/// Protocol numbers.
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;

/// Methods for these tests only.
impl Node {
    fn v4(&self) -> IpAddr {
        inner(self.n).into()
    }

    fn v6(&self) -> IpAddr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, self.n.into()).into()
    }

    /// The bytes received from `other`, and sent to it.
    async fn bytes(&self, other: &Self) -> (u64, u64) {
        let status = self.device.status().await.unwrap();
        let peer = status.peers.iter().find(|peer| peer.public_key == key(other.n)).unwrap();
        (peer.rx_bytes, peer.tx_bytes)
    }
}

/// Three devices. A and C have B as a peer, and B has both.
struct Three {
    a: Node,
    b: Node,
    c: Node,
}

fn start(net: &MemoryNet, n: u8, relay: Relay, mtu: u32) -> Node {
    Node::start(net, n, Device::builder().relay(relay).mtu(mtu))
}

fn one(address: IpAddr) -> IpNet {
    address.into()
}

fn any() -> [IpNet; 2] {
    ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]
}

impl Three {
    async fn new(relay: Relay) -> Self {
        Self::with_mtus(relay, [MTU; 3]).await
    }

    async fn with_mtus(relay: Relay, [a, b, c]: [u32; 3]) -> Self {
        let net = MemoryNet::default();
        let a = start(&net, 1, Relay::default(), a);
        let b = start(&net, 2, relay, b);
        let c = start(&net, 3, Relay::default(), c);
        a.knows(&b, &any(), true).await;
        c.knows(&b, &any(), true).await;
        b.knows(&a, &[one(a.v4()), one(a.v6())], true).await;
        b.knows(&c, &[one(c.v4()), one(c.v6())], true).await;
        Self { a, b, c }
    }

    /// Checks that B's host got no packet until now: its next packet is the one that A sends now.
    fn nothing_but_this_reaches_b(&self) {
        let last = packet(self.a.v4(), self.b.v4(), 64, EXPERIMENT, b"the last");
        self.a.host.send(&last).unwrap();
        assert_eq!(self.b.next(), last, "B's host sees something else");
    }

    async fn relayed(&self) -> u64 {
        self.b.device.status().await.unwrap().relayed
    }
}

/// Relays all packets except packets for B's own addresses.
fn always() -> Relay {
    Relay::Always { local: vec![[10, 0, 0, 2].into(), "fd00::2".parse().unwrap()] }
}

/// An IP packet with a correct header checksum.
fn packet(from: IpAddr, to: IpAddr, hops: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [high, low] = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
            let mut packet = vec![0x45, 0, high, low, 0x12, 0x34, 0x40, 0, hops, protocol, 0, 0];
            packet.extend(from.octets().iter().chain(&to.octets()));
            let sum = !sum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
            let mut packet = vec![0x60, 0, 0, 0, high, low, protocol, hops];
            packet.extend(from.octets().iter().chain(&to.octets()));
            packet
        }
        _ => unreachable!("both addresses are of one family"),
    };
    packet.extend(payload);
    packet
}

/// The one's complement sum of all 16-bit words (RFC 1071). Over a header with a correct checksum it is 0xffff.
fn sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

/// `packet` as a router forwards it: one hop less, and a new header checksum.
fn a_hop_later(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] == 0x45 {
        packet[8] -= 1;
        packet[10..12].fill(0);
        let sum = !sum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[7] -= 1;
    }
    packet
}

#[tokio::test]
async fn isolated_peers_reach_the_host_and_not_each_other() {
    let lab = Three::new(Relay::Isolate).await;
    for (from, to) in [(lab.a.v4(), lab.c.v4()), (lab.a.v6(), lab.c.v6()), (lab.a.v4(), lab.a.v4())] {
        lab.a.host.send(&packet(from, to, 64, EXPERIMENT, b"psst")).unwrap();
    }
    // Packets to addresses behind the host go to the host.
    let out = packet(lab.a.v4(), [198, 51, 100, 1].into(), 64, EXPERIMENT, b"out");
    lab.a.host.send(&out).unwrap();
    assert_eq!(lab.b.next(), out);
    lab.nothing_but_this_reaches_b();
    lab.b.has_dropped(DropReason::Isolated, 3).await;
    assert_eq!(lab.relayed().await, 0);
}

#[tokio::test]
async fn a_relayed_packet_loses_a_hop_and_nothing_else() {
    let lab = Three::new(always()).await;
    let (a, c) = (&lab.a, &lab.c);
    // All hop limits, so that the checksum update meets every carry.
    for hops in 2..=255 {
        for (from, to) in [(a.v4(), c.v4()), (a.v6(), c.v6())] {
            let sent = packet(from, to, hops, EXPERIMENT, &[hops; 33]);
            a.host.send(&sent).unwrap();
            let got = c.next();
            assert_eq!(got, a_hop_later(&sent), "{from}, {hops} hops");
            assert!(from.is_ipv6() || sum(&got[..20]) == 0xffff, "the header's checksum");
        }
    }
    let back = packet(c.v4(), a.v4(), 64, EXPERIMENT, b"back");
    c.host.send(&back).unwrap();
    assert_eq!(a.next(), a_hop_later(&back));
    lab.nothing_but_this_reaches_b();
    assert_eq!(lab.relayed().await, 2 * 254 + 1);
}

#[tokio::test]
async fn what_takes_a_router_goes_to_the_host_untouched() {
    // A sends longer packets than B's interface takes. They go to the host, whose kernel handles them.
    let lab = Three::with_mtus(always(), [MTU, 1_280, 1_280]).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    let with_options = {
        let plain = packet(a.v4(), c.v4(), 64, EXPERIMENT, &[1, 1, 1, 0, b'o', b'p', b't']);
        let mut packet = plain;
        packet[0] = 0x46;
        packet[10..12].fill(0);
        let sum = !sum(&packet[..24]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    for (what, sent) in [
        ("IPv4, its last hop", packet(a.v4(), c.v4(), 1, EXPERIMENT, b"one")),
        ("IPv4, no hop left", packet(a.v4(), c.v4(), 0, EXPERIMENT, b"none")),
        ("IPv6, its last hop", packet(a.v6(), c.v6(), 1, EXPERIMENT, b"one")),
        ("IPv4 options", with_options),
        ("IPv6 hop-by-hop options", packet(a.v6(), c.v6(), 64, HOP_BY_HOP, &[EXPERIMENT, 0, 1, 4, 0, 0, 0, 0])),
        ("IPv4, too long", packet(a.v4(), c.v4(), 64, EXPERIMENT, &[7; 1_261])),
        ("IPv6, too long", packet(a.v6(), c.v6(), 64, EXPERIMENT, &[7; 1_241])),
        ("multicast, though C has all addresses", packet(a.v4(), [224, 0, 0, 5].into(), 64, EXPERIMENT, b"all")),
        ("multicast, though C has all addresses", packet(a.v6(), "ff05::2".parse().unwrap(), 64, EXPERIMENT, b"all")),
    ] {
        if what.starts_with("multicast") {
            b.knows(c, &any(), false).await;
        }
        a.host.send(&sent).unwrap();
        assert_eq!(b.next(), sent, "{what}");
    }
    // The longest packet that fits is relayed.
    let fits = packet(a.v4(), c.v4(), 64, EXPERIMENT, &[7; 1_260]);
    a.host.send(&fits).unwrap();
    assert_eq!(c.next(), a_hop_later(&fits));
    lab.nothing_but_this_reaches_b();
    assert_eq!(lab.relayed().await, 1);
}

#[tokio::test]
async fn the_hosts_own_addresses_are_never_relayed() {
    let lab = Three::new(always()).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    b.knows(c, &[any()[0], any()[1], one(b.v4()), one(b.v6())], true).await;
    for (from, to) in [(a.v4(), b.v4()), (a.v6(), b.v6())] {
        let sent = packet(from, to, 64, UDP, b"for B");
        a.host.send(&sent).unwrap();
        assert_eq!(b.next(), sent, "{to}");
    }
    let sent = packet(a.v4(), [198, 51, 100, 7].into(), 64, UDP, b"for somebody behind C");
    a.host.send(&sent).unwrap();
    assert_eq!(c.next(), a_hop_later(&sent));
    assert_eq!(lab.relayed().await, 1);
}

#[tokio::test]
async fn a_source_of_somebody_else_is_not_relayed_but_counted() {
    let lab = Three::new(always()).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    for (from, to) in [(c.v4(), c.v4()), ([10, 9, 9, 9].into(), c.v4()), (b.v6(), c.v6())] {
        a.host.send(&packet(from, to, 64, UDP, b"not mine")).unwrap();
    }
    let honest = packet(a.v4(), c.v4(), 64, UDP, b"mine");
    a.host.send(&honest).unwrap();
    assert_eq!(c.next(), a_hop_later(&honest));
    lab.nothing_but_this_reaches_b();
    assert_eq!(b.dropped(DropReason::SourceNotAllowed).await, 3);
    assert_eq!(lab.relayed().await, 1);
}

#[tokio::test]
async fn a_destination_of_nobody_goes_to_the_host() {
    let lab = Three::new(always()).await;
    let sent = packet(lab.a.v4(), [203, 0, 113, 1].into(), 64, UDP, b"the Internet");
    lab.a.host.send(&sent).unwrap();
    assert_eq!(lab.b.next(), sent);
    assert_eq!(lab.relayed().await, 0);
}

#[tokio::test]
async fn packets_wait_for_the_session_of_the_next_peer_and_arrive_in_order() {
    let net = MemoryNet::default();
    let (a, b) = (start(&net, 1, Relay::default(), MTU), start(&net, 2, always(), MTU));
    a.knows(&b, &any(), true).await;
    b.knows(&a, &[one(a.v4())], false).await;
    // C does not run yet, so that all packets are staged before a session begins.
    let to: IpAddr = [10, 0, 0, 3].into();
    let absent = PeerUpdate::new(key(3));
    let absent = absent.allowed_ip(one(to)).endpoint(at(3));
    b.device.update(Update::new().peer(absent)).await.unwrap();
    // A and B establish their session.
    let first = packet(a.v4(), b.v4(), 64, UDP, b"here I am");
    a.host.send(&first).unwrap();
    assert_eq!(b.next(), first);
    let packets: Vec<_> = (0..100).map(|n| packet(a.v4(), to, 64, UDP, &[n; 40])).collect();
    for packet in &packets {
        a.host.send(packet).unwrap();
    }
    let last = packet(a.v4(), b.v4(), 64, UDP, b"the relay has had them all");
    a.host.send(&last).unwrap();
    assert_eq!(b.next(), last);
    let c = start(&net, 3, Relay::default(), MTU);
    c.knows(&b, &any(), true).await;
    c.host.send(&packet(c.v4(), b.v4(), 64, UDP, b"here I am")).unwrap();
    for packet in &packets {
        assert_eq!(c.next(), a_hop_later(packet));
    }
    assert_eq!(b.device.status().await.unwrap().relayed, 100);
}

#[tokio::test]
async fn a_next_peer_that_is_nowhere_loses_packets_that_are_counted() {
    let lab = Three::new(always()).await;
    let (a, b) = (&lab.a, &lab.b);
    let nowhere = PeerUpdate::new(key(9)).allowed_ip(one([10, 0, 0, 9].into()));
    b.device.update(Update::new().peer(nowhere)).await.unwrap();
    for _ in 0..3 {
        a.host.send(&packet(a.v4(), [10, 0, 0, 9].into(), 64, UDP, b"where?")).unwrap();
    }
    lab.nothing_but_this_reaches_b();
    b.has_dropped(DropReason::NoEndpoint, 3).await;
    // Packets of the host itself are counted under the same reason.
    b.host.send(&packet(b.v4(), [10, 0, 0, 9].into(), 64, UDP, b"where?")).unwrap();
    b.has_dropped(DropReason::NoEndpoint, 4).await;
}

#[tokio::test]
async fn many_datagrams_keep_their_order_and_their_content() {
    let lab = Three::new(always()).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    // Establishes both sessions, each way. While a session begins, later packets may overtake its first ones, which go
    // through the control thread.
    for (from, to) in [(a, c), (c, a)] {
        from.host.send(&packet(from.v4(), to.v4(), 64, UDP, b"first")).unwrap();
        to.next();
    }
    // As many packets as the in-memory queues hold, with all three devices busy: from A to C, from C to A, and some to
    // B.
    let length = |n: u16| usize::from(n) * 7_919 % 1_380;
    let made = |from: &Node, to: &Node, n: u16| {
        let payload: Vec<u8> = n.to_be_bytes().into_iter().cycle().take(2 + length(n)).collect();
        packet(from.v4(), to.v4(), 64, UDP, &payload)
    };
    for round in 0..10 {
        for n in 40 * round..40 * (round + 1) {
            a.host.send(&made(a, c, n)).unwrap();
            c.host.send(&made(c, a, n)).unwrap();
            if n % 4 == 0 {
                a.host.send(&made(a, b, n)).unwrap();
            }
        }
        for n in 40 * round..40 * (round + 1) {
            assert_eq!(c.next(), a_hop_later(&made(a, c, n)), "A to C, number {n}");
            assert_eq!(a.next(), a_hop_later(&made(c, a, n)), "C to A, number {n}");
            if n % 4 == 0 {
                assert_eq!(b.next(), made(a, b, n), "A to B, number {n}");
            }
        }
    }
    lab.nothing_but_this_reaches_b();
    assert_eq!(lab.relayed().await, 802);
}

#[tokio::test]
async fn without_relay_the_host_gets_everything() {
    // With in-memory transports there are no kernel routes, so `Auto` never relays.
    for relay in [Relay::Off, Relay::Auto] {
        let lab = Three::new(relay.clone()).await;
        let (a, b, c) = (&lab.a, &lab.b, &lab.c);
        for (from, to) in [(a.v4(), c.v4()), (a.v6(), c.v6())] {
            let sent = packet(from, to, 64, UDP, b"by the host");
            a.host.send(&sent).unwrap();
            assert_eq!(b.next(), sent, "{relay:?}");
            // If the host forwards it, it reaches C.
            b.host.send(&a_hop_later(&sent)).unwrap();
            assert_eq!(c.next(), a_hop_later(&sent), "{relay:?}");
        }
        assert_eq!(lab.relayed().await, 0, "{relay:?}");
    }
}

#[tokio::test]
async fn the_padding_of_the_sender_is_kept() {
    // A pads packets up to its MTU of 1,400. B alone would pad some of these packets further.
    let lab = Three::with_mtus(always(), [1_400, MTU, MTU]).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    let first = packet(a.v4(), c.v4(), 64, UDP, b"makes the sessions");
    a.host.send(&first).unwrap();
    c.next();
    for len in (0..=64_usize).chain(1_330..=1_380) {
        let padded = (20 + len).next_multiple_of(16).min(1_400) as u64 + 32;
        let mut counted = (0, 0);
        // On a busy machine, a keepalive after ten silent seconds may be counted too; the packet is then sent again.
        for _ in 0..3 {
            let (_, before_a) = a.bytes(b).await;
            let (before_c, _) = c.bytes(b).await;
            a.host.send(&packet(a.v4(), c.v4(), 64, UDP, &vec![1; len])).unwrap();
            assert_eq!(c.next().len(), 20 + len);
            let (_, sent) = a.bytes(b).await;
            let (received, _) = c.bytes(b).await;
            counted = (sent - before_a, received - before_c);
            if counted == (padded, padded) {
                break;
            }
        }
        assert_eq!(counted, (padded, padded), "A's own padding of {len} bytes, to B and on to C");
    }
}

#[tokio::test]
async fn a_peer_that_is_removed_is_no_longer_relayed_to() {
    let lab = Three::new(always()).await;
    let (a, b, c) = (&lab.a, &lab.b, &lab.c);
    // C begins the session. Timestamps are rounded to 16 ms, and C would refuse a second initiation of B within that
    // time.
    c.host.send(&packet(c.v4(), b.v4(), 64, UDP, b"I am here")).unwrap();
    b.next();
    let sent = packet(a.v4(), c.v4(), 64, UDP, b"is C there?");
    a.host.send(&sent).unwrap();
    assert_eq!(c.next(), a_hop_later(&sent));
    let mut events = b.device.events();
    let remove = PeerUpdate::remove(key(c.n));
    b.device.update(Update::new().peer(remove)).await.unwrap();
    a.host.send(&sent).unwrap();
    assert_eq!(b.next(), sent, "no peer has its addresses now");
    // When C is added again, B relays to it again.
    b.knows(c, &[one(c.v4())], true).await;
    a.host.send(&sent).unwrap();
    assert_eq!(c.next(), a_hop_later(&sent));
    let complete = async {
        while !matches!(events.recv().await.unwrap(), Event::HandshakeComplete { peer, .. } if peer == key(c.n)) {}
    };
    tokio::time::timeout(LONG, complete).await.expect("a new session begins");
}
