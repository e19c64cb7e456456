//! The servers that a member keeps sessions with: of many, those that answer quickest.
//!
//! A network on a store may have 32 servers and thousands of members. A member has all servers as peers, and tries each
//! once. From then on, it keeps the sessions with the quickest servers, as many as it takes for [`KEPT`] that answer.
//! When one of them fails, the next one is added, and rests again when the other is back. So a server's death costs
//! each of its members one more handshake, and not one with each of the others.
//!
//! With a server that rests, the session goes on while there are packets for it. Other members and servers reach this
//! machine through the servers that it keeps.

use rustguard_core::constants::REKEY_AFTER_TIME;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Cause, Connection, Event};
use rustguard_roster::{
    member::{Member, Role},
    roster::Roster,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How many servers that answer a member keeps.
const KEPT: usize = 3;
/// How long a server is tried at first. If it has not answered by then, it is the last one to be tried again.
const TRIED: Duration = Duration::from_secs(15);

/// See the module's page.
#[derive(Default)]
pub(super) struct Servers {
    known: BTreeMap<PublicKey, Known>,
    resting: BTreeSet<PublicKey>,
}

struct Known {
    /// Since when it is tried.
    since: Instant,
    /// The shortest time of a handshake with it.
    took: Option<Duration>,
    answers: bool,
    /// It signs rosters, and so takes the statements of members.
    signs: bool,
}

impl Servers {
    /// The servers of a member, or none.
    pub(super) fn follow(&mut self, roster: &Roster, own_key: &PublicKey, now: Instant) {
        let is_server = |member: &&std::sync::Arc<Member>| member.role == Role::Server;
        let is_member = roster.holder(own_key).is_some_and(|me| me.role == Role::Member);
        let servers: Vec<_> = roster.members().filter(|_| is_member).filter(is_server).collect();
        // Without a store, one server signs, and the roster does not say which. All are kept.
        let can_rest = servers.iter().any(|server| server.is_gateway());
        let mut before = std::mem::take(&mut self.known);
        for server in servers.into_iter().filter(|_| can_rest) {
            // The session of a server that has changed its key goes on.
            let old_key = server.old_key.as_ref();
            let known = before.remove(&server.public_key).or_else(|| before.remove(old_key?));
            let known = known.unwrap_or(Known { since: now, took: None, answers: false, signs: false });
            self.known.insert(server.public_key, Known { signs: server.is_gateway(), ..known });
        }
        self.decide(now);
    }

    /// The servers without whose sessions this machine does.
    pub(super) fn resting(&self) -> &BTreeSet<PublicKey> {
        &self.resting
    }

    /// Learns whether a server answers. Returns whether other servers rest now.
    pub(super) fn hear(&mut self, event: &Event, now: Instant) -> bool {
        match event {
            Event::HandshakeComplete { peer, took, .. } => self.note(peer, *took, true),
            Event::ConnectionChanged { peer, connection, .. } => match connection {
                Connection::Online { .. } => self.note(peer, None, true),
                Connection::Connecting { .. } | Connection::Offline { .. } => self.note(peer, None, false),
                _ => return false,
            },
            Event::HandshakeFailed { peer, .. } => self.note(peer, None, false),
            Event::ProblemFound { peer, problem, .. } => match problem.cause {
                Cause::PathMtu { .. } | Cause::SourceNotAllowed { .. } | Cause::UnderLoad => return false,
                _ => self.note(peer, None, false),
            },
            _ => return false,
        }
        self.decide(now)
    }

    /// Returns whether other servers rest now because time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        self.decide(now)
    }

    /// This machine has moved to other networks, where other servers may be quicker: all are tried again. A session
    /// that goes on is measured when it is renewed.
    pub(super) fn try_again(&mut self, now: Instant) {
        for known in self.known.values_mut() {
            (known.since, known.took, known.answers) = (now + REKEY_AFTER_TIME, None, false);
        }
        self.decide(now);
    }

    fn note(&mut self, peer: &PublicKey, took: Option<Duration>, answers: bool) {
        if let Some(known) = self.known.get_mut(peer) {
            known.answers = answers;
            known.took = [known.took, took].into_iter().flatten().min();
        }
    }

    fn decide(&mut self, now: Instant) -> bool {
        let mut order: Vec<_> = self.known.iter().map(|(key, known)| (known.rank(now), *key, known)).collect();
        order.sort_unstable_by_key(|(rank, key, _)| (*rank, key.0));
        let (mut answering, mut signing) = (0, false);
        let mut resting = BTreeSet::new();
        for (_, key, known) in order {
            if answering >= KEPT && signing {
                resting.insert(key);
            } else {
                answering += usize::from(known.answers);
                signing |= known.answers && known.signs;
            }
        }
        std::mem::replace(&mut self.resting, resting) != self.resting
    }
}

impl Known {
    /// The quickest first. What is not measured yet comes before all others, and what does not answer after them.
    fn rank(&self, now: Instant) -> Duration {
        let untried = if now.saturating_duration_since(self.since) < TRIED { Duration::ZERO } else { Duration::MAX };
        self.took.unwrap_or(untried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_roster::{key::NetworkSecret, settings::Settings};
    use std::sync::Arc;

    const OWN: PublicKey = PublicKey([9; 32]);

    fn key(n: u8) -> PublicKey {
        PublicKey([n; 32])
    }

    /// A network whose servers have the numbers from 1, of which those of `gateways` sign.
    fn roster(servers: u8, gateways: &[u8], own: Role) -> Roster {
        let server = |n| {
            let member = Member::new(key(n), format!("vpn{n}").parse().unwrap()).with_role(Role::Server);
            if gateways.contains(&n) { member.as_gateway() } else { member }
        };
        let me = Member::new(OWN, "me".parse().unwrap()).with_role(own);
        let members = (1..=servers).map(server).chain([me]).map(Arc::new);
        let settings = Settings::new("rg0".parse().unwrap());
        Roster::issue(&NetworkSecret::from_bytes(&[7; 32]), 1, 0, settings, members).unwrap()
    }

    struct Lab {
        servers: Servers,
        now: Instant,
    }

    impl Lab {
        fn new(roster: &Roster) -> Self {
            let mut lab = Self { servers: Servers::default(), now: Instant::now() };
            lab.servers.follow(roster, &OWN, lab.now);
            lab
        }

        fn answers(&mut self, n: u8, milliseconds: u64) {
            self.servers.note(&key(n), Some(Duration::from_millis(milliseconds)), true);
            self.servers.decide(self.now);
        }

        fn fails(&mut self, n: u8) {
            self.servers.note(&key(n), None, false);
            self.servers.decide(self.now);
        }

        fn rest(&self) -> Vec<u8> {
            self.servers.resting().iter().map(|key| key.0[0]).collect()
        }
    }

    #[test]
    fn a_member_keeps_the_three_quickest_servers() {
        let mut lab = Lab::new(&roster(6, &[1, 2, 3, 4, 5, 6], Role::Member));
        let answers = [(1, 60, &[][..]), (2, 10, &[]), (3, 50, &[]), (4, 20, &[1]), (5, 30, &[1, 3])];
        for (n, milliseconds, rest) in answers {
            lab.answers(n, milliseconds);
            assert_eq!(lab.rest(), rest, "the sixth may be quicker");
        }
        lab.now += TRIED;
        lab.servers.tick(lab.now);
        assert_eq!(lab.rest(), [1, 3, 6]);
        // The next one takes the place of one that fails, which is tried on, and has its place again.
        lab.fails(2);
        assert_eq!(lab.rest(), [1, 6]);
        lab.fails(4);
        assert_eq!(lab.rest(), [6]);
        lab.answers(3, 50);
        lab.answers(2, 70);
        assert_eq!(lab.rest(), [1, 6], "the shortest time counts");
        lab.answers(4, 20);
        assert_eq!(lab.rest(), [1, 3, 6]);
        // In another network, all are tried.
        lab.servers.try_again(lab.now);
        assert_eq!(lab.rest(), [0; 0]);
        for n in 1..=6 {
            lab.answers(n, 100 - u64::from(n));
        }
        assert_eq!(lab.rest(), [1, 2, 3]);
    }

    #[test]
    fn a_server_that_changes_its_key_is_as_quick_as_before() {
        let mut lab = Lab::new(&roster(4, &[1, 2, 3, 4], Role::Member));
        (1..=4).for_each(|n| lab.answers(n, u64::from(n)));
        assert_eq!(lab.rest(), [4]);
        let others = (2..=4).map(|n| Member::new(key(n), format!("vpn{n}").parse().unwrap()));
        let mut first = Member::new(key(7), "vpn1".parse().unwrap());
        first.old_key = Some(key(1));
        let servers = others.chain([first]).map(|server| server.with_role(Role::Server).as_gateway());
        let members = servers.chain([Member::new(OWN, "me".parse().unwrap())]).map(Arc::new);
        let settings = Settings::new("rg0".parse().unwrap());
        let roster = Roster::issue(&NetworkSecret::from_bytes(&[7; 32]), 2, 0, settings, members).unwrap();
        lab.servers.follow(&roster, &OWN, lab.now + TRIED);
        assert_eq!(lab.rest(), [4]);
    }

    #[test]
    fn one_that_signs_is_kept_and_nobody_rests_without_a_store() {
        let mut lab = Lab::new(&roster(5, &[5], Role::Member));
        (1..=5).for_each(|n| lab.answers(n, u64::from(n)));
        assert_eq!(lab.rest(), [0; 0], "the quickest four take no statements");
        let mut lab = Lab::new(&roster(5, &[2, 5], Role::Member));
        (1..=5).for_each(|n| lab.answers(n, u64::from(n)));
        assert_eq!(lab.rest(), [4, 5]);
        // A server has sessions with all others, and one server signs if there is no store.
        for roster in [roster(5, &[], Role::Member), roster(5, &[1, 2], Role::Server)] {
            let mut lab = Lab::new(&roster);
            (1..=5).for_each(|n| lab.answers(n, u64::from(n)));
            assert_eq!(lab.rest(), [0; 0]);
        }
    }
}
