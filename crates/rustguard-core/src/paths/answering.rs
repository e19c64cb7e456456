//! The peer's requests: they are answered, and show by which paths the peer can be reached.
use super::{
    Locator, MAX_PATHS, Order, PathPolicy, Paths, Probe, Request, State, Version,
    path::{Challenge, OwnPath, Theirs},
    timing::{CARRYING, IDLE, MISSED, PATIENCE, PROMISES},
};
use crate::time::Instant;
use alloc::vec::Vec;

impl Paths {
    /// Takes a request of the peer that came from there. It is answered in any case. `random` is a fresh random number
    /// that serves to test a new locator.
    pub fn request(&mut self, from: Locator, request: &Request, random: u32, now: Instant, out: &mut Vec<Order>) {
        if self.answers.replace(true) != Some(true) {
            // A peer that sends probes answers them.
            self.changed = true;
            self.ask_all(now);
        }
        self.heard_by_request(from, request, now);
        let nonce = self.learn(from, request, random, now);
        let to = self.sticky(request.path.into()).filter(|locator| locator.covers(&from)).unwrap_or(from);
        out.push(Order::Probe { to, probe: Probe::Reply(request.reply(nonce, from)) });
    }

    /// The peer may be reachable where a request comes from.
    fn heard_by_request(&mut self, from: Locator, request: &Request, now: Instant) {
        let mut known = from.is_indirect();
        for own in self.own.iter_mut().filter(|own| own.locator.is_some_and(|locator| locator.covers(&from))) {
            known = true;
            // A packet by a failed path is the first sign that the path works again.
            own.hurry(now);
        }
        let direct = self.is_direct();
        let Some(discovery) = &mut self.discovery else {
            if !known {
                self.beside_fallbacks(from, now);
            }
            return;
        };
        discovery.knows_version_2 |= request.version == Version::V2;
        if let (false, Locator::Address(address), Version::V2) = (known, from, request.version) {
            discovery.heard(address.remote, direct, now);
        }
    }

    /// A peer sends a request from an address, while only relays to it are known here: the address is probed too, and
    /// used if it answers. No other packets may ever come from there, since data that a relay forwards is no traffic of
    /// its own session.
    fn beside_fallbacks(&mut self, from: Locator, now: Instant) {
        if !self.falls_back() || self.endpoints().nth(1).is_some() {
            return;
        }
        let path = self.moving().unwrap_or(self.configured);
        match self.own.get_mut(path) {
            // An address that works is not given up for another one, nor is one that is being probed.
            Some(own) if own.locator.is_some() && (own.state == State::Up || own.unanswered <= MISSED) => return,
            Some(own) => *own = OwnPath::new(own.policy, Some(from), now),
            None => self.own.push(OwnPath::new(PathPolicy::Best, Some(from), now)),
        }
        self.changed = true;
    }

    /// Learns from the request. Returns the nonce for the answer.
    fn learn(&mut self, from: Locator, request: &Request, random: u32, now: Instant) -> u32 {
        let path = usize::from(request.path);
        if path < MAX_PATHS && self.theirs.len() <= path {
            self.theirs.resize(path + 1, None);
            self.challenges.resize(path + 1, None);
        }
        let (Some(slot), Some(challenge)) = (self.theirs.get_mut(path), self.challenges.get_mut(path)) else {
            return 0;
        };
        let asked = challenge.filter(|asked| asked.locator == from);
        if slot.is_some_and(|known| known.clock > request.clock) {
            return slot
                .filter(|known| known.locator == from)
                .map(|known| known.nonce)
                .or(asked.map(|asked| asked.nonce))
                .unwrap_or(0);
        }
        let interval = request.interval.clamp(CARRYING, 2 * IDLE);
        // Plus the variation of the path's delay.
        let expires = now + PROMISES * interval + PATIENCE[0];
        let proven = match (*slot, asked, request.nonce) {
            (Some(known), ..) if known.locator == from => Some(known.nonce),
            (_, Some(asked), Some(returned)) if asked.nonce == returned => Some(returned),
            (.., None) => Some(0),
            _ => None,
        };
        let nonce = match (proven, asked) {
            (Some(nonce), _) => {
                *slot = Some(Theirs { locator: from, usable: false, weight: 0, expires, clock: request.clock, nonce });
                *challenge = None;
                nonce
            }
            (None, asked) => {
                // The text is authentic, wherever it comes from; the source address is not.
                if let Some(known) = slot {
                    known.clock = request.clock;
                }
                let nonce = asked.map_or(random.max(1), |asked| asked.nonce);
                *challenge = Some(Challenge { locator: from, nonce, expires });
                nonce
            }
        };
        // The request also has news of the peer's other paths.
        for (n, other) in self.theirs.iter_mut().enumerate() {
            if let Some(other) = other {
                let weight = request.weights.get(n).copied().unwrap_or(0);
                (other.usable, other.weight) = (request.usable >> n & 1 != 0, weight);
            }
        }
        self.their_active = request.active;
        self.changed = true;
        nonce
    }
}
