//! Round trips: measured by timestamps in Hellos and IHUs (RFC 9616 §3), smoothed, and turned into a cost (§4).
use crate::{
    params::{COST, COST_MAX},
    wire::tlv::Timestamps,
};
use core::time::Duration;

/// Timestamps older than this measure something else (RFC 9616 §3.3), in microseconds.
const OLDEST: u32 = 180_000_000;

/// Smoothing starts with the least of this many measurements. On a link that has just come up, several packets wait up
/// to a second for address resolution, and the smoothed value would need half a minute to recover from one such
/// measurement.
const FIRST: u8 = 8;

/// The round trip to a neighbour. Timestamps are in microseconds, modulo 2^32.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    /// The last Hello of the neighbour.
    last_hello: Option<Timestamps>,
    smoothed: Option<Duration>,
    /// How many measurements were taken, counted up to [`FIRST`].
    samples: u8,
}

impl RoundTrip {
    /// Notes a Hello that was sent at `sent` by the neighbour's clock. `ihu` are the timestamps of an IHU in the same
    /// packet: when this node sent its last Hello, by its own clock, and when the neighbour received that Hello, by
    /// the neighbour's clock.
    pub(crate) fn hello(&mut self, sent: u32, ihu: Option<Timestamps>, now: u32) {
        let recent = |later: u32, earlier: u32| later.wrapping_sub(earlier) <= OLDEST;
        let in_order = self.last_hello.is_none_or(|last| recent(sent, last.sent));
        if let Some(ours) = ihu.filter(|ours| in_order && recent(now, ours.sent)) {
            let there = sent.wrapping_sub(ours.received);
            if let Some(rtt) = now.wrapping_sub(ours.sent).checked_sub(there) {
                self.sample(Duration::from_micros(rtt.into()));
            }
        }
        self.last_hello = Some(Timestamps { sent, received: now });
    }

    /// Takes a measurement. Of the first measurements, the least counts. Later ones are smoothed with a weight of 0.164
    /// (§4.1).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        let rtt = rtt.min(Duration::from_micros(OLDEST.into()));
        self.smoothed = Some(match self.smoothed {
            Some(smoothed) if self.samples < FIRST => smoothed.min(rtt),
            Some(smoothed) => (smoothed * 836 + rtt * 164) / 1_000,
            None => rtt,
        });
        self.samples = (self.samples + 1).min(FIRST);
    }

    /// The timestamps for an IHU.
    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        self.last_hello
    }

    /// The smoothed round trip.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The addition to the cost of a link for the round trip.
    pub(crate) fn penalty(&self) -> u16 {
        self.smoothed.map_or(0, penalty)
    }
}

/// No penalty up to 2 ms, where all links are alike. Then 8 for each millisecond, so that within a continent the sum
/// along a path follows the sum of the delays. From 100 ms on 2 for each millisecond, up to a bound: very bad links are
/// equally bad (§4.2).
fn penalty(rtt: Duration) -> u16 {
    let micros = rtt.as_micros();
    let steep = micros.clamp(2_000, 100_000) - 2_000;
    let flat = micros.max(100_000) - 100_000;
    let penalty = (steep * 8 + flat * 2) / 1_000;
    u16::try_from(penalty).unwrap_or(u16::MAX).min(COST_MAX - COST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u32 = 1_000;

    fn stamps(sent: u32, received: u32) -> Option<Timestamps> {
        Some(Timestamps { sent, received })
    }

    #[test]
    fn mills_algorithm() {
        let mut rtt = RoundTrip::default();
        // Our Hello left at 100 ms and arrived at 5,000 by their clock. Their Hello left 300 ms later and arrived at
        // 420.
        rtt.hello(5_300 * MS, stamps(100 * MS, 5_000 * MS), 420 * MS);
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(20)));
        assert_eq!(rtt.timestamps(), stamps(5_300 * MS, 420 * MS));
        (1..FIRST).for_each(|_| rtt.sample(Duration::from_millis(20)));
        rtt.hello(5_600 * MS, stamps(500 * MS, 5_500 * MS), 720 * MS);
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(20_000 * 836 / 1_000 + 120_000 * 164 / 1_000)));
    }

    #[test]
    fn the_least_of_the_first_counts() {
        let mut rtt = RoundTrip::default();
        for (sample, smoothed) in
            [(500, 500), (400, 400), (450, 400), (30, 30), (500, 30), (31, 30), (500, 30), (500, 30)]
        {
            rtt.sample(Duration::from_millis(sample));
            assert_eq!(rtt.smoothed(), Some(Duration::from_millis(smoothed)));
        }
        rtt.sample(Duration::from_millis(20));
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(30 * 836 + 20 * 164)));
    }

    #[test]
    fn both_clocks_wrap() {
        let mut rtt = RoundTrip::default();
        let (ours, theirs) = (u32::MAX - 100 * MS, u32::MAX - 50 * MS);
        rtt.hello(theirs.wrapping_add(300 * MS), stamps(ours, theirs), ours.wrapping_add(320 * MS));
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn nonsense_is_recorded_and_not_used() {
        let fresh = |sent, ihu, now| {
            let mut rtt = RoundTrip::default();
            rtt.hello(5_000_000, None, 1_000_000);
            rtt.hello(sent, ihu, now);
            assert_eq!(rtt.timestamps(), stamps(sent, now));
            rtt.smoothed()
        };
        assert!(fresh(5_300_000, stamps(1_100_000, 5_100_000), 1_400_000).is_some());
        assert_eq!(fresh(5_300_000, stamps(1_500_000, 5_100_000), 1_400_000), None, "sent in the future");
        assert_eq!(fresh(195_000_000, stamps(1_100_000, 5_100_000), 191_000_000), None, "too long ago");
        assert_eq!(fresh(4_900_000, stamps(1_100_000, 4_800_000), 1_400_000), None, "an older Hello");
        assert_eq!(fresh(5_300_000, stamps(1_100_000, 4_000_000), 1_400_000), None, "longer there than away");
        assert_eq!(fresh(5_300_000, None, 1_400_000), None);
    }

    #[test]
    fn the_cost_is_monotonic_and_bounded() {
        assert_eq!([0, 1, 2].map(|ms| penalty(Duration::from_millis(ms))), [0; 3]);
        assert_eq!(penalty(Duration::from_millis(100)), 784);
        assert_eq!(penalty(Duration::from_millis(300)), 784 + 400);
        let all: Vec<u16> = (0..2_000).map(|ms| penalty(Duration::from_millis(ms))).collect();
        assert!(all.is_sorted());
        assert_eq!(COST + penalty(Duration::from_secs(3_600)), COST_MAX);
    }
}
