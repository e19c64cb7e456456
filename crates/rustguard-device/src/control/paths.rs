//! The part of control for peers with several paths: carries out the orders of [`Paths`], and gives its choice to the
//! workers.

use super::{
    Control,
    discovery::looks_for_direct_ways,
    peer::{
        Peer,
        paths::{ConfiguredEndpoint, PeerPaths},
    },
    peer_log::{Line, Topic},
    tasks::Task,
    timer::now,
    transmit::Payload,
};
use crate::{
    config::{EndpointSpec, PathSpec},
    event::Event,
    interface::interface_index,
    path_set::PathSet,
    status::{self, PathStatus},
    way::Way,
};
use portable_atomic::Ordering::Relaxed;
use rustguard_core::{
    node::PeerId,
    paths::{Locator, MAX_ENDPOINTS, NO_PATH, Observation, Order, Paths, Probe},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::sync::Arc;

impl Control {
    /// Takes the endpoints that were configured.
    pub(super) fn set_endpoints(&mut self, peer: PeerId, mut specs: Vec<PathSpec>) {
        self.forget_race(peer);
        self.leave_relays(peer);
        let direct = self.peers.get(&peer).is_some_and(|entry| looks_for_direct_ways(entry.direct, &specs));
        specs.extend(self.fallbacks(peer, direct));
        specs.truncate(MAX_ENDPOINTS);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let policies: Vec<_> = specs.iter().map(|spec| spec.policy).collect();
        let instant = now().instant;
        // A peer with a session stays where it was last heard, whatever other endpoints are configured now.
        let several = entry.paths.as_ref().is_some_and(|known| known.paths.several());
        let reached = entry.way().filter(|_| !several && entry.shared.sealer.load().is_some());
        let can_rest = direct && rests(entry);
        match &mut entry.paths {
            Some(known) => {
                let was = |spec: &PathSpec| entry.endpoints.iter().position(|known| known.spec.is_same_path(spec));
                let endpoints: Vec<_> = specs.iter().map(|spec| (spec.policy, was(spec))).collect();
                known.paths.configure(&endpoints, direct, instant);
            }
            None if can_rest => {}
            None => {
                let paths = if direct { Paths::look_for_direct_ways } else { Paths::new }(&policies, instant);
                entry.paths = Some(Box::new(PeerPaths::new(paths))).filter(|new| !new.paths.is_plain());
            }
        }
        entry.endpoints = specs.into_iter().map(ConfiguredEndpoint::new).collect();
        entry.shared.has_configured_endpoint.store(!entry.endpoints.is_empty(), Relaxed);
        self.set_searching(peer, direct);
        let Some(entry) = self.peers.get(&peer) else { return };
        for path in 0..entry.endpoints.len() {
            self.find(peer, path, 0);
        }
        if let Some(reached) = reached {
            self.with_paths(peer, |paths, now| {
                if paths.several() {
                    paths.heard(reached.locator(), now);
                    paths.established(now);
                }
            });
        }
        self.paths_changed(peer);
    }

    /// Uses a configured address, or has a configured name resolved.
    pub(super) fn find(&mut self, peer: PeerId, path: usize, attempt: u32) {
        let Some(configured) = self.peers.get(&peer).and_then(|entry| entry.endpoints.get(path)) else { return };
        match configured.spec.endpoint {
            EndpointSpec::Address(remote) => self.found(peer, path, remote),
            EndpointSpec::Name(..) => self.resolve(peer, path, attempt),
            EndpointSpec::Peer(relay) => self.find_relay(peer, path, &relay),
        }
    }

    /// The address of a configured endpoint is known.
    pub(super) fn found(&mut self, peer: PeerId, path: usize, remote: std::net::SocketAddr) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(configured) = entry.endpoints.get_mut(path) else { return };
        if let Some(via) = &configured.spec.via {
            let index = interface_index(via);
            if let (Err(error), true) = (&index, configured.interface != Some(0)) {
                // Logged once; the path is used when the interface exists.
                let (spec, name) = (&configured.spec, entry.name.as_deref().unwrap_or("a peer"));
                tracing::warn!("the endpoint {spec} of {name} waits for its interface: {error}");
            }
            configured.interface = Some(index.unwrap_or(0));
        }
        if let Some(at) = configured.address_at(remote) {
            self.found_locator(peer, path, at.into());
        }
    }

    /// The locator of a configured endpoint is known.
    pub(super) fn found_locator(&mut self, peer: PeerId, path: usize, at: Locator) {
        let locators = self.locators_at_rest(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let known = entry.way().map(|way| way.locator());
        match &mut entry.paths {
            Some(peer_paths) if !peer_paths.paths.is_plain() => peer_paths.paths.put(path, at, now().instant),
            // The first known locator stays in use, as with `Paths`.
            None if locators.iter().any(|locator| known.is_some_and(|known| locator.covers(&known))) => {}
            // Our own address stays, once it was learned.
            _ if known.is_some_and(|known| at.covers(&known)) && at.address().is_none_or(|at| at.interface == 0) => {}
            _ => entry.shared.way.store(Some(Arc::new(at.into()))),
        }
        self.paths_changed(peer);
        self.tell_way(peer);
        self.tell_endpoints(peer);
        if known.is_none() {
            self.start(peer);
        }
    }

    /// Handles a probe of the peer's.
    pub(super) fn probe(&mut self, peer: PeerId, from: &Way, probe: &Probe) {
        let instant = now().instant;
        if let Probe::Reply(reply) = probe {
            self.observed(peer, reply);
        }
        self.wake_from_rest(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if let (None, Probe::Request(request)) = (&entry.paths, probe)
            && request.path == NO_PATH
        {
            // The peer only asks for its address as seen from here.
            let reply = Probe::Reply(request.reply(0, from.locator()));
            return self.send_probe(peer, &reply, Payload::Probe(from.locator().into()));
        }
        let peer_paths = match (&mut entry.paths, probe) {
            (Some(peer_paths), _) => peer_paths,
            // The first sign that the peer has several paths to this node.
            (none, Probe::Request(_)) => none.insert(Box::new(PeerPaths::new(Paths::new(&[], instant)))),
            (None, Probe::Reply(_)) => return,
        };
        let mut orders = Vec::new();
        match probe {
            Probe::Request(request) => {
                peer_paths.paths.request(from.locator(), request, rand::random(), instant, &mut orders);
            }
            Probe::Reply(reply) => peer_paths.paths.reply(reply, &self.search, instant, &mut orders),
        }
        self.carry_out_orders(peer, orders);
        self.paths_changed(peer);
    }

    /// The peer was heard by a handshake message, or from somewhere new.
    pub(super) fn path_heard(&mut self, peer: PeerId, from: &Way) {
        self.place_heard(peer, from);
        self.with_paths(peer, |paths, now| paths.heard(from.locator(), now));
    }

    /// There is a new session.
    pub(super) fn paths_established(&mut self, peer: PeerId) {
        self.with_paths(peer, Paths::established);
        self.observe_early(peer);
    }

    /// Data may flow: probing may have to begin.
    pub(super) fn wake_paths(&mut self, peer: PeerId) {
        self.with_paths(peer, Paths::wake);
    }

    /// A ping was sent, or answered.
    pub(super) fn paths_asked(&mut self, peer: PeerId) {
        self.with_paths(peer, Paths::asked);
    }

    /// The session with the peer is over.
    pub(super) fn paths_ended(&mut self, peer: PeerId) {
        if let Some(peer_paths) = self.peers.get_mut(&peer).and_then(|entry| entry.paths.as_mut()) {
            peer_paths.paths.ended();
            self.paths_changed(peer);
        }
    }

    fn with_paths(&mut self, peer: PeerId, tell: impl FnOnce(&mut Paths, Instant)) {
        self.wake_from_rest(peer);
        if let Some(peer_paths) = self.peers.get_mut(&peer).and_then(|entry| entry.paths.as_mut()) {
            tell(&mut peer_paths.paths, now().instant);
            self.paths_changed(peer);
        }
    }

    /// The ways by which an initiation is sent: all ways if the active one is not known to work, or has not answered
    /// the first initiation of this attempt.
    pub(super) fn initiation_ways(&self, peer: PeerId, first: bool) -> Vec<Way> {
        let Some(entry) = self.peers.get(&peer) else { return Vec::new() };
        match &entry.paths {
            Some(peer_paths) if !(peer_paths.paths.is_plain() || first && peer_paths.paths.certain()) => {
                let paths = &peer_paths.paths;
                let locators = if first { paths.first_locators() } else { paths.locators() };
                locators.into_iter().map(Way::from).collect()
            }
            None if self.is_at_rest(peer) => {
                let paths = self.paths_at_rest(peer, entry);
                paths.locators().into_iter().map(Way::from).collect()
            }
            _ => entry.way().into_iter().collect(),
        }
    }

    /// Whether direct ways to the peer are searched for, while its [`Paths`] would know no more than its endpoints say.
    /// A member of a network has a thousand such peers: their `Paths` are made when there is a session, or packets for
    /// them.
    pub(super) fn is_at_rest(&self, peer: PeerId) -> bool {
        self.is_searching(peer) && self.peers.get(&peer).is_some_and(|entry| entry.paths.is_none())
    }

    /// The paths of a peer at rest.
    fn paths_at_rest(&self, peer: PeerId, entry: &Peer) -> Paths {
        let instant = now().instant;
        let policies: Vec<_> = entry.endpoints.iter().map(|configured| configured.spec.policy).collect();
        let mut paths = Paths::look_for_direct_ways(&policies, instant);
        for (path, configured) in entry.endpoints.iter().enumerate() {
            if let Some(locator) = self.locator(peer, configured) {
                paths.put(path, locator, instant);
            }
        }
        // The way in use stays.
        if let Some(way) = entry.way() {
            paths.heard(way.locator(), instant);
        }
        paths
    }

    /// The known locators of a peer at rest; none for other peers.
    fn locators_at_rest(&self, peer: PeerId) -> Vec<Locator> {
        match self.peers.get(&peer) {
            Some(entry) if self.is_at_rest(peer) => {
                entry.endpoints.iter().filter_map(|configured| self.locator(peer, configured)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The locator of a configured endpoint, if it is known.
    fn locator(&self, peer: PeerId, configured: &ConfiguredEndpoint) -> Option<Locator> {
        let remote = match &configured.spec.endpoint {
            EndpointSpec::Peer(relay) => {
                return self.node.peer_by_key(relay).filter(|relay| *relay != peer).map(Locator::Peer);
            }
            EndpointSpec::Address(remote) => *remote,
            EndpointSpec::Name(..) => configured.address?,
        };
        configured.address_at(remote).map(Locator::from)
    }

    /// Makes the paths of a peer at rest, which ends its rest.
    fn wake_from_rest(&mut self, peer: PeerId) {
        if !self.is_at_rest(peer) {
            return;
        }
        let paths = self.peers.get(&peer).map(|entry| self.paths_at_rest(peer, entry));
        if let (Some(paths), Some(entry)) = (paths, self.peers.get_mut(&peer)) {
            entry.paths = Some(Box::new(PeerPaths::new(paths)));
        }
    }

    /// The relay of a peer at rest is gone: another endpoint comes into use.
    pub(super) fn other_locator_at_rest(&self, peer: PeerId) {
        if let (Some(locator), Some(entry)) = (self.locators_at_rest(peer).first(), self.peers.get(&peer)) {
            entry.shared.way.store(Some(Arc::new((*locator).into())));
        }
    }

    /// Probes paths, and chooses among them.
    pub(super) fn paths_due(&mut self, peer: PeerId, instant: Instant) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let seen = seen(entry);
        let Some(peer_paths) = &mut entry.paths else { return };
        let mut orders = Vec::new();
        peer_paths.paths.tick(seen, &mut self.search, instant, &mut orders);
        // Flows that have ended make room for others.
        if let Some(flows) = &peer_paths.flows {
            flows.sweep(&[], instant, false);
        }
        self.carry_out_orders(peer, orders);
        self.paths_changed(peer);
    }

    /// The kernel's interfaces or addresses have changed: a name may now belong to another interface.
    pub(super) fn find_interfaces(&mut self) {
        let other = |path: &ConfiguredEndpoint| {
            let via = path.spec.via.as_deref().map(interface_index);
            via.is_some_and(|index| path.interface != Some(index.unwrap_or(0)))
        };
        let others = |entry: &Peer| -> Vec<usize> {
            entry.endpoints.iter().enumerate().filter(|(_, path)| other(path)).map(|(path, _)| path).collect()
        };
        let paths: Vec<_> = self.peers.iter().map(|(&peer, entry)| (peer, others(entry))).collect();
        for (peer, paths) in paths {
            for path in paths {
                self.find(peer, path, 0);
            }
        }
    }

    pub(super) fn carry_out_orders(&mut self, peer: PeerId, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Probe { to, probe } => self.send_probe(peer, &probe, Payload::Probe(to.into())),
                Order::Open { to, probe } => self.send_probe(peer, &probe, Payload::Opening(to)),
                Order::Handshake => self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions),
                Order::State { path, up } => self.path_state(peer, path, up),
                // The path's name may have a new address.
                Order::Elsewhere { path } => self.resolve(peer, path, 1),
                Order::Tell { to, message } => self.tell_candidates(peer, to, &message),
                Order::Observe => self.observe(peer),
            }
        }
    }

    fn send_probe(&mut self, peer: PeerId, probe: &Probe, as_payload: Payload) {
        let sealer = self.peers.get(&peer).and_then(|entry| entry.shared.sealer.load_full());
        if let Some(sealer) = sealer {
            self.seal_and_send(peer, &sealer, &probe.to_bytes(), as_payload);
        }
    }

    /// Reports a path that began or ceased to work.
    fn path_state(&mut self, peer: PeerId, path: usize, up: bool) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(config) = self.node.peer_config(peer) else { return };
        let key = config.public_key;
        let name = entry.label(&key);
        let Some(configured) = entry.endpoints.get(path) else { return };
        let locator = match &configured.spec.endpoint {
            EndpointSpec::Peer(relay) => format!("the way through {}", self.called(relay)),
            endpoint => format!("the endpoint {endpoint}"),
        };
        let line = if up {
            Line::new(name, format_args!("{locator} works"))
        } else {
            Line::bad(name, format_args!("no answer by {locator}"))
        };
        let spec = configured.spec.clone();
        self.tell(peer, Topic::Path(path), line);
        self.emit(Event::Path { peer: key, path: spec, up });
    }

    /// Called after everything that may change the choice: gives the workers a new choice, and updates the schedule.
    pub(super) fn paths_changed(&mut self, peer: PeerId) {
        let instant = now().instant;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(peer_paths) = &mut entry.paths else { return };
        let (mut moved, mut chosen) = (false, false);
        if let Some(choice) = peer_paths.paths.changes(instant).filter(|choice| *choice != peer_paths.choice) {
            if !choice.spread.is_empty() {
                peer_paths.flows.get_or_insert_default();
            }
            entry.shared.path_set.store(PathSet::new(&choice, peer_paths.flows.as_ref()).map(Arc::new));
            if let Some(active) = choice.active {
                moved = move_to(&entry.shared.way, active);
            }
            let shares: Vec<_> = choice.spread.iter().map(|(share, _)| *share).collect();
            let more = shares.iter().any(|share| !peer_paths.choice.spread.iter().any(|(before, _)| before == share));
            if let (true, Some(flows)) = (more, &peer_paths.flows) {
                // A new path gets its part of the current flows.
                flows.sweep(&shares, instant, true);
            }
            peer_paths.choice = choice;
            chosen = true;
        }
        let deadline = peer_paths.paths.deadline();
        self.tasks.plan(peer, Task::Paths, deadline);
        let (plain, resting) = (peer_paths.paths.is_plain(), peer_paths.paths.rests());
        if deadline.is_none() && (plain || resting && rests(entry)) {
            entry.paths = None;
            entry.shared.path_set.store(None);
        }
        if moved {
            self.moved(peer);
        } else if chosen {
            self.tell_endpoints(peer);
        }
    }

    /// Reports that the peer is now reached through another peer or transport, or no longer through one. Returns
    /// whether this was so.
    pub(super) fn tell_way(&mut self, peer: PeerId) -> bool {
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        let Some(way) = entry.shared.way.load_full() else { return false };
        let now = *way;
        let before = entry.told_way.replace(way).map(|way| *way);
        let by_udp = |way: Way| way.udp().is_some();
        let same = before.is_some_and(|before| before.locator() == now.locator());
        if same || by_udp(now) && before.is_none_or(by_udp) {
            return false;
        }
        let (before, Some(now)) = (before.and_then(|way| self.shown_way(way)), self.shown_way(now)) else {
            return false;
        };
        let Some(key) = self.peers.get(&peer).map(|entry| entry.shared.public_key()) else { return false };
        let words = |way| match way {
            status::Way::Relayed(relay) => format!("through {}", self.called(&relay)),
            direct => direct.to_string(),
        };
        // At the start it is not yet known whether the peer is there.
        if before.is_some() || self.sealer(peer).is_some() {
            let was = before.map(|before| format!(" (was {})", words(before))).unwrap_or_default();
            let line = Line::new(self.called(&key), format_args!("now {}{was}", words(now)));
            self.tell(peer, Topic::Way, line);
        }
        self.emit(Event::WayChanged { peer: key, before, now });
        true
    }

    /// The name of the peer with this key in the log.
    fn called(&self, key: &PublicKey) -> String {
        let entry = self.node.peer_by_key(key).and_then(|peer| self.peers.get(&peer));
        entry.map_or_else(|| crate::key::abbreviate(key), |entry| entry.label(key))
    }

    /// A way as a status shows it; `None` through a peer that was removed.
    pub(super) fn shown_way(&self, way: Way) -> Option<status::Way> {
        match way {
            Way::Direct(endpoint) => Some(endpoint.remote.into()),
            Way::Relayed(relay) => Some(status::Way::Relayed(self.peers.get(&relay)?.shared.public_key())),
        }
    }

    /// The way of datagrams to the peer, as a status shows it; `None` while it is not known.
    pub(super) fn shown_way_to(&self, peer: PeerId) -> Option<status::Way> {
        self.peers.get(&peer).and_then(|entry| entry.way()).and_then(|way| self.shown_way(way))
    }

    /// The paths of a peer as a status shows them; none if there is only one.
    pub(super) fn report_paths(&self, entry: &Peer) -> Vec<PathStatus> {
        let report = match &entry.paths {
            Some(peer_paths) => peer_paths.paths.report(),
            None if self.is_at_rest(entry.shared.id) => self.paths_at_rest(entry.shared.id, entry).report(),
            None => return Vec::new(),
        };
        let configured = |path: Option<usize>| Some(entry.configured().nth(path?)?.spec.clone());
        report
            .into_iter()
            .map(|path| {
                let at = path.locator.as_ref().and_then(Locator::address);
                let relay = path.locator.as_ref().and_then(Locator::relay);
                PathStatus {
                    configured: configured(path.configured),
                    found: path.found,
                    endpoint: at.map(|at| at.remote),
                    through: relay.and_then(|relay| Some(self.peers.get(&relay)?.shared.public_key())),
                    local: at.and_then(|at| at.local),
                    state: path.state,
                    round_trip: path.round_trip,
                    active: path.active,
                    weight: path.weight,
                }
            })
            .collect()
    }
}

/// Whether the peer has no session.
fn rests(entry: &Peer) -> bool {
    entry.shared.sealer.load().is_none()
}

fn seen(entry: &Peer) -> Observation {
    let activity = &entry.shared.activity;
    let all = activity.rx_bytes() + activity.tx_bytes();
    Observation {
        session: entry.shared.sealer.load().is_some(),
        data: all.saturating_sub(entry.shared.overhead_rx.load(Relaxed) + entry.overhead_tx),
        unanswered: activity.unanswered_since(),
    }
}

/// Makes a locator the way in use. Returns whether the peer's address, or the relay, changed. Our own address, learned
/// since, stays.
fn move_to(known: &arc_swap::ArcSwapOption<Way>, active: Locator) -> bool {
    let before = known.load();
    let at = before.as_deref().map(Way::locator);
    if at.is_some_and(|at| active.covers(&at) && active.address().is_none_or(|active| active.interface == 0)) {
        return false;
    }
    let moved = match (at, active) {
        (Some(Locator::Address(at)), Locator::Address(active)) => at.remote != active.remote,
        _ => true,
    };
    known.store(Some(Arc::new(active.into())));
    moved
}
