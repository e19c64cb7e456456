//! The speaker: one per interface, a neighbour per router among the peers.
//!
//! An event changes tables and marks prefixes as stale. Stale prefixes are decided about in the same call, as many as there is time
//! for; a prefix that has to wait is announced as it was, as if the news of it were still on its way. What is to be said waits
//! in the neighbours' outboxes until [`Event::Time`]. Received packets are in `speaker/receive.rs`,
//! decisions in `speaker/decide.rs`, the own router-id and numbers in `speaker/identity.rs`, timers in `speaker/timers.rs`,
//! packets out in `speaker/transmit.rs`.
mod decide;
mod identity;
mod receive;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;

use crate::{
    client::clients::Clients,
    config::{Config, Pin, Start, is_martian, is_within},
    jitter::Jitter,
    name::{Name, Names},
    neighbour::{Neighbour, neighbours::Neighbours},
    params::{SUSPENDED, SWEEP_INTERVAL},
    report::{self, Counters, NeighbourReport, RouteReport},
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
use ipnet::IpNet;
use rand_core::CryptoRng;
use rustguard_core::{
    node::PeerId,
    routing::{Action, Event, PeerRoutes, Report, Role, RoutingEngine, Signal, SourceRule},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;

/// How far ahead a kept sequence number is of the one in use: it is kept again after so many steps.
const CEILING: u16 = 256;

/// A name that came with an update.
#[derive(Debug)]
struct NameClaim {
    peer: PeerId,
    prefix: IpNet,
    router_id: RouterId,
    name: Name,
}

/// Babel (RFC 8966) for the peers of an interface.
#[derive(Debug)]
pub struct Babel {
    key: PublicKey,
    /// What is not of the key in the router-id.
    number: u16,
    router_id: RouterId,
    /// The least sequence number that this run has given out.
    first: Seqno,
    /// When the router-id was last changed.
    renumbered: Option<identity::RouterIdChange>,
    /// When the sequence numbers last went beyond what somebody else had said.
    leaped: Option<Instant>,
    /// The highest that any prefix of this node has, where new ones start.
    seqno: Seqno,
    /// What a restart must start beyond; `None`: nothing is kept.
    ceiling: Option<Seqno>,
    keep_due: bool,
    source: Ipv6Addr,
    address_v4: Option<Ipv4Addr>,
    pins: Vec<Pin>,
    name: Option<Name>,
    names: Names,
    /// Names in the packet that is being read, with what they came with.
    claims: Vec<NameClaim>,
    max_routes: usize,
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
        let [random, ..] = jitter.next().to_be_bytes().map(u16::from);
        let (number, seqno) = match &config.start {
            Start::Kept(bytes) if let &[a, b, high, low] = bytes.as_slice() => {
                (u16::from_be_bytes([a, b]), Seqno(u16::from_be_bytes([high, low])).plus(1))
            }
            // Also when what was kept is not what was given out.
            _ => (jitter.number(), Seqno(random)),
        };
        let kept = config.start != Start::Random;
        Self {
            key: config.key,
            number,
            router_id: RouterId::numbered(&config.key, number),
            first: seqno,
            renumbered: None,
            leaped: None,
            seqno,
            ceiling: kept.then_some(seqno.plus(CEILING)),
            keep_due: kept,
            source: link_local(&config.key),
            address_v4: config.address_v4,
            pins: config.pins,
            name: config.name,
            names: Names::default(),
            claims: Vec::new(),
            max_routes: config.max_routes,
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
        self.router_id
    }

    /// The routers among the peers.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourReport> {
        self.neighbours.iter().map(|(&peer, neighbour)| NeighbourReport {
            peer,
            heard: neighbour.is_acquired(),
            cost: Some(neighbour.cost()).filter(|&cost| cost != INFINITY),
            round_trip: neighbour.rtt.smoothed(),
            routes: neighbour.routes,
        })
    }

    /// The route table.
    pub fn routes(&self) -> impl Iterator<Item = RouteReport> {
        self.table.entries.iter().map(|(&prefix, entry)| {
            let selector = selector(prefix, &self.neighbours, &self.sources, self.max_routes, self.now);
            let learned = entry.routes.iter().filter(|(_, route)| route.is_finite()).map(|(&peer, route)| {
                let feasible = selector.is_feasible(peer, route.announcement());
                (peer, route.router_id, route.seqno, route.metric, feasible)
            });
            RouteReport {
                prefix,
                selected: entry.announced.map(|route| (route.router_id, route.seqno, route.metric)),
                local: entry.selected == Some(Selected::Local),
                hops: entry.installed.clone(),
                learned: learned.collect(),
            }
        })
    }

    /// How much was looked at so far: TLVs, prefixes, routes, neighbours that had to hear of something. It grows with the time that
    /// this speaker takes, and is the same on every machine. One call adds a bounded part: what is left to do then is due at
    /// once ([`RoutingEngine::deadline`]).
    pub fn work(&self) -> u64 {
        self.work
    }

    /// What nodes are called, this one included, as they say themselves or as those on the way there do.
    pub fn names(&self) -> impl Iterator<Item = (RouterId, Name)> {
        self.names.iter().chain(self.name.map(|name| (self.router_id, name)))
    }

    /// What was passed over so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

impl RoutingEngine for Babel {
    /// Tells all neighbours that nothing is reachable through this node any more.
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
            Event::Time => {}
        }
        self.tick(out);
        self.take_names();
        if core::mem::take(&mut self.keep_due)
            && let Some(ceiling) = self.ceiling
        {
            // Before the packets that the numbers are in.
            let bytes = [self.number.to_be_bytes(), ceiling.0.to_be_bytes()].concat();
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
            Role::Client => {
                self.remove_neighbour(peer, out);
                self.set_client(peer, allowed, out);
            }
            Role::Router => {
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
            // What was refused before may be permitted now.
            neighbour.out.wildcard_request = Some(0);
            neighbour.out.flush_by(now);
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

    /// Forgets a route at once, and the permission with it.
    fn drop_route(&mut self, prefix: IpNet, peer: PeerId, out: &mut Vec<Action>) {
        if self.table.forget(prefix, peer) {
            if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                neighbour.routes -= 1;
            }
            out.push(Action::Forbid { peer, prefix });
            self.stale.insert(prefix);
        }
    }

    fn set_client(&mut self, peer: PeerId, allowed: Vec<IpNet>, out: &mut Vec<Action>) {
        let before = self.clients.get(&peer).map(|client| client.prefixes.clone()).unwrap_or_default();
        for &prefix in before.iter().filter(|prefix| !allowed.contains(prefix)) {
            self.take_from_client(prefix, peer, out);
        }
        for &prefix in &allowed {
            let entry = origin(&mut self.table, prefix, self.seqno);
            if entry.client == Some(peer) {
                continue;
            }
            // As with allowed IPs: a prefix belongs to the peer that was given it last.
            out.extend(entry.client.map(|peer| Action::Forbid { peer, prefix }));
            entry.client = Some(peer);
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Longest });
            self.stale.insert(prefix);
        }
        self.clients.set(peer, allowed);
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
            origin(&mut self.table, prefix, self.seqno).host = metric;
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
                Signal::Carried | Signal::Unanswered | Signal::RoundTrip(_) => false,
            };
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
                // Perhaps after long: whoever is there should know soon.
                Signal::HandshakeComplete => {
                    neighbour.heard(now);
                    if neighbour.cost() == INFINITY {
                        neighbour.out.hello_now(now);
                    }
                }
            }
            self.assess(peer, out);
        }
    }
}

/// The entry of a prefix of this node. Whatever it announced for it before, the highest number is not older.
fn origin(table: &mut Table, prefix: IpNet, seqno: Seqno) -> &mut Entry {
    let entry = table.entries.entry(prefix).or_default();
    if !entry.is_own() {
        entry.seqno = seqno;
    }
    entry
}

/// What route selection looks at.
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
