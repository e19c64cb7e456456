//! Several paths to one peer: which of them work, which is the best, and which flow goes by which.
//!
//! Between two RustGuards, the end with several configured endpoints probes them ([`Probe`]). The other end answers and
//! follows: it learns from the requests where it may send to, and the share of each path. One configuration thus serves
//! both directions.
//!
//! A stock WireGuard peer answers no probes. Its endpoints are tried by handshakes: one initiation goes to all locators
//! at once, and the first answer wins (the copies are replays to the peer). Data without an answer for a second begins
//! such a handshake.
//!
//! Between two RustGuards that reach each other through a third one, both ends look for a direct way and probe what
//! they find ([`Paths::look_for_direct_ways`]).
//!
//! [`Paths`] decides, without I/O: its input is locators, received probes and the time; its output is probes, a choice
//! and the next deadline. [`Flows`] is the part that workers use for each packet.
//!
//! | File | What is in it |
//! |---|---|
//! | `probing.rs` | our requests: when one is due, and what an answer or silence means |
//! | `answering.rs` | the peer's requests |
//! | `choice.rs` | which path is the active one |
//! | `direct.rs` | direct ways that were found, and how they end |
//! | `discovery.rs` | the search for direct ways to one peer |
//! | `search.rs` | state that this search shares for all peers: our candidates, where no probe may go, limits |
//! | `flows.rs` | which flow goes by which path |
//! | `probe.rs`, `candidates.rs` | the messages |
//! | `transport_address.rs` | addresses at a transport of the embedder's own |
//! | `locator.rs`, `types.rs` | where a peer can be reached; what else goes in and comes out |
//! | `timing.rs` | times and counts |
mod answering;
mod candidates;
mod choice;
mod direct;
mod discovery;
mod flows;
mod locator;
mod path;
mod probe;
mod probing;
mod search;
mod timing;
mod transport_address;
mod types;

use crate::{peer::PeerId, time::Instant};
use alloc::{boxed::Box, vec::Vec};
pub use candidates::{Candidate, CandidateKind, Candidates, MAX_CANDIDATES};
use discovery::Discovery;
pub use flows::{Flows, REST, Share};
pub use locator::{Address, Locator};
use path::{Challenge, OwnPath, Theirs};
pub use probe::{MAX_PATHS, MAX_SHARES, NO_PATH, Probe, Reply, Request, Version};
pub use search::{Observer, Search, can_be_a_peer};
pub use transport_address::TransportAddress;
pub use types::{Choice, OPENING_HOPS, Observation, Order, PathPolicy, PathReport, Relayed, State};

/// The most endpoints that can be configured for a peer. Probes of version 1 keep their last path number for the
/// locator that the peer roams to.
pub const MAX_ENDPOINTS: usize = MAX_SHARES - 1;

/// The paths to one peer.
#[derive(Debug)]
pub struct Paths {
    /// The configured paths; then the locator where the peer was heard, if there is one; then the direct ways that
    /// were found.
    own: Vec<OwnPath>,
    configured: usize,
    /// The paths that the peer has shown us, by the peer's path numbers: as many as it uses.
    theirs: Vec<Option<Theirs>>,
    /// By the same numbers, the locators that are not yet proven to be the peer's.
    challenges: Vec<Option<Challenge>>,
    /// The path that the peer says is the active one.
    their_active: Option<u8>,
    /// The position in `own`, or in `theirs` while we follow.
    active: Option<usize>,
    following: bool,
    /// Another path that is better, and since when.
    better: Option<(usize, Instant)>,
    /// Whether the peer answers probes; unknown at first, and again with every session.
    answers: Option<bool>,
    session: bool,
    data: u64,
    /// When data last passed.
    carried: Option<Instant>,
    /// When the traffic counters are read next; `None`: after a call that says that there may be traffic.
    next_look: Option<Instant>,
    next_handshake: Instant,
    changed: bool,
    /// The search for direct ways, if the configuration wants one.
    discovery: Option<Box<Discovery>>,
}

impl Paths {
    /// Paths with these policies, at most [`MAX_ENDPOINTS`]; further ones are left out. Without policies, the peer may
    /// show us paths.
    pub fn new(policies: &[PathPolicy], now: Instant) -> Self {
        match policies {
            // As in WireGuard: there is nothing to choose.
            [PathPolicy::Best | PathPolicy::Weighted(_)] => Self::with_all(&[], now),
            _ => Self::with_all(policies, now),
        }
    }

    fn with_all(policies: &[PathPolicy], now: Instant) -> Self {
        let policies = &policies[..policies.len().min(MAX_ENDPOINTS)];
        Self {
            own: policies.iter().map(|&policy| OwnPath::new(policy, None, now)).collect(),
            configured: policies.len(),
            theirs: Vec::new(),
            challenges: Vec::new(),
            their_active: None,
            active: None,
            following: false,
            better: None,
            answers: None,
            session: false,
            data: 0,
            carried: None,
            next_look: None,
            next_handshake: now,
            changed: true,
            discovery: None,
        }
    }

    /// As [`new`](Self::new), and both ends look for direct ways. Those are used like further endpoints without a
    /// weight. A single configured endpoint then counts as one of several.
    pub fn look_for_direct_ways(policies: &[PathPolicy], now: Instant) -> Self {
        Self { discovery: Some(Box::default()), ..Self::with_all(policies, now) }
    }

    /// Takes the endpoints of another configuration, and whether direct ways are looked for. For each endpoint,
    /// `endpoints` has its policy and its position in the old configuration; the state of that old endpoint is kept.
    /// The direct ways that were found are kept too, as long as they are looked for, and so are the paths that the peer
    /// has shown us.
    pub fn configure(&mut self, endpoints: &[(PathPolicy, Option<usize>)], direct: bool, now: Instant) {
        let policies: Vec<_> = endpoints.iter().map(|(policy, _)| *policy).collect();
        let new = if direct { Self::look_for_direct_ways(&policies, now) } else { Self::new(&policies, now) };
        let mut before = core::mem::replace(self, new);
        (self.theirs, self.challenges) = (core::mem::take(&mut before.theirs), core::mem::take(&mut before.challenges));
        (self.their_active, self.data, self.session) = (before.their_active, before.data, before.session);
        let looked = before.discovery.is_some();
        if self.several() {
            self.keep(before, endpoints);
        }
        if let (false, true, Some(discovery)) = (looked, self.session, &mut self.discovery) {
            discovery.established(now);
        }
        self.wake(now);
    }

    /// Takes over what is still true of the paths of the old configuration.
    fn keep(&mut self, before: Self, endpoints: &[(PathPolicy, Option<usize>)]) {
        let looked = before.discovery.is_some();
        let mut known: Vec<_> = before.own.into_iter().map(Some).collect();
        let mut active = None;
        let mut kept = false;
        for (own, (path, (policy, was))) in self.own.iter_mut().zip(endpoints.iter().enumerate()) {
            let was = was.filter(|&was| was < before.configured);
            if let Some(known) = was.and_then(|was| known[was].take()) {
                *own = OwnPath { policy: *policy, ..known };
                kept = true;
                if before.active == was {
                    active = Some(path);
                }
            }
        }
        let looks = looked && self.discovery.is_some();
        if !kept && !looks {
            // All endpoints are others: a locator where the peer was heard before no longer counts.
            return;
        }
        // Behind the configured paths are the locator where the peer was heard, and the direct ways that were found.
        let more = if looks { usize::MAX } else { 1 };
        self.own.extend(known.into_iter().skip(before.configured).flatten().take(more));
        let behind = before.active.and_then(|active| active.checked_sub(before.configured));
        let active = active.or(behind.map(|behind| self.configured + behind));
        self.active = active.filter(|&active| !before.following && active < self.own.len());
        self.answers = before.answers;
        if looks {
            self.discovery = before.discovery;
        }
    }

    /// A configured endpoint is at this address (found by name, or again).
    pub fn put(&mut self, path: usize, locator: Locator, now: Instant) {
        let Some(own) = self.own[..self.configured].get_mut(path).filter(|own| own.locator != Some(locator)) else {
            return;
        };
        let (elsewhere, state) = (own.elsewhere, own.state);
        *own = OwnPath { elsewhere, ..OwnPath::new(own.policy, Some(locator), now) };
        if state == State::Down {
            // Nothing has shown yet that the new address works, and a second report that the path is down would be
            // useless.
            own.state = State::Down;
        }
        self.changed = true;
    }

    /// These relays were removed: they are no longer peers.
    pub fn lose_relays(&mut self, gone: impl Fn(PeerId) -> bool, now: Instant) {
        let gone = |locator: Locator| locator.relay().is_some_and(&gone);
        for own in self.own.iter_mut().filter(|own| own.locator.is_some_and(gone)) {
            *own = OwnPath::new(own.policy, None, now);
            self.changed = true;
        }
        for theirs in &mut self.theirs {
            self.changed |= theirs.take_if(|theirs| gone(theirs.locator)).is_some();
        }
        for challenge in &mut self.challenges {
            challenge.take_if(|challenge| gone(challenge.locator));
        }
        if self.active_locator().is_none() {
            self.active = None;
        }
    }

    /// An authenticated packet came from the peer, from a locator that is not known; or from any locator, if the peer
    /// answers no probes.
    pub fn heard(&mut self, from: Locator, now: Instant) {
        if self.pinned().is_some() {
            return;
        }
        let direct = self.is_direct();
        if let (true, Some(discovery)) = (self.certain(), &mut self.discovery) {
            // As long as another locator works, a new one is tried before anything is sent to it. An unknown relay is
            // not even tried.
            if let Locator::Address(address) = from
                && !from.is_indirect()
                && !self.own.iter().any(|own| own.locator.is_some_and(|locator| locator.covers(&from)))
            {
                discovery.heard(address.remote, direct, now);
            }
            return;
        }
        self.changed = true;
        if let Some(path) = self.own.iter().position(|own| own.locator.is_some_and(|locator| locator.covers(&from))) {
            if !self.following && self.active.is_none_or(|active| self.own[active].state != State::Up) {
                self.active = Some(path);
            }
            return;
        }
        if self.following
            && let Some(theirs) = self.active.and_then(|path| self.theirs[path].as_mut())
        {
            // The peer will say which path that is. Until then, it is taken for the path that carried everything so
            // far.
            theirs.locator = from;
            return;
        }
        if let (Some(path), Locator::Address(_)) = (self.moving(), from) {
            self.own[path] = OwnPath::new(self.own[path].policy, Some(from), now);
            self.active = Some(path);
        } else if self.configured > 0 || self.several() {
            let heard = OwnPath::new(PathPolicy::Best, Some(from), now);
            match self.own.get_mut(self.configured) {
                Some(own) => *own = heard,
                None => self.own.push(heard),
            }
            self.active = Some(self.configured);
        }
    }

    /// There is a new session: the peer may be another program now.
    pub fn established(&mut self, now: Instant) {
        // If no path is known to work, there is nothing to keep. Otherwise a stock program that replaced a RustGuard
        // would be probed by all paths forever, and each probe would make it move our endpoint.
        if self.answers.is_some() && !self.own.iter().any(|own| own.state == State::Up) {
            self.answers = None;
            self.changed = true;
            if let Some(discovery) = &mut self.discovery {
                discovery.knows_version_2 = false;
            }
            for own in &mut self.own {
                (own.state, own.unanswered) = (State::Unknown, 0);
            }
        }
        for theirs in self.theirs.iter_mut().flatten() {
            // The peer's machine may have restarted, which also resets its clock.
            theirs.clock = 0;
        }
        self.session = true;
        if let Some(discovery) = &mut self.discovery {
            discovery.established(now);
        }
        self.ask_all(now);
    }

    /// The session is over, and no other one exists.
    pub fn ended(&mut self) {
        self.session = false;
    }

    /// Whether new paths to the configured endpoints would do as well, because nothing else is known: there is no
    /// session, no search for a direct way, and the peer is at no other locator.
    pub fn rests(&self) -> bool {
        if self.discovery.is_none() {
            return false;
        }
        let shown = self.theirs.iter().any(Option::is_some) || self.challenges.iter().any(Option::is_some);
        !self.session && self.sleeps() && !shown && self.own.len() == self.configured && self.deadline().is_none()
    }

    /// When something has to happen next.
    pub fn deadline(&self) -> Option<Instant> {
        let probes = (0..self.own.len()).filter(|&path| self.asks(path)).map(|path| self.own[path].due).min();
        let theirs = self.theirs.iter().flatten().map(|theirs| theirs.expires).min();
        let challenges = self.challenges.iter().flatten().map(|challenge| challenge.expires).min();
        [probes, self.next_look, theirs, challenges, self.discovery_deadline()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn tick(&mut self, seen: Observation, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        self.session = seen.session;
        self.look(seen, now, out);
        for path in 0..self.own.len() {
            // The result of one path may mean that the others are no longer probed.
            if self.asks(path) && self.own[path].due <= now {
                self.due(path, search, now, out);
            }
        }
        self.discover(search, now, out);
        for theirs in &mut self.theirs {
            if theirs.is_some_and(|theirs| theirs.expires <= now) {
                *theirs = None;
                self.changed = true;
            }
        }
        for challenge in &mut self.challenges {
            *challenge = challenge.filter(|challenge| challenge.expires > now);
        }
        self.choose(now);
    }

    /// The new instructions for the workers, if they have changed since the last call.
    pub fn changes(&mut self, now: Instant) -> Option<Choice> {
        self.choose(now);
        core::mem::take(&mut self.changed).then(|| self.choice())
    }

    /// All locators where the peer may be, the active one first: an initiation goes to all of them while it is not
    /// known which one answers.
    pub fn locators(&self) -> Vec<Locator> {
        self.locators_of(|_| true)
    }

    /// The destinations of the first initiation of an attempt: as [`locators`](Self::locators), without the fallbacks,
    /// unless there is nothing else.
    pub fn first_locators(&self) -> Vec<Locator> {
        let others = self.locators_of(|own| !own.is_fallback());
        if others.is_empty() { self.locators() } else { others }
    }

    fn locators_of(&self, wanted: impl Fn(&OwnPath) -> bool) -> Vec<Locator> {
        let mut locators = Vec::new();
        if let Some(path) = self.pinned() {
            return self.own[path].locator.into_iter().collect();
        }
        let own = self.own.iter().filter(|own| wanted(own)).filter_map(|own| own.locator);
        for locator in self.active_locator().into_iter().chain(own) {
            if !locators.contains(&locator) {
                locators.push(locator);
            }
        }
        locators
    }

    /// The active path is known to work: an initiation need not go to other locators.
    pub fn certain(&self) -> bool {
        match self.active {
            Some(path) if self.following => self.theirs[path].is_some_and(|theirs| theirs.usable),
            Some(path) => self.own[path].state == State::Up,
            None => false,
        }
    }

    /// Whether this configured path works. If so, its name need not be resolved again.
    pub fn works(&self, path: usize) -> bool {
        self.own.get(path).is_some_and(|own| own.state == State::Up)
    }

    /// There are no configured paths, and the peer has shown none and is not about to.
    pub fn is_plain(&self) -> bool {
        let shown = self.theirs.iter().any(Option::is_some) || self.challenges.iter().any(Option::is_some);
        !self.several() && self.pinned().is_none() && !shown
    }

    /// There is something to choose from: a single configured endpoint is used as in WireGuard. A fallback is an
    /// alternative to the locator where the peer is heard.
    pub fn several(&self) -> bool {
        self.configured > 1 || self.discovery.is_some() || self.falls_back()
    }

    fn falls_back(&self) -> bool {
        self.own.iter().take(self.configured).any(OwnPath::is_fallback)
    }

    /// The configured paths that are no fallbacks.
    fn endpoints(&self) -> impl Iterator<Item = usize> {
        (0..self.configured).filter(|&path| !self.own[path].is_fallback())
    }

    /// The only endpoint beside fallbacks: it moves with the peer.
    fn moving(&self) -> Option<usize> {
        self.endpoints().next().filter(|_| self.falls_back() && self.endpoints().nth(1).is_none())
    }

    fn pinned(&self) -> Option<usize> {
        self.own.iter().position(|own| own.policy == PathPolicy::Pinned)
    }
}

#[cfg(test)]
mod tests;
