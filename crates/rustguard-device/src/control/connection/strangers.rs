//! Log lines about handshakes from keys that no peer has. Everybody who knows our public key can cause any number of
//! such handshakes, from any address and with any number of keys.
//!
//! Only a key that tries again gets a line. A member of a network may learn of another member, and initiate, a moment
//! before the other member knows it: its next initiation is answered.

use rustguard_core::{
    limit::{Bucket, Rate, Source, SourceTable},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::VecDeque, net::IpAddr, time::Duration};

/// The rate of initiations whose keys are verified. Each takes two Diffie-Hellman operations: 0.3 ms in a second.
const VERIFIED: Rate = Rate { interval: Duration::from_millis(250), burst: 8 };
/// The rate of lines about one source.
const OF_SOURCE: Rate = Rate { interval: Duration::from_secs(600), burst: 3 };
/// The rate of all lines.
const IN_ALL: Rate = Rate { interval: Duration::from_secs(60), burst: 10 };
/// The same key from the same source is logged again after this time.
const AGAIN: Duration = Duration::from_secs(3_600);
/// The time from the first initiation to the one that is logged: a little less than Rekey-Timeout, after which a peer
/// tries again.
const TRIES_ON: Duration = Duration::from_secs(4);
/// The number of remembered keys. Fewer keys are verified within [`TRIES_ON`], so a flood cannot push out a key that
/// tries again.
const KNOWN: usize = 64;

/// The lines that were logged, and the limits for new lines.
pub(in crate::control) struct Strangers {
    verified: Bucket,
    in_all: Bucket,
    sources: SourceTable<Bucket>,
    /// The newest comes last.
    known: VecDeque<Stranger>,
    /// The number of messages that got no line since the last line.
    held: u64,
}

struct Stranger {
    source: Source,
    key: PublicKey,
    /// When it was first heard, or logged.
    since: Instant,
    told: bool,
}

impl Strangers {
    pub(super) fn new() -> Self {
        Self {
            verified: Bucket::default(),
            in_all: Bucket::default(),
            sources: SourceTable::new(KNOWN, Duration::from_secs(1)),
            known: VecDeque::new(),
            held: 0,
        }
    }

    /// Whether the key of one more message may be verified.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let may = self.verified.take(VERIFIED, now);
        self.held += u64::from(!may);
        may
    }

    /// `Some` if a key gets a line: the number of messages that got none since the last line.
    pub(super) fn tell(&mut self, from: IpAddr, key: PublicKey, now: Instant) -> Option<u64> {
        let source = Source::of(from);
        self.known.retain(|stranger| now.since(stranger.since) < AGAIN);
        let Some(known) = self.known.iter_mut().find(|known| (known.source, known.key) == (source, key)) else {
            if self.known.len() == KNOWN {
                self.known.pop_front();
            }
            self.known.push_back(Stranger { source, key, since: now, told: false });
            return None;
        };
        if known.told || now.since(known.since) < TRIES_ON {
            return None;
        }
        let mut in_all = self.in_all;
        // A source that gets no line takes no place in the table either.
        if !in_all.take(IN_ALL, now) || !self.sources.get(source, now).is_some_and(|bucket| bucket.take(OF_SOURCE, now))
        {
            self.held += 1;
            return None;
        }
        self.in_all = in_all;
        (known.since, known.told) = (now, true);
        Some(std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Duration::from_millis(ms)
    }

    fn key(n: u32) -> PublicKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        PublicKey(key)
    }

    #[test]
    fn a_stranger_that_tries_again_has_one_line_in_an_hour() {
        let mut strangers = Strangers::new();
        let lines = (0..720).filter(|&n| {
            assert!(strangers.may_ask(at(5_000 * n)));
            strangers.tell([192, 0, 2, 1].into(), key(1), at(5_000 * n)).is_some()
        });
        assert_eq!(lines.count(), 1);
        assert!((720..730).any(|n| strangers.tell([192, 0, 2, 1].into(), key(1), at(5_000 * n)).is_some()));
    }

    #[test]
    fn who_is_heard_once_has_no_line() {
        let mut strangers = Strangers::new();
        for n in 0..100 {
            assert_eq!(strangers.tell([192, 0, 2, 1].into(), key(n), at(1_000)), None);
            // A copy: an initiation is repeated within two seconds.
            assert_eq!(strangers.tell([192, 0, 2, 1].into(), key(n), at(2_750)), None);
        }
    }

    /// A thousand handshakes in a second for ten minutes, each from an address of its own. Returns how many lines they
    /// got, and how many lines a stranger that tries every five seconds got.
    fn flood(key_at: impl Fn(u32) -> PublicKey) -> (usize, usize) {
        let mut strangers = Strangers::new();
        let (mut lines, mut strangers_lines, mut verified, mut held) = (0, 0, 0, 0);
        for n in 0..600_000_u32 {
            let now = at(u64::from(n));
            if strangers.may_ask(now) {
                verified += 1;
                let key = key_at(n);
                let address: [u8; 4] = *key.0.first_chunk().unwrap();
                if let Some(more) = strangers.tell(address.into(), key, now) {
                    (lines, held) = (lines + 1, held + more);
                }
            }
            if n % 5_000 == 0
                && let Some(more) = strangers.tell([192, 0, 2, 1].into(), key(u32::MAX), now)
            {
                (strangers_lines, held) = (strangers_lines + 1, held + more);
            }
        }
        assert!((2_400..=2_408).contains(&verified), "{verified}");
        assert!(held + strangers.held > 500_000, "{held}");
        assert!(strangers.sources.len() <= KNOWN && strangers.known.len() <= KNOWN);
        (lines, strangers_lines)
    }

    #[test]
    fn a_flood_of_new_keys_has_no_lines_and_leaves_them_to_who_tries_again() {
        let (lines, strangers_lines) = flood(key);
        assert_eq!(lines, 0);
        assert!((1..=4).contains(&strangers_lines), "{strangers_lines}");
    }

    #[test]
    fn keys_from_everywhere_that_come_again_have_a_line_in_a_minute() {
        let (lines, strangers_lines) = flood(|n| key(n / 5_250));
        assert!((15..=20).contains(&(lines + strangers_lines)), "{lines} {strangers_lines}");
    }

    #[test]
    fn one_source_with_many_keys_leaves_lines_for_others() {
        let mut strangers = Strangers::new();
        let mut twice = |from: [u8; 4], n| {
            let first = strangers.tell(from.into(), key(n), at(0));
            first.or(strangers.tell(from.into(), key(n), at(5_000)))
        };
        assert_eq!((0..100).filter(|&n| twice([192, 0, 2, 1], n).is_some()).count(), 3);
        assert_eq!(twice([192, 0, 2, 2], 1), Some(97));
    }
}
