//! Explicit congestion notification through a tunnel (RFC 6040).
//!
//! When a packet is sent, its codepoint is copied to the outer header (section 4.1, normal mode), so that a router may
//! mark the datagram instead of dropping it. When one is received, the outer codepoint is combined with the inner one
//! (section 4.2).
//!
//! The kernel's WireGuard differs in two points. It sends ECT(0) if the inner packet says CE, as in RFC 3168; the inner
//! packet is the same in either case. And it accepts a packet that is Not-ECT inside and CE outside, which RFC 6040
//! drops. This module accepts it too: tunnels have to work across networks that damage these bits.

/// The bits of the codepoint in a DS field or a traffic class.
pub const MASK: u8 = 0b11;
/// Congestion was not signalled, and cannot be signalled.
pub const NOT_ECT: u8 = 0b00;
/// Congestion can be signalled; used by flows of L4S (RFC 9331), or as an early mark.
pub const ECT_1: u8 = 0b01;
/// Congestion can be signalled.
pub const ECT_0: u8 = 0b10;
/// Congestion was experienced.
pub const CE: u8 = 0b11;

/// The codepoint of an IP packet; Not-ECT for other bytes.
pub fn of(packet: &[u8]) -> u8 {
    match *packet {
        [0x40..=0x4f, tos, ..] => tos & MASK,
        [0x60..=0x6f, class, ..] => (class >> 4) & MASK,
        _ => NOT_ECT,
    }
}

/// Combines the codepoint of an IP packet with the one of its outer header. The checksum of an IPv4 header is adjusted
/// by the difference (RFC 1624), so that a wrong one stays wrong.
pub fn decapsulate(packet: &mut [u8], outer: u8) {
    let inner = of(packet);
    let combined = match (inner, outer & MASK) {
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (ECT_0, ECT_1) => ECT_1,
        _ => inner,
    };
    let change = inner ^ combined;
    match packet {
        _ if change == 0 => {}
        [0x40..=0x4f, tos, _, _, _, _, _, _, _, _, high, low, ..] => {
            *tos ^= change;
            // RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). Only the low byte of a word changes.
            let checksum = u16::from_be_bytes([*high, *low]);
            let words = [!checksum, !u16::from(inner), u16::from(combined)];
            let sum: u32 = words.into_iter().map(u32::from).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            [*high, *low] = (!(folded as u16)).to_be_bytes();
        }
        [0x60..=0x6f, class, ..] => *class ^= change << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(tos: u8) -> [u8; 20] {
        let mut packet = [0; 20];
        (packet[0], packet[1]) = (0x45, tos);
        packet
    }

    fn v6(class: u8) -> [u8; 40] {
        let mut packet = [0; 40];
        (packet[0], packet[1]) = (0x60 | class >> 4, class << 4);
        packet
    }

    /// The table of RFC 6040, section 4.2, except for the packet that would be dropped.
    #[test]
    fn the_rfcs_table() {
        let expected = [
            (NOT_ECT, [NOT_ECT; 4]),
            (ECT_0, [ECT_0, ECT_1, ECT_0, CE]),
            (ECT_1, [ECT_1, ECT_1, ECT_1, CE]),
            (CE, [CE; 4]),
        ];
        for (inner, combined) in expected {
            for (outer, combined) in [NOT_ECT, ECT_1, ECT_0, CE].into_iter().zip(combined) {
                for dscp in [0, 0xb8, 0xfc] {
                    let (mut four, mut six) = (v4(dscp | inner), v6(dscp | inner));
                    assert_eq!((of(&four), of(&six)), (inner, inner));
                    decapsulate(&mut four, 0x88 | outer);
                    decapsulate(&mut six, 0x88 | outer);
                    assert_eq!((four[1], of(&six)), (dscp | combined, combined), "{inner} in {outer}");
                    let (class, others) = (six[0] << 4 | six[1] >> 4, (six[0] >> 4, six[1] & 0xf));
                    assert_eq!((class, others), (dscp | combined, (6, 0)), "the rest stays");
                }
            }
        }
    }

    #[test]
    fn what_is_no_packet_is_left_alone() {
        for mut bytes in [[0x55; 20], [0x00; 20], [0xff; 20]] {
            let before = bytes;
            assert_eq!(of(&bytes), NOT_ECT);
            decapsulate(&mut bytes, CE);
            assert_eq!(bytes, before);
        }
        for len in 0..12 {
            decapsulate(&mut v4(ECT_0)[..len], CE);
        }
        assert_eq!((of(&[]), of(&[0x45]), of(&[0x60])), (0, 0, 0));
    }

    fn sum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }

    proptest! {
        #[test]
        fn a_sound_checksum_stays_sound_and_a_wrong_one_wrong(
            mut header in proptest::collection::vec(any::<u8>(), 20), outer: u8, damage: u16,
        ) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let checksum = !sum(&header);
            header[10..12].copy_from_slice(&(checksum ^ damage).to_be_bytes());
            let sound = sum(&header) == 0xffff;
            decapsulate(&mut header, outer);
            prop_assert_eq!(sum(&header) == 0xffff, sound);
        }
    }
}
