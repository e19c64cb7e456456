//! Parity: one extra datagram for each group of datagrams, from which the receiver can rebuild one lost datagram.
//!
//! Consecutive packets of a session form a *group*. The text of its parity is the exclusive or of their texts. Shorter
//! texts count as if zeros followed, as padding does. A receiver that has the parity and all packets but one can
//! rebuild the missing one. If two are lost, they stay lost.
//!
//! A parity is sealed with the key of the session, like data, and is as long as the longest datagram of its group: it
//! passes wherever these datagrams pass. Its counter says which packets are in the group:
//!
//! ```text
//! bit 63       1, which no counter of data ever reaches
//! bits 32-62   the counters after the first one that are of the group; bit 32: the next one
//! bits 0-31    the first counter of the group
//! ```
//!
//! The counter is the nonce. So it is authentic, and nobody else can forge which packets a parity covers. No nonce is
//! used twice, because a counter is in at most one group, and a group has at most one parity. A parity does not enter
//! the replay window: it has no information beyond its packets, and a rebuilt packet passes the window under its own
//! counter.
//!
//! Stock peers and older RustGuards would take a parity for data. None is sent until the receiver has accepted parities
//! in this session: see [`Message`].

mod group;
mod kept;
mod message;

pub use group::{Group, Parity};
pub use kept::{Kept, Rebuilt};
pub use message::Message;

/// The most bytes of a text in a group. Longer texts are not covered.
pub const LONGEST: usize = 1_504;
/// Bytes of data for each byte of parity: the least and the most.
pub const SIZES: core::ops::RangeInclusive<u8> = 2..=20;

/// The bit that the counters of parities have, and the counters of data do not have.
const MARK: u64 = 1 << 63;

/// The packets that a parity covers: a first counter, and which of the 31 after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    first: u32,
    /// Bit 0 is the first one, and always set.
    counters: u32,
}

impl Cover {
    /// The cover in a counter; `None` for a counter of data.
    pub const fn of(counter: u64) -> Option<Self> {
        if counter & MARK == 0 {
            return None;
        }
        Some(Self { first: counter as u32, counters: 1 | ((counter >> 32) as u32) << 1 })
    }

    /// The counter of the parity.
    pub const fn counter(self) -> u64 {
        MARK | ((self.counters >> 1) as u64) << 32 | self.first as u64
    }

    /// How many packets there are.
    pub const fn count(self) -> u32 {
        self.counters.count_ones()
    }

    /// A cover of this packet alone; `None` for counters that no group can have.
    fn begin(counter: u64) -> Option<Self> {
        Some(Self { first: u32::try_from(counter).ok()?, counters: 1 })
    }

    /// Adds a packet. Returns false if it is too far from the first.
    fn add(&mut self, counter: u64) -> bool {
        let bit = self.bit(counter);
        self.counters |= bit;
        bit != 0
    }

    fn contains(self, counter: u64) -> bool {
        self.bit(counter) & self.counters != 0
    }

    /// Removes a packet.
    fn remove(&mut self, counter: u64) {
        self.counters &= !self.bit(counter);
    }

    /// The counters, in order.
    fn counters(self) -> impl Iterator<Item = u64> {
        (0..u32::BITS).filter(move |n| self.counters >> n & 1 == 1).map(move |n| u64::from(self.first) + u64::from(n))
    }

    fn bit(self, counter: u64) -> u32 {
        let n = counter.checked_sub(self.first.into()).and_then(|n| u32::try_from(n).ok());
        n.and_then(|n| 1_u32.checked_shl(n)).unwrap_or(0)
    }
}

/// Adds a text, as if zeros followed it. Bytes beyond the length of the sum are ignored.
fn add(sum: &mut [u8], text: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(text) {
        *sum ^= byte;
    }
}

#[cfg(test)]
mod tests;
