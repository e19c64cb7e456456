//! The head of an inner IP packet: as much as forwarding needs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Bytes of an IPv6 header, and the least of an IPv4 header.
const V6_HEADER: usize = 40;
const V4_HEADER: usize = 20;

impl IpHead {
    /// Reads the head of `packet`; `None` when it is not IP, is cut short or contradicts itself.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let version = packet.first()? >> 4;
        match version {
            4 => {
                let header: &[u8; V4_HEADER] = packet.first_chunk()?;
                let header_len = usize::from(header[0] & 0x0f) * 4;
                let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
                let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
                (header_len >= V4_HEADER && header_len <= len && len <= packet.len()).then(|| Self {
                    source: Ipv4Addr::new(s0, s1, s2, s3).into(),
                    destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
                    len,
                })
            }
            6 => {
                let header: &[u8; V6_HEADER] = packet.first_chunk()?;
                let len = V6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
                let address = |at: usize| {
                    let octets: &[u8; 16] = header[at..at + 16].first_chunk().expect("a slice of 16 bytes");
                    IpAddr::from(Ipv6Addr::from(*octets))
                };
                (len <= packet.len()).then(|| Self { source: address(8), destination: address(24), len })
            }
            _ => None,
        }
    }
}

/// The length `len` grows to before sealing: a multiple of 16, but never past `mtu` (paper §5.4.6). A packet longer than
/// the MTU (it was read before the MTU shrank) is padded as its last part would be.
pub fn padded_len(len: usize, mtu: usize) -> usize {
    let last = if len > mtu && mtu > 0 { len % mtu } else { len };
    let padded = last.next_multiple_of(16);
    len - last + if mtu > 0 { padded.min(mtu.max(last)) } else { padded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V4: [u8; 20] = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];

    #[test]
    fn heads_of_both_versions() {
        let head = IpHead::parse(&V4).unwrap();
        assert_eq!((head.source, head.len), ("10.0.0.1".parse().unwrap(), 20));
        let mut v6 = [0; 48];
        v6[0] = 0x60;
        v6[5] = 8;
        v6[23] = 1;
        v6[39] = 2;
        let head = IpHead::parse(&v6).unwrap();
        assert_eq!((head.source, head.destination), ("::1".parse().unwrap(), "::2".parse().unwrap()));
        assert_eq!(head.len, 48);
        assert_eq!(IpHead::parse(&v6[..47]), None);
    }

    #[test]
    fn padding_behind_the_packet_is_not_part_of_it() {
        let mut padded = [0; 32];
        padded[..20].copy_from_slice(&V4);
        assert_eq!(IpHead::parse(&padded).unwrap().len, 20);
    }

    #[test]
    fn packets_that_contradict_themselves_are_none() {
        for (at, value) in [(0, 0x44), (0, 0x46), (3, 19), (3, 21), (0, 0x55)] {
            let mut packet = V4;
            packet[at] = value;
            assert_eq!(IpHead::parse(&packet), None, "byte {at} = {value:#x}");
        }
        assert_eq!(IpHead::parse(&[]), None);
        assert_eq!(IpHead::parse(&[0x60; 39]), None);
    }

    #[test]
    fn c19_padding_is_to_16_and_never_past_the_mtu() {
        for (len, mtu, padded) in [(0, 1420, 0), (1, 1420, 16), (16, 1420, 16), (1410, 1420, 1420), (1420, 1420, 1420)]
        {
            assert_eq!(padded_len(len, mtu), padded, "{len} of {mtu}");
        }
        assert_eq!(padded_len(1421, 1420), 1436, "longer than the MTU: as if its last part were alone");
        assert_eq!(padded_len(21, 0), 32);
    }

    proptest! {
        #[test]
        fn c27_padding_holds_for_every_length_and_mtu(len in 0..70_000_usize, mtu in 0..66_000_usize) {
            let padded = padded_len(len, mtu);
            prop_assert!(padded >= len && padded < len + 16);
            prop_assert!(len > mtu || mtu == 0 || padded <= mtu);
        }

        #[test]
        fn no_packet_panics(packet in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(head) = IpHead::parse(&packet) {
                prop_assert!(head.len <= packet.len());
            }
        }
    }
}
