//! TAI64N timestamps, whitened: the replay protection of initiations (whitepaper §5.1).
use crate::wire::TIMESTAMP_LEN;
use core::time::Duration;

/// Seconds that TAI64 adds to Unix time: the label's 2^62, and the ten leap seconds before 1972.
const TAI_OFFSET: u64 = (1 << 62) + 10;

/// The nanoseconds of one step of a whitened timestamp.
///
/// The kernel's choice: the greatest power of two in 1/50 s, since no more than 50 initiations a second are processed.
/// A finer step would reveal more about the sender's clock to an observer of the decrypted handshake, for no benefit.
const STEP: u32 = 1 << 24;

/// A timestamp in the format of an initiation: big-endian seconds and nanoseconds, so that bytes compare as times do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub [u8; TIMESTAMP_LEN]);

impl Timestamp {
    /// The whitened timestamp of a moment, given as time since the Unix epoch.
    pub fn of(unix: Duration) -> Self {
        Self::from_parts(TAI_OFFSET.saturating_add(unix.as_secs()), unix.subsec_nanos() & !(STEP - 1))
    }

    /// The whitened timestamp of a moment, or the one after `last` if that is not later. Two initiations can fall into
    /// the same step, and the clock can be set back, but the other side accepts only strictly greater timestamps.
    pub fn after(last: Option<Self>, unix: Duration) -> Self {
        let now = Self::of(unix);
        match last {
            Some(last) if last >= now => last.next(),
            _ => now,
        }
    }

    /// The time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.to_duration().saturating_sub(earlier.to_duration())
    }

    /// The time since the label's zero. A timestamp from a peer may have any bytes.
    fn to_duration(self) -> Duration {
        let [seconds @ .., a, b, c, d] = self.0;
        let nanos = u32::from_be_bytes([a, b, c, d]).min(999_999_999);
        Duration::new(u64::from_be_bytes(seconds), nanos)
    }

    fn next(self) -> Self {
        let [seconds @ .., a, b, c, d] = self.0;
        let seconds = u64::from_be_bytes(seconds);
        let nanos = u32::from_be_bytes([a, b, c, d]) + STEP;
        if nanos < 1_000_000_000 {
            Self::from_parts(seconds, nanos)
        } else {
            Self::from_parts(seconds.saturating_add(1), 0)
        }
    }

    fn from_parts(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; TIMESTAMP_LEN];
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
    fn the_epoch_and_a_whitened_moment() {
        assert_eq!(Timestamp::of(Duration::ZERO).0, [0x40, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0]);
        let moment = Timestamp::of(Duration::new(1, 0x0123_4567));
        assert_eq!(moment.0, [0x40, 0, 0, 0, 0, 0, 0, 11, 1, 0, 0, 0]);
    }

    #[test]
    fn the_time_between_two() {
        let [early, late] = [Duration::new(5, 0), Duration::new(65, 0x0100_0000)].map(Timestamp::of);
        assert_eq!(late.since(early), Duration::new(60, 0x0100_0000));
        assert_eq!(early.since(late), Duration::ZERO);
        assert!(Timestamp([0xff; TIMESTAMP_LEN]).since(early) > Duration::from_secs(1 << 62), "no bytes panic");
    }

    proptest! {
        #[test]
        fn whitened_and_strictly_increasing(moments in proptest::collection::vec((0..10_u64, 0..1_000_000_000_u32), 1..200)) {
            let mut last = None;
            for (seconds, nanos) in moments {
                let next = Timestamp::after(last, Duration::new(seconds, nanos));
                prop_assert!(Some(next) > last);
                prop_assert!(next >= Timestamp::of(Duration::new(seconds, nanos)));
                prop_assert_eq!(&next.0[9..], &[0; 3]);
                last = Some(next);
            }
        }
    }
}
