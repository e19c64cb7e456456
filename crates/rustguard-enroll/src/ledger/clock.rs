//! The ledger's clock.
use crate::lease::UnixSeconds;
use core::time::Duration;
use rustguard_core::time::{Instant, Now};

/// If the wall clock leaps forward by more than this, it was set, or the machine was off.
const LEAP: Duration = Duration::from_secs(60);

/// Seconds since 1970 that never go back and never stop. The value is the larger of two: the wall clock, and the last
/// value advanced by the monotonic clock.
#[derive(Debug)]
pub(super) struct Clock {
    time: Duration,
    at: Instant,
}

impl Clock {
    /// Starts with the later of the wall clock and `highest`, the highest time ever seen.
    pub(super) fn new(highest: UnixSeconds, now: Now) -> Self {
        Self { time: now.unix.max(Duration::from_secs(highest)), at: now.instant }
    }

    /// Advances to `now`. Returns true if the wall clock leapt forward.
    pub(super) fn advance(&mut self, now: Now) -> bool {
        let passed = self.time.saturating_add(now.instant.since(self.at));
        self.at = self.at.max(now.instant);
        self.time = passed.max(now.unix);
        self.time > passed.saturating_add(LEAP)
    }

    /// The time as of the last `advance`.
    pub(super) fn seconds(&self) -> UnixSeconds {
        self.time.as_secs()
    }

    /// The instant at which the clock reaches `time`, if the wall clock is not set.
    pub(super) fn instant_of(&self, time: UnixSeconds) -> Instant {
        self.at + Duration::from_secs(time).saturating_sub(self.time)
    }

    /// The clock's time at `instant`, rounded up.
    pub(super) fn time_of(&self, instant: Instant) -> UnixSeconds {
        let time = self.time.saturating_add(instant.since(self.at));
        time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
    }
}
