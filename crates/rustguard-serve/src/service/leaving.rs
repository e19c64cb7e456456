//! Members that have announced that they leave, until they are removed.
//!
//! A member gets an acknowledgement at once, and is removed a moment later. After its removal it is in no roster, and
//! its repeated statements are not answered.

use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::time::Duration;

/// How long a leaving member keeps its lease. Meanwhile, an acknowledgement that gets lost is repeated.
const TIME: Duration = Duration::from_millis(500);
/// The pause after a failure. The disk may be full.
const RETRY: Duration = Duration::from_secs(30);

/// The members that leave, and when each is removed.
#[derive(Debug, Default)]
pub(super) struct Leaving(Vec<(PublicKey, Instant)>);

impl Leaving {
    /// The member leaves. It may say so more than once.
    pub(super) fn begin(&mut self, member: PublicKey, now: Instant) {
        self.add(member, now + TIME);
    }

    /// The member could not be removed. The removal is tried again.
    pub(super) fn again(&mut self, member: PublicKey, now: Instant) {
        self.add(member, now + RETRY);
    }

    fn add(&mut self, member: PublicKey, at: Instant) {
        if self.0.iter().all(|(other, _)| *other != member) {
            self.0.push((member, at));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|(_, at)| *at).min()
    }

    /// Takes out the members whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Vec<PublicKey> {
        self.0.extract_if(.., |(_, at)| *at <= now).map(|(member, _)| member).collect()
    }

    /// Takes out all of them.
    pub(super) fn all(&mut self) -> Vec<PublicKey> {
        self.0.drain(..).map(|(member, _)| member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_leaves_is_removed_once_and_a_failure_delays_nobody_else() {
        let mut leaving = Leaving::default();
        let [one, other, last] = [1, 2, 3].map(|byte| PublicKey([byte; 32]));
        let start = Instant::from_nanos(0);
        leaving.begin(one, start);
        leaving.begin(one, start + TIME / 2);
        assert_eq!((leaving.due(start), leaving.deadline()), (vec![], Some(start + TIME)));
        assert_eq!(leaving.due(start + TIME), [one]);
        leaving.again(one, start + TIME);
        leaving.begin(other, start + TIME);
        assert_eq!(leaving.deadline(), Some(start + TIME * 2));
        assert_eq!(leaving.due(start + TIME * 2), [other]);
        // A repeated statement does not bring the removal forward.
        leaving.begin(one, start + TIME * 2);
        assert_eq!(leaving.deadline(), Some(start + TIME + RETRY));
        leaving.begin(last, start + TIME * 2);
        assert_eq!((leaving.all(), leaving.deadline()), (vec![one, last], None));
    }
}
