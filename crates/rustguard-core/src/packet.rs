//! The head of an inner IP packet: as much as forwarding needs.
use core::net::IpAddr;

/// What padding rounds a text up to (whitepaper §5.4.6).
pub(crate) const PADDING: usize = 16;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
/// The IPv6 next header that every router has to look at.
const HOP_BY_HOP: u8 = 0;
/// Protocols whose header begins with two ports.
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// A checked view of an IPv4 or IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHead {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The packet's length by its own header, at most the bytes given (the rest is padding).
    pub len: usize,
}

impl IpHead {
    /// Reads the head of `packet`; `None` when it is not IP, is cut short or contradicts itself.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    /// RFC 791, section 3.1.
    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let header: &[u8; IPV4_HEADER_LEN] = packet.first_chunk()?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let sound = header_len >= IPV4_HEADER_LEN && header_len <= len && len <= packet.len();
        sound.then(|| Self { source: address::<4>(header, 12), destination: address::<4>(header, 16), len })
    }

    /// RFC 8200, section 3. Jumbograms do not exist here: their length of zero makes them a bare header.
    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let header: &[u8; IPV6_HEADER_LEN] = packet.first_chunk()?;
        let len = IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let sound = len <= packet.len();
        sound.then(|| Self { source: address::<16>(header, 8), destination: address::<16>(header, 24), len })
    }
}

/// Takes a hop off a packet that is passed on, as a router does; false, and nothing is changed, where a router has to do more.
///
/// That is the case when the time to live ends here (somebody is owed an ICMP message), and where options ask each router
/// for attention: IPv4 options (RFC 791, section 3.1), IPv6 hop-by-hop options (RFC 8200, section 4.3). The IPv4 checksum is
/// adjusted by the difference (RFC 1624), so that a wrong one stays wrong.
pub fn take_hop(packet: &mut [u8]) -> bool {
    match packet {
        [0x45, _, _, _, _, _, _, _, ttl @ 2..=255, _, high, low, ..] => {
            *ttl -= 1;
            // The time to live is the high byte of its word: the sum's complement grows by 0x0100, end around.
            let (sum, carry) = u16::from_be_bytes([*high, *low]).overflowing_add(0x0100);
            [*high, *low] = (sum + u16::from(carry)).to_be_bytes();
            true
        }
        [0x60..=0x6f, _, _, _, _, _, next, hop_limit @ 2..=255, ..] if *next != HOP_BY_HOP => {
            *hop_limit -= 1;
            true
        }
        _ => false,
    }
}

/// A hash of what makes a flow: addresses, protocol and, where they are in the packet, ports. Fragments of one packet have
/// the same: the first has ports that the others lack, so none has them.
pub fn flow(packet: &[u8], head: &IpHead) -> u64 {
    let (protocol, transport) = match packet {
        [0x60..=0x6f, _, _, _, _, _, next, ..] => (*next, IPV6_HEADER_LEN),
        [first, ..] => {
            let fragment = packet.get(6..8).is_none_or(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]) & 0x3fff != 0);
            let header = usize::from(first & 0x0f) * 4;
            (packet.get(9).copied().unwrap_or(0), if fragment { usize::MAX } else { header })
        }
        [] => (0, usize::MAX),
    };
    let ports = match protocol {
        TCP | UDP | DCCP | SCTP | UDP_LITE => packet.get(transport..).and_then(|rest| rest.first_chunk::<4>()),
        _ => None,
    };
    let ports = ports.map_or(0, |ports| u32::from_be_bytes(*ports));
    let fold = |address: IpAddr| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 ^ (address.to_bits() as u64).rotate_left(29),
    };
    // The rest of the mixing is done by who uses it (NextHops::pick); here no two inputs may cancel each other.
    let mut hash = fold(head.source).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash.rotate_left(31) ^ fold(head.destination)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash.rotate_left(31) ^ (u64::from(ports) << 8 | u64::from(protocol))).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The length `len` grows to before sealing: a multiple of 16, but never past `mtu` (paper §5.4.6).
///
/// A packet longer than the MTU (a super-packet of several segments) is padded by what its last segment needs, as the
/// kernel does. An `mtu` of 0 means unknown: no limit.
pub fn padded_len(len: usize, mtu: usize) -> usize {
    let last = if mtu != 0 && len > mtu { len % mtu } else { len };
    let Some(mut padded) = last.checked_next_multiple_of(PADDING) else { return len };
    if mtu != 0 {
        padded = padded.min(mtu);
    }
    len.saturating_add(padded - last)
}

fn address<const N: usize>(header: &[u8], at: usize) -> IpAddr
where
    IpAddr: From<[u8; N]>,
{
    IpAddr::from(*header[at..].first_chunk::<N>().expect("the header is long enough for its addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};
    use proptest::prelude::*;

    fn v4(total: u16, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0; bytes];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet
    }

    #[test]
    fn a_flow_has_one_hash_and_others_have_others() {
        let mut first = v4(40, 40);
        first[9] = TCP;
        first[20..24].copy_from_slice(&[1, 2, 3, 4]);
        let hash = |packet: &[u8]| flow(packet, &IpHead::parse(packet).expect("a packet"));
        let mut later = first.clone();
        (later[8], later[30]) = (1, 77);
        assert_eq!(hash(&first), hash(&later), "only addresses, protocol and ports count");
        for at in [9, 12, 16, 20, 23] {
            let mut other = first.clone();
            other[at] ^= 16;
            assert_ne!(hash(&first), hash(&other), "byte {at}");
        }
        // The first fragment has ports, the next one has payload in their place.
        let (mut one, mut two) = (first.clone(), first.clone());
        (one[6], two[7]) = (0x20, 1);
        two[20..24].fill(9);
        assert_eq!(hash(&one), hash(&two));
        let mut six = vec![0; 44];
        (six[0], six[5], six[6]) = (0x60, 4, UDP);
        let mut other = six.clone();
        other[43] = 1;
        assert_ne!(hash(&six), hash(&other));
        six.truncate(40);
        six[5] = 0;
        let _ = hash(&six);
    }

    #[test]
    fn heads_of_both_families() {
        let head = IpHead::parse(&v4(28, 32)).expect("a packet with padding");
        assert_eq!(head.source, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((head.destination, head.len), (IpAddr::from([10, 0, 0, 2]), 28));

        let mut packet = vec![0; 48];
        packet[0] = 0x60;
        packet[5] = 3;
        packet[23] = 1;
        packet[39] = 2;
        let head = IpHead::parse(&packet).expect("a packet with padding");
        assert_eq!(head.source, "::1".parse::<IpAddr>().expect("an address"));
        assert_eq!((head.destination, head.len), ("::2".parse().expect("an address"), 43));
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(IpHead::parse(&v4(33, 32)), None, "longer than it is");
        assert_eq!(IpHead::parse(&v4(19, 32)), None, "shorter than its header");
        assert_eq!(IpHead::parse(&v4(20, 20)[..19]), None, "cut");
        let mut options = v4(20, 32);
        options[0] = 0x46;
        assert_eq!(IpHead::parse(&options), None, "options past the end");
        options[0] = 0x44;
        assert_eq!(IpHead::parse(&options), None, "a header of 16 bytes");
        assert_eq!(IpHead::parse(&[0x60; 39]), None);
        assert_eq!(IpHead::parse(&[0x55; 64]), None);
        assert_eq!(IpHead::parse(&[]), None);
    }

    #[test]
    fn padding_to_16_but_never_past_the_mtu() {
        assert_eq!([0, 1, 16, 17, 1419].map(|len| padded_len(len, 1420)), [0, 16, 16, 32, 1420]);
        assert_eq!(padded_len(1425, 1420), 1436, "five bytes over, padded to sixteen");
        assert_eq!(padded_len(2840, 1420), 2840);
        assert_eq!(padded_len(100, 0), 112);
        assert_eq!(padded_len(usize::MAX, 0), usize::MAX);
    }

    /// The sum of all words of an IPv4 header, folded: 0xffff for a sound one.
    fn header_sum(header: &[u8]) -> u16 {
        let sum: u32 = header[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }

    #[test]
    fn the_last_hop_and_options_are_left_to_a_router() {
        for (first, ttl) in [(0x45, 0), (0x45, 1), (0x46, 64), (0x44, 64), (0x65, 64)] {
            let mut packet = v4(28, 28);
            (packet[0], packet[8], packet[7]) = (first, ttl, 1);
            let before = packet.clone();
            assert!(!take_hop(&mut packet), "{first:#x} {ttl}");
            assert_eq!(packet, before);
        }
        for (next, hop_limit) in [(0, 64), (6, 0), (6, 1)] {
            let mut packet = vec![0; 40];
            (packet[0], packet[6], packet[7]) = (0x6f, next, hop_limit);
            assert!(!take_hop(&mut packet));
        }
        let mut packet = vec![0; 40];
        (packet[0], packet[6], packet[7]) = (0x6f, 58, 2);
        assert!(take_hop(&mut packet));
        assert_eq!(packet[7], 1);
        assert!(!take_hop(&mut []) && !take_hop(&mut [0x45; 11]) && !take_hop(&mut [0x60; 7]));
    }

    proptest! {
        #[test]
        fn a_hop_keeps_a_sound_checksum_sound_and_a_wrong_one_wrong(
            mut header in proptest::collection::vec(any::<u8>(), 20), ttl in 2..=255_u8, damage in any::<u16>(),
        ) {
            header[0] = 0x45;
            header[8] = ttl;
            header[10..12].fill(0);
            let checksum = !header_sum(&header);
            header[10..12].copy_from_slice(&(checksum ^ damage).to_be_bytes());
            let sound = header_sum(&header) == 0xffff;
            prop_assert!(take_hop(&mut header));
            prop_assert_eq!(header[8], ttl - 1);
            prop_assert_eq!(header_sum(&header) == 0xffff, sound);
        }

        #[test]
        fn padding_never_shrinks_nor_passes_the_mtu(len in any::<usize>(), mtu in any::<usize>(), small in 0..70_000_usize, small_mtu in 0..70_000_usize) {
            for (len, mtu) in [(len, mtu), (small, small_mtu), (len, small_mtu)] {
                let padded = padded_len(len, mtu);
                prop_assert!(padded >= len && padded - len < PADDING);
                prop_assert!(len > mtu || mtu == 0 || padded <= mtu);
                prop_assert!(padded.is_multiple_of(PADDING) || !mtu.is_multiple_of(PADDING) || len > mtu || len > usize::MAX - PADDING);
            }
        }

        #[test]
        fn no_bytes_panic_and_the_length_is_within(packet in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(head) = IpHead::parse(&packet) {
                prop_assert!(head.len <= packet.len());
            }
        }
    }
}
