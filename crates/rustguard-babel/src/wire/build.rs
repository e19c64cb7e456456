//! Writing Babel packets that fit in any path (RFC 8966 §4, RFC 9229).
use crate::{
    name::Name,
    wire::{
        ip::{HEADERS, PATH},
        tlv::{HEADER, MAGIC, NAME_TAG, Timestamps, VERSION, ae, flag, kind, sub},
        types::{Announcement, INFINITY, RouterId, Seqno},
    },
};
use core::net::{Ipv4Addr, Ipv6Addr};
use ipnet::IpNet;

/// The most bytes of a packet: with its headers it fits in the smallest path of IPv6, inside the tunnel.
pub(crate) const MAX_PACKET: usize = PATH - HEADERS;
/// The most bytes that one call adds: Next Hop, Router-Id and an uncompressed update.
const LARGEST: usize = 8 + 12 + 28;
/// Bytes of an Acknowledgment Request, which is added when the packet is complete.
const ACK_REQUEST: usize = 8;

/// Bytes of the longest Name TLV, which is added if there is room for it.
const NAME: usize = 5 + Name::MAX;

/// One packet. Check [`Packet::has_room`] before each addition.
#[derive(Debug)]
pub(crate) struct Packet {
    bytes: Vec<u8>,
    /// The place of the Hello's timestamp.
    hello_timestamp: Option<usize>,
    /// By address encoding: 1, 2, 4.
    default_prefix: [Option<[u8; 16]>; 3],
    router_id: Option<RouterId>,
    /// The last origin whose name was written.
    named: Option<RouterId>,
    next_hop_v4: bool,
}

impl Packet {
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[MAGIC, VERSION, 0, 0]);
        Self {
            bytes,
            hello_timestamp: None,
            default_prefix: [None; 3],
            router_id: None,
            named: None,
            next_hop_v4: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER
    }

    pub(crate) fn has_room(&self) -> bool {
        self.bytes.len() + LARGEST + ACK_REQUEST <= MAX_PACKET
    }

    /// Whether there is room for a name and one more addition.
    pub(crate) fn has_room_for_name(&self) -> bool {
        self.bytes.len() + LARGEST + NAME + ACK_REQUEST <= MAX_PACKET
    }

    /// The packet with its length filled in, and with the sending time, in microseconds, if it contains a Hello.
    pub(crate) fn finish(mut self, now: u32) -> Vec<u8> {
        let len = u16::try_from(self.bytes.len() - HEADER).expect("no longer than a path");
        self.bytes[2..4].copy_from_slice(&len.to_be_bytes());
        if let Some(at) = self.hello_timestamp {
            self.bytes[at..at + 4].copy_from_slice(&now.to_be_bytes());
        }
        self.bytes
    }

    pub(crate) fn ack_request(&mut self, opaque: u16, interval: u16) {
        self.tlv(kind::ACK_REQUEST, |bytes| {
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&opaque.to_be_bytes());
            bytes.extend_from_slice(&interval.to_be_bytes());
        });
    }

    pub(crate) fn ack(&mut self, opaque: u16) {
        self.tlv(kind::ACK, |bytes| bytes.extend_from_slice(&opaque.to_be_bytes()));
    }

    /// A Multicast Hello with a timestamp. There is one sub-TLV only: more would confuse old versions of babeld.
    pub(crate) fn hello(&mut self, seqno: Seqno, interval: u16) {
        self.tlv(kind::HELLO, |bytes| {
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&seqno.0.to_be_bytes());
            bytes.extend_from_slice(&interval.to_be_bytes());
            bytes.extend_from_slice(&[sub::TIMESTAMP, 4, 0, 0, 0, 0]);
        });
        self.hello_timestamp = Some(self.bytes.len() - 4);
    }

    pub(crate) fn ihu(&mut self, address: Ipv6Addr, rxcost: u16, interval: u16, timestamps: Option<Timestamps>) {
        self.tlv(kind::IHU, |bytes| {
            bytes.extend_from_slice(&[ae::LINK_LOCAL, 0]);
            bytes.extend_from_slice(&rxcost.to_be_bytes());
            bytes.extend_from_slice(&interval.to_be_bytes());
            bytes.extend_from_slice(&address.octets()[8..]);
            if let Some(Timestamps { sent, received }) = timestamps {
                bytes.extend_from_slice(&[sub::TIMESTAMP, 8]);
                bytes.extend_from_slice(&sent.to_be_bytes());
                bytes.extend_from_slice(&received.to_be_bytes());
            }
        });
    }

    /// An announcement. IPv4 prefixes have a next hop if this node has an IPv4 address, and are IPv4 via IPv6 otherwise
    /// (RFC 9229 §2.1: without an IPv4 address, other nodes could not use them in any other form).
    pub(crate) fn update(&mut self, prefix: IpNet, route: Announcement, interval: u16, next_hop_v4: Option<Ipv4Addr>) {
        self.origin(route.router_id);
        if let (IpNet::V4(_), Some(address), false) = (prefix, next_hop_v4, self.next_hop_v4) {
            self.next_hop_v4 = true;
            self.tlv(kind::NEXT_HOP, |bytes| {
                bytes.extend_from_slice(&[ae::V4, 0]);
                bytes.extend_from_slice(&address.octets());
            });
        }
        let ae = match prefix {
            IpNet::V4(_) if next_hop_v4.is_none() => ae::V4_VIA_V6,
            IpNet::V4(_) => ae::V4,
            IpNet::V6(_) => ae::V6,
        };
        self.route(ae, prefix, interval, route.seqno, route.metric);
    }

    /// The name of an origin, written once before consecutive updates of that origin.
    pub(crate) fn name(&mut self, router_id: RouterId, name: Name) {
        if self.named != Some(router_id) {
            self.named = Some(router_id);
            self.origin(router_id);
            self.tlv(kind::NAME, |bytes| {
                bytes.extend_from_slice(&NAME_TAG);
                bytes.push(u8::try_from(name.as_bytes().len()).expect("a short name"));
                bytes.extend_from_slice(name.as_bytes());
            });
        }
    }

    /// The origin of the updates and names that follow.
    fn origin(&mut self, router_id: RouterId) {
        if self.router_id != Some(router_id) {
            self.router_id = Some(router_id);
            self.tlv(kind::ROUTER_ID, |bytes| {
                bytes.extend_from_slice(&[0, 0]);
                bytes.extend_from_slice(&router_id.bytes());
            });
        }
    }

    /// A retraction. IPv4 always has encoding 1, which every speaker understands (RFC 9229 §2.1).
    pub(crate) fn retraction(&mut self, prefix: IpNet, interval: u16) {
        let ae = if matches!(prefix, IpNet::V4(_)) { ae::V4 } else { ae::V6 };
        self.route(ae, prefix, interval, Seqno(0), INFINITY);
    }

    /// A retraction of everything that was announced (§4.6.9).
    pub(crate) fn retract_all(&mut self, interval: u16) {
        self.tlv(kind::UPDATE, |bytes| {
            bytes.extend_from_slice(&[ae::WILDCARD, 0, 0, 0]);
            bytes.extend_from_slice(&interval.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0xff, 0xff]);
        });
    }

    pub(crate) fn route_request(&mut self, prefix: Option<IpNet>) {
        self.tlv(kind::ROUTE_REQUEST, |bytes| match prefix {
            None => bytes.extend_from_slice(&[ae::WILDCARD, 0]),
            Some(prefix) => {
                let (ae, octets, until) = parts(prefix);
                bytes.extend_from_slice(&[ae, prefix.prefix_len()]);
                bytes.extend_from_slice(&octets[..until]);
            }
        });
    }

    pub(crate) fn seqno_request(&mut self, prefix: IpNet, router_id: RouterId, seqno: Seqno, hop_count: u8) {
        self.tlv(kind::SEQNO_REQUEST, |bytes| {
            let (ae, octets, until) = parts(prefix);
            bytes.extend_from_slice(&[ae, prefix.prefix_len()]);
            bytes.extend_from_slice(&seqno.0.to_be_bytes());
            bytes.extend_from_slice(&[hop_count, 0]);
            bytes.extend_from_slice(&router_id.bytes());
            bytes.extend_from_slice(&octets[..until]);
        });
    }

    /// An Update TLV. Leading bytes that its prefix has in common with the last one of the same encoding are omitted.
    fn route(&mut self, ae: u8, prefix: IpNet, interval: u16, seqno: Seqno, metric: u16) {
        let (_, octets, until) = parts(prefix);
        let state = match ae {
            ae::V4 => 0,
            ae::V6 => 1,
            _ => 2,
        };
        let omitted = self.default_prefix[state]
            .map_or(0, |default| default.iter().zip(&octets[..until]).take_while(|(one, other)| one == other).count());
        self.default_prefix[state] = Some(octets);
        self.tlv(kind::UPDATE, |bytes| {
            let omitted_byte = u8::try_from(omitted).expect("at most 16");
            bytes.extend_from_slice(&[ae, flag::PREFIX, prefix.prefix_len(), omitted_byte]);
            bytes.extend_from_slice(&interval.to_be_bytes());
            bytes.extend_from_slice(&seqno.0.to_be_bytes());
            bytes.extend_from_slice(&metric.to_be_bytes());
            bytes.extend_from_slice(&octets[omitted..until]);
        });
    }

    pub(crate) fn tlv(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(&[kind, 0]);
        let start = self.bytes.len();
        body(&mut self.bytes);
        self.bytes[start - 1] = u8::try_from(self.bytes.len() - start).expect("TLVs here are short");
    }
}

/// The encoding of a prefix in requests, its address, and how many bytes of it count.
fn parts(prefix: IpNet) -> (u8, [u8; 16], usize) {
    let mut octets = [0; 16];
    let ae = match prefix.trunc() {
        IpNet::V4(net) => {
            octets[..4].copy_from_slice(&net.addr().octets());
            ae::V4
        }
        IpNet::V6(net) => {
            octets = net.addr().octets();
            ae::V6
        }
    };
    (ae, octets, usize::from(prefix.prefix_len()).div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse::Tlvs, tlv::Tlv};
    use proptest::prelude::*;

    const ID: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    fn id(last: u8) -> RouterId {
        RouterId::new([1, 2, 3, 4, 5, 6, 7, last]).expect("a router-id")
    }

    #[test]
    fn everything_but_updates_reads_back() {
        let address: Ipv6Addr = "fe80::1:2:3:4".parse().expect("an address");
        let prefix: IpNet = "10.1.2.0/23".parse().expect("a prefix");
        let mut packet = Packet::new();
        packet.ack_request(7, 20);
        packet.ack(9);
        packet.hello(Seqno(65_535), 30);
        packet.ihu(address, 96, 90, Some(Timestamps { sent: 1, received: 2 }));
        packet.ihu(address, INFINITY, 90, None);
        packet.route_request(None);
        packet.route_request(Some(prefix));
        packet.seqno_request(prefix, id(8), Seqno(3), 64);
        packet.retract_all(100);
        let bytes = packet.finish(0xdead_beef);
        let mut tlvs = Tlvs::new(&bytes).expect("a packet");
        let read: Vec<Tlv> = tlvs.by_ref().collect();
        assert_eq!(tlvs.malformed(), 0);
        assert_eq!(
            read,
            [
                Tlv::AckRequest { opaque: 7, interval: 20 },
                Tlv::Ack { opaque: 9 },
                Tlv::Hello { unicast: false, seqno: Seqno(65_535), interval: 30, sent: Some(0xdead_beef) },
                Tlv::Ihu {
                    address: Some(address.into()),
                    rxcost: 96,
                    interval: 90,
                    timestamps: Some(Timestamps { sent: 1, received: 2 })
                },
                Tlv::Ihu { address: Some(address.into()), rxcost: INFINITY, interval: 90, timestamps: None },
                Tlv::RouteRequest { prefix: None },
                Tlv::RouteRequest { prefix: Some(prefix) },
                Tlv::SeqnoRequest { prefix, router_id: id(8), seqno: Seqno(3), hop_count: 64 },
                Tlv::Retraction { prefix: None },
            ]
        );
    }

    #[test]
    fn a_name_is_said_once_of_an_origin_in_a_row() {
        let name = Name::new(&[b'n'; Name::MAX]).expect("a name");
        let route = |last| Announcement { router_id: id(last), seqno: Seqno(1), metric: 96 };
        let (prefix, mut packet) = ("fd00::/64".parse().expect("a prefix"), Packet::new());
        for last in [1, 1, 2] {
            assert!(packet.has_room_for_name());
            packet.name(id(last), name);
            packet.update(prefix, route(last), 100, None);
        }
        let bytes = packet.finish(0);
        let named = |router_id| Tlv::Name { router_id, name };
        let read: Vec<Tlv> = Tlvs::new(&bytes).expect("a packet").collect();
        assert!(matches!(read[..], [one, Tlv::Update { .. }, Tlv::Update { .. }, two, Tlv::Update { .. }]
            if one == named(id(1)) && two == named(id(2))));
    }

    #[test]
    fn ipv4_goes_by_next_hop_or_by_encoding_4() {
        let prefix: IpNet = "10.1.0.0/16".parse().expect("a prefix");
        let route = Announcement { router_id: RouterId::new(ID).expect("a router-id"), seqno: Seqno(1), metric: 96 };
        for (next_hop, ae) in [(Some(Ipv4Addr::new(10, 0, 0, 1)), ae::V4), (None, ae::V4_VIA_V6)] {
            let mut packet = Packet::new();
            packet.update(prefix, route, 100, next_hop);
            let bytes = packet.finish(0);
            let update = bytes.len() - 14;
            assert_eq!((bytes[update], bytes[update + 2]), (kind::UPDATE, ae));
            assert_eq!(bytes.windows(4).any(|four| four == [kind::NEXT_HOP, 6, ae::V4, 0]), next_hop.is_some());
            assert_eq!(Tlvs::new(&bytes).expect("a packet").count(), 1);
        }
    }

    #[test]
    fn neighbouring_prefixes_cost_few_bytes() {
        let mut packet = Packet::new();
        let route = Announcement { router_id: id(8), seqno: Seqno(1), metric: 96 };
        let mut count = 0;
        while packet.has_room() {
            packet.update(format!("10.0.{count}.0/24").parse().expect("a prefix"), route, 100, None);
            count += 1;
        }
        assert!(count > 85, "{count} routes in a packet");
        assert!(packet.finish(0).len() <= MAX_PACKET);
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<[u8; 2]>(), 0..=32_u8).prop_map(|([a, b], len)| IpNet::new([10, a & 3, b & 7, b].into(), len));
        let v6 = (any::<[u8; 2]>(), 0..=128_u8).prop_map(|([a, b], len)| {
            IpNet::new([0xfd, 0, 0, 0, a & 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, b & 3, b].into(), len)
        });
        prop_oneof![v4, v6].prop_map(|net| net.expect("a length in range").trunc())
    }

    proptest! {
        #[test]
        fn updates_read_back(routes in proptest::collection::vec((any_net(), 1..4_u8, any::<u16>(), any::<u16>()), 0..30),
                             v4 in proptest::option::of(Just(Ipv4Addr::new(10, 0, 0, 1)))) {
            let mut packet = Packet::new();
            let mut expected = Vec::new();
            for (prefix, last, seqno, metric) in routes {
                if !packet.has_room() {
                    break;
                }
                let (router_id, seqno) = (id(last), Seqno(seqno));
                if metric == INFINITY || metric % 5 == 0 {
                    packet.retraction(prefix, 7);
                    expected.push(Tlv::Retraction { prefix: Some(prefix) });
                } else {
                    packet.update(prefix, Announcement { router_id, seqno, metric }, 7, v4);
                    expected.push(Tlv::Update { prefix, router_id, seqno, metric, interval: 7 });
                }
            }
            let bytes = packet.finish(0);
            prop_assert!(bytes.len() <= MAX_PACKET);
            let mut tlvs = Tlvs::new(&bytes).expect("a packet");
            prop_assert_eq!(tlvs.by_ref().collect::<Vec<_>>(), expected);
            prop_assert_eq!(tlvs.malformed(), 0);
        }
    }
}
