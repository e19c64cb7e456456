//! Parity: one more datagram for so many, from which the receiver makes one of them that was lost on the way.
//!
//! The packets of a session that follow each other form a *group*. The text of its parity is the exclusive or of
//! theirs; shorter ones count as if zeros followed, which is what padding is. Whoever has the parity and all packets
//! but one has that one, too. Two that are lost stay lost.
//!
//! A parity is sealed with the key of the session, as data is, and is as long as the longest datagram of its group: it
//! passes wherever they do. Which packets are in its group stands in its counter:
//!
//! ```text
//! bit 63       1, which no counter of data ever reaches
//! bits 32-62   the counters after the first one that are of the group; bit 32: the next one
//! bits 0-31    the first counter of the group
//! ```
//!
//! The counter is the nonce. So it is authentic, and nobody else can say which packets a parity is about. No nonce is
//! used twice, because a counter is in one group at most, and a group has one parity at most. A parity is no part of
//! the replay window: it says nothing that its packets do not say, and what is made of it passes the window under its
//! own counter.
//!
//! Stock peers and older RustGuards would take a parity for data. None is sent until the receiver has accepted it in
//! this session: see [`Message`].

mod group;
mod kept;
mod message;

pub use group::{Group, Parity};
pub use kept::{Kept, Rebuilt};
pub use message::Message;

/// The most bytes of a text that is in a group. Longer ones are left alone.
pub const LONGEST: usize = 1_504;
/// Bytes of data for one byte of parity: the least and the most.
pub const SIZES: core::ops::RangeInclusive<u8> = 2..=20;

/// The bit that the counters of parities have, and those of data do not.
const MARK: u64 = 1 << 63;

/// Which packets a parity is about: a first counter, and which of the 31 after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    first: u32,
    /// Bit 0 is the first one, and always set.
    counters: u32,
}

impl Cover {
    /// What a counter says; `None` for one of data.
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

    /// A cover of this packet alone; `None` for counters that no group has.
    fn begin(counter: u64) -> Option<Self> {
        Some(Self { first: u32::try_from(counter).ok()?, counters: 1 })
    }

    /// Adds a packet. Returns false where it is too far from the first.
    fn add(&mut self, counter: u64) -> bool {
        let bit = self.bit(counter);
        self.counters |= bit;
        bit != 0
    }

    fn contains(self, counter: u64) -> bool {
        self.bit(counter) & self.counters != 0
    }

    /// Takes a packet out.
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

/// Adds a text, as if zeros followed it. Bytes beyond the sum are left out.
fn add(sum: &mut [u8], text: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(text) {
        *sum ^= byte;
    }
}

#[cfg(test)]
mod tests;
