//! A counter whose growth is worth a line in the log now and then.

use rustguard_core::time::Instant;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counts packets of one kind, and says when a line in the log is due.
#[derive(Default)]
pub(crate) struct LoggedCounter {
    packets: AtomicU64,
    /// When that was last logged, in nanoseconds.
    logged: AtomicU64,
}

impl LoggedCounter {
    /// Between two lines in the log.
    const PAUSE: Duration = Duration::from_secs(30);

    /// One more. Returns true when it is time to log that again.
    pub(crate) fn count(&self, now: Instant) -> bool {
        let before = self.packets.fetch_add(1, Ordering::Relaxed);
        let logged = self.logged.load(Ordering::Relaxed);
        let due = before == 0 || now.since(Instant::from_nanos(logged)) >= Self::PAUSE;
        // Of several workers, one writes the line.
        due && self.logged.compare_exchange(logged, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}
