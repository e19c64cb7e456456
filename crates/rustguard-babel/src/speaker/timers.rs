//! The timers of the speaker.
use super::Babel;
use crate::{
    neighbour::LinkChange,
    params::{SWEEP_INTERVAL, SWEEP_PACE, URGENT_DELAY, WORK_SLICE},
    wire::types::INFINITY,
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::Action, time::Instant};

impl Babel {
    /// Handles expired timers, decides about stale prefixes, and sends messages that are due.
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
            self.expire_routes(prefix, out);
        }
        self.clients.refresh();
        while self.work < end
            && let Some((peer, client)) = self.clients.due(now)
        {
            self.work += 1;
            if client.tick(now) {
                self.stale.extend(client.prefixes.iter().copied());
            }
            client.act(peer, out);
        }
        self.repeat_requests(end);
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = Some(now + if self.sources.sweep(now) { SWEEP_INTERVAL } else { SWEEP_PACE });
            self.names.sweep(now);
        }
        self.decide_stale(out);
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

    /// Counts missed Hellos and computes the cost of a link again.
    fn assess(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        self.work += 1;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        let change = neighbour.assess(self.now);
        self.link_changed(peer, change, out);
    }

    /// Handles a change of a link.
    pub(super) fn link_changed(&mut self, peer: PeerId, change: LinkChange, out: &mut Vec<Action>) {
        if let Some(cost) = change.cost {
            out.push(Action::Neighbour { peer, cost: Some(cost).filter(|&cost| cost != INFINITY) });
            self.stale.extend(self.table.finite_of(peer).inspect(|_| self.work += 1));
        }
        // Retractions may be lost while the link does not work. When it works again, everything is requested.
        if change.forgotten || change.cost == Some(INFINITY) {
            self.discard_all_of(peer);
        }
    }

    /// Discards this neighbour's announcements, requests and pending acknowledgments.
    pub(super) fn discard_all_of(&mut self, peer: PeerId) {
        self.retract_all(peer);
        self.work += self.requests.forget_peer(peer) as u64;
        self.release_holds_of(peer);
    }

    /// Releases this neighbour from acknowledging retractions.
    pub(super) fn release_holds_of(&mut self, peer: PeerId) {
        for prefix in self.holds.release(peer) {
            self.work += 1;
            if let Some(hold) = self.table.entries.get_mut(&prefix).and_then(|entry| entry.hold.as_mut()) {
                hold.owed.remove(&peer);
                self.stale.insert(prefix);
            }
        }
    }

    /// Handles a prefix that is due: routes expire, and are removed some time later. The neighbour is asked for an
    /// update of the selected route before it expires.
    fn expire_routes(&mut self, prefix: IpNet, out: &mut Vec<Action>) {
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
                    neighbour.out.request_route(prefix, now + URGENT_DELAY);
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
}
