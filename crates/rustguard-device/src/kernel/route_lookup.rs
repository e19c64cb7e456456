//! The kernel's routing decisions for packets, and announcements of changes that may affect them.

use super::{
    answers::Way,
    errno::{EINVAL, errno},
    error::KernelError,
    netlink::{Netlink, ROUTING},
};
use futures_util::TryStreamExt;
use rtnetlink::{
    MulticastGroup,
    packet_route::{
        AddressFamily,
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
    },
    sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE},
};
use std::{
    io,
    net::{self, IpAddr},
};

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// In IPv6 only the switch for all interfaces matters.
const FORWARDING_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";

/// Asks the kernel how it would route packets that arrive on one interface.
pub(crate) struct RouteLookup {
    netlink: Netlink,
    index: u32,
}

impl RouteLookup {
    /// Opens a lookup for the interface with this index.
    pub(crate) fn open(index: u32) -> Result<Self, KernelError> {
        Ok(Self { netlink: Netlink::open()?, index })
    }

    /// Whether a packet that arrived on the interface would leave by it: forwarding is enabled, no rule and no route
    /// prevents it, and the destination is not an address of the host. After any failure the answer is no; the kernel
    /// then routes the packet itself.
    pub(crate) fn returns(&self, source: IpAddr, destination: IpAddr) -> impl Future<Output = bool> + Send + use<> {
        let (handle, index) = (self.netlink.handle().clone(), self.index);
        async move {
            if destination.is_ipv6() && !is_on(std::fs::read_to_string(FORWARDING_V6)) {
                return false;
            }
            let answers: Result<Vec<RouteMessage>, _> =
                handle.route().get(question(source, destination, index)).execute().try_collect().await;
            match answers.as_deref() {
                Ok([route]) => {
                    route.header.kind == RouteType::Unicast && route.attributes.contains(&RouteAttribute::Oif(index))
                }
                _ => false,
            }
        }
    }
}

fn is_on(sysctl: io::Result<String>) -> bool {
    sysctl.is_ok_and(|text| text.trim() != "0")
}

/// `ip route get DESTINATION from SOURCE iif INTERFACE`.
fn question(source: IpAddr, destination: IpAddr, index: u32) -> RouteMessage {
    let mut message = from_to(source, destination);
    message.attributes.push(RouteAttribute::Iif(index));
    message
}

/// `ip route get DESTINATION from SOURCE`.
fn from_to(source: IpAddr, destination: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits) = if destination.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) };
    message.header.address_family = family;
    message.header.source_prefix_length = bits;
    message.header.destination_prefix_length = bits;
    let address = |address| match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    message.attributes.push(RouteAttribute::Destination(address(destination)));
    message.attributes.push(RouteAttribute::Source(address(source)));
    message
}

/// Asks the kernel by which interface the tunnel's own datagrams leave.
pub(crate) struct SourceLookup {
    netlink: Netlink,
}

impl SourceLookup {
    pub(crate) fn open() -> Result<Self, KernelError> {
        Ok(Self { netlink: Netlink::open()? })
    }

    /// The path to `remote` from the address `source` and the UDP port `port`, with the mark.
    pub(crate) fn way(
        &self,
        remote: net::SocketAddr,
        source: IpAddr,
        mark: u32,
        port: u16,
    ) -> impl Future<Output = Way> + Send + use<> {
        let handle = self.netlink.handle().clone();
        async move {
            let mut message = from_to(source, remote.ip());
            // Rules may depend on the mark, and a route with several next hops selects one by the ports.
            message.attributes.extend((mark != 0).then_some(RouteAttribute::Mark(mark)));
            message.attributes.push(RouteAttribute::IpProto(UDP));
            message.attributes.push(RouteAttribute::Sport(port));
            message.attributes.push(RouteAttribute::Dport(remote.port()));
            let answers: Result<Vec<RouteMessage>, _> = handle.route().get(message).execute().try_collect().await;
            let answer = match answers {
                Ok(answers) => answers,
                Err(error) if errno(&error) == Some(EINVAL) => return Way::NotOurs,
                Err(_) => return Way::Unknown,
            };
            let out = answer.iter().flat_map(|route| &route.attributes).find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
            out.map_or(Way::Unknown, Way::Interface)
        }
    }
}

/// Announces every change that can affect [`RouteLookup`]'s answers.
pub(crate) struct RouteChanges {
    /// A separate socket. Only the arrival of its messages matters: rtnetlink cannot decode those of the forwarding
    /// switches (RTM_NEWNETCONF), and drops messages that it cannot decode.
    socket: TokioSocket,
}

impl RouteChanges {
    /// Subscribes to changes from now on.
    pub(crate) fn subscribe() -> Result<Self, KernelError> {
        // The forwarding and rp_filter switches.
        let switches = [MulticastGroup::Ipv4Netconf, MulticastGroup::Ipv6Netconf];
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            ROUTING.iter().chain(&switches).try_for_each(|&group| socket.socket_mut().add_membership(group as u32))?;
            Ok(socket)
        };
        let socket = open()
            .map_err(|source| KernelError::Netlink { action: "listen to changes of the routes".into(), source })?;
        Ok(Self { socket })
    }

    /// Waits for the next change of any kind; `None` if there will be no more announcements.
    pub(crate) async fn next(&mut self) -> Option<()> {
        let mut unread = [0; 64];
        match self.socket.recv(&mut &mut unread[..]).await {
            Ok(()) => Some(()),
            // More messages arrived than the socket's buffer holds, which means many changes.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => Some(()),
            Err(_) => None,
        }
    }
}
