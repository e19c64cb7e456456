//! The MTU of a tunnel: the MTU of the paths to its endpoints, less WireGuard's overhead.

use super::{config::HostConfig, error::HostError, link::is_v6, netlink::Netlink};
use crate::overhead::{DEFAULT_PATH_MTU, mtu_for_path};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteMetric};
use rustguard_device::kernel::{Family, MAIN_TABLE};
use std::net::IpAddr;

/// The minimum MTU of IPv6. Below it the kernel removes IPv6 from the interface (RFC 8200 section 5).
const LEAST_FOR_V6: u32 = 1280;

/// The minimum packet size that every IPv4 host accepts (RFC 791 section 3.1).
const LEAST_FOR_V4: u32 = 576;

/// The MTU, in bytes, that [`apply`](super::apply) sets on the tunnel. It is the configured MTU, if there is one.
/// Otherwise it is the lowest MTU of the routes to the endpoints (the route's own MTU, or its interface's), less the
/// overhead: see [`mtu_for_path`]. Without endpoints the default route counts. Without a default route, a path of 1,500
/// bytes is assumed. A computed MTU is at least 1,280 if the tunnel has IPv6 addresses, and at least 576 otherwise.
///
/// Compute it again when the [`Monitor`](rustguard_device::kernel::Monitor) reports a changed network.
///
/// # Errors
/// [`HostError::MtuTooSmall`] for a configured MTU below 1,280 with IPv6 addresses; netlink errors.
pub async fn tunnel_mtu(config: &HostConfig) -> Result<u32, HostError> {
    compute(&Netlink::open()?, config, config.fwmark).await
}

/// [`tunnel_mtu`] for packets with the mark of the tunnel's sockets. Without the mark, a default route into the tunnel
/// would make the tunnel itself the route to the endpoint.
pub(super) async fn compute(netlink: &Netlink, config: &HostConfig, mark: Option<u32>) -> Result<u32, HostError> {
    let has_v6 = config.addresses.iter().any(|address| is_v6(*address));
    if let Some(mtu) = config.mtu {
        return if has_v6 && mtu < LEAST_FOR_V6 {
            Err(HostError::MtuTooSmall { interface: config.interface.clone(), mtu })
        } else {
            Ok(mtu)
        };
    }

    let own = netlink.link_by_name(&config.interface).await?.map(|link| link.index);
    let mut path = None;
    for endpoint in &config.endpoints {
        if let Some(route) = netlink.route_to(endpoint.ip(), mark).await {
            path = lowest(path, netlink.route_mtu(&route, own).await?);
        }
    }
    if path.is_none() {
        path = netlink.default_route_mtu(own).await?;
    }

    let least = if has_v6 { LEAST_FOR_V6 } else { LEAST_FOR_V4 };
    Ok(mtu_for_path(path.unwrap_or(DEFAULT_PATH_MTU), config.through_peers).max(least))
}

impl Netlink {
    /// The route of a packet to `destination`, as in `ip route get`. `None` if there is none at the moment.
    pub(super) async fn route_to(&self, destination: IpAddr, mark: Option<u32>) -> Option<RouteMessage> {
        let mut query = RouteMessage::default();
        query.header.address_family = Family::of(destination).into();
        query.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
        query.attributes.push(RouteAttribute::Destination(destination.into()));
        query.attributes.extend(mark.map(RouteAttribute::Mark));
        // The errors are: unreachable, prohibited, or no such address family. An endpoint that is unreachable now does
        // not affect the MTU.
        std::pin::pin!(self.handle().route().get(query).execute()).try_next().await.ok().flatten()
    }

    async fn default_route_mtu(&self, own: Option<u32>) -> Result<Option<u32>, HostError> {
        for family in Family::in_kernel() {
            let routes = self.dump_routes(family, Some(MAIN_TABLE), None).await?;
            let metric = |route: &RouteMessage| {
                route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Priority(metric) => Some(*metric),
                    _ => None,
                })
            };
            let best = routes
                .iter()
                .filter(|route| route.header.destination_prefix_length == 0)
                .min_by_key(|route| metric(route).unwrap_or(0));
            if let Some(route) = best
                && let Some(mtu) = self.route_mtu(route, own).await?
            {
                return Ok(Some(mtu));
            }
        }
        Ok(None)
    }

    /// The MTU of a route: its own MTU, or the lowest MTU of its interfaces. Routes through the tunnel do not count.
    async fn route_mtu(&self, route: &RouteMessage, own: Option<u32>) -> Result<Option<u32>, HostError> {
        let mut interfaces = Vec::new();
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => interfaces.push(*index),
                RouteAttribute::MultiPath(hops) => interfaces.extend(hops.iter().map(|hop| hop.interface_index)),
                _ => {}
            }
        }
        if own.is_some_and(|own| interfaces.contains(&own)) {
            return Ok(None);
        }

        let metrics = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => Some(metrics),
            _ => None,
        });
        let stated = metrics.into_iter().flatten().find_map(|metric| match metric {
            RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
            _ => None,
        });
        if stated.is_some() {
            return Ok(stated);
        }

        let mut path = None;
        for index in interfaces {
            path = lowest(path, self.link_by_index(index).await?.map(|link| link.mtu));
        }
        Ok(path)
    }
}

fn lowest(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a.into_iter().chain(b).min()
}
