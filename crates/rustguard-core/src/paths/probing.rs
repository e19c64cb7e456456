//! Our own requests: when one is due by which path, and what an answer or silence means.
use super::{
    NO_PATH, Observation, Order, Paths, Probe, Reply, Request, Search, State, Version,
    path::{OwnPath, RoundTrip},
    timing::{
        ASKED_ON, BETWEEN_HANDSHAKES, BUSY, CARRYING, ELSEWHERE, IDLE, LOOK, LOST, MISSED, PART_OF_FAILURE, RECENT,
        REMEMBERED, REROUTING, RESERVE, RESTED, RESTING, TOO_LATE, TRAFFIC, UNANSWERED,
    },
};
use crate::time::Instant;
use alloc::vec::Vec;
use core::time::Duration;

impl Paths {
    /// There may be traffic again: the counters have to be read.
    pub fn wake(&mut self, now: Instant) {
        if self.several() && self.next_look.is_none() {
            self.next_look = Some(now);
        }
    }

    /// Somebody waits for an answer by the way in use: that is traffic, however few bytes it has.
    pub fn asked(&mut self, now: Instant) {
        if self.several() {
            self.traffic(now);
            self.wake(now);
        }
    }

    /// There is traffic.
    fn traffic(&mut self, now: Instant) {
        let quiet = self.carried.is_none_or(|at| now.since(at) >= RECENT);
        self.carried = Some(now);
        let direct = self.is_direct();
        if let Some(discovery) = &mut self.discovery {
            discovery.traffic(direct, now);
        }
        if quiet {
            self.ask_all(now);
        }
    }

    /// Sends requests by all paths at once, except by paths that are about to answer.
    pub(super) fn ask_all(&mut self, now: Instant) {
        for path in 0..self.own.len() {
            if self.rests_until(path, now).is_some() {
                continue;
            }
            let own = &mut self.own[path];
            if own.unanswered == 0 {
                own.due = now;
            }
            own.hurry(now);
        }
    }

    /// The peer has answered.
    pub fn reply(&mut self, reply: &Reply, search: &Search, now: Instant, out: &mut Vec<Order>) {
        if reply.path == NO_PATH {
            return self.candidate_answered(reply, search, now);
        }
        let took = now.since(Instant::from_nanos(reply.clock));
        if took > TOO_LATE {
            return;
        }
        let path = usize::from(reply.path);
        let Some(locator) = self.own.get(path).and_then(|own| own.locator) else { return };
        let proven = reply.version == Version::V2 && reply.token == search.token(locator, reply.clock);
        // A peer chose this locator itself: its claim that the locator works is not enough.
        if !proven && (reply.version == Version::V2 || self.is_found(path)) {
            return;
        }
        let asked = |own: &&mut OwnPath| own.unanswered > 0 && Instant::from_nanos(reply.clock) <= own.asked;
        let Some(own) = self.own.get_mut(path).filter(asked) else { return };
        own.round_trip = Some(RoundTrip::update(own.round_trip, took));
        own.unanswered = 0;
        own.answered += 1;
        if reply.nonce != 0 && reply.nonce != own.nonce {
            (own.nonce, own.returned) = (reply.nonce, false);
        }
        if let (Some(discovery), Version::V2) = (&mut self.discovery, reply.newest) {
            discovery.knows_version_2 = true;
        }
        if self.answers.replace(true) != Some(true) {
            self.changed = true;
            self.ask_all(now);
        }
        let own = &mut self.own[path];
        if own.state == State::Unknown || own.state == State::Down && own.answered >= own.answers_wanted() {
            let back = own.state == State::Down && own.is_indirect();
            own.state = State::Up;
            self.changed = true;
            if path < self.configured {
                out.push(Order::State { path, up: true });
            }
            if let (true, false, Some(discovery)) = (back, self.is_direct(), &mut self.discovery) {
                discovery.relay_is_back(now);
            }
            // The next requests tell the peer at once which paths may be used.
            self.ask_all(now);
        }
        self.schedule(path, now);
    }

    /// Reads the counters of traffic.
    pub(super) fn look(&mut self, seen: Observation, now: Instant, out: &mut Vec<Order>) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        let carried = seen.data.saturating_sub(self.data);
        if carried >= TRAFFIC {
            self.traffic(now);
        }
        self.data = seen.data;
        self.next_look = match self.since_traffic(now) {
            Some(since) if since < RECENT => Some(now + LOOK),
            Some(since) if since < BUSY => Some(now + 2 * LOOK),
            // Traffic has begun. Nothing else would report it until a timer expires.
            None if carried > 0 => Some(now + LOOK),
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
    pub(super) fn due(&mut self, path: usize, search: &Search, now: Instant, out: &mut Vec<Order>) {
        let may_be_stock = self.answers.is_none() && !self.falls_back();
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
                if let Some(discovery) = &mut self.discovery {
                    discovery.lost(now);
                }
                // The choice is made first, so that the requests tell it.
                self.choose(now);
                self.ask_all(now);
            } else if may_be_stock {
                // There was no answer at all, though there is a session: the peer does not know probes.
                self.answers = Some(false);
                self.changed = true;
                return;
            } else if own.state == State::Unknown && self.answers != Some(false) {
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
        let version = self.version(path);
        let Some(to) = self.own[path].locator else { return };
        let request = Request {
            version,
            path: path as u8,
            active: self.active.filter(|_| !self.following).map(|path| path as u8),
            usable: self.bits(|own| own.state == State::Up),
            weights: core::array::from_fn(|path| self.own.get(path).and_then(OwnPath::weight).unwrap_or(0)),
            interval,
            clock: now.as_nanos(),
            nonce: Some(self.own[path].nonce),
            token: if version == Version::V2 { search.token(to, now.as_nanos()) } else { 0 },
        };
        let own = &mut self.own[path];
        own.asked = now;
        own.returned = true;
        own.unanswered += 1;
        // Up to the limit, this is the moment when the answer counts as missed; beyond the limit there is no hurry.
        own.due = now + if own.unanswered > MISSED { interval } else { own.patience() };
        out.push(Order::Probe { to, probe: Probe::Request(request) });
    }

    /// The version of a request by this path. A peer that does not know version 2 has no paths that were found.
    fn version(&self, path: usize) -> Version {
        let known = self.discovery.as_ref().is_some_and(|discovery| discovery.knows_version_2);
        if known || self.is_found(path) { Version::V2 } else { Version::V1 }
    }

    /// After an answer: when to ask again.
    fn schedule(&mut self, path: usize, now: Instant) {
        let interval = self.interval(path, now);
        let own = &mut self.own[path];
        // Ask quickly while a failed path is being tested, and while the peer waits for a nonce.
        let hurry = own.state == State::Down || !own.returned;
        let interval = if hurry { interval.min(CARRYING) } else { interval };
        own.due = now.max(own.asked + interval);
    }

    /// The time between two requests by this path.
    fn interval(&self, path: usize, now: Instant) -> Duration {
        let own = &self.own[path];
        let up = self.own.iter().any(|own| own.state == State::Up);
        let usual = match self.since_traffic(now) {
            Some(since) if since < RECENT => {
                let carries = self.active == Some(path) || own.weight().is_some();
                if carries && own.state != State::Down { CARRYING } else { RESERVE }
            }
            Some(since) if since < BUSY => RESTING,
            _ => IDLE,
        };
        let Some(failed) = own.failed.filter(|_| own.state == State::Down) else { return usual };
        // The longer it has failed, the less often it is asked; but often enough to keep a NAT open, since a request
        // passes the other end's NAT only after a request from there.
        let since = now.since(failed);
        let again = (since / PART_OF_FAILURE).clamp(RESERVE, IDLE);
        match up {
            true if self.is_found(path) => {
                self.rests_until(path, now).map_or_else(|| usual.max(again), |until| until.since(now))
            }
            true => usual,
            // Without a working path there is no traffic, and the peer may be waiting to learn where this end is now.
            false if since < REROUTING && usual <= RESERVE && own.is_indirect() && self.has_several_relays() => {
                CARRYING
            }
            false if since < LOST => RESERVE.min(usual),
            false => usual.min(again),
        }
    }

    /// Until when a failed direct way is left alone, if it is.
    fn rests_until(&self, path: usize, now: Instant) -> Option<Instant> {
        let own = self.own.get(path).filter(|own| own.state == State::Down && self.is_found(path))?;
        let (failed, up) = (own.failed?, self.own.iter().any(|own| own.state == State::Up));
        let since = now.since(failed);
        (up && since >= ASKED_ON && since < RESTED).then_some(failed + RESTED)
    }

    fn has_several_relays(&self) -> bool {
        self.own.iter().filter(|own| own.is_indirect()).count() > 1
    }

    fn since_traffic(&self, now: Instant) -> Option<Duration> {
        self.carried.map(|at| now.since(at))
    }

    /// There was traffic lately.
    pub(super) fn has_traffic(&self) -> bool {
        self.carried.is_some()
    }

    fn bits(&self, of: impl Fn(&OwnPath) -> bool) -> u32 {
        self.own.iter().enumerate().fold(0, |bits, (path, own)| bits | u32::from(of(own)) << path)
    }

    /// Whether this path is probed. Until the peer has answered once, only the active path is: a stock peer sends to
    /// the locator of the last authentic packet, and would switch back and forth.
    pub(super) fn asks(&self, path: usize) -> bool {
        let known = match self.answers {
            Some(answers) => answers,
            // Only members of a network have relays, and members are no stock peers.
            None if self.falls_back() => true,
            None => self.active.is_none_or(|active| active == path),
        };
        let spared = self.own[path].is_fallback() && self.own.iter().any(|own| own.answers() && !own.is_fallback());
        known && self.several() && self.session && self.own[path].locator.is_some() && !self.sleeps() && !spared
    }
}
