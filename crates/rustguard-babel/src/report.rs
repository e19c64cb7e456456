//! The reports of a speaker: neighbours, routes, and counters of refused packets and TLVs by reason.
use crate::{Babel, wire::types::Announcement};
use ipnet::IpNet;
pub use rustguard_core::routing::Neighbour as NeighbourReport;
use rustguard_core::{
    node::PeerId,
    routing::{self, NextHops},
};

/// A prefix and its routes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteReport {
    /// The prefix.
    pub prefix: IpNet,
    /// The announcement of this node; `None`: the prefix is unreachable.
    pub selected: Option<Announcement>,
    /// Whether this node is the origin.
    pub local: bool,
    /// The installed next hops, if any.
    pub hops: Option<NextHops>,
    /// The routes that neighbours announced and have not retracted.
    pub learned: Vec<LearnedRoute>,
}

/// A route that a neighbour announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LearnedRoute {
    /// The neighbour.
    pub peer: PeerId,
    /// Its announcement. The metric starts at the neighbour, without the link to it.
    pub announcement: Announcement,
    /// Whether the route can be used without the risk of a loop (RFC 8966 §3.5.1).
    pub feasible: bool,
}

/// How many packets, TLVs and requests were refused, by reason. Counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets from unknown peers, or from peers that are not routers.
    pub not_a_router: u64,
    /// Packets that are not Babel: wrong port, hop limit, source, checksum, magic, version or length.
    pub not_babel: u64,
    /// TLVs whose content does not match their type.
    pub malformed: u64,
    /// Updates for link-local, multicast, loopback prefixes.
    pub martian: u64,
    /// Updates outside of the peer's allowed IPs.
    pub outside_allowed_ips: u64,
    /// Updates for a prefix that is pinned to another origin.
    pub pinned: u64,
    /// Updates beyond the limit of routes of a neighbour.
    pub too_many_routes: u64,
    /// Updates of a route that were ignored because they could lead to a loop (RFC 8966 §3.5.3).
    pub unfeasible: u64,
    /// Requests that repeated a pending one, or exceeded a bound.
    pub requests_dropped: u64,
}

/// The report that all routing engines have in common.
pub(crate) fn of(babel: &Babel) -> routing::Report {
    let routes = babel.routes().map(|route| {
        let learned = route.learned.iter();
        let mut report = routing::Route::new(route.prefix);
        report.local = route.local;
        report.metric = route.selected.map(|selected| selected.metric);
        report.origin = route.selected.map(|selected| selected.router_id.bytes());
        report.hops = route.hops.unwrap_or(NextHops::UNREACHABLE);
        report.learned =
            learned.map(|it| routing::Announcement::new(it.peer, it.announcement.metric, it.feasible)).collect();
        report
    });
    let Counters {
        not_a_router,
        not_babel,
        malformed,
        martian,
        outside_allowed_ips,
        pinned,
        too_many_routes,
        unfeasible,
        requests_dropped,
    } = babel.counters();
    let refused = [
        ("not_a_router", not_a_router),
        ("not_babel", not_babel),
        ("malformed", malformed),
        ("martian", martian),
        ("outside_allowed_ips", outside_allowed_ips),
        ("pinned", pinned),
        ("too_many_routes", too_many_routes),
        ("unfeasible", unfeasible),
        ("requests_dropped", requests_dropped),
    ];
    let refused = refused.into_iter().filter(|&(_, count)| count > 0);
    let mut report = routing::Report::default();
    report.engine = Some("babel");
    report.router_id = Some(babel.router_id().bytes());
    report.neighbours = babel.neighbours().collect();
    report.routes = routes.collect();
    let names = babel.names();
    report.names = names.map(|(id, name)| routing::OriginName::new(id.bytes(), name.as_str().to_owned())).collect();
    report.refused = refused.map(|(reason, count)| routing::RefusedCount::new(reason, count)).collect();
    report
}
