//! What is logged about handshakes from keys that no peer has. Everybody who knows our public key can cause them without end, from
//! any address and with any number of keys.

use rustguard_core::{
    limit::{Bucket, Rate, Source, SourceTable},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::VecDeque, net::IpAddr, time::Duration};

/// Initiations whose keys are verified: two Diffie-Hellman operations each, 0.3 ms in a second.
const VERIFIED: Rate = Rate { interval: Duration::from_millis(250), burst: 8 };
/// Lines about one source.
const OF_SOURCE: Rate = Rate { interval: Duration::from_secs(600), burst: 3 };
/// Lines in all.
const IN_ALL: Rate = Rate { interval: Duration::from_secs(60), burst: 10 };
/// The same key from the same source is logged again after this time.
const AGAIN: Duration = Duration::from_secs(3_600);
/// Keys that are remembered as logged.
const KNOWN: usize = 64;

/// What was logged, and what may be.
pub(in crate::control) struct Strangers {
    verified: Bucket,
    in_all: Bucket,
    sources: SourceTable<Bucket>,
    /// The newest comes last.
    told: VecDeque<(Instant, Source, PublicKey)>,
    /// Messages since the last line that had none.
    held: u64,
}

impl Strangers {
    pub(super) fn new() -> Self {
        Self {
            verified: Bucket::default(),
            in_all: Bucket::default(),
            sources: SourceTable::new(KNOWN, Duration::from_secs(1)),
            told: VecDeque::new(),
            held: 0,
        }
    }

    /// Whether the key of one more message may be verified.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let may = self.verified.take(VERIFIED, now);
        self.held += u64::from(!may);
        may
    }

    /// Whether a key gets a line: how many messages got none since the last line.
    pub(super) fn tell(&mut self, from: IpAddr, key: PublicKey, now: Instant) -> Option<u64> {
        let source = Source::of(from);
        self.told.retain(|(at, ..)| now.since(*at) < AGAIN);
        if self.told.iter().any(|(_, known, told)| (*known, *told) == (source, key)) {
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
        if self.told.len() == KNOWN {
            self.told.pop_front();
        }
        self.told.push_back((now, source, key));
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
        assert_eq!(strangers.tell([192, 0, 2, 1].into(), key(1), at(3_600_000)), Some(0));
    }

    #[test]
    fn new_keys_from_everywhere_have_a_line_in_a_minute_and_the_rest_is_counted() {
        let mut strangers = Strangers::new();
        let (mut lines, mut verified, mut held) = (0, 0, 0);
        // A thousand in a second for ten minutes, each with a key and an address of its own.
        for n in 0..600_000_u32 {
            let now = at(u64::from(n));
            if strangers.may_ask(now) {
                verified += 1;
                if let Some(more) = strangers.tell(n.to_be_bytes().into(), key(n), now) {
                    (lines, held) = (lines + 1, held + more);
                }
            }
        }
        assert!((19..=20).contains(&lines), "{lines}");
        assert!((2_400..=2_408).contains(&verified), "{verified}");
        assert!(held > 500_000, "{held}");
        assert!(strangers.sources.len() <= KNOWN && strangers.told.len() <= KNOWN);
    }

    #[test]
    fn one_source_with_many_keys_leaves_lines_for_others() {
        let mut strangers = Strangers::new();
        let lines = (0..100).filter(|&n| strangers.tell([192, 0, 2, 1].into(), key(n), at(0)).is_some());
        assert_eq!(lines.count(), 3);
        assert_eq!(strangers.tell([192, 0, 2, 2].into(), key(1), at(0)), Some(97));
    }
}
