//! Interfaces and their addresses.

use super::{error::HostError, netlink::Netlink};
use ipnet::IpNet;
use rtnetlink::{
    AddressMessageBuilder, LinkUnspec,
    packet_route::address::{AddressAttribute, AddressMessage},
};
use rustguard_device::kernel::{EEXIST, Family, HostEvent, Monitor, already_gone, errno};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether an interface with this name exists in this network namespace.
pub async fn link_exists(name: &str) -> Result<bool, HostError> {
    Ok(link_index(name).await?.is_some())
}

/// The index of the interface with this name; `None` if there is none.
pub async fn link_index(name: &str) -> Result<Option<u32>, HostError> {
    Ok(Netlink::open()?.link_by_name(name).await?.map(|link| link.index))
}

/// Deletes the interface with this name. Returns `false` if there was none.
pub async fn delete_link(name: &str) -> Result<bool, HostError> {
    let netlink = Netlink::open()?;
    let Some(link) = netlink.link_by_name(name).await? else { return Ok(false) };
    match netlink.handle().link().del(link.index).execute().await {
        Ok(()) => Ok(true),
        Err(error) if already_gone(&error) => Ok(false),
        Err(error) => Err(HostError::netlink(format!("delete the interface `{name}`"), &error)),
    }
}

/// Waits until there is no interface with this name. This function does not delete the interface, so call it with a
/// timeout.
pub async fn wait_link_gone(name: &str) -> Result<(), HostError> {
    while let Some(index) = link_index(name).await? {
        // A monitor that starts after the deletion reports it at once, so no event is lost in between.
        let mut monitor = Monitor::new(index).await?;
        while !matches!(monitor.next().await, Some(HostEvent::LinkDeleted) | None) {}
    }
    Ok(())
}

impl Netlink {
    pub(super) async fn set_link(&self, name: &str, index: u32, mtu: u32, up: bool) -> Result<(), HostError> {
        let message = LinkUnspec::new_with_index(index).mtu(mtu);
        let message = if up { message.up() } else { message.down() };
        self.handle().link().set(message.build()).execute().await.map_err(|error| {
            HostError::netlink(format!("set `{name}` {} with an MTU of {mtu}", if up { "up" } else { "down" }), &error)
        })
    }

    /// Adds an address. Returns `false` if the interface already has it. The address then does not belong to this
    /// tunnel and must not be removed.
    pub(super) async fn add_address(&self, name: &str, index: u32, address: IpNet) -> Result<bool, HostError> {
        let mut request = self.handle().address().add(index, address.addr(), address.prefix_len());
        *request.message_mut() = address_message(index, address);
        match request.execute().await {
            Ok(()) => Ok(true),
            Err(error) => match errno(&error) {
                Some(EEXIST) => Ok(false),
                _ if is_v6(address) && ipv6_disabled_on(name) => Err(ipv6_disabled(name, address)),
                _ => Err(HostError::netlink(format!("add the address {address} to `{name}`"), &error)),
            },
        }
    }

    pub(super) async fn delete_address(&self, name: &str, index: u32, address: IpNet) -> Result<(), HostError> {
        match self.handle().address().del(address_message(index, address)).execute().await {
            Ok(()) => Ok(()),
            Err(error) if already_gone(&error) => Ok(()),
            Err(error) => Err(HostError::netlink(format!("remove the address {address} from `{name}`"), &error)),
        }
    }
}

/// Whether IPv6 is not available on the interface. The kernel reports this with a different errno for each kind of
/// request.
pub fn ipv6_disabled_on(interface: &str) -> bool {
    let setting = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"));
    !Family::in_kernel().any(|family| family == Family::V6) || setting.is_ok_and(|setting| setting.trim() != "0")
}

/// Whether a new interface can have IPv6 addresses on this host.
pub fn ipv6_available() -> bool {
    // A new interface starts with this setting.
    !ipv6_disabled_on("default")
}

pub(super) fn is_v6(net: IpNet) -> bool {
    matches!(net, IpNet::V6(_))
}

pub(super) fn ipv6_disabled(interface: &str, wanted: IpNet) -> HostError {
    HostError::Ipv6Disabled { interface: interface.to_owned(), wanted }
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = match address {
        IpNet::V4(net) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(net.addr(), net.prefix_len()).build()
        }
        IpNet::V6(net) => {
            AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(net.addr(), net.prefix_len()).build()
        }
    };
    // A tunnel has no broadcast address. `ip address add` does not set one either.
    message.attributes.retain(|attribute| !matches!(attribute, AddressAttribute::Broadcast(_)));
    message
}
