//! Detects which flows the link reorders. The others are not held.

use crate::time::Instant;
use alloc::{boxed::Box, vec};
use core::time::Duration;

/// The number of places. Flows in the same place are treated alike.
const PLACES: usize = 1 << u8::BITS;
/// How long a flow counts as out of order.
pub(super) const REMEMBERED: Duration = Duration::from_secs(4);

/// The flows of a session, by hash.
#[derive(Debug)]
pub(super) struct Flows(Box<[Flow]>);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// One more than the greatest counter of a long packet.
    next: u64,
    /// When a long packet was last found to be overtaken.
    overtaken: Option<Instant>,
    /// How many of its packets are held.
    pub(super) held: u32,
}

impl Default for Flows {
    fn default() -> Self {
        Self(vec![Flow::default(); PLACES].into())
    }
}

impl Flows {
    pub(super) fn get(&mut self, place: u8) -> &mut Flow {
        &mut self.0[usize::from(place)]
    }

    /// Counters start over.
    pub(super) fn restart(&mut self) {
        self.0.iter_mut().for_each(|flow| flow.next = 0);
    }
}

impl Flow {
    /// Takes a long packet. Returns whether a later one arrived before it.
    pub(super) fn is_overtaken_by(&mut self, counter: u64, now: Instant) -> bool {
        let overtaken = counter < self.next;
        if overtaken {
            self.overtaken = Some(now);
        } else {
            self.next = counter + 1;
        }
        overtaken
    }

    /// Whether the link has reordered it lately.
    pub(super) fn is_disordered(&self, now: Instant) -> bool {
        self.overtaken.is_some_and(|at| now.since(at) < REMEMBERED)
    }
}
