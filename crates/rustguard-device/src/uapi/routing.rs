//! The state of a routing engine, in the form of the socket and of `routes --json`.

use crate::{
    key::to_base64,
    status::{AnnouncementStatus, NeighbourStatus, RouteStatus, RoutingStatus},
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// The state of a routing engine. It is empty if no routing protocol runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingView {
    /// The engine: `babel`, `members`, or an embedder's own; `null` if allowed IPs alone decide.
    #[serde(default)]
    pub engine: Option<String>,
    /// The engine's own identifier in hexadecimal; `null` if it has none.
    pub router_id: Option<String>,
    /// The neighbours.
    pub neighbours: Vec<NeighbourView>,
    /// The known prefixes.
    pub routes: Vec<RouteView>,
    /// The names that origins claim, by their identifiers in hexadecimal. Several origins may claim the same name.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// How often the engine ignored something, by reason.
    pub refused: Vec<(String, u64)>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourView {
    /// The neighbour's name; `null` if it has none.
    pub name: Option<String>,
    /// The neighbour's public key in base64.
    pub public_key: String,
    /// The neighbour's endpoint; `null` while it is unknown.
    pub endpoint: Option<String>,
    /// Whether the neighbour's messages arrive.
    pub heard: bool,
    /// The cost of the link; `null` if the link cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round-trip time in microseconds.
    pub round_trip_us: Option<u64>,
    /// The number of prefixes that the neighbour announces.
    pub routes: usize,
    /// Whether the neighbour requires packets that are also authenticated inside the tunnel, and so drops this node's
    /// packets (for Babel, RFC 8967).
    #[serde(default)]
    pub wants_macs: bool,
}

/// A prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// The prefix.
    pub prefix: IpNet,
    /// Whether this host announces the prefix.
    pub local: bool,
    /// The metric; `null` if the prefix is unreachable.
    pub metric: Option<u16>,
    /// The identifier of the prefix's origin, in hexadecimal.
    pub origin: Option<String>,
    /// The next hops, the best first: peers' names, or their keys if they have no names.
    pub next_hops: Vec<String>,
    /// The next hop that takes over if the others fail.
    pub backup: Option<String>,
    /// When the next hops began to get the packets, in seconds since 1970; absent if the engine does not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The announcements of the prefix; with the engine `members`, the peers that have it.
    pub learned: Vec<LearnedView>,
    /// The reason why the route is not in the kernel's table; absent if it is there or does not belong there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// An announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedView {
    /// The neighbour that announces the prefix.
    pub from: String,
    /// The metric from that neighbour.
    pub metric: u16,
    /// Whether the route could be used.
    pub feasible: bool,
    /// The round-trip time to the peer in microseconds; absent if the engine does not measure it, or has not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
}

impl From<&RoutingStatus> for RoutingView {
    fn from(status: &RoutingStatus) -> Self {
        Self {
            engine: status.engine.map(str::to_owned),
            router_id: status.router_id.map(|id| id.to_string()),
            neighbours: status.neighbours.iter().map(Into::into).collect(),
            routes: status.routes.iter().map(Into::into).collect(),
            names: status.names.iter().map(|named| (named.origin.to_string(), named.name.clone())).collect(),
            refused: status.refused.iter().map(|counter| (counter.name.to_owned(), counter.value)).collect(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl From<&NeighbourStatus> for NeighbourView {
    fn from(neighbour: &NeighbourStatus) -> Self {
        Self {
            name: neighbour.peer.name.clone(),
            public_key: to_base64(&neighbour.peer.public_key.0).to_string(),
            endpoint: neighbour.endpoint.map(|endpoint| endpoint.to_string()),
            heard: neighbour.heard,
            cost: neighbour.cost,
            round_trip_us: neighbour.round_trip.map(micros),
            routes: neighbour.routes,
            wants_macs: neighbour.wants_macs,
        }
    }
}

impl From<&RouteStatus> for RouteView {
    fn from(route: &RouteStatus) -> Self {
        Self {
            prefix: route.prefix,
            local: route.local,
            metric: route.metric,
            origin: route.origin.map(|id| id.to_string()),
            next_hops: route.next_hops.iter().map(ToString::to_string).collect(),
            backup: route.backup.as_ref().map(ToString::to_string),
            since: route.since.map(|since| since.as_secs()),
            learned: route.announcements.iter().map(Into::into).collect(),
            kernel: route.kernel.clone(),
        }
    }
}

impl From<&AnnouncementStatus> for LearnedView {
    fn from(announcement: &AnnouncementStatus) -> Self {
        Self {
            from: announcement.from.to_string(),
            metric: announcement.metric,
            feasible: announcement.feasible,
            round_trip_us: announcement.round_trip.map(micros),
        }
    }
}
