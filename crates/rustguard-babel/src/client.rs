//! Passive clients: stock WireGuard peers that this node announces.
//!
//! Gateways learn of each other only by the routes that the nodes in between select, and these lead to the nearest
//! gateway. If all gateways that hear a client announced the same metric, the gateway that the client left would not
//! learn of the new gateway as long as its neighbours are nearer to itself. A gateway that has just heard the client
//! therefore announces a shorter distance than gateways that have heard it for longer. When all nodes know the new
//! gateway, the distance decides again.
//!
//! A client may have several gateways as peers. It accepts a source from one of them only: the one that its own allowed
//! IPs send data to. So data from the client shows its choice. A keepalive does not: WireGuard sends one ten seconds
//! after it last received something, also to a gateway that the client has left. The renewal of a session does not show
//! it either.
//!
//! A member of a network talks to several servers, which may change with each packet, and is a client of all of them
//! ([`Role::Member`](rustguard_core::routing::Role::Member)): each server that hears it announces it, and sends it
//! packets directly.
//!
//! WireGuard notices after minutes that a client is gone, because stock clients need not answer anything sooner. Other
//! RustGuards answer questions inside the session ([`Action::Ask`](rustguard_core::routing::Action::Ask)). So each
//! client is asked once in a session. A client that has answered is asked again when data for it stays unanswered, and
//! counts as gone when it does not answer any more.
pub(crate) mod clients;

use crate::params::{
    CLIENT_ASKED_AFTER, CLIENT_INSIST, CLIENT_MOVED, CLIENT_NEW, CLIENT_PATIENCE, CLIENT_RENEWS, CLIENT_SILENCE,
    IN_FLIGHT, METRIC_CLIENT_IDLE, METRIC_CLIENT_NEVER_HEARD, METRIC_CLIENT_PRESENT, METRIC_CLIENT_SILENT, PROBE_PACE,
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::Action, time::Instant};

/// A peer that does not speak Babel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// Its allowed IPs.
    pub(crate) prefixes: Vec<IpNet>,
    /// Whether it stays a client of this gateway while it talks to another one.
    pub(crate) stays: bool,
    presence: Presence,
    /// When anything last came from it.
    heard: Option<Instant>,
    /// When data last came from it, or it began a session.
    spoke: Option<Instant>,
    /// When a handshake was last complete.
    handshake: Option<Instant>,
    /// It came at this time, less than [`CLIENT_NEW`] ago.
    came: Option<Instant>,
    /// Another gateway began to announce at this time that it hears the client.
    contested: Option<Instant>,
    /// It talks to another gateway. Packets that it sent until this time do not mean that it came back.
    left: Option<Instant>,
    /// When this gateway last answered that it hears it too.
    insisted: Option<Instant>,
    /// How long its last answer to a question took. Stock WireGuard answers none.
    round_trip: Option<Duration>,
    question: Question,
    /// Whether it has to be asked now.
    ask: bool,
    /// Whether it has answered questions before, but does not any more.
    mute: bool,
    /// The value of `mute` that the host knows.
    told_mute: bool,
}

/// The question of this gateway to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Question {
    #[default]
    None,
    /// At this time, the client is asked whether it answers questions at all. Both ends of a new session can use it by
    /// then.
    Due(Instant),
    /// This question was asked.
    Asked,
    /// The client was asked whether it is still there, because data had no answer. It is asked again at `again`, and
    /// has to answer by `until`.
    Doubt { again: Option<Instant>, until: Instant },
}

/// The presence of the client, as far as this gateway knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// It was never heard.
    #[default]
    Never,
    /// It is silent, or talks to another gateway.
    Gone,
    /// It has a session with this gateway and sends no data.
    Idle,
    /// It talks to this gateway.
    Here,
}

impl Client {
    pub(crate) fn new(prefixes: Vec<IpNet>) -> Self {
        Self { prefixes, ..Self::default() }
    }

    /// The metric to announce. A silent client stays reachable through this gateway as the last resort. Any gateway
    /// that hears it takes precedence.
    pub(crate) fn metric(&self) -> u16 {
        match (self.presence, self.came) {
            (Presence::Here, Some(_)) => 0,
            (Presence::Here, None) => METRIC_CLIENT_PRESENT,
            (Presence::Idle, _) => METRIC_CLIENT_IDLE,
            (Presence::Gone, _) => METRIC_CLIENT_SILENT,
            (Presence::Never, _) => METRIC_CLIENT_NEVER_HEARD,
        }
    }

    /// Something authentic came from it; data came at the time `data`. True when this changes the metric.
    pub(crate) fn heard(&mut self, data: Option<Instant>, now: Instant) -> bool {
        let before = self.metric();
        self.heard = Some(now);
        self.mute = false;
        if matches!(self.question, Question::Doubt { .. }) {
            self.question = Question::None;
        }
        let said = data.or(self.stays.then_some(now));
        if let Some(at) = said.filter(|&at| self.left.is_none_or(|left| at > left)) {
            self.spoke = Some(at);
            if self.presence != Presence::Here {
                (self.presence, self.came) = (Presence::Here, Some(now));
            }
        } else if self.presence != Presence::Here {
            self.presence = Presence::Idle;
        }
        self.metric() != before
    }

    /// A handshake is complete. A client without a session has come to this gateway. The same holds for a client that
    /// begins another session early, because it has lost the last one: it may send nothing else. True when this changes
    /// the metric.
    pub(crate) fn handshake_complete(&mut self, now: Instant) -> bool {
        let last = self.handshake.replace(now);
        let renews = last.is_some_and(|last| now.since(last) >= CLIENT_RENEWS)
            && self.heard.is_some_and(|heard| now.since(heard) < CLIENT_SILENCE);
        // The round trip of this handshake, which is reported next, is no answer to an earlier question.
        self.question = match self.round_trip {
            None => Question::Due(now + CLIENT_ASKED_AFTER),
            Some(_) => Question::None,
        };
        self.heard((!renews).then_some(now), now)
    }

    /// Data for it had no answer, and nothing else came from it.
    pub(crate) fn unanswered(&mut self, now: Instant) {
        if let Some(round_trip) = self.round_trip.filter(|_| !self.mute)
            && !matches!(self.question, Question::Doubt { .. })
        {
            let patience = CLIENT_PATIENCE.max(round_trip * 2);
            self.question = Question::Doubt { again: Some(now + PROBE_PACE), until: now + patience };
            self.ask = true;
        }
    }

    /// A round trip was measured: of a question, or of a handshake. True when that changes the metric.
    pub(crate) fn answered(&mut self, round_trip: Duration, now: Instant) -> bool {
        let asked = matches!(self.question, Question::Asked | Question::Doubt { .. });
        if !asked && self.round_trip.is_none() {
            return false;
        }
        self.round_trip = Some(round_trip);
        self.question = Question::None;
        self.heard(None, now)
    }

    /// The host's actions for the client after an event.
    pub(crate) fn act(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        if core::mem::take(&mut self.ask) {
            out.push(Action::Ask { peer });
        }
        if self.mute != self.told_mute {
            self.told_mute = self.mute;
            out.push(Action::Usable { peer, usable: !self.mute });
        }
    }

    /// Another gateway began to announce that it hears the client. Both may hear it: whether it moved shows within
    /// [`CLIENT_MOVED`].
    pub(crate) fn contested(&mut self, now: Instant) {
        if self.presence == Presence::Here && self.contested.is_none() && !self.stays {
            self.contested = Some(now);
        }
    }

    /// WireGuard cannot reach it. True when that changes the metric.
    pub(crate) fn lost(&mut self) -> bool {
        let before = self.metric();
        (self.came, self.contested) = (None, None);
        if self.presence != Presence::Never {
            self.presence = Presence::Gone;
        }
        self.metric() != before
    }

    /// Looks at the time. True when that changes the metric.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let before = self.metric();
        if self.came.is_some_and(|came| came + CLIENT_NEW <= now) {
            self.came = None;
        }
        if let Some(at) = self.contested.filter(|&at| at + CLIENT_MOVED <= now) {
            self.contested = None;
            let left = at + IN_FLIGHT;
            if self.spoke.is_none_or(|spoke| spoke <= left) {
                self.left = Some(left);
                self.lost();
            } else if self.insisted.is_none_or(|at| at + CLIENT_INSIST <= now) {
                // It may have come back without the other gateway knowing. This is announced only at intervals, because
                // the client may talk to both.
                (self.came, self.insisted) = (Some(now), Some(now));
            }
        }
        if self.heard.is_some_and(|heard| heard + CLIENT_SILENCE <= now) {
            self.lost();
        }
        self.ask_on(now);
        self.metric() != before
    }

    fn ask_on(&mut self, now: Instant) {
        match self.question {
            Question::Due(at) if at <= now => {
                self.question = Question::Asked;
                self.ask = true;
            }
            Question::Doubt { until, .. } if until <= now => {
                self.question = Question::None;
                self.mute = true;
                self.lost();
            }
            Question::Doubt { again: Some(again), until } if again <= now => {
                self.question = Question::Doubt { again: None, until };
                self.ask = true;
            }
            _ => {}
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let hears = matches!(self.presence, Presence::Idle | Presence::Here);
        let silence = self.heard.filter(|_| hears).map(|heard| heard + CLIENT_SILENCE);
        let contested = self.contested.map(|at| at + CLIENT_MOVED);
        let new = self.came.map(|came| came + CLIENT_NEW);
        let question = match self.question {
            Question::Due(at) => Some(at),
            Question::Doubt { again, until } => Some(again.unwrap_or(until)),
            Question::None | Question::Asked => None,
        };
        silence.into_iter().chain(contested).chain(new).chain(question).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    /// It sends data.
    fn says(client: &mut Client, ms: u64) -> bool {
        client.heard(Some(at(ms)), at(ms))
    }

    #[test]
    fn a_member_of_a_network_is_here_while_it_is_heard_whomever_it_talks_to() {
        let mut client = Client { stays: true, ..Client::default() };
        assert!(client.handshake_complete(at(0)) && client.tick(at(1_000)));
        assert_eq!(client.metric(), METRIC_CLIENT_PRESENT);
        client.contested(at(5_000));
        assert!(!client.tick(at(10_000)), "it talks to another server");
        assert_eq!(client.metric(), METRIC_CLIENT_PRESENT);
        // It is lost, and only a keepalive comes.
        assert!(client.lost() && client.heard(None, at(20_000)) && client.tick(at(21_000)));
        assert_eq!(client.metric(), METRIC_CLIENT_PRESENT);
        assert!(client.tick(at(20_000 + 180_000)));
        assert_eq!(client.metric(), METRIC_CLIENT_SILENT);
    }

    #[test]
    fn a_client_is_near_at_first_then_here_then_held() {
        let mut client = Client::new(Vec::new());
        assert_eq!((client.metric(), client.deadline()), (METRIC_CLIENT_NEVER_HEARD, None));
        assert!(says(&mut client, 0) && !says(&mut client, 1_000));
        assert_eq!((client.metric(), client.deadline()), (0, Some(at(1_000))));
        assert!(!client.tick(at(999)) && client.tick(at(1_000)));
        assert_eq!((client.metric(), client.deadline()), (METRIC_CLIENT_PRESENT, Some(at(1_000) + CLIENT_SILENCE)));
        assert!(!says(&mut client, 4_000) && !client.tick(at(3_999) + CLIENT_SILENCE));
        assert!(client.tick(at(4_000) + CLIENT_SILENCE));
        assert_eq!((client.metric(), client.deadline()), (METRIC_CLIENT_SILENT, None));
        assert!(says(&mut client, 500_000) && client.metric() == 0);
        assert!(client.lost() && !client.lost());
        assert_eq!((client.metric(), client.deadline()), (METRIC_CLIENT_SILENT, None));
    }

    #[test]
    fn a_client_that_another_gateway_hears_has_moved_unless_it_is_heard_here_too() {
        let mut client = Client::new(Vec::new());
        client.contested(at(0));
        assert_eq!(client.deadline(), None, "it was not here");
        says(&mut client, 0);
        client.contested(at(10));
        client.contested(at(200));
        says(&mut client, 210);
        assert_eq!(client.deadline(), Some(at(510)));
        assert!(!client.tick(at(509)) && client.tick(at(510)) && client.metric() == METRIC_CLIENT_SILENT, "heard late");
    }

    #[test]
    fn who_hears_it_too_says_so_and_does_not_argue() {
        let mut client = Client::new(Vec::new());
        says(&mut client, 0);
        assert!(client.tick(at(1_000)) && client.metric() == METRIC_CLIENT_PRESENT);
        let contest = |client: &mut Client, ms| {
            client.contested(at(ms));
            says(client, ms + 201);
            let changes = client.tick(at(ms + 500));
            (changes, client.metric(), client.deadline())
        };
        assert_eq!(contest(&mut client, 10_000), (true, 0, Some(at(11_500))), "anycast");
        assert!(client.tick(at(11_500)) && client.metric() == METRIC_CLIENT_PRESENT);
        let silence = Some(at(15_200) + CLIENT_SILENCE);
        assert_eq!(contest(&mut client, 14_999), (false, METRIC_CLIENT_PRESENT, silence), "once is enough");
        assert_eq!(contest(&mut client, 15_000), (true, 0, Some(at(16_500))));
    }

    #[test]
    fn a_keepalive_does_not_bring_a_client_back() {
        let mut client = Client::new(Vec::new());
        says(&mut client, 0);
        client.tick(at(1_000));
        client.contested(at(20_000));
        assert!(client.tick(at(20_500)) && client.metric() == METRIC_CLIENT_SILENT);
        client.heard(Some(at(20_150)), at(20_900));
        assert_eq!(client.metric(), METRIC_CLIENT_IDLE, "what it sent before it moved, told late");
        assert!(!client.heard(None, at(30_000)) && client.metric() == METRIC_CLIENT_IDLE);
        assert!(!client.tick(at(29_999) + CLIENT_SILENCE) && client.tick(at(30_000) + CLIENT_SILENCE));
        assert_eq!((client.metric(), client.deadline()), (METRIC_CLIENT_SILENT, None));
        client.heard(None, at(300_000));
        assert!(says(&mut client, 300_100) && client.metric() == 0, "data does");
    }

    /// The questions to the client at this time, and the reports to the host.
    fn acts(client: &mut Client, ms: u64) -> Vec<Action> {
        let mut out = Vec::new();
        client.tick(at(ms));
        client.act(PeerId(1), &mut out);
        out
    }

    const ASK: Action = Action::Ask { peer: PeerId(1) };

    /// A client that has answered, 10 ms after it was asked.
    fn answering() -> Client {
        let mut client = Client::new(Vec::new());
        client.handshake_complete(at(0));
        assert_eq!(client.deadline(), Some(at(1_000)));
        assert_eq!((acts(&mut client, 999), acts(&mut client, 1_000)), (vec![], vec![ASK]));
        client.answered(Duration::from_millis(10), at(1_010));
        assert_eq!(acts(&mut client, 1_010), []);
        client
    }

    #[test]
    fn a_client_that_answers_no_more_is_lost_and_comes_back_when_it_is_heard() {
        let mut client = answering();
        client.unanswered(at(5_000));
        assert_eq!((acts(&mut client, 5_000), client.deadline()), (vec![ASK], Some(at(5_150))));
        client.unanswered(at(5_100));
        assert_eq!((acts(&mut client, 5_149), acts(&mut client, 5_150)), (vec![], vec![ASK]));
        assert_eq!((client.deadline(), client.metric()), (Some(at(5_300)), METRIC_CLIENT_PRESENT));
        assert_eq!(acts(&mut client, 5_300), [Action::Usable { peer: PeerId(1), usable: false }]);
        assert_eq!((client.deadline(), client.metric()), (None, METRIC_CLIENT_SILENT));
        client.unanswered(at(6_000));
        assert_eq!(acts(&mut client, 7_000), [], "known already");
        assert!(client.heard(None, at(8_000)));
        assert_eq!(acts(&mut client, 8_000), [Action::Usable { peer: PeerId(1), usable: true }]);
        assert_eq!(client.metric(), METRIC_CLIENT_IDLE);
    }

    #[test]
    fn whatever_comes_ends_the_doubt() {
        let mut client = answering();
        client.unanswered(at(5_000));
        acts(&mut client, 5_000);
        client.heard(None, at(5_100));
        assert_eq!(acts(&mut client, 6_000), []);
        client.unanswered(at(7_000));
        acts(&mut client, 7_000);
        client.answered(Duration::from_millis(900), at(7_290));
        assert_eq!(acts(&mut client, 8_000), []);
        // Its answers take longer now.
        client.unanswered(at(9_000));
        assert_eq!((acts(&mut client, 9_000), acts(&mut client, 9_150)), (vec![ASK], vec![ASK]));
        assert_eq!((acts(&mut client, 10_799), acts(&mut client, 10_800).len()), (vec![], 1));
    }

    #[test]
    fn a_stock_client_is_asked_once_in_a_session_and_never_lost_for_it() {
        let mut client = Client::new(Vec::new());
        for session in [0, 120_000] {
            client.handshake_complete(at(session));
            // The round trip of the handshake.
            client.answered(Duration::from_millis(5), at(session));
            assert_eq!(acts(&mut client, session + 1_000), [ASK]);
            for ms in [1_500, 20_000, 60_000] {
                client.unanswered(at(session + ms));
                assert_eq!(acts(&mut client, session + ms + 1_000), []);
            }
            assert!(client.metric() < METRIC_CLIENT_SILENT);
        }
    }

    #[test]
    fn a_handshake_brings_a_client_unless_it_renews_a_session() {
        let mut client = Client::new(Vec::new());
        assert!(client.handshake_complete(at(0)) && client.metric() == 0, "the first");
        let lost = |client: &mut Client, ms| {
            client.heard(None, at(ms));
            client.tick(at(ms));
            client.lost();
        };
        lost(&mut client, 5_000);
        assert!(client.handshake_complete(at(6_000)) && client.metric() == 0, "there and back");
        lost(&mut client, 100_000);
        assert!(client.handshake_complete(at(126_000)) && client.metric() == METRIC_CLIENT_IDLE, "renewed");
        lost(&mut client, 130_000);
        assert!(client.handshake_complete(at(130_000) + CLIENT_SILENCE) && client.metric() == 0, "after silence");
    }
}
