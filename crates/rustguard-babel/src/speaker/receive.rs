//! Packets in: Hellos, IHUs, acknowledgments, updates, requests.
use super::{Babel, NameClaim, selector};
use crate::{
    params::{
        HOP_COUNT, MAX_UNKNOWN_PREFIXES, METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT, REORDERED, URGENT_DELAY,
        from_centis, hold,
    },
    table::route::{Rival, Route, Selected, SmoothedMetric},
    wire::{
        ip,
        parse::Tlvs,
        tlv::Tlv,
        types::{Announcement, INFINITY, RouterId, Seqno, add, micros},
    },
};
use core::{net::IpAddr, time::Duration};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Action, SourceRule},
};
use std::collections::BTreeSet;

/// An Update TLV with a finite metric.
struct Update {
    prefix: IpNet,
    router_id: RouterId,
    seqno: Seqno,
    metric: u16,
    interval: u16,
}

impl Babel {
    pub(super) fn receive(&mut self, peer: PeerId, packet: &[u8], out: &mut Vec<Action>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else {
            self.counters.not_a_router += 1;
            return;
        };
        neighbour.heard(now);
        neighbour.out.heard(now);
        let Some((source, mut tlvs)) =
            ip::unwrap(packet).and_then(|(source, datagram)| Some((source, Tlvs::new(datagram)?)))
        else {
            self.counters.not_babel += 1;
            return;
        };
        let (mut sent, mut timestamps, mut named) = (None, None, None);
        let mut restarted = false;
        // Of these prefixes, one look in a packet is enough to see that their update is not followed.
        let mut unfeasible = BTreeSet::new();
        for tlv in tlvs.by_ref() {
            self.work += 1;
            let Some(neighbour) = self.neighbours.get_mut(&peer) else { break };
            match tlv {
                Tlv::Hello { unicast, seqno, interval, sent: at } => {
                    sent = at;
                    let first = match neighbour.hello(unicast, seqno, interval, now) {
                        Ok(first) => first,
                        // It starts once in a packet at most: what contradicts itself is no news.
                        Err(_restarted) if restarted => continue,
                        Err(_restarted) => {
                            restarted = true;
                            self.forget_neighbour(peer);
                            let Some(neighbour) = self.neighbours.get_mut(&peer) else { break };
                            neighbour.hello(unicast, seqno, interval, now).unwrap_or(true)
                        }
                    };
                    if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                        neighbour.address = Some(source);
                        if first {
                            // Two that find each other need not wait for their timers.
                            neighbour.out.hello_now(now);
                        }
                    }
                }
                Tlv::Ihu { address, rxcost, interval, timestamps: stamps } => {
                    if address.is_none_or(|address| address == IpAddr::from(self.source)) {
                        neighbour.ihu(rxcost, interval, now);
                        timestamps = stamps;
                    }
                }
                // Somebody whose Hellos never came is no neighbour (§3.3). What is ignored must not be acknowledged either:
                // it would not come again.
                _ if !neighbour.is_acquired() => {}
                Tlv::AckRequest { opaque, .. } => neighbour.out.ack(opaque, now),
                Tlv::Ack { opaque } => self.acknowledged(peer, opaque),
                Tlv::Update { prefix, router_id, seqno, metric, interval } => {
                    self.update(peer, &Update { prefix, router_id, seqno, metric, interval }, &mut unfeasible, out);
                    if let Some(name) = named.filter(|&(named, _)| named == router_id).map(|(_, name)| name) {
                        self.claims.push(NameClaim { peer, prefix, router_id, name });
                    }
                }
                Tlv::Name { router_id, name } => named = Some((router_id, name)),
                Tlv::Retraction { prefix: Some(prefix) } => {
                    self.ask_if_overtaken(prefix, peer, true);
                    self.retracted(prefix, peer);
                }
                Tlv::Retraction { prefix: None } => self.retract_all(peer),
                Tlv::RouteRequest { prefix } => self.route_request(peer, prefix),
                Tlv::SeqnoRequest { prefix, router_id, seqno, hop_count } => {
                    self.seqno_request(peer, (prefix, router_id, seqno), hop_count);
                }
            }
        }
        self.counters.malformed += u64::from(tlvs.malformed());
        if let (Some(sent), Some(neighbour)) = (sent, self.neighbours.get_mut(&peer)) {
            neighbour.rtt.hello(sent, timestamps, micros(now));
        }
        self.assess(peer, out);
    }

    /// Takes the names in a packet. The neighbour by which packets go to somebody has the say; any that announces a route there is
    /// heard while there is no name, because its route may be selected later.
    pub(super) fn take_names(&mut self) {
        let now = self.now;
        for NameClaim { peer, prefix, router_id, name } in self.claims.drain(..) {
            self.work += 1;
            let Some(entry) = self.table.entries.get(&prefix) else { continue };
            let leads = entry.via() == Some(peer) && entry.announced.is_some_and(|route| route.router_id == router_id);
            let may = |route: &Route| route.is_finite() && route.router_id == router_id;
            if leads || self.names.get(router_id).is_none() && entry.routes.get(&peer).is_some_and(may) {
                self.names.learn(router_id, name, peer, now);
            }
        }
    }

    fn acknowledged(&mut self, peer: PeerId, opaque: u16) {
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        for sent in neighbour.out.acknowledged(opaque) {
            let hold = self.table.entries.get_mut(&sent.prefix).and_then(|entry| entry.hold.as_mut());
            if let Some(hold) = hold.filter(|hold| sent.hold == Some(hold.number)) {
                hold.owed.remove(&peer);
                self.holds.acknowledged(sent.prefix, peer);
                self.stale.insert(sent.prefix);
            }
        }
    }

    /// Route acquisition (§3.5.3).
    fn update(&mut self, peer: PeerId, update: &Update, unfeasible: &mut BTreeSet<IpNet>, out: &mut Vec<Action>) {
        let &Update { prefix, router_id, seqno, metric, interval } = update;
        let now = self.now;
        let Some(neighbour) = self.neighbours.get(&peer) else { return };
        if router_id == self.router_id {
            self.echoed(prefix, seqno);
            return self.retracted(prefix, peer);
        }
        let refused = if crate::config::is_martian(&prefix) {
            Some(&mut self.counters.martian)
        } else if !crate::config::is_within(&neighbour.allowed, &prefix) {
            Some(&mut self.counters.outside_allowed_ips)
        } else if !crate::config::pinned_to(&self.pins, &prefix, router_id) {
            Some(&mut self.counters.pinned)
        } else {
            None
        };
        if let Some(counter) = refused {
            *counter += 1;
            return self.retracted(prefix, peer);
        }
        let known = self.table.entries.get(&prefix).and_then(|entry| entry.routes.get(&peer)).copied();
        if known.is_none() && neighbour.routes >= self.max_routes {
            self.counters.too_many_routes += 1;
            return;
        }
        let feasible = self.sources.feasible(prefix, Announcement { router_id, seqno, metric });
        if !feasible
            && known.is_some_and(|known| known.is_finite() && known.router_id == router_id)
            && (unfeasible.contains(&prefix) || !self.follows_unfeasible(prefix, peer, add(neighbour.cost(), metric)))
        {
            unfeasible.insert(prefix);
            // Its path became longer than what this node announced: that must not be used before the origin is asked. What
            // is installed leads to the origin still.
            self.counters.unfeasible += 1;
            return self.ask(prefix, router_id, Some(peer));
        }
        self.ask_if_overtaken(prefix, peer, false);
        let Some(neighbour) = self.neighbours.get(&peer) else { return };
        let interval = if interval == u16::MAX { Duration::from_secs(86_400) } else { from_centis(interval) };
        let lifetime = hold(interval);
        let average = add(neighbour.cost(), metric);
        let route = Route {
            router_id,
            seqno,
            metric,
            at: now,
            interval,
            expires: now + lifetime,
            refresh_at: Some(now + lifetime * 7 / 8),
            smoothed: known.filter(Route::is_finite).map_or(SmoothedMetric::new(average, now), |known| known.smoothed),
        };
        if self.table.learn(prefix, peer, route).is_none() {
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Any });
            if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.routes += 1;
            }
        }
        self.stale.insert(prefix);
        // Somebody waits for this number, but what is announced to them is what is selected, which is not chosen by
        // number: the request has to go that way too.
        let selected = self.table.entries.get(&prefix).and_then(|entry| entry.via());
        if let Some(wanted) = self.requests.awaited(prefix, router_id, seqno)
            && let Some(selected) = selected.filter(|&selected| selected != peer)
            && let Some(neighbour) = self.neighbours.get_mut(&selected)
        {
            neighbour.out.seqno_requests.insert((prefix, router_id), (wanted, HOP_COUNT));
            neighbour.out.flush_by(now + URGENT_DELAY);
        }
    }

    /// Whether an unfeasible update of the selected route is taken as it is, which unselects it: when there is another
    /// feasible one that is no longer than what this one became (§3.5.3 leaves the choice).
    fn follows_unfeasible(&mut self, prefix: IpNet, peer: PeerId, metric: u16) -> bool {
        let Some(entry) = self.table.entries.get(&prefix) else { return true };
        if entry.selected != Some(Selected::Via(peer)) {
            return true;
        }
        self.work += entry.routes.len() as u64;
        let selector = selector(prefix, &self.neighbours, &self.sources, self.max_routes, self.now);
        entry.routes.iter().any(|(&other, route)| {
            let reached = add((selector.cost)(other), route.metric);
            other != peer
                && reached != INFINITY
                && reached <= metric
                && selector.is_feasible(other, route.announcement())
        })
    }

    /// An announcement and a retraction that come so close to each other may have changed places on the way, and nothing in
    /// them says which is the later: the neighbour is asked.
    fn ask_if_overtaken(&mut self, prefix: IpNet, peer: PeerId, was_finite: bool) {
        let now = self.now;
        let Some(route) = self.table.entries.get_mut(&prefix).and_then(|entry| entry.routes.get_mut(&peer)) else {
            return;
        };
        if route.is_finite() == was_finite
            && now.since(route.at) < REORDERED
            && let Some(neighbour) = self.neighbours.get_mut(&peer)
        {
            neighbour.out.route_requests.insert(prefix);
            neighbour.out.flush_by(now + URGENT_DELAY);
        }
        route.at = now;
    }

    fn retracted(&mut self, prefix: IpNet, peer: PeerId) {
        if self.table.retract(prefix, peer, self.now) {
            self.stale.insert(prefix);
        }
    }

    /// A request for an update (§3.8.1.1): everything, or one prefix, which is retracted if there is nothing to announce.
    fn route_request(&mut self, peer: PeerId, prefix: Option<IpNet>) {
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
    fn seqno_request(&mut self, peer: PeerId, wanted: (IpNet, RouterId, Seqno), hop_count: u8) {
        let (prefix, router_id, seqno) = wanted;
        let now = self.now;
        let Some(announced) = self.table.entries.get(&prefix).and_then(|entry| entry.announced) else { return };
        if announced.router_id == router_id && router_id != self.router_id && seqno.newer_than(announced.seqno) {
            return self.forward(peer, wanted, hop_count);
        }
        if announced.router_id == router_id && router_id == self.router_id {
            self.raise(prefix, seqno);
        }
        if let Some(neighbour) = self.neighbours.get_mut(&peer) {
            neighbour.out.urgent(prefix, now + URGENT_DELAY);
        }
    }

    fn forward(&mut self, from: PeerId, (prefix, router_id, seqno): (IpNet, RouterId, Seqno), hop_count: u8) {
        let now = self.now;
        let Some(entry) = self.table.entries.get(&prefix) else { return };
        self.work += entry.routes.len() as u64;
        let target = {
            let selector = selector(prefix, &self.neighbours, &self.sources, self.max_routes, now);
            // The selected route leads to the origin, and its answer will be announced; then other feasible ones; then any.
            entry
                .routes
                .iter()
                .filter(|&(&peer, route)| peer != from && add((selector.cost)(peer), route.metric) != INFINITY)
                .min_by_key(|&(&peer, route)| {
                    let feasible = selector.is_feasible(peer, route.announcement());
                    (
                        entry.via() != Some(peer),
                        !feasible,
                        route.router_id != router_id,
                        add((selector.cost)(peer), route.metric),
                        peer,
                    )
                })
                .map(|(&peer, _)| peer)
        };
        let Some(target) = target.filter(|_| hop_count >= 2) else { return };
        if !self.requests.forward(prefix, router_id, seqno, from, now) {
            self.counters.requests_dropped += 1;
            return;
        }
        if let Some(neighbour) = self.neighbours.get_mut(&target) {
            neighbour.out.seqno_requests.insert((prefix, router_id), (seqno, hop_count - 1));
            neighbour.out.flush_by(now + URGENT_DELAY / 2);
        }
    }

    /// Asks for a sequence number that makes routes of this origin feasible: this neighbour, or all that have a route.
    pub(super) fn ask(&mut self, prefix: IpNet, router_id: RouterId, whom: Option<PeerId>) {
        let Some(source) = self.sources.get(prefix, router_id) else { return };
        let seqno = source.seqno.plus(1);
        if self.requests.want(prefix, router_id, seqno, self.now) {
            self.request(prefix, router_id, seqno, |peer, _| whom.is_none_or(|whom| peer == whom));
        }
    }

    /// Asks again: everybody when there is no other way, and those who have what is wanted otherwise.
    pub(super) fn repeat_request(&mut self, prefix: IpNet, router_id: RouterId, seqno: Seqno, everybody: bool) {
        self.request(prefix, router_id, seqno, |_, route| everybody || route.router_id == router_id);
    }

    fn request(&mut self, prefix: IpNet, router_id: RouterId, seqno: Seqno, whom: impl Fn(PeerId, &Route) -> bool) {
        let at = self.now + URGENT_DELAY / 2;
        let Some(entry) = self.table.entries.get(&prefix) else { return };
        self.work += entry.routes.len() as u64;
        for (peer, _) in entry.routes.iter().filter(|&(&peer, route)| route.is_finite() && whom(peer, route)) {
            if let Some(neighbour) = self.neighbours.get_mut(peer).filter(|neighbour| neighbour.cost() != INFINITY) {
                neighbour.out.seqno_requests.insert((prefix, router_id), (seqno, HOP_COUNT));
                neighbour.out.flush_by(at);
            }
        }
    }

    /// Another gateway announces that a client of this one talks to it, or that it just came there.
    pub(super) fn look_for_rival(&mut self, prefix: IpNet) {
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        let Some(client) = entry.client.and_then(|client| self.clients.get_mut(&client)) else { return };
        let live = entry.routes.values().filter(|route| route.metric < METRIC_CLIENT_IDLE);
        let rival = live.min_by_key(|route| route.metric);
        // Whoever has it for longer is as far as that at least.
        let rival =
            rival.map(|route| Rival { router_id: route.router_id, is_new: route.metric < METRIC_CLIENT_PRESENT });
        if let Some(rival) = rival
            && entry.rival.is_none_or(|before| rival.router_id != before.router_id || rival.is_new && !before.is_new)
        {
            client.contested(self.now);
        }
        entry.rival = rival;
    }
}
