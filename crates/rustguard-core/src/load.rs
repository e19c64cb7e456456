//! When to ask for cookies: load by source and in total, in bounded memory.
//!
//! Only messages with a valid MAC1 come here. A source that sends more than it should is under load alone, and what it
//! sends above its allowance does not count for the total: a flood from one place leaves the others as they were. A flood
//! from many (or spoofed) sources exceeds the total, and then everybody has to prove their address.
use crate::{
    limit::{Bucket, Rate, Source},
    time::Instant,
};
use alloc::collections::BTreeMap;
use core::{net::IpAddr, time::Duration};

/// How long load lasts after the last message above the limit.
pub(crate) const HYSTERESIS: Duration = Duration::from_secs(1);
/// Sources remembered at most. What comes from others counts for the total only.
pub(crate) const MAX_SOURCES: usize = 4096;

/// What a source may send without a cookie.
const PER_SOURCE: Rate = Rate { interval: Duration::from_millis(50), burst: 50 };
/// What all sources together may send without cookies: at some 80 µs for a handshake, a tenth of one core.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(1), burst: 1000 };
/// What a source may send under load, with a cookie: the kernel's ratelimiter.
const WITH_COOKIE: Rate = Rate { interval: Duration::from_millis(50), burst: 5 };

/// The load of one node.
#[derive(Debug, Default)]
pub(crate) struct Load {
    total: Bucket,
    loaded_until: Instant,
    sources: BTreeMap<Source, SourceLoad>,
    swept: Instant,
}

#[derive(Debug, Default)]
struct SourceLoad {
    arrivals: Bucket,
    with_cookie: Bucket,
    loaded_until: Instant,
}

impl Load {
    /// Counts a message; true when its sender has to show a cookie.
    pub(crate) fn note(&mut self, from: IpAddr, now: Instant) -> bool {
        let mut within = true;
        let mut loaded = false;
        if let Some(source) = self.source(from, now) {
            within = source.arrivals.take(PER_SOURCE, now);
            if !within {
                source.loaded_until = now + HYSTERESIS;
            }
            loaded = now < source.loaded_until;
        }
        if within && !self.total.take(IN_TOTAL, now) {
            self.loaded_until = now + HYSTERESIS;
        }
        loaded || now < self.loaded_until
    }

    /// Whether a message that showed a cookie may be processed under load.
    pub(crate) fn admit_with_cookie(&mut self, from: IpAddr, now: Instant) -> bool {
        // A source without a place in the table is real, for it has a cookie, but all places are taken by busy ones.
        self.source(from, now).is_some_and(|source| source.with_cookie.take(WITH_COOKIE, now))
    }

    fn source(&mut self, from: IpAddr, now: Instant) -> Option<&mut SourceLoad> {
        let key = Source::of(from);
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&key) {
            self.sweep(now);
            if self.sources.len() >= MAX_SOURCES {
                return None;
            }
        }
        Some(self.sources.entry(key).or_default())
    }

    /// Forgets sources about which there is nothing to know; at most once in a while, lest a flood sweep at each message.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) >= HYSTERESIS {
            self.swept = now;
            self.sources.retain(|_, source| !source.is_idle(now));
        }
    }
}

impl SourceLoad {
    fn is_idle(&self, now: Instant) -> bool {
        now >= self.loaded_until && self.arrivals.is_full(now) && self.with_cookie.is_full(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;

    const AT: Instant = Instant::from_nanos(5_000_000_000);

    fn v4(i: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + i).to_be_bytes())
    }

    #[test]
    fn c07_one_flooding_source_is_alone_with_it() {
        let mut load = Load::default();
        let mut now = AT;
        for i in 0..10_000 {
            now = AT + Duration::from_micros(100) * i;
            assert_eq!(load.note(v4(0), now), i >= 50 + i / 500, "message {i}");
        }
        assert!(!load.note(v4(1), now));
        assert!(load.note(IpAddr::V6("::ffff:10.0.0.0".parse().expect("an address")), now), "the same host");
    }

    #[test]
    fn c07_a_flood_from_spoofed_sources_puts_everybody_under_load_in_bounded_memory() {
        let mut load = Load::default();
        let loaded = (0..100_000).filter(|&i| load.note(v4(i), AT)).count();
        assert_eq!(loaded, 99_000);
        assert!(load.note(IpAddr::V6(Ipv6Addr::LOCALHOST), AT));
        assert_eq!(load.sources.len(), MAX_SOURCES);
        // Sources of which nothing is left to know make room.
        let later = AT + Duration::from_secs(2);
        assert!(!load.note(IpAddr::V6(Ipv6Addr::LOCALHOST), later));
        assert_eq!(load.sources.len(), 1);
    }

    #[test]
    fn an_ipv6_prefix_is_one_source() {
        let mut load = Load::default();
        let host = |i: u64| IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | u128::from(i)));
        assert_eq!((0..100).filter(|&i| load.note(host(i), AT)).count(), 50);
        assert!(!load.note(IpAddr::V6(Ipv6Addr::from_bits(0xfe << 120)), AT));
    }

    #[test]
    fn c08_load_ends_one_second_after_the_flood() {
        let mut load = Load::default();
        for _ in 0..51 {
            load.note(v4(0), AT);
        }
        assert!(load.note(v4(0), AT + Duration::from_millis(999)));
        assert!(!load.note(v4(0), AT + Duration::from_secs(1)));
    }

    #[test]
    fn twenty_a_second_with_a_cookie() {
        let mut load = Load::default();
        let admitted =
            (0..10_000).filter(|&i| load.admit_with_cookie(v4(0), AT + Duration::from_millis(1) * i)).count();
        assert_eq!(admitted, 204, "five at once, then twenty a second for ten seconds");
    }
}
