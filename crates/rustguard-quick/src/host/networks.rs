//! The networks of this machine. A network that it serves or joins must not overlap them.

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType},
    },
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The shortest prefix of a network. A shorter route without a gateway is a part of a default route.
const WIDE_V4: u8 = 8;
/// The same for IPv6.
const WIDE_V6: u8 = 16;

/// The addresses of this machine, each with the prefix length of its network.
///
/// # Errors
/// The kernel cannot be asked.
pub async fn addresses() -> io::Result<Vec<IpNet>> {
    addresses_without(None).await
}

/// The addresses of this machine, without those of an interface.
async fn addresses_without(interface: Option<u32>) -> io::Result<Vec<IpNet>> {
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let addresses: Vec<_> = netlink.address().get().execute().try_collect().await.map_err(io::Error::other)?;
    connection.abort();
    let networks =
        addresses.into_iter().filter(|message| Some(message.header.index) != interface).filter_map(|message| {
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })?;
            IpNet::new(address, message.header.prefix_len).ok()
        });
    Ok(networks.collect())
}

/// The [`addresses`], and the destinations of the main table's routes to an interface without a gateway. Networks
/// behind other tunnels have such routes. The interface with this index is left out.
///
/// # Errors
/// The kernel cannot be asked.
pub async fn connected(without: Option<u32>) -> io::Result<Vec<IpNet>> {
    with_routes(without, direct).await
}

/// The [`addresses`], and the destinations of all routes of the main table, except default routes.
///
/// # Errors
/// The kernel cannot be asked.
pub async fn known() -> io::Result<Vec<IpNet>> {
    with_routes(None, destination).await
}

/// The [`addresses`], and the networks that `of` takes from the routes.
async fn with_routes(without: Option<u32>, of: impl Fn(&RouteMessage) -> Option<IpNet>) -> io::Result<Vec<IpNet>> {
    let mut networks = addresses_without(without).await?;
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut routes: Vec<_> = netlink.route().get(v4).execute().try_collect().await.map_err(io::Error::other)?;
    // A kernel without IPv6 does not answer this request.
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    routes.extend(netlink.route().get(v6).execute().try_collect::<Vec<_>>().await.unwrap_or_default());
    connection.abort();
    let leads_there =
        |route: &&RouteMessage| without.is_some_and(|index| route.attributes.contains(&RouteAttribute::Oif(index)));
    networks.extend(routes.iter().filter(|route| !leads_there(route)).filter_map(of));
    Ok(networks)
}

/// The destination of a route to an interface without a gateway.
fn direct(route: &RouteMessage) -> Option<IpNet> {
    let has = |wanted: fn(&RouteAttribute) -> bool| route.attributes.iter().any(wanted);
    let gateway = has(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)));
    let interface = has(|attribute| matches!(attribute, RouteAttribute::Oif(_)));
    destination(route).filter(|_| interface && !gateway)
}

/// The destination of a route of the main table, if it is not a default route or a part of one.
fn destination(route: &RouteMessage) -> Option<IpNet> {
    let (mut table, mut to) = (u32::from(route.header.table), None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = Some(IpAddr::V4(*address)),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => to = Some(IpAddr::V6(*address)),
            _ => {}
        }
    }
    let main = table == u32::from(RouteHeader::RT_TABLE_MAIN) && route.header.kind == RouteType::Unicast;
    let network = IpNet::new(to?, route.header.destination_prefix_length).ok()?;
    let wide = network.prefix_len() < if network.addr().is_ipv4() { WIDE_V4 } else { WIDE_V6 };
    (main && !wide).then_some(network)
}
