//! The clocks: CLOCK_BOOTTIME, which counts time asleep and never goes back, and wall-clock time.
use crate::sys;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// CLOCK_BOOTTIME in nanoseconds.
///
/// WireGuard's timers must include the time for which a machine was suspended, so that keys that expired meanwhile are
/// not used again (whitepaper section 6.1). CLOCK_MONOTONIC does not advance during that time.
pub fn boottime_nanos() -> u64 {
    let time = sys::boottime();
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// The time since the Unix epoch; zero when the wall clock is set to an earlier time.
pub fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_advances_and_is_not_behind_uptime() {
        let first = boottime_nanos();
        let second = boottime_nanos();
        assert!(first > 0 && second >= first);
    }

    #[test]
    fn unix_time_is_after_this_was_written() {
        assert!(unix() > Duration::from_secs(1_700_000_000));
    }
}
