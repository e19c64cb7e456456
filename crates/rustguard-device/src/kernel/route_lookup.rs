//! The kernel's routing decisions for packets, and announcements of changes that may affect them.

use super::{
    answers::{Egress, Exit},
    errno::{EINVAL, errno, no_route},
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
use rustguard_tun::Endpoint;
use std::{io, net::IpAddr};

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
    let mut message = from_to(Some(source), destination);
    message.attributes.push(RouteAttribute::Iif(index));
    message
}

/// `ip route get DESTINATION`, with `from SOURCE` if there is one.
fn from_to(source: Option<IpAddr>, destination: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits) = if destination.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) };
    message.header.address_family = family;
    message.header.source_prefix_length = if source.is_some() { bits } else { 0 };
    message.header.destination_prefix_length = bits;
    let address = |address| match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    message.attributes.push(RouteAttribute::Destination(address(destination)));
    message.attributes.extend(source.map(|source| RouteAttribute::Source(address(source))));
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

    /// The path of a datagram to `to.remote` from the UDP port `port`, with the mark: from the address `to.local`, or
    /// from the one that the kernel chooses, which is then in the answer.
    pub(crate) fn egress(&self, to: Endpoint, mark: u32, port: u16) -> impl Future<Output = Egress> + Send + use<> {
        let handle = self.netlink.handle().clone();
        async move {
            let bound = to.local.filter(|local| local.bound);
            let source = to.local.filter(|local| !local.ip.is_unspecified()).map(|local| local.ip);
            let mut message = from_to(source, to.remote.ip());
            let port = if to.local_port == 0 { port } else { to.local_port };
            // Rules may depend on the mark, and a route with several next hops selects one by the ports.
            message.attributes.extend((mark != 0).then_some(RouteAttribute::Mark(mark)));
            message.attributes.extend(bound.map(|local| RouteAttribute::Oif(local.interface)));
            message.attributes.push(RouteAttribute::IpProto(UDP));
            message.attributes.push(RouteAttribute::Sport(port));
            message.attributes.push(RouteAttribute::Dport(to.remote.port()));
            let answers: Result<Vec<RouteMessage>, _> = handle.route().get(message).execute().try_collect().await;
            match answers {
                Ok(answers) => answers.first().map_or(Egress::Unknown, egress_of),
                Err(error) => match errno(&error) {
                    Some(EINVAL) if source.is_some() => Egress::NotOurs,
                    _ if no_route(&error) => Egress::Unreachable,
                    _ => Egress::Unknown,
                },
            }
        }
    }
}

fn egress_of(route: &RouteMessage) -> Egress {
    // The kernel answers with an error for IPv4, and with a route of such a type for IPv6.
    if matches!(route.header.kind, RouteType::Unreachable | RouteType::BlackHole | RouteType::Prohibit) {
        return Egress::Unreachable;
    }
    let (mut interface, mut gateway, mut source) = (None, None, None);
    let ip = |address: &RouteAddress| match *address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(address)),
        _ => None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            _ => {}
        }
    }
    interface.map_or(Egress::Unknown, |interface| Egress::By(Exit { interface, gateway, source }))
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
