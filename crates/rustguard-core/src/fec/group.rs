//! The sender's side: packets are added until the group is complete.

use super::{Cover, LONGEST, add};
use crate::{session::OVERHEAD, time::Instant};
use alloc::vec::Vec;
use core::time::Duration;

/// From the first packet of a group to the last, at most. What is made of a parity later than that is of little use to
/// anybody.
const PATIENCE: Duration = Duration::from_millis(100);

/// The group that packets are added to.
#[derive(Debug)]
pub struct Group {
    /// Bytes of data for one of parity.
    size: usize,
    /// None before the first packet, and when the group is complete.
    cover: Option<Cover>,
    begun: Instant,
    /// The bytes of its datagrams.
    bytes: usize,
    text: Vec<u8>,
}

/// The parity of a group that is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Parity<'a> {
    /// The counter that it is to be sealed with.
    pub counter: u64,
    /// Its text.
    pub text: &'a [u8],
}

impl Group {
    /// A group that is complete when its datagrams have `size` times the bytes of its parity. That is the number of
    /// packets where all have the same length.
    pub fn new(size: u8) -> Self {
        Self { size: size.into(), cover: None, begun: Instant::from_nanos(0), bytes: 0, text: Vec::new() }
    }

    /// Adds the text of a packet that leaves with this counter. Returns the parity that is to leave behind it, if the
    /// group is complete.
    ///
    /// A group that has become too old, or whose first counter is too far away, is broken off: another one begins with
    /// this packet.
    pub fn add(&mut self, counter: u64, text: &[u8], now: Instant) -> Option<Parity<'_>> {
        if text.len() > LONGEST {
            return None;
        }
        let goes_on = now.since(self.begun) <= PATIENCE && self.cover.as_mut().is_some_and(|cover| cover.add(counter));
        if !goes_on {
            self.cover = Cover::begin(counter);
            self.begun = now;
            self.bytes = 0;
            self.text.clear();
        }
        let len = self.text.len().max(text.len());
        self.text.resize(len, 0);
        add(&mut self.text, text);
        self.bytes += text.len() + OVERHEAD;
        if self.bytes < self.size * (len + OVERHEAD) {
            return None;
        }
        let counter = self.cover.take()?.counter();
        Some(Parity { counter, text: &self.text })
    }
}
