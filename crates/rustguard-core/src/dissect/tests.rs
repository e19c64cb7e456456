use super::*;
use crate::{icmp, packet::IpHead};
use alloc::{vec, vec::Vec};
use proptest::prelude::*;

/// From 10.0.0.1 to 10.0.0.2.
fn v4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend(rest);
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet
}

/// From fd00::1 to fd00::2.
fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet[4..6].copy_from_slice(&(rest.len() as u16).to_be_bytes());
    for last in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend(rest);
    packet
}

/// From port 50,000 to port 443, with sequence number 100 and acknowledgment number 200.
fn tcp(flags: u8, text: &[u8]) -> Vec<u8> {
    let mut segment = vec![0xc3, 0x50, 0x01, 0xbb, 0, 0, 0, 100, 0, 0, 0, 200, 0x50, flags, 0, 0, 0, 0, 0, 0];
    segment.extend(text);
    segment
}

fn udp(text: &[u8]) -> Vec<u8> {
    [&[0xc3, 0x50, 0x01, 0xbb, 0, 0, 0, 0][..], text].concat()
}

fn fragment4(mut packet: Vec<u8>, offset: u16, more: bool) -> Vec<u8> {
    packet[4..6].copy_from_slice(&[0x12, 0x34]);
    packet[6..8].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
    packet
}

fn fragment6(next: u8, offset: u16, more: bool, rest: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    v6(FRAGMENT, &[&[next, 0, high, low, 0, 0, 0x12, 0x34][..], rest].concat())
}

fn seen(packet: &[u8]) -> (Tuple, Role) {
    match dissect(packet) {
        Dissected::Packet { tuple, role, fragment: None } => (tuple, role),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tcp_roles_by_flags() {
    let roles = [
        (SYN, Some(Role::Opens)),
        (SYN | ACK, Some(Role::Continues)),
        (ACK, Some(Role::Continues)),
        (ACK | 0x08, Some(Role::Continues)),
        (0, Some(Role::Continues)),
        (FIN | ACK, Some(Role::Finishes)),
        (RST, Some(Role::Resets)),
        (RST | ACK, Some(Role::Resets)),
        (SYN | FIN, None),
        (SYN | RST, None),
        (SYN | FIN | ACK, None),
        // ECN's flags have no effect here (RFC 3168).
        (SYN | 0xc0, Some(Role::Opens)),
    ];
    for (flags, role) in roles {
        for packet in [v4(TCP, &tcp(flags, b"")), v6(TCP, &tcp(flags, b""))] {
            match (dissect(&packet), role) {
                (Dissected::Packet { tuple, role, fragment: None }, Some(expected)) => {
                    assert_eq!((tuple.ports, tuple.protocol, role), ([50_000, 443], TCP, expected));
                    assert_eq!(
                        (tuple.destination_port(), tuple.reversed().destination_port()),
                        (Some(443), Some(50_000))
                    );
                }
                (Dissected::Bad(Bad::Header), None) => {}
                (other, _) => panic!("{flags:02x}: {other:?}"),
            }
        }
    }
}

#[test]
fn addresses_are_those_of_the_packet() {
    for packet in [v4(UDP, &udp(b"")), v6(UDP, &udp(b""))] {
        let head = IpHead::parse(&packet).expect("a packet");
        let (tuple, _) = seen(&packet);
        assert_eq!((tuple.source(), tuple.destination()), (head.source, head.destination));
        assert_eq!(tuple.reversed().reversed(), tuple);
        assert_eq!(tuple.reversed().source(), head.destination);
    }
}

#[test]
fn queries_and_their_answers_are_one_flow() {
    for (kind, answer) in [(8, 0), (13, 14)] {
        let (query, role) = seen(&v4(ICMP, &[kind, 0, 0, 0, 0x11, 0x22, 0, 1]));
        let (answered, answers) = seen(&v4(ICMP, &[answer, 0, 0, 0, 0x11, 0x22, 0, 1]));
        assert_eq!((role, answers), (Role::Opens, Role::Answers));
        assert_eq!((query.ports, answered.ports, query.destination_port()), ([0x1122, 0], [0, 0x1122], None));
    }
    let (query, role) = seen(&v6(ICMPV6, &[128, 0, 0, 0, 0x11, 0x22, 0, 1]));
    assert_eq!((query.ports, role), ([0x1122, 0], Role::Opens));
    assert_eq!(seen(&v6(ICMPV6, &[129, 0, 0, 0, 0x11, 0x22, 0, 1])).1, Role::Answers);
    assert_eq!(seen(&v6(ICMPV6, &[135, 0, 0, 0, 0, 0, 0, 0])).1, Role::Alone);
    assert_eq!(dissect(&v6(ICMPV6, &[137, 0, 0, 0, 0, 0, 0, 0])), Dissected::Bad(Bad::SourceRoute));
    assert_eq!(dissect(&v4(ICMP, &[5, 0, 0, 0, 0, 0, 0, 0])), Dissected::Bad(Bad::SourceRoute));
}

#[test]
fn an_error_is_about_a_packet_of_whom_it_is_for() {
    for (sent, error) in [(v4(UDP, &udp(b"text")), [3, 3]), (v6(UDP, &udp(b"text")), [1, 4])] {
        let head = IpHead::parse(&sent).expect("a packet");
        let mut out = [0; icmp::MAX_LEN];
        let len = icmp::unreachable(&sent, &head, &mut out);
        let (tuple, _) = seen(&sent);
        assert_eq!(dissect(&out[..len]), Dissected::ErrorAbout(tuple));
        // The standard of 1981 requires only eight bytes of the transport (RFC 792).
        let at = if tuple.v6 { 40 } else { 20 };
        assert_eq!(dissect(&out[..len - 4]), Dissected::ErrorAbout(tuple));
        assert_eq!(dissect(&out[..len - 5]), Dissected::Bad(Bad::Error), "half a port");
        out[at..at + 2].copy_from_slice(&error);
        assert_eq!(dissect(&out[..len]), Dissected::ErrorAbout(tuple));
        // About a packet of another sender.
        let mut other = out;
        other[at + 8 + if tuple.v6 { 23 } else { 15 }] ^= 4;
        assert_eq!(dissect(&other[..len]), Dissected::Bad(Bad::Error));
        // About an error.
        let mut again = [0; icmp::MAX_LEN];
        let answer = IpHead::parse(&out[..len]).expect("a packet");
        let len = icmp::unreachable(&out[..len], &answer, &mut again);
        assert_eq!(dissect(&again[..len]), Dissected::Bad(Bad::Error));
    }
}

#[test]
fn a_first_fragment_has_the_whole_transport_header() {
    for len in 0..64 {
        let text = [7; 64];
        let segment = &tcp(SYN, &text)[..len];
        let whole = len >= 20 && len % 8 == 0;
        for packet in [fragment4(v4(TCP, segment), 0, true), fragment6(TCP, 0, true, segment)] {
            match dissect(&packet) {
                Dissected::Packet { tuple, role: Role::Opens, fragment: Some((id, end)) } if whole => {
                    assert_eq!((tuple.ports, id.id, end as usize), ([50_000, 443], 0x1234, len));
                    assert_eq!(id.protocol, if id.v6 { 0 } else { TCP });
                }
                Dissected::Bad(Bad::Fragment) if !whole => {}
                other => panic!("{len}: {other:?}"),
            }
        }
    }
    // With options, which belong to the header.
    let mut segment = tcp(SYN, &[1; 12]);
    segment[12] = 0x80;
    assert!(matches!(dissect(&fragment4(v4(TCP, &segment), 0, true)), Dissected::Packet { fragment: Some(_), .. }));
    segment[12] = 0xb0;
    assert_eq!(dissect(&fragment4(v4(TCP, &segment), 0, true)), Dissected::Bad(Bad::Fragment));
}

#[test]
fn later_fragments_are_known_by_their_packet() {
    let Dissected::Later(id, 64) = dissect(&fragment4(v4(TCP, &[0; 9]), 64, false)) else { panic!("a fragment") };
    let Dissected::Packet { fragment: Some((first, _)), .. } =
        dissect(&fragment4(v4(TCP, &tcp(ACK, &[0; 44])), 0, true))
    else {
        panic!("a fragment")
    };
    assert_eq!(id, first);
    let Dissected::Later(id, 64) = dissect(&fragment6(HOP_BY_HOP, 64, true, &[0; 8])) else { panic!("a fragment") };
    assert_eq!((id.id, id.protocol), (0x1234, 0), "whatever the middle of a packet says of the next header");
    assert_eq!(dissect(&fragment4(v4(TCP, &[]), 64, false)), Dissected::Bad(Bad::Fragment), "of no bytes");
    assert_eq!(dissect(&fragment4(v4(TCP, &[0; 9]), 64, true)), Dissected::Bad(Bad::Fragment), "no multiple of eight");
    // The options in a first fragment count towards its end.
    let options = [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &udp(&[0; 8])].concat();
    let Dissected::Packet { tuple, fragment: Some((_, end)), .. } =
        dissect(&fragment6(DESTINATION_OPTIONS, 0, true, &options))
    else {
        panic!("a fragment")
    };
    assert_eq!((tuple.protocol, end), (UDP, 24));
    // A fragment that is the whole packet.
    assert_eq!(seen(&fragment6(UDP, 0, false, &udp(b""))).0.ports, [50_000, 443]);
}

#[test]
fn extension_headers_are_followed_so_far() {
    let options = |next, behind: &[u8]| [&[next, 0, 1, 4, 0, 0, 0, 0][..], behind].concat();
    for first in [HOP_BY_HOP, DESTINATION_OPTIONS] {
        assert_eq!(seen(&v6(first, &options(UDP, &udp(b"")))).0.ports, [50_000, 443]);
        assert_eq!(dissect(&v6(first, &options(UDP, &[]))), Dissected::Bad(Bad::Header));
        assert_eq!(
            dissect(&v6(first, &[UDP, 9, 0, 0, 0, 0, 0, 0, 0])),
            Dissected::Bad(Bad::Header),
            "longer than it is"
        );
    }
    assert_eq!(
        dissect(&v6(DESTINATION_OPTIONS, &options(HOP_BY_HOP, &options(UDP, &udp(b""))))),
        Dissected::Bad(Bad::Header),
        "only first"
    );
    let mut chain = udp(b"");
    for n in 0..EXTENSIONS_MAX {
        chain = options(if n == 0 { UDP } else { DESTINATION_OPTIONS }, &chain);
    }
    assert_eq!(seen(&v6(DESTINATION_OPTIONS, &chain)).0.protocol, UDP);
    assert_eq!(dissect(&v6(DESTINATION_OPTIONS, &options(DESTINATION_OPTIONS, &chain))), Dissected::Bad(Bad::Header));
    // Headers behind these are not seen.
    for protocol in [50, 51, 59, 135, 253] {
        let (tuple, role) = seen(&v6(DESTINATION_OPTIONS, &options(protocol, &udp(b""))));
        assert_eq!((tuple.protocol, tuple.ports, role), (protocol, [0; 2], Role::Continues));
    }
    let routing = |left| [&[UDP, 0, 4, left, 0, 0, 0, 0][..], &udp(b"")].concat();
    assert_eq!(seen(&v6(ROUTING, &routing(0))).0.ports, [50_000, 443]);
    assert_eq!(dissect(&v6(ROUTING, &routing(1))), Dissected::Bad(Bad::SourceRoute));
    // ICMP of the other IP version is treated like any other protocol.
    assert_eq!(seen(&v6(ICMP, &[5; 8])).0.protocol, ICMP);
}

#[test]
fn source_routes_are_refused_and_other_options_are_not() {
    let with = |options: &[u8]| {
        let mut packet = v4(UDP, &udp(b""));
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x45 + (options.len() / 4) as u8;
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        dissect(&packet)
    };
    for good in [&[148, 4, 0, 0][..], &[1, 1, 1, 0], &[0, 131, 0, 0], &[7, 7, 4, 0, 0, 0, 0, 0]] {
        assert!(matches!(with(good), Dissected::Packet { .. }), "{good:?}");
    }
    for bad in [&[131, 7, 4, 10, 0, 0, 9, 0][..], &[1, 137, 3, 4], &[148, 9, 0, 0], &[1, 1, 1, 148]] {
        assert_eq!(with(bad), Dissected::Bad(Bad::SourceRoute), "{bad:?}");
    }
}

#[test]
fn resets_as_the_standard_wants_them() {
    // (flags, text, sequence number, acknowledgment number, flags of the answer)
    let cases = [
        (SYN, 0, 0, 101, RST | ACK),
        (SYN, 5, 0, 106, RST | ACK),
        (0, 5, 0, 105, RST | ACK),
        (FIN, 0, 0, 101, RST | ACK),
        (ACK, 5, 200, 0, RST),
        (SYN | ACK, 0, 200, 0, RST),
    ];
    for (flags, len, seq, ack, answer) in cases {
        for packet in [v4(TCP, &tcp(flags, &vec![0; len])), v6(TCP, &tcp(flags, &vec![0; len]))] {
            let mut out = [0xee; RESET_MAX];
            let len = reset(&packet, &mut out);
            let out = &out[..len];
            let head = IpHead::parse(out).expect("a packet");
            assert_eq!(head.len, len);
            let (tuple, role) = seen(out);
            assert_eq!((tuple, role), (seen(&packet).0.reversed(), Role::Resets));
            let at = if tuple.v6 { 40 } else { 20 };
            assert_eq!(out[at + 4..at + 8], u32::to_be_bytes(seq));
            assert_eq!(out[at + 8..at + 12], u32::to_be_bytes(ack));
            assert_eq!(out[at + 12..at + 16], [0x50, answer, 0, 0]);
            let addresses = &out[if tuple.v6 { 8..40 } else { 12..20 }];
            let pseudo = icmp::sum(addresses, 26).into();
            assert_eq!(icmp::sum(&out[at..], pseudo), 0xffff);
            if !tuple.v6 {
                assert_eq!(icmp::sum(&out[..20], 0), 0xffff);
            }
            assert_eq!(reset(out, &mut [0; RESET_MAX]), 0, "a reset is not answered");
        }
    }
    assert_eq!(reset(&v4(UDP, &udp(b"")), &mut [0; RESET_MAX]), 0);
    assert_eq!(reset(&fragment4(v4(TCP, &tcp(ACK, &[0; 44])), 64, true), &mut [0; RESET_MAX]), 0);
}

proptest! {
    #[test]
    fn any_bytes_are_dissected(mut packet in proptest::collection::vec(any::<u8>(), 0..160), version in 0..3_usize, next in any::<u8>()) {
        if let Some(first) = packet.first_mut() {
            *first = [0x45, 0x60, *first][version];
        }
        let next_at = if version == 1 { 6 } else { 9 };
        if let Some(protocol) = packet.get_mut(next_at) {
            *protocol = [TCP, ICMP, ICMPV6, FRAGMENT, DESTINATION_OPTIONS, ROUTING, next][usize::from(next) % 7];
        }
        if let Dissected::Packet { tuple, .. } = dissect(&packet) {
            prop_assert_eq!(tuple.v6, packet[0] >> 4 == 6);
        }
        let mut out = [0; RESET_MAX];
        let len = reset(&packet, &mut out);
        prop_assert!(len == 0 || IpHead::parse(&out[..len]).is_some_and(|head| head.len == len));
    }
}
