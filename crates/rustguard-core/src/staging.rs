//! Packets that wait for a handshake.

use alloc::{boxed::Box, collections::VecDeque};

/// At most this many packets wait per peer; the oldest is dropped first.
pub const LIMIT: usize = 128;

/// A bounded queue of plaintext packets of one peer.
#[derive(Debug, Default)]
pub struct Staged(VecDeque<Box<[u8]>>);

impl Staged {
    /// Adds a packet; returns true when the oldest had to go.
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
            // Idle peers keep no memory.
            self.0 = VecDeque::new();
        }
        packet
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all, returns how many.
    pub fn clear(&mut self) -> usize {
        core::mem::take(&mut self.0).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c22_at_most_128_wait_and_the_oldest_goes_first() {
        let mut staged = Staged::default();
        for n in 0..200_u8 {
            assert_eq!(staged.push(Box::new([n])), n >= 128);
        }
        assert_eq!(staged.len(), LIMIT);
        assert_eq!(staged.pop().unwrap()[..], [72]);
        assert_eq!(staged.clear(), LIMIT - 1);
        assert!(staged.is_empty() && staged.pop().is_none());
    }
}
