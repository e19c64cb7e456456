//! The data path's information for the timers of a peer: relaxed atomics, written once for each run of packets and read
//! when a timer ends.
//!
//! In the whitepaper each packet sets and clears timers. Here a packet costs a few stores: the stamps say since when an
//! answer is owed or awaited, and the node reads them when the first answer could be due. Only one such look is pending
//! at a time, so traffic in both directions wakes the node about once in ten seconds.
use crate::time::Instant;
use portable_atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// Traffic of one peer. Shared between the data plane, which writes the stamps, and the [`Node`](crate::node::Node),
/// which reads them.
///
/// A stamp may start a waiting period (data received and nothing sent yet, data sent and nothing heard yet). It then
/// returns `true` if the node has no timer that would look at it: the caller then calls
/// [`Node::activity`](crate::node::Node::activity) once (in the device: over the queue to control).
#[derive(Debug, Default)]
pub struct Activity {
    tx_bytes: AtomicU64,
    rx_bytes: AtomicU64,
    /// When data arrived that nothing was sent after: the first such data.
    owed_since: Stamp,
    /// When data was sent that nothing was received after: the first such data.
    awaited_since: Stamp,
    /// When anything authentic was last sent or received, handshakes included.
    last_traversal: Stamp,
    /// When data last arrived.
    last_data: Stamp,
    /// When a keepalive or an answer to an initiation last arrived. Both are rare, so that a run of data has only one
    /// stamp to set.
    last_other: Stamp,
    /// The node has a timer that will look at the stamps, or is about to be told to set one.
    look_pending: AtomicBool,
}

impl Activity {
    /// Bytes sent in UDP payloads, headers and tags included, as `wg` counts them.
    pub fn tx_bytes(&self) -> u64 {
        self.tx_bytes.load(Relaxed)
    }

    /// Bytes received in UDP payloads.
    pub fn rx_bytes(&self) -> u64 {
        self.rx_bytes.load(Relaxed)
    }

    /// Counts the bytes of a handshake message that was sent. The methods for runs of packets count their bytes
    /// themselves.
    pub fn count_sent(&self, bytes: u64) {
        self.tx_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the bytes of a handshake message that was received.
    pub fn count_received(&self, bytes: u64) {
        self.rx_bytes.fetch_add(bytes, Relaxed);
    }

    /// A run with data (not a keepalive) was sealed and sent.
    #[must_use]
    pub fn data_sent(&self, now: Instant, bytes: u64) -> bool {
        self.tx_bytes.fetch_add(bytes, Relaxed);
        self.sent(now);
        self.awaited_since.start(now) && self.claim_look()
    }

    /// A keepalive was sent.
    pub fn keepalive_sent(&self, now: Instant, bytes: u64) {
        self.tx_bytes.fetch_add(bytes, Relaxed);
        self.sent(now);
    }

    /// A run with data was authenticated.
    #[must_use]
    pub fn data_received(&self, now: Instant, bytes: u64) -> bool {
        self.rx_bytes.fetch_add(bytes, Relaxed);
        self.received(now);
        self.last_data.set(now);
        self.owed_since.start(now) && self.claim_look()
    }

    /// A keepalive was authenticated.
    pub fn keepalive_received(&self, now: Instant, bytes: u64) {
        self.rx_bytes.fetch_add(bytes, Relaxed);
        self.received(now);
        self.last_other.set(now);
    }

    /// Since when nothing was heard after data was sent; `None` if something was heard, or nothing was sent.
    pub fn unanswered_since(&self) -> Option<Instant> {
        self.awaited_since()
    }

    /// Whether the node is going to look at the stamps. Until such a look finds nothing to do, no more data asks for
    /// one.
    pub fn is_watched(&self) -> bool {
        self.look_pending.load(Relaxed)
    }

    /// When data was last received.
    pub fn data_received_at(&self) -> Option<Instant> {
        self.last_data.get()
    }

    /// When the peer was last heard in a session, or answered an initiation.
    pub fn heard_at(&self) -> Option<Instant> {
        self.last_data.get().max(self.last_other.get())
    }

    /// The peer answered an initiation.
    pub(crate) fn answer_received(&self, now: Instant) {
        self.received(now);
        self.last_other.set(now);
    }

    /// Something authentic was sent; the node calls this for its handshake messages.
    pub(crate) fn sent(&self, now: Instant) {
        self.last_traversal.set(now);
        self.owed_since.clear();
    }

    /// Something authentic was received; the node calls this for initiations.
    pub(crate) fn received(&self, now: Instant) {
        self.last_traversal.set(now);
        self.awaited_since.clear();
    }

    /// Since when the peer has waited for an answer to its data.
    pub(crate) fn owed_since(&self) -> Option<Instant> {
        self.owed_since.get()
    }

    /// Since when we have waited for an answer to our data.
    pub(crate) fn awaited_since(&self) -> Option<Instant> {
        self.awaited_since.get()
    }

    /// When anything authentic last passed.
    pub(crate) fn last_traversal(&self) -> Option<Instant> {
        self.last_traversal.get()
    }

    /// The node has asked for a keepalive, which is the answer.
    pub(crate) fn settle_owed(&self) {
        self.owed_since.clear();
    }

    /// The node begins a handshake, which shows whether the peer is reachable.
    pub(crate) fn settle_awaited(&self) {
        self.awaited_since.clear();
    }

    /// Ends the look. False if meanwhile a thread set a stamp and relied on the look: then the look continues.
    pub(crate) fn end_look(&self) -> bool {
        self.look_pending.store(false, Relaxed);
        // Store the flag, then load the stamps; `claim_look` stores a stamp, then loads the flag. With a full fence in
        // between on both sides at least one of the two sees the other.
        fence(SeqCst);
        let quiet = self.owed_since().is_none() && self.awaited_since().is_none();
        quiet || self.look_pending.swap(true, Relaxed)
    }

    fn claim_look(&self) -> bool {
        fence(SeqCst);
        !self.look_pending.load(Relaxed) && !self.look_pending.swap(true, Relaxed)
    }
}

/// A moment or none. Zero means none; the clock's first nanosecond is stored as its second.
#[derive(Debug, Default)]
struct Stamp(AtomicU64);

impl Stamp {
    fn get(&self) -> Option<Instant> {
        Some(self.0.load(Relaxed)).filter(|&nanos| nanos != 0).map(Instant::from_nanos)
    }

    fn set(&self, now: Instant) {
        self.0.store(now.as_nanos().max(1), Relaxed);
    }

    /// Sets the stamp unless it is set; true if it was not. If two threads start it, either moment is right.
    fn start(&self, now: Instant) -> bool {
        let starts = self.0.load(Relaxed) == 0;
        if starts {
            self.set(now);
        }
        starts
    }

    fn clear(&self) {
        // A load first: with traffic in one direction this is already zero, and the cache line stays shared.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const AT: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn one_look_at_a_time_and_none_for_keepalives() {
        let activity = Activity::default();
        activity.keepalive_received(AT, 32);
        activity.keepalive_sent(AT, 32);
        assert!(activity.end_look(), "a keepalive is owed nothing");
        assert!(!activity.is_watched());
        assert!(activity.data_received(AT, 100), "the first to want a look");
        assert!(activity.is_watched());
        assert!(!activity.data_received(AT, 100) && !activity.data_sent(AT, 100), "it is pending");
        assert_eq!((activity.owed_since(), activity.awaited_since()), (None, Some(AT)));
        assert_eq!((activity.tx_bytes(), activity.rx_bytes()), (132, 232));
        assert!(!activity.end_look(), "an answer is awaited: the look goes on");
        activity.keepalive_received(AT + Duration::from_secs(1), 32);
        assert_eq!(activity.last_traversal(), Some(AT + Duration::from_secs(1)));
        assert!(activity.end_look());
        assert!(activity.data_sent(AT, 100), "and the next stamp wants one again");
    }

    #[test]
    fn the_first_nanosecond_is_not_never() {
        let activity = Activity::default();
        assert!(activity.data_sent(Instant::from_nanos(0), 1));
        assert_eq!(activity.awaited_since(), Some(Instant::from_nanos(1)));
    }
}
