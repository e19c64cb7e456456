//! MAC1, MAC2 and cookies (paper §5.4.4, §5.4.7), and when they are demanded.

use crate::{
    time::Instant,
    timers::COOKIE_LIFE,
    wire::{CookieReply, MAC_LEN},
};
use alloc::collections::BTreeMap;
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use rand_core::CryptoRng;
use rustguard_crypto::{
    aead,
    hash::{self, HASH_LEN},
    x25519::PublicKey,
};
use zeroize::{Zeroize as _, Zeroizing};

/// A cookie: proof of an address and port for two minutes.
pub(crate) type Cookie = [u8; MAC_LEN];

const LABEL_MAC1: &[u8] = b"mac1----";
const LABEL_COOKIE: &[u8] = b"cookie--";

/// What MAC1 and cookie encryption towards one public key are keyed with.
#[derive(Clone)]
pub(crate) struct MacKeys {
    mac1: [u8; HASH_LEN],
    cookie: [u8; HASH_LEN],
}

impl MacKeys {
    pub(crate) fn of(public: &PublicKey) -> Self {
        Self { mac1: hash::hash(&[LABEL_MAC1, &public.0]), cookie: hash::hash(&[LABEL_COOKIE, &public.0]) }
    }

    /// MAC1 over a message without its two MACs.
    pub(crate) fn mac1(&self, message: &[u8]) -> [u8; MAC_LEN] {
        hash::mac(&self.mac1, &[&message[..message.len() - 2 * MAC_LEN]])
    }

    /// Whether the sender knows the public key.
    pub(crate) fn verify_mac1(&self, message: &[u8], mac1: &[u8; MAC_LEN]) -> bool {
        hash::ct_eq(&self.mac1(message), mac1)
    }

    /// Opens a cookie reply to a message of ours that had this MAC1.
    pub(crate) fn open_reply(&self, reply: &CookieReply, mac1: &[u8; MAC_LEN]) -> Option<Cookie> {
        let (mut cookie, mut tag) = ([0; MAC_LEN], [0; aead::TAG_LEN]);
        cookie.copy_from_slice(&reply.encrypted_cookie()[..MAC_LEN]);
        tag.copy_from_slice(&reply.encrypted_cookie()[MAC_LEN..]);
        aead::xopen(&self.cookie, reply.nonce(), mac1, &mut cookie, &tag).ok()?;
        Some(cookie)
    }
}

/// MAC2 over a message without its MAC2.
pub(crate) fn mac2(cookie: &Cookie, message: &[u8]) -> [u8; MAC_LEN] {
    hash::mac(cookie, &[&message[..message.len() - MAC_LEN]])
}

/// Makes and checks cookies.
pub(crate) struct CookieJar {
    secret: Zeroizing<[u8; 32]>,
    since: Instant,
}

impl CookieJar {
    pub(crate) fn new(now: Instant, rng: &mut impl CryptoRng) -> Self {
        let mut jar = Self { secret: Zeroizing::new([0; 32]), since: now };
        rng.fill_bytes(&mut *jar.secret);
        jar
    }

    /// The cookie of an address and port, under the secret of these two minutes.
    fn cookie(&mut self, from: SocketAddr, now: Instant, rng: &mut impl CryptoRng) -> Cookie {
        if now.since(self.since) >= COOKIE_LIFE {
            *self = Self::new(now, rng);
        }
        let port = from.port().to_le_bytes();
        match from.ip() {
            IpAddr::V4(ip) => hash::mac(&*self.secret, &[&ip.octets(), &port]),
            IpAddr::V6(ip) => hash::mac(&*self.secret, &[&ip.octets(), &port]),
        }
    }

    /// Whether the message proves that its sender receives at `from`.
    pub(crate) fn verify_mac2(
        &mut self,
        from: SocketAddr,
        message: &[u8],
        mac2: &[u8; MAC_LEN],
        now: Instant,
        rng: &mut impl CryptoRng,
    ) -> bool {
        let mut cookie = self.cookie(from, now, rng);
        let valid = hash::ct_eq(&self::mac2(&cookie, message), mac2);
        cookie.zeroize();
        valid
    }

    /// The answer to a message that has to come again with a cookie.
    pub(crate) fn reply(
        &mut self,
        keys: &MacKeys,
        from: SocketAddr,
        sender: &[u8; 4],
        mac1: &[u8; MAC_LEN],
        now: Instant,
        rng: &mut impl CryptoRng,
    ) -> CookieReply {
        let mut cookie = self.cookie(from, now, rng);
        let (mut nonce, mut sealed) = ([0; 24], [0; 32]);
        rng.fill_bytes(&mut nonce);
        let tag = aead::xseal(&keys.cookie, &nonce, mac1, &mut cookie);
        sealed[..MAC_LEN].copy_from_slice(&cookie);
        sealed[MAC_LEN..].copy_from_slice(&tag);
        let mut reply = CookieReply::new();
        reply.set(4, sender);
        reply.set(8, &nonce);
        reply.set(32, &sealed);
        reply
    }
}

/// Handshake messages a second from one source (a /32, or a /64) before it is asked for a cookie.
const PER_SOURCE: u32 = 20;
/// Handshake messages a second from all sources together before everybody is asked. A core answers about 12,000.
const IN_TOTAL: u32 = 2_000;
/// Handshake messages a second from one source that shows cookies.
const PER_SOURCE_WITH_COOKIE: u32 = 100;
/// Sources that are told apart; beyond, messages count towards the total only.
const SOURCES: usize = 4_096;
/// The span that is counted over, and how long load lasts after its last sign.
const WINDOW: Duration = Duration::from_secs(1);

/// What load demands of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nothing: there is no load.
    Nothing,
    /// A cookie.
    Cookie,
}

/// Judges load by source and in total. A source counts towards the total only as far as it may send anyway: one that
/// floods puts itself into cookie mode and nobody else.
#[derive(Default)]
pub(crate) struct Load {
    window: Instant,
    total: u32,
    /// Under load as a whole until then.
    until: Option<Instant>,
    /// Ordered, not hashed: an outsider chooses the keys.
    sources: BTreeMap<Source, SourceLoad>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    V4([u8; 4]),
    V6([u8; 8]),
}

#[derive(Clone, Copy, Default)]
struct SourceLoad {
    messages: u32,
    with_cookie: u32,
    until: Option<Instant>,
}

impl Load {
    /// Counts a message with a valid MAC1, and says what is demanded of it.
    pub(crate) fn count(&mut self, from: SocketAddr, now: Instant) -> Demand {
        self.advance(now);
        let room = self.sources.len() < SOURCES;
        let source = source(from);
        let entry = match self.sources.get_mut(&source) {
            Some(entry) => Some(entry),
            None if room => Some(self.sources.entry(source).or_default()),
            None => None,
        };
        let mut own = false;
        let counts = entry.is_none_or(|entry| {
            entry.messages = entry.messages.saturating_add(1);
            if entry.messages > PER_SOURCE {
                entry.until = Some(now + WINDOW);
            }
            own = entry.until.is_some_and(|until| now < until);
            entry.messages <= PER_SOURCE
        });
        if counts {
            self.total = self.total.saturating_add(1);
        }
        if self.total > IN_TOTAL {
            self.until = Some(now + WINDOW);
        }
        let all = self.until.is_some_and(|until| now < until);
        if own || all { Demand::Cookie } else { Demand::Nothing }
    }

    /// Whether a message that shows a valid cookie is let through: even then a source has a limit.
    pub(crate) fn admit_with_cookie(&mut self, from: SocketAddr) -> bool {
        // A source that is not told apart is limited by the total of cookies that are handed out for it: none is kept.
        let Some(entry) = self.sources.get_mut(&source(from)) else { return true };
        entry.with_cookie = entry.with_cookie.saturating_add(1);
        entry.with_cookie <= PER_SOURCE_WITH_COOKIE
    }

    /// Starts a new window every second; keeps only the sources that are still under load.
    fn advance(&mut self, now: Instant) {
        if now.since(self.window) < WINDOW {
            return;
        }
        self.window = now;
        self.total = 0;
        self.sources.retain(|_, entry| {
            *entry = SourceLoad { until: entry.until.filter(|&until| now < until), ..SourceLoad::default() };
            entry.until.is_some()
        });
    }
}

fn source(from: SocketAddr) -> Source {
    match from.ip() {
        IpAddr::V4(ip) => Source::V4(ip.octets()),
        IpAddr::V6(ip) => Source::V6(*ip.octets().first_chunk().expect("16 bytes have 8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn v4(n: u32, port: u16) -> SocketAddr {
        (Ipv4Addr::from(n), port).into()
    }

    #[test]
    fn c07_a_flood_from_one_source_leaves_the_others_alone() {
        let mut load = Load::default();
        let demands: u32 =
            (0..100_000).map(|n| u32::from(load.count(v4(1, 1), at(5_000 + n / 100)) == Demand::Cookie)).sum();
        assert!(demands > 99_000);
        assert_eq!(load.count(v4(2, 1), at(5_999)), Demand::Nothing);
    }

    #[test]
    fn c07_a_flood_from_spoofed_sources_is_load_for_all_and_tables_stay_bounded() {
        let mut load = Load::default();
        for n in 0..100_000 {
            load.count(v4(n, 1), at(5_000));
        }
        assert_eq!(load.count(v4(0xffff_ffff, 1), at(5_001)), Demand::Cookie);
        assert!(load.sources.len() <= SOURCES);
        let mut load = Load::default();
        for n in 0..100_000_u128 {
            load.count((Ipv6Addr::from(n << 64), 1).into(), at(5_000));
        }
        assert!(load.sources.len() <= SOURCES);
        assert_eq!(load.count(v4(1, 1), at(5_001)), Demand::Cookie);
    }

    #[test]
    fn c07_a_whole_slash_64_is_one_source() {
        let mut load = Load::default();
        for n in 0..100_u128 {
            load.count((Ipv6Addr::from(n), 1).into(), at(5_000));
        }
        assert_eq!(load.sources.len(), 1);
        assert_eq!(load.count((Ipv6Addr::from(1_000_u128), 9).into(), at(5_001)), Demand::Cookie);
    }

    #[test]
    fn c08_cookie_mode_ends_a_second_after_the_load() {
        let mut load = Load::default();
        for n in 0..10_000 {
            load.count(v4(n, 1), at(5_000));
        }
        assert_eq!(load.count(v4(1, 2), at(5_999)), Demand::Cookie);
        assert_eq!(load.count(v4(1, 2), at(7_100)), Demand::Nothing);
        assert_eq!(load.sources.len(), 1);
        // The hundredth is treated as the first: once a second is no load.
        assert!((8..108).all(|s| load.count(v4(7, 7), at(s * 1_000)) == Demand::Nothing));
    }

    #[test]
    fn a_source_with_cookies_has_a_limit_as_well() {
        let mut load = Load::default();
        load.count(v4(1, 1), at(5_000));
        assert_eq!((0..1_000).filter(|_| load.admit_with_cookie(v4(1, 1))).count(), PER_SOURCE_WITH_COOKIE as usize);
    }
}
