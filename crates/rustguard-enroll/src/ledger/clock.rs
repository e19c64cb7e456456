//! The ledger's clock.
use crate::lease::UnixSeconds;
use core::time::Duration;
use rustguard_core::time::{Instant, Now};

/// A wall clock that leaps forward by more than this has been set, or the machine was off.
const LEAP: Duration = Duration::from_secs(60);

/// Seconds since 1970 that never go back, and never stand still: the greater of the wall clock and of what the
/// monotonic clock makes of the time seen before.
#[derive(Debug)]
pub(super) struct Clock {
    time: Duration,
    at: Instant,
}

impl Clock {
    /// Starts with the wall clock, or with the `highest` time that was ever seen.
    pub(super) fn new(highest: UnixSeconds, now: Now) -> Self {
        Self { time: now.unix.max(Duration::from_secs(highest)), at: now.instant }
    }

    /// Takes note of the time. True if the wall clock leapt forward.
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

    /// When it will be `time`, if nobody sets the wall clock.
    pub(super) fn instant_of(&self, time: UnixSeconds) -> Instant {
        self.at + Duration::from_secs(time).saturating_sub(self.time)
    }

    /// What time it will be at `instant`, rounded up.
    pub(super) fn time_of(&self, instant: Instant) -> UnixSeconds {
        let time = self.time.saturating_add(instant.since(self.at));
        time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
    }
}
