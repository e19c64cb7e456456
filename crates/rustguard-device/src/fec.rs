//! Parities of one peer, for the workers: see [`rustguard_core::fec`].

use parking_lot::Mutex;
use rustguard_core::{fec::Group, session::Sealer};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The parities that are sent in a session in which the peer has accepted them.
pub(crate) struct Outgoing {
    /// The index by which the peer knows the session.
    index: u32,
    /// Locked once per run.
    pub(crate) group: Mutex<Group>,
}

impl Outgoing {
    /// Parities in this session, one byte for `size` bytes of data.
    pub(crate) fn new(index: u32, size: u8) -> Self {
        Self { index, group: Mutex::new(Group::new(size)) }
    }

    /// Whether they belong to the session of this sealer.
    pub(crate) fn is_for(&self, sealer: &Sealer) -> bool {
        self.index == sealer.receiver()
    }
}

/// Counters of a peer's parities.
#[derive(Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    rebuilt: AtomicU64,
}

impl Counts {
    pub(crate) fn count_sent(&self, parities: usize) {
        self.sent.fetch_add(parities as u64, Relaxed);
    }

    pub(crate) fn count_rebuilt(&self, packets: usize) {
        self.rebuilt.fetch_add(packets as u64, Relaxed);
    }

    /// Parities that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Packets that were rebuilt from parities.
    pub(crate) fn rebuilt(&self) -> u64 {
        self.rebuilt.load(Relaxed)
    }
}
