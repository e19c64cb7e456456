//! The head of an inner IP packet: as much as forwarding needs.
use crate::bytes::field;
use core::net::IpAddr;

/// The multiple to which a text is padded (whitepaper §5.4.6).
pub(crate) const PADDING: usize = 16;
/// Bytes of an IPv4 header without options (RFC 791, section 3.1).
pub(crate) const IPV4_HEADER_LEN: usize = 20;
/// Bytes of an IPv6 header (RFC 8200, section 3).
pub(crate) const IPV6_HEADER_LEN: usize = 40;
/// The IPv6 next header that every router has to look at.
pub(crate) const HOP_BY_HOP: u8 = 0;
/// A checked view of an IPv4 or IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHead {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The packet's length according to its header, at most the number of bytes given (the rest is padding).
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
        sound.then(|| Self {
            source: (*field::<4>(header, 12)).into(),
            destination: (*field::<4>(header, 16)).into(),
            len,
        })
    }

    /// RFC 8200, section 3. Jumbograms are not supported: their length of zero makes them a bare header.
    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let header: &[u8; IPV6_HEADER_LEN] = packet.first_chunk()?;
        let len = IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let sound = len <= packet.len();
        sound.then(|| Self {
            source: (*field::<16>(header, 8)).into(),
            destination: (*field::<16>(header, 24)).into(),
            len,
        })
    }
}

/// Decrements the time to live of a relayed packet, as a router does. Returns false, without any change, if a router
/// has to do more.
///
/// A router has to do more if the time to live ends here (the sender must get an ICMP message), or if options need the
/// attention of each router: IPv4 options (RFC 791, section 3.1), IPv6 hop-by-hop options (RFC 8200, section 4.3). The
/// IPv4 checksum is adjusted by the difference (RFC 1624), so that a wrong one stays wrong.
pub fn take_hop(packet: &mut [u8]) -> bool {
    match packet {
        [0x45, _, _, _, _, _, _, _, ttl @ 2..=255, _, high, low, ..] => {
            *ttl -= 1;
            // The time to live is the high byte of its word: the checksum grows by 0x0100, with end-around carry.
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

/// The length to which `len` grows before sealing: a multiple of 16, but never more than `mtu` (paper §5.4.6).
///
/// A packet longer than the MTU (a super-packet of several segments) gets the padding of its last segment, as in the
/// kernel. An `mtu` of 0 means unknown: no limit.
pub fn padded_len(len: usize, mtu: usize) -> usize {
    let last = if mtu != 0 && len > mtu { len % mtu } else { len };
    let Some(mut padded) = last.checked_next_multiple_of(PADDING) else { return len };
    if mtu != 0 {
        padded = padded.min(mtu);
    }
    len.saturating_add(padded - last)
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

    /// The sum of all words of an IPv4 header, folded: 0xffff for a valid one.
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
