//! Babel's datagrams inside the tunnel: IPv6 and UDP, port 6696 both ways, hop limit 1, link-local (RFC 8966 §4).
use core::net::Ipv6Addr;

/// Babel's UDP port.
pub const PORT: u16 = 6696;
/// The multicast address of all Babel speakers on a link.
pub const MULTICAST: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 6);
/// Bytes of the IPv6 and the UDP header.
pub const HEADERS: usize = 48;
/// The MTU that every IPv6 path has (RFC 8200 §5). Packets built here are not larger, because tunnels reduce the MTU.
pub const PATH: usize = 1280;

const UDP: u8 = 17;

/// Whether an IP packet belongs to Babel: UDP to its port, on a link-local or multicast address of the link. Damaged
/// packets that look like Babel belong to it too: they must not be forwarded.
pub fn is_babel(packet: &[u8]) -> bool {
    let (Some(first), Some(&UDP), Some(destination), Some(port)) =
        (packet.first(), packet.get(6), packet.get(24..40), packet.get(42..44))
    else {
        return false;
    };
    let link = matches!(destination, [0xfe, 0x80..=0xbf, ..] | [0xff, 0x02, ..]);
    first >> 4 == 6 && link && port == PORT.to_be_bytes()
}

/// A Babel packet with its IPv6 and UDP headers.
///
/// # Panics
///
/// If `body` is longer than 65,527 bytes. It should fit in [`PATH`].
pub fn wrap(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(body.len() + 8).expect("a body that fits in a path of 1,280 bytes");
    let mut packet = Vec::with_capacity(HEADERS + body.len());
    // Class selector 6, as for routing protocols (RFC 4594 §3.1).
    packet.extend_from_slice(&[0x6c, 0, 0, 0]);
    packet.extend_from_slice(&udp_len.to_be_bytes());
    packet.extend_from_slice(&[UDP, 1]);
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(&PORT.to_be_bytes());
    packet.extend_from_slice(&PORT.to_be_bytes());
    packet.extend_from_slice(&udp_len.to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(body);
    let checksum = match !sum(&packet) {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[46..48].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The source and the Babel packet in an IP packet, if its checksum and lengths are right and it was sent as Babel
/// requires: from Babel's port, from a link-local address, with hop limit 1 (RFC 8966 §4).
pub(crate) fn unwrap(packet: &[u8]) -> Option<(Ipv6Addr, &[u8])> {
    if !is_babel(packet) || packet.len() < HEADERS || packet[7] != 1 || packet[40..42] != PORT.to_be_bytes() {
        return None;
    }
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&packet[8..24]).expect("16 bytes"));
    let len = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    // WireGuard pads packets. Bytes beyond the packet's own length are not part of it.
    let packet = packet.get(..40 + len(4))?;
    // A checksum of zero means none, which IPv6 does not have (RFC 8200 §8.1).
    let sound =
        packet.len() >= HEADERS && len(44) == packet.len() - 40 && packet[46..48] != [0, 0] && sum(packet) == 0xffff;
    (sound && source.is_unicast_link_local()).then(|| (source, &packet[HEADERS..]))
}

/// The Internet checksum's sum over the pseudo-header and everything from the UDP header on.
fn sum(packet: &[u8]) -> u16 {
    let (header, rest) = packet.split_at(40);
    let words = |bytes: &[u8]| {
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum::<u64>()
    };
    let mut sum = words(&header[8..]) + words(rest) + u64::from(UDP) + rest.len() as u64;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);
    const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 5, 6, 7, 8);

    /// The checksum of a packet written by hand, computed by hand.
    #[test]
    fn a_known_packet() {
        let packet = wrap(A, B, &[42, 2, 0, 0]);
        // fe80 twice, 1 to 8, 17, 12 twice, 1a28 twice and 2a02 are 25b9f; folded 5ba1.
        assert_eq!(packet[46..48], (!0x5ba1_u16).to_be_bytes());
        assert_eq!(unwrap(&packet), Some((A, &[42, 2, 0, 0][..])));
        assert_eq!(unwrap(&wrap(A, MULTICAST, &[1, 2, 3])), Some((A, &[1, 2, 3][..])), "an odd length");
        assert_eq!((packet[0] >> 4, packet[7]), (6, 1));
    }

    /// RFC 8966 §4.
    #[test]
    fn only_link_local_sources_with_one_hop_and_the_right_ports_are_read() {
        let good = wrap(A, B, b"babel");
        let fix = |mut packet: Vec<u8>| {
            packet[46..48].copy_from_slice(&[0, 0]);
            let checksum = !sum(&packet);
            packet[46..48].copy_from_slice(&checksum.to_be_bytes());
            packet
        };
        let changed = |at: usize, to: u8| {
            let mut packet = good.clone();
            packet[at] = to;
            fix(packet)
        };
        assert!(unwrap(&fix(good.clone())).is_some());
        assert!(unwrap(&changed(7, 2)).is_none() && unwrap(&changed(7, 255)).is_none(), "hop limit");
        assert!(unwrap(&changed(41, 0x29)).is_none(), "source port");
        assert!(unwrap(&changed(43, 0x29)).is_none(), "destination port");
        assert!(unwrap(&changed(8, 0x20)).is_none(), "a global source");
        assert!(unwrap(&changed(24, 0x20)).is_none(), "a global destination");
        assert!(unwrap(&changed(6, 6)).is_none(), "TCP");
        assert!(unwrap(&changed(0, 0x4c)).is_none(), "IPv4");
        let mut wrong = good.clone();
        wrong[50] ^= 1;
        assert!(unwrap(&wrong).is_none(), "checksum");
        let mut none = good;
        none[46..48].copy_from_slice(&[0, 0]);
        assert!(unwrap(&none).is_none(), "no checksum");
    }

    #[test]
    fn lengths_must_agree_and_padding_is_cut() {
        let good = wrap(A, B, b"babel!");
        for len in 0..good.len() {
            assert_eq!(unwrap(&good[..len]), None, "{len} bytes");
        }
        let mut padded = good;
        padded.extend_from_slice(&[0; 10]);
        assert_eq!(unwrap(&padded), Some((A, &b"babel!"[..])));
        for (at, by) in [(5, 1_u8), (5, 255), (45, 1), (45, 255)] {
            let mut wrong = padded.clone();
            wrong[at] = wrong[at].wrapping_add(by);
            assert_eq!(unwrap(&wrong), None);
        }
        let mut short = padded;
        short[4..6].copy_from_slice(&7_u16.to_be_bytes());
        assert_eq!(unwrap(&short), None);
    }
}
