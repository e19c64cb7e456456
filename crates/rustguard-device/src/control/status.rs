//! Control's answers to the questions of a device: its state, its secrets, and what the routing engine reports.

use super::{Control, connection::unresolved, timer::now};
use crate::{
    drops::DropReason,
    kernel::LearnedRoutes,
    key::PresharedKey,
    policy::seat::Seat,
    secrets::Secrets,
    status::{
        AnnouncementStatus, Counter, DropCount, NeighbourStatus, OriginName, PeerLabel, PeerStatus, PolicyStatus,
        Refusal, RouteStatus, RouterId, RoutingStatus, Status, UnresolvedEndpoint,
    },
};
use portable_atomic::Ordering;
use rustguard_core::node::PeerId;

impl Control {
    /// The state without the secrets.
    pub(super) fn status(&self) -> Status {
        Status {
            public_key: self.node.public_key(),
            up: !self.sockets.are_closed(),
            listen_port: self.sockets.port(),
            more_listen_ports: self.sockets.more_ports().to_vec(),
            listen_addresses: self.sockets.addresses().to_vec(),
            fwmark: self.sockets.fwmark(),
            peers: self.node.peers().filter_map(|peer| self.peer_status(peer)).collect(),
            relaying: self.relay.status(),
            relayed: self.shared.relayed.load(Ordering::Relaxed),
            forward: self.published.forward,
            forwarded: self.shared.forwarded.load(Ordering::Relaxed),
            unannounced: self.shared.unannounced.packets(),
            drops: drop_counts(self.shared.drops.snapshot()),
            policy: self.policy_status(),
            counters: self.counters.as_ref().map(|counters| counters()).unwrap_or_default(),
        }
    }

    /// The state of a peer.
    pub(super) fn peer_status(&self, peer: PeerId) -> Option<PeerStatus> {
        let (config, entry) = (self.node.peer_config(peer)?, self.peers.get(&peer)?);
        Some(PeerStatus {
            name: entry.name.clone(),
            public_key: config.public_key,
            has_preshared_key: !PresharedKey::from_bytes(&config.preshared_key).is_zero(),
            endpoint: entry.endpoint().map(|endpoint| endpoint.remote),
            through: entry.shared.relayed_by().and_then(|relay| Some(self.peers.get(&relay)?.shared.public_key())),
            unresolved: unresolved(entry)
                .map(|(name, why)| UnresolvedEndpoint { name, error: why.map(|why| why.cause.clone()) }),
            not_direct: self.not_direct(peer, entry),
            paths: self.report_paths(entry),
            persistent_keepalive: config.persistent_keepalive,
            last_handshake: self.node.last_handshake(peer),
            handshakes: entry.handshakes,
            rx_bytes: entry.shared.activity.rx_bytes(),
            tx_bytes: entry.shared.activity.tx_bytes(),
            allowed_ips: self.allowed.of(peer),
            path_mtu: self.path_mtu(entry),
            parity: super::fec::status(entry),
            lanes: super::session_lanes::in_use(entry),
            drops: drop_counts(entry.shared.drops.snapshot()),
            connection: self.connection(peer),
            problem: self.problem(peer),
        })
    }

    fn policy_status(&self) -> Option<PolicyStatus> {
        let seat = &self.shared.policy;
        let in_force = seat.in_force();
        let in_force = in_force.as_deref()?;
        let now = now();
        let refusals = seat.refusals.snapshot().into_iter().filter_map(|it| {
            Some(Refusal {
                at: now.unix.saturating_sub(now.instant.since(it.at)),
                peer: self.peers.get(&it.peer)?.shared.public_key(),
                from: it.from,
                to: it.to,
                protocol: it.refused.protocol,
                port: it.refused.port,
                packets: it.packets,
                reason: it.refused.reason.word(),
            })
        });
        Some(PolicyStatus {
            rules: in_force.rules(),
            connections: in_force.connections(),
            capacity: Seat::CAPACITY,
            refused: seat.refused.packets(),
            refusals: refusals.collect(),
        })
    }

    /// The secret keys, for requests that ask for them.
    pub(super) fn secrets(&self) -> Secrets {
        let configs = self.node.peers().filter_map(|peer| self.node.peer_config(peer));
        let keys = configs.map(|config| (config.public_key, PresharedKey::from_bytes(&config.preshared_key)));
        Secrets::new(self.node.private_key().cloned(), keys)
    }

    /// The engine's report, with keys and names in place of its numbers for peers.
    pub(super) fn routing_status(&self) -> RoutingStatus {
        let report = self.engine_host.engine.report();
        let neighbours = report.neighbours.into_iter().filter_map(|neighbour| {
            let entry = self.peers.get(&neighbour.peer)?;
            Some(NeighbourStatus {
                peer: self.label(neighbour.peer)?,
                endpoint: entry.endpoint().map(|endpoint| endpoint.remote),
                heard: neighbour.heard,
                cost: neighbour.cost,
                round_trip: neighbour.round_trip,
                routes: neighbour.routes,
                wants_macs: neighbour.wants_macs,
            })
        });
        let now = now();
        let mut notes = self.engine_host.kernel.as_ref().map(LearnedRoutes::notes).unwrap_or_default();
        let routes = report.routes.into_iter().map(|route| {
            let announcements = route.learned.into_iter().filter_map(|it| {
                Some(AnnouncementStatus {
                    from: self.label(it.from)?,
                    metric: it.metric,
                    feasible: it.feasible,
                    round_trip: it.round_trip,
                })
            });
            RouteStatus {
                kernel: notes.remove(&route.prefix),
                prefix: route.prefix,
                local: route.local,
                metric: route.metric,
                origin: route.origin.map(RouterId::from_bytes),
                next_hops: route.hops.members().iter().filter_map(|hop| self.label(hop.peer)).collect(),
                backup: route.hops.backup().and_then(|peer| self.label(peer)),
                since: route.since.map(|at| now.unix.saturating_sub(now.instant.since(at))),
                announcements: announcements.collect(),
            }
        });
        let names = report.names.into_iter();
        RoutingStatus {
            engine: report.engine,
            router_id: report.router_id.map(RouterId::from_bytes),
            neighbours: neighbours.collect(),
            routes: routes.collect(),
            names: names.map(|it| OriginName { origin: RouterId::from_bytes(it.origin), name: it.name }).collect(),
            refused: report.refused.into_iter().map(|it| Counter::new(it.reason, it.count)).collect(),
        }
    }

    fn label(&self, peer: PeerId) -> Option<PeerLabel> {
        let entry = self.peers.get(&peer)?;
        Some(PeerLabel { public_key: entry.shared.public_key(), name: entry.name.clone() })
    }
}

fn drop_counts(drops: Vec<(DropReason, u64)>) -> Vec<DropCount> {
    drops.into_iter().map(|(reason, packets)| DropCount { reason, packets }).collect()
}
