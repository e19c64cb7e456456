//! Decisions: which route is selected for a prefix, what is installed, who is told, what is asked for.
use super::{Babel, CEILING, selector};
use crate::{
    neighbour::outbox::longest_hold,
    params::{CHANGED_DELAY, METRIC_JUMP, NEW_SEQNO_DELAY, URGENT_DELAY, WORK_SLICE},
    table::route::{Entry, Selected},
    wire::types::{Announcement, INFINITY, Seqno, add},
};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Action, NextHops},
    time::Instant,
};
use std::collections::BTreeSet;

/// How soon, and how surely, neighbours have to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// With acknowledgment, at once: a new route, another origin, no route, a client that is heard or is not any more.
    Urgent,
    /// The metric changed a lot.
    Changed,
    /// Only the sequence number changed.
    Newer,
}

impl Babel {
    /// Decides about what changed: all of it, or as much as one call may take.
    pub(super) fn settle(&mut self, out: &mut Vec<Action>) {
        let end = self.work + WORK_SLICE;
        while self.work < end
            && let Some(prefix) = self.stale.pop()
        {
            self.decide(prefix, out);
        }
    }

    fn decide(&mut self, prefix: IpNet, out: &mut Vec<Action>) {
        self.look_for_rival(prefix);
        let local = self.local(prefix);
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        self.work += 1 + entry.routes.len() as u64;
        let before = (entry.via(), entry.announced);

        let choice = selector(prefix, &self.neighbours, &self.sources, self.max_routes, now).choose(entry, local);
        entry.selected = choice.map(|choice| choice.next);
        entry.announced = choice.map(|choice| choice.route);
        if let Some(choice) = choice {
            // Before anything is sent (§3.7.3), and before others are taken as next hops beside it.
            self.sources.announced(prefix, choice.route, entry.via(), now);
        }
        self.hold(prefix, before.1.is_some());
        self.install(prefix, out);
        self.tell(prefix, before);
        self.want(prefix);
        self.wake(prefix, choice.is_some_and(|choice| choice.look_again));
    }

    /// What this node announces as the origin. When that is farther than before, the number has to rise with it: nobody
    /// could believe it otherwise (§3.5.1).
    fn local(&mut self, prefix: IpNet) -> Option<Announcement> {
        let entry = self.table.entries.get_mut(&prefix)?;
        let client = entry.client.and_then(|client| self.clients.get(&client));
        let metric = entry.host.or(client.map(crate::client::Client::metric))?;
        let own = Announcement { router_id: self.router_id, seqno: entry.seqno, metric };
        if !self.sources.feasible(prefix, own)
            && self.sources.get(prefix, self.router_id).is_some_and(|source| source.metric != metric)
        {
            entry.seqno = entry.seqno.plus(1);
        }
        let seqno = entry.seqno;
        self.used(seqno);
        Some(Announcement { router_id: self.router_id, seqno, metric })
    }

    /// A sequence number of this node is in use; a restart has to start beyond it.
    pub(super) fn used(&mut self, seqno: Seqno) {
        if seqno.newer_than(self.seqno) {
            self.seqno = seqno;
        }
        if self.ceiling.is_some_and(|ceiling| !ceiling.newer_than(self.seqno)) {
            self.ceiling = Some(self.seqno.plus(CEILING));
            self.keep_due = true;
        }
    }

    /// Starts a hold when a prefix ceases to be reachable, and ends it when it is again, or when everybody knows (§3.5.4).
    fn hold(&mut self, prefix: IpNet, was_announced: bool) {
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let ended = entry.hold.as_ref().is_some_and(|hold| hold.owed.is_empty() || hold.until <= now);
        if ended || entry.selected.is_some() || was_announced {
            self.holds.end(prefix, entry);
        }
        if entry.selected.is_none() && was_announced {
            let reachable = self.neighbours.iter().filter(|(_, neighbour)| neighbour.cost() != INFINITY);
            let owed: BTreeSet<PeerId> = reachable.map(|(&peer, _)| peer).collect();
            self.work += owed.len() as u64;
            self.holds.begin(prefix, entry, owed, now + longest_hold());
        }
    }

    fn install(&mut self, prefix: IpNet, out: &mut Vec<Action>) {
        let selector = selector(prefix, &self.neighbours, &self.sources, self.max_routes, self.now);
        let Some(entry) = self.table.entries.get(&prefix) else { return };
        let hops = match (entry.selected, entry.announced) {
            (Some(Selected::Via(peer)), Some(route)) => Some(selector.hops(entry, peer, route)),
            // What is the host's own is not ours to install.
            (Some(Selected::Local), _) if entry.host.is_some() => None,
            (Some(Selected::Local), _) => entry.client.map(NextHops::single),
            // A shorter prefix must not be followed while somebody may still send this one here.
            _ => entry.hold.as_ref().map(|_| NextHops::UNREACHABLE),
        };
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        if entry.installed != hops {
            entry.installed.clone_from(&hops);
            out.push(match hops {
                Some(hops) => Action::Install { prefix, hops },
                None => Action::Remove { prefix },
            });
        }
    }

    /// Triggered updates (§3.7.2).
    fn tell(&mut self, prefix: IpNet, (old_via, old): (Option<PeerId>, Option<Announcement>)) {
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let (via, new) = (entry.via(), entry.announced);
        let news = match (old, new) {
            (None, None) => None,
            (Some(old), Some(new)) if old.router_id == new.router_id => {
                let by = new.metric.abs_diff(entry.told_metric);
                if by >= METRIC_JUMP {
                    Some(Urgency::Urgent)
                } else if by >= (entry.told_metric / 4).max(96) {
                    Some(Urgency::Changed)
                } else if new.seqno.newer_than(old.seqno) {
                    Some(Urgency::Newer)
                } else {
                    None
                }
            }
            _ => Some(Urgency::Urgent),
        };
        if let (Some(_), Some(new)) = (news, new) {
            entry.told_metric = new.metric;
        }
        let urgent = now + self.jitter.shorten(URGENT_DELAY, 2);
        let later =
            now + self.jitter.shorten(if news == Some(Urgency::Newer) { NEW_SEQNO_DELAY } else { CHANGED_DELAY }, 2);
        // Split horizon: the next hop knows. If it had another route from here, it has to hear that it is gone.
        let spared = via.filter(|_| old.is_none() || old_via == via);
        // Mostly there is nothing to tell: then nobody is looked at.
        let concerned = (news.is_some() || old_via != via).then(|| self.neighbours.iter_mut());
        self.work += concerned.as_ref().map_or(0, |concerned| concerned.len() as u64);
        for (&peer, neighbour) in concerned.into_iter().flatten().filter(|(_, neighbour)| neighbour.is_acquired()) {
            match news {
                _ if spared == Some(peer) => {}
                Some(Urgency::Urgent) => neighbour.out.urgent(prefix, urgent),
                Some(_) if old_via == Some(peer) && old_via != via => neighbour.out.urgent(prefix, urgent),
                Some(Urgency::Changed | Urgency::Newer) => neighbour.out.normal(prefix, later),
                None if via == Some(peer) && old_via != via => neighbour.out.normal(prefix, later),
                // It was spared, or told that there was no other way here; now there is, and it may need it.
                None if old_via == Some(peer) && old_via != via => neighbour.out.urgent(prefix, urgent),
                None => {}
            }
        }
        let Some(new) = new else { return };
        for peer in self.requests.answered(prefix, new) {
            if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.out.urgent(prefix, urgent);
            }
        }
    }

    /// Avoiding starvation (§3.8.2.1): without a feasible route, everybody who has one that is not is asked, for as long
    /// as that lasts. A much better one that is not feasible is asked for too (§3.8.2.2).
    fn want(&mut self, prefix: IpNet) {
        let Some(entry) = self.table.entries.get(&prefix) else { return };
        let cost = |peer| self.neighbours.get(&peer).map_or(INFINITY, crate::neighbour::Neighbour::cost);
        let reached = |(&peer, route): (&PeerId, &crate::table::route::Route)| add(cost(peer), route.metric);
        let usable = entry.routes.iter().filter(|&route| reached(route) != INFINITY);
        let unfeasible = usable.filter(|(_, route)| !self.sources.feasible(prefix, route.announcement()));
        let wanted: Vec<(crate::wire::types::RouterId, Option<PeerId>)> = match entry.announced {
            None => unfeasible.map(|(_, route)| (route.router_id, None)).collect(),
            Some(selected) => unfeasible
                .filter(|&(peer, route)| {
                    reached((peer, route)) < selected.metric - (selected.metric / 4).max(96).min(selected.metric)
                })
                .map(|(&peer, route)| (route.router_id, Some(peer)))
                .collect(),
        };
        if wanted.is_empty() && entry.announced.is_none() {
            self.requests.give_up(prefix);
        }
        for (router_id, whom) in wanted {
            self.ask(prefix, router_id, whom);
        }
    }

    fn wake(&mut self, prefix: IpNet, look_again: bool) {
        let now = self.now;
        let Some(entry) = self.table.entries.get(&prefix) else { return };
        let next = next_look(entry).into_iter().chain(look_again.then_some(now + crate::params::RESELECT)).min();
        self.table.wake(prefix, next);
    }

    /// This neighbour cannot be reached any more, and need not acknowledge anything.
    pub(super) fn release_holds_of(&mut self, peer: PeerId) {
        for prefix in self.holds.release(peer) {
            self.work += 1;
            if let Some(hold) = self.table.entries.get_mut(&prefix).and_then(|entry| entry.hold.as_mut()) {
                hold.owed.remove(&peer);
                self.stale.insert(prefix);
            }
        }
    }
}

/// When something about a prefix changes by itself.
fn next_look(entry: &Entry) -> Option<Instant> {
    let via = entry.via();
    let routes = entry.routes.iter().flat_map(|(&peer, route)| {
        let refresh = route.refresh_at.filter(|_| via == Some(peer));
        [Some(route.expires), refresh].into_iter().flatten()
    });
    routes.chain(entry.hold.as_ref().map(|hold| hold.until)).min()
}
