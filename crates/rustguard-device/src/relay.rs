//! The setting for packets between peers, and the rule that workers apply.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

/// How packets from one peer to another are treated.
///
/// A relayed packet is decrypted and sealed again in place, several times as fast as the host would forward it. The
/// host never sees it: the host's netfilter, counters and packet sockets only see packets that the host itself
/// forwards. Therefore, in all of these modes, nothing is relayed while netfilter has rules that apply to forwarded
/// packets, unless [`Builder::relay_unfiltered`](crate::Builder::relay_unfiltered) permits it.
/// [`Status::relaying`](crate::Status::relaying) tells whether packets are relayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relay {
    /// Relay a packet if the kernel would route a packet with its source and destination back into the interface:
    /// forwarding is on (`net.ipv4.ip_forward`, `net.ipv6.conf.all.forwarding`), and no route, rule or local address
    /// prevents it. Routing rules that depend on port, protocol, mark or type of service have no effect. Over
    /// transports of the embedder's own, nothing is relayed.
    #[default]
    Auto,
    /// Give every packet to the host.
    Off,
    /// Relay a packet if the allowed IPs assign its destination to a peer.
    Always {
        /// The host's own addresses. Packets to them are never relayed, even if they lie within a peer's allowed IPs.
        local: Vec<IpAddr>,
    },
    /// Relay a packet if the routing engine sends it to a peer. Packets to the host's own addresses are not relayed;
    /// changes of these addresses are followed. Over transports of the embedder's own, this is the same as
    /// [`Always`](Self::Always) without local addresses.
    ByEngine,
    /// Drop a packet. Peers reach the host and the networks behind it, but not each other.
    Isolate,
}

impl Relay {
    /// The setting over the embedder's own transports, where no kernel can be asked for routes or addresses.
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
    /// Relay a packet that the kernel would route back into the interface: see
    /// [`Shared::kernel_answers`](crate::shared::Shared::kernel_answers).
    AskKernel,
    /// Relay every packet whose next hop is a peer.
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
            // The host gets every packet until its addresses have been listed.
            Relay::ByEngine => Self::Never,
            Relay::Always { local } => Self::Always { local: Arc::new(local.into_iter().collect()) },
        }
    }
}
