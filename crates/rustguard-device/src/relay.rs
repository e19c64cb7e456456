//! The setting of what peers may send to each other, and the rule that workers apply.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

/// How packets from one peer to another are treated.
///
/// Relayed packets are sealed again where they lie, several times as fast as the host would forward them. The host never sees
/// them: its netfilter, its counters and its packet sockets only know of those that it forwards itself. Therefore nothing is
/// relayed, in any of these modes, while netfilter has rules that forwarded packets would meet, unless
/// [`Builder::relay_unfiltered`](crate::Builder::relay_unfiltered) says so; [`Status::relaying`](crate::Status::relaying) tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relay {
    /// It is relayed where the kernel, asked for this source and destination, would route it back into the interface:
    /// forwarding is on (`net.ipv4.ip_forward`, `net.ipv6.conf.all.forwarding`), and no route, rule or local address says
    /// otherwise. Rules that choose by port, protocol, mark or type of service are not asked about: they do not hold. Over
    /// transports of the embedder's own, nothing is relayed.
    #[default]
    Auto,
    /// The host gets everything.
    Off,
    /// It is relayed wherever the allowed IPs give the destination to a peer.
    Always {
        /// The host's own addresses, which are never relayed even if they lie within a peer's allowed IPs.
        local: Vec<IpAddr>,
    },
    /// It is relayed wherever the routing engine sends it to a peer, except for what is addressed to one of the host's own
    /// addresses, which are followed as they change. Over transports of the embedder's own, as [`Always`](Self::Always) without
    /// any.
    ByEngine,
    /// It is dropped: peers reach the host and what lies behind it, but not each other.
    Isolate,
}

impl Relay {
    /// The setting as it works over the embedder's own transports, where there is no kernel to ask for routes or addresses.
    pub(crate) fn without_interface(self) -> Self {
        match self {
            Self::Auto => Self::Off,
            Self::ByEngine => Self::Always { local: Vec::new() },
            relay => relay,
        }
    }
}

/// The rule that workers apply to a packet from one peer to another.
#[derive(Clone, Debug, Default)]
pub(crate) enum RelayRule {
    /// The host gets every packet.
    #[default]
    Never,
    /// Relay what the kernel would route back into the interface: see [`Shared::kernel_answers`](crate::shared::Shared::kernel_answers).
    AskKernel,
    /// Relay everything whose next hop is a peer.
    Always {
        /// The host's own addresses.
        local: Arc<HashSet<IpAddr>>,
    },
    /// Drop packets from one peer to another.
    Isolate,
}

impl From<Relay> for RelayRule {
    fn from(relay: Relay) -> Self {
        match relay {
            Relay::Auto => Self::AskKernel,
            Relay::Off => Self::Never,
            Relay::Isolate => Self::Isolate,
            // Until the addresses have been listed, the host gets everything.
            Relay::ByEngine => Self::Never,
            Relay::Always { local } => Self::Always { local: Arc::new(local.into_iter().collect()) },
        }
    }
}
