//! Packets that wait for a handshake.
use alloc::{boxed::Box, collections::VecDeque};

/// At most this many packets wait per peer; the oldest is dropped first.
pub const LIMIT: usize = 128;

/// A bounded queue of plaintext packets of one peer. `Debug` prints their number only.
#[derive(Default)]
pub struct Staged(VecDeque<Box<[u8]>>);

impl Staged {
    /// Adds a packet. True: the queue was full, and the oldest packet was dropped.
    pub fn push(&mut self, packet: Box<[u8]>) -> bool {
        let full = self.0.len() >= LIMIT;
        if full {
            self.0.pop_front();
        }
        self.0.push_back(packet);
        full
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Box<[u8]>> {
        let packet = self.0.pop_front();
        if self.0.is_empty() {
            // For most of a peer's life no packet waits: free the room for 128 packets.
            self.0 = VecDeque::new();
        }
        packet
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all packets and returns their number.
    pub fn clear(&mut self) -> usize {
        core::mem::take(&mut self.0).len()
    }
}

impl core::fmt::Debug for Staged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Staged").field(&self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_the_oldest_goes_first() {
        let mut staged = Staged::default();
        for i in 0..=LIMIT + 1 {
            assert_eq!(staged.push(Box::new([i as u8])), i >= LIMIT);
        }
        assert_eq!(staged.len(), LIMIT);
        assert_eq!(staged.pop().as_deref(), Some(&[2][..]));
        assert_eq!(staged.clear(), LIMIT - 1);
        assert!(staged.is_empty() && staged.pop().is_none());
    }
}
