//! The routes, interfaces and addresses of the kernel, for the checks of `doctor`.

use crate::netlink::interface;
use anyhow::Result;
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType},
};
use rustguard_device::{
    Host, HostPort,
    kernel::{Link, Netlink},
};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// The kernel's network state, in the network namespace of this process.
pub(super) struct Kernel(Netlink);

/// Where the kernel would send a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Out of this interface.
    Out {
        interface: String,
        /// The largest packet that the route takes, in bytes.
        mtu: u32,
    },
    /// To this machine itself.
    Local,
    /// Nowhere: there is no route, or the route refuses. The text is the kernel's error.
    Nowhere(String),
}

impl Kernel {
    pub(super) fn open() -> Result<Self> {
        Ok(Self(Netlink::open()?))
    }

    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>> {
        Ok(self.0.link_by_name(name).await?)
    }

    /// The addresses of an interface, each with the prefix length of its network.
    pub(super) async fn addresses(&self, index: u32) -> Result<Vec<IpNet>> {
        interface::addresses(&self.0, index).await
    }

    /// The addresses of all interfaces but this one, each with the name of its interface.
    pub(super) async fn addresses_of_others(&self, index: u32) -> Vec<(String, IpNet)> {
        let mut addresses = Vec::new();
        for (of, address) in interface::all_addresses(&self.0).await.unwrap_or_default() {
            if of != index
                && let Ok(name) = crate::netlink::links::name(self.0.handle(), of).await
            {
                addresses.push((name, address));
            }
        }
        addresses
    }

    /// The address of an endpoint as `show` prints it: a link-local address has the interface's name. `None` while
    /// there is no such interface.
    pub(super) async fn address_of(&self, endpoint: &str) -> Option<SocketAddr> {
        let at: HostPort = endpoint.parse().ok()?;
        match (at.socket_addr(), at.host()) {
            (None, Host::Zone(address, interface)) => {
                let link = self.link(interface).await.ok()??;
                Some(SocketAddrV6::new(*address, at.port(), 0, link.index).into())
            }
            (address, _) => address,
        }
    }

    /// `ip route get ADDRESS`.
    pub(super) async fn way_to(&self, address: IpAddr) -> Way {
        self.way(message(address)).await
    }

    /// The route of the tunnel's own datagrams: `ip route get ADDRESS mark MARK ipproto udp dport PORT`.
    pub(super) async fn way_of_datagrams(&self, endpoint: SocketAddr, mark: u32) -> Way {
        let mut message = message(endpoint.ip());
        if let SocketAddr::V6(at) = endpoint
            && at.scope_id() != 0
        {
            message.attributes.push(RouteAttribute::Oif(at.scope_id()));
        }
        message.attributes.extend((mark != 0).then_some(RouteAttribute::Mark(mark)));
        message.attributes.extend([RouteAttribute::IpProto(UDP), RouteAttribute::Dport(endpoint.port())]);
        self.way(message).await
    }

    async fn way(&self, question: RouteMessage) -> Way {
        let answer: Result<Vec<RouteMessage>, _> = self.0.handle().route().get(question).execute().try_collect().await;
        let route = match answer.as_deref() {
            Ok([route, ..]) => route,
            Ok([]) => return Way::Nowhere("the kernel did not answer".to_owned()),
            Err(error) => return Way::Nowhere(reason(error)),
        };
        match route.header.kind {
            RouteType::Local => return Way::Local,
            RouteType::Unicast | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => {}
            kind => return Way::Nowhere(format!("the route is of the type {kind:?}").to_lowercase()),
        }
        let out = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        let Some(index) = out else { return Way::Nowhere("the route has no interface".to_owned()) };
        let stated = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => metrics.iter().find_map(|metric| match metric {
                RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                _ => None,
            }),
            _ => None,
        });
        let name = crate::netlink::links::name(self.0.handle(), index).await;
        let link = self.0.link_by_index(index).await;
        match (name, link) {
            (Ok(interface), Ok(Some(link))) => Way::Out { interface, mtu: stated.unwrap_or(link.mtu) },
            _ => Way::Nowhere(format!("the interface {index} of the route is gone")),
        }
    }
}

fn message(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = bits;
    message.attributes.push(RouteAttribute::Destination(destination));
    message
}

/// The system's words for the error, such as "Network is unreachable".
fn reason(error: &rtnetlink::Error) -> String {
    match rustguard_device::kernel::errno(error) {
        Some(errno) => {
            let text = std::io::Error::from_raw_os_error(errno.abs()).to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }
        None => error.to_string(),
    }
}
