//! What happens because time passes.
use super::Babel;
use crate::{
    params::{SWEEP_INTERVAL, SWEEP_PACE, URGENT_DELAY, WORK_SLICE},
    wire::types::INFINITY,
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::Action, time::Instant};

impl Babel {
    /// Does what is due, decides about what changed, and sends what waits for this moment.
    pub(super) fn tick(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        let end = self.work + WORK_SLICE;
        self.neighbours.refresh();
        for peer in self.neighbours.due(now) {
            if self.work >= end {
                break;
            }
            self.assess(peer, out);
        }
        while self.work < end
            && let Some(prefix) = self.table.due(now)
        {
            self.look(prefix, out);
        }
        self.clients.refresh();
        while self.work < end
            && let Some((_, client)) = self.clients.due(now)
        {
            self.work += 1;
            if client.tick(now) {
                self.stale.extend(client.prefixes.iter().copied());
            }
        }
        self.repeat_requests(end);
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = Some(now + if self.sources.sweep(now) { SWEEP_INTERVAL } else { SWEEP_PACE });
            self.names.sweep(now);
        }
        self.settle(out);
        let end = self.work + WORK_SLICE;
        self.neighbours.refresh();
        for peer in self.neighbours.due(now) {
            if self.work >= end {
                break;
            }
            self.transmit(peer, out);
        }
        self.neighbours.refresh();
        self.clients.refresh();
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if !self.stale.is_empty() {
            return Some(self.now);
        }
        let tables = [self.neighbours.deadline(), self.clients.deadline(), self.table.deadline()];
        tables.into_iter().chain([self.requests.deadline(), self.sweep_at]).flatten().min()
    }

    /// Works out the cost of a link anew, and what follows from it.
    pub(super) fn assess(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let now = self.now;
        self.work += 1;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        let change = neighbour.assess(now);
        let (cost, acquired, has_state) = (neighbour.cost(), neighbour.is_acquired(), neighbour.address.is_some());
        if change.rxcost {
            // It should know as soon as possible, above all that it is not heard any more.
            neighbour.out.hello_now(now);
        }
        if change.cost {
            out.push(Action::Neighbour { peer, cost: Some(cost).filter(|&cost| cost != INFINITY) });
            self.stale.extend(self.table.finite_of(peer).inspect(|_| self.work += 1));
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
            neighbour.out.flush_by(now + URGENT_DELAY);
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
        self.retract_all(peer);
        self.work += self.requests.forget_peer(peer) as u64;
        self.release_holds_of(peer);
    }

    /// Nothing that this neighbour announced holds any more.
    pub(super) fn retract_all(&mut self, peer: PeerId) {
        let finite: Vec<IpNet> = self.table.finite_of(peer).collect();
        self.work += finite.len() as u64;
        for prefix in finite {
            self.table.retract(prefix, peer, self.now);
            self.stale.insert(prefix);
        }
    }

    /// A prefix whose time has come: routes expire, then go; the selected one is asked for before it expires.
    fn look(&mut self, prefix: IpNet, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        self.work += 1 + entry.routes.len() as u64;
        let via = entry.via();
        let (mut ended, mut gone) = (Vec::new(), Vec::new());
        for (&peer, route) in &mut entry.routes {
            if route.expires <= now && route.is_finite() {
                ended.push(peer);
            } else if route.expires <= now {
                gone.push(peer);
            } else if route.refresh_at.is_some_and(|at| at <= now) {
                route.refresh_at = None;
                if let Some(neighbour) = self.neighbours.get_mut(&peer).filter(|_| via == Some(peer)) {
                    neighbour.out.route_requests.insert(prefix);
                    neighbour.out.flush_by(now + URGENT_DELAY);
                }
            }
        }
        for peer in ended {
            self.table.retract(prefix, peer, now);
        }
        for peer in gone {
            self.drop_route(prefix, peer, out);
        }
        self.stale.insert(prefix);
    }

    fn repeat_requests(&mut self, end: u64) {
        while self.work < end
            && let Some(due) = self.requests.due(self.now)
        {
            self.work += 1;
            let entry = self.table.entries.get(&due.prefix);
            let starving = entry.is_some_and(|entry| entry.announced.is_none());
            if entry.is_none() || (due.exhausted && !starving) {
                self.requests.unwant(due.prefix, due.router_id);
            } else {
                self.repeat_request(due.prefix, due.router_id, due.seqno, starving);
            }
        }
    }
}
