//! A counter whose growth is logged at a limited rate.

use rustguard_core::time::Instant;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counts packets of one kind, and tells when a line in the log is due.
pub(crate) struct LoggedCounter {
    packets: AtomicU64,
    /// The time of the last line in the log, in nanoseconds.
    logged: AtomicU64,
    /// The time between two lines in the log.
    pause: Duration,
}

/// With at most one line in half a minute.
impl Default for LoggedCounter {
    fn default() -> Self {
        Self::every(Duration::from_secs(30))
    }
}

impl LoggedCounter {
    /// With at most one line in the log in each `pause`.
    pub(crate) fn every(pause: Duration) -> Self {
        Self { packets: AtomicU64::new(0), logged: AtomicU64::new(0), pause }
    }

    /// Counts a packet. Returns true when a line in the log is due.
    pub(crate) fn count(&self, now: Instant) -> bool {
        let before = self.packets.fetch_add(1, Ordering::Relaxed);
        let logged = self.logged.load(Ordering::Relaxed);
        let due = before == 0 || now.since(Instant::from_nanos(logged)) >= self.pause;
        // If several workers count, one writes the line.
        due && self.logged.compare_exchange(logged, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}
