//! The interfaces of a network namespace, by netlink. The demonstrations lay their cables with them.

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use rtnetlink::{
    LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        link::LinkAttribute,
        neighbour::{NeighbourAddress, NeighbourAttribute},
    },
};
use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd as _, OwnedFd},
};

/// A link-layer address that no interface has (locally administered, RFC 9542 §2.1).
const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0];

/// The interfaces of the namespace that the calling thread was in.
pub(crate) struct Links(rtnetlink::Handle);

impl Links {
    /// Opens a netlink connection in the namespace of the calling thread. Needs a tokio runtime, whose threads may be
    /// in another one.
    pub(crate) fn here() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Self(handle))
    }

    /// Creates a veth pair with one end in this namespace and the other end in another one.
    pub(crate) async fn lay(&self, here: &str, there: &str, other: &OwnedFd) -> Result<()> {
        self.0.link().add(LinkVeth::new(here, there).build()).execute().await?;
        let end = self.index(there).await?;
        self.0.link().set(LinkUnspec::new_with_index(end).setns_by_fd(other.as_raw_fd()).build()).execute().await?;
        Ok(())
    }

    /// Creates a bridge and brings it up.
    pub(crate) async fn bridge(&self, name: &str) -> Result<()> {
        Ok(self.0.link().add(LinkBridge::new(name).up().build()).execute().await?)
    }

    /// Makes an interface a port of a bridge and brings it up.
    pub(crate) async fn plug(&self, interface: &str, bridge: &str) -> Result<()> {
        let (index, bridge) = (self.index(interface).await?, self.index(bridge).await?);
        Ok(self.0.link().set(LinkUnspec::new_with_index(index).controller(bridge).up().build()).execute().await?)
    }

    /// Adds a default route.
    pub(crate) async fn gateway(&self, gateway: Ipv4Addr) -> Result<()> {
        Ok(self.0.route().add(RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build()).execute().await?)
    }

    /// Gives an interface an address and brings it up.
    pub(crate) async fn address(&self, interface: &str, address: Ipv4Addr, prefix_len: u8) -> Result<()> {
        let index = self.index(interface).await?;
        self.0.address().add(index, address.into(), prefix_len).execute().await?;
        self.0.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await?;
        Ok(())
    }

    /// Brings an interface down and removes its address.
    pub(crate) async fn unplug(&self, interface: &str, address: Ipv4Addr) -> Result<()> {
        let index = self.index(interface).await?;
        self.0.link().set(LinkUnspec::new_with_index(index).down().build()).execute().await?;
        let mut addresses =
            self.0.address().get().set_link_index_filter(index).set_address_filter(address.into()).execute();
        while let Some(message) = addresses.try_next().await? {
            self.0.address().del(message).execute().await?;
        }
        Ok(())
    }

    /// Loses all packets to this address on the link from now on. They go to a link-layer address that no interface
    /// has, so both ends stay up and get no signal.
    pub(crate) async fn lose(&self, interface: &str, address: Ipv4Addr) -> Result<()> {
        let index = self.index(interface).await?;
        let neighbours = self.0.neighbours();
        Ok(neighbours.add(index, address.into()).link_layer_address(&NOBODY).replace().execute().await?)
    }

    /// Ends [`Links::lose`].
    pub(crate) async fn find(&self, interface: &str, address: Ipv4Addr) -> Result<()> {
        let index = self.index(interface).await?;
        let wanted = NeighbourAttribute::Destination(NeighbourAddress::from(IpAddr::from(address)));
        let mut neighbours = self.0.neighbours().get().execute();
        while let Some(neighbour) = neighbours.try_next().await? {
            if neighbour.header.ifindex == index && neighbour.attributes.contains(&wanted) {
                self.0.neighbours().del(neighbour).execute().await?;
            }
        }
        Ok(())
    }

    async fn index(&self, name: &str) -> Result<u32> {
        let mut links = self.0.link().get().match_name(name.to_owned()).execute();
        let link = links.try_next().await?.with_context(|| format!("there is no interface {name}"))?;
        Ok(link.header.index)
    }
}

/// The name of the interface with this index.
pub(crate) async fn name(handle: &rtnetlink::Handle, index: u32) -> Result<String> {
    let link = handle.link().get().match_index(index).execute().try_next().await?;
    let names = link.into_iter().flat_map(|link| link.attributes);
    let mut names = names.filter_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    names.next().with_context(|| format!("there is no interface {index}"))
}
