//! What a routing engine knows, as it goes through the socket and as `routes --json` prints it.

use crate::{
    key::to_base64,
    status::{AnnouncementStatus, NeighbourStatus, RouteStatus, RoutingStatus},
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All of it; with nothing in it, there is no routing protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingView {
    /// The engine's own identifier, in hexadecimal, where it has one.
    pub router_id: Option<String>,
    /// Who it talks to.
    pub neighbours: Vec<NeighbourView>,
    /// What it knows of prefixes.
    pub routes: Vec<RouteView>,
    /// What origins claim to be called, by their identifiers in hexadecimal. Several may claim the same.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// What it passed over, by reason.
    pub refused: Vec<(String, u64)>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourView {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its public key, base64.
    pub public_key: String,
    /// Where it is.
    pub endpoint: Option<String>,
    /// Whether it is heard.
    pub heard: bool,
    /// The cost of the link; `null`: it cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round trip, in microseconds.
    pub round_trip_us: Option<u64>,
    /// How many prefixes it announces.
    pub routes: usize,
}

/// A prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// Which.
    pub prefix: IpNet,
    /// Whether this host announces it.
    pub local: bool,
    /// How far it is; `null`: out of reach.
    pub metric: Option<u16>,
    /// Who originates it, in hexadecimal.
    pub origin: Option<String>,
    /// Who gets packets for it, the best first: names, or keys where there are none.
    pub next_hops: Vec<String>,
    /// Who takes over.
    pub backup: Option<String>,
    /// Who announces it.
    pub learned: Vec<LearnedView>,
    /// Why it is not in the kernel's table, where it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// An announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedView {
    /// Whose.
    pub from: String,
    /// How far it is from there.
    pub metric: u16,
    /// Whether it could be used.
    pub feasible: bool,
}

impl From<&RoutingStatus> for RoutingView {
    fn from(status: &RoutingStatus) -> Self {
        Self {
            router_id: status.router_id.map(|id| id.to_string()),
            neighbours: status.neighbours.iter().map(Into::into).collect(),
            routes: status.routes.iter().map(Into::into).collect(),
            names: status.names.iter().map(|named| (named.origin.to_string(), named.name.clone())).collect(),
            refused: status.refused.iter().map(|counter| (counter.name.to_owned(), counter.value)).collect(),
        }
    }
}

impl From<&NeighbourStatus> for NeighbourView {
    fn from(neighbour: &NeighbourStatus) -> Self {
        Self {
            name: neighbour.peer.name.clone(),
            public_key: to_base64(&neighbour.peer.public_key.0).to_string(),
            endpoint: neighbour.endpoint.map(|endpoint| endpoint.to_string()),
            heard: neighbour.heard,
            cost: neighbour.cost,
            round_trip_us: neighbour.round_trip.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            routes: neighbour.routes,
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
            learned: route.announcements.iter().map(Into::into).collect(),
            kernel: route.kernel.clone(),
        }
    }
}

impl From<&AnnouncementStatus> for LearnedView {
    fn from(announcement: &AnnouncementStatus) -> Self {
        Self { from: announcement.from.to_string(), metric: announcement.metric, feasible: announcement.feasible }
    }
}
