//! Interfaces and addresses in the kernel.

use super::{
    errno::{EINVAL, ENODEV, errno},
    error::KernelError,
    netlink::Netlink,
};
use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::{
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use std::net::IpAddr;

/// A network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
}

impl Link {
    pub(super) fn from_message(message: &LinkMessage) -> Self {
        let mtu = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        Self { index: message.header.index, mtu: mtu.unwrap_or(0), up: message.header.flags.contains(LinkFlags::Up) }
    }
}

impl Netlink {
    /// The interface with this name in this network namespace; `None` if there is none.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub async fn link_by_name(&self, name: &str) -> Result<Option<Link>, KernelError> {
        self.link(self.handle().link().get().match_name(name)).await
    }

    /// The interface with this index in this network namespace; `None` if there is none.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub async fn link_by_index(&self, index: u32) -> Result<Option<Link>, KernelError> {
        self.link(self.handle().link().get().match_index(index)).await
    }

    /// The interface with this index in another network namespace, by the number that this namespace has for it; `None`
    /// if there is no such interface or namespace.
    ///
    /// # Errors
    /// The kernel did not answer, or this process may not ask there (it needs CAP_NET_ADMIN in the other namespace).
    pub(super) async fn link_elsewhere(&self, namespace: i32, index: u32) -> Result<Option<Link>, KernelError> {
        let mut request = self.handle().link().get().match_index(index);
        request.message_mut().attributes.push(LinkAttribute::IfNetnsId(namespace));
        match self.link(request).await {
            // The namespace has gone.
            Err(KernelError::Netlink { source, .. }) if source.raw_os_error() == Some(EINVAL) => Ok(None),
            answer => answer,
        }
    }

    async fn link(&self, request: rtnetlink::LinkGetRequest) -> Result<Option<Link>, KernelError> {
        match std::pin::pin!(request.execute()).try_next().await {
            Ok(message) => Ok(message.as_ref().map(Link::from_message)),
            Err(error) if errno(&error) == Some(ENODEV) => Ok(None),
            Err(error) => Err(KernelError::netlink("look up an interface", &error)),
        }
    }
}

impl Netlink {
    /// The addresses of the interface with this index; none if there is no such interface.
    pub(super) async fn addresses_of(&self, index: u32) -> Result<Vec<AddressMessage>, KernelError> {
        let request = self.handle().address().get().set_link_index_filter(index);
        match request.execute().try_collect().await {
            Err(error) if errno(&error) == Some(ENODEV) => Ok(Vec::new()),
            addresses => addresses.map_err(|error| KernelError::netlink("list the interface's addresses", &error)),
        }
    }
}

/// All addresses of this host.
pub(crate) async fn local_addresses() -> Result<Vec<IpAddr>, KernelError> {
    let netlink = Netlink::open()?;
    let addresses: Vec<_> = netlink.handle().address().get().execute().try_collect().await.map_err(|source| {
        KernelError::Netlink { action: "list addresses".into(), source: std::io::Error::other(source) }
    })?;
    let address = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) | AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    Ok(addresses.iter().flat_map(|message| message.attributes.iter().filter_map(address)).collect())
}
