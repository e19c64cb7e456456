//! The paths to peers that have several: what [`Paths`] orders is carried out, and what it chooses reaches the workers.

pub(super) mod peer_paths;

use super::{
    Control,
    peer::Peer,
    peer_log::{Line, Topic},
    timer::now,
    transmit::Payload,
};
use crate::{
    binder::Binder,
    config::{EndpointSpec, PathSpec},
    event::Event,
    path_set::{PathSet, endpoint, place},
    status::PathStatus,
};
use peer_paths::{ConfiguredEndpoint, PeerPaths};
use portable_atomic::Ordering::Relaxed;
use rustguard_core::{
    node::PeerId,
    paths::{Order, Paths, Place, Probe, Seen},
    time::Instant,
};
use rustguard_tun::Endpoint;
use std::sync::Arc;

impl<B: Binder> Control<B> {
    /// Takes the endpoints that were configured.
    pub(super) fn set_endpoints(&mut self, peer: PeerId, specs: Vec<PathSpec>) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let policies: Vec<_> = specs.iter().map(|spec| spec.policy).collect();
        let instant = now().instant;
        entry.endpoints = specs.into_iter().map(ConfiguredEndpoint::new).collect();
        entry.shared.has_configured_endpoint.store(!entry.endpoints.is_empty(), Relaxed);
        let paths = Paths::new(&policies, instant);
        match &mut entry.paths {
            Some(known) => known.paths.configure(&policies, instant),
            None if !paths.is_plain() => entry.paths = Some(Box::new(PeerPaths::new(paths))),
            None => {}
        }
        for path in 0..entry.endpoints.len() {
            self.find(peer, path, 0);
        }
        self.paths_changed(peer);
    }

    /// Puts a configured endpoint where it is, or has its name resolved.
    pub(super) fn find(&mut self, peer: PeerId, path: usize, attempt: u32) {
        let Some(configured) = self.peers.get(&peer).and_then(|entry| entry.endpoints.get(path)) else { return };
        match configured.spec.endpoint {
            EndpointSpec::Address(remote) => self.found(peer, path, remote),
            EndpointSpec::Name(..) => self.resolve(peer, path, attempt),
        }
    }

    /// The peer's configured endpoint is there.
    pub(super) fn found(&mut self, peer: PeerId, path: usize, remote: std::net::SocketAddr) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let known = entry.shared.endpoint.load().as_deref().map(|known| known.remote);
        let Some(configured) = entry.endpoints.get_mut(path) else { return };
        if let Some(via) = &configured.spec.via {
            let index = interface_index(via);
            if let (Err(error), true) = (&index, configured.interface != Some(0)) {
                // Said once; the path is put in place when the interface is there.
                let (spec, name) = (&configured.spec, entry.name.as_deref().unwrap_or("a peer"));
                tracing::warn!("the endpoint {spec} of {name} waits for its interface: {error}");
            }
            configured.interface = Some(index.unwrap_or(0));
        }
        let interface = match configured.interface {
            None => 0,
            Some(0) => return,
            Some(interface) => interface,
        };
        let at = Place { remote, local: None, interface };
        match &mut entry.paths {
            Some(several) if !several.paths.is_plain() => several.paths.put(path, at, now().instant),
            _ if known != Some(remote) || interface != 0 => entry.shared.endpoint.store(Some(Arc::new(endpoint(at)))),
            _ => {}
        }
        self.paths_changed(peer);
        self.tell_endpoints(peer);
        if known.is_none() {
            self.start(peer);
        }
    }

    /// A probe of the peer's.
    pub(super) fn probe(&mut self, peer: PeerId, from: &Endpoint, probe: &Probe) {
        let instant = now().instant;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let several = match (&mut entry.paths, probe) {
            (Some(several), _) => several,
            // The first sign that the peer has several paths to us.
            (none, Probe::Request(_)) => none.insert(Box::new(PeerPaths::new(Paths::new(&[], instant)))),
            (None, Probe::Reply(_)) => return,
        };
        let mut orders = Vec::new();
        match probe {
            Probe::Request(request) => {
                several.paths.request(place(from), request, rand::random(), instant, &mut orders);
            }
            Probe::Reply(reply) => several.paths.reply(reply, instant, &mut orders),
        }
        self.carry_out_orders(peer, orders);
        self.paths_changed(peer);
    }

    /// The peer was heard by a handshake message, or from somewhere new.
    pub(super) fn path_heard(&mut self, peer: PeerId, from: &Endpoint) {
        self.with_paths(peer, |paths, now| paths.heard(place(from), now));
    }

    /// There is a new session.
    pub(super) fn paths_established(&mut self, peer: PeerId) {
        self.with_paths(peer, Paths::established);
    }

    /// Data flows, perhaps.
    pub(super) fn wake_paths(&mut self, peer: PeerId) {
        self.with_paths(peer, Paths::wake);
    }

    fn with_paths(&mut self, peer: PeerId, tell: impl FnOnce(&mut Paths, Instant)) {
        if let Some(several) = self.peers.get_mut(&peer).and_then(|entry| entry.paths.as_mut()) {
            tell(&mut several.paths, now().instant);
            self.paths_changed(peer);
        }
    }

    /// Everywhere an initiation goes: not only to the active endpoint where that is not known to work.
    pub(super) fn initiation_endpoints(&self, peer: PeerId) -> Vec<Endpoint> {
        let Some(entry) = self.peers.get(&peer) else { return Vec::new() };
        match &entry.paths {
            Some(several) if !several.paths.certain() && !several.paths.is_plain() => {
                several.paths.places().into_iter().map(endpoint).collect()
            }
            _ => entry.shared.endpoint.load().as_deref().copied().into_iter().collect(),
        }
    }

    /// The time has come for some.
    pub(super) fn paths_tick(&mut self) {
        let instant = now().instant;
        while let Some(&(at, peer)) = self.path_schedule.first().filter(|(at, _)| *at <= instant) {
            self.path_schedule.remove(&(at, peer));
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            let seen = seen(entry);
            let Some(several) = &mut entry.paths else { continue };
            several.deadline = None;
            let mut orders = Vec::new();
            several.paths.tick(seen, instant, &mut orders);
            // Flows that have ended make room for others.
            several.flows.sweep(&[], instant, false);
            self.carry_out_orders(peer, orders);
            self.paths_changed(peer);
        }
    }

    /// When the next are due.
    pub(super) fn paths_deadline(&self) -> Option<Instant> {
        self.path_schedule.first().map(|(at, _)| *at)
    }

    /// The kernel's interfaces or addresses have changed: names of interfaces may mean others.
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

    fn carry_out_orders(&mut self, peer: PeerId, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Probe { to, probe } => self.send_probe(peer, to, &probe),
                Order::Handshake => self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions),
                Order::State { path, up } => self.path_state(peer, path, up),
                Order::Elsewhere { path } => self.look_elsewhere(peer, path),
            }
        }
    }

    fn send_probe(&mut self, peer: PeerId, to: Place, probe: &Probe) {
        let sealer = self.peers.get(&peer).and_then(|entry| entry.shared.sealer.load_full());
        if let Some(sealer) = sealer {
            self.seal_and_send(peer, &sealer, &probe.to_bytes(), Payload::Probe(endpoint(to)));
        }
    }

    /// A path's name may have another address.
    fn look_elsewhere(&mut self, peer: PeerId, path: usize) {
        let configured = self.peers.get_mut(&peer).and_then(|entry| entry.endpoints.get_mut(path));
        if let Some(configured) = configured {
            configured.attempts = configured.attempts.wrapping_add(1);
            let attempt = configured.attempts;
            self.resolve(peer, path, attempt);
        }
    }

    /// News for people.
    fn path_state(&mut self, peer: PeerId, path: usize, up: bool) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(config) = self.node.peer_config(peer) else { return };
        let key = config.public_key;
        let name = entry.label(&key);
        let Some(configured) = entry.endpoints.get(path) else { return };
        let endpoint = &configured.spec.endpoint;
        let line = if up {
            Line::new(name, format_args!("the endpoint {endpoint} works"))
        } else {
            Line::bad(name, format_args!("no answer by the endpoint {endpoint}"))
        };
        let spec = configured.spec.clone();
        self.tell(peer, Topic::Path(path), line);
        self.emit(Event::Path { peer: key, path: spec, up });
    }

    /// After anything that may change the choice: the workers get it, and the schedule the next moment.
    fn paths_changed(&mut self, peer: PeerId) {
        let instant = now().instant;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(several) = &mut entry.paths else { return };
        let (mut moved, mut chosen) = (false, false);
        if let Some(choice) = several.paths.changes(instant).filter(|choice| *choice != several.choice) {
            entry.shared.path_set.store(PathSet::new(&choice, &several.flows).map(Arc::new));
            if let Some(active) = choice.active {
                moved = move_to(&entry.shared.endpoint, active);
            }
            let shares: Vec<_> = choice.spread.iter().map(|(share, _)| *share).collect();
            let more = shares.iter().any(|share| !several.choice.spread.iter().any(|(before, _)| before == share));
            if more {
                // A path was added: it gets its part of the flows that are going.
                several.flows.sweep(&shares, instant, true);
            }
            several.choice = choice;
            chosen = true;
        }
        let deadline = several.paths.deadline();
        if deadline != several.deadline {
            if let Some(before) = several.deadline {
                self.path_schedule.remove(&(before, peer));
            }
            if let Some(deadline) = deadline {
                self.path_schedule.insert((deadline, peer));
            }
            several.deadline = deadline;
        }
        if several.paths.is_plain() && deadline.is_none() {
            entry.paths = None;
        }
        if moved {
            self.moved(peer);
        } else if chosen {
            self.tell_endpoints(peer);
        }
    }

    /// Forgets what was planned for a peer that is going.
    pub(super) fn forget_paths(&mut self, peer: PeerId, entry: &Peer) {
        if let Some(deadline) = entry.paths.as_ref().and_then(|several| several.deadline) {
            self.path_schedule.remove(&(deadline, peer));
        }
    }
}

/// The paths of a peer, for people; none where there is nothing to choose.
pub(super) fn report(entry: &Peer) -> Vec<PathStatus> {
    let Some(several) = &entry.paths else { return Vec::new() };
    let configured = |path: Option<usize>| Some(entry.endpoints.get(path?)?.spec.clone());
    let report = several.paths.report().into_iter();
    report
        .map(|path| PathStatus {
            configured: configured(path.configured),
            endpoint: path.place.map(|place| place.remote),
            local: path.place.and_then(|place| place.local),
            state: path.state,
            round_trip: path.round_trip,
            active: path.active,
            weight: path.weight,
        })
        .collect()
}

fn seen(entry: &Peer) -> Seen {
    let activity = &entry.shared.activity;
    let all = activity.rx_bytes.load(Relaxed) + activity.tx_bytes.load(Relaxed);
    Seen {
        session: entry.shared.sealer.load().is_some(),
        data: all.saturating_sub(entry.shared.overhead_rx.load(Relaxed) + entry.overhead_tx),
        unanswered: activity.unanswered_since(),
    }
}

/// Returns whether that is another address than before. Our own address, learned since, stays.
fn move_to(known: &arc_swap::ArcSwapOption<Endpoint>, active: Place) -> bool {
    let before = known.load();
    if before.as_deref().is_some_and(|known| active.interface == 0 && active.covers(&place(known))) {
        return false;
    }
    let moved = before.as_deref().is_none_or(|known| known.remote != active.remote);
    known.store(Some(Arc::new(endpoint(active))));
    moved
}

fn interface_index(name: &str) -> std::io::Result<u32> {
    let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(any, name)?)
}
