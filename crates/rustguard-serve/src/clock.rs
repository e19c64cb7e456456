//! The clock for the protocol, which has none of its own.

use rustguard_core::time::{Instant, Now};
use rustguard_tun::clock;

/// The time on both clocks.
pub(crate) fn now() -> Now {
    Now { instant: Instant::from_nanos(clock::boottime_nanos()), unix: clock::unix() }
}
