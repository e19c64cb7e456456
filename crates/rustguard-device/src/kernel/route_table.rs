//! The kernel's routing tables, and the attributes of their routes.

use super::{
    errno::{ENOENT, errno},
    error::KernelError,
    netlink::Netlink,
};
use futures_util::TryStreamExt as _;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rtnetlink::packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use std::net::IpAddr;

/// The table that `ip route` shows, RT_TABLE_MAIN.
pub const MAIN_TABLE: u32 = 254;

/// An address family of routes and rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The families that this kernel has. A request for the routes of any other family would list those of all
    /// families.
    pub fn in_kernel() -> impl Iterator<Item = Self> {
        // With `ipv6.disable=1` this folder does not exist.
        let there = |family: &Self| *family == Self::V4 || std::path::Path::new("/proc/sys/net/ipv6").exists();
        [Self::V4, Self::V6].into_iter().filter(there)
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Inet,
            Family::V6 => Self::Inet6,
        }
    }
}

impl Netlink {
    /// The routes of one table (or all) through one interface (or all).
    ///
    /// # Errors
    /// The kernel did not answer.
    pub async fn dump_routes(
        &self,
        family: Family,
        table: Option<u32>,
        interface: Option<u32>,
    ) -> Result<Vec<RouteMessage>, KernelError> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = family.into();
        filter.attributes.extend(table.map(RouteAttribute::Table));
        filter.attributes.extend(interface.map(RouteAttribute::Oif));
        let routes: Vec<RouteMessage> = match self.handle().route().get(filter).execute().try_collect().await {
            Ok(routes) => routes,
            // A table without routes does not exist.
            Err(error) if errno(&error) == Some(ENOENT) => Vec::new(),
            Err(error) => return Err(KernelError::netlink("list the routes", &error)),
        };
        // Kernels without strict checking ignore the filter.
        let matches = |route: &RouteMessage| {
            route.header.address_family == AddressFamily::from(family)
                && table.is_none_or(|table| table_of(route) == table)
                && interface.is_none_or(|index| route.attributes.contains(&RouteAttribute::Oif(index)))
        };
        Ok(routes.into_iter().filter(matches).collect())
    }
}

/// The table of a route. The header has one byte for it. Larger numbers are in an attribute.
pub fn table_of(route: &RouteMessage) -> u32 {
    let attribute = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    attribute.unwrap_or(u32::from(route.header.table))
}

/// The destination prefix of a route.
pub fn destination_of(route: &RouteMessage) -> Option<IpNet> {
    let length = route.header.destination_prefix_length;
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => Some(address),
        _ => None,
    });
    match (address, route.header.address_family) {
        (Some(RouteAddress::Inet(address)), _) => Ipv4Net::new(*address, length).ok().map(IpNet::V4),
        (Some(RouteAddress::Inet6(address)), _) => Ipv6Net::new(*address, length).ok().map(IpNet::V6),
        (None, AddressFamily::Inet) => Some(IpNet::V4(Ipv4Net::default())),
        (None, AddressFamily::Inet6) => Some(IpNet::V6(Ipv6Net::default())),
        _ => None,
    }
}
