//! The state of the connection to one peer. It has no clock and no sockets: it takes events and the time, and returns
//! the state.
//!
//! ```text
//! initiation_sent ─► trouble ─ ASK: ask the network and the kernel why ─ TELL: found
//!        handshake_complete: no trouble, mended
//! ```

use crate::status::{Cause, Route, SILENCE};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::reach::{Reason, Unreachable};
use std::time::Duration;

/// The time from the first unanswered initiation to the questions about the cause. The kernel's search for the next
/// hop's link address fails after three seconds (three requests, `retrans_time_ms`), and the error reaches datagrams
/// that were sent before.
pub(in crate::control) const ASK: Duration = Duration::from_millis(2_500);
/// The time from the first unanswered initiation to the report. The second initiation, Rekey-Timeout later, has had
/// time for an answer: the loss of one datagram is not reported.
pub(in crate::control) const TELL: Duration = Duration::from_secs(8);
/// The time between two looks at a trouble that has been reported.
pub(in crate::control) const AGAIN: Duration = Duration::from_secs(60);
/// The number of answers that the peer did not use, and the time since the first of them, after which this is reported.
const UNCONFIRMED: (u32, Duration) = (3, TELL);

/// The connection to one peer.
#[derive(Debug, Default)]
pub(in crate::control) struct Link {
    /// A handshake has completed.
    ever: bool,
    /// Since when the peer has been online.
    online: Option<Instant>,
    // Boxed: most peers have neither.
    trouble: Option<Box<Trouble>>,
    found: Option<Box<Found>>,
}

/// Initiations that are not answered.
#[derive(Debug)]
struct Trouble {
    /// When the first was sent.
    since: Instant,
    /// How many were sent.
    attempts: u32,
    /// There was no answer for Rekey-Attempt-Time.
    given_up: bool,
    evidence: Evidence,
}

/// Evidence for a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control) struct Evidence {
    /// The system refused to send an initiation.
    pub(in crate::control) refused: bool,
    /// The system's error, if it did not send the test datagram to the endpoint.
    pub(in crate::control) error: Option<i32>,
    /// The network's answer to the test datagram.
    pub(in crate::control) unreachable: Option<Unreachable>,
    /// How the host routes to the endpoint.
    pub(in crate::control) route: Option<Route>,
    /// A key other than the peer's that initiates from the peer's endpoint.
    pub(in crate::control) other_key: Option<PublicKey>,
    /// A handshake message for another key than ours came from its endpoint.
    pub(in crate::control) not_for_us: bool,
}

/// A problem that was found.
#[derive(Debug)]
struct Found {
    cause: Cause,
    since: Instant,
    /// The kinds that were reported in this trouble.
    told: Vec<&'static str>,
}

/// Facts from the node, the workers and the clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Facts {
    pub(in crate::control) now: Instant,
    /// When the peer was last heard in a session.
    pub(in crate::control) heard: Option<Instant>,
    /// A handshake is under way.
    pub(in crate::control) attempt: Option<Attempt>,
    /// Persistent keepalives begin a handshake again and again.
    pub(in crate::control) keepalive: bool,
}

/// A handshake under way.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::control) struct Attempt {
    /// Some responses to it did not decrypt.
    pub(in crate::control) refused: bool,
    /// It was answered with a cookie.
    pub(in crate::control) cookie: bool,
}

/// As [`Connection`](crate::Connection), on the clock that includes sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum State {
    NeverConnected,
    Connecting { since: Instant, attempts: u32 },
    Online { since: Instant },
    Idle { since: Instant },
    Offline { since: Instant },
}

impl Link {
    /// An initiation was sent, or the system refused to send it.
    pub(in crate::control) fn initiation_sent(&mut self, refused: bool, now: Instant) {
        let trouble = self.trouble.get_or_insert_with(|| {
            Box::new(Trouble { since: now, attempts: 0, given_up: false, evidence: Evidence::default() })
        });
        trouble.attempts = trouble.attempts.saturating_add(1);
        trouble.evidence.refused = refused;
    }

    /// A handshake completed. `was_online` tells whether the peer was online before. If a problem was reported, returns
    /// its cause and since when it existed.
    pub(in crate::control) fn handshake_complete(
        &mut self,
        was_online: bool,
        now: Instant,
    ) -> Option<(Cause, Instant)> {
        if !was_online {
            self.online = Some(now);
        }
        self.ever = true;
        self.trouble = None;
        self.found.take().map(|found| (found.cause, found.since))
    }

    /// There was no answer for Rekey-Attempt-Time.
    pub(in crate::control) fn handshake_failed(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.given_up = true;
        }
    }

    /// The interface was set down: nothing is expected any more.
    pub(in crate::control) fn stop(&mut self) {
        self.trouble = None;
        self.found = None;
        self.online = None;
    }

    /// The evidence for a cause, while there is trouble.
    pub(in crate::control) fn evidence(&mut self) -> Option<&mut Evidence> {
        self.trouble.as_mut().map(|trouble| &mut trouble.evidence)
    }

    /// The problem that was found, and since when there is trouble.
    pub(in crate::control) fn problem(&self) -> Option<(&Cause, Instant)> {
        self.found.as_ref().map(|found| (&found.cause, found.since))
    }

    /// Notes the likely cause why initiations to `endpoint` get no answer. Returns true if it is to be reported.
    pub(in crate::control) fn judge(&mut self, endpoint: std::net::SocketAddr, facts: Facts) -> bool {
        let Some(Trouble { since, evidence, .. }) = self.due(facts) else { return false };
        let attempt = facts.attempt;
        let Evidence { refused, error, unreachable, route, other_key, not_for_us } = evidence.clone();
        let cause = if let Some(errno) = error {
            Cause::SendFailed { endpoint, errno: Some(errno), route }
        } else if refused {
            Cause::SendFailed { endpoint, errno: None, route }
        } else if attempt.is_some_and(|attempt| attempt.refused) {
            Cause::PresharedKey
        } else if attempt.is_some_and(|attempt| attempt.cookie) {
            Cause::UnderLoad
        } else if let Some(key) = other_key {
            Cause::OtherKey { key, endpoint }
        } else if not_for_us {
            Cause::NotForUs { endpoint }
        } else if let Some(Unreachable { reason, by }) = unreachable {
            match reason {
                // If another host sent the error, it comes from a firewall rule there.
                Reason::Port if by.is_none_or(|by| by == endpoint.ip()) => Cause::PortUnreachable { endpoint },
                Reason::Host => Cause::HostUnreachable { endpoint, route, by },
                _ => Cause::Undelivered { endpoint, reason, by },
            }
        } else {
            Cause::NoAnswer { endpoint, route }
        };
        let since = *since;
        self.find(cause, since)
    }

    /// The same for initiations through a relay, about which the network and the kernel know nothing. `silence` is the
    /// cause that the silence suggests.
    pub(in crate::control) fn judge_through(&mut self, silence: Cause, facts: Facts) -> bool {
        let Some(&Trouble { since, .. }) = self.due(facts) else { return false };
        let cause = match facts.attempt {
            Some(Attempt { refused: true, .. }) => Cause::PresharedKey,
            Some(Attempt { cookie: true, .. }) => Cause::UnderLoad,
            _ => silence,
        };
        self.find(cause, since)
    }

    /// The trouble, if it has lasted long enough to be reported.
    fn due(&self, facts: Facts) -> Option<&Trouble> {
        self.trouble.as_deref().filter(|trouble| facts.now.since(trouble.since) >= TELL)
    }

    /// The peer initiates but does not use the answers. Returns true if this is to be reported.
    pub(in crate::control) fn unconfirmed(&mut self, count: u32, since: Instant, now: Instant) -> bool {
        let due = count >= UNCONFIRMED.0 && now.since(since) >= UNCONFIRMED.1;
        due && self.find(Cause::Unconfirmed, since)
    }

    /// The peer's clock is behind. Returns true if this is to be reported. A peer that is heard has a session: replayed
    /// old initiations can change nothing, and are not reported.
    pub(in crate::control) fn clock_behind(&mut self, by: Duration, facts: Facts) -> bool {
        !matches!(self.state(facts), State::Online { .. }) && self.find(Cause::ClockBehind { by }, facts.now)
    }

    /// Notes a cause. Returns true if a cause of this kind was not reported yet in this trouble. A cause that messages
    /// from the network show is not replaced by one that only the silence suggests.
    fn find(&mut self, cause: Cause, since: Instant) -> bool {
        match &mut self.found {
            None => {
                self.found = Some(Box::new(Found { told: vec![cause.kind()], cause, since }));
                true
            }
            Some(found)
                if matches!(cause, Cause::NoAnswer { .. } | Cause::NoAnswerThrough { .. })
                    && matches!(
                        found.cause,
                        Cause::Unconfirmed | Cause::ClockBehind { .. } | Cause::OtherKey { .. }
                    ) =>
            {
                false
            }
            Some(found) => {
                let new = !found.told.contains(&cause.kind());
                if new {
                    found.told.push(cause.kind());
                }
                found.cause = cause;
                new
            }
        }
    }

    /// The state of the connection.
    pub(in crate::control) fn state(&self, facts: Facts) -> State {
        let Facts { now, heard, attempt, keepalive } = facts;
        let heard = heard.filter(|_| self.ever);
        let recent = heard.filter(|&heard| now.since(heard) < SILENCE);
        match self.trouble.as_deref() {
            Some(&Trouble { since, attempts, given_up, .. }) => match recent {
                // The handshake is late, but packets still come.
                Some(heard) if attempts < 2 || heard > since => State::Online { since: self.online.unwrap_or(heard) },
                _ if self.ever && given_up => State::Offline { since },
                _ if attempt.is_some() || keepalive => State::Connecting { since, attempts },
                _ if self.ever => State::Offline { since },
                _ => State::NeverConnected,
            },
            None => match (recent, heard) {
                (Some(heard), _) => State::Online { since: self.online.unwrap_or(heard) },
                (None, Some(since)) => State::Idle { since },
                (None, None) => State::NeverConnected,
            },
        }
    }

    /// The time of the next look at the state, because of a trouble or of the silence of an online peer. The times of a
    /// trouble are counted from its beginning, so they must be asked for again after each initiation.
    pub(in crate::control) fn next_look(&self, facts: Facts) -> Option<Instant> {
        if let Some(&Trouble { since, .. }) = self.trouble.as_deref() {
            let passed = facts.now.since(since);
            match passed.checked_sub(TELL) {
                None if passed < ASK => return Some(since + ASK),
                None => return Some(since + TELL),
                Some(told) if facts.attempt.is_some() => {
                    let looks = told.as_secs() / AGAIN.as_secs() + 1;
                    return Some(since + TELL + Duration::from_secs(looks * AGAIN.as_secs()));
                }
                Some(_) => {}
            }
        }
        match self.state(facts) {
            State::Online { .. } => facts.heard.map(|heard| heard + SILENCE),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    const ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 51_820);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000) + Duration::from_millis(ms)
    }

    /// A link with a clock, and the facts that the node and the workers would report.
    struct World {
        link: Link,
        facts: Facts,
    }

    impl World {
        fn new() -> Self {
            let facts = Facts { now: at(0), heard: None, attempt: None, keepalive: false };
            Self { link: Link::default(), facts }
        }

        fn at(&mut self, ms: u64) -> &mut Self {
            self.facts.now = at(ms);
            self
        }

        fn send(&mut self, ms: u64) {
            self.facts.attempt.get_or_insert_default();
            self.at(ms).link.initiation_sent(false, at(ms));
        }

        fn complete(&mut self, ms: u64) -> Option<&'static str> {
            self.at(ms);
            let was_online = matches!(self.link.state(self.facts), State::Online { .. });
            let over = self.link.handshake_complete(was_online, at(ms));
            self.facts = Facts { attempt: None, heard: Some(at(ms)), ..self.facts };
            over.map(|(cause, _)| cause.kind())
        }

        fn heard(&mut self, ms: u64) {
            self.facts.heard = Some(at(ms));
        }

        fn judge(&mut self, ms: u64) -> Option<&'static str> {
            self.at(ms);
            let told = self.link.judge(ENDPOINT, self.facts);
            told.then(|| self.link.problem().expect("it was found").0.kind())
        }

        fn state(&mut self, ms: u64) -> State {
            self.at(ms);
            self.link.state(self.facts)
        }

        fn next_look(&mut self, ms: u64) -> Option<Instant> {
            self.at(ms);
            self.link.next_look(self.facts)
        }
    }

    #[test]
    fn never_connected_then_connecting_online_and_idle() {
        let mut world = World::new();
        assert_eq!(world.state(0), State::NeverConnected);
        assert_eq!(world.next_look(0), None, "nobody is woken for it");
        world.send(1_000);
        world.send(6_000);
        assert_eq!(world.state(6_000), State::Connecting { since: at(1_000), attempts: 2 });
        assert_eq!(world.complete(6_500), None);
        assert_eq!(world.state(7_000), State::Online { since: at(6_500) });
        world.heard(100_000);
        // A renewal, answered in time, is no new connection.
        world.send(120_000);
        assert_eq!(world.state(120_000), State::Online { since: at(6_500) });
        world.complete(120_100);
        assert_eq!(world.state(299_000), State::Online { since: at(6_500) });
        assert_eq!(world.next_look(299_000), Some(at(300_100)));
        assert_eq!(world.state(300_100), State::Idle { since: at(120_100) });
        assert_eq!(world.state(86_400_000), State::Idle { since: at(120_100) }, "silence alone is no failure");
        // There is data to send again.
        world.send(86_400_000);
        assert_eq!(world.state(86_400_010), State::Connecting { since: at(86_400_000), attempts: 1 });
        world.complete(86_400_020);
        assert_eq!(world.state(86_400_030), State::Online { since: at(86_400_020) });
    }

    #[test]
    fn a_peer_that_was_online_and_does_not_answer_is_offline_since_it_was_called() {
        let mut world = World::new();
        world.send(0);
        world.complete(10);
        world.heard(20_000);
        for n in 0..18 {
            world.send(40_000 + 5_000 * n);
        }
        assert_eq!(world.state(129_000), State::Connecting { since: at(40_000), attempts: 18 });
        world.link.handshake_failed();
        world.facts.attempt = None;
        assert_eq!(world.state(130_000), State::Offline { since: at(40_000) });
        // Packets for it start the next attempt.
        world.send(140_000);
        assert_eq!(world.state(140_000), State::Offline { since: at(40_000) });
        world.complete(140_100);
        assert_eq!(world.state(140_200), State::Online { since: at(140_100) });
    }

    #[test]
    fn a_peer_that_never_answered_is_connecting_while_it_is_called() {
        let mut world = World::new();
        world.send(0);
        world.link.handshake_failed();
        world.facts.attempt = None;
        assert_eq!(world.state(90_000), State::NeverConnected);
        world.facts.keepalive = true;
        assert_eq!(world.state(90_000), State::Connecting { since: at(0), attempts: 1 }, "it is called again soon");
    }

    #[test]
    fn a_peer_whose_packets_come_is_online_whatever_its_handshakes_do() {
        let mut world = World::new();
        world.send(0);
        world.complete(10);
        for n in 0..12 {
            world.send(120_000 + 5_000 * n);
            world.heard(120_100 + 5_000 * n);
        }
        assert_eq!(world.state(176_000), State::Online { since: at(10) });
        assert_eq!(world.judge(176_000), Some("no-answer"), "its handshakes are a problem nevertheless");
        // The handshakes are given up while packets still come: a later silence is not missed.
        let facts = Facts { attempt: None, ..world.facts };
        assert_eq!(world.link.next_look(facts), Some(at(175_100) + SILENCE));
        // The session ends, and with it the packets.
        assert_eq!(world.state(176_000 + 180_000), State::Connecting { since: at(120_000), attempts: 12 });
    }

    #[test]
    fn one_lost_datagram_is_not_reported_and_trouble_once_until_it_is_over() {
        let mut world = World::new();
        world.send(0);
        assert_eq!(world.judge(2_500), None);
        world.send(5_200);
        assert_eq!(world.judge(7_999), None);
        assert_eq!(world.complete(7_999), None, "nothing was reported, and nothing is over");

        for start in [100_000, 200_000] {
            world.send(start);
            assert_eq!(world.next_look(start), Some(at(start) + ASK));
            assert_eq!(world.next_look(start + 2_500), Some(at(start) + TELL));
            assert_eq!(world.judge(start + 8_000), Some("no-answer"));
            assert_eq!(world.next_look(start + 8_000), Some(at(start + 8_000) + AGAIN));
            for later in (10_000..68_000).step_by(5_000) {
                world.send(start + later);
                assert_eq!(world.next_look(start + later), Some(at(start + 68_000)), "no initiation puts it off");
            }
            assert_eq!(world.judge(start + 68_000), None, "once");
            assert_eq!(world.next_look(start + 68_000), Some(at(start + 128_000)));
            assert_eq!(world.complete(start + 70_000), Some("no-answer"));
            assert_eq!(world.link.problem(), None);
        }
    }

    #[test]
    fn each_kind_of_evidence_has_its_cause() {
        let kind = |change: &dyn Fn(&mut World)| {
            let mut world = World::new();
            world.send(0);
            change(&mut world);
            world.judge(8_000).expect("a cause")
        };
        let error = |world: &mut World| {
            world.link.evidence().expect("trouble").error = Some(Errno::HOSTUNREACH.raw_os_error());
        };
        let said = |reason, by: Option<&str>| {
            let by = by.map(|by| by.parse().unwrap());
            move |world: &mut World| {
                world.link.evidence().expect("trouble").unreachable = Some(Unreachable { reason, by });
            }
        };
        assert_eq!(kind(&|_| {}), "no-answer");
        assert_eq!(kind(&said(Reason::Port, None)), "port-unreachable");
        assert_eq!(kind(&said(Reason::Port, Some("203.0.113.254"))), "undelivered");
        assert_eq!(kind(&said(Reason::Host, None)), "host-unreachable");
        assert_eq!(kind(&said(Reason::Prohibited, None)), "prohibited");
        assert_eq!(kind(&said(Reason::Network, None)), "network-unreachable");
        assert_eq!(kind(&error), "send-failed");
        assert_eq!(kind(&|world| world.link.initiation_sent(true, at(5_000))), "send-failed");
        assert_eq!(kind(&|world| world.facts.attempt = Some(Attempt { refused: true, cookie: true })), "preshared-key");
        assert_eq!(kind(&|world| world.facts.attempt = Some(Attempt { refused: false, cookie: true })), "under-load");
        let other = |world: &mut World| world.link.evidence().expect("trouble").other_key = Some(PublicKey([1; 32]));
        assert_eq!(kind(&other), "other-key");
        assert_eq!(kind(&|world| world.link.evidence().expect("trouble").not_for_us = true), "not-for-us");
    }

    #[test]
    fn through_a_relay_the_silence_says_no_more_than_the_relay_does() {
        let (relay, called) = (PublicKey([2; 32]), "office".to_owned());
        let silent = Cause::NoAnswerThrough { relay, called: called.clone() };
        let alone = Cause::RelayNotConnected { relay, called };
        let mut world = World::new();
        world.send(0);
        let mut judge = |ms, silence: &Cause, refused| {
            world.facts.attempt = Some(Attempt { refused, cookie: false });
            world.at(ms);
            let told = world.link.judge_through(silence.clone(), world.facts);
            told.then(|| world.link.problem().expect("it was found").0.kind())
        };
        assert_eq!(judge(7_999, &silent, false), None);
        assert_eq!(judge(8_000, &alone, false), Some("relay-not-connected"));
        assert_eq!(judge(68_000, &silent, false), Some("no-answer-through"));
        assert_eq!(judge(128_000, &silent, true), Some("preshared-key"), "that came from the peer");
        assert_eq!(judge(188_000, &alone, false), None, "it was reported before");
        assert_eq!(world.complete(190_000), Some("relay-not-connected"));
    }

    #[test]
    fn the_cause_may_become_clear_later() {
        let mut world = World::new();
        world.send(0);
        assert_eq!(world.judge(8_000), Some("no-answer"));
        world.facts.attempt = Some(Attempt { refused: true, cookie: false });
        assert_eq!(world.judge(70_000), Some("preshared-key"));
        world.facts.attempt = Some(Attempt::default());
        assert_eq!((world.judge(130_000), world.judge(190_000)), (None, None), "both were reported");
    }

    #[test]
    fn what_a_responder_sees() {
        let mut world = World::new();
        assert!(!world.link.unconfirmed(2, at(0), at(20_000)), "two may be lost");
        assert!(!world.link.unconfirmed(9, at(0), at(1_000)), "a peer that begins often is not in trouble");
        assert!(world.link.unconfirmed(3, at(0), at(10_000)));
        assert!(!world.link.unconfirmed(4, at(0), at(15_000)), "once");
        assert_eq!(world.complete(20_000), Some("unconfirmed"));

        let hour = Duration::from_secs(3_600);
        world.at(30_000);
        assert!(!world.link.clock_behind(hour, world.facts), "it is online: a replay");
        world.at(300_000);
        assert!(world.link.clock_behind(hour, world.facts));
        assert_eq!(world.link.problem().map(|(cause, _)| cause), Some(&Cause::ClockBehind { by: hour }));
    }
}
