//! Decisions about prefixes: the selected route, the installed next hops, triggered updates and requests.
use super::{Babel, identity::Identity, requests::send_seqno_request};
use crate::{
    client::{Client, clients::Clients},
    jitter::Jitter,
    neighbour::{neighbours::Neighbours, outbox::longest_hold},
    params::{CHANGED_DELAY, METRIC_JUMP, NEW_SEQNO_DELAY, RESELECT, URGENT_DELAY, WORK_SLICE},
    table::{
        hold::Holds,
        request::Requests,
        route::{Entry, Route, Selected},
        select::Selector,
        source::Sources,
    },
    wire::types::{Announcement, INFINITY, RouterId, add},
};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Action, NextHops},
    time::Instant,
};
use std::collections::BTreeSet;

/// How soon, and how reliably, neighbours have to learn of a change (RFC 8966 §3.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// At once and with acknowledgment: a new route, another origin, no route, or a client that came or became silent.
    Urgent,
    /// The metric changed a lot.
    MetricChanged,
    /// Only the sequence number changed.
    SeqnoOnly,
}

/// The previous decision about a prefix.
#[derive(Clone, Copy, Debug)]
struct Before {
    via: Option<PeerId>,
    announced: Option<Announcement>,
}

/// One decision about one prefix, with the parts of the speaker that it needs.
struct Decision<'a> {
    prefix: IpNet,
    entry: &'a mut Entry,
    before: Before,
    identity: &'a mut Identity,
    neighbours: &'a mut Neighbours,
    clients: &'a mut Clients,
    sources: &'a mut Sources,
    requests: &'a mut Requests,
    holds: &'a mut Holds,
    jitter: &'a mut Jitter,
    max_routes: usize,
    work: &'a mut u64,
    now: Instant,
}

impl Babel {
    /// Decides about all prefixes whose routes changed, or about as many as one call may take.
    pub(super) fn decide_stale(&mut self, out: &mut Vec<Action>) {
        let end = self.work + WORK_SLICE;
        while self.work < end
            && let Some(prefix) = self.stale.pop()
        {
            self.decide(prefix, out);
        }
    }

    fn decide(&mut self, prefix: IpNet, out: &mut Vec<Action>) {
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let before = Before { via: entry.via(), announced: entry.announced };
        let decision = Decision {
            prefix,
            entry,
            before,
            identity: &mut self.identity,
            neighbours: &mut self.neighbours,
            clients: &mut self.clients,
            sources: &mut self.sources,
            requests: &mut self.requests,
            holds: &mut self.holds,
            jitter: &mut self.jitter,
            max_routes: self.filter.max_routes,
            work: &mut self.work,
            now: self.now,
        };
        let next = decision.make(out);
        self.table.wake(prefix, next);
    }
}

impl Decision<'_> {
    /// Makes the decision. Returns the time at which the prefix needs another decision.
    fn make(mut self, out: &mut Vec<Action>) -> Option<Instant> {
        *self.work += 1 + self.entry.routes.len() as u64;
        self.look_for_rival();
        let local = self.local();
        let reselect = self.select(local);
        self.hold();
        self.install(out);
        self.trigger_updates();
        self.request_feasible();
        let next = next_look(self.entry);
        next.into_iter().chain(reselect.then_some(self.now + RESELECT)).min()
    }

    fn selector(&self) -> Selector<'_, impl Fn(PeerId) -> u16> {
        super::selector(self.prefix, self.neighbours, self.sources, self.max_routes, self.now)
    }

    /// Records another gateway that announces that the client talks to it, and checks whether the client moved there.
    fn look_for_rival(&mut self) {
        let Some(client) = self.entry.client.and_then(|peer| self.clients.get_mut(&peer)) else { return };
        let rival = self.entry.nearest_rival();
        if rival.is_some_and(|rival| rival.is_news_after(self.entry.rival)) {
            client.contested(self.now);
        }
        self.entry.rival = rival;
    }

    /// The announcement of this node as the origin. If its metric is higher than before, the sequence number rises too:
    /// otherwise the announcement would not be feasible for any neighbour (§3.5.1).
    fn local(&mut self) -> Option<Announcement> {
        let client = self.entry.client.and_then(|peer| self.clients.get(&peer));
        let metric = self.entry.host.or(client.map(Client::metric))?;
        let own = self.identity.announcement(self.entry.seqno, metric);
        if !self.sources.feasible(self.prefix, own)
            && self.sources.get(self.prefix, own.router_id).is_some_and(|source| source.metric != metric)
        {
            self.entry.seqno = self.entry.seqno.plus(1);
        }
        self.identity.note_used(self.entry.seqno);
        Some(self.identity.announcement(self.entry.seqno, metric))
    }

    /// Selects a route. True if another route looks better and has to be compared again soon.
    fn select(&mut self, local: Option<Announcement>) -> bool {
        let choice = super::selector(self.prefix, self.neighbours, self.sources, self.max_routes, self.now)
            .choose(self.entry, local);
        self.entry.selected = choice.map(|choice| choice.next);
        self.entry.announced = choice.map(|choice| choice.route);
        let Some(choice) = choice else { return false };
        // This comes before anything is sent (§3.7.3), and before other neighbours become additional next hops.
        self.sources.announced(self.prefix, choice.route, self.entry.via(), self.now);
        choice.reselect
    }

    /// Begins a hold when the prefix becomes unreachable; ends it when the prefix is reachable, or all neighbours know
    /// (§3.5.4).
    fn hold(&mut self) {
        let was_announced = self.before.announced.is_some();
        let ended = self.entry.hold.as_ref().is_some_and(|hold| hold.owed.is_empty() || hold.until <= self.now);
        if ended || self.entry.selected.is_some() || was_announced {
            self.holds.end(self.prefix, self.entry);
        }
        if self.entry.selected.is_none() && was_announced {
            let reachable = self.neighbours.iter().filter(|(_, neighbour)| neighbour.cost() != INFINITY);
            let owed: BTreeSet<PeerId> = reachable.map(|(&peer, _)| peer).collect();
            *self.work += owed.len() as u64;
            self.holds.begin(self.prefix, self.entry, owed, self.now + longest_hold());
        }
    }

    fn install(&mut self, out: &mut Vec<Action>) {
        let prefix = self.prefix;
        let hops = match (self.entry.selected, self.entry.announced) {
            (Some(Selected::Via(peer)), Some(route)) => Some(self.selector().hops(self.entry, peer, route)),
            // The host reaches its own prefixes by itself.
            (Some(Selected::Local), _) if self.entry.host.is_some() => None,
            (Some(Selected::Local), _) => self.entry.client.map(NextHops::single),
            // Packets must not follow a shorter prefix while a neighbour may still send them here.
            _ => self.entry.hold.as_ref().map(|_| NextHops::UNREACHABLE),
        };
        if self.entry.installed != hops {
            self.entry.installed.clone_from(&hops);
            out.push(match hops {
                Some(hops) => Action::Install { prefix, hops },
                None => Action::Remove { prefix },
            });
        }
    }

    /// Triggered updates (§3.7.2), and answers to neighbours that asked for this announcement.
    fn trigger_updates(&mut self) {
        let urgency = self.urgency();
        if let (Some(_), Some(new)) = (urgency, self.entry.announced) {
            self.entry.told_metric = new.metric;
        }
        let urgent_at = self.now + self.jitter.shorten(URGENT_DELAY, 2);
        let delay = if urgency == Some(Urgency::SeqnoOnly) { NEW_SEQNO_DELAY } else { CHANGED_DELAY };
        let later = self.now + self.jitter.shorten(delay, 2);
        self.tell_neighbours(urgency, urgent_at, later);
        let Some(new) = self.entry.announced else { return };
        for peer in self.requests.answered(self.prefix, new) {
            if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.out.urgent(self.prefix, urgent_at);
            }
        }
    }

    /// Whether the announcement changed, and how much.
    fn urgency(&self) -> Option<Urgency> {
        match (self.before.announced, self.entry.announced) {
            (None, None) => None,
            (Some(old), Some(new)) if old.router_id == new.router_id => {
                let by = new.metric.abs_diff(self.entry.told_metric);
                if by >= METRIC_JUMP {
                    Some(Urgency::Urgent)
                } else if by >= (self.entry.told_metric / 4).max(96) {
                    Some(Urgency::MetricChanged)
                } else if new.seqno.newer_than(old.seqno) {
                    Some(Urgency::SeqnoOnly)
                } else {
                    None
                }
            }
            _ => Some(Urgency::Urgent),
        }
    }

    fn tell_neighbours(&mut self, urgency: Option<Urgency>, urgent_at: Instant, later: Instant) {
        let (prefix, via, old_via) = (self.prefix, self.entry.via(), self.before.via);
        // In most cases there is nothing to announce, and no neighbour is examined.
        if urgency.is_none() && old_via == via {
            return;
        }
        // Split horizon: the next hop knows. If it had another route from here, it has to learn that this route is
        // gone.
        let spared = via.filter(|_| self.before.announced.is_none() || old_via == via);
        let neighbours = self.neighbours.iter_mut();
        *self.work += neighbours.len() as u64;
        for (&peer, neighbour) in neighbours.filter(|(_, neighbour)| neighbour.is_acquired()) {
            match urgency {
                _ if spared == Some(peer) => {}
                Some(Urgency::Urgent) => neighbour.out.urgent(prefix, urgent_at),
                Some(_) if old_via == Some(peer) && old_via != via => neighbour.out.urgent(prefix, urgent_at),
                Some(Urgency::MetricChanged | Urgency::SeqnoOnly) => neighbour.out.normal(prefix, later),
                None if via == Some(peer) && old_via != via => neighbour.out.normal(prefix, later),
                // The old next hop has received no announcement, or a retraction. Now this node has another route,
                // which the old next hop may need.
                None if old_via == Some(peer) && old_via != via => neighbour.out.urgent(prefix, urgent_at),
                None => {}
            }
        }
    }

    /// Avoids starvation (§3.8.2.1): without a feasible route, all neighbours with an unfeasible one are asked for a
    /// newer sequence number, for as long as that lasts. A neighbour whose unfeasible route is much better is asked
    /// too (§3.8.2.2).
    fn request_feasible(&mut self) {
        let unfeasible = self.unfeasible();
        if unfeasible.is_empty() && self.entry.announced.is_none() {
            self.requests.give_up(self.prefix);
        }
        for (router_id, whom) in unfeasible {
            if let Some(wanted) = self.requests.want_newer(self.prefix, router_id, self.sources, self.now) {
                let asked = |peer, _: &Route| whom.is_none_or(|whom| peer == whom);
                *self.work += send_seqno_request(wanted, self.entry, self.neighbours, self.now, asked);
            }
        }
    }

    /// The origins of unfeasible routes that this node would use, each with the neighbour to ask; `None`: all
    /// neighbours.
    fn unfeasible(&self) -> Vec<(RouterId, Option<PeerId>)> {
        let selector = self.selector();
        let reached = |(&peer, route): (&PeerId, &Route)| add((selector.cost)(peer), route.metric);
        let usable = self.entry.routes.iter().filter(|&route| reached(route) != INFINITY);
        let unfeasible = usable.filter(|(_, route)| !self.sources.feasible(self.prefix, route.announcement()));
        match self.entry.announced {
            None => unfeasible.map(|(_, route)| (route.router_id, None)).collect(),
            Some(selected) => {
                let much_better = selected.metric - (selected.metric / 4).max(96).min(selected.metric);
                unfeasible
                    .filter(|&(peer, route)| reached((peer, route)) < much_better)
                    .map(|(&peer, route)| (route.router_id, Some(peer)))
                    .collect()
            }
        }
    }
}

/// The time of the next change of a prefix without an event.
fn next_look(entry: &Entry) -> Option<Instant> {
    let via = entry.via();
    let routes = entry.routes.iter().flat_map(|(&peer, route)| {
        let refresh = route.refresh_at.filter(|_| via == Some(peer));
        [Some(route.expires), refresh].into_iter().flatten()
    });
    routes.chain(entry.hold.as_ref().map(|hold| hold.until)).min()
}
