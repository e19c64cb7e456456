//! Several paths to one peer: which of them work, which is the best, and which flow goes by which.
//!
//! Between two RustGuards, whoever has several endpoints of the other configured probes them ([`Probe`]); the other end
//! answers, and follows: it learns from the requests where it may send to, and what share each path is to have. So one
//! configuration does for both directions. A stock peer answers no probes. Its endpoints are tried by handshakes: one
//! initiation goes to all places at once, the first answer wins (the copies are replays to the peer), and what was sent
//! without an answer for a second is worth a handshake.
//!
//! [`Paths`] decides, without I/O: places and probes come in with the time; probes, a choice and the next deadline come out.
//! [`Flows`] is the workers' part.
mod choice;
mod flows;
mod path;
mod probe;

use crate::time::Instant;
use alloc::vec::Vec;
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
pub use flows::{Flows, REST, Share};
use path::{Challenge, Own, RoundTrip, Theirs};
pub use probe::{MAX_PATHS, PROBE_LEN, Probe, Reply, Request, is_probe};

/// Most endpoints that can be configured for a peer: the last number is for where it roams to.
pub const MAX_ENDPOINTS: usize = MAX_PATHS - 1;
/// Between two requests by a path that carries traffic.
const CARRYING: Duration = Duration::from_millis(200);
/// By one that is in reserve while others carry.
const RESERVE: Duration = Duration::from_secs(1);
/// By any path when there was no traffic for [`RECENT`]. A look at the counters follows more often.
const RESTING: Duration = Duration::from_secs(5);
/// By any path when there was none for [`BUSY`]: as often as keeps the state of NATs, WireGuard's usual persistent keepalive.
const IDLE: Duration = Duration::from_secs(25);
/// Traffic this recent is going on.
const RECENT: Duration = Duration::from_secs(2);
/// After so long without, nothing is looked at until somebody says that there is traffic: longer than any of the timers that
/// [`Activity`](crate::activity::Activity) waits for, whose end it needs to be able to say so.
const BUSY: Duration = Duration::from_secs(30);
/// How often the counters are looked at, while traffic goes on or may begin.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes between two looks that are traffic: a keepalive is less.
const TRAFFIC: u64 = 100;
/// An answer that is late by the round trips so far is missed after these at the least and at the most.
const PATIENCE: [Duration; 2] = [Duration::from_millis(80), Duration::from_secs(1)];
/// The patience with a path whose round trip is unknown.
const FIRST_PATIENCE: Duration = Duration::from_millis(300);
/// So many missed answers in a row make a path unusable. With 2 % lost both ways taken together this happens by chance once in
/// seven hours of traffic, and costs nothing where another path works.
const MISSED: u32 = 3;
/// So many answers in a row make it usable again, twice as many each time it failed within [`REMEMBERED`].
const ANSWERS: u32 = 3;
/// Failures this recent make a path doubtful.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The least time between two handshakes that only look for a path that works (Rekey-Timeout).
const BETWEEN_HANDSHAKES: Duration = Duration::from_secs(5);
/// Data without an answer for so long is worth one.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Another path has to be better for so long before it is taken.
const STEADY: Duration = Duration::from_secs(3);
/// What a path must be better by: a fifth of the round trip, and this.
const MARGIN: Duration = Duration::from_millis(2);
/// How often another address is looked for while a path does not work.
const ELSEWHERE: Duration = Duration::from_secs(30);
/// A request promises the next one; after so many times the promised interval the path is no more.
const PROMISES: u32 = 3;

/// Where a peer can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The peer's address.
    pub remote: SocketAddr,
    /// Ours, where it matters.
    pub local: Option<IpAddr>,
    /// The interface by which datagrams must leave; 0: as the kernel's routes say.
    pub interface: u32,
}

impl Place {
    /// Whether what came from `from` (an address, ours that it was sent to, the interface it came in by) came from here.
    pub fn covers(&self, from: &Self) -> bool {
        self.remote == from.remote
            && self.local.is_none_or(|local| from.local.is_none_or(|from| from == local))
            && (self.interface == 0 || from.interface == 0 || self.interface == from.interface)
    }
}

/// What an endpoint is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The best of those that work carries everything, the others are in reserve.
    #[default]
    Best,
    /// Flows are spread over all of these that work, by weight (1 to 255); those without a weight are in reserve.
    Weighted(u8),
    /// Everything goes here, whether or not it works, and wherever the peer is heard from.
    Pinned,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Seal this and send it there.
    Probe {
        /// Where to.
        to: Place,
        /// What.
        probe: Probe,
    },
    /// Begin a handshake, by every place ([`Paths::places`]).
    Handshake,
    /// A configured path works, or has ceased to: news for people.
    State {
        /// Its position in the configuration.
        path: usize,
        /// It works.
        up: bool,
    },
    /// A configured path does not work. Perhaps its name has another address; asked for again every 30 s.
    Elsewhere {
        /// Its position in the configuration.
        path: usize,
    },
}

/// What the device sees of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// There is a session to send in.
    pub session: bool,
    /// Bytes so far, both ways; those of probes and of a routing engine's packets left out.
    pub data: u64,
    /// Since when data that was sent has no answer.
    pub unanswered: Option<Instant>,
}

/// What the workers need to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Where everything goes that is not spread; `None`: wherever the peer was last heard from.
    pub active: Option<Place>,
    /// Where it may be heard from without having moved.
    pub known: Vec<Place>,
    /// Being heard from elsewhere does not move it.
    pub pinned: bool,
    /// The paths that flows are spread over, at least two, or none.
    pub spread: Vec<(Share, Place)>,
}

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not probed, or no answer yet.
    Unknown,
    /// It works both ways.
    Up,
    /// It does not.
    Down,
}

/// A path, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Its position in the configuration; `None` for one that the peer has shown us.
    pub configured: Option<usize>,
    /// Where it leads.
    pub place: Option<Place>,
    /// How it is.
    pub state: State,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// It carries what is not spread.
    pub active: bool,
    /// Its share of the flows, while it has one.
    pub weight: Option<u8>,
}

/// The paths to one peer.
#[derive(Debug)]
pub struct Paths {
    /// The configured ones, and behind them, where there is one, the place where the peer was heard.
    own: Vec<Own>,
    configured: usize,
    /// What the peer has shown us, by its numbers.
    theirs: [Option<Theirs>; MAX_PATHS],
    /// By the same numbers, what is still to be shown to be the peer's place.
    challenges: [Option<Challenge>; MAX_PATHS],
    /// The peer's own word on which of these is the active one.
    their_active: Option<u8>,
    /// The position in `own`, or in `theirs` where we follow.
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
    /// The next look at the counters; `None`: when somebody says that there may be traffic.
    next_look: Option<Instant>,
    next_handshake: Instant,
    changed: bool,
}

impl Paths {
    /// Paths for these uses, at most [`MAX_ENDPOINTS`]; further ones are left out. None, for a peer that has shown us some.
    pub fn new(policies: &[PathPolicy], now: Instant) -> Self {
        let policies = match policies {
            // As in WireGuard: there is nothing to choose.
            [PathPolicy::Best | PathPolicy::Weighted(_)] => &[],
            _ => &policies[..policies.len().min(MAX_ENDPOINTS)],
        };
        Self {
            own: policies.iter().map(|&policy| Own::new(policy, None, now)).collect(),
            configured: policies.len(),
            theirs: [None; MAX_PATHS],
            challenges: [None; MAX_PATHS],
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
        }
    }

    /// Takes the endpoints of another configuration; what the peer has shown us stays.
    pub fn configure(&mut self, policies: &[PathPolicy], now: Instant) {
        let Self { theirs, challenges, their_active, data, session, .. } = *self;
        *self = Self { theirs, challenges, their_active, data, session, ..Self::new(policies, now) };
        self.wake(now);
    }

    /// A configured endpoint is at this address (found by name, or again).
    pub fn put(&mut self, path: usize, place: Place, now: Instant) {
        let Some(own) = self.own[..self.configured].get_mut(path).filter(|own| own.place != Some(place)) else {
            return;
        };
        let (elsewhere, state) = (own.elsewhere, own.state);
        *own = Own { elsewhere, ..Own::new(own.policy, Some(place), now) };
        if state == State::Down {
            // It is still to be shown that anything works there; and nobody needs to hear again that it does not.
            own.state = State::Down;
        }
        self.changed = true;
    }

    /// The peer was heard, by an authenticated packet, from a place that is not known; or from any, if it answers no probes.
    pub fn heard(&mut self, from: Place, now: Instant) {
        if self.pinned().is_some() {
            return;
        }
        self.changed = true;
        if let Some(path) = self.own.iter().position(|own| own.place.is_some_and(|place| place.covers(&from))) {
            if !self.following && self.active.is_none_or(|active| self.own[active].state != State::Up) {
                self.active = Some(path);
            }
            return;
        }
        if self.following
            && let Some(theirs) = self.active.and_then(|path| self.theirs[path].as_mut())
        {
            // Theirs to say, which path that is: until then, the one that everything came by.
            theirs.place = from;
            return;
        }
        if self.configured > 0 {
            self.own.truncate(self.configured);
            self.own.push(Own::new(PathPolicy::Best, Some(from), now));
            self.active = Some(self.configured);
        }
    }

    /// There is a new session: the peer may be another program now.
    pub fn established(&mut self, now: Instant) {
        // Where no path is known to work there is nothing to be kept: a stock program in the place of one that answered would
        // otherwise be probed by all paths for ever, and sent to and fro.
        if self.answers.is_some() && !self.own.iter().any(|own| own.state == State::Up) {
            self.answers = None;
            self.changed = true;
            for own in &mut self.own {
                (own.state, own.unanswered) = (State::Unknown, 0);
            }
        }
        for theirs in self.theirs.iter_mut().flatten() {
            // And its machine may have been started anew.
            theirs.clock = 0;
        }
        self.session = true;
        self.ask_all(now);
    }

    /// There may be traffic again: the counters are worth a look.
    pub fn wake(&mut self, now: Instant) {
        if self.several() && self.next_look.is_none() {
            self.next_look = Some(now);
        }
    }

    /// There is traffic.
    fn traffic(&mut self, now: Instant) {
        let quiet = self.carried.is_none_or(|at| now.since(at) >= RECENT);
        self.carried = Some(now);
        if quiet {
            self.ask_all(now);
        }
    }

    /// Asks by all paths at once, but for those that are about to answer, or have missed to.
    fn ask_all(&mut self, now: Instant) {
        for own in self.own.iter_mut().filter(|own| own.unanswered == 0) {
            own.due = now;
        }
    }

    /// A request of the peer's, which came from there. It is answered in any case. `random` is a fresh random number, with which
    /// a new place is put to the test.
    pub fn request(&mut self, from: Place, request: &Request, random: u32, now: Instant, out: &mut Vec<Order>) {
        let nonce = self.learn(from, request, random, now);
        let to = self.sticky(request.path.into()).filter(|place| place.covers(&from)).unwrap_or(from);
        out.push(Order::Probe { to, probe: Probe::Reply(request.reply(nonce)) });
    }

    /// Returns the nonce for the answer.
    fn learn(&mut self, from: Place, request: &Request, random: u32, now: Instant) -> u32 {
        let path = usize::from(request.path);
        let (Some(slot), Some(challenge)) = (self.theirs.get_mut(path), self.challenges.get_mut(path)) else {
            return 0;
        };
        let asked = challenge.filter(|asked| asked.place == from);
        if slot.is_some_and(|known| known.clock > request.clock) {
            return slot
                .filter(|known| known.place == from)
                .map(|known| known.nonce)
                .or(asked.map(|asked| asked.nonce))
                .unwrap_or(0);
        }
        let interval = request.interval.clamp(CARRYING, 2 * IDLE);
        // And what its way may vary by.
        let expires = now + PROMISES * interval + PATIENCE[0];
        let proven = match (*slot, asked, request.nonce) {
            (Some(known), ..) if known.place == from => Some(known.nonce),
            (_, Some(asked), Some(returned)) if asked.nonce == returned => Some(returned),
            (.., None) => Some(0),
            _ => None,
        };
        let nonce = match (proven, asked) {
            (Some(nonce), _) => {
                *slot = Some(Theirs { place: from, usable: false, weight: 0, expires, clock: request.clock, nonce });
                *challenge = None;
                nonce
            }
            (None, asked) => {
                // What is said is the peer's word, wherever it comes from; where it comes from is not.
                if let Some(known) = slot {
                    known.clock = request.clock;
                }
                let nonce = asked.map_or(random.max(1), |asked| asked.nonce);
                *challenge = Some(Challenge { place: from, nonce, expires });
                nonce
            }
        };
        // What it says of its other paths is news as well, and comes by a path that works.
        for (n, other) in self.theirs.iter_mut().enumerate() {
            if let Some(other) = other {
                (other.usable, other.weight) = (request.usable >> n & 1 != 0, request.weights[n]);
            }
        }
        self.their_active = request.active;
        self.changed = true;
        nonce
    }

    /// An answer of the peer's.
    pub fn reply(&mut self, reply: &Reply, now: Instant, out: &mut Vec<Order>) {
        let took = now.since(Instant::from_nanos(reply.clock));
        let path = usize::from(reply.path);
        let asked = |own: &&mut Own| own.unanswered > 0 && Instant::from_nanos(reply.clock) <= own.asked;
        let Some(own) = self.own.get_mut(path).filter(asked) else { return };
        own.round_trip = Some(RoundTrip::update(own.round_trip, took));
        own.unanswered = 0;
        own.answered += 1;
        if reply.nonce != 0 && reply.nonce != own.nonce {
            (own.nonce, own.returned) = (reply.nonce, false);
        }
        if self.answers.replace(true) != Some(true) {
            self.changed = true;
            self.ask_all(now);
        }
        let own = &mut self.own[path];
        if own.state == State::Unknown || own.state == State::Down && own.answered >= own.answers_wanted() {
            own.state = State::Up;
            self.changed = true;
            if path < self.configured {
                out.push(Order::State { path, up: true });
            }
            // The peer hears at once what may be used.
            self.ask_all(now);
        }
        self.schedule(path, now);
    }

    /// The next moment for something to happen.
    pub fn deadline(&self) -> Option<Instant> {
        let probes = (0..self.own.len()).filter(|&path| self.asks(path)).map(|path| self.own[path].due).min();
        let theirs = self.theirs.iter().flatten().map(|theirs| theirs.expires).min();
        let challenges = self.challenges.iter().flatten().map(|challenge| challenge.expires).min();
        [probes, self.next_look, theirs, challenges].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn tick(&mut self, seen: Seen, now: Instant, out: &mut Vec<Order>) {
        self.session = seen.session;
        self.look(seen, now, out);
        for path in 0..self.own.len() {
            // By what one path has shown, the others may be asked no more.
            if self.asks(path) && self.own[path].due <= now {
                self.due(path, now, out);
            }
        }
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

    /// What the workers are to do, if that has changed since it was last asked.
    pub fn changes(&mut self, now: Instant) -> Option<Choice> {
        self.choose(now);
        core::mem::take(&mut self.changed).then(|| self.choice())
    }

    /// Everywhere the peer may be, the active place first: where an initiation goes when it is not known who will answer.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        if let Some(path) = self.pinned() {
            return self.own[path].place.into_iter().collect();
        }
        let own = self.own.iter().filter_map(|own| own.place);
        for place in self.active_place().into_iter().chain(own) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// The active path is known to work: an initiation need not go anywhere else.
    pub fn certain(&self) -> bool {
        match self.active {
            Some(path) if self.following => self.theirs[path].is_some_and(|theirs| theirs.usable),
            Some(path) => self.own[path].state == State::Up,
            None => false,
        }
    }

    /// Whether this configured path works: it needs no other address.
    pub fn works(&self, path: usize) -> bool {
        self.own.get(path).is_some_and(|own| own.state == State::Up)
    }

    /// Neither configured paths nor any that the peer has shown us, or is about to.
    pub fn is_plain(&self) -> bool {
        let shown = self.theirs.iter().any(Option::is_some) || self.challenges.iter().any(Option::is_some);
        !self.several() && self.pinned().is_none() && !shown
    }

    /// Looks at what was carried.
    fn look(&mut self, seen: Seen, now: Instant, out: &mut Vec<Order>) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        if seen.data.saturating_sub(self.data) >= TRAFFIC {
            self.traffic(now);
        }
        self.data = seen.data;
        self.next_look = match self.since_traffic(now) {
            Some(since) if since < RECENT => Some(now + LOOK),
            Some(since) if since < BUSY => Some(now + 2 * LOOK),
            _ => {
                self.carried = None;
                None
            }
        };
        let waited = seen.unanswered.is_some_and(|since| now.since(since) >= UNANSWERED);
        if waited && !self.certain() && now >= self.next_handshake {
            self.next_handshake = now + BETWEEN_HANDSHAKES;
            out.push(Order::Handshake);
        }
    }

    /// A request by this path is due, or its answer is missed.
    fn due(&mut self, path: usize, now: Instant, out: &mut Vec<Order>) {
        let own = &mut self.own[path];
        if own.unanswered >= MISSED {
            own.answered = 0;
            if own.state == State::Up {
                own.state = State::Down;
                let lately = own.failed.is_some_and(|at| now.since(at) < REMEMBERED);
                own.failures = if lately { own.failures + 1 } else { 1 };
                own.failed = Some(now);
                self.changed = true;
                if path < self.configured {
                    out.push(Order::State { path, up: false });
                }
                // The choice falls first, so that the requests tell it.
                self.choose(now);
                self.ask_all(now);
            } else if self.answers.is_none() {
                // Not one answer, though there is a session: it does not know probes.
                self.answers = Some(false);
                self.changed = true;
                return;
            } else if own.state == State::Unknown && self.answers == Some(true) {
                own.state = State::Down;
                if path < self.configured {
                    out.push(Order::State { path, up: false });
                }
            }
        }
        let own = &mut self.own[path];
        if own.state == State::Down && own.unanswered >= MISSED && own.elsewhere <= now && path < self.configured {
            own.elsewhere = now + ELSEWHERE;
            out.push(Order::Elsewhere { path });
        }
        let interval = self.interval(path, now);
        let request = Request {
            path: path as u8,
            active: self.active.filter(|_| !self.following).map(|path| path as u8),
            usable: self.bits(|own| own.state == State::Up),
            weights: core::array::from_fn(|path| self.own.get(path).and_then(Own::weight).unwrap_or(0)),
            interval,
            clock: now.as_nanos(),
            nonce: Some(self.own[path].nonce),
        };
        let own = &mut self.own[path];
        own.asked = now;
        own.returned = true;
        own.unanswered += 1;
        // Below the limit, the moment when the answer is missed; beyond it there is no hurry.
        own.due = now + if own.unanswered > MISSED { interval } else { own.patience() };
        let Some(to) = own.place else { return };
        out.push(Order::Probe { to, probe: Probe::Request(request) });
    }

    /// After an answer: when to ask again.
    fn schedule(&mut self, path: usize, now: Instant) {
        let interval = self.interval(path, now);
        let own = &mut self.own[path];
        // While it is being tested whether it works again, quickly; and while the peer waits for a nonce.
        let hurry = own.state == State::Down || !own.returned;
        let interval = if hurry { interval.min(CARRYING) } else { interval };
        own.due = now.max(own.asked + interval);
    }

    /// Between two requests by this path.
    fn interval(&self, path: usize, now: Instant) -> Duration {
        match self.since_traffic(now) {
            Some(since) if since < RECENT => {
                let own = &self.own[path];
                let carries = self.active == Some(path) || own.weight().is_some();
                if carries && own.state != State::Down { CARRYING } else { RESERVE }
            }
            Some(since) if since < BUSY => RESTING,
            _ => IDLE,
        }
    }

    fn since_traffic(&self, now: Instant) -> Option<Duration> {
        self.carried.map(|at| now.since(at))
    }

    fn bits(&self, of: impl Fn(&Own) -> bool) -> u8 {
        self.own.iter().enumerate().fold(0, |bits, (path, own)| bits | u8::from(of(own)) << path)
    }

    /// There is something to choose from: an endpoint configured alone is as in WireGuard.
    fn several(&self) -> bool {
        self.configured > 1
    }

    /// Whether this path is probed. Until the peer has answered once, only the active one is: a stock peer takes every
    /// authentic packet for the place to answer to, and would be sent to and fro.
    fn asks(&self, path: usize) -> bool {
        let known = match self.answers {
            Some(answers) => answers,
            None => self.active.is_none_or(|active| active == path),
        };
        known && self.several() && self.session && self.own[path].place.is_some()
    }

    fn pinned(&self) -> Option<usize> {
        self.own.iter().position(|own| own.policy == PathPolicy::Pinned)
    }
}

#[cfg(test)]
mod tests;
