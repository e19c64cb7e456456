//! The addresses and routes of one interface.

use anyhow::Result;
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    route::{RouteAttribute, RouteMessage, RouteType},
};
use rustguard_device::kernel::{Netlink, destination_of};
use std::net::IpAddr;

/// The addresses of an interface, each with the prefix length of its network.
pub(crate) async fn addresses(netlink: &Netlink, index: u32) -> Result<Vec<IpNet>> {
    let of_all = all_addresses(netlink).await?.into_iter();
    Ok(of_all.filter(|(of, _)| *of == index).map(|(_, address)| address).collect())
}

/// The addresses of all interfaces, each with the index of its interface.
pub(crate) async fn all_addresses(netlink: &Netlink) -> Result<Vec<(u32, IpNet)>> {
    let messages: Vec<_> = netlink.handle().address().get().execute().try_collect().await?;
    let address = |message: AddressMessage| {
        let attributes = || message.attributes.iter();
        let local = attributes().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let address = local.or_else(|| {
            attributes().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
        })?;
        Some((message.header.index, IpNet::new(address, message.header.prefix_len).ok()?))
    };
    Ok(messages.into_iter().filter_map(address).collect())
}

/// The destinations of the unicast routes to an interface, in all tables, without routes of link-local addresses.
pub(crate) async fn routes(netlink: &Netlink, index: u32) -> Result<Vec<IpNet>> {
    // The builder of `rtnetlink` sets a table and a protocol, by which the kernel filters.
    let all = |family| {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        netlink.handle().route().get(message).execute()
    };
    let mut routes: Vec<_> = all(AddressFamily::Inet).try_collect().await?;
    // A kernel without IPv6 does not answer this request.
    routes.extend(all(AddressFamily::Inet6).try_collect::<Vec<_>>().await.unwrap_or_default());
    let leads_there = |route: &RouteMessage| {
        route.header.kind == RouteType::Unicast && route.attributes.contains(&RouteAttribute::Oif(index))
    };
    let mut routes: Vec<_> = routes.iter().filter(|route| leads_there(route)).filter_map(destination_of).collect();
    routes.retain(|net| !matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local()));
    routes.sort_unstable();
    routes.dedup();
    Ok(routes)
}
