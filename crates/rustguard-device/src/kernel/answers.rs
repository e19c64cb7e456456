//! The kernel's answers, in types that also exist without the feature `kernel`.

use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;

/// A change of the tunnel's interface or of the network around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, unreachable_pub, reason = "nothing reports it"))]
pub enum HostEvent {
    /// The interface was deleted. This is the last event.
    LinkDeleted,
    /// The interface was moved to another network namespace, and is down. Its addresses and routes are gone.
    LinkMoved,
    /// The interface's new MTU in bytes.
    LinkMtu(u32),
    /// The interface has, or has lost, an IPv4 address of this network.
    LinkNetwork(Ipv4Net, bool),
    /// The interface was set up.
    LinkUp,
    /// The interface was set down.
    LinkDown,
    /// Something around the tunnel changed: another interface was added, was removed or lost its link; or an address, a
    /// policy rule or a route outside the tunnel was added or removed. A burst of such messages is one event. The event
    /// is a hint: endpoints may be reachable by another path, source addresses may be gone, and the path MTU may
    /// differ.
    NetworkChanged,
    /// The other interface with this index has its link again. It may be at another network with the same addresses.
    LinkRegained(u32),
}

/// The effect of netfilter on packets that the host forwards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, reason = "nobody asks"))]
pub(crate) enum ForwardRules {
    /// Not known: the kernel was not asked yet, or did not answer.
    #[default]
    Unknown,
    /// No rule applies to them.
    None,
    /// The rule, chain or table that applies to them.
    Seen(String),
}

/// The exit by which a datagram of the tunnel leaves this host, by the kernel's routes. (This is not the way to a peer:
/// [`crate::way`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, reason = "nobody asks"))]
pub(crate) enum Egress {
    /// It leaves by this exit.
    By(Exit),
    /// It cannot be sent: its source is not an address of this host.
    NotOurs,
    /// It cannot be sent: there is no route.
    Unreachable,
    /// There is no single route, or no answer.
    Unknown,
}

/// Where a datagram leaves this host. A changed exit means another network, or another place in the same network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The index of the interface.
    pub(crate) interface: u32,
    /// The next router; `None` for a neighbour.
    pub(crate) gateway: Option<IpAddr>,
    /// The source address that the kernel chooses; `None` if the question contained one.
    pub(crate) source: Option<IpAddr>,
}

/// The addresses of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostAddresses {
    /// The addresses at which a peer may reach the host outside of any tunnel.
    pub(crate) addresses: Vec<HostAddress>,
    /// The networks of the tunnel's own interface.
    pub(crate) tunnel: Vec<IpNet>,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    /// The address.
    pub(crate) ip: IpAddr,
    /// The index of the interface that has it.
    pub(crate) interface: u32,
}
