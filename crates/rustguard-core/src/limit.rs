//! Rate limits by source address, in bounded memory.
use crate::{cookie::Origin, time::Instant};
use alloc::collections::BTreeMap;
use core::{net::IpAddr, time::Duration};

/// An IPv4 address or an IPv6 /64: all addresses that one host or household can use at will. Or a relay, together with
/// the peer whose messages it claims to forward. It is a key for ordered trees: hash tables could be attacked through
/// collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(u8, u64);

impl Source {
    /// The source that has this address. An IPv4-mapped IPv6 address is the IPv4 address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(ip) => Self(4, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => Self(6, (ip.to_bits() >> 64) as u64),
        }
    }

    /// The source by which a message from there is limited. A forwarded message has a second limit
    /// ([`Source::of_relay`]).
    pub fn of_origin(origin: Origin) -> Self {
        match origin {
            Origin::Address(address) => Self::of(address.ip()),
            Origin::Peer { relay, peer } => Self(0, u64::from(relay.0) << 32 | u64::from(peer.0)),
        }
    }

    /// The relay that has forwarded a message, no matter which peer it names; `None` for a message from an address.
    pub fn of_relay(origin: Origin) -> Option<Self> {
        match origin {
            Origin::Address(_) => None,
            Origin::Peer { relay, .. } => Some(Self(1, relay.0.into())),
        }
    }
}

/// How many messages are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The time per message in the long run.
    pub interval: Duration,
    /// How many messages are allowed at once after a pause.
    pub burst: u32,
}

/// A token bucket, stored as the moment at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket(Instant);

impl Bucket {
    /// Takes one message out; false if the bucket is empty, and nothing is taken.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.take_many(1, rate, now)
    }

    /// Takes `count` messages out; false if there are fewer, and nothing is taken.
    pub fn take_many(&mut self, count: u32, rate: Rate, now: Instant) -> bool {
        let full_again = self.0.max(now) + rate.interval * count;
        let allowed = full_again.since(now) <= rate.interval * rate.burst;
        if allowed {
            self.0 = full_again;
        }
        allowed
    }

    /// Whether there is a message in it.
    pub fn has(&self, rate: Rate, now: Instant) -> bool {
        Self(self.0).take(rate, now)
    }

    /// Whether it is full again, as a new one is.
    pub fn is_full(&self, now: Instant) -> bool {
        self.0 <= now
    }
}

impl Idle for Bucket {
    fn is_idle(&self, now: Instant) -> bool {
        self.is_full(now)
    }
}

/// An entry of a [`SourceTable`] that can be forgotten.
pub trait Idle {
    /// Whether the entry has no more information than a new one.
    fn is_idle(&self, now: Instant) -> bool;
}

/// State of sources, for a bounded number of them.
#[derive(Debug)]
pub struct SourceTable<T> {
    known: BTreeMap<Source, T>,
    capacity: usize,
    pause: Duration,
    swept: Instant,
}

impl<T: Idle + Default> SourceTable<T> {
    /// A table for at most `capacity` sources. A full table is searched for idle entries at most once in `pause`: a
    /// flood of new sources must not cause a search for each message.
    pub const fn new(capacity: usize, pause: Duration) -> Self {
        Self { known: BTreeMap::new(), capacity, pause, swept: Instant::from_nanos(0) }
    }

    /// The entry of a source; a new one for a new source. `None`: the table is full.
    pub fn get(&mut self, source: Source, now: Instant) -> Option<&mut T> {
        if self.known.len() >= self.capacity && !self.known.contains_key(&source) {
            if now.since(self.swept) >= self.pause {
                self.swept = now;
                self.known.retain(|_, entry| !entry.is_idle(now));
            }
            if self.known.len() >= self.capacity {
                return None;
            }
        }
        Some(self.known.entry(source).or_default())
    }

    /// How many sources are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no source is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// How to treat a message of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Handle it.
    Yes,
    /// Do not handle it; answer with a cookie, which proves the source address.
    WithCookie,
    /// Drop it.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_forgets_idle_sources_and_searches_for_them_once_in_the_pause() {
        let rate = Rate { interval: Duration::from_millis(100), burst: 3 };
        let source = |n: u8| Source::of([10, 0, 0, n].into());
        let mut table = SourceTable::<Bucket>::new(2, Duration::from_secs(1));
        let at = |ms: u64| Instant::from_nanos(7_000_000_000) + Duration::from_millis(ms);
        assert!(table.is_empty());
        for n in [1, 2] {
            assert!(table.get(source(n), at(0)).unwrap().take(rate, at(0)));
        }
        assert!(table.get(source(3), at(0)).is_none(), "both are busy");
        assert!(table.get(source(1), at(0)).is_some(), "a known source keeps its place");
        assert!(table.get(source(3), at(500)).is_none(), "both are idle, but the table was searched a moment ago");
        assert!(table.get(source(3), at(1_000)).is_some());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let rate = Rate { interval: Duration::from_millis(100), burst: 3 };
        let (mut bucket, at) = (Bucket::default(), Instant::from_nanos(7_000_000_000));
        assert_eq!((0..10).filter(|_| bucket.take(rate, at)).count(), 3);
        assert!(!bucket.is_full(at + Duration::from_millis(299)) && bucket.is_full(at + Duration::from_millis(300)));
        assert!(!bucket.take(rate, at + Duration::from_millis(99)));
        assert!(bucket.take(rate, at + Duration::from_millis(100)));
        let later = at + Duration::from_secs(1);
        assert!(!bucket.take_many(4, rate, later) && bucket.take_many(2, rate, later), "more than it holds, and less");
        assert!(!bucket.take_many(2, rate, later) && bucket.take(rate, later), "what is left");
    }

    #[test]
    fn sources_are_hosts_and_networks() {
        let of = |text: &str| Source::of(text.parse().expect("an address"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
