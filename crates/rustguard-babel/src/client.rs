//! Passive clients: stock WireGuard peers that this node announces.
use crate::params::{CLIENT_MOVED, CLIENT_SILENCE, HEARD_LATE, HELD, NEVER_HEARD};
use ipnet::IpNet;
use rustguard_core::time::Instant;

/// A peer that does not speak Babel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// Its allowed IPs.
    pub(crate) prefixes: Vec<IpNet>,
    heard: Option<Instant>,
    /// It was heard, and nothing says that it is elsewhere now.
    here: bool,
    /// Another gateway heard it at this time.
    contested: Option<Instant>,
}

impl Client {
    pub(crate) fn new(prefixes: Vec<IpNet>) -> Self {
        Self { prefixes, ..Self::default() }
    }
    /// The metric to announce: a client that fell silent stays reachable as the last resort, and loses to any gateway that
    /// hears it.
    pub(crate) fn metric(&self) -> u16 {
        match (self.here, self.heard) {
            (true, _) => 0,
            (false, Some(_)) => HELD,
            (false, None) => NEVER_HEARD,
        }
    }
    /// Something authentic came from it. True when that changes the metric.
    pub(crate) fn heard(&mut self, now: Instant) -> bool {
        self.heard = Some(now);
        !core::mem::replace(&mut self.here, true)
    }
    /// Another gateway started to announce that it hears it. Both may: whether it moved shows within a moment.
    pub(crate) fn contested(&mut self, now: Instant) {
        if self.here && self.contested.is_none() {
            self.contested = Some(now);
        }
    }
    /// WireGuard cannot reach it. True when that changes the metric.
    pub(crate) fn lost(&mut self) -> bool {
        self.contested = None;
        core::mem::replace(&mut self.here, false)
    }
    /// Looks at the time. True when that changes the metric.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let heard_since = |since| self.heard.is_some_and(|heard| heard > since);
        let moved = match self.contested.filter(|&at| at + CLIENT_MOVED <= now) {
            Some(at) => {
                self.contested = None;
                // A signal of before that was about what came before it moved.
                !heard_since(at + HEARD_LATE)
            }
            None => false,
        };
        let silent = self.heard.is_some_and(|heard| heard + CLIENT_SILENCE <= now);
        (moved || silent) && self.lost()
    }
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let silence = self.heard.filter(|_| self.here).map(|heard| heard + CLIENT_SILENCE);
        let contested = self.contested.map(|at| at + CLIENT_MOVED);
        silence.into_iter().chain(contested).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    #[test]
    fn a_silent_client_is_held() {
        let mut client = Client::new(Vec::new());
        assert_eq!((client.metric(), client.deadline()), (NEVER_HEARD, None));
        assert!(client.heard(at(0)) && !client.heard(at(1_000)));
        assert_eq!((client.metric(), client.deadline()), (0, Some(at(1_000) + CLIENT_SILENCE)));
        assert!(!client.tick(at(1_000)));
        assert!(client.tick(at(1_000) + CLIENT_SILENCE));
        assert_eq!((client.metric(), client.deadline()), (HELD, None));
        assert!(client.heard(at(500_000)) && client.metric() == 0);
        assert!(client.lost() && !client.lost() && client.metric() == HELD);
    }

    #[test]
    fn a_client_that_another_gateway_hears_has_moved_unless_it_is_heard_here_too() {
        let mut client = Client::new(Vec::new());
        client.contested(at(0));
        assert_eq!(client.deadline(), None, "it was not here");
        client.heard(at(0));
        client.contested(at(10));
        client.contested(at(200));
        client.heard(at(210));
        assert_eq!(client.deadline(), Some(at(510)));
        assert!(!client.tick(at(509)) && client.tick(at(510)) && client.metric() == HELD, "heard late");
        client.heard(at(1_000));
        client.contested(at(1_100));
        client.heard(at(1_301));
        assert!(!client.tick(at(1_600)) && client.metric() == 0, "anycast");
        assert_eq!(client.deadline(), Some(at(1_301) + CLIENT_SILENCE));
    }
}
