//! Counts since the start, for `show`, `status` and metrics.

use rustguard_device::Counter;
use rustguard_enroll::audit::{AuditEvent, AuditRecord};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of admissions, refusals and removals. Shared with the device, which shows them among its own
/// ([`Builder::counters`](rustguard_device::Builder::counters)).
#[derive(Debug, Default)]
pub struct Counters {
    admitted: AtomicU64,
    rejoined: AtomicU64,
    refused: AtomicU64,
    removed: AtomicU64,
}

impl Counters {
    /// The counters that are not zero, with their names.
    pub fn snapshot(&self) -> Vec<Counter> {
        let all = [
            ("admitted", &self.admitted),
            ("rejoined", &self.rejoined),
            ("refused", &self.refused),
            ("removed", &self.removed),
        ];
        let counts = all.map(|(name, count)| Counter::new(name, count.load(Ordering::Relaxed)));
        counts.into_iter().filter(|counter| counter.value > 0).collect()
    }

    pub(crate) fn count(&self, record: &AuditRecord) {
        let counter = match record.event {
            AuditEvent::Admitted | AuditEvent::PeerAdded => &self.admitted,
            AuditEvent::Rejoined => &self.rejoined,
            AuditEvent::Refused => &self.refused,
            AuditEvent::Removed => &self.removed,
            _ => return,
        };
        counter.fetch_add(record.count.into(), Ordering::Relaxed);
    }
}
