//! How often the workers get another table.

use rustguard_core::time::Instant;
use std::time::Duration;

/// The first table after a rest is made at once. From then on, making tables takes at most a fifth of the time. Larger
/// tables take longer.
#[derive(Default)]
pub(super) struct Pace {
    pub(super) next: Instant,
}

impl Pace {
    /// The longest wait: for a table of 100,000 prefixes, which takes 2.7 ms to make.
    const LONGEST: Duration = Duration::from_millis(10);

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// A table was made, which took this long.
    pub(super) fn made(&mut self, took: Duration, ended: Instant) {
        self.next = ended + (took * 4).min(Self::LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    #[test]
    fn a_change_is_shown_at_once_and_a_storm_in_a_fifth_of_the_time() {
        let mut pace = Pace::default();
        let (mut now, mut tables) = (at(0), 0);
        assert!(pace.is_due(now), "the first");
        while now < at(1_000) {
            if pace.is_due(now) {
                now = now + Duration::from_millis(2);
                pace.made(Duration::from_millis(2), now);
                tables += 1;
            } else {
                now = now + Duration::from_micros(100);
            }
        }
        assert_eq!(tables, 100, "2 ms each, 8 ms apart");
        pace.made(Duration::from_secs(1), at(2_000));
        assert!(!pace.is_due(at(2_000)) && pace.is_due(at(2_000) + Pace::LONGEST));
    }
}
