//! Requests: requests of neighbours are answered or forwarded (RFC 8966 §3.8.1), and this node's requests are sent and
//! repeated (§3.8.2).
use super::{Babel, selector};
use crate::{
    neighbour::neighbours::Neighbours,
    params::{HOP_COUNT, MAX_UNKNOWN_PREFIXES, URGENT_DELAY},
    table::{
        request::SeqnoRequest,
        route::{Entry, Raise, Route},
    },
    wire::types::{INFINITY, add},
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};

impl Babel {
    /// Answers a request for an update (§3.8.1.1): of everything, or of one prefix, which is retracted if there is
    /// nothing to announce.
    pub(super) fn route_request(&mut self, peer: PeerId, prefix: Option<IpNet>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        match prefix {
            Some(prefix) => {
                let known = self.table.entries.contains_key(&prefix);
                if known || neighbour.out.normal.len() < self.table.entries.len() + MAX_UNKNOWN_PREFIXES {
                    neighbour.out.normal(prefix, now + URGENT_DELAY);
                } else {
                    self.counters.requests_dropped += 1;
                }
            }
            None => {
                let at = neighbour.dump_after().unwrap_or(now).max(now);
                neighbour.dump_at(at);
            }
        }
    }

    /// A request for a sequence number (§3.8.1.2): answered, or forwarded to one neighbour.
    pub(super) fn seqno_request(&mut self, peer: PeerId, wanted: SeqnoRequest, hop_count: u8) {
        let SeqnoRequest { prefix, router_id, seqno } = wanted;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let Some(announced) = entry.announced else { return };
        if announced.router_id == router_id {
            if router_id == self.identity.router_id() {
                let raise = entry.raise(seqno, self.now);
                self.raised(prefix, raise);
            } else if seqno.newer_than(announced.seqno) {
                return self.forward(peer, wanted, hop_count);
            }
        }
        if let Some(neighbour) = self.neighbours.get_mut(&peer) {
            neighbour.out.urgent(prefix, self.now + URGENT_DELAY);
        }
    }

    /// A neighbour wanted a newer sequence number of a prefix that this node announces under its own router-id.
    fn raised(&mut self, prefix: IpNet, raise: Raise) {
        match raise {
            Raise::NotNeeded => {}
            Raise::TooSoon => self.counters.requests_dropped += 1,
            Raise::Raised { to, is_enough } => {
                self.identity.note_used(to);
                self.stale.insert(prefix);
                if !is_enough {
                    // This run never announced the number that the neighbour remembers.
                    self.change_router_id();
                }
            }
        }
    }

    fn forward(&mut self, from: PeerId, wanted: SeqnoRequest, hop_count: u8) {
        let Some(target) = self.next_asked(from, wanted).filter(|_| hop_count >= 2) else { return };
        if !self.requests.forward(wanted, from, self.now) {
            self.counters.requests_dropped += 1;
            return;
        }
        if let Some(neighbour) = self.neighbours.get_mut(&target) {
            neighbour.out.request_seqno(wanted, hop_count - 1, self.now + URGENT_DELAY / 2);
        }
    }

    /// The neighbour to which a request is forwarded. The next hop of the selected route comes first, because the
    /// answer by this route will be announced. Other feasible routes come next, then all others.
    fn next_asked(&mut self, from: PeerId, wanted: SeqnoRequest) -> Option<PeerId> {
        let entry = self.table.entries.get(&wanted.prefix)?;
        self.work += entry.routes.len() as u64;
        let selector = selector(wanted.prefix, &self.neighbours, &self.sources, self.filter.max_routes, self.now);
        let usable = entry.routes.iter().filter_map(|(&peer, route)| {
            let reached = add((selector.cost)(peer), route.metric);
            (peer != from && reached != INFINITY).then_some((peer, route, reached))
        });
        let target = usable.min_by_key(|&(peer, route, reached)| {
            let feasible = selector.is_feasible(peer, route.announcement());
            (entry.via() != Some(peer), !feasible, route.router_id != wanted.router_id, reached, peer)
        });
        target.map(|(peer, ..)| peer)
    }

    /// Repeats this node's own requests that are due: to all neighbours if there is no other route, otherwise to the
    /// neighbours whose route has the wanted origin.
    pub(super) fn repeat_requests(&mut self, end: u64) {
        while self.work < end
            && let Some(due) = self.requests.due(self.now)
        {
            self.work += 1;
            let wanted = due.request;
            let entry = self.table.entries.get(&wanted.prefix);
            match entry.map(|entry| (entry, entry.announced.is_none())) {
                Some((entry, starving)) if starving || !due.exhausted => {
                    let asked = |_, route: &Route| starving || route.router_id == wanted.router_id;
                    self.work += send_seqno_request(wanted, entry, &mut self.neighbours, self.now, asked);
                }
                _ => self.requests.unwant(wanted.prefix, wanted.router_id),
            }
        }
    }
}

/// Sends a request of this node to all neighbours with a finite route that `asked` accepts. Returns how many routes
/// were looked at.
pub(super) fn send_seqno_request(
    wanted: SeqnoRequest,
    entry: &Entry,
    neighbours: &mut Neighbours,
    now: Instant,
    asked: impl Fn(PeerId, &Route) -> bool,
) -> u64 {
    for (peer, _) in entry.routes.iter().filter(|&(&peer, route)| route.is_finite() && asked(peer, route)) {
        if let Some(neighbour) = neighbours.get_mut(peer).filter(|neighbour| neighbour.cost() != INFINITY) {
            neighbour.out.request_seqno(wanted, HOP_COUNT, now + URGENT_DELAY / 2);
        }
    }
    entry.routes.len() as u64
}
