//! A counter whose growth is worth a line in the log now and then.

use rustguard_core::time::Instant;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counts packets of one kind, and says when a line in the log is due.
pub(crate) struct LoggedCounter {
    packets: AtomicU64,
    /// When that was last logged, in nanoseconds.
    logged: AtomicU64,
    /// Between two lines in the log.
    pause: Duration,
}

/// With a line in half a minute.
impl Default for LoggedCounter {
    fn default() -> Self {
        Self::every(Duration::from_secs(30))
    }
}

impl LoggedCounter {
    /// With a line in the log in each `pause`.
    pub(crate) fn every(pause: Duration) -> Self {
        Self { packets: AtomicU64::new(0), logged: AtomicU64::new(0), pause }
    }

    /// One more. Returns true when it is time to log that again.
    pub(crate) fn count(&self, now: Instant) -> bool {
        let before = self.packets.fetch_add(1, Ordering::Relaxed);
        let logged = self.logged.load(Ordering::Relaxed);
        let due = before == 0 || now.since(Instant::from_nanos(logged)) >= self.pause;
        // Of several workers, one writes the line.
        due && self.logged.compare_exchange(logged, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}
