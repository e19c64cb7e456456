//! One direction each of an established session: sealing, opening, the replay window.
use crate::time::Instant;
use rustguard_crypto::aead::Frame;

/// Bytes before the text of a transport message: type, receiver, counter.
pub const HEADER_LEN: usize = 16;
/// Bytes a transport message adds to its text: header and tag.
pub const OVERHEAD: usize = 32;

/// Who sent the initiation that made a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This side.
    Initiator,
    /// The other side.
    Responder,
}

/// What a sealer says when it gives out counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The first of the counters.
    pub first: u64,
    /// The session is old enough, or has sent enough, that a new handshake is due. True once in a while, not each time.
    pub rekey: bool,
}

/// The sending half: shared between threads.
pub struct Sealer(());

impl Sealer {
    /// The index the peer chose, which goes into every header.
    pub fn receiver(&self) -> u32 {
        todo!()
    }
    /// When the session came into being.
    pub fn created(&self) -> Instant {
        todo!()
    }
    /// Takes `n` counters; `None` when the session is past Reject-After-Time or Reject-After-Messages.
    pub fn reserve(&self, _now: Instant, _n: usize) -> Option<Reserved> {
        todo!()
    }
    /// Seals each frame's text in place and writes the header into the 16 bytes before it.
    ///
    /// # Panics
    /// When header, text and tag of a frame do not lie inside the slab.
    pub fn seal(&self, _slab: &mut [u8], _frames: &[Frame]) {
        todo!()
    }
}

/// The receiving half, without its replay window: shared between threads.
pub struct Opener(());

impl Opener {
    /// The index we chose, by which packets find this session.
    pub fn index(&self) -> u32 {
        todo!()
    }
    /// When the session came into being.
    pub fn created(&self) -> Instant {
        todo!()
    }
    /// Whether packets may still be received (Reject-After-Time).
    pub fn usable(&self, _now: Instant) -> bool {
        todo!()
    }
    /// Whether receiving at this time should start a handshake (paper §6.2: Reject-After-Time − Keepalive-Timeout − Rekey-Timeout). True once.
    pub fn rekey_on_receive(&self, _now: Instant) -> bool {
        todo!()
    }
    /// Authenticates and decrypts in place; `opened[i]` tells which. Does not look at the replay window.
    pub fn open(&self, _slab: &mut [u8], _frames: &[Frame], _opened: &mut [bool]) {
        todo!()
    }
    /// True once: the first authenticated packet of a session that we answered (the caller tells [`Node::confirmed`](crate::node::Node::confirmed)).
    pub fn first_use(&self) -> bool {
        todo!()
    }
}

/// Why a counter was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Seen before.
    Duplicate,
    /// Older than the window, or past Reject-After-Messages.
    Outside,
}

/// A sliding window of 8,192 counters (RFC 6479's ring of blocks).
#[derive(Clone, Debug, Default)]
pub struct ReplayWindow(());

impl ReplayWindow {
    /// Notes an authenticated counter, or says why it must be dropped.
    pub fn accept(&mut self, _counter: u64) -> Result<(), Replay> {
        todo!()
    }
}
