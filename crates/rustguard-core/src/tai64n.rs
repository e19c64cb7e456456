//! TAI64N timestamps (<https://cr.yp.to/libtai/tai64.html>), whitened: enough to order initiations, too coarse to
//! fingerprint a clock.

use core::time::Duration;

/// Bytes of a timestamp.
pub const LEN: usize = 12;

/// Seconds of TAI64's label for the Unix epoch: 2^62, and the ten seconds by which TAI was ahead in 1970.
const EPOCH: u64 = 0x4000_0000_0000_000a;
/// Nanoseconds are cut to multiples of 2^24 (16.8 ms), as the kernel does: more than twenty initiations a second from one
/// peer carry the same timestamp and are refused, which is within the limit of 50.
const WHITENING: u32 = 1 << 24;

/// A timestamp. Orders as its bytes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tai64n([u8; LEN]);

impl Tai64n {
    /// The timestamp of `unix` (since the Unix epoch), whitened.
    pub fn whitened(unix: Duration) -> Self {
        Self::new(EPOCH.wrapping_add(unix.as_secs()), unix.subsec_nanos() / WHITENING * WHITENING)
    }

    /// The least whitened timestamp that is greater.
    #[must_use]
    pub fn successor(self) -> Self {
        let seconds = u64::from_be_bytes(*self.0.first_chunk().expect("twelve bytes"));
        let nanos = u32::from_be_bytes(*self.0.last_chunk().expect("twelve bytes"));
        let next = (nanos / WHITENING).saturating_add(1).saturating_mul(WHITENING);
        if next < 1_000_000_000 { Self::new(seconds, next) } else { Self::new(seconds.wrapping_add(1), 0) }
    }

    /// From the wire.
    pub const fn from_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// For the wire.
    pub const fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    fn new(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_epoch_and_a_second_of_it() {
        assert_eq!(Tai64n::whitened(Duration::ZERO).as_bytes(), &[0x40, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0]);
        assert_eq!(Tai64n::whitened(Duration::from_secs(1)).as_bytes()[7], 0x0b);
    }

    proptest! {
        #[test]
        fn c12_whitened_ordered_and_always_surpassed(secs in 0..1_u64 << 40, nanos in 0..1_000_000_000_u32) {
            let stamp = Tai64n::whitened(Duration::new(secs, nanos));
            prop_assert_eq!(&stamp.as_bytes()[9..], &[0; 3]);
            prop_assert!(stamp.successor() > stamp);
            prop_assert!(stamp.successor() <= Tai64n::whitened(Duration::new(secs + 1, 0)));
            prop_assert!(Tai64n::whitened(Duration::new(secs + 1, nanos)) > stamp);
        }
    }
}
