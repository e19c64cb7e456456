//! Time as an argument: the core never asks what time it is.
use core::time::Duration;

/// Nanoseconds on a clock that never goes back and also counts while the machine sleeps (CLOCK_BOOTTIME on Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// From nanoseconds since the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Both clocks at one moment. `instant` is for all timers; `unix`, the wall clock, is only for timestamps of
/// initiations.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The clock of the timers.
    pub instant: Instant,
    /// Wall-clock time since the Unix epoch.
    pub unix: Duration,
}
