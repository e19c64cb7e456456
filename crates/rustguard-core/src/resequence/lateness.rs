//! How long a missing packet is waited for: as long as overtaken packets take to come.
//!
//! Each packet that is lost makes its flow wait in vain, and each that comes after it was given up looks lost to the
//! flow.

use core::time::Duration;

/// No packet is waited for longer.
pub const LONGEST: Duration = Duration::from_millis(8);

/// The waits to choose from.
const PARTS: usize = 32;
const PART: Duration = Duration::from_nanos(LONGEST.as_nanos() as u64 / PARTS as u64);
/// Of so many packets, one may come after it was given up. A flow that has that many of its packets lost does not get
/// fast.
const ENOUGH: u32 = 1_024;
/// Where the longest wait leaves more than one late packet of so many, the flow gains little by any.
const USEFUL: u32 = 64;
/// Fewer overtaken packets say nothing.
const FEWEST: u32 = 8;
/// After so many packets, the older ones count half.
const FADING: u32 = 16_384;
/// The wait is chosen again after so many packets.
const INTERVAL: u32 = 32;

/// What is known about a session's packets.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Packets of flows that are out of order.
    packets: u32,
    /// Those of them that were overtaken, by how late they came, and those that came later than any.
    late: [u32; PARTS],
    later: u32,
    /// Packets of any flow that were given up and have not come.
    lost: u32,
    hold: Duration,
}

impl Lateness {
    /// How long a packet is waited for.
    pub(super) fn hold(&self) -> Duration {
        self.hold
    }

    /// An overtaken packet came.
    pub(super) fn late(&mut self, by: Duration) {
        let part = usize::try_from(by.as_nanos() / PART.as_nanos()).unwrap_or(PARTS);
        let count = self.late.get_mut(part).unwrap_or(&mut self.later);
        *count += 1;
    }

    /// A packet was given up.
    pub(super) fn lost(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }

    /// A packet that was given up has come.
    pub(super) fn not_lost(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// A packet of a flow that is out of order came, overtaken or not.
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

    /// The shortest wait that leaves few late packets; none at all where it would mostly be in vain.
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
