//! The engine host's part of control: turns what the device sees into events for the routing engine, and carries the
//! engine's actions to the workers' table, the kernel's routes and the peers.

pub(super) mod host;
mod pace;
mod sample;
mod watch;

use super::{
    Control,
    peer_log::{Line, Topic},
    timer::now,
    transmit::Payload,
};
use crate::{event::Event, shared::peer::Bounds, way::Way};
use ipnet::IpNet;
use portable_atomic::Ordering::Relaxed;
use rustguard_core::{
    node::PeerId,
    packet::padded_len,
    routing::{Action, AllowedIpsMeaning, Event as EngineEvent, PeerRoutes, Role, Signal, Target},
    time::Instant,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How often an engine that talks to peers is told WireGuard's observations of them. Ten times a second would cost a
/// thousandth of a core for 200 peers. It need not be faster: an engine notices a lost peer by its silence, which takes
/// longer.
const SAMPLE: Duration = Duration::from_millis(200);
/// The number of peers whose counters are read together, which takes less than a millisecond.
const SAMPLED: usize = 512;
impl Control {
    /// Something of the engine is due.
    pub(super) fn engine_tick(&mut self) {
        let instant = now().instant;
        if self.engine_host.next_sample.is_some_and(|at| at <= instant) {
            self.sample(instant);
        }
        if self.engine_host.watching.next.is_some_and(|at| at <= instant) {
            self.watch(instant);
        }
        if self.engine_host.engine.deadline().is_some_and(|at| at <= instant) {
            self.tell_engine(EngineEvent::Time);
        }
        self.publish_routes();
    }

    /// A packet between engines.
    pub(super) fn engine_packet(&mut self, peer: PeerId, packet: &[u8]) {
        self.tell_engine(EngineEvent::Packet { peer, packet });
        self.publish_routes();
    }

    /// A peer's allowed IPs or role have changed.
    pub(super) fn engine_peer(&mut self, peer: PeerId) {
        let role = self.engine_host.role(peer).unwrap_or(Role::Router);
        let config = PeerRoutes { allowed_ips: self.allowed.of(peer), role };
        if self.engine_host.shares_prefixes
            && self.engine_host.meaning == AllowedIpsMeaning::Limits
            && let Some(entry) = self.peers.get(&peer)
        {
            entry.shared.bounds.store(Some(Arc::new(Bounds::new(peer, &config))));
        }
        self.tell_engine(EngineEvent::Peer { peer, config: &config });
    }

    /// A peer is gone.
    pub(super) fn engine_peer_removed(&mut self, peer: PeerId) {
        self.engine_host.roles.remove(&peer);
        self.engine_host.samples.remove(&peer);
        self.tell_engine(EngineEvent::PeerRemoved { peer });
        self.engine_host.watching.forget(peer);
    }

    /// Tells the engine something that WireGuard itself noticed.
    pub(super) fn engine_signal(&mut self, peer: PeerId, signal: Signal) {
        if self.engine_host.next_sample.is_some() || self.engine_host.watching.ever {
            self.tell_engine(EngineEvent::Signal { peer, signal });
        }
    }

    /// There is traffic with the peer, the first for a while.
    pub(super) fn engine_traffic(&mut self, peer: PeerId) {
        self.engine_host.watching.active(peer, now().instant);
    }

    /// The peers have their addresses in these networks.
    pub(super) fn set_pools(&mut self, prefixes: &[IpNet]) {
        self.tell_engine(EngineEvent::Pools { prefixes });
    }

    /// This host announces these prefixes, and no others, by its configuration.
    pub(super) fn announce(&mut self, prefixes: &[IpNet]) {
        self.engine_host.configured = prefixes.iter().map(IpNet::trunc).collect();
        self.announce_all();
    }

    /// The kernel has routes for these prefixes.
    pub(super) fn redistribute(&mut self, prefixes: BTreeSet<IpNet>) {
        self.engine_host.redistributed = prefixes;
        self.announce_all();
        self.publish_routes();
    }

    /// A prefix that is both configured and in the kernel's table stays until it is in neither. All prefixes have the
    /// metric 0, like the routes that babeld redistributes: the network is this node's, whatever the origin of the
    /// kernel's route.
    fn announce_all(&mut self) {
        let wanted: BTreeSet<IpNet> =
            self.engine_host.configured.union(&self.engine_host.redistributed).copied().collect();
        let before = std::mem::replace(&mut self.engine_host.announced, wanted.clone());
        for &prefix in before.difference(&wanted) {
            self.engine_host.change(|table| table.remove(prefix));
            self.tell_engine(EngineEvent::Withdraw { prefix });
        }
        for &prefix in wanted.difference(&before) {
            self.engine_host.change(|table| table.install(prefix, Target::Host));
            if let Some(kernel) = &self.engine_host.kernel {
                // A learned route is withdrawn, and the engine's later routes for this prefix are ignored.
                kernel.set(prefix, false);
            }
            self.tell_engine(EngineEvent::Announce { prefix, metric: 0 });
        }
    }

    /// A peer's endpoint may have changed: no learned route may lead packets for it into the tunnel.
    pub(super) fn tell_endpoints(&self, peer: PeerId) {
        let Some(kernel) = &self.engine_host.kernel else { return };
        let mut addresses = Vec::new();
        if let Some(entry) = self.peers.get(&peer) {
            let ways = entry.paths.iter().flat_map(|peer_paths| peer_paths.paths.locators()).map(Way::from);
            addresses.extend(entry.way().into_iter().chain(ways).filter_map(|way| Some(way.udp()?.remote.ip())));
        }
        kernel.endpoints(peer, addresses);
    }

    /// The mark of the tunnel's own packets has changed.
    pub(super) fn tell_mark(&self) {
        if let Some(kernel) = &self.engine_host.kernel {
            kernel.mark(self.sockets.fwmark());
        }
    }

    /// Lets the engine say goodbye, at the end of the device.
    pub(super) fn engine_leave(&mut self) {
        let mut actions = std::mem::take(&mut self.engine_host.actions);
        self.engine_host.engine.leave(now().instant, &mut actions);
        actions.into_iter().for_each(|action| self.carry_out(action));
        self.publish();
    }

    /// Gives the workers a new table if routes have changed, and if it is not too soon after the last table.
    pub(super) fn publish_routes(&mut self) {
        if self.engine_host.changed && self.engine_host.pace.is_due(now().instant) {
            self.publish();
        }
    }

    /// The workers have the current table, which control began to make at `started`.
    pub(super) fn engine_published(&mut self, started: Instant) {
        let (ended, copied) = (now().instant, std::mem::take(&mut self.engine_host.copied));
        self.engine_host.changed = false;
        self.engine_host.pace.made(copied + ended.since(started), ended);
        for (peer, packet) in std::mem::take(&mut self.engine_host.after_change) {
            self.send_for_engine(peer, &packet);
        }
    }

    fn tell_engine(&mut self, event: EngineEvent<'_>) {
        let mut actions = std::mem::take(&mut self.engine_host.actions);
        self.engine_host.engine.handle(event, now().instant, &mut actions);
        if self.engine_host.meaning == AllowedIpsMeaning::Addresses && !matches!(event, EngineEvent::Peer { .. }) {
            self.tell_holders(&actions);
        }
        for action in actions.drain(..) {
            self.carry_out(action);
        }
        self.engine_host.actions = actions;
    }

    /// Reports prefixes that moved to another peer without a change of the configuration.
    fn tell_holders(&mut self, actions: &[Action]) {
        let mut told = BTreeMap::<PeerId, Vec<IpNet>>::new();
        for action in actions {
            if let Action::Install { prefix, hops } = action {
                hops.members().iter().for_each(|hop| told.entry(hop.peer).or_default().push(*prefix));
            }
        }
        for (peer, prefixes) in told {
            let Some(entry) = self.peers.get(&peer) else { continue };
            let more = match prefixes.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let line = Line::new(
                entry.label(&entry.shared.public_key()),
                format_args!("{}{more} is reached through it now", prefixes[0]),
            );
            self.tell(peer, Topic::Prefix, line);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let engine_host = &mut self.engine_host;
        match action {
            Action::Send { peer, packet } if engine_host.changed => engine_host.after_change.push((peer, packet)),
            Action::Send { peer, packet } => self.send_for_engine(peer, &packet),
            Action::Install { prefix, hops } => {
                // A learned prefix does not replace this host's own.
                if engine_host.announced.contains(&prefix) {
                    return;
                }
                engine_host.change(|table| table.install(prefix, hops.into()));
                if let Some(kernel) = &engine_host.kernel {
                    kernel.set(prefix, true);
                }
            }
            Action::Remove { prefix } => {
                if engine_host.announced.contains(&prefix) {
                    return;
                }
                engine_host.change(|table| table.remove(prefix));
                if let Some(kernel) = &engine_host.kernel {
                    kernel.set(prefix, false);
                }
            }
            Action::Locate { prefix, hops } => engine_host.change_places(|table| match hops {
                Some(hops) => table.install(prefix, hops.into()),
                None => table.remove(prefix),
            }),
            Action::Permit { peer, prefix, rule } => {
                engine_host.change(|table| table.permit(peer, prefix, rule));
            }
            Action::Forbid { peer, prefix } => {
                engine_host.change(|table| table.forbid(peer, prefix));
            }
            Action::Neighbour { peer, cost } => {
                let Some(entry) = self.peers.get(&peer) else { return };
                // The workers read this directly: no snapshot is needed to skip a peer.
                entry.shared.usable.store(cost.is_some(), Relaxed);
                if let Some(config) = self.node.peer_config(peer) {
                    let (key, name) = (config.public_key, entry.label(&config.public_key));
                    let line = match cost {
                        Some(cost) => Line::new(name, format_args!("is a neighbour, cost {cost}")),
                        None => Line::new(name, format_args!("is no neighbour any more")),
                    };
                    self.tell(peer, Topic::Neighbour, line);
                    self.emit(Event::Neighbour { peer: key, cost });
                }
            }
            Action::Usable { peer, usable } => {
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.usable.store(usable, Relaxed);
                }
            }
            // An engine that claims packets gets the signals of every peer anyway.
            Action::Watch { peer, on } if engine_host.next_sample.is_none() => {
                engine_host.watching.set(peer, on, now().instant);
            }
            Action::Ask { peer } => self.ask_for_engine(peer),
            Action::Keep { bytes } => {
                if let Some(sink) = &mut engine_host.state_sink {
                    sink(&bytes);
                }
            }
            _ => {}
        }
    }

    /// Seals a packet of the engine. Without a session the packet is dropped, because a routing protocol repeats its
    /// packets, and a handshake begins.
    fn send_for_engine(&mut self, peer: PeerId, packet: &[u8]) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(sealer) = entry.shared.sealer.load_full() else {
            if entry.way().is_some() {
                self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
            }
            return;
        };
        let mtu = self.shared.mtu.load(Relaxed) as usize;
        let mut padded = packet.to_vec();
        padded.resize(padded_len(packet.len(), mtu), 0);
        self.seal_and_send(peer, &sealer, &padded, Payload::Engine);
    }

    /// Tells the engine the counters of some peers. With thousands of peers, other work is done in between.
    fn sample(&mut self, now: Instant) {
        if self.engine_host.round.is_empty() {
            self.engine_host.round.extend(self.peers.keys());
            self.engine_host.round_began = now;
        }
        let rest = self.engine_host.round.len().saturating_sub(SAMPLED);
        for peer in self.engine_host.round.split_off(rest) {
            let Some(entry) = self.peers.get(&peer) else { continue };
            let sample = self.engine_host.samples.entry(peer).or_default();
            let relayed = sample.look_at_way(&entry.shared);
            let signals = sample.look(&entry.shared, entry.overhead_tx, now);
            if sample.moved() && entry.paths.is_some() {
                // If the engine talks to the peer, no timer of a session reports data.
                self.wake_paths(peer);
            }
            for signal in relayed.into_iter().chain(signals.into_iter().flatten()) {
                self.tell_engine(EngineEvent::Signal { peer, signal });
            }
        }
        self.engine_host.next_sample =
            Some(if rest > 0 { now } else { now.max(self.engine_host.round_began + SAMPLE) });
    }
}
