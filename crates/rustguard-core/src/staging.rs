//! Packets that wait for a handshake.
use alloc::{boxed::Box, collections::VecDeque};

/// At most this many packets wait per peer; the oldest is dropped first.
pub const LIMIT: usize = 128;

/// A bounded queue of plaintext packets of one peer.
#[derive(Debug, Default)]
pub struct Staged(VecDeque<Box<[u8]>>);

impl Staged {
    /// Adds a packet; returns true when the oldest had to go.
    pub fn push(&mut self, _packet: Box<[u8]>) -> bool {
        todo!()
    }
    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Box<[u8]>> {
        todo!()
    }
    /// How many wait.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Drops all, returns how many.
    pub fn clear(&mut self) -> usize {
        todo!()
    }
}
