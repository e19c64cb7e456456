//! The metrics of a snapshot, encoded with the Prometheus project's library.
//!
//! Values that others choose never become labels without a limit: a router can announce many prefixes, a peer can use
//! many addresses, and each would be a time series that Prometheus keeps for weeks. So routes are counted, and the
//! paths that a peer has shown are numbered.

mod labels;

use crate::snapshot::{Enrolment, Network, Snapshot};
use labels::{Labels, Peer, bounded};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use rustguard_device::{AnnouncementStatus, DropReason, PathState, RouteStatus, RoutingStatus, Status, key::to_base64};
use std::{fmt, time::Duration};

/// The page of OpenMetrics.
pub(crate) fn render(snapshot: Snapshot) -> String {
    let mut registry = Registry::default();
    // A peer has about 1,200 bytes in some ten samples.
    let mut page = String::with_capacity(4096 + snapshot.status.peers.len() * 1536);
    registry.register_collector(Box::new(snapshot));
    text::encode(&mut page, &registry).expect("writing to a String cannot fail");
    page
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families { encoder, interface: &self.interface };
        families.program()?;
        families.interface(&self.status)?;
        let peers: Vec<Peer<'_>> = self.status.peers.iter().map(|peer| Peer::new(&self.interface, peer)).collect();
        families.wireguard(&peers, self.at)?;
        families.peers(&peers)?;
        families.paths(&peers)?;
        families.routing(&self.routing)?;
        match &self.enrolment {
            Some(enrolment) => families.enrolment(enrolment),
            None => Ok(()),
        }
    }
}

/// The words for the states of [`Connection`](rustguard_device::Connection).
const STATES: [&str; 5] = ["never connected", "connecting", "online", "idle", "offline"];

/// Writes families: their metadata, and their samples.
struct Families<'s, 'e> {
    encoder: DescriptorEncoder<'e>,
    interface: &'s str,
}

/// The metadata of a family.
struct About {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
}

/// A family with this name. The unit is appended, and `_total` for counters.
fn about(name: &'static str, help: &'static str) -> About {
    About { name, unit: None, help }
}

impl About {
    fn bytes(mut self) -> Self {
        self.unit = Some(Unit::Bytes);
        self
    }

    fn seconds(mut self) -> Self {
        self.unit = Some(Unit::Seconds);
        self
    }
}

impl Families<'_, '_> {
    fn counters<'l, V: EncodeCounterValue>(
        &mut self,
        about: About,
        samples: impl Iterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let About { name, unit, help } = about;
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges<'l, V: EncodeGaugeValue>(
        &mut self,
        about: About,
        samples: impl Iterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let About { name, unit, help } = about;
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A family with one sample, of the interface.
    fn gauge(&mut self, about: About, value: impl EncodeGaugeValue) -> fmt::Result {
        let labels = self.labels();
        self.gauges(about, std::iter::once((labels, value)))
    }

    fn labels(&self) -> Labels<'static> {
        vec![("interface", self.interface.to_owned().into())]
    }

    /// The interface's label and one more.
    fn labels_and<'l>(&self, name: &'static str, value: &'l str) -> Labels<'l> {
        vec![("interface", self.interface.to_owned().into()), (name, bounded(value))]
    }

    fn info(&mut self, name: &str, help: &str, labels: Labels<'_>) -> fmt::Result {
        self.encoder.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    fn program(&mut self) -> fmt::Result {
        let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
        self.info("rustguard_build", "The version of RustGuard", version)
    }

    fn interface(&mut self, status: &Status) -> fmt::Result {
        let mut labels = self.labels();
        labels.extend(status.public_key.map(|key| ("public_key", to_base64(&key.0).to_string().into())));
        labels.push(("listen_port", status.listen_port.to_string().into()));
        self.info("rustguard_interface", "The public key and the UDP port of the interface", labels)?;
        self.gauge(about("rustguard_interface_up", "1 while the interface is up, or else 0"), u32::from(status.up))?;
        let drops = DropReason::ALL.iter().map(|&reason| {
            // All reasons from the start: rate() does not see the first packet if the counter appears with it.
            (self.labels_and("reason", reason.name()), status.dropped(reason))
        });
        let drops: Vec<_> = drops.collect();
        self.counters(about("rustguard_dropped_packets", "Packets that were dropped, by reason"), drops.into_iter())?;
        let labels = self.labels();
        self.counters(
            about("rustguard_relayed_packets", "Packets that went from peer to peer without the host"),
            std::iter::once((labels.clone(), status.relayed)),
        )?;
        self.counters(
            about(
                "rustguard_unannounced_packets",
                "Packets of routers accepted with sources that they do not announce",
            ),
            std::iter::once((labels, status.unannounced)),
        )?;
        if let Some(policy) = &status.policy {
            let connections = u32::try_from(policy.connections).unwrap_or(u32::MAX);
            self.gauge(about("rustguard_policy_connections", "Connections that the policy knows"), connections)?;
        }
        let events: Vec<_> = status.counters.iter().map(|it| (self.labels_and("event", it.name), it.value)).collect();
        self.counters(
            about("rustguard_events", "Events of the program around the tunnel; of `serve`, enrolment"),
            events.into_iter(),
        )
    }

    /// The metrics of prometheus_wireguard_exporter, with its names, labels and meanings.
    fn wireguard(&mut self, peers: &[Peer<'_>], now: Duration) -> fmt::Result {
        self.counters(
            about("wireguard_sent", "Bytes sent to the peer").bytes(),
            peers.iter().map(|peer| (peer.wireguard_labels(), peer.status.tx_bytes)),
        )?;
        self.counters(
            about("wireguard_received", "Bytes received from the peer").bytes(),
            peers.iter().map(|peer| (peer.wireguard_labels(), peer.status.rx_bytes)),
        )?;
        self.gauges(
            about(
                "wireguard_latest_handshake",
                "Time of the latest handshake since the Unix epoch; 0 if there was none",
            )
            .seconds(),
            peers.iter().map(|peer| (peer.wireguard_labels(), peer.status.last_handshake.map_or(0, |at| at.as_secs()))),
        )?;
        self.gauges(
            about("wireguard_latest_handshake_delay", "Time since the latest handshake").seconds(),
            peers.iter().filter_map(|peer| {
                Some((peer.wireguard_labels(), now.saturating_sub(peer.status.last_handshake?).as_secs_f64()))
            }),
        )
    }

    fn peers(&mut self, peers: &[Peer<'_>]) -> fmt::Result {
        let counts = STATES.map(|state| {
            let count = peers.iter().filter(|peer| peer.status.connection.word() == state).count();
            (self.labels_and("state", state), count)
        });
        self.gauges(about("rustguard_peers", "Peers, by the state of their connection"), counts.into_iter())?;
        // Only the present state: one sample per peer instead of five.
        self.gauges(
            about("rustguard_peer_connection", "1 for the state of the connection to the peer"),
            peers.iter().map(|peer| (peer.labels_and("state", peer.status.connection.word()), 1_u32)),
        )?;
        self.gauges(
            about(
                "rustguard_peer_connection_since",
                "When the connection to the peer came into its state, since the Unix epoch",
            )
            .seconds(),
            peers.iter().filter_map(|peer| Some((peer.labels(), peer.status.connection.since()?.as_secs()))),
        )?;
        self.gauges(
            about("rustguard_peer_connection_attempts", "Initiations that the peer has not answered, while connecting"),
            peers.iter().filter_map(|peer| Some((peer.labels(), peer.status.connection.attempts()?))),
        )?;
        self.gauges(
            about("rustguard_peer_problem", "1 for the likely cause of a problem with the peer"),
            peers
                .iter()
                .filter_map(|peer| Some((peer.labels_and("kind", peer.status.problem.as_ref()?.kind()), 1_u32))),
        )?;
        self.counters(
            about("rustguard_peer_handshakes", "Handshakes that were completed with the peer"),
            peers.iter().map(|peer| (peer.labels(), peer.status.handshakes)),
        )?;
        self.gauges(
            about("rustguard_peer_path_mtu", "Longest IP datagram that is known to reach the peer, if it was probed")
                .bytes(),
            peers.iter().filter_map(|peer| Some((peer.labels(), peer.status.path_mtu?.datagram))),
        )?;
        let parities = || peers.iter().filter_map(|peer| Some((peer, peer.status.parity?)));
        self.counters(
            about("rustguard_peer_parities_sent", "Parities that were sent to the peer, where they are configured"),
            parities().map(|(peer, parity)| (peer.labels(), parity.sent)),
        )?;
        self.counters(
            about("rustguard_peer_rebuilt_packets", "Lost packets of the peer's that were made of its parities"),
            parities().map(|(peer, parity)| (peer.labels(), parity.rebuilt)),
        )?;
        // Only for peers with a choice of ways. For most peers there is none.
        let ways = peers.iter().filter(|peer| peer.status.through.is_some() || !peer.status.paths.is_empty());
        self.gauges(
            about(
                "rustguard_peer_way",
                "1 for the way by which the peer is reached: direct, through a peer, or an own transport",
            ),
            ways.filter_map(|peer| Some((peer.labels_and("way", peer.status.way()?.word()), 1_u32))),
        )?;
        // Only reasons that occurred: 10,000 peers with all of them would be 300,000 time series.
        let drops = peers.iter().flat_map(|peer| {
            peer.status.drops.iter().map(|count| (peer.labels_and("reason", count.reason.name()), count.packets))
        });
        self.counters(
            about("rustguard_peer_dropped_packets", "Packets of or for the peer that were dropped, by reason"),
            drops,
        )
    }

    fn paths(&mut self, peers: &[Peer<'_>]) -> fmt::Result {
        let paths: Vec<_> = peers
            .iter()
            .flat_map(|peer| {
                let mut shown = 0;
                peer.status.paths.iter().map(move |path| {
                    let name = path.configured.as_ref().map(ToString::to_string).unwrap_or_else(|| {
                        shown += 1;
                        format!("shown-{shown}")
                    });
                    let mut labels = peer.labels();
                    labels.push(("path", bounded(&name).into_owned().into()));
                    (labels, path)
                })
            })
            .collect();
        self.gauges(
            about("rustguard_path_up", "1 while the path to the peer works, or else 0"),
            paths.iter().map(|(labels, path)| (labels.clone(), u32::from(path.state == PathState::Up))),
        )?;
        self.gauges(
            about(
                "rustguard_path_active",
                "1 while packets that are not spread over several paths take this one, or else 0",
            ),
            paths.iter().map(|(labels, path)| (labels.clone(), u32::from(path.active))),
        )?;
        self.gauges(
            about("rustguard_path_round_trip", "Smoothed round-trip time of the path, where this side probes it")
                .seconds(),
            paths.iter().filter_map(|(labels, path)| Some((labels.clone(), path.round_trip?.as_secs_f64()))),
        )
    }

    fn routing(&mut self, routing: &RoutingStatus) -> fmt::Result {
        self.shared_prefixes(routing)?;
        // There is no routing protocol.
        if routing.router_id.is_none() {
            return Ok(());
        }
        let count = |matching: fn(&RouteStatus) -> bool| routing.routes.iter().filter(|route| matching(route)).count();
        let routes = [
            ("local", count(|route| route.local)),
            ("reachable", count(|route| !route.local && route.metric.is_some())),
            ("unreachable", count(|route| !route.local && route.metric.is_none())),
        ];
        let routes = routes.map(|(state, count)| (self.labels_and("state", state), count));
        self.gauges(about("rustguard_routes", "Prefixes that the routing protocol knows"), routes.into_iter())?;
        self.gauge(
            about(
                "rustguard_routes_not_in_kernel",
                "Prefixes that are missing from the kernel's table, where they should be in it",
            ),
            routing.routes.iter().filter(|route| route.kernel.is_some()).count(),
        )?;
        let interface = self.interface.to_owned();
        let neighbours =
            || routing.neighbours.iter().map(|neighbour| (labels::neighbour(&interface, &neighbour.peer), neighbour));
        self.gauges(
            about("rustguard_neighbour_up", "1 while the link to the neighbour can be used, or else 0"),
            neighbours().map(|(labels, it)| (labels, u32::from(it.cost.is_some()))),
        )?;
        self.gauges(
            about("rustguard_neighbour_cost", "Cost of the link to the neighbour in the routing protocol's metric"),
            neighbours().filter_map(|(labels, it)| Some((labels, u32::from(it.cost?)))),
        )?;
        self.gauges(
            about("rustguard_neighbour_round_trip", "Smoothed round-trip time to the neighbour").seconds(),
            neighbours().filter_map(|(labels, it)| Some((labels, it.round_trip?.as_secs_f64()))),
        )?;
        self.gauges(
            about("rustguard_neighbour_routes", "Prefixes that the neighbour announces"),
            neighbours().map(|(labels, it)| (labels, it.routes)),
        )?;
        let refused: Vec<_> = routing.refused.iter().map(|it| (self.labels_and("reason", it.name), it.value)).collect();
        self.counters(
            about("rustguard_routing_refused", "What the routing protocol refused, by reason"),
            refused.into_iter(),
        )
    }

    /// The prefixes that several peers have, unless a routing protocol decides between them.
    fn shared_prefixes(&mut self, routing: &RoutingStatus) -> fmt::Result {
        let ours = routing.routes.iter().filter(|_| routing.engine == Some("members"));
        let shared = ours.filter(|route| route.announcements.len() > 1);
        let carriers: Vec<_> = shared.flat_map(|route| route.announcements.iter().map(move |it| (route, it))).collect();
        let interface = self.interface.to_owned();
        let holds = |route: &RouteStatus, it: &AnnouncementStatus| route.next_hops.first() == Some(&it.from);
        self.gauges(
            about("rustguard_prefix_holder", "1 for the peer that gets the packets of a shared prefix, or else 0"),
            carriers.iter().map(|(route, it)| (labels::carrier(&interface, route, it), u32::from(holds(route, it)))),
        )?;
        self.gauges(
            about("rustguard_prefix_reachable", "0 for a peer with a shared prefix that does not answer, or else 1"),
            carriers.iter().map(|(route, it)| (labels::carrier(&interface, route, it), u32::from(it.feasible))),
        )
    }

    fn enrolment(&mut self, enrolment: &Enrolment) -> fmt::Result {
        let leases = [("active", enrolment.active), ("pending", enrolment.pending)];
        let leases = leases.map(|(state, count)| (self.labels_and("state", state), count));
        self.gauges(about("rustguard_leases", "Leases, by whether a handshake was completed"), leases.into_iter())?;
        let pools: Vec<_> = enrolment
            .pools
            .iter()
            .map(|pool| {
                let mut labels = self.labels();
                labels.push(("pool", format!("{}/{}", pool.network, pool.prefix_len).into()));
                let length = if pool.network.is_ipv4() { 32 } else { 128 };
                let addresses = 2_f64.powi(length - i32::from(pool.prefix_len));
                (labels, pool.leased, addresses)
            })
            .collect();
        self.gauges(
            about("rustguard_pool_leased_addresses", "Addresses of the pool that are leased"),
            pools.iter().map(|(labels, leased, _)| (labels.clone(), *leased)),
        )?;
        self.gauges(
            about("rustguard_pool_addresses", "Addresses of the pool, with those that are never leased"),
            pools.iter().map(|(labels, _, addresses)| (labels.clone(), *addresses)),
        )?;
        self.gauge(about("rustguard_usable_invites", "Invites that can be used"), enrolment.usable_invites)?;
        self.gauge(
            about("rustguard_pairing_window_open", "1 while the pairing window is open, or else 0"),
            u32::from(enrolment.window_open),
        )?;
        self.gauge(about("rustguard_waiting_joiners", "Machines that wait for approval"), enrolment.waiting)?;
        match &enrolment.network {
            Some(network) => self.network(network),
            None => Ok(()),
        }
    }

    fn network(&mut self, network: &Network) -> fmt::Result {
        self.gauge(about("rustguard_roster_number", "The number of the network's last roster"), network.roster)?;
        self.gauge(
            about("rustguard_roster_issued_timestamp", "When the network's last roster was issued").seconds(),
            network.issued,
        )?;
        let members = [("member", network.members), ("client", network.clients)];
        let members = members.map(|(role, count)| (self.labels_and("role", role), count));
        self.gauges(about("rustguard_members", "Machines in the network, by their role"), members.into_iter())?;
        self.gauge(
            about("rustguard_members_lagging", "Connected members that do not have the last roster yet"),
            network.lagging,
        )?;
        let standbys = [
            ("current", network.standbys.saturating_sub(network.standbys_lagging)),
            ("lagging", network.standbys_lagging),
        ];
        let standbys = standbys.map(|(state, count)| (self.labels_and("state", state), count));
        self.gauges(
            about(
                "rustguard_standbys",
                "Further servers that can take the place of this one, by whether they have its present state",
            ),
            standbys.into_iter(),
        )?;
        match network.store_available {
            Some(available) => self.gauge(
                about("rustguard_store_available", "Whether the store that several servers share can be used"),
                u64::from(available),
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_device::{Cause, Connection, PeerStatus, Problem, crypto::x25519::PublicKey};

    #[test]
    fn a_peer_with_a_problem() {
        let mut peer = PeerStatus::new(PublicKey([7; 32]));
        peer.name = Some("laptop".to_owned());
        peer.connection = Connection::Connecting { since: Duration::from_secs(40), attempts: 3 };
        let cause = Cause::NoAnswer { endpoint: "192.0.2.1:51820".parse().unwrap(), route: None };
        peer.problem = Some(Problem::new(cause, Duration::from_secs(50)));
        peer.last_handshake = Some(Duration::from_secs(30));
        peer.handshakes = 2;
        peer.allowed_ips = (0..100).map(|n| format!("10.0.{n}.0/24").parse().unwrap()).collect();
        let mut relayed = PeerStatus::new(PublicKey([8; 32]));
        relayed.through = Some(PublicKey([7; 32]));
        let mut status = Status::default();
        status.peers.extend([peer, relayed]);
        let at = Duration::from_millis(60_500);
        let (interface, routing, enrolment) = ("wg0".to_owned(), RoutingStatus::default(), None);
        let page = render(Snapshot { interface, status, routing, enrolment, at });
        let line = |name: &str| page.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_default();
        assert!(line("rustguard_peer_problem").ends_with(",kind=\"no-answer\"} 1"), "{page}");
        assert!(line("rustguard_peer_connection").ends_with(",state=\"connecting\"} 1"), "{page}");
        assert!(line("rustguard_peer_connection_since_seconds").ends_with("} 40"), "{page}");
        assert!(line("rustguard_peer_connection_attempts").ends_with("} 3"), "{page}");
        assert!(line("rustguard_peer_handshakes_total").ends_with("} 2"), "{page}");
        assert!(line("wireguard_latest_handshake_delay_seconds").ends_with("} 30.5"), "{page}");
        let ways: Vec<_> = page.lines().filter(|line| line.starts_with("rustguard_peer_way{")).collect();
        assert!(ways.len() == 1 && ways[0].ends_with(",way=\"through\"} 1"), "{ways:?}");
        // A long list is cut after a complete prefix.
        let sent = line("wireguard_sent_bytes_total");
        assert!(sent.contains("10.0.1.0/24,") && sent.contains(".0/24,…\"} 0") && sent.len() < 500, "{sent}");
        // Without Babel and `serve`, there are no metrics about them.
        assert!(!page.contains("neighbour") && !page.contains("lease"), "{page}");
    }
}
