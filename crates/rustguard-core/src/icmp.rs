//! The answer to a packet that cannot be delivered: "host unreachable" (RFC 792) or "address unreachable" (RFC 4443,
//! section 3.1). The kernel's WireGuard sends it if no peer has the address, or if the peer has no endpoint. There is
//! also an answer to a packet that a rule forbids.
use crate::packet::{HOP_BY_HOP, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHead};
use core::net::IpAddr;

/// Bytes of the longest answer: the least MTU of IPv6, which an ICMPv6 error message must not exceed (RFC 4443, section
/// 2.4 (c)).
pub const MAX_LEN: usize = 1_280;
/// The same for IPv4 (RFC 1812, section 4.3.2.3).
const MAX_LEN_V4: usize = 576;
const ICMP_HEADER_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;
/// Internetwork control, as in the kernel's ICMP errors (RFC 1812, section 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
/// IPv6 extension headers (RFC 8200, section 4; RFC 4302).
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// A packet with more extension headers is not answered.
const EXTENSIONS_MAX: usize = 8;
/// An ICMPv6 redirect. It is no error message, but is not answered either (RFC 4443, section 2.4 (e.2)).
const REDIRECT: u8 = 137;

/// Whether this packet may be answered: an error message is never sent about an error message, a later fragment, or a
/// packet from or for more than one host (RFC 1812, section 4.3.2.7; RFC 4443, section 2.4 (e)).
pub fn may_answer(packet: &[u8], head: &IpHead) -> bool {
    let packet = &packet[..head.len.min(packet.len())];
    match (head.source, head.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            // Class E (240.0.0.0 and above) is not in use, and 255.255.255.255 is a broadcast.
            let one = |ip: core::net::Ipv4Addr| (1..224).contains(&ip.octets()[0]) && !ip.is_loopback();
            one(source) && one(destination) && answerable_v4(packet)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let one = |ip: core::net::Ipv6Addr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
            one(source) && one(destination) && answerable_v6(packet)
        }
        _ => false,
    }
}

fn answerable_v4(packet: &[u8]) -> bool {
    let Some(header) = packet.first_chunk::<IPV4_HEADER_LEN>() else { return false };
    let first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
    // Queries and their replies; an unknown type may be an error message.
    let query = || matches!(packet.get(usize::from(header[0] & 0x0f) * 4), Some(0 | 8..=10 | 13..=18));
    first && (header[9] != ICMP || query())
}

fn answerable_v6(packet: &[u8]) -> bool {
    let Some(&[next, _]) = packet.get(6..8).and_then(|bytes| bytes.first_chunk()) else { return false };
    let (mut next, mut at) = (next, IPV6_HEADER_LEN);
    for _ in 0..EXTENSIONS_MAX {
        let header = packet.get(at..).and_then(|rest| rest.first_chunk::<4>());
        let length = match (next, header) {
            (ICMP_V6, Some(header)) => return header[0] >= 128 && header[0] != REDIRECT,
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, Some(header)) => 8 * (usize::from(header[1]) + 1),
            (AUTHENTICATION, Some(header)) => 4 * (usize::from(header[1]) + 2),
            (FRAGMENT, Some(header)) if u16::from_be_bytes([header[2], header[3]]) >> 3 == 0 => 8,
            (ICMP_V6 | HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION | FRAGMENT, _) => return false,
            _ => return true,
        };
        let Some(header) = header else { return false };
        (next, at) = (header[0], at + length);
    }
    false
}

/// Writes the answer to a packet that [`may_answer`] allows, and returns its length. Its source is the unreachable
/// address: the host has a route there through the tunnel, so that no reverse-path filter drops it, while one of the
/// host's own addresses as a source would be a martian.
pub fn unreachable(packet: &[u8], head: &IpHead, out: &mut [u8; MAX_LEN]) -> usize {
    // Host unreachable; address unreachable.
    error(packet, head, [3, 1], [1, 3], out)
}

/// The same, but says that a rule forbids it: "communication administratively prohibited" (RFC 1812, section 5.2.7.1;
/// RFC 4443, section 3.1).
pub fn prohibited(packet: &[u8], head: &IpHead, out: &mut [u8; MAX_LEN]) -> usize {
    error(packet, head, [3, 13], [1, 1], out)
}

/// An error about a packet, with this type and code of ICMP or ICMPv6.
fn error(packet: &[u8], head: &IpHead, v4: [u8; 2], v6: [u8; 2], out: &mut [u8; MAX_LEN]) -> usize {
    let packet = &packet[..head.len.min(packet.len())];
    let (ip, len) = match (head.destination, head.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = MAX_LEN_V4.min(IPV4_HEADER_LEN + ICMP_HEADER_LEN + packet.len());
            let [high, low] = (len as u16).to_be_bytes();
            let header = [0x45, PRECEDENCE, high, low, 0, 0, 0x40, 0, HOP_LIMIT, ICMP, 0, 0];
            out[..12].copy_from_slice(&header);
            out[12..16].copy_from_slice(&from.octets());
            out[16..20].copy_from_slice(&to.octets());
            let checksum = !sum(&out[..IPV4_HEADER_LEN], 0);
            out[10..12].copy_from_slice(&checksum.to_be_bytes());
            out[20..28].copy_from_slice(&[v4[0], v4[1], 0, 0, 0, 0, 0, 0]);
            (IPV4_HEADER_LEN, len)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = MAX_LEN.min(IPV6_HEADER_LEN + ICMP_HEADER_LEN + packet.len());
            let [high, low] = ((len - IPV6_HEADER_LEN) as u16).to_be_bytes();
            out[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, ICMP_V6, HOP_LIMIT]);
            out[8..24].copy_from_slice(&from.octets());
            out[24..40].copy_from_slice(&to.octets());
            out[40..48].copy_from_slice(&[v6[0], v6[1], 0, 0, 0, 0, 0, 0]);
            (IPV6_HEADER_LEN, len)
        }
        _ => return 0,
    };
    let text = ip + ICMP_HEADER_LEN;
    out[text..len].copy_from_slice(&packet[..len - text]);
    // For ICMPv6, the pseudo-header is part of the sum (RFC 8200, section 8.1).
    let pseudo = match ip {
        IPV4_HEADER_LEN => 0,
        _ => sum(&out[8..40], (len - ip) as u32 + u32::from(ICMP_V6)),
    };
    let checksum = !sum(&out[ip..len], u32::from(pseudo));
    out[ip + 2..ip + 4].copy_from_slice(&checksum.to_be_bytes());
    len
}

/// The Internet checksum (RFC 1071), folded but not inverted. No packet is long enough for an overflow.
pub(crate) fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};
    use proptest::prelude::*;

    fn v4(protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend(rest);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        packet[4..6].copy_from_slice(&(rest.len() as u16).to_be_bytes());
        for last in [1, 2] {
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        packet.extend(rest);
        packet
    }

    fn may(packet: &[u8]) -> bool {
        may_answer(packet, &IpHead::parse(packet).expect("a packet"))
    }

    fn answer(packet: &[u8]) -> Vec<u8> {
        let mut out = [0xee; MAX_LEN];
        let len = unreachable(packet, &IpHead::parse(packet).expect("a packet"), &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn an_answer_names_the_packet_and_its_sums_are_right() {
        for len in [0, 1, 8, 547, 548, 549, 1_231, 1_232, 1_233, 9_000] {
            let text = vec![7; len];
            let (packet, answered) = (v4(17, &text), answer(&v4(17, &text)));
            assert_eq!(answered.len(), 576.min(28 + packet.len()));
            assert_eq!(answered[12..20], [10, 0, 0, 2, 10, 0, 0, 1], "from there, to the sender");
            assert_eq!((answered[9], &answered[20..22]), (1, &[3, 1][..]));
            assert_eq!(answered[28..], packet[..answered.len() - 28]);
            assert_eq!((sum(&answered[..20], 0), sum(&answered[20..], 0)), (0xffff, 0xffff));
            assert_eq!(IpHead::parse(&answered).expect("a packet").len, answered.len());

            let (packet, answered) = (v6(17, &text), answer(&v6(17, &text)));
            assert_eq!(answered.len(), 1_280.min(48 + packet.len()));
            assert_eq!((answered[23], answered[39], answered[6]), (2, 1, 58));
            assert_eq!(answered[40..42], [1, 3]);
            assert_eq!(answered[48..], packet[..answered.len() - 48]);
            let pseudo = [&answered[8..40], &[0, 0], &answered[4..6], &[0, 0, 0, 58]].concat();
            assert_eq!(sum(&[pseudo, answered[40..].to_vec()].concat(), 0), 0xffff);
            assert_eq!(IpHead::parse(&answered).expect("a packet").len, answered.len());
        }
    }

    #[test]
    fn no_answer_is_answered() {
        for packet in [v4(6, &[1; 20]), v6(6, &[1; 20])] {
            assert!(may(&packet));
            assert!(!may(&answer(&packet)));
        }
        for (kind, query) in [
            (0, true),
            (3, false),
            (4, false),
            (5, false),
            (8, true),
            (11, false),
            (12, false),
            (13, true),
            (40, false),
        ] {
            assert_eq!(may(&v4(1, &[kind, 0, 0, 0, 0, 0, 0, 0])), query, "ICMP {kind}");
        }
        for (kind, query) in
            [(1, false), (2, false), (4, false), (127, false), (128, true), (129, true), (137, false), (135, true)]
        {
            assert_eq!(may(&v6(58, &[kind, 0, 0, 0, 0, 0, 0, 0])), query, "ICMPv6 {kind}");
            let behind_options = [&[58, 0, 0, 0, 0, 0, 0, 0][..], &[kind, 0, 0, 0, 0, 0, 0, 0]].concat();
            for extension in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, FRAGMENT] {
                assert_eq!(may(&v6(extension, &behind_options)), query, "ICMPv6 {kind} behind {extension}");
            }
        }
        assert!(!may(&v4(1, &[])) && !may(&v6(58, &[])) && !may(&v6(0, &[])), "cut short");
        assert!(!may(&v6(0, &[0; 80])), "options without end");
    }

    #[test]
    fn nobody_is_told_about_fragments_and_what_is_for_many() {
        let mut fragment = v4(17, &[0; 8]);
        fragment[6] = 0x20;
        assert!(may(&fragment), "the first has the ports");
        fragment[7] = 1;
        assert!(!may(&fragment));
        assert!(may(&v6(44, &[17, 0, 0, 1, 0, 0, 0, 1])) && !may(&v6(44, &[17, 0, 0, 8, 0, 0, 0, 1])));
        for (at, first) in [(12, 0), (12, 127), (12, 224), (12, 255), (16, 0), (16, 127), (16, 239), (16, 255)] {
            let mut packet = v4(17, &[0; 8]);
            packet[at] = first;
            assert!(!may(&packet), "{first} at {at}");
        }
        for at in [8, 24] {
            let mut packet = v6(17, &[0; 8]);
            packet[at] = 0xff;
            assert!(!may(&packet), "multicast at {at}");
            packet[at..at + 16].fill(0);
            assert!(!may(&packet), "nobody at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_in_bounds(mut packet in proptest::collection::vec(any::<u8>(), 0..1_600), v6: bool) {
            if let Some(first) = packet.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            if let Some(head) = IpHead::parse(&packet) {
                may_answer(&packet, &head);
                let answered = answer(&packet);
                let most = if v6 { 1_280 } else { 576 };
                prop_assert!(answered.len() <= most);
                prop_assert!(!may_answer(&answered, &IpHead::parse(&answered).expect("a packet")));
            }
        }
    }
}
