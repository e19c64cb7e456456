//! Another protocol on the tunnel's port: which datagrams are its own, and which of them are queued when there are too many.
//!
//! Anybody can send such datagrams, faster than they can be looked at. In a queue where everybody takes what is free, one who
//! floods has nearly all places, and an honest sender gets through by luck. So half of the places is left to those who send
//! little: [`SHARE`] datagrams of a source in a [`TICK`]. Measured with a flood at line rate of first messages of enrolment, on
//! two cores.

use crate::{
    device::Datagram,
    drops::{DropReason, Drops},
};
use rustguard_core::{limit::Source, time::Instant};
use rustguard_tun::Endpoint;
use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::sync::mpsc;

/// For so long a source's datagrams are counted together.
const TICK: Duration = Duration::from_millis(100);
/// Datagrams of a source in a tick that may take a place of the second half.
const SHARE: u32 = 8;
/// Counters, 64 KiB of them. Sources that fall on the same one share it; which do is different in each process.
const COUNTERS: usize = 8192;

/// Who speaks another protocol on our port.
pub(crate) struct OtherProtocol {
    pub(crate) recognises: fn(&[u8]) -> bool,
    queue: mpsc::Sender<Datagram>,
    hash: RandomState,
    /// The tick in the upper half, and the datagrams in it.
    counters: Box<[AtomicU64]>,
}

impl OtherProtocol {
    pub(crate) fn new(recognises: fn(&[u8]) -> bool, queue: mpsc::Sender<Datagram>) -> Self {
        let counters = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { recognises, queue, hash: RandomState::new(), counters }
    }

    /// Copies a datagram for those who speak the protocol.
    #[cold]
    pub(crate) fn take(&self, from: Endpoint, datagram: &[u8], now: Instant, drops: &Drops) {
        let contested = self.queue.capacity() <= self.queue.max_capacity() / 2;
        if contested && !self.within_share(from.remote.ip(), now) {
            drops.count(DropReason::DatagramQueueFull, 1);
            return;
        }
        // Reserved first: a flood must not make copies that nobody takes.
        match self.queue.try_reserve() {
            Ok(place) => place.send(Datagram { endpoint: from, bytes: datagram.into() }),
            Err(_) => drops.count(DropReason::DatagramQueueFull, 1),
        }
    }

    /// Counts a datagram of a source: an IPv4 address or an IPv6 /64. Two workers at once may count one of two, which is as
    /// good.
    fn within_share(&self, source: IpAddr, now: Instant) -> bool {
        let source = Source::of(source);
        let at = self.hash.hash_one(source) as usize % COUNTERS;
        let tick = (now.since(Instant::from_nanos(0)).as_nanos() / TICK.as_nanos()) as u32;
        // Modulo, so there is one.
        let Some(counter) = self.counters.get(at) else { return false };
        let counted = counter.load(Ordering::Relaxed);
        let before = if (counted >> 32) as u32 == tick { counted as u32 } else { 0 };
        if before >= SHARE {
            return false;
        }
        counter.store(u64::from(tick) << 32 | u64::from(before + 1), Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const QUEUE: usize = 64;

    struct Lab {
        other: OtherProtocol,
        queue: mpsc::Receiver<Datagram>,
        drops: Drops,
    }

    impl Lab {
        fn new(queued: usize) -> Self {
            let (sender, queue) = mpsc::channel(queued);
            Self { other: OtherProtocol::new(|_| true, sender), queue, drops: Drops::default() }
        }

        /// Sends so many; how many of them are in the queue.
        fn send(&mut self, from: &str, count: usize, after: Duration) -> usize {
            let remote = SocketAddr::new(from.parse().unwrap(), 7);
            let now = Instant::from_nanos(1_000_000_000) + after;
            let before = self.queue.len();
            for _ in 0..count {
                self.other.take(Endpoint { remote, local: None }, b"x", now, &self.drops);
            }
            self.queue.len() - before
        }
    }

    #[test]
    fn one_who_floods_leaves_room_for_those_who_do_not() {
        let mut lab = Lab::new(QUEUE);
        let flooded = lab.send("192.0.2.1", 10_000, Duration::ZERO);
        assert_eq!(flooded, QUEUE / 2 + SHARE as usize);
        assert_eq!(lab.send("192.0.2.2", 3, Duration::ZERO), 3);
        assert_eq!(lab.send("192.0.2.1", 1, TICK - Duration::from_nanos(1)), 0, "in the same tick");
        assert_eq!(lab.drops.snapshot(), [(DropReason::DatagramQueueFull, 10_000 - flooded as u64 + 1)]);
        // A little later it has its share again, and no more.
        assert_eq!(lab.send("192.0.2.1", 100, TICK), SHARE as usize);
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
        // Of the smallest one, half is nothing.
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
            // Two that are different may share a counter, by a chance of one in 8,192; not three times over.
            let shared = (0..3).all(|_| {
                let mut lab = Lab::new(QUEUE);
                lab.send(first, QUEUE, Duration::ZERO);
                lab.send(second, 1, Duration::ZERO) == 0
            });
            assert_eq!(shared, same, "{first} and {second}");
        }
    }
}
