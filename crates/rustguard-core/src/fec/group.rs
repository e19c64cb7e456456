//! The sender's side: packets are added until the group is complete.

use super::{Cover, LONGEST, add};
use crate::{session::OVERHEAD, time::Instant};
use alloc::vec::Vec;
use core::time::Duration;

/// From the first packet of a group to the last, at most. A packet that is rebuilt later than this is of little use.
const PATIENCE: Duration = Duration::from_millis(100);

/// The group to which packets are added.
#[derive(Debug)]
pub struct Group {
    /// Bytes of data for each byte of parity.
    size: usize,
    /// `None` before the first packet, and after the group is complete.
    cover: Option<Cover>,
    begun: Instant,
    /// The total bytes of its datagrams.
    bytes: usize,
    text: Vec<u8>,
}

/// The parity of a complete group.
#[derive(Debug, PartialEq, Eq)]
pub struct Parity<'a> {
    /// The counter with which it is to be sealed.
    pub counter: u64,
    /// Its text.
    pub text: &'a [u8],
}

impl Group {
    /// A group that is complete when its datagrams have `size` times the bytes of its parity. If all packets have the
    /// same length, `size` is their number.
    pub fn new(size: u8) -> Self {
        Self { size: size.into(), cover: None, begun: Instant::from_nanos(0), bytes: 0, text: Vec::new() }
    }

    /// Adds the text of a packet that is sent with this counter. Returns the parity to send after it, if the group is
    /// complete.
    ///
    /// A group that is too old, or whose first counter is too far away, is abandoned: a new one begins with this
    /// packet.
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
