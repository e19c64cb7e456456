//! What the data plane tells the timers of a peer: relaxed atomics, stamped once per run and read lazily.
//!
//! No timer is set or cleared per packet. Two stamps say since when something is due: data received that nothing was sent
//! after, data sent that nothing was received after. A stamp that starts such a wait reports it once; the node then looks
//! in time, and goes on looking as long as there is something to wait for. Traffic in both directions thus costs one look
//! per ten seconds, not one timer per packet.

use crate::time::Instant;
use portable_atomic::{AtomicBool, AtomicU64, Ordering};

/// Traffic of one peer. Shared between the data plane, which stamps, and the [`Node`](crate::node::Node), which reads.
///
/// A stamp that starts a waiting period returns `true` when the node has no look ahead of it: the caller then calls
/// [`Node::activity`](crate::node::Node::activity) once (in the device: over the queue to control).
#[derive(Debug, Default)]
pub struct Activity {
    /// Transport bytes sent, headers and tags included, as `wg` counts them. Handshake messages are added by the device.
    pub tx_bytes: AtomicU64,
    /// Transport bytes received.
    pub rx_bytes: AtomicU64,
    /// When the first data was received that nothing was sent after; 0 for none.
    received_unanswered: AtomicU64,
    /// When the first data was sent that nothing was received after; 0 for none.
    sent_unanswered: AtomicU64,
    /// The last authenticated packet either way.
    traversal: AtomicU64,
    /// The node will look.
    look_pending: AtomicBool,
}

impl Activity {
    /// A run with data (not a keepalive) was sealed and sent.
    #[must_use]
    pub fn data_sent(&self, now: Instant, bytes: u64) -> bool {
        self.keepalive_sent(now, bytes);
        self.wait(&self.sent_unanswered, now)
    }

    /// A keepalive was sent.
    pub fn keepalive_sent(&self, now: Instant, bytes: u64) {
        self.tx_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.sent(now);
    }

    /// A run with data was authenticated.
    #[must_use]
    pub fn data_received(&self, now: Instant, bytes: u64) -> bool {
        self.keepalive_received(now, bytes);
        self.wait(&self.received_unanswered, now)
    }

    /// A keepalive was authenticated.
    pub fn keepalive_received(&self, now: Instant, bytes: u64) {
        self.rx_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.received(now);
    }

    /// Anything authenticated was sent, handshake messages included.
    pub(crate) fn sent(&self, now: Instant) {
        self.traversal.store(now.as_nanos(), Ordering::Relaxed);
        clear(&self.received_unanswered);
    }

    /// Anything authenticated was received, handshake messages included.
    pub(crate) fn received(&self, now: Instant) {
        self.traversal.store(now.as_nanos(), Ordering::Relaxed);
        clear(&self.sent_unanswered);
    }

    fn wait(&self, since: &AtomicU64, now: Instant) -> bool {
        if since.load(Ordering::Relaxed) != 0 {
            return false;
        }
        since.store(now.as_nanos().max(1), Ordering::Relaxed);
        !self.look_pending.swap(true, Ordering::Relaxed)
    }

    /// The node looks now. From here on a stamp reports again; if the node finds that it must look once more, it says so
    /// with [`look_again`](Self::look_again).
    pub(crate) fn look(&self) -> Look {
        self.look_pending.store(false, Ordering::Relaxed);
        let read = |stamp: &AtomicU64| Some(stamp.load(Ordering::Relaxed)).filter(|&n| n != 0).map(Instant::from_nanos);
        Look { received_unanswered: read(&self.received_unanswered), sent_unanswered: read(&self.sent_unanswered) }
    }

    pub(crate) fn look_again(&self) {
        self.look_pending.store(true, Ordering::Relaxed);
    }

    /// What was waited for has been acted upon; the next data sent starts a new wait.
    pub(crate) fn forget_sent(&self) {
        clear(&self.sent_unanswered);
    }

    /// When the last authenticated packet went either way.
    pub(crate) fn last_traversal(&self) -> Instant {
        Instant::from_nanos(self.traversal.load(Ordering::Relaxed))
    }
}

/// What is being waited for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) received_unanswered: Option<Instant>,
    pub(crate) sent_unanswered: Option<Instant>,
}

/// Reads first: a line that is written for every run would travel between the cores.
fn clear(stamp: &AtomicU64) {
    if stamp.load(Ordering::Relaxed) != 0 {
        stamp.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(n: u64) -> Instant {
        Instant::from_nanos(n)
    }

    #[test]
    fn a_conversation_reports_once_until_the_node_has_looked() {
        let activity = Activity::default();
        assert!(activity.data_sent(at(1), 100));
        for n in 2..100 {
            assert!(!activity.data_received(at(n), 100));
            assert!(!activity.data_sent(at(n), 100));
        }
        let look = activity.look();
        assert_eq!(look, Look { received_unanswered: None, sent_unanswered: Some(at(99)) });
        assert!(!activity.data_sent(at(100), 1), "that wait has been reported");
        assert!(activity.data_received(at(101), 1), "a new one");
    }

    #[test]
    fn the_wait_counts_from_the_first_not_the_last() {
        let activity = Activity::default();
        assert!(activity.data_received(at(5), 1));
        let _ = activity.data_received(at(9), 1);
        assert_eq!(activity.look().received_unanswered, Some(at(5)));
    }

    #[test]
    fn keepalives_end_waits_and_start_none() {
        let activity = Activity::default();
        activity.keepalive_received(at(3), 32);
        activity.keepalive_sent(at(4), 32);
        assert_eq!(activity.look(), Look { received_unanswered: None, sent_unanswered: None });
        let _ = activity.data_received(at(5), 1);
        activity.keepalive_sent(at(6), 32);
        assert_eq!(activity.look().received_unanswered, None);
        assert_eq!(activity.last_traversal(), at(6));
    }
}
