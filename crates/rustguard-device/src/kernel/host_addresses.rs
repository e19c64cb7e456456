//! The addresses of this host at which a peer in the same network, or in the Internet, may reach it.

use super::{
    answers::{HostAddress, HostAddresses},
    error::KernelError,
    netlink::Netlink,
};
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
};
use std::{collections::BTreeSet, net::IpAddr};

/// Lists the addresses. `own` is the index of the tunnel's interface.
///
/// # Errors
/// The kernel did not answer.
pub(crate) async fn host_addresses(own: u32) -> Result<HostAddresses, KernelError> {
    let netlink = Netlink::open()?;
    let links = netlink.handle().link().get().execute().try_collect::<Vec<_>>().await;
    let links = links.map_err(|error| KernelError::netlink("list interfaces", &error))?;
    let addresses = netlink.handle().address().get().execute().try_collect::<Vec<_>>().await;
    let addresses = addresses.map_err(|error| KernelError::netlink("list addresses", &error))?;
    Ok(choose(&links, &addresses, own))
}

fn choose(links: &[LinkMessage], addresses: &[AddressMessage], own: u32) -> HostAddresses {
    let usable: BTreeSet<u32> = links.iter().filter(|link| is_usable(link)).map(|link| link.header.index).collect();
    let of = |wanted: &dyn Fn(u32) -> bool| -> Vec<(&AddressMessage, IpAddr)> {
        let wanted = addresses.iter().filter(|address| wanted(address.header.index));
        wanted.filter_map(|address| Some((address, own_address(address)?))).collect()
    };
    let tunnel = of(&|index| index == own).into_iter();
    let tunnel: Vec<_> = tunnel.filter_map(|(address, ip)| IpNet::new(ip, address.header.prefix_len).ok()).collect();
    let addresses = of(&|index| index != own && usable.contains(&index)).into_iter();
    let addresses = addresses
        .filter(|(address, ip)| is_lasting(address) && !tunnel.iter().any(|network| network.contains(ip)))
        .map(|(address, ip)| HostAddress { ip, interface: address.header.index })
        .collect();
    HostAddresses { addresses, tunnel }
}

/// Whether this interface carries packets of other hosts and is not a tunnel.
fn is_usable(link: &LinkMessage) -> bool {
    let flags = link.header.flags;
    flags.contains(LinkFlags::Up | LinkFlags::LowerUp) && !flags.contains(LinkFlags::Loopback) && !is_tunnel(link)
}

fn is_tunnel(link: &LinkMessage) -> bool {
    let kind = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind),
            _ => None,
        }),
        _ => None,
    });
    match kind {
        // A TAP is of this kind too, and has the type of an Ethernet.
        Some(InfoKind::Tun) => link.header.link_layer_type != LinkLayerType::Ether,
        Some(
            InfoKind::Wireguard
            | InfoKind::IpIp
            | InfoKind::Ip6Tnl
            | InfoKind::SitTun
            | InfoKind::GreTun
            | InfoKind::GreTun6
            | InfoKind::Vti
            | InfoKind::Vti6
            | InfoKind::Xfrm,
        ) => true,
        _ => false,
    }
}

/// Our end of the address. If there is also a peer address (IFA_ADDRESS of a point-to-point link), our end is in
/// IFA_LOCAL.
fn own_address(address: &AddressMessage) -> Option<IpAddr> {
    let attributes = &address.attributes;
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

/// Whether others can use the address, now and for a while. The scope leaves out link-local and loopback addresses of
/// both families.
fn is_lasting(address: &AddressMessage) -> bool {
    let flags = address.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    // IFA_FLAGS repeats the eight flags of the header.
    let flags = flags.unwrap_or(AddressFlags::from_bits_retain(address.header.flags.bits().into()));
    address.header.scope == AddressScope::Universe
        && !flags.intersects(AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: u32 = 9;

    fn link(index: u32, flags: LinkFlags, layer: LinkLayerType, kind: Option<InfoKind>) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = flags;
        link.header.link_layer_type = layer;
        link.attributes.extend(kind.map(|kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])));
        link
    }

    fn address(index: u32, ip: &str, scope: AddressScope, flags: AddressFlags) -> AddressMessage {
        let mut address = AddressMessage::default();
        let net: IpNet = ip.parse().expect("an address with its prefix");
        (address.header.index, address.header.prefix_len, address.header.scope) = (index, net.prefix_len(), scope);
        address.attributes = vec![AddressAttribute::Address(net.addr()), AddressAttribute::Flags(flags)];
        address
    }

    fn chosen(links: &[LinkMessage], addresses: &[AddressMessage]) -> Vec<String> {
        choose(links, addresses, TUNNEL).addresses.iter().map(|address| address.ip.to_string()).collect()
    }

    const UP: LinkFlags = LinkFlags::Up.union(LinkFlags::LowerUp);

    #[test]
    fn interfaces_that_are_down_loopback_or_tunnels_are_left_out() {
        let links = [
            link(1, UP | LinkFlags::Loopback, LinkLayerType::Loopback, None),
            link(2, UP, LinkLayerType::Ether, None),
            link(3, LinkFlags::Up, LinkLayerType::Ether, None),
            link(4, UP, LinkLayerType::None, Some(InfoKind::Tun)),
            link(5, UP, LinkLayerType::Ether, Some(InfoKind::Tun)),
            link(6, UP, LinkLayerType::None, Some(InfoKind::Wireguard)),
            link(7, UP, LinkLayerType::None, None),
            link(8, UP, LinkLayerType::Ether, Some(InfoKind::Bridge)),
            link(TUNNEL, UP, LinkLayerType::None, Some(InfoKind::Tun)),
        ];
        let address = |index: u32| {
            address(index, &format!("192.0.2.{index}/32"), AddressScope::Universe, AddressFlags::Permanent)
        };
        let addresses: Vec<_> = (1..=TUNNEL).map(address).collect();
        // 5 is a TAP, 7 a modem whose link has no header.
        assert_eq!(chosen(&links, &addresses), ["192.0.2.2", "192.0.2.5", "192.0.2.7", "192.0.2.8"]);
    }

    #[test]
    fn addresses_that_others_cannot_use_or_that_end_soon_are_left_out() {
        let links = [link(2, UP, LinkLayerType::Ether, None)];
        let addresses = [
            address(2, "192.168.1.5/24", AddressScope::Universe, AddressFlags::Permanent),
            address(2, "2001:db8::5/64", AddressScope::Universe, AddressFlags::Secondary),
            address(2, "2001:db8::6/64", AddressScope::Universe, AddressFlags::Secondary | AddressFlags::Deprecated),
            address(2, "2001:db8::7/64", AddressScope::Universe, AddressFlags::Tentative),
            address(2, "2001:db8::8/64", AddressScope::Universe, AddressFlags::Dadfailed),
            address(2, "fe80::5/64", AddressScope::Link, AddressFlags::Permanent),
            address(2, "169.254.1.1/16", AddressScope::Link, AddressFlags::Permanent),
        ];
        assert_eq!(chosen(&links, &addresses), ["192.168.1.5", "2001:db8::5"]);
    }

    #[test]
    fn addresses_inside_the_tunnels_own_network_are_left_out() {
        let links = [link(2, UP, LinkLayerType::Ether, None), link(TUNNEL, UP, LinkLayerType::None, None)];
        let addresses = [
            address(2, "10.9.0.7/32", AddressScope::Universe, AddressFlags::Permanent),
            address(2, "192.168.1.5/24", AddressScope::Universe, AddressFlags::Permanent),
            address(TUNNEL, "10.9.0.1/24", AddressScope::Universe, AddressFlags::Permanent),
        ];
        assert_eq!(chosen(&links, &addresses), ["192.168.1.5"]);
    }

    #[test]
    fn of_a_point_to_point_link_our_end_is_taken() {
        let links = [link(2, UP, LinkLayerType::Ppp, None)];
        let mut address = address(2, "198.51.100.1/32", AddressScope::Universe, AddressFlags::Permanent);
        address.attributes.push(AddressAttribute::Local("203.0.113.9".parse().unwrap()));
        assert_eq!(chosen(&links, &[address]), ["203.0.113.9"]);
    }
}
