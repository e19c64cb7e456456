//! An established session: one half seals, one opens, and a window refuses replays.

pub use crate::time::Instant;
use crate::{
    timers::{
        REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME, REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME, REKEY_ON_RECEIVE_AFTER,
        REKEY_TIMEOUT,
    },
    wire,
};
use core::fmt;
use portable_atomic::{AtomicBool, AtomicU64, Ordering};
use rustguard_crypto::aead::{self, Frame};

/// Bytes before the text of a transport message: type, receiver, counter.
pub const HEADER_LEN: usize = 16;
/// Bytes a transport message adds to its text: header and tag.
pub const OVERHEAD: usize = HEADER_LEN + aead::TAG_LEN;

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
    /// The session is old enough, or has sent enough, that a new handshake is due. Said once per Rekey-Timeout (5 s).
    pub rekey: bool,
}

/// The sending half: shared between threads.
pub struct Sealer {
    key: aead::Key,
    receiver: u32,
    role: Role,
    created: Instant,
    /// The next counter to give out.
    next: AtomicU64,
    /// Nanoseconds before which a rekey is not asked for once more.
    ask_again_at: AtomicU64,
}

impl Sealer {
    pub(crate) fn new(key: &[u8; 32], receiver: u32, role: Role, created: Instant) -> Self {
        let key = aead::Key::new(key);
        Self { key, receiver, role, created, next: AtomicU64::new(0), ask_again_at: AtomicU64::new(0) }
    }

    /// The index the peer chose, which goes into every header.
    pub fn receiver(&self) -> u32 {
        self.receiver
    }

    /// When the session came into being.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Whether anything can still be sealed.
    pub fn usable(&self, now: Instant) -> bool {
        now.since(self.created) < REJECT_AFTER_TIME && self.next.load(Ordering::Relaxed) < REJECT_AFTER_MESSAGES
    }

    /// Takes `n` counters; `None` when the session is past Reject-After-Time, or they would go past Reject-After-Messages.
    /// A counter is given out once, whatever threads ask for.
    pub fn reserve(&self, now: Instant, n: usize) -> Option<Reserved> {
        if now.since(self.created) >= REJECT_AFTER_TIME {
            return None;
        }
        let take = |next: u64| next.checked_add(n as u64).filter(|&end| end <= REJECT_AFTER_MESSAGES);
        let first = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Reserved { first, rekey: self.rekey_due(now, first) })
    }

    /// By time the initiator rekeys; by messages both sides do.
    fn rekey_due(&self, now: Instant, first: u64) -> bool {
        let old = self.role == Role::Initiator && now.since(self.created) >= REKEY_AFTER_TIME;
        if !old && first < REKEY_AFTER_MESSAGES {
            return false;
        }
        let (asked, again) = (self.ask_again_at.load(Ordering::Relaxed), (now + REKEY_TIMEOUT).as_nanos());
        now.as_nanos() >= asked
            && self.ask_again_at.compare_exchange(asked, again, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Seals each frame's text in place and writes the header into the 16 bytes before it.
    ///
    /// # Panics
    /// When header, text and tag of a frame do not lie inside the slab.
    pub fn seal(&self, slab: &mut [u8], frames: &[Frame]) {
        for frame in frames {
            let header = &mut slab[frame.offset - HEADER_LEN..frame.offset];
            let header = header.first_chunk_mut().expect("a slice of 16 bytes");
            wire::write_data_header(header, self.receiver, frame.counter);
        }
        self.key.seal(slab, frames);
    }

    #[cfg(test)]
    pub(crate) fn skip_to(&self, counter: u64) {
        self.next.store(counter, Ordering::Relaxed);
    }
}

/// The receiving half, without its replay window: shared between threads.
pub struct Opener {
    key: aead::Key,
    index: u32,
    role: Role,
    created: Instant,
    used: AtomicBool,
    rekey_asked: AtomicBool,
}

impl Opener {
    pub(crate) fn new(key: &[u8; 32], index: u32, role: Role, created: Instant) -> Self {
        let key = aead::Key::new(key);
        Self { key, index, role, created, used: AtomicBool::new(false), rekey_asked: AtomicBool::new(false) }
    }

    /// The index we chose, by which packets find this session.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// When the session came into being.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Whether packets may still be received (Reject-After-Time).
    pub fn usable(&self, now: Instant) -> bool {
        now.since(self.created) < REJECT_AFTER_TIME
    }

    /// Whether receiving at this time should start a handshake: 15 s before the session ends, so that one-way traffic
    /// never stalls (paper §6.2). True once.
    pub fn rekey_on_receive(&self, now: Instant) -> bool {
        now.since(self.created) >= REKEY_ON_RECEIVE_AFTER && !self.rekey_asked.swap(true, Ordering::Relaxed)
    }

    /// Authenticates and decrypts in place; `opened[i]` tells which. Does not look at the replay window.
    ///
    /// # Panics
    /// When text and tag of a frame do not lie inside the slab, or `opened` is shorter than `frames`.
    pub fn open(&self, slab: &mut [u8], frames: &[Frame], opened: &mut [bool]) {
        self.key.open(slab, frames, opened);
    }

    /// True once: the first authenticated packet of a session that we answered (the caller tells
    /// [`Node::confirmed`](crate::node::Node::confirmed)).
    pub fn first_use(&self) -> bool {
        self.role == Role::Responder && !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("receiver", &self.receiver).field("role", &self.role).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("index", &self.index).field("role", &self.role).finish_non_exhaustive()
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

/// Counters that may arrive late: a packet this many behind the newest still passes.
pub const REPLAY_WINDOW: u64 = 8_192;
/// One block more than the window has: the oldest and the newest block never share a place.
const BLOCKS: usize = (REPLAY_WINDOW / 64) as usize + 1;

/// A sliding window of [`REPLAY_WINDOW`] counters: a ring of blocks, of which whole ones are cleared as it moves (RFC 6479).
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the greatest counter seen.
    next: u64,
    blocks: [u64; BLOCKS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, blocks: [0; BLOCKS] }
    }
}

impl ReplayWindow {
    /// Notes an authenticated counter, or says why it must be dropped.
    ///
    /// # Errors
    /// See [`Replay`].
    pub fn accept(&mut self, counter: u64) -> Result<(), Replay> {
        if counter >= REJECT_AFTER_MESSAGES || counter < self.next.saturating_sub(REPLAY_WINDOW) {
            return Err(Replay::Outside);
        }
        if counter >= self.next {
            let (newest, block) = (self.next.saturating_sub(1) / 64, counter / 64);
            for cleared in (newest + 1..=block).take(BLOCKS) {
                self.blocks[Self::place(cleared)] = 0;
            }
            self.next = counter + 1;
        }
        let (block, bit) = (&mut self.blocks[Self::place(counter / 64)], 1 << (counter % 64));
        if *block & bit != 0 {
            return Err(Replay::Duplicate);
        }
        *block |= bit;
        Ok(())
    }

    fn place(block: u64) -> usize {
        usize::try_from(block % BLOCKS as u64).expect("less than BLOCKS")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, vec::Vec};
    use core::time::Duration;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn c03_the_counter_stops_at_reject_after_messages() {
        assert_eq!(REJECT_AFTER_MESSAGES, u64::MAX - (1 << 13));
        let sealer = Sealer::new(&[1; 32], 7, Role::Initiator, at(1));
        sealer.skip_to(REJECT_AFTER_MESSAGES - 3);
        assert_eq!(sealer.reserve(at(2), 4), None, "a run that would go past is refused as a whole");
        assert_eq!(sealer.reserve(at(2), 3).unwrap().first, REJECT_AFTER_MESSAGES - 3);
        assert_eq!(sealer.reserve(at(2), 1), None);
        assert!(!sealer.usable(at(2)));
        sealer.skip_to(u64::MAX);
        assert_eq!(sealer.reserve(at(2), 1), None, "no wrap");
    }

    #[test]
    fn c03_no_counter_is_given_out_twice_to_threads() {
        let sealer = Sealer::new(&[1; 32], 7, Role::Initiator, at(1));
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4)
                .map(|n| {
                    let sealer = &sealer;
                    scope.spawn(move || {
                        (0..1_000)
                            .flat_map(|_| {
                                let first = sealer.reserve(at(2), n).unwrap().first;
                                first..first + n as u64
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
    }

    #[test]
    fn c14_the_initiator_asks_for_a_rekey_after_120_s_every_5_s_and_stops_at_180_s() {
        let sealer = Sealer::new(&[1; 32], 7, Role::Initiator, at(0));
        let asked: Vec<u64> = (0..200).filter(|&s| sealer.reserve(at(s), 1).is_some_and(|r| r.rekey)).collect();
        assert_eq!(asked, (120..180).step_by(5).collect::<Vec<_>>());
        assert!(sealer.reserve(at(179), 1).is_some());
        assert!(sealer.reserve(at(180), 1).is_none());
    }

    #[test]
    fn c14_the_responder_rekeys_by_messages_only() {
        let sealer = Sealer::new(&[1; 32], 7, Role::Responder, at(0));
        assert!((0..180).all(|s| !sealer.reserve(at(s), 1).unwrap().rekey));
        sealer.skip_to(REKEY_AFTER_MESSAGES);
        assert!(sealer.reserve(at(10), 1).unwrap().rekey);
        assert!(!sealer.reserve(at(11), 1).unwrap().rekey);
        assert!(sealer.reserve(at(15), 1).unwrap().rekey);
    }

    #[test]
    fn c14_receiving_asks_for_a_rekey_once_from_165_s_on() {
        let opener = Opener::new(&[1; 32], 7, Role::Initiator, at(0));
        assert!(!opener.rekey_on_receive(at(164)));
        assert!(opener.rekey_on_receive(at(165)));
        assert!(!opener.rekey_on_receive(at(166)));
        assert!(opener.usable(at(179)) && !opener.usable(at(180)));
    }

    #[test]
    fn c13_a_clock_that_goes_back_neither_panics_nor_ages() {
        let sealer = Sealer::new(&[1; 32], 7, Role::Initiator, at(1_000));
        assert_eq!(sealer.reserve(at(0), 1), Some(Reserved { first: 0, rekey: false }));
    }

    #[test]
    fn what_is_sealed_opens_and_a_forged_one_does_not() {
        let (sealer, opener) =
            (Sealer::new(&[1; 32], 7, Role::Initiator, at(0)), Opener::new(&[1; 32], 7, Role::Responder, at(0)));
        let mut slab = [5; 2 * (OVERHEAD + 32)];
        let frames = [0, 1].map(|n| Frame { offset: n * (OVERHEAD + 32) + HEADER_LEN, len: 32, counter: n as u64 });
        sealer.seal(&mut slab, &frames);
        assert_eq!(wire::Kind::of(&slab[64..128]), Some(wire::Kind::Data { receiver: 7, counter: 1 }));
        slab[20] ^= 1;
        let mut opened = [false; 2];
        opener.open(&mut slab, &frames, &mut opened);
        assert_eq!(opened, [false, true]);
        assert_eq!(slab[80..112], [5; 32]);
        assert!(opener.first_use() && !opener.first_use());
    }

    #[test]
    fn c04_reordering_by_8000_passes_and_anything_older_is_dropped() {
        let mut window = ReplayWindow::default();
        for counter in 8_000..16_000 {
            assert_eq!(window.accept(counter), Ok(()));
        }
        for counter in 16_000 - REPLAY_WINDOW..8_000 {
            assert_eq!(window.accept(counter), Ok(()), "{counter}");
            assert_eq!(window.accept(counter), Err(Replay::Duplicate));
        }
        assert_eq!(window.accept(16_000 - REPLAY_WINDOW - 1), Err(Replay::Outside));
        assert_eq!(window.accept(u64::MAX), Err(Replay::Outside));
        assert_eq!(window.accept(REJECT_AFTER_MESSAGES - 1), Ok(()));
        assert_eq!(window.accept(REJECT_AFTER_MESSAGES), Err(Replay::Outside));
    }

    proptest! {
        /// Against the definition: a set of all counters seen.
        #[test]
        fn c04_the_window_is_what_it_is_defined_as(steps in proptest::collection::vec((any::<bool>(), 0..20_000_u64), 1..400)) {
            let (mut window, mut seen, mut newest) = (ReplayWindow::default(), BTreeSet::new(), 0_u64);
            for (ahead, distance) in steps {
                let counter = if ahead { newest + distance % 9_000 } else { newest.saturating_sub(distance) };
                let expected = if !seen.is_empty() && newest >= REPLAY_WINDOW && counter < newest + 1 - REPLAY_WINDOW {
                    Err(Replay::Outside)
                } else if seen.contains(&counter) {
                    Err(Replay::Duplicate)
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.accept(counter), expected);
                if expected.is_ok() {
                    seen.insert(counter);
                    newest = newest.max(counter);
                }
            }
        }
    }

    #[test]
    fn times_are_the_papers() {
        assert_eq!(REKEY_AFTER_TIME, Duration::from_secs(120));
        assert_eq!(REKEY_ON_RECEIVE_AFTER, Duration::from_secs(165));
    }
}
