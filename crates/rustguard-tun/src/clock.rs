//! The clocks: boottime (counts sleep, never goes back) and wall-clock time.
use std::time::Duration;

/// Nanoseconds of CLOCK_BOOTTIME.
pub fn boottime_nanos() -> u64 {
    todo!()
}
/// Time since the Unix epoch.
pub fn unix() -> Duration {
    todo!()
}
