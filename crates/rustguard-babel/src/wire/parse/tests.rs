//! Tests of the parser: the requirements of RFC 8966 §4, and bytes that made other parsers fail.
use super::*;
use proptest::prelude::*;

const ID: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 9];

/// A packet around these bytes.
fn packet(body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).expect("a short body");
    [&[MAGIC, VERSION][..], &len.to_be_bytes(), body].concat()
}

/// The TLVs in a body, and how many were malformed.
fn read(body: &[u8]) -> (Vec<Tlv>, u32) {
    let bytes = packet(body);
    let mut tlvs = Tlvs::new(&bytes).expect("a packet");
    (tlvs.by_ref().collect(), tlvs.malformed())
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, u8::try_from(value.len()).expect("short")], value].concat()
}

fn router_id() -> Vec<u8> {
    tlv(kind::ROUTER_ID, &[&[0, 0][..], &ID].concat())
}

/// An update for IPv6 with a metric of 96 and an interval of 100.
fn update(flags: u8, plen: u8, omitted: u8, rest: &[u8]) -> Vec<u8> {
    tlv(kind::UPDATE, &[&[ae::V6, flags, plen, omitted, 0, 100, 0, 1, 0, 96], rest].concat())
}

fn announced(prefix: &str) -> Tlv {
    let prefix = prefix.parse().expect("a prefix");
    Tlv::Update {
        prefix,
        router_id: RouterId::new(ID).expect("a router-id"),
        seqno: Seqno(1),
        metric: 96,
        interval: 100,
    }
}

const HELLO: [u8; 8] = [kind::HELLO, 6, 0, 0, 0, 5, 0, 30];
const HELLO_5: Tlv = Tlv::Hello { unicast: false, seqno: Seqno(5), interval: 30, sent: None };

/// RFC 8966 §4.2.
#[test]
fn magic_version_length_and_trailer() {
    let refused = |bytes: &[u8]| Tlvs::new(bytes).err();
    assert_eq!([refused(&[]), refused(&[42, 2, 0])], [Some(NotBabel::Truncated); 2]);
    assert_eq!(refused(&[41, 2, 0, 0]), Some(NotBabel::Magic));
    assert_eq!([refused(&[42, 1, 0, 0]), refused(&[42, 3, 0, 0])], [Some(NotBabel::Version); 2]);
    // The length field is larger than the datagram.
    assert_eq!(refused(&[0x2a, 0x02, 0x00, 0x2a, 0x02]), Some(NotBabel::Truncated));
    assert_eq!(refused(&[0x2a, 2, 0, 9, 4, 6, 0, 0, 0, 5, 0, 30]), Some(NotBabel::Truncated));
    let mut with_trailer = packet(&HELLO);
    with_trailer.extend_from_slice(&HELLO);
    with_trailer.extend_from_slice(&[kind::HELLO, 200]);
    let mut tlvs = Tlvs::new(&with_trailer).expect("a packet");
    assert_eq!((tlvs.by_ref().collect::<Vec<_>>(), tlvs.malformed()), (vec![HELLO_5], 0));
}

/// RFC 8966 §4.3.
#[test]
fn unknown_tlvs_and_padding_are_skipped() {
    let body =
        [&[0, 0, 1, 3, 0, 0, 0][..], &tlv(200, b"whatever"), &tlv(254, &[]), &HELLO, &tlv(1, &[]), &[0]].concat();
    assert_eq!(read(&body), (vec![HELLO_5], 0));
    assert_eq!(
        read(&[&tlv(13, &[1; 9])[..], &tlv(16, &[7; 16]), &HELLO].concat()),
        (vec![HELLO_5], 0),
        "13, 16: not spoken"
    );
}

/// RFC 8966 §4.3.
#[test]
fn a_truncated_last_tlv_ends_the_packet() {
    assert_eq!(read(&[&HELLO[..], &[kind::IHU]].concat()), (vec![HELLO_5], 1));
    assert_eq!(read(&[&HELLO[..], &[kind::IHU, 6, 0, 0, 0, 96, 0]].concat()), (vec![HELLO_5], 1));
    // The TLV is too short for its type, but its length is right: only this TLV is lost.
    for len in 0..6 {
        let short = tlv(kind::HELLO, &[0, 0, 0, 4, 0, 30][..len]);
        assert_eq!(read(&[&short[..], &HELLO].concat()), (vec![HELLO_5], 1), "a Hello of {len} bytes");
    }
    for (kind, least) in [(2, 6), (3, 2), (5, 6), (6, 10), (8, 10), (9, 2), (10, 14)] {
        for len in 0..least {
            let short = tlv(kind, &[0xfe; 16][..len]);
            assert_eq!(read(&[&short[..], &HELLO].concat()), (vec![HELLO_5], 1), "type {kind}, {len} bytes");
        }
    }
}

/// RFC 8966 §4.4.
#[test]
fn an_unknown_mandatory_sub_tlv_hides_its_tlv() {
    let hello = |subs: &[u8]| tlv(kind::HELLO, &[&HELLO[2..], subs].concat());
    assert_eq!(read(&hello(&[0, 0, 1, 2, 0, 0, 0x70, 1, 9])), (vec![HELLO_5], 0), "unknown, not mandatory");
    assert_eq!(read(&hello(&[0xfe, 0])), (vec![], 0), "unknown, mandatory");
    assert_eq!(read(&hello(&[0x80, 2, 0, 0])), (vec![], 0));
    let ihu = tlv(kind::IHU, &[0, 0, 0, 96, 0, 90, 0xfe, 0]);
    assert_eq!(read(&ihu), (vec![], 0));
    // As TLVs of their own after these two, the same bytes are unknown and skipped.
    let ihu = [kind::IHU, 6, 0, 0, 0, 96, 0, 90];
    let (read_back, malformed) = read(&[&HELLO[..], &[0xfe, 0], &ihu, &[0xfe, 0], &HELLO].concat());
    assert_eq!((read_back.len(), malformed), (3, 0));
}

/// RFC 8966 §4.5.
#[test]
fn an_ignored_update_still_sets_the_parser_state() {
    // Source-specific (RFC 9079): sub-TLV 128 is mandatory.
    let ignored = update(flag::PREFIX, 64, 0, &[0xfd, 0, 0, 0, 0, 0, 0, 1, 128, 2, 8, 10]);
    let body = [router_id(), ignored, update(0, 72, 8, &[5])].concat();
    assert_eq!(read(&body), (vec![announced("fd00:0:0:1:500::/72")], 0));
    let router_id_ignored = tlv(kind::ROUTER_ID, &[&[0, 0][..], &ID, &[0x81, 0]].concat());
    assert_eq!(read(&[router_id_ignored, update(0, 8, 0, &[0xfd])].concat()), (vec![announced("fd00::/8")], 0));
    // Ignored because its metric is finite without a router-id. The prefix still becomes the default.
    let body = [update(flag::PREFIX, 16, 0, &[0xfd, 7]), router_id(), update(0, 24, 2, &[8])].concat();
    assert_eq!(read(&body), (vec![announced("fd07:800::/24")], 1));
    // Ignored because its interval is 0.
    let zero = tlv(kind::UPDATE, &[ae::V6, flag::PREFIX, 16, 0, 0, 0, 0, 1, 0, 96, 0xfd, 7]);
    assert_eq!(read(&[router_id(), zero, update(0, 24, 2, &[8])].concat()), (vec![announced("fd07:800::/24")], 1));
}

/// RFC 8966 §4.4.
#[test]
fn sub_tlv_lengths_off_by_one_and_two() {
    for (by, good) in [(0_u8, true), (1, false), (2, false)] {
        let body = tlv(kind::HELLO, &[&HELLO[2..], &[sub::TIMESTAMP, 4 + by, 0, 0, 1, 0]].concat());
        let sent = Tlv::Hello { unicast: false, seqno: Seqno(5), interval: 30, sent: Some(256) };
        assert_eq!(
            read(&[&body[..], &HELLO].concat()),
            (if good { vec![sent, HELLO_5] } else { vec![HELLO_5] }, u32::from(!good))
        );
    }
    // One and two bytes shorter: the remaining bytes are a sub-TLV that ends too early, or a valid one.
    for short in [3, 2] {
        let body = tlv(kind::HELLO, &[&HELLO[2..], &[sub::TIMESTAMP, short, 0, 0, 0, 0]].concat());
        assert_eq!(read(&body), (vec![HELLO_5], 0), "too short for a timestamp; padding follows");
        let body = tlv(kind::HELLO, &[&HELLO[2..], &[sub::TIMESTAMP, short, 0, 0, 7, 7]].concat());
        assert_eq!(read(&body).1, 1, "what follows is no sub-TLV");
    }
    let long = tlv(kind::HELLO, &[&HELLO[2..], &[sub::TIMESTAMP, 6, 0, 0, 1, 0, 9, 9]].concat());
    assert!(matches!(read(&long).0[..], [Tlv::Hello { sent: Some(256), .. }]), "longer ones may come (RFC 9616 §5.1)");
    // A damaged list in an update: the update is lost, but the state that it set is not.
    let damaged = update(flag::PREFIX, 16, 0, &[0xfd, 7, 200, 3]);
    assert_eq!(read(&[router_id(), damaged, update(0, 24, 2, &[8])].concat()), (vec![announced("fd07:800::/24")], 1));
}

/// RFC 8966 §4.5.
#[test]
fn default_prefix_next_hop_and_router_id_end_with_the_packet() {
    assert_eq!(read(&update(0, 8, 0, &[0xfd])), (vec![], 1), "no router-id in this packet");
    assert_eq!(read(&[router_id(), update(0, 24, 2, &[8])].concat()), (vec![], 1), "nothing to omit from");
    let without_flag = [router_id(), update(0, 16, 0, &[0xfd, 1]), update(0, 24, 2, &[8])].concat();
    assert_eq!(read(&without_flag), (vec![announced("fd01::/16")], 1));

    let v4 = |ae: u8| tlv(kind::UPDATE, &[ae, flag::PREFIX, 24, 0, 0, 100, 0, 1, 0, 96, 10, 1, 2]);
    let omitting = |ae: u8| tlv(kind::UPDATE, &[ae, 0, 24, 2, 0, 100, 0, 1, 0, 96, 3]);
    let next_hop = |ae: u8, address: &[u8]| tlv(kind::NEXT_HOP, &[&[ae, 0], address].concat());
    assert_eq!(read(&[router_id(), v4(1)].concat()), (vec![], 1), "IPv4 without a next hop of its family");
    let body = [router_id(), next_hop(1, &[10, 0, 0, 1]), v4(1), omitting(1)].concat();
    assert_eq!(read(&body), (vec![announced("10.1.2.0/24"), announced("10.1.3.0/24")], 0));
    // v4-via-v6 needs no next hop, and has a default prefix of its own (RFC 9229 §3.1).
    let body = [router_id(), v4(4), omitting(4), omitting(1)].concat();
    assert_eq!(read(&body), (vec![announced("10.1.2.0/24"), announced("10.1.3.0/24")], 1));
    // A Next Hop of encoding 4 or unknown is ignored, one for IPv6 changes nothing for IPv4.
    for ae in [2, 3, 4, 200] {
        assert_eq!(read(&[router_id(), next_hop(ae, &[0xfe; 16]), v4(1)].concat()).0, [], "encoding {ae}");
    }
    let mandatory = next_hop(1, &[10, 0, 0, 1, 0x90, 0]);
    assert_eq!(read(&[router_id(), mandatory, v4(1)].concat()).0, [announced("10.1.2.0/24")]);
}

/// RFC 8966 §4.6.9, flag R.
#[test]
fn the_router_id_in_the_prefix() {
    let address = [&[0xfd, 0, 0, 0, 0, 0, 0, 0][..], &ID].concat();
    let body = [update(flag::ROUTER_ID, 128, 0, &address), update(0, 8, 0, &[0xfd])].concat();
    assert_eq!(read(&body), (vec![announced("fd00::9/128"), announced("fd00::/8")], 0));
    let v4 = tlv(kind::UPDATE, &[4, flag::ROUTER_ID, 32, 0, 0, 100, 0, 1, 0, 96, 10, 1, 2, 3]);
    let (tlvs, _) = read(&v4);
    assert!(matches!(tlvs[..], [Tlv::Update { router_id, .. }] if router_id.bytes() == [0, 0, 0, 0, 10, 1, 2, 3]));
    assert_eq!(read(&update(flag::ROUTER_ID, 8, 0, &[0xfd])), (vec![], 1), "all zeros is none");
}

/// RFC 8966 §4.6.9.
#[test]
fn retractions() {
    let retraction = |ae: u8, plen: u8, omitted: u8, interval: u8, rest: &[u8]| {
        tlv(kind::UPDATE, &[&[ae, 0, plen, omitted, 0, interval, 0, 0, 0xff, 0xff], rest].concat())
    };
    let gone = |prefix: &str| Tlv::Retraction { prefix: Some(prefix.parse().expect("a prefix")) };
    assert_eq!(read(&retraction(2, 8, 0, 100, &[0xfd])), (vec![gone("fd00::/8")], 0), "without router-id");
    assert_eq!(read(&retraction(1, 8, 0, 100, &[10])), (vec![gone("10.0.0.0/8")], 0), "without next hop");
    assert_eq!(
        read(&retraction(1, 8, 0, 0, &[10])),
        (vec![gone("10.0.0.0/8")], 0),
        "nothing is promised, nothing is needed"
    );
    assert_eq!(read(&retraction(0, 0, 0, 100, &[])), (vec![Tlv::Retraction { prefix: None }], 0));
    assert_eq!(read(&retraction(0, 8, 0, 100, &[])), (vec![], 1));
    assert_eq!(read(&retraction(0, 0, 1, 100, &[])), (vec![], 1));
    assert_eq!(read(&retraction(0, 0, 0, 100, &[0xfe, 0])), (vec![], 0), "mandatory");
    let finite = tlv(kind::UPDATE, &[0, 0, 0, 0, 0, 100, 0, 0, 0, 96]);
    assert_eq!(read(&[router_id(), finite].concat()), (vec![], 1), "AE 0 with a finite metric");
    assert_eq!(read(&retraction(77, 8, 0, 100, &[1])), (vec![], 0), "an unknown encoding");
}

/// RFC 8966 §4.1.3 and §4.6.11.
#[test]
fn reserved_router_ids_and_a_hop_count_of_zero_are_malformed() {
    for bad in [[0; 8], [0xff; 8]] {
        let bad_id = tlv(kind::ROUTER_ID, &[&[0, 0][..], &bad].concat());
        assert_eq!(read(&[router_id(), bad_id, update(0, 8, 0, &[0xfd])].concat()), (vec![], 2));
        let request = tlv(kind::SEQNO_REQUEST, &[&[2, 8, 0, 1, 64, 0][..], &bad, &[0xfd]].concat());
        assert_eq!(read(&request), (vec![], 1));
    }
    let request =
        |ae: u8, hop_count: u8| tlv(kind::SEQNO_REQUEST, &[&[ae, 8, 0, 1, hop_count, 0][..], &ID, &[0xfd]].concat());
    assert_eq!(read(&request(2, 0)), (vec![], 1));
    assert!(matches!(read(&request(2, 1)).0[..], [Tlv::SeqnoRequest { hop_count: 1, .. }]));
    assert_eq!(read(&request(0, 64)), (vec![], 1), "a seqno request is for one prefix");
    let wildcard = |plen: u8| tlv(kind::ROUTE_REQUEST, &[0, plen]);
    assert_eq!(read(&wildcard(0)), (vec![Tlv::RouteRequest { prefix: None }], 0));
    assert_eq!(read(&wildcard(8)), (vec![], 1));
}

#[test]
fn prefixes_keep_within_their_family() {
    for (ae, plen, rest) in [(1, 33, &[1; 5][..]), (4, 40, &[1; 5]), (2, 129, &[1; 17]), (1, 255, &[1; 32])] {
        assert_eq!(read(&tlv(kind::ROUTE_REQUEST, &[&[ae, plen], rest].concat())), (vec![], 1), "{ae} {plen}");
    }
    let body = [router_id(), update(0, 8, 2, &[0xfd])].concat();
    assert_eq!(read(&body), (vec![], 1), "more omitted than there is");
    // Bits beyond the length are cleared.
    assert_eq!(read(&[router_id(), update(0, 9, 0, &[0xfd, 0xff])].concat()).0, [announced("fd80::/9")]);
    assert_eq!(read(&[router_id(), update(0, 0, 0, &[])].concat()).0, [announced("::/0")]);
    let link_local = tlv(kind::ROUTE_REQUEST, &[3, 72, 9]);
    assert_eq!(
        read(&link_local).0,
        [Tlv::RouteRequest { prefix: Some("fe80::900:0:0:0/72".parse().expect("a prefix")) }]
    );
    let omitted = tlv(kind::UPDATE, &[3, 0, 72, 1, 0, 100, 0, 1, 0, 96, 9]);
    assert_eq!(read(&[router_id(), omitted].concat()), (vec![], 1), "no compression for encoding 3");
}

#[test]
fn flags_and_intervals() {
    let flags = [kind::HELLO, 6, 0x7f, 0xff, 0, 5, 0, 30];
    assert_eq!(read(&flags), (vec![HELLO_5], 0), "unknown flags of a Hello");
    assert!(matches!(read(&[4, 6, 0x80, 0, 0, 5, 0, 0]).0[..], [Tlv::Hello { unicast: true, interval: 0, .. }]));
    assert_eq!(read(&[kind::ACK_REQUEST, 6, 0, 0, 0, 1, 0, 0]), (vec![], 1));
    assert_eq!(read(&[kind::IHU, 6, 0, 0, 0, 96, 0, 0]), (vec![], 1));
    assert!(matches!(read(&[kind::IHU, 6, 0, 9, 0, 96, 0, 1]).0[..], [Tlv::Ihu { address: None, rxcost: 96, .. }]));
    assert_eq!(read(&[kind::IHU, 10, 4, 0, 0, 96, 0, 1, 1, 2, 3, 4]), (vec![], 0), "encoding 4 is for prefixes");
    let stamped = tlv(kind::IHU, &[0, 0, 0, 96, 0, 1, 3, 8, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert!(matches!(read(&stamped).0[..], [Tlv::Ihu { timestamps: Some(Timestamps { sent: 1, received: 2 }), .. }]));
    let half = tlv(kind::IHU, &[0, 0, 0, 96, 0, 1, 3, 4, 0, 0, 0, 1]);
    assert!(matches!(read(&half).0[..], [Tlv::Ihu { timestamps: None, .. }]));
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(body in proptest::collection::vec(prop_oneof![0..12_u8, any::<u8>()], 0..300)) {
        let (tlvs, malformed) = read(&body);
        prop_assert!(tlvs.len() + malformed as usize <= body.len() / 2 + 1);
        for tlv in tlvs {
            if let Tlv::Update { prefix, metric, interval, .. } = tlv {
                prop_assert!(prefix == prefix.trunc() && metric != INFINITY && interval != 0);
            }
        }
    }
}

/// A name: of the origin before it, and nothing but a name.
#[test]
fn names() {
    let name = |text: &[u8]| {
        let len = u8::try_from(text.len()).expect("short");
        tlv(kind::NAME, &[&NAME_TAG[..], &[len], text].concat())
    };
    let router = RouterId::new(ID).expect("a router-id");
    let called = |text: &[u8]| Tlv::Name { router_id: router, name: Name::new(text).expect("a name") };
    assert_eq!(read(&[router_id(), name(b"office")].concat()), (vec![called(b"office")], 0));
    assert_eq!(read(&name(b"office")), (vec![], 1), "of nobody");
    for bad in [&b""[..], b"\x1b[2J", b"a b", b"Zo\xc3\xab", &[b'x'; 64]] {
        assert_eq!(read(&[router_id(), name(bad), HELLO.to_vec()].concat()), (vec![HELLO_5], 1), "{bad:?}");
    }
    // A name longer than the TLV, another experiment, and sub-TLVs that may or must not be ignored.
    let long = tlv(kind::NAME, &[&NAME_TAG[..], &[7], b"office"].concat());
    assert_eq!(read(&[router_id(), long].concat()), (vec![], 1));
    assert_eq!(read(&[router_id(), tlv(kind::NAME, b"XY\x01a"), tlv(kind::NAME, b"R")].concat()), (vec![], 1));
    for (sub, known) in [(100, true), (100 | sub::MANDATORY, false)] {
        let with = tlv(kind::NAME, &[&NAME_TAG[..], &[1, b'a', sub, 0]].concat());
        let expected = if known { vec![called(b"a")] } else { vec![] };
        assert_eq!(read(&[router_id(), with].concat()), (expected, 0));
    }
}
