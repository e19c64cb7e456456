//! Round trip times of members with a single path, if nothing else measures them: by pings inside their sessions, while
//! somebody views a page.

use rustguard_serve::request::PublicKey;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How often one member is pinged.
const EVERY: Duration = Duration::from_secs(10);
/// How many members are pinged for one snapshot. There is one snapshot per second, and the device accepts 100 pings per
/// second.
const AT_ONCE: usize = 16;
/// How long an answer is shown.
const FRESH: Duration = Duration::from_secs(60);

/// The last measurements. They cover at most the members of the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips(Mutex<HashMap<PublicKey, Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    asked: Instant,
    answered: Option<(Instant, Duration)>,
}

impl RoundTrips {
    /// Returns those of these members that are to be pinged now, and records them as pinged.
    pub(crate) fn due(&self, members: &[PublicKey], now: Instant) -> Vec<PublicKey> {
        let mut known = self.lock();
        let there: HashSet<_> = members.iter().collect();
        known.retain(|key, _| there.contains(key));
        let asked = |key: &PublicKey| known.get(key).map(|known| known.asked);
        let is_due = |key: &&PublicKey| asked(key).is_none_or(|asked| now.duration_since(asked) >= EVERY);
        let mut due: Vec<_> = members.iter().filter(is_due).copied().collect();
        // If there are too many, those that have waited longest come first.
        due.sort_by_key(|key| asked(key));
        due.truncate(AT_ONCE);
        for key in &due {
            let answered = known.get(key).and_then(|known| known.answered);
            known.insert(*key, Known { asked: now, answered });
        }
        due
    }

    /// A member has answered.
    pub(crate) fn answered(&self, member: &PublicKey, round_trip: Duration, now: Instant) {
        if let Some(known) = self.lock().get_mut(member) {
            known.answered = Some((now, round_trip));
        }
    }

    /// The round trip time of a member, if it has answered recently.
    pub(crate) fn of(&self, member: &PublicKey, now: Instant) -> Option<Duration> {
        let (at, round_trip) = self.lock().get(member)?.answered?;
        (now.duration_since(at) < FRESH).then_some(round_trip)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PublicKey, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_asked_in_turn_and_not_too_often() {
        let (trips, start) = (RoundTrips::default(), Instant::now());
        let members: Vec<_> = (0..40).map(|n| PublicKey([n; 32])).collect();
        let second = |n: u64| start + Duration::from_secs(n);
        let mut asked = Vec::new();
        for n in 0..10 {
            let due = trips.due(&members, second(n));
            assert!(due.len() <= AT_ONCE);
            asked.extend(due.iter().map(|key| key.0[0]));
        }
        asked.sort_unstable();
        assert_eq!(asked, (0..40).collect::<Vec<_>>(), "each once in ten seconds");
        assert_eq!(trips.due(&members, second(10)).len(), AT_ONCE, "and again");
        trips.answered(&members[3], Duration::from_millis(7), second(11));
        assert_eq!(trips.of(&members[3], second(70)), Some(Duration::from_millis(7)));
        assert_eq!((trips.of(&members[3], second(71)), trips.of(&members[4], second(11))), (None, None));
        // Members that are no longer there are forgotten.
        assert_eq!(trips.due(&members[..1], second(12)), []);
        assert_eq!((trips.of(&members[3], second(12)), trips.lock().len()), (None, 1));
        trips.answered(&members[3], Duration::ZERO, second(12));
        assert_eq!(trips.lock().len(), 1, "a late answer of a machine that was removed");
    }
}
