//! Passive clients: stock WireGuard peers that this node announces.
//!
//! Gateways hear of each other only what is selected in between, and that is the nearest. If all who hear a client were alike, the
//! one that it has left would still be told of nobody else, as long as its neighbours are nearer to it than to the new one. Who has
//! just heard it is therefore nearer than all who have for long; when everybody knows, distance decides again.
use crate::params::{CLIENT_INSIST, CLIENT_MOVED, CLIENT_NEW, CLIENT_SILENCE, HEARD_LATE, HELD, NEVER_HEARD, SETTLED};
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
    /// It came at this time, which is not long ago.
    came: Option<Instant>,
    /// Another gateway heard it at this time.
    contested: Option<Instant>,
    /// When this gateway last answered that it hears it too.
    insisted: Option<Instant>,
}

impl Client {
    pub(crate) fn new(prefixes: Vec<IpNet>) -> Self {
        Self { prefixes, ..Self::default() }
    }
    /// The metric to announce: a client that fell silent stays reachable as the last resort, and loses to any gateway that
    /// hears it.
    pub(crate) fn metric(&self) -> u16 {
        match (self.here, self.came, self.heard) {
            (true, Some(_), _) => 0,
            (true, None, _) => SETTLED,
            (false, _, Some(_)) => HELD,
            (false, _, None) => NEVER_HEARD,
        }
    }
    /// Something authentic came from it. True when that changes the metric.
    pub(crate) fn heard(&mut self, now: Instant) -> bool {
        self.heard = Some(now);
        if !self.here {
            self.came = Some(now);
        }
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
        (self.came, self.contested) = (None, None);
        core::mem::replace(&mut self.here, false)
    }
    /// Looks at the time. True when that changes the metric.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let before = self.metric();
        if self.came.is_some_and(|came| came + CLIENT_NEW <= now) {
            self.came = None;
        }
        if let Some(at) = self.contested.filter(|&at| at + CLIENT_MOVED <= now) {
            self.contested = None;
            // A signal of before that was about what came before it moved.
            if self.heard.is_none_or(|heard| heard <= at + HEARD_LATE) {
                self.lost();
            } else if self.insisted.is_none_or(|at| at + CLIENT_INSIST <= now) {
                // It came back, perhaps, and the other one does not know. Not for ever: it may talk to both.
                (self.came, self.insisted) = (Some(now), Some(now));
            }
        }
        if self.heard.is_some_and(|heard| heard + CLIENT_SILENCE <= now) {
            self.lost();
        }
        self.metric() != before
    }
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let silence = self.heard.filter(|_| self.here).map(|heard| heard + CLIENT_SILENCE);
        let contested = self.contested.map(|at| at + CLIENT_MOVED);
        let new = self.came.map(|came| came + CLIENT_NEW);
        silence.into_iter().chain(contested).chain(new).min()
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
    fn a_client_is_near_at_first_then_here_then_held() {
        let mut client = Client::new(Vec::new());
        assert_eq!((client.metric(), client.deadline()), (NEVER_HEARD, None));
        assert!(client.heard(at(0)) && !client.heard(at(1_000)));
        assert_eq!((client.metric(), client.deadline()), (0, Some(at(1_000))));
        assert!(!client.tick(at(999)) && client.tick(at(1_000)));
        assert_eq!((client.metric(), client.deadline()), (SETTLED, Some(at(1_000) + CLIENT_SILENCE)));
        assert!(!client.heard(at(4_000)) && !client.tick(at(3_999) + CLIENT_SILENCE));
        assert!(client.tick(at(4_000) + CLIENT_SILENCE));
        assert_eq!((client.metric(), client.deadline()), (HELD, None));
        assert!(client.heard(at(500_000)) && client.metric() == 0);
        assert!(client.lost() && !client.lost());
        assert_eq!((client.metric(), client.deadline()), (HELD, None));
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
    }

    #[test]
    fn who_hears_it_too_says_so_and_does_not_argue() {
        let mut client = Client::new(Vec::new());
        client.heard(at(0));
        assert!(client.tick(at(1_000)) && client.metric() == SETTLED);
        let contest = |client: &mut Client, ms| {
            client.contested(at(ms));
            client.heard(at(ms + 201));
            let changes = client.tick(at(ms + 500));
            (changes, client.metric(), client.deadline())
        };
        assert_eq!(contest(&mut client, 10_000), (true, 0, Some(at(11_500))), "anycast");
        assert!(client.tick(at(11_500)) && client.metric() == SETTLED);
        let silence = Some(at(15_200) + CLIENT_SILENCE);
        assert_eq!(contest(&mut client, 14_999), (false, SETTLED, silence), "once is enough");
        assert_eq!(contest(&mut client, 15_000), (true, 0, Some(at(16_500))));
    }
}
