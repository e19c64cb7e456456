//! How long a missing packet is waited for: as long as overtaken packets take to arrive.
//!
//! Each lost packet makes its flow wait in vain, and a packet that arrives after it was given up looks lost to the
//! flow.

use core::time::Duration;

/// No packet is waited for longer.
pub const LONGEST: Duration = Duration::from_millis(8);

/// The waits to choose from.
const PARTS: usize = 32;
const PART: Duration = Duration::from_nanos(LONGEST.as_nanos() as u64 / PARTS as u64);
/// One in this many packets may arrive after it was given up. A flow that loses so many of its packets is slow anyway.
const ENOUGH: u32 = 1_024;
/// If the longest wait leaves more than one late packet in this many, a flow gains little by any wait.
const USEFUL: u32 = 64;
/// Fewer overtaken packets are no basis for a choice.
const FEWEST: u32 = 8;
/// After this many packets, the counts are halved.
const FADING: u32 = 16_384;
/// The wait is chosen again after this many packets.
const INTERVAL: u32 = 32;

/// Statistics of a session's packets.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Packets of flows that are out of order.
    packets: u32,
    /// How many of them were overtaken, by how late they arrived; and how many arrived later than the longest wait.
    late: [u32; PARTS],
    later: u32,
    /// Packets of any flow that were given up and have not arrived.
    lost: u32,
    hold: Duration,
}

impl Lateness {
    /// How long a packet is waited for.
    pub(super) fn hold(&self) -> Duration {
        self.hold
    }

    /// An overtaken packet has arrived.
    pub(super) fn late(&mut self, by: Duration) {
        let part = usize::try_from(by.as_nanos() / PART.as_nanos()).unwrap_or(PARTS);
        let count = self.late.get_mut(part).unwrap_or(&mut self.later);
        *count += 1;
    }

    /// A packet was given up.
    pub(super) fn lost(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }

    /// A packet that was given up has arrived.
    pub(super) fn not_lost(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// A packet of a flow that is out of order has arrived, overtaken or not.
    pub(super) fn count(&mut self) {
        self.packets += 1;
        if self.packets.is_multiple_of(INTERVAL) {
            self.hold = self.choose();
        }
        if self.packets == FADING {
            for count in self.late.iter_mut().chain([&mut self.packets, &mut self.later, &mut self.lost]) {
                *count /= 2;
            }
        }
    }

    /// The shortest wait that leaves few late packets; zero if waiting would mostly be in vain.
    fn choose(&self) -> Duration {
        let in_time: u32 = self.late.iter().sum();
        let in_vain = self.lost.saturating_add(self.later);
        if in_time < FEWEST || in_vain > in_time || self.later > self.packets / USEFUL {
            return Duration::ZERO;
        }
        let mut left = self.later;
        for (part, count) in self.late.iter().enumerate().rev() {
            left += count;
            if left > self.packets / ENOUGH {
                return PART * (part as u32 + 1);
            }
        }
        Duration::ZERO
    }
}
