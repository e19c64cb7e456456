//! Direct ways that were found: they are paths like the configured ones, as long as they work and there is traffic.
use super::{
    Address, Candidates, Locator, Order, PathPolicy, Paths, Relayed, Reply, Search, State,
    discovery::Situation,
    path::{OwnPath, RoundTrip},
    timing::{FORGET, MISSED},
};
use crate::time::Instant;
use alloc::vec::Vec;
use core::{net::SocketAddr, time::Duration};

/// How many direct ways are kept while more are looked for: the one in use, one in reserve, and one that may be better.
const MAX_FOUND: usize = 3;
/// How many are kept afterwards.
const KEPT: usize = 2;

impl Paths {
    /// Takes a message of the peer about candidates.
    pub fn candidates(&mut self, message: &Candidates, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        let to = self.messages();
        if let Some(discovery) = &mut self.discovery {
            let answer = discovery.candidates(message, search, now);
            // The peer takes the answer to mean that our router is open.
            discovery.probe_routers(search, now, out);
            if let (Some(to), Some(message)) = (to, answer) {
                out.push(Order::Tell { to, message });
            }
        }
    }

    /// The candidates of [`Search`] have changed: the peer is told now if there is traffic, or else when traffic
    /// begins.
    pub fn candidates_changed(&mut self, now: Instant) {
        if let Some(discovery) = &mut self.discovery {
            discovery.candidates_changed(now);
        }
    }

    /// Our own network has changed: another address, another router. All paths are probed again, and direct ways are
    /// looked for.
    pub fn network_changed(&mut self, now: Instant) {
        if let Some(discovery) = &mut self.discovery {
            discovery.network_changed(now);
            self.ask_all(now);
        }
    }

    /// Why no direct way is used; `None` if one is used, or if a configured address works.
    pub fn relayed(&self, search: &Search) -> Option<Relayed> {
        if self.is_direct() {
            return None;
        }
        Some(self.discovery.as_ref().map_or(Relayed::Off, |discovery| discovery.why(search)))
    }

    /// Whether the active path is an address that works, by UDP.
    pub(super) fn is_direct(&self) -> bool {
        let active = self.active.filter(|_| !self.following).and_then(|path| self.own.get(path));
        active.is_some_and(|own| own.state == State::Up && !own.is_indirect())
    }

    /// Whether this path was found.
    pub(super) fn is_found(&self, path: usize) -> bool {
        path > self.configured
    }

    /// Whether probing pauses. After a while without traffic, nothing is probed if direct ways are looked for, or if
    /// there is one endpoint with fallbacks.
    pub(super) fn sleeps(&self) -> bool {
        match &self.discovery {
            Some(discovery) => !discovery.awake,
            None => {
                self.carried.is_none() && self.falls_back() && self.endpoints().nth(1).is_none() && !self.has_untried()
            }
        }
    }

    /// The peer is reached through a relay, and one of its addresses was not probed for long enough to know that it
    /// does not answer. Other peers may need this node's direct way to it: a relay is not reached through another
    /// relay.
    fn has_untried(&self) -> bool {
        let untried = |own: &OwnPath| {
            own.locator.is_some() && !own.is_indirect() && own.state == State::Unknown && own.unanswered <= MISSED
        };
        self.active_locator().is_none_or(|locator| locator.is_indirect()) && self.own.iter().any(untried)
    }

    fn situation(&self) -> Situation {
        Situation {
            session: self.session,
            direct: self.is_direct(),
            busy: self.has_traffic(),
            messages: self.messages(),
        }
    }

    /// Where messages about candidates go: preferably by an indirect path that works, since direct ways may have just
    /// failed.
    fn messages(&self) -> Option<Locator> {
        let indirect = self.own.iter().find(|own| own.is_indirect() && own.state == State::Up);
        indirect.and_then(|own| own.locator).or(self.active_locator())
    }

    pub(super) fn discovery_deadline(&self) -> Option<Instant> {
        let discovery = self.discovery.as_ref()?.deadline(self.situation());
        let down =
            self.own.iter().skip(self.configured + 1).filter(|own| own.locator.is_some() && own.state == State::Down);
        let forget = down.filter_map(|own| own.failed).map(|failed| failed + FORGET).min();
        [discovery, forget].into_iter().flatten().min()
    }

    /// Does what is due in the search for direct ways.
    pub(super) fn discover(&mut self, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        let Some(mut discovery) = self.discovery.take() else { return };
        let (situation, goes) = (self.situation(), discovery.goes());
        let let_go = discovery.tick(situation, search, now, out);
        if let_go {
            self.let_go();
        } else {
            for own in self.own.iter_mut().skip(self.configured + 1) {
                if own.state == State::Down && own.failed.is_none_or(|failed| now.since(failed) >= FORGET) {
                    *own = OwnPath::new(PathPolicy::Best, None, now);
                    self.changed = true;
                }
            }
            if goes && !discovery.goes() {
                while self.found().count() > KEPT {
                    self.give_up(self.worst(), now);
                }
            }
        }
        self.discovery = Some(discovery);
    }

    /// Takes an answer to a probe of a candidate.
    pub(super) fn candidate_answered(&mut self, reply: &Reply, search: &Search, now: Instant) {
        let Some(discovery) = &mut self.discovery else { return };
        let answered = discovery.reply(reply, search, now);
        if let Some((address, took)) = answered.filter(|_| discovery.awake) {
            self.add_found(address, took, now);
        }
    }

    /// A candidate works: it becomes a path, unless there are better ones.
    fn add_found(&mut self, address: SocketAddr, took: Duration, now: Instant) {
        let locator = Locator::from(Address::new(address));
        let same = |own: &&mut OwnPath| {
            own.locator.is_some_and(|known| known.address().is_some_and(|at| at.remote == address))
        };
        if let Some(known) = self.own.iter_mut().find(same) {
            known.hurry(now);
            return;
        }
        if self.found().count() >= MAX_FOUND {
            let worst = self.worst();
            let own = worst.map(|path| &self.own[path]);
            if own.is_none_or(|own| own.state == State::Up && own.length() <= took) {
                return;
            }
            self.give_up(worst, now);
        }
        let mut own = OwnPath::new(PathPolicy::Best, Some(locator), now);
        own.state = State::Up;
        own.round_trip = Some(RoundTrip::update(None, took));
        if self.own.len() == self.configured {
            // The place of the locator where the peer was heard.
            self.own.push(OwnPath::new(PathPolicy::Best, None, now));
        }
        let free = (self.configured + 1..self.own.len()).find(|&path| self.own[path].locator.is_none());
        match free {
            Some(path) => self.own[path] = own,
            None => self.own.push(own),
        }
        self.answers = Some(true);
        self.changed = true;
        self.choose(now);
    }

    fn found(&self) -> impl Iterator<Item = usize> {
        (self.configured + 1..self.own.len()).filter(|&path| self.own[path].locator.is_some())
    }

    /// The worst of the direct ways that were found, which is left first.
    fn worst(&self) -> Option<usize> {
        let of = |path: &usize| (self.own[*path].state != State::Up, self.own[*path].length());
        self.found().filter(|&path| self.active != Some(path)).max_by_key(of)
    }

    fn give_up(&mut self, path: Option<usize>, now: Instant) {
        if let Some(path) = path {
            self.own[path] = OwnPath::new(PathPolicy::Best, None, now);
            self.changed = true;
        }
    }

    /// Gives up the direct ways that were found, because they need probes to stay open. A path that needs none takes
    /// over.
    fn let_go(&mut self) {
        let indirect = self.own.iter().position(|own| own.is_indirect() && own.state == State::Up);
        self.own.truncate(if indirect.is_some_and(|path| path < self.configured) {
            self.configured
        } else {
            self.configured + 1
        });
        if self.active.is_some_and(|active| active >= self.own.len()) {
            self.active = indirect;
        }
        self.changed = true;
    }
}
