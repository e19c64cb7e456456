//! A bounded queue of messages from unauthenticated senders. Half of its places are reserved for sources that send few
//! messages.
//!
//! Such senders can send faster than control can read. Without the reserve, a source that floods the queue has nearly
//! all places, and an honest sender gets a place only by chance. The reserve is for sources with at most [`SHARE`]
//! messages in a [`TICK`]. The numbers were measured with a flood of enrolment's first messages at line rate, on two
//! cores.

use rustguard_core::{cookie::Origin, limit::Source, time::Instant};
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::sync::mpsc;

/// The period in which a source's messages are counted together.
const TICK: Duration = Duration::from_millis(100);
/// The number of messages of one source that may take reserved places in one tick.
const SHARE: u32 = 8;
/// The same for a relay, in total for all peers whose messages it claims to forward. Each of these peers has its own
/// share too.
const RELAY_SHARE: u32 = 8 * SHARE;
/// The number of counters (64 KiB). Sources with the same hash share a counter. The hash is different in each process.
const COUNTERS: usize = 8192;

/// The sending end of the queue that the module describes.
pub(crate) struct FairQueue<T> {
    queue: mpsc::Sender<T>,
    hash: RandomState,
    /// Each counter has the tick in the upper half, and the number of messages in that tick in the lower half.
    counters: Box<[AtomicU64]>,
}

impl<T> FairQueue<T> {
    pub(crate) fn new(queue: mpsc::Sender<T>) -> Self {
        let counters = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { queue, hash: RandomState::new(), counters }
    }

    /// Queues a message. Returns false if it must be dropped. The message is copied only if there is a place for it, so
    /// that a flood costs no copies.
    pub(crate) fn push(&self, from: Origin, now: Instant, message: impl FnOnce() -> T) -> bool {
        let contested = self.queue.capacity() <= self.queue.max_capacity() / 2;
        let fair = || {
            let relay = Source::of_relay(from);
            // Messages of a relay without a remaining share are not counted for any peer: otherwise the relay could use
            // up the shares of all, because sources share counters.
            relay.is_none_or(|relay| counted(self.counter(relay), tick_of(now)) < RELAY_SHARE)
                && self.within_share(Source::of_origin(from), SHARE, now)
                && relay.is_none_or(|relay| self.within_share(relay, RELAY_SHARE, now))
        };
        if contested && !fair() {
            return false;
        }
        self.queue.try_reserve().map(|place| place.send(message())).is_ok()
    }

    /// Counts a message of a source. If two workers count at the same time, one count may be lost, which does no harm.
    /// Returns whether the source is within its share.
    fn within_share(&self, source: Source, share: u32, now: Instant) -> bool {
        let (counter, tick) = (self.counter(source), tick_of(now));
        let before = counted(counter, tick);
        if before >= share {
            return false;
        }
        counter.store(u64::from(tick) << 32 | u64::from(before + 1), Ordering::Relaxed);
        true
    }

    fn counter(&self, source: Source) -> &AtomicU64 {
        &self.counters[self.hash.hash_one(source) as usize % COUNTERS]
    }
}

/// The number of messages in this tick.
fn counted(counter: &AtomicU64, tick: u32) -> u32 {
    let counted = counter.load(Ordering::Relaxed);
    if (counted >> 32) as u32 == tick { counted as u32 } else { 0 }
}

fn tick_of(now: Instant) -> u32 {
    (now.since(Instant::from_nanos(0)).as_nanos() / TICK.as_nanos()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::node::PeerId;
    use std::net::SocketAddr;

    const QUEUE: usize = 64;

    struct Lab {
        fair: FairQueue<()>,
        queue: mpsc::Receiver<()>,
    }

    impl Lab {
        fn new(queued: usize) -> Self {
            let (sender, queue) = mpsc::channel(queued);
            Self { fair: FairQueue::new(sender), queue }
        }

        /// Sends `count` messages. Returns how many of them were queued.
        fn send(&mut self, from: &str, count: usize, after: Duration) -> usize {
            let from = SocketAddr::new(from.parse().unwrap(), 51_820).into();
            self.send_from(|_| from, count, after)
        }

        fn send_from(&mut self, from: impl Fn(usize) -> Origin, count: usize, after: Duration) -> usize {
            let now = Instant::from_nanos(1_000_000_000) + after;
            let before = self.queue.len();
            let taken = (0..count).filter(|&n| self.fair.push(from(n), now, || ())).count();
            assert_eq!(self.queue.len() - before, taken);
            taken
        }
    }

    #[test]
    fn one_who_floods_leaves_room_for_those_who_do_not() {
        let mut lab = Lab::new(QUEUE);
        assert_eq!(lab.send("192.0.2.1", 10_000, Duration::ZERO), QUEUE / 2 + SHARE as usize);
        assert_eq!(lab.send("192.0.2.2", 3, Duration::ZERO), 3);
        assert_eq!(lab.send("192.0.2.1", 1, TICK - Duration::from_nanos(1)), 0, "in the same tick");
        // In the next tick it has its share again, but no more.
        assert_eq!(lab.send("192.0.2.1", 100, TICK), SHARE as usize);
    }

    #[test]
    fn a_relay_that_names_many_peers_leaves_room_for_others() {
        let mut lab = Lab::new(4 * QUEUE);
        let through = |n: usize| Origin::Peer { relay: PeerId(1), peer: PeerId(n as u32) };
        let reserved = lab.send_from(through, 10_000, Duration::ZERO) - 2 * QUEUE;
        // A peer that shares the relay's counter counts twice while the counter is within the peer's share.
        assert!(((RELAY_SHARE - SHARE) as usize..=RELAY_SHARE as usize).contains(&reserved), "{reserved}");
        assert_eq!(lab.send("192.0.2.2", 3, Duration::ZERO), 3);
    }

    #[test]
    fn nobody_is_held_back_while_there_is_room() {
        let mut lab = Lab::new(QUEUE);
        assert_eq!(lab.send("192.0.2.1", QUEUE / 2, Duration::ZERO), QUEUE / 2);
        lab.queue.try_recv().unwrap();
        assert_eq!(lab.send("192.0.2.1", 1, Duration::ZERO), 1);
    }

    #[test]
    fn a_full_queue_is_full_for_all_of_them() {
        let mut lab = Lab::new(QUEUE);
        let taken: usize = (0..100).map(|n| lab.send(&format!("192.0.2.{n}"), 2, Duration::ZERO)).sum();
        assert_eq!(taken, QUEUE);
        // Half of the smallest queue is zero places.
        let mut lab = Lab::new(1);
        assert_eq!(lab.send("192.0.2.1", 2, Duration::ZERO), 1);
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_address_its_ipv4_one() {
        for (first, second, same) in [
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            // Different sources share a counter with a chance of 1 in 8,192, but not three times in a row.
            let shared = (0..3).all(|_| {
                let mut lab = Lab::new(QUEUE);
                lab.send(first, QUEUE, Duration::ZERO);
                lab.send(second, 1, Duration::ZERO) == 0
            });
            assert_eq!(shared, same, "{first} and {second}");
        }
    }
}
