//! Routes into the tunnel, one for each allowed IP.

use super::{
    config::{HostConfig, Table},
    error::HostError,
    link::{ipv6_disabled, ipv6_disabled_on, is_v6},
    netlink::Netlink,
    record::Journal,
    step::Step,
};
use futures_util::future::join_all;
use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use rustguard_device::kernel::{EEXIST, Family, MAIN_TABLE, already_gone, destination_of, errno};
use std::collections::HashMap;

/// The number of route requests in flight: enough to hide the round trip to the kernel with a hundred thousand allowed
/// IPs, and few enough for the default socket buffer to hold the answers.
pub(super) const IN_FLIGHT: usize = 64;

/// The allowed IPs, divided into ordinary routes and default routes, which are set up with policy rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) ordinary: Vec<IpNet>,
    pub(super) default: Vec<IpNet>,
    /// The table for ordinary routes.
    pub(super) table: u32,
    /// Default routes are prepared, but not added.
    pub(super) learned: bool,
}

impl Plan {
    /// Only `Table = auto` treats a /0 specially. In a table that the user chose it is a route like any other.
    pub(super) fn new(config: &HostConfig) -> Self {
        let mut nets: Vec<IpNet> = match config.table {
            Table::Off => return Self::default(),
            Table::Auto | Table::Number(_) => config.allowed_ips.iter().map(IpNet::trunc).collect(),
        };
        // The most specific routes come first, so that no packet follows a shorter prefix before the longer one is
        // added.
        nets.sort_unstable_by_key(|net| (std::cmp::Reverse(net.prefix_len()), *net));
        nets.dedup();
        let (default, ordinary, table) = match config.table {
            Table::Number(table) => (Vec::new(), nets, table),
            Table::Auto | Table::Off => {
                let (default, ordinary) = nets.into_iter().partition(|net| net.prefix_len() == 0);
                (default, ordinary, MAIN_TABLE)
            }
        };
        let learned = config.learned;
        Self { ordinary: if learned { Vec::new() } else { ordinary }, default, table, learned }
    }
}

/// Adds the ordinary routes of a plan.
pub(super) async fn add(netlink: &Netlink, journal: &mut Journal, plan: &Plan) -> Result<(), HostError> {
    let table = plan.table;
    let wanted = wanted(netlink, journal.index(), plan, &[]).await?;
    let (name, index) = (journal.interface().to_owned(), journal.index());
    for nets in wanted.chunks(IN_FLIGHT) {
        let results = join_all(nets.iter().map(|net| netlink.add_route(&name, index, *net, table))).await;
        // The requests that succeeded must be known before they are rolled back.
        let mut outcome = Ok(());
        for (net, result) in nets.iter().zip(results) {
            match result {
                Ok(()) => journal.record(Step::Route { net: *net, table })?,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome?;
    }
    Ok(())
}

/// The ordinary routes that a plan needs.
///
/// As in wg-quick, the main table gets no route that an existing route through the tunnel already covers. For example,
/// the address 10.0.0.2/24 adds a route to 10.0.0.0/24, so an allowed IP of 10.0.0.1/32 needs none. In a table that the
/// user chose, every route is added. Routes to `ignored` do not count, each as often as it is listed: routes of the
/// tunnel itself, and routes that disappear with an address.
pub(super) async fn wanted(
    netlink: &Netlink,
    index: u32,
    plan: &Plan,
    ignored: &[IpNet],
) -> Result<Vec<IpNet>, HostError> {
    let mut covering = match plan.table {
        MAIN_TABLE if !plan.ordinary.is_empty() => netlink.destinations_through(index, MAIN_TABLE).await?,
        _ => Vec::new(),
    };
    let mut ignored = ignored.iter().fold(HashMap::<_, usize>::new(), |mut counts, net| {
        *counts.entry(*net).or_default() += 1;
        counts
    });
    covering.retain(|net| match ignored.get_mut(net) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    });
    Ok(plan.ordinary.iter().filter(|net| !covering.iter().any(|route| route.contains(*net))).copied().collect())
}

impl Netlink {
    /// The destinations that a table already sends through the interface.
    pub(super) async fn destinations_through(&self, index: u32, table: u32) -> Result<Vec<IpNet>, HostError> {
        let mut destinations = Vec::new();
        for family in Family::in_kernel() {
            let routes = self.dump_routes(family, Some(table), Some(index)).await?;
            destinations.extend(routes.iter().filter_map(destination_of));
        }
        Ok(destinations)
    }

    /// Adds a route through the tunnel, like `ip route add NET dev NAME table TABLE`. An existing route to the same
    /// destination is an error, whichever program made it. Replacing it would leave its owner without a route when the
    /// tunnel ends.
    pub(super) async fn add_route(&self, name: &str, index: u32, net: IpNet, table: u32) -> Result<(), HostError> {
        match self.handle().route().add(route_message(index, net, table)).execute().await {
            Ok(()) => Ok(()),
            Err(error) => match errno(&error) {
                Some(EEXIST) => Err(HostError::RouteExists { interface: name.to_owned(), net, table }),
                _ if is_v6(net) && ipv6_disabled_on(name) => Err(ipv6_disabled(name, net)),
                _ => Err(HostError::netlink(format!("route {net} through `{name}` in table {table}"), &error)),
            },
        }
    }

    pub(super) async fn delete_route(&self, name: &str, index: u32, net: IpNet, table: u32) -> Result<(), HostError> {
        match self.handle().route().del(route_message(index, net, table)).execute().await {
            Ok(()) => Ok(()),
            Err(error) if already_gone(&error) => Ok(()),
            Err(error) => {
                Err(HostError::netlink(format!("remove the route to {net} through `{name}` in table {table}"), &error))
            }
        }
    }
}

fn route_message(index: u32, net: IpNet, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = Family::of(net.addr()).into();
    message.header.destination_prefix_length = net.prefix_len();
    // `ip route add` sets this protocol, so other tools see the same routes as under wg-quick.
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    // An IPv4 route to an interface without a gateway has link scope. IPv6 has no scopes here.
    message.header.scope = if is_v6(net) { RouteScope::Universe } else { RouteScope::Link };
    match u8::try_from(table) {
        Ok(table) => message.header.table = table,
        Err(_) => message.attributes.push(RouteAttribute::Table(table)),
    }
    message.attributes.push(RouteAttribute::Destination(net.network().into()));
    message.attributes.push(RouteAttribute::Oif(index));
    message
}
