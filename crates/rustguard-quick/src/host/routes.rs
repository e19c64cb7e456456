//! Routes into the tunnel: one per allowed IP.

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

/// How many route requests are in flight at once: enough to hide the round trip to the kernel for a hundred thousand
/// allowed IPs, few enough that the answers fit into the default socket buffer.
const IN_FLIGHT: usize = 64;

/// The allowed IPs that become ordinary routes, and those that are a default route to be set up with policy rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) ordinary: Vec<IpNet>,
    pub(super) default: Vec<IpNet>,
    /// Where the ordinary ones go.
    pub(super) table: u32,
    /// The default routes are only prepared for.
    pub(super) learned: bool,
}

impl Plan {
    /// Only `Table = auto` treats a /0 specially; in a table of the user's own it is a route like any other.
    pub(super) fn new(config: &HostConfig) -> Self {
        let mut nets: Vec<IpNet> = match config.table {
            Table::Off => return Self::default(),
            Table::Auto | Table::Number(_) => config.allowed_ips.iter().map(IpNet::trunc).collect(),
        };
        // Most specific first, so that traffic never takes a shorter prefix while a longer one is still missing.
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
///
/// As wg-quick does, the main table gets no route for what one through the tunnel covers already: the address
/// 10.0.0.2/24 brings a route to 10.0.0.0/24, and an allowed IP of 10.0.0.1/32 adds nothing to it. In a table of the
/// user's own every route is added.
pub(super) async fn add(netlink: &Netlink, journal: &mut Journal, plan: &Plan) -> Result<(), HostError> {
    let table = plan.table;
    let covering = match table {
        MAIN_TABLE => netlink.destinations_through(journal.index()).await?,
        _ => Vec::new(),
    };
    let wanted: Vec<IpNet> =
        plan.ordinary.iter().filter(|net| !covering.iter().any(|route| route.contains(*net))).copied().collect();

    let (name, index) = (journal.interface().to_owned(), journal.index());
    for nets in wanted.chunks(IN_FLIGHT) {
        let results = join_all(nets.iter().map(|net| netlink.add_route(&name, index, *net, table))).await;
        // What did succeed next to a failure has to be known before it is rolled back.
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

impl Netlink {
    /// Where the main table already sends through the interface.
    async fn destinations_through(&self, index: u32) -> Result<Vec<IpNet>, HostError> {
        let mut destinations = Vec::new();
        for family in Family::in_kernel() {
            let routes = self.dump_routes(family, Some(MAIN_TABLE), Some(index)).await?;
            destinations.extend(routes.iter().filter_map(destination_of));
        }
        Ok(destinations)
    }

    /// Adds a route through the tunnel, as `ip route add NET dev NAME table TABLE` does. A route to the same
    /// destination that is there already is an error, whichever program made it: taking it over would break its owner when the
    /// tunnel goes.
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
    // What `ip route add` marks its routes with, so that other tools see the same as under wg-quick.
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    // An IPv4 route straight to an interface, without a gateway, reaches the link and no further. IPv6 has no scopes
    // here.
    message.header.scope = if is_v6(net) { RouteScope::Universe } else { RouteScope::Link };
    match u8::try_from(table) {
        Ok(table) => message.header.table = table,
        Err(_) => message.attributes.push(RouteAttribute::Table(table)),
    }
    message.attributes.push(RouteAttribute::Destination(net.network().into()));
    message.attributes.push(RouteAttribute::Oif(index));
    message
}
