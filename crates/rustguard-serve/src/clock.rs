//! The clock of the protocol that is without one.

use rustguard_core::time::{Instant, Now};
use rustguard_tun::clock;

/// Both clocks.
pub(crate) fn now() -> Now {
    Now { instant: Instant::from_nanos(clock::boottime_nanos()), unix: clock::unix() }
}
