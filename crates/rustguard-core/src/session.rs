//! The two directions of an established session: sealing, opening, the replay window.
use crate::{
    constants::{
        LANE_MESSAGES, REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME, REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME,
        REKEY_ON_RECEIVE_AFTER_TIME, REKEY_TIMEOUT,
    },
    noise::SessionKeys,
    time::Instant,
    wire,
};
use core::fmt;
use portable_atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use rustguard_crypto::aead::{Frame, Key, TAG_LEN};

/// Bytes before the text of a transport message: type, receiver, counter.
pub const HEADER_LEN: usize = 16;
/// Bytes a transport message adds to its text: header and tag.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Counters below the greatest one seen that are still accepted once.
pub const REPLAY_WINDOW: u64 = 8192;

/// Which side sent the initiation that made a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side.
    Initiator,
    /// The other side.
    Responder,
}

/// The result of reserving counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserved {
    /// The first of the counters.
    pub first: u64,
    /// The session is old enough, or has sent enough, that a new handshake is due. True once in a while, not for each
    /// call.
    pub rekey: bool,
}

/// Makes both halves of a session: `local` is the index we chose, `remote` the one the peer chose.
pub fn establish(keys: &SessionKeys, side: Side, local: u32, remote: u32, now: Instant) -> (Sealer, Opener) {
    let (send, receive) = match side {
        Side::Initiator => (&keys.from_initiator, &keys.from_responder),
        Side::Responder => (&keys.from_responder, &keys.from_initiator),
    };
    let sealer = Sealer {
        key: Key::new(send),
        receiver: remote,
        side,
        created: now,
        counter: AtomicU64::new(0),
        has_lanes: AtomicBool::new(false),
        next_rekey: AtomicU64::new(0),
    };
    let opener = Opener {
        key: Key::new(receive),
        index: local,
        created: now,
        unconfirmed: AtomicBool::new(side == Side::Responder),
        rekey_hinted: AtomicBool::new(false),
    };
    (sealer, opener)
}

/// The sending half: shared between threads.
pub struct Sealer {
    key: Key,
    receiver: u32,
    side: Side,
    created: Instant,
    counter: AtomicU64,
    /// There are counters of [`lanes`](crate::lanes). Those of lane 0 then end where the others begin.
    has_lanes: AtomicBool,
    /// When `reserve` may ask for a rekey again, in nanoseconds of [`Instant`].
    next_rekey: AtomicU64,
}

impl Sealer {
    /// The index the peer chose, which goes into every header.
    pub fn receiver(&self) -> u32 {
        self.receiver
    }

    /// When the session was established.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Which side sent the initiation.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whether anything may still be sent: neither Reject-After-Time nor Reject-After-Messages is reached.
    pub fn usable(&self, now: Instant) -> bool {
        now.since(self.created) < REJECT_AFTER_TIME && self.counter.load(Relaxed) < self.end()
    }

    /// The first counter that is never given out.
    fn end(&self) -> u64 {
        if self.has_lanes.load(Relaxed) { LANE_MESSAGES } else { REJECT_AFTER_MESSAGES }
    }

    /// Whether nothing has been sealed yet: the peer cannot know that the session exists.
    pub fn is_unused(&self) -> bool {
        self.counter.load(Relaxed) == 0
    }

    /// Whether the next handshake is due already (whitepaper, section 6.2). By time it is due earlier for the
    /// initiator, so that not both sides begin one.
    pub fn aged(&self, now: Instant) -> bool {
        let age = now.since(self.created);
        let limit = match self.side {
            Side::Initiator => REKEY_AFTER_TIME,
            Side::Responder => REKEY_ON_RECEIVE_AFTER_TIME,
        };
        age >= limit || self.counter.load(Relaxed) > REKEY_AFTER_MESSAGES
    }

    /// Takes `n` counters; `None` when the session is past Reject-After-Time or Reject-After-Messages.
    pub fn reserve(&self, now: Instant, n: usize) -> Option<Reserved> {
        self.reserve_from(&self.counter, self.end(), now, n)
    }

    /// As [`reserve`](Self::reserve), from this counter, up to `end`.
    pub(crate) fn reserve_from(&self, counter: &AtomicU64, end: u64, now: Instant, n: usize) -> Option<Reserved> {
        let age = now.since(self.created);
        if age >= REJECT_AFTER_TIME {
            return None;
        }
        let n = u64::try_from(n).ok()?;
        // A plain addition could run past the limit, and even wrap to zero, if many threads try at the end.
        let take = |counter: u64| counter.checked_add(n).filter(|&last| last <= end);
        let first = counter.fetch_update(Relaxed, Relaxed, take).ok()?;

        // No lane can have so many messages: lanes end earlier.
        let due = first + n > REKEY_AFTER_MESSAGES || (self.side == Side::Initiator && age >= REKEY_AFTER_TIME);
        Some(Reserved { first, rekey: due && self.claim_rekey(now) })
    }

    /// Claims the counters of the lanes: true once. Lane 0 then ends where lane 1 begins, which no session of three
    /// minutes reaches.
    pub(crate) fn claim_lanes(&self) -> bool {
        // A thread may have read the old end a moment ago. It cannot take half of all counters of lane 0 at once.
        self.counter.load(Relaxed) < LANE_MESSAGES / 2 && !self.has_lanes.swap(true, Relaxed)
    }

    /// Seals each frame's text in place and writes the header into the 16 bytes before it.
    ///
    /// # Panics
    /// When header, text and tag of a frame do not lie inside the slab.
    pub fn seal(&self, slab: &mut [u8], frames: &[Frame]) {
        for frame in frames {
            let header = frame.offset.checked_sub(HEADER_LEN).and_then(|start| slab.get_mut(start..frame.offset));
            let header = header.expect("the header lies inside the slab");
            header.copy_from_slice(&wire::data_header(self.receiver, frame.counter));
        }
        self.key.seal(slab, frames);
    }

    /// True at most once per Rekey-Timeout: a handshake takes a while, and one request for it is enough.
    fn claim_rekey(&self, now: Instant) -> bool {
        let due = self.next_rekey.load(Relaxed);
        let next = (now + REKEY_TIMEOUT).as_nanos();
        now.as_nanos() >= due && self.next_rekey.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("receiver", &self.receiver).field("side", &self.side).finish_non_exhaustive()
    }
}

/// The receiving half, without its replay window: shared between threads.
pub struct Opener {
    key: Key,
    index: u32,
    created: Instant,
    unconfirmed: AtomicBool,
    rekey_hinted: AtomicBool,
}

impl Opener {
    /// The index we chose, by which packets find this session.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// When the session was established.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Whether packets may still be received (Reject-After-Time).
    pub fn usable(&self, now: Instant) -> bool {
        now.since(self.created) < REJECT_AFTER_TIME
    }

    /// Whether receiving at this time should start a handshake (paper §6.2: Reject-After-Time − Keepalive-Timeout −
    /// Rekey-Timeout). True once.
    ///
    /// The paper requires this of the initiator only. The responder does it too: at this age the initiator's own
    /// attempts, due since [`REKEY_AFTER_TIME`], have all failed, or the initiator never sends.
    pub fn rekey_on_receive(&self, now: Instant) -> bool {
        now.since(self.created) >= REKEY_ON_RECEIVE_AFTER_TIME
            && !self.rekey_hinted.load(Relaxed)
            && !self.rekey_hinted.swap(true, Relaxed)
    }

    /// Authenticates and decrypts in place; `opened[i]` tells whether frame `i` is authentic. Does not check the replay
    /// window.
    ///
    /// # Panics
    /// When text and tag of a frame do not lie inside the slab, or `opened` is shorter than `frames`.
    pub fn open(&self, slab: &mut [u8], frames: &[Frame], opened: &mut [bool]) {
        self.key.open(slab, frames, opened);
    }

    /// True once: the first authenticated packet of a session that we answered (the caller then calls
    /// [`Node::confirmed`](crate::node::Node::confirmed)).
    pub fn first_use(&self) -> bool {
        // Nearly always false. A plain load then suffices, and keeps the cache line shared between threads.
        self.unconfirmed.load(Relaxed) && self.unconfirmed.swap(false, Relaxed)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Why a counter was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Replay {
    /// Seen before.
    #[error("the counter was seen before")]
    Duplicate,
    /// Older than the window, or past Reject-After-Messages.
    #[error("the counter is older than the replay window, or past the last allowed one")]
    Outside,
}

/// One word more than the window fills, because the window need not begin at a word's first bit.
const WORDS: usize = REPLAY_WINDOW as usize / 64 + 1;

/// A sliding window of 8,192 counters (RFC 6479's ring of blocks).
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the greatest counter accepted.
    next: u64,
    /// Counter `c` is bit `c % 64` of word `c / 64 % WORDS`. Words above the one of `next - 1` are stale.
    seen: [u64; WORDS],
    /// Counters that were accepted after a greater one.
    overtaken: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, seen: [0; WORDS], overtaken: 0 }
    }
}

impl ReplayWindow {
    /// Notes an authenticated counter, or says why it must be dropped.
    ///
    /// # Errors
    /// [`Replay`].
    pub fn accept(&mut self, counter: u64) -> Result<(), Replay> {
        if counter >= REJECT_AFTER_MESSAGES || counter < self.next.saturating_sub(REPLAY_WINDOW) {
            return Err(Replay::Outside);
        }
        if counter >= self.next {
            self.advance_to(counter);
        }
        let (word, bit) = (&mut self.seen[word_of(counter)], 1 << (counter % 64));
        if *word & bit != 0 {
            return Err(Replay::Duplicate);
        }
        *word |= bit;
        self.overtaken += u64::from(counter + 1 != self.next);
        Ok(())
    }

    /// How many counters were accepted after a greater one.
    pub fn overtaken(&self) -> u64 {
        self.overtaken
    }

    /// Clears the words that come into use, and moves the window's upper end.
    fn advance_to(&mut self, counter: u64) {
        // The words in use end with the word of the greatest counter so far: round `next` up.
        let stale = self.next.div_ceil(64)..=counter / 64;
        for block in stale.take(WORDS) {
            self.seen[(block % WORDS as u64) as usize] = 0;
        }
        self.next = counter + 1;
    }
}

fn word_of(counter: u64) -> usize {
    (counter / 64 % WORDS as u64) as usize
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::constants::REJECT_AFTER_MESSAGES;
    use alloc::{collections::BTreeSet, vec, vec::Vec};
    use core::time::Duration;
    use proptest::prelude::*;

    const AT: Instant = Instant::from_nanos(1_000_000_000);

    fn halves(side: Side) -> (Sealer, Opener) {
        establish(&SessionKeys { from_initiator: [1; 32], from_responder: [2; 32] }, side, 7, 8, AT)
    }

    #[test]
    fn one_seals_what_the_other_opens() {
        let (sealer, _) = halves(Side::Initiator);
        let (_, opener) = halves(Side::Responder);
        let mut slab = vec![0; 2 * 64];
        slab[16..20].copy_from_slice(b"text");
        let frames = [Frame { offset: 16, len: 32, counter: 5 }, Frame { offset: 80, len: 0, counter: 6 }];
        sealer.seal(&mut slab, &frames);
        assert_eq!(slab[..16], wire::data_header(8, 5));
        assert_eq!(slab[64..80], wire::data_header(8, 6));
        let mut opened = [false; 2];
        opener.open(&mut slab, &frames, &mut opened);
        assert_eq!((opened, &slab[16..20]), ([true; 2], &b"text"[..]));
        assert!(opener.first_use() && !opener.first_use());
        assert!(!halves(Side::Initiator).1.first_use());
    }

    #[test]
    fn the_counter_stops_at_reject_after_messages() {
        let (sealer, _) = halves(Side::Initiator);
        assert_eq!(REJECT_AFTER_MESSAGES, u64::MAX - 8192);
        sealer.counter.store(REJECT_AFTER_MESSAGES - 5, Relaxed);
        assert_eq!(sealer.reserve(AT, 3).map(|reserved| reserved.first), Some(REJECT_AFTER_MESSAGES - 5));
        assert_eq!(sealer.reserve(AT, 3), None, "only two are left");
        assert_eq!(sealer.reserve(AT, usize::MAX), None);
        assert!(sealer.usable(AT) && sealer.aged(AT));
        assert_eq!(sealer.reserve(AT, 2).map(|reserved| reserved.first), Some(REJECT_AFTER_MESSAGES - 2));
        for _ in 0..100 {
            assert_eq!(sealer.reserve(AT, 1), None);
        }
        assert!(!sealer.usable(AT));
        assert_eq!(ReplayWindow::default().accept(REJECT_AFTER_MESSAGES - 1), Ok(()));
        assert_eq!(ReplayWindow::default().accept(REJECT_AFTER_MESSAGES), Err(Replay::Outside));
        assert_eq!(ReplayWindow::default().accept(u64::MAX), Err(Replay::Outside));
    }

    #[test]
    fn threads_never_share_a_counter_nor_pass_the_limit() {
        const LEFT: u64 = 10_007;
        let (sealer, _) = halves(Side::Initiator);
        sealer.counter.store(REJECT_AFTER_MESSAGES - LEFT, Relaxed);
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let sealer = &sealer;
                    scope.spawn(move || {
                        let n = thread + 1;
                        let runs = core::iter::from_fn(|| sealer.reserve(AT, n));
                        runs.flat_map(|run| run.first..run.first + n as u64).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread that counts")).collect()
        });
        assert!(taken.iter().all(|&counter| counter < REJECT_AFTER_MESSAGES));
        assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
        assert!(taken.len() as u64 <= LEFT && taken.len() as u64 > LEFT - 4);
    }

    #[test]
    fn ages() {
        let (initiators, opener) = halves(Side::Initiator);
        let (responders, _) = halves(Side::Responder);
        let rekey = |sealer: &Sealer, secs| sealer.reserve(AT + Duration::from_secs(secs), 1).map(|taken| taken.rekey);
        assert_eq!(rekey(&initiators, 119), Some(false));
        assert_eq!(rekey(&initiators, 120), Some(true));
        assert_eq!(rekey(&initiators, 124), Some(false), "asked a moment ago");
        assert_eq!(rekey(&initiators, 125), Some(true));
        assert_eq!((rekey(&responders, 179), rekey(&responders, 180)), (Some(false), None));
        responders.counter.store(REKEY_AFTER_MESSAGES, Relaxed);
        assert_eq!(rekey(&responders, 1), Some(true), "2^60 messages");

        let after = |secs| AT + Duration::from_secs(secs);
        assert!(!opener.rekey_on_receive(after(164)) && opener.rekey_on_receive(after(165)));
        assert!(!opener.rekey_on_receive(after(166)), "once");
        assert!(opener.usable(after(179)) && !opener.usable(after(180)));
    }

    #[test]
    fn debug_shows_no_keys() {
        let (sealer, opener) = halves(Side::Initiator);
        let shown = std::format!("{sealer:?} {opener:?}");
        assert_eq!(shown, "Sealer { receiver: 8, side: Initiator, .. } Opener { index: 7, .. }");
    }

    #[test]
    fn packets_that_come_after_later_ones_are_counted() {
        let mut window = ReplayWindow::default();
        let overtaken = [0, 1, 5, 3, 3, 6, 4, 1 << 40, 7].map(|counter| {
            let _ = window.accept(counter);
            window.overtaken()
        });
        assert_eq!(overtaken, [0, 0, 0, 1, 1, 1, 2, 2, 2], "but not those that are refused");
    }

    #[test]
    fn the_window_is_all_of_8192() {
        for start in [0, 1, 63, 64, 65, 8_191, 8_192, 1 << 40] {
            let mut window = ReplayWindow::default();
            let top = start + REPLAY_WINDOW;
            assert_eq!(window.accept(top), Ok(()));
            assert_eq!(window.accept(top - (REPLAY_WINDOW - 1)), Ok(()));
            assert_eq!(window.accept(top - (REPLAY_WINDOW - 1)), Err(Replay::Duplicate));
            assert_eq!(window.accept(top - REPLAY_WINDOW), Err(Replay::Outside));
        }
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_set(start in prop_oneof![Just(0), 0..100_000_u64, Just(REJECT_AFTER_MESSAGES - 20_000)],
                                            steps in proptest::collection::vec((0..3_u8, 0..20_000_u64), 1..300)) {
            let mut window = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            let mut top = start;
            for (kind, by) in steps {
                let counter = match kind {
                    0 => top.saturating_sub(by),
                    1 => top.saturating_add(by % 130),
                    _ => top.saturating_add(by),
                };
                let outside = counter >= REJECT_AFTER_MESSAGES
                    || seen.last().is_some_and(|&last: &u64| counter + REPLAY_WINDOW <= last);
                let expected = if outside {
                    Err(Replay::Outside)
                } else if seen.insert(counter) {
                    top = top.max(counter);
                    Ok(())
                } else {
                    Err(Replay::Duplicate)
                };
                prop_assert_eq!(window.accept(counter), expected, "{}", counter);
            }
        }
    }
}
