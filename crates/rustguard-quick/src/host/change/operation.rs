//! The operations of a change, their reverses, and the requests for runs of routes.

use crate::host::{
    error::HostError,
    netlink::Netlink,
    record::Journal,
    step::{Rule, Step},
};
use futures_util::future::join_all;
use ipnet::IpNet;
use std::collections::BTreeSet;

/// The configuration from which an operation takes its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Old,
    New,
}

/// One operation. [`reverse`](Self::reverse) undoes it.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Mtu {
        from: u32,
        to: u32,
    },
    AddAddress(IpNet),
    RemoveAddress(IpNet),
    /// Destinations and tables. At most [`IN_FLIGHT`](crate::host::routes::IN_FLIGHT).
    AddRoutes(Vec<(IpNet, u32)>),
    RemoveRoutes(Vec<(IpNet, u32)>),
    AddRule(Rule),
    RemoveRule(Rule),
    /// The name servers and search domains of this side.
    Dns(Side),
    /// The guard of this side.
    Guard(Side),
    /// The mark of the sockets.
    Mark {
        from: u32,
        to: u32,
    },
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }
}

impl Operation {
    pub(super) fn reverse(self) -> Self {
        match self {
            Self::Mtu { from, to } => Self::Mtu { from: to, to: from },
            Self::AddAddress(address) => Self::RemoveAddress(address),
            Self::RemoveAddress(address) => Self::AddAddress(address),
            Self::AddRoutes(routes) => Self::RemoveRoutes(routes),
            Self::RemoveRoutes(routes) => Self::AddRoutes(routes),
            Self::AddRule(rule) => Self::RemoveRule(rule),
            Self::RemoveRule(rule) => Self::AddRule(rule),
            Self::Dns(side) => Self::Dns(side.other()),
            Self::Guard(side) => Self::Guard(side.other()),
            Self::Mark { from, to } => Self::Mark { from: to, to: from },
        }
    }
}

/// Adds routes. Returns those that were added, and the first failure.
pub(super) async fn add_routes(
    netlink: &Netlink,
    journal: &mut Journal,
    routes: &[(IpNet, u32)],
) -> (Vec<(IpNet, u32)>, Result<(), HostError>) {
    let (name, index) = (journal.interface().to_owned(), journal.index());
    let results = join_all(routes.iter().map(|(net, table)| netlink.add_route(&name, index, *net, *table))).await;
    let known: BTreeSet<_> = super::routes_of(&journal.get().steps).collect();
    let (mut added, mut outcome) = (Vec::new(), Ok(()));
    for (route, result) in routes.iter().zip(results) {
        match result {
            Ok(()) => {
                added.push(*route);
                if !known.contains(route) {
                    outcome = outcome.and(journal.record(Step::Route { net: route.0, table: route.1 }));
                }
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    (added, outcome)
}

/// Removes routes. Returns those that were removed, and the first failure.
pub(super) async fn remove_routes(
    netlink: &Netlink,
    journal: &mut Journal,
    routes: &[(IpNet, u32)],
) -> (Vec<(IpNet, u32)>, Result<(), HostError>) {
    let (name, index) = (journal.interface().to_owned(), journal.index());
    let results = join_all(routes.iter().map(|(net, table)| netlink.delete_route(&name, index, *net, *table))).await;
    let (mut removed, mut outcome) = (Vec::new(), Ok(()));
    for (route, result) in routes.iter().zip(results) {
        match result {
            Ok(()) => removed.push(*route),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    let gone: BTreeSet<_> = removed.iter().copied().collect();
    let forgotten = journal.forget(|step| matches!(step, Step::Route { net, table } if gone.contains(&(*net, *table))));
    (removed, outcome.and(forgotten))
}
