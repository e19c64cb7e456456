//! The Internet checksum (RFC 1071): ones' complement sums of 16-bit words.

/// The sum of `bytes`, folded but not inverted.
///
/// Four accumulators that never overflow let the processor add 32 bytes in a few cycles: the order of words does not
/// matter, nor does their byte order, which is put right at the end.
pub(super) fn sum(bytes: &[u8]) -> u16 {
    let mut lanes = [0u128; 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u128::from(u64::from_ne_bytes(*word));
        }
    }
    let mut total = lanes.iter().sum::<u128>();
    for word in rest.chunks(2) {
        total += u128::from(u16::from_ne_bytes([word[0], *word.get(1).unwrap_or(&0)]));
    }
    while total > u128::from(u16::MAX) {
        // 2^16 is 1 in ones' complement, and so is every power of it.
        total = (total & 0xffff_ffff) + (total >> 32 & 0xffff_ffff) + (total >> 64);
        total = (total & 0xffff) + (total >> 16);
    }
    u16::from_be(total as u16)
}

/// The ones' complement sum of both.
pub(super) fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// The sum of the pseudo-header of TCP and UDP (RFC 9293 §3.1, RFC 8200 §8.1): `addresses` are source and destination.
pub(super) fn pseudo(addresses: &[u8], protocol: u8, len: usize) -> u16 {
    // Lengths above 65,535 do not occur: no packet here is longer.
    add(add(sum(addresses), u16::from(protocol)), len as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 §3 as it stands.
    #[test]
    fn the_rfcs_example() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[]), 0);
        assert_eq!(sum(&[0xff; 65_535]), 0xff00, "0xffff is zero in ones' complement, the odd byte counts as high");
    }

    proptest! {
        #[test]
        fn it_is_the_sum_of_words(bytes in proptest::collection::vec(any::<u8>(), 0..4_000)) {
            let words = bytes.chunks(2).map(|word| u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
            prop_assert_eq!(sum(&bytes) % 0xffff, words.fold(0, add) % 0xffff);
        }
    }
}
