//! Received updates and retractions: route acquisition (RFC 8966 §3.5.3).
use super::{Babel, requests::send_seqno_request, selector};
use crate::{
    filter::Refused,
    params::{HOP_COUNT, REORDERED, URGENT_DELAY, from_centis, hold},
    table::route::{Route, Selected, SmoothedMetric},
    wire::types::{Announcement, INFINITY, add},
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Action, SourceRule},
};
use std::collections::BTreeSet;

/// The assumed interval of an Update TLV that is not repeated, because its end is not known.
const NOT_REPEATED: Duration = Duration::from_secs(86_400);

/// An Update TLV with a finite metric.
pub(super) struct Update {
    pub(super) prefix: IpNet,
    pub(super) announcement: Announcement,
    /// In hundredths of a second.
    pub(super) interval: u16,
}

impl Babel {
    /// Takes an update into the table, unless it is refused or must not be followed. `unfeasible` are prefixes of the
    /// same packet whose unfeasible updates were handled already.
    pub(super) fn update(
        &mut self,
        peer: PeerId,
        update: &Update,
        unfeasible: &mut BTreeSet<IpNet>,
        out: &mut Vec<Action>,
    ) {
        let &Update { prefix, announcement, interval } = update;
        let now = self.now;
        if announcement.router_id == self.identity.router_id() {
            self.own_router_id_heard(prefix, announcement.seqno);
            return self.retracted(prefix, peer);
        }
        let Some(neighbour) = self.neighbours.get(&peer) else { return };
        if let Some(reason) = self.filter.refuses(&prefix, announcement.router_id, &neighbour.allowed) {
            match reason {
                Refused::Martian => self.counters.martian += 1,
                Refused::OutsideAllowedIps => self.counters.outside_allowed_ips += 1,
                Refused::Pinned => self.counters.pinned += 1,
            }
            return self.retracted(prefix, peer);
        }
        let known = self.table.entries.get(&prefix).and_then(|entry| entry.routes.get(&peer)).copied();
        if known.is_none() && neighbour.routes >= self.filter.max_routes {
            self.counters.too_many_routes += 1;
            return;
        }
        let average = add(neighbour.cost(), announcement.metric);
        let same_origin = known.is_some_and(|known| known.is_finite() && known.router_id == announcement.router_id);
        if same_origin
            && !self.sources.feasible(prefix, announcement)
            && (unfeasible.contains(&prefix) || !self.follows_unfeasible(prefix, peer, average))
        {
            unfeasible.insert(prefix);
            return self.keep_unfeasible(prefix, peer, announcement);
        }
        let interval = if interval == u16::MAX { NOT_REPEATED } else { from_centis(interval) };
        let lifetime = hold(interval);
        let route = Route {
            router_id: announcement.router_id,
            seqno: announcement.seqno,
            metric: announcement.metric,
            at: now,
            interval,
            expires: now + lifetime,
            refresh_at: Some(now + lifetime * 7 / 8),
            smoothed: known.filter(Route::is_finite).map_or(SmoothedMetric::new(average, now), |known| known.smoothed),
        };
        let is_new = self.table.learn(prefix, peer, route).is_none();
        let may_be_late = known.is_some_and(|known| !known.is_finite() && now.since(known.at) < REORDERED);
        if is_new {
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Any });
        }
        if (is_new || may_be_late)
            && let Some(neighbour) = self.neighbours.get_mut(&peer)
        {
            neighbour.routes += usize::from(is_new);
            if may_be_late {
                neighbour.out.request_route(prefix, now + URGENT_DELAY);
            }
        }
        self.stale.insert(prefix);
        self.pass_on_request(prefix, peer, announcement);
    }

    /// Whether an unfeasible update of the selected route is accepted, which unselects the route. This is done if
    /// another feasible route is at most as long as this route became (§3.5.3 leaves the choice).
    fn follows_unfeasible(&mut self, prefix: IpNet, peer: PeerId, metric: u16) -> bool {
        let Some(entry) = self.table.entries.get(&prefix) else { return true };
        if entry.selected != Some(Selected::Via(peer)) {
            return true;
        }
        self.work += entry.routes.len() as u64;
        let selector = selector(prefix, &self.neighbours, &self.sources, self.filter.max_routes, self.now);
        entry.routes.iter().any(|(&other, route)| {
            let reached = add((selector.cost)(other), route.metric);
            other != peer
                && reached != INFINITY
                && reached <= metric
                && selector.is_feasible(other, route.announcement())
        })
    }

    /// The neighbour's route became longer than the distance that this node announced. The new length must not be used
    /// before the origin was asked. The installed route still leads to the origin.
    fn keep_unfeasible(&mut self, prefix: IpNet, peer: PeerId, announcement: Announcement) {
        self.counters.unfeasible += 1;
        let router_id = announcement.router_id;
        if let Some(entry) = self.table.entries.get(&prefix)
            && let Some(wanted) = self.requests.want_newer(prefix, router_id, &self.sources, self.now)
        {
            self.work += send_seqno_request(wanted, entry, &mut self.neighbours, self.now, |asked, _| asked == peer);
        }
    }

    /// A neighbour waits for this sequence number. It only hears about the selected route, and selection ignores the
    /// number. So the request has to go to the selected next hop too.
    fn pass_on_request(&mut self, prefix: IpNet, peer: PeerId, announcement: Announcement) {
        let selected = self.table.entries.get(&prefix).and_then(|entry| entry.via());
        if let Some(wanted) = self.requests.awaited(prefix, announcement)
            && let Some(selected) = selected.filter(|&selected| selected != peer)
            && let Some(neighbour) = self.neighbours.get_mut(&selected)
        {
            neighbour.out.request_seqno(wanted, HOP_COUNT, self.now + URGENT_DELAY);
        }
    }

    /// A neighbour retracts a route. An announcement and a retraction that are close to each other may have been
    /// reordered on the way, and they do not show which is later, so the neighbour is asked.
    pub(super) fn retraction(&mut self, prefix: IpNet, peer: PeerId) {
        let now = self.now;
        if let Some(route) = self.table.entries.get_mut(&prefix).and_then(|entry| entry.routes.get_mut(&peer)) {
            let may_be_late = route.is_finite() && now.since(route.at) < REORDERED;
            route.at = now;
            if may_be_late && let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.out.request_route(prefix, now + URGENT_DELAY);
            }
        }
        self.retracted(prefix, peer);
    }

    fn retracted(&mut self, prefix: IpNet, peer: PeerId) {
        if self.table.retract(prefix, peer, self.now) {
            self.stale.insert(prefix);
        }
    }

    /// Ends all routes of this neighbour.
    pub(super) fn retract_all(&mut self, peer: PeerId) {
        let finite: Vec<IpNet> = self.table.finite_of(peer).collect();
        self.work += finite.len() as u64;
        for prefix in finite {
            self.retracted(prefix, peer);
        }
    }

    /// Forgets a route at once, and the permission with it.
    pub(super) fn drop_route(&mut self, prefix: IpNet, peer: PeerId, out: &mut Vec<Action>) {
        if self.table.forget(prefix, peer) {
            if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.routes -= 1;
            }
            out.push(Action::Forbid { peer, prefix });
            self.stale.insert(prefix);
        }
    }
}
