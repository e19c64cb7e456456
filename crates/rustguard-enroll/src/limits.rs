//! Limits on the work that strangers can cause: buckets by source and in total, in bounded memory.
//!
//! The first message of an invite costs one X25519 multiplication before the server knows whether the invite is its
//! own. Each source, and all sources together, therefore have an allowance. A message above it needs a cookie, which
//! proves its source address. Messages with cookies have an allowance too, so the total work is bounded for any number
//! of senders.
use core::{net::IpAddr, time::Duration};
pub(crate) use rustguard_core::limit::{Admit, Bucket, Rate, Source};
use rustguard_core::{limit::SourceTable, time::Instant};

/// The largest number of sources that are remembered, of each kind.
const MAX_SOURCES: usize = 4096;
/// Idle sources are removed at most this often. Otherwise a flood would cause a sweep with each message.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// First messages of one source without a cookie: 10 a second.
const PER_SOURCE: Rate = Rate { interval: Duration::from_millis(100), burst: 20 };
/// First messages of all sources without a cookie: 200 a second, 1 % of a core.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(5), burst: 200 };
/// First messages of one source with a cookie: 5 a second.
const COOKIE_PER_SOURCE: Rate = Rate { interval: Duration::from_millis(200), burst: 10 };
/// First messages of all sources with a cookie: 1,000 a second, about 5 % of a core.
const COOKIE_IN_TOTAL: Rate = Rate { interval: Duration::from_millis(1), burst: 1000 };

/// The rate limit for first messages of invites.
#[derive(Debug, Default)]
pub(crate) struct Door {
    unproven: Side,
    proven: Side,
}

impl Door {
    /// Counts a message; `proven` tells whether it has a valid cookie.
    pub(crate) fn knock(&mut self, from: IpAddr, proven: bool, now: Instant) -> Admit {
        let source = Source::of(from);
        if proven {
            // A source without an entry in the table is genuine, but thousands of genuine sources are active already.
            let within = self.proven.take(source, COOKIE_PER_SOURCE, COOKIE_IN_TOTAL, now) == Some(true);
            if within { Admit::Yes } else { Admit::No }
        } else if self.unproven.take(source, PER_SOURCE, IN_TOTAL, now) == Some(false) {
            Admit::WithCookie
        } else {
            Admit::Yes
        }
    }
}

#[derive(Debug)]
struct Side {
    total: Bucket,
    sources: SourceTable<Bucket>,
}

impl Default for Side {
    fn default() -> Self {
        Self { total: Bucket::default(), sources: SourceTable::new(MAX_SOURCES, SWEEP_EVERY) }
    }
}

impl Side {
    /// Whether the message is within both allowances. `None` if it is within the total and the table has no entry for
    /// its source.
    fn take(&mut self, source: Source, each: Rate, all: Rate, now: Instant) -> Option<bool> {
        // Messages above the source's own allowance do not count towards the total. A flood from one source therefore
        // does not affect the others.
        let own = self.sources.get(source, now).map(|bucket| bucket.take(each, now));
        if own == Some(false) || !self.total.take(all, now) {
            return Some(false);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(5_000_000_000);

    fn v4(i: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + i).to_be_bytes())
    }

    #[test]
    fn one_flooding_source_is_alone_with_it() {
        let mut door = Door::default();
        assert_eq!((0..10_000).filter(|_| door.knock(v4(0), false, AT) == Admit::Yes).count(), 20);
        assert_eq!(door.knock(v4(0), false, AT), Admit::WithCookie);
        assert_eq!(door.knock(v4(1), false, AT), Admit::Yes);
        assert_eq!(door.knock(v4(0), true, AT), Admit::Yes, "with a cookie it is heard");
        assert_eq!((0..100).filter(|_| door.knock(v4(0), true, AT) == Admit::Yes).count(), 9);
        assert_eq!(door.knock(v4(0), true, AT), Admit::No);
    }

    #[test]
    fn spoofed_sources_exhaust_the_total_in_bounded_memory_and_cookies_still_work() {
        let mut door = Door::default();
        assert_eq!((0..100_000).filter(|&i| door.knock(v4(i), false, AT) == Admit::Yes).count(), 200);
        assert_eq!(door.unproven.sources.len(), MAX_SOURCES);
        assert_eq!(door.knock(v4(200_000), false, AT), Admit::WithCookie);
        assert_eq!(door.knock(v4(200_000), true, AT), Admit::Yes);
        // Messages with cookies have an upper bound too.
        assert_eq!((0..100_000).filter(|&i| door.knock(v4(i), true, AT) == Admit::Yes).count(), 999);
        assert_eq!(door.proven.sources.len(), MAX_SOURCES);
        let later = AT + Duration::from_secs(10);
        assert_eq!(door.knock(v4(300_000), false, later), Admit::Yes);
        assert_eq!(door.knock(v4(300_000), true, later), Admit::Yes);
        assert_eq!((door.unproven.sources.len(), door.proven.sources.len()), (1, 1));
    }

    #[test]
    fn an_ipv6_prefix_is_one_source_and_a_mapped_address_its_ipv4_one() {
        let of = |text: &str| Source::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
