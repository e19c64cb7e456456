//! The speaker: one for each interface, with a neighbour for each router among the peers.
//!
//! An event changes tables and marks prefixes as stale. The same call decides about stale prefixes, as many as it has
//! time for. A prefix that has to wait is announced unchanged, as if the change had not arrived yet. Updates and
//! requests wait in the neighbours' outboxes until [`Event::Time`].
//!
//! | File | Content |
//! |---|---|
//! | `receive.rs` | received packets; Hellos, IHUs and acknowledgments |
//! | `updates.rs` | received updates and retractions |
//! | `requests.rs` | route requests and seqno requests, received and own |
//! | `decide.rs` | which route is selected, installed and announced |
//! | `identity.rs` | the own router-id and sequence numbers |
//! | `timers.rs` | timers |
//! | `transmit.rs` | packets to neighbours |
mod decide;
mod identity;
mod receive;
mod requests;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod updates;

use crate::{
    client::clients::Clients,
    config::Config,
    filter::{ImportFilter, is_martian, is_within},
    jitter::Jitter,
    name::Name,
    names::Names,
    neighbour::{Neighbour, neighbours::Neighbours},
    params::{SUSPENDED, SWEEP_INTERVAL},
    report::{self, Counters, LearnedRoute, NeighbourReport, RouteReport},
    table::{
        hold::Holds,
        request::Requests,
        route::{Entry, Selected, Table},
        select::Selector,
        source::Sources,
        stale::Stale,
    },
    wire::{
        ip,
        types::{INFINITY, RouterId, Seqno, link_local},
    },
};
use core::net::{Ipv4Addr, Ipv6Addr};
use identity::Identity;
use ipnet::IpNet;
use rand_core::CryptoRng;
use rustguard_core::{
    node::PeerId,
    routing::{Action, Event, PeerRoutes, Report, Role, RoutingEngine, Signal, SourceRule},
    time::Instant,
};

/// Babel (RFC 8966) for the peers of an interface.
#[derive(Debug)]
pub struct Babel {
    identity: Identity,
    /// The link-local source address of packets, which IHUs also contain.
    address: Ipv6Addr,
    /// See [`Config::address_v4`].
    address_v4: Option<Ipv4Addr>,
    filter: ImportFilter,
    /// This node's own name.
    name: Option<Name>,
    names: Names,
    /// Names in the packet that is being read, with the updates that they came with.
    name_claims: Vec<receive::NameClaim>,
    neighbours: Neighbours,
    clients: Clients,
    table: Table,
    sources: Sources,
    requests: Requests,
    /// Prefixes to decide about.
    stale: Stale,
    holds: Holds,
    /// See [`Babel::work`].
    work: u64,
    sweep_at: Option<Instant>,
    jitter: Jitter,
    now: Instant,
    counters: Counters,
}

impl Babel {
    /// A speaker without peers.
    pub fn new(config: Config, rng: &mut impl CryptoRng) -> Self {
        let mut seed = [0; 8];
        rng.fill_bytes(&mut seed);
        let mut jitter = Jitter(u64::from_be_bytes(seed));
        let identity = Identity::new(config.key, &config.start, &mut jitter);
        Self {
            identity,
            address: link_local(&config.key),
            address_v4: config.address_v4,
            filter: ImportFilter { pins: config.pins, max_routes: config.max_routes },
            name: config.name,
            names: Names::default(),
            name_claims: Vec::new(),
            neighbours: Neighbours::default(),
            clients: Clients::default(),
            table: Table::default(),
            sources: Sources::default(),
            requests: Requests::default(),
            stale: Stale::default(),
            holds: Holds::default(),
            work: 0,
            sweep_at: None,
            jitter,
            now: Instant::default(),
            counters: Counters::default(),
        }
    }

    /// This node's router-id.
    pub fn router_id(&self) -> RouterId {
        self.identity.router_id()
    }

    /// The routers among the peers.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourReport> {
        self.neighbours.iter().map(|(&peer, neighbour)| {
            let mut report = NeighbourReport::new(peer);
            report.heard = neighbour.is_acquired();
            report.cost = Some(neighbour.cost()).filter(|&cost| cost != INFINITY);
            report.round_trip = neighbour.rtt.smoothed();
            report.routes = neighbour.routes;
            report.wants_macs = neighbour.wants_macs;
            report
        })
    }

    /// The route table.
    pub fn routes(&self) -> impl Iterator<Item = RouteReport> {
        self.table.entries.iter().map(|(&prefix, entry)| {
            let selector = selector(prefix, &self.neighbours, &self.sources, self.filter.max_routes, self.now);
            let learned = entry.routes.iter().filter(|(_, route)| route.is_finite()).map(|(&peer, route)| {
                let announcement = route.announcement();
                LearnedRoute { peer, announcement, feasible: selector.is_feasible(peer, announcement) }
            });
            RouteReport {
                prefix,
                selected: entry.announced,
                local: entry.selected == Some(Selected::Local),
                hops: entry.installed.clone(),
                learned: learned.collect(),
            }
        })
    }

    /// How many TLVs, prefixes, routes and neighbours were looked at so far. The number grows with the time that this
    /// speaker takes, and is the same on every machine. One call adds a bounded part; the rest of the work is then
    /// due at once ([`RoutingEngine::deadline`]).
    pub fn work(&self) -> u64 {
        self.work
    }

    /// The names of nodes, this one included, as they or the nodes on the way announce them.
    pub fn names(&self) -> impl Iterator<Item = (RouterId, Name)> {
        self.names.iter().chain(self.name.map(|name| (self.router_id(), name)))
    }

    /// The counters of refused packets and TLVs.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

impl RoutingEngine for Babel {
    /// Retracts all routes towards all neighbours.
    fn leave(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        self.retract_everything(out);
    }

    fn report(&self) -> Report {
        report::of(self)
    }

    fn handle(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>) {
        let expected = self.next_deadline().unwrap_or(now);
        if now.since(expected) > SUSPENDED {
            self.sources.postpone(now.since(expected));
        }
        self.now = self.now.max(now);
        self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
        match event {
            Event::Peer { peer, config } => self.set_peer(peer, config, out),
            Event::PeerRemoved { peer } => {
                self.remove_neighbour(peer, out);
                self.remove_client(peer, out);
            }
            Event::Packet { peer, packet } => self.receive(peer, packet, out),
            Event::Signal { peer, signal } => self.signal(peer, signal, out),
            Event::Announce { prefix, metric } => {
                self.set_host(prefix, Some(metric).filter(|&metric| metric != INFINITY));
            }
            Event::Withdraw { prefix } => self.set_host(prefix, None),
            // `Event::Time`, and unknown events of later versions.
            _ => {}
        }
        self.tick(out);
        self.take_names();
        if let Some(bytes) = self.identity.take_state() {
            // This comes before the packets that contain the numbers.
            out.insert(0, Action::Keep { bytes });
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        Some(ip::is_babel)
    }
}

impl Babel {
    fn set_peer(&mut self, peer: PeerId, config: &PeerRoutes, out: &mut Vec<Action>) {
        let allowed: Vec<IpNet> = config.allowed_ips.iter().map(IpNet::trunc).collect();
        match config.role {
            Role::Client | Role::Member => {
                self.remove_neighbour(peer, out);
                self.set_client(peer, allowed, config.role == Role::Member, out);
            }
            Role::Router | Role::Server | Role::Gateway => {
                self.remove_client(peer, out);
                self.set_neighbour(peer, allowed, out);
            }
        }
    }

    fn set_neighbour(&mut self, peer: PeerId, allowed: Vec<IpNet>, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else {
            let [first, ..] = self.jitter.next().to_be_bytes().map(u16::from);
            let first = Seqno(first << 8 | u16::try_from(self.jitter.next() & 0xff).expect("a byte"));
            self.neighbours.insert(peer, Neighbour::new(allowed, first, now));
            return;
        };
        if neighbour.allowed == allowed {
            return;
        }
        neighbour.allowed.clone_from(&allowed);
        if neighbour.is_acquired() {
            // Routes that were refused before may be permitted now.
            neighbour.out.request_everything(now);
        }
        for prefix in self.table.of(peer) {
            if !is_within(&allowed, &prefix) {
                self.drop_route(prefix, peer, out);
            }
        }
    }

    fn remove_neighbour(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(neighbour) = self.neighbours.remove(&peer) else { return };
        for prefix in self.table.of(peer) {
            self.drop_route(prefix, peer, out);
        }
        self.requests.forget_peer(peer);
        self.release_holds_of(peer);
        if neighbour.cost() != INFINITY {
            out.push(Action::Neighbour { peer, cost: None });
        }
    }

    fn set_client(&mut self, peer: PeerId, allowed: Vec<IpNet>, stays: bool, out: &mut Vec<Action>) {
        let before = self.clients.get(&peer).map(|client| client.prefixes.clone()).unwrap_or_default();
        for &prefix in before.iter().filter(|prefix| !allowed.contains(prefix)) {
            self.take_from_client(prefix, peer, out);
        }
        for &prefix in &allowed {
            let entry = own_entry(&mut self.table, prefix, self.identity.newest());
            if entry.client == Some(peer) {
                continue;
            }
            // As with allowed IPs, a prefix belongs to the peer that it was last configured for.
            out.extend(entry.client.map(|peer| Action::Forbid { peer, prefix }));
            entry.client = Some(peer);
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Longest });
            self.stale.insert(prefix);
        }
        self.clients.set(peer, allowed, stays);
    }

    fn remove_client(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        for prefix in self.clients.remove(&peer).map(|client| client.prefixes).unwrap_or_default() {
            self.take_from_client(prefix, peer, out);
        }
    }

    fn take_from_client(&mut self, prefix: IpNet, peer: PeerId, out: &mut Vec<Action>) {
        if let Some(entry) = self.table.entries.get_mut(&prefix).filter(|entry| entry.client == Some(peer)) {
            entry.client = None;
            out.push(Action::Forbid { peer, prefix });
            self.stale.insert(prefix);
        }
    }

    fn set_host(&mut self, prefix: IpNet, metric: Option<u16>) {
        let prefix = prefix.trunc();
        if metric.is_some() && !is_martian(&prefix) {
            own_entry(&mut self.table, prefix, self.identity.newest()).host = metric;
        } else if let Some(entry) = self.table.entries.get_mut(&prefix) {
            entry.host = None;
        }
        self.stale.insert(prefix);
    }

    fn signal(&mut self, peer: PeerId, signal: Signal, out: &mut Vec<Action>) {
        let now = self.now;
        if let Some(client) = self.clients.get_mut(&peer) {
            let changed = match signal {
                Signal::Heard { data } => client.heard(data, now),
                Signal::HandshakeComplete => client.handshake_complete(now),
                Signal::HandshakeFailed => client.lost(),
                Signal::RoundTrip(took) => client.answered(took, now),
                Signal::Unanswered => {
                    client.unanswered(now);
                    false
                }
                _ => false,
            };
            client.act(peer, out);
            if changed {
                self.stale.extend(client.prefixes.iter().copied());
            }
        }
        if let Some(neighbour) = self.neighbours.get_mut(&peer) {
            match signal {
                Signal::Heard { .. } => neighbour.heard(now),
                Signal::Carried => neighbour.carried(now),
                Signal::Unanswered => neighbour.unanswered(now),
                Signal::HandshakeFailed => neighbour.handshake_failed(now),
                Signal::RoundTrip(rtt) => neighbour.rtt.sample(rtt),
                // The peer may have been away for long, and should find this node soon.
                Signal::HandshakeComplete => {
                    neighbour.heard(now);
                    if neighbour.cost() == INFINITY {
                        neighbour.out.hello_now(now);
                    }
                }
                _ => {}
            }
            self.work += 1;
            let change = neighbour.assess(now);
            self.link_changed(peer, change, out);
        }
    }
}

/// The table entry of a prefix of this node. A new entry begins with the highest sequence number in use, which is not
/// older than any earlier announcement of the prefix.
fn own_entry(table: &mut Table, prefix: IpNet, seqno: Seqno) -> &mut Entry {
    let entry = table.entries.entry(prefix).or_default();
    if !entry.is_own() {
        entry.seqno = seqno;
    }
    entry
}

/// The input of route selection besides the table entry.
fn selector<'a>(
    prefix: IpNet,
    neighbours: &'a Neighbours,
    sources: &'a Sources,
    max_routes: usize,
    now: Instant,
) -> Selector<'a, impl Fn(PeerId) -> u16 + 'a> {
    let cost = |peer| neighbours.get(&peer).map_or(INFINITY, Neighbour::cost);
    Selector { prefix, cost, sources, max_sources: max_routes.saturating_mul(crate::params::SOURCES_PER_ROUTE), now }
}
