//! When to ask for cookies: load by source and in total, in bounded memory.
//!
//! Only messages with a valid MAC1 are counted here. A source that sends more than its allowance is under load alone,
//! and its messages above the allowance do not count for the total: a flood from one source does not affect the others.
//! A flood from many (or spoofed) sources exceeds the total, and then every source has to prove its address.
//!
//! Sources that have proven their address have a table of their own. Spoofed sources can fill only the other table:
//! they neither evict a proven source nor use up its allowance.
//!
//! For a forwarded message, only the relay is certain: the relay names the original sender, and can read the cookies
//! for all peers that it names. So each relay has an allowance in addition. Messages above the allowance of the named
//! peer do not count for the relay: a peer that floods through an honest relay affects no other peer.
use crate::{
    cookie::Origin,
    limit::{Admit, Bucket, Idle, Rate, Source, SourceTable},
    time::Instant,
};
use core::time::Duration;

/// How long the state of load lasts after the last message above the limit.
pub(crate) const HYSTERESIS: Duration = Duration::from_secs(1);
/// The greatest number of sources in each table. Messages of further unproven sources only count for the total.
pub(crate) const MAX_SOURCES: usize = 4096;
/// The pause between two searches for idle entries in the full table of proven sources. A bucket is full again after
/// 250 ms at the latest.
const PROVEN_SWEEP: Duration = Duration::from_millis(100);

/// The allowance of a source without a cookie.
const PER_SOURCE: Rate = Rate { interval: Duration::from_millis(50), burst: 50 };
/// The allowance of all sources together without cookies: at about 80 µs for a handshake, a tenth of one core.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(1), burst: 1000 };
/// The allowance of a source under load, with a cookie: the kernel's ratelimiter.
const WITH_COOKIE: Rate = Rate { interval: Duration::from_millis(50), burst: 5 };

/// The allowance of a relay, with cookies or without: a quarter of the total.
const PER_RELAY: Rate = Rate { interval: Duration::from_millis(4), burst: 250 };

/// The load of one node.
#[derive(Debug)]
pub(crate) struct Load {
    total: Bucket,
    loaded_until: Instant,
    relays: SourceTable<Bucket>,
    sources: SourceTable<SourceLoad>,
    proven: SourceTable<Bucket>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            total: Bucket::default(),
            loaded_until: Instant::default(),
            relays: SourceTable::new(MAX_SOURCES, HYSTERESIS),
            sources: SourceTable::new(MAX_SOURCES, HYSTERESIS),
            proven: SourceTable::new(MAX_SOURCES, PROVEN_SWEEP),
        }
    }
}

#[derive(Debug, Default)]
struct SourceLoad {
    arrivals: Bucket,
    loaded_until: Instant,
}

impl Load {
    /// Counts a message; `proven` is whether it has a valid cookie.
    pub(crate) fn knock(&mut self, from: Origin, proven: bool, now: Instant) -> Admit {
        let relay = Source::of_relay(from);
        let may = |relay| self.relays.get(relay, now).is_some_and(|bucket| bucket.has(PER_RELAY, now));
        if !relay.is_none_or(may) {
            return Admit::No;
        }
        let source = Source::of_origin(from);
        let (within, loaded) = self.note(source, now);
        let admit = match (loaded, proven) {
            (false, _) => Admit::Yes,
            (true, false) => Admit::WithCookie,
            (true, true) => {
                // A source without a place in the table is real, because it has a cookie; but busy real sources have
                // taken all places.
                let bucket = self.proven.get(source, now);
                if bucket.is_some_and(|bucket| bucket.take(WITH_COOKIE, now)) { Admit::Yes } else { Admit::No }
            }
        };
        if within || admit == Admit::Yes {
            relay.and_then(|relay| self.relays.get(relay, now)).map(|bucket| bucket.take(PER_RELAY, now));
        }
        admit
    }

    /// Counts a message. Returns whether it is within the allowance of its source, and whether its sender has to show a
    /// cookie.
    fn note(&mut self, source: Source, now: Instant) -> (bool, bool) {
        let mut within = true;
        let mut loaded = false;
        if let Some(source) = self.sources.get(source, now) {
            within = source.arrivals.take(PER_SOURCE, now);
            if !within {
                source.loaded_until = now + HYSTERESIS;
            }
            loaded = now < source.loaded_until;
        }
        if within && !self.total.take(IN_TOTAL, now) {
            self.loaded_until = now + HYSTERESIS;
        }
        (within, loaded || now < self.loaded_until)
    }
}

impl Idle for SourceLoad {
    fn is_idle(&self, now: Instant) -> bool {
        now >= self.loaded_until && self.arrivals.is_full(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::PeerId;
    use core::net::{IpAddr, Ipv6Addr, SocketAddr};

    const AT: Instant = Instant::from_nanos(5_000_000_000);

    fn v4(i: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + i).to_be_bytes())
    }

    fn at(from: IpAddr) -> Origin {
        SocketAddr::new(from, 51_820).into()
    }

    /// Whether a message without a cookie is asked for one.
    fn asked(load: &mut Load, from: IpAddr, now: Instant) -> bool {
        match load.knock(at(from), false, now) {
            Admit::Yes => false,
            Admit::WithCookie => true,
            Admit::No => panic!("without a cookie nobody is refused"),
        }
    }

    #[test]
    fn one_flooding_source_is_alone_with_it() {
        let mut load = Load::default();
        let mut now = AT;
        for i in 0..10_000 {
            now = AT + Duration::from_micros(100) * i;
            assert_eq!(asked(&mut load, v4(0), now), i >= 50 + i / 500, "message {i}");
        }
        assert!(!asked(&mut load, v4(1), now));
        assert!(asked(&mut load, IpAddr::V6("::ffff:10.0.0.0".parse().expect("an address")), now), "the same host");
    }

    #[test]
    fn a_flood_from_spoofed_sources_puts_everybody_under_load_in_bounded_memory() {
        let mut load = Load::default();
        let loaded = (0..100_000).filter(|&i| asked(&mut load, v4(i), AT)).count();
        assert_eq!(loaded, 99_000);
        assert!(asked(&mut load, IpAddr::V6(Ipv6Addr::LOCALHOST), AT));
        assert_eq!(load.sources.len(), MAX_SOURCES);
        // Idle entries make room for new sources.
        let later = AT + Duration::from_secs(2);
        assert!(!asked(&mut load, IpAddr::V6(Ipv6Addr::LOCALHOST), later));
        assert_eq!(load.sources.len(), 1);
    }

    #[test]
    fn spoofed_sources_take_nothing_from_proven_ones() {
        let mut load = Load::default();
        let honest = v4(1_000_000);
        // The address of the honest source is spoofed as well.
        for i in 0..20_000 {
            asked(&mut load, v4(i), AT);
            asked(&mut load, honest, AT);
        }
        assert_eq!((load.sources.len(), load.proven.len()), (MAX_SOURCES, 0));
        assert_eq!((0..10).filter(|_| load.knock(at(honest), true, AT) == Admit::Yes).count(), 5);
        assert_eq!(load.knock(at(honest), true, AT), Admit::No, "a proven source that floods");
        assert_eq!(load.knock(at(v4(1_000_001)), true, AT), Admit::Yes, "is limited by itself");
    }

    #[test]
    fn proven_sources_are_bounded_and_make_room_when_they_are_idle() {
        let mut load = Load::default();
        for i in 0..2_000 {
            asked(&mut load, v4(i), AT);
        }
        let admitted = (0..10_000).filter(|&i| load.knock(at(v4(i)), true, AT) == Admit::Yes).count();
        assert_eq!((admitted, load.proven.len()), (MAX_SOURCES, MAX_SOURCES));
        let later = AT + PROVEN_SWEEP;
        assert_eq!(load.knock(at(v4(20_000)), true, later), Admit::Yes);
        assert_eq!(load.proven.len(), 1);
    }

    #[test]
    fn a_relay_that_names_many_peers_is_one_relay() {
        let through = |relay, peer| Origin::Peer { relay: PeerId(relay), peer: PeerId(peer) };
        for proven in [false, true] {
            let mut load = Load::default();
            let mut admitted = 0;
            for i in 0..100_000 {
                let now = AT + Duration::from_micros(100) * i;
                admitted += usize::from(load.knock(through(1, i % 5_000), proven, now) == Admit::Yes);
            }
            let now = AT + Duration::from_secs(10);
            assert_eq!(admitted, 250 + 2_499, "at once, and then a quarter of the total for ten seconds");
            assert!(!asked(&mut load, v4(0), now), "nobody else is under load");
            assert_eq!(load.knock(through(2, 1), false, now), Admit::Yes, "nor is another relay");
            assert!(load.proven.is_empty() && load.sources.len() <= MAX_SOURCES && load.relays.len() == 2);
        }
    }

    #[test]
    fn a_peer_that_floods_through_an_honest_relay_is_alone_with_it() {
        let through = |peer| Origin::Peer { relay: PeerId(1), peer: PeerId(peer) };
        let mut load = Load::default();
        for i in 0..100_000 {
            let now = AT + Duration::from_micros(100) * i;
            load.knock(through(7), i % 2 == 0, now);
            if i % 1_000 == 0 {
                assert_eq!(load.knock(through(8), false, now), Admit::Yes, "message {i}");
            }
        }
    }

    #[test]
    fn an_ipv6_prefix_is_one_source() {
        let mut load = Load::default();
        let host = |i: u64| IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | u128::from(i)));
        assert_eq!((0..100).filter(|&i| asked(&mut load, host(i), AT)).count(), 50);
        assert!(!asked(&mut load, IpAddr::V6(Ipv6Addr::from_bits(0xfe << 120)), AT));
    }

    #[test]
    fn load_ends_one_second_after_the_flood() {
        let mut load = Load::default();
        for _ in 0..51 {
            asked(&mut load, v4(0), AT);
        }
        assert!(asked(&mut load, v4(0), AT + Duration::from_millis(999)));
        assert!(!asked(&mut load, v4(0), AT + Duration::from_secs(1)));
    }

    #[test]
    fn twenty_a_second_with_a_cookie() {
        let mut load = Load::default();
        // Uses up the whole allowance without a cookie.
        for _ in 0..51 {
            asked(&mut load, v4(0), AT);
        }
        let admitted = (0..10_000)
            .filter(|&i| load.knock(at(v4(0)), true, AT + Duration::from_millis(1) * i) == Admit::Yes)
            .count();
        assert_eq!(admitted, 204, "five at once, then twenty a second for ten seconds");
    }
}
