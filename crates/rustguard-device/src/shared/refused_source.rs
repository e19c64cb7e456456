//! The sources of a peer's packets that its allowed IPs do not permit. The peer cannot know that they are dropped, so
//! this side reports it.

use parking_lot::Mutex;
use rustguard_core::time::Instant;
use std::{net::IpAddr, time::Duration};

/// Without such a packet for this time, the problem is over.
const OVER: Duration = Duration::from_secs(300);
/// The time between two reports: a peer can send such packets at any time.
const PAUSE: Duration = Duration::from_secs(3_600);

/// The refused source of one peer. The lock is taken for each dropped packet, and for each query.
#[derive(Debug, Default)]
pub(crate) struct RefusedSource(Mutex<Option<Box<Refused>>>);

/// Packets that were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The source of the first packet.
    pub(crate) source: IpAddr,
    /// The time of the first packet.
    pub(crate) since: Instant,
    last: Instant,
    reported: Instant,
}

impl RefusedSource {
    /// Notes a refused packet. Returns whether it is to be reported.
    pub(crate) fn note(&self, source: IpAddr, now: Instant) -> bool {
        let mut known = self.0.lock();
        let new = |reported| Box::new(Refused { source, since: now, last: now, reported });
        match known.as_deref_mut() {
            None => *known = Some(new(now)),
            Some(refused) => {
                let due = now.since(refused.reported) >= PAUSE;
                let reported = if due { now } else { refused.reported };
                if now.since(refused.last) >= OVER {
                    *refused = *new(reported);
                }
                (refused.last, refused.reported) = (now, reported);
                return due;
            }
        }
        true
    }

    /// The current problem, if there is one.
    pub(crate) fn current(&self, now: Instant) -> Option<Refused> {
        self.0.lock().as_deref().filter(|refused| now.since(refused.last) < OVER).copied()
    }

    /// Forgets the refusals, because the peer has other allowed IPs now.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn a_peer_that_sends_without_end_is_reported_once_an_hour() {
        let refused = RefusedSource::default();
        let source = |n: u32| IpAddr::from(n.to_be_bytes());
        let reports = (0..5_000).filter(|&n| refused.note(source(n), START + Duration::from_secs(n.into()))).count();
        assert_eq!(reports, 2);
        let now = START + Duration::from_secs(5_000);
        let current = refused.current(now).unwrap();
        assert_eq!((current.source, current.since), (source(0), START), "the first of them is told");
        assert_eq!(refused.current(now + OVER), None);
        // Later the source is another one, but there is no second report.
        assert!(!refused.note(source(9), now + OVER));
        assert_eq!(refused.current(now + OVER).unwrap().source, source(9));
        refused.forget();
        assert_eq!(refused.current(now + OVER), None);
        assert!(refused.note(source(9), now + OVER), "what is refused by the new allowed IPs is news");
    }
}
