//! Whether each peer is reachable, and what is wrong if it is not.
//!
//! The node knows the handshakes, and the workers record when a peer was heard. [`link`] derives a state and a likely
//! cause. While initiations to a peer get no answer, control collects evidence in two ways: an empty datagram to the
//! endpoint shows whether the network refuses the port, and the kernel is asked for the route.

pub(super) mod strangers;
pub(super) mod twins;

use super::{
    Control,
    peer::{
        Peer,
        link::{Attempt, Evidence, Facts, State},
        paths::Unresolved,
    },
    peer_log::{Line, Topic},
    timer::now,
};
use crate::{
    config::EndpointSpec,
    event::Event,
    interface::name_of,
    kernel::{Egress, SourceLookup},
    status::{Cause, Connection, PathMtu, Problem, Route},
    way::Way,
};
use rustguard_core::{
    node::PeerId,
    time::{Instant, Now},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::{Endpoint, reach::ReachProbe};
use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::Duration,
};
use strangers::Strangers;
use tokio::sync::mpsc;
use twins::Twins;

/// The maximum number of peers about whose endpoints the network and the kernel are asked at a time. If more peers are
/// in trouble, the reported cause is less exact.
const QUESTIONS: usize = 64;

/// The maximum number of peers that are looked at in one turn of control. The rest follow in the next turn.
const TICK_LOOKS: usize = 256;

/// Stands for the key of a sender whose messages are not for us.
const NO_KEY: PublicKey = PublicKey([0; 32]);

/// The kernel's answer about the route to a peer.
pub(super) type RouteTo = (PeerId, Option<Route>);

/// The destination of initiations that get no answer.
enum Tried {
    At(SocketAddr),
    /// Through a relay, with the cause that the silence suggests.
    Relayed(Cause),
}

/// The time of each peer's next look, and the questions under way.
pub(super) struct Watch {
    due: BTreeSet<(Instant, PeerId)>,
    /// False over the embedder's own transports.
    with_network: bool,
    probes: HashMap<PeerId, ReachProbe>,
    /// Only of peers that were heard: most peers of a large network never are.
    twins: HashMap<PeerId, Twins>,
    lookup: Option<SourceLookup>,
    /// The number of questions for routes under way.
    asked: usize,
    answers: mpsc::Sender<RouteTo>,
    pub(super) strangers: Strangers,
}

impl Watch {
    pub(super) fn new(with_network: bool, answers: mpsc::Sender<RouteTo>) -> Self {
        Self {
            due: BTreeSet::new(),
            with_network,
            probes: HashMap::new(),
            twins: HashMap::new(),
            lookup: None,
            asked: 0,
            answers,
            strangers: Strangers::new(),
        }
    }

    /// When the next look at a peer is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

impl Control {
    /// The state of the connection to a peer.
    pub(super) fn connection(&self, peer: PeerId) -> Connection {
        let (Some(entry), Some(facts)) = (self.peers.get(&peer), self.facts(peer)) else {
            return Connection::NeverConnected;
        };
        let now = now();
        match entry.link.state(facts) {
            State::NeverConnected => Connection::NeverConnected,
            State::Connecting { since, attempts } => Connection::Connecting { since: unix(now, since), attempts },
            State::Online { since } => Connection::Online { since: unix(now, since) },
            State::Idle { since } => Connection::Idle { since: unix(now, since) },
            State::Offline { since } => Connection::Offline { since: unix(now, since) },
        }
    }

    /// The problem with a peer: first of the handshake, then of its endpoint's name, then of the packets of a reachable
    /// peer.
    pub(super) fn problem(&self, peer: PeerId) -> Option<Problem> {
        let entry = self.peers.get(&peer)?;
        let of_link = self.link_problem(peer).or_else(|| not_resolved(entry));
        of_link.or_else(|| self.twins(peer)).or_else(|| refused_source(entry)).or_else(|| self.path_mtu_problem(entry))
    }

    fn link_problem(&self, peer: PeerId) -> Option<Problem> {
        let (cause, since) = self.peers.get(&peer)?.link.problem()?;
        Some(Problem::new(cause.clone(), unix(now(), since)))
    }

    /// An initiation was given to the system, which may have refused it.
    pub(super) fn initiation_sent(&mut self, peer: PeerId, refused: bool) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        entry.link.initiation_sent(refused, now().instant);
        self.connection_changed(peer);
    }

    /// A response to the peer's initiation was sent.
    pub(super) fn response_sent(&mut self, peer: PeerId) {
        let (Some(unconfirmed), Some(entry)) = (self.node.unconfirmed(peer), self.peers.get_mut(&peer)) else { return };
        if entry.link.unconfirmed(unconfirmed.count, unconfirmed.since, now().instant) {
            self.problem_found(peer);
        }
    }

    /// A handshake with the peer completed.
    pub(super) fn link_complete(&mut self, peer: PeerId) {
        let Some(facts) = self.facts(peer) else { return };
        self.watch.probes.remove(&peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let was_online = matches!(entry.shown, Connection::Online { .. });
        if let Some((cause, since)) = entry.link.handshake_complete(was_online, facts.now) {
            let name = entry.label(&entry.shared.public_key());
            let (public_key, lasted) = (entry.shared.public_key(), facts.now.since(since).as_secs());
            self.tell(
                peer,
                Topic::Problem,
                Line::new(name, format_args!("works again after {lasted} s ({})", cause.kind())),
            );
            self.emit(Event::ProblemGone { peer: public_key, problem: Problem::new(cause, unix(now(), since)) });
        }
        self.connection_changed(peer);
    }

    /// The peer did not answer for Rekey-Attempt-Time. Returns true if the log does not say so yet.
    pub(super) fn link_failed(&mut self, peer: PeerId) -> bool {
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        entry.link.handshake_failed();
        let unknown = entry.link.problem().is_none();
        self.connection_changed(peer);
        unknown
    }

    /// The peer's initiations show that its clock is behind.
    pub(super) fn clock_behind(&mut self, peer: PeerId, by: Duration) {
        let (Some(facts), Some(entry)) = (self.facts(peer), self.peers.get_mut(&peer)) else { return };
        if entry.link.clock_behind(by, facts) {
            self.problem_found(peer);
        }
    }

    /// The interface was set down: nobody is expected to answer.
    pub(super) fn links_stop(&mut self) {
        self.watch.probes.clear();
        let peers: Vec<_> = self.peers.keys().copied().collect();
        for peer in peers {
            if let Some(entry) = self.peers.get_mut(&peer) {
                entry.link.stop();
            }
            self.connection_changed(peer);
        }
    }

    /// The peer was removed.
    pub(super) fn forget_link(&mut self, peer: PeerId, look: Option<Instant>) {
        self.watch.twins.remove(&peer);
        self.watch.probes.remove(&peer);
        look.map(|at| self.watch.due.remove(&(at, peer)));
    }

    /// Looks at the peers that are due.
    pub(super) fn links_tick(&mut self) {
        let now = now().instant;
        // Each peer at most once: if the time saturates, its next look would be due at once.
        let due: Vec<_> = self.watch.due.range(..=(now, PeerId(u32::MAX))).take(TICK_LOOKS).copied().collect();
        for (at, peer) in due {
            self.watch.due.remove(&(at, peer));
            if let Some(entry) = self.peers.get_mut(&peer) {
                entry.look = None;
                self.look(peer);
            }
        }
    }

    fn look(&mut self, peer: PeerId) {
        let Some(facts) = self.facts(peer) else { return };
        let tried = self.tried_in_vain(peer);
        let probe = self.watch.probes.remove(&peer);
        if let (Some(Tried::Relayed(silence)), Some(entry)) = (&tried, self.peers.get_mut(&peer))
            && entry.link.judge_through(silence.clone(), facts)
        {
            self.problem_found(peer);
        }
        if let (Some(Tried::At(endpoint)), Some(entry)) = (tried, self.peers.get_mut(&peer)) {
            if let (Some(said), Some(evidence)) = (probe.and_then(|probe| probe.unreachable()), entry.link.evidence()) {
                evidence.unreachable = Some(said);
            }
            if entry.link.judge(endpoint, facts) {
                self.problem_found(peer);
            }
            self.ask_why(peer, endpoint);
        }
        self.connection_changed(peer);
    }

    /// The destination of initiations to the peer, while they get no answer.
    fn tried_in_vain(&mut self, peer: PeerId) -> Option<Tried> {
        self.peers.get_mut(&peer)?.link.evidence()?;
        let ways = self.initiation_ways(peer, false);
        if let Some(endpoint) = ways.iter().find_map(|way| way.udp()) {
            return Some(Tried::At(endpoint.remote));
        }
        // Nothing is known about an embedder's transport.
        let Some(&Way::Relayed(relay)) = ways.first() else { return None };
        let entry = self.peers.get(&relay)?;
        let (key, called) = (entry.shared.public_key(), entry.label(&entry.shared.public_key()));
        let session = self.sealer(relay).is_some_and(|sealer| sealer.usable(now().instant));
        Some(Tried::Relayed(if session {
            Cause::NoAnswerThrough { relay: key, called }
        } else {
            Cause::RelayNotConnected { relay: key, called }
        }))
    }

    /// Asks the network whether the endpoint refuses datagrams, and the kernel for its route.
    fn ask_why(&mut self, peer: PeerId, endpoint: SocketAddr) {
        if !self.watch.with_network || self.node.attempt(peer).is_none() {
            return;
        }
        let (mark, port) = (self.sockets.fwmark(), self.sockets.port());
        let local = self.sockets.source_to(endpoint);
        if self.watch.probes.len() < QUESTIONS {
            let refused = match ReachProbe::send(Endpoint { local, ..Endpoint::new(endpoint) }, mark) {
                Ok(probe) => {
                    self.watch.probes.insert(peer, probe);
                    None
                }
                Err(error) => error.raw_os_error(),
            };
            if let Some(evidence) = self.peers.get_mut(&peer).and_then(|entry| entry.link.evidence()) {
                (evidence.error, evidence.unreachable) = (refused, None);
            }
        }
        if self.watch.asked < QUESTIONS
            && let Some(lookup) = self.route_lookup()
        {
            let to = Endpoint { local, ..Endpoint::new(endpoint) };
            let (way, answers) = (lookup.egress(to, mark, port), self.watch.answers.clone());
            self.watch.asked += 1;
            tokio::spawn(async move {
                let _ = answers.send((peer, route(way.await))).await;
            });
        }
    }

    fn route_lookup(&mut self) -> Option<&SourceLookup> {
        if self.watch.lookup.is_none() {
            self.watch.lookup = SourceLookup::open().ok();
        }
        self.watch.lookup.as_ref()
    }

    /// The kernel has answered.
    pub(super) fn route_answered(&mut self, (peer, route): RouteTo) {
        self.watch.asked -= 1;
        if let Some(evidence) = self.peers.get_mut(&peer).and_then(|entry| entry.link.evidence()) {
            evidence.route = route;
        }
    }

    /// Reports what the link has found.
    fn problem_found(&mut self, peer: PeerId) {
        if let Some(problem) = self.link_problem(peer) {
            self.report_problem(peer, Topic::Problem, problem);
        }
    }

    fn report_problem(&mut self, peer: PeerId, topic: Topic, problem: Problem) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let (public_key, name) = (entry.shared.public_key(), entry.label(&entry.shared.public_key()));
        self.tell(peer, topic, Line::bad(name, format_args!("{problem}")));
        self.emit(Event::ProblemFound { peer: public_key, problem });
    }

    /// Reports that the peer sends from an address that its allowed IPs do not permit: the peer cannot notice it
    /// itself.
    pub(super) fn source_refused(&mut self, peer: PeerId) {
        if let Some(problem) = self.peers.get(&peer).and_then(|entry| refused_source(entry)) {
            self.report_problem(peer, Topic::RefusedSource, problem);
        }
    }

    /// An authenticated message of the peer came by this way.
    pub(super) fn place_heard(&mut self, peer: PeerId, from: &Way) {
        let Some(at) = from.udp().filter(|_| self.peers.contains_key(&peer)) else { return };
        if self.watch.twins.entry(peer).or_default().heard(at.remote, now().instant) {
            self.twins_found(peer);
        }
    }

    /// A handshake that we began is complete.
    pub(super) fn session_begun(&mut self, peer: PeerId) {
        if self.peers.contains_key(&peer) && self.watch.twins.entry(peer).or_default().session_begins(now().instant) {
            self.twins_found(peer);
        }
    }

    fn twins_found(&mut self, peer: PeerId) {
        if let Some(problem) = self.twins(peer) {
            self.report_problem(peer, Topic::Twins, problem);
        }
    }

    /// The problem that two machines use the peer's key, or ours.
    fn twins(&self, peer: PeerId) -> Option<Problem> {
        let (twins, now) = (self.watch.twins.get(&peer)?, now());
        if let Some((endpoints, since)) = twins.places(now.instant) {
            return Some(Problem::new(Cause::TwoPlaces { endpoints }, unix(now, since)));
        }
        let since = twins.sessions_end_early(now.instant)?;
        Some(Problem::new(Cause::ShortSessions, unix(now, since)))
    }

    /// Reports that long packets do not reach the peer, or reach it again after the problem `before`.
    pub(super) fn path_mtu_changed(&mut self, peer: PeerId, before: Option<Problem>) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let (public_key, name) = (entry.shared.public_key(), entry.label(&entry.shared.public_key()));
        if let Some(problem) = self.path_mtu_problem(entry) {
            self.report_problem(peer, Topic::PathMtu, problem);
        } else if let Some(problem) = before.filter(|_| self.path_mtu(entry).is_some()) {
            self.tell(peer, Topic::PathMtu, Line::new(name, format_args!("long packets reach this peer again")));
            self.emit(Event::ProblemGone { peer: public_key, problem });
        }
    }

    /// Reports a changed state, and sets the time of the next look.
    fn connection_changed(&mut self, peer: PeerId) {
        let Some(facts) = self.facts(peer) else { return };
        let connection = self.connection(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        // A look that is due is not postponed.
        let next = entry.look.filter(|at| *at <= facts.now).or_else(|| entry.link.next_look(facts));
        let before = std::mem::replace(&mut entry.look, next);
        let changed = std::mem::replace(&mut entry.shown, connection).word() != connection.word();
        let public_key = entry.shared.public_key();
        if next.is_none() {
            // Nobody would look at the answer.
            self.watch.probes.remove(&peer);
        }
        if before != next {
            before.map(|at| self.watch.due.remove(&(at, peer)));
            next.map(|at| self.watch.due.insert((at, peer)));
        }
        if changed {
            self.emit(Event::ConnectionChanged { peer: public_key, connection });
        }
    }

    fn facts(&self, peer: PeerId) -> Option<Facts> {
        let keepalive = self.node.peer_config(peer)?.persistent_keepalive.is_some_and(|interval| !interval.is_zero());
        let attempt = self.node.attempt(peer);
        Some(Facts {
            now: now().instant,
            heard: self.peers.get(&peer)?.shared.activity.heard_at(),
            attempt: attempt.map(|it| Attempt { refused: it.refused > 0, cookie: it.cookies > 0 }),
            keepalive,
        })
    }

    /// An initiation came whose key no peer has. Anybody can make such keys.
    pub(super) fn unknown_key(&mut self, from: SocketAddr, datagram: &[u8]) {
        let now = now().instant;
        if !self.watch.strangers.may_ask(now) {
            return;
        }
        let Some(key) = self.node.initiator(datagram) else { return };
        self.note_at(from, |evidence| evidence.other_key = Some(key));
        if let Some(held) = self.watch.strangers.tell(from.ip(), key, now) {
            let (key64, more) = (crate::key::to_base64(&key.0), more(held));
            tracing::warn!(
                "a handshake from {from} has the public key {}, which no peer has: a machine that was removed tries \
                 on like this; if it is to be a peer, add it, or correct its PublicKey{more}",
                *key64
            );
            self.emit(Event::UnknownKey { public_key: key, from });
        }
    }

    /// A handshake message came whose MAC1 was not made with our public key. Anybody can make such messages.
    pub(super) fn not_for_us(&mut self, from: SocketAddr) {
        self.note_at(from, |evidence| evidence.not_for_us = true);
        if let Some(held) = self.watch.strangers.tell(from.ip(), NO_KEY, now().instant) {
            let more = more(held);
            tracing::info!(
                "a handshake message from {from} is for another public key than ours: if that is a peer, correct the PublicKey of this \
                 machine there{more}"
            );
        }
    }

    /// Notes evidence about each peer in trouble whose endpoint is `from`.
    fn note_at(&mut self, from: SocketAddr, note: impl Fn(&mut Evidence)) {
        for entry in self.peers.values_mut() {
            if entry.link.evidence().is_some() && entry.endpoint().is_some_and(|endpoint| endpoint.remote == from) {
                entry.link.evidence().into_iter().for_each(&note);
            }
        }
    }

    /// The problem that long packets do not reach the peer.
    pub(super) fn path_mtu_problem(&self, entry: &Peer) -> Option<Problem> {
        let PathMtu { packet, datagram, limited: true } = self.path_mtu(entry)? else { return None };
        let now = now();
        let since = entry.path_mtu.as_ref().and_then(|checks| checks.since).unwrap_or(now.instant);
        Some(Problem::new(Cause::PathMtu { packet, datagram }, unix(now, since)))
    }
}

/// The problem that the name of the peer's endpoint has no address.
fn not_resolved(entry: &Peer) -> Option<Problem> {
    let (name, why) = unresolved(entry)?;
    let why = why?;
    Some(Problem::new(Cause::NotResolved { name, error: why.cause.clone() }, unix(now(), why.since)))
}

/// The problem that the peer sends from an address that its allowed IPs do not permit.
fn refused_source(entry: &Peer) -> Option<Problem> {
    let now = now();
    let refused = entry.shared.refused_source.current(now.instant)?;
    Some(Problem::new(Cause::SourceNotAllowed { source: refused.source }, unix(now, refused.since)))
}

/// The name of the peer's only endpoint while it has no address, and the reason, once it is known.
pub(super) fn unresolved(entry: &Peer) -> Option<(String, Option<&Unresolved>)> {
    let mut configured = entry.configured();
    let only = configured.next().filter(|_| configured.next().is_none())?;
    let is_missing = entry.endpoint().is_none() && only.address.is_none();
    (is_missing && matches!(only.spec.endpoint, EndpointSpec::Name(..)))
        .then(|| (only.spec.endpoint.to_string(), only.unresolved.as_deref()))
}

/// The number of messages from strangers that were not logged, as the end of the next line.
fn more(held: u64) -> String {
    if held > 0 { format!(" ({held} other such messages were not logged)") } else { String::new() }
}

/// The route, with the interface's name.
fn route(way: Egress) -> Option<Route> {
    let Egress::By(exit) = way else { return None };
    Some(Route { interface: name_of(exit.interface).ok()?, gateway: exit.gateway, source: exit.source })
}

/// An instant on the clock that includes sleep, as the time since the Unix epoch.
fn unix(now: Now, at: Instant) -> Duration {
    now.unix.saturating_sub(now.instant.since(at))
}
