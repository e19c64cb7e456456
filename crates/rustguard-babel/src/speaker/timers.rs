//! What happens because time passes.
use super::Babel;
use crate::{
    params::{SWEEP, URGENT},
    types::INFINITY,
};
use rustguard_core::{node::PeerId, routing::Action, time::Instant};

impl Babel {
    /// Does what is due, decides about what changed, and sends what waits for this moment.
    pub(super) fn tick(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        self.neighbours.refresh();
        for peer in self.neighbours.due(now) {
            self.assess(peer, out);
        }
        while let Some(prefix) = self.table.due(now) {
            self.look(prefix, out);
        }
        for client in self.clients.values_mut() {
            if client.deadline().is_some_and(|at| at <= now) && client.tick(now) {
                self.stale.extend(client.prefixes.iter().copied());
            }
        }
        self.repeat_requests();
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sources.sweep(now);
            self.sweep_at = Some(now + SWEEP);
        }
        self.settle(out);
        self.neighbours.refresh();
        for peer in self.neighbours.due(now) {
            self.transmit(peer, out);
        }
        self.neighbours.refresh();
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let clients = self.clients.values().filter_map(crate::client::Client::deadline);
        let others = [self.neighbours.deadline(), self.table.deadline(), self.requests.deadline(), self.sweep_at];
        clients.chain(others.into_iter().flatten()).min()
    }

    /// Works out the cost of a link anew, and what follows from it.
    pub(super) fn assess(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        let change = neighbour.assess(now);
        let (cost, acquired, has_state) = (neighbour.cost(), neighbour.is_acquired(), neighbour.address.is_some());
        if change.rxcost {
            // It should know as soon as possible, above all that it is not heard any more.
            neighbour.out.hello_now(now);
        }
        if change.cost {
            out.push(Action::Neighbour { peer, cost: Some(cost).filter(|&cost| cost != INFINITY) });
            self.stale.extend(self.table.of(peer));
        }
        if !acquired && has_state {
            self.forget_neighbour(peer);
        } else if change.cost && cost == INFINITY {
            // Retractions may be lost from now on; when the link is back, everything is asked for.
            self.void(peer);
        }
        if change.came_up
            && let Some(neighbour) = self.neighbours.get_mut(&peer)
        {
            neighbour.out.wildcard_request = Some(0);
            neighbour.out.flush_by(now + URGENT);
            neighbour.dump_at(now);
        }
    }

    /// The neighbour fell silent for good, or lost its memory: what came from it is void.
    pub(super) fn forget_neighbour(&mut self, peer: PeerId) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        neighbour.forget(now);
        self.void(peer);
    }

    /// What came from this neighbour counts for nothing, and it need not answer anything.
    fn void(&mut self, peer: PeerId) {
        let now = self.now;
        for prefix in self.table.of(peer) {
            if let Some(route) = self.table.entries.get_mut(&prefix).and_then(|entry| entry.routes.get_mut(&peer)) {
                route.retract(now);
                self.stale.insert(prefix);
            }
        }
        self.requests.forget_peer(peer);
        self.release_holds_of(peer);
    }

    /// A prefix whose time has come: routes expire, then go; the selected one is asked for before it expires.
    fn look(&mut self, prefix: ipnet::IpNet, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let via = entry.via();
        let mut gone = Vec::new();
        for (&peer, route) in &mut entry.routes {
            if route.expires <= now && route.is_finite() {
                route.retract(now);
            } else if route.expires <= now {
                gone.push(peer);
            } else if route.refresh_at.is_some_and(|at| at <= now) {
                route.refresh_at = None;
                if let Some(neighbour) = self.neighbours.get_mut(&peer).filter(|_| via == Some(peer)) {
                    neighbour.out.route_requests.insert(prefix);
                    neighbour.out.flush_by(now + URGENT);
                }
            }
        }
        for peer in gone {
            self.drop_route(prefix, peer, out);
        }
        self.stale.insert(prefix);
    }

    fn repeat_requests(&mut self) {
        if self.requests.deadline().is_none_or(|at| at > self.now) {
            return;
        }
        for due in self.requests.due(self.now) {
            let entry = self.table.entries.get(&due.prefix);
            let starving = entry.is_some_and(|entry| entry.announced.is_none());
            if entry.is_none() || (due.tired && !starving) {
                self.requests.unwant(due.prefix, due.router_id);
            } else {
                self.repeat_request(due.prefix, due.router_id, due.seqno, starving);
            }
        }
    }
}
