//! A filter of the embedder: a function that sees every packet and decides about it.
//!
//! [`Builder::filter`](crate::Builder::filter) sets it. It runs on the workers, packet by packet. Consecutive packets
//! that it sends to the same peer are still sealed and sent together. The filter sees
//!
//! - packets of peers, after authentication, the replay window and the check of the source address. Packets that fail
//!   one of these checks are dropped before the filter;
//! - packets of the host. A super-packet (segmentation offload) arrives as the single packets that it was split into.
//!
//! It does not see packets of the routing engine, nor keepalives.
//!
//! ```
//! use rustguard_device::filter::{Origin, Packet, RouteDecision, Verdict};
//!
//! /// Peers reach this host and the networks behind it. They reach each other by packets of at most 200 bytes.
//! fn short_packets_only(packet: &Packet<'_>) -> Verdict {
//!     match (packet.origin, packet.route) {
//!         (Origin::Peer(_), RouteDecision::Forward(_)) if packet.bytes.len() > 200 => Verdict::Drop,
//!         _ => Verdict::Pass,
//!     }
//! }
//! let builder = rustguard_device::Device::builder().filter(short_packets_only);
//! ```

pub use rustguard_core::packet::IpHead;
use rustguard_crypto::x25519::PublicKey;

/// A packet on which the filter decides.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Packet<'a> {
    /// Where the packet came from.
    pub origin: Origin,
    /// The addresses and the length from the IP header.
    pub head: IpHead,
    /// The whole IP packet, without the padding of WireGuard.
    pub bytes: &'a [u8],
    /// The decision about the packet without the filter.
    pub route: RouteDecision,
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The host, through the interface.
    Host,
    /// The peer with this key. The packet is authentic, and the peer may use its source address.
    Peer(PublicKey),
}

/// The routing decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteDecision {
    /// The packet goes to the host, which keeps or routes it.
    Deliver,
    /// The packet goes to the peer with this key.
    Forward(PublicKey),
    /// The packet is dropped: no peer has the destination.
    Unreachable,
    /// The packet is dropped: a peer has the destination, but peers are isolated from each other
    /// ([`Relay::Isolate`](crate::Relay::Isolate)).
    Isolated,
}

/// The filter's decision about a packet. The packet itself does not change, except for the hop limit with
/// [`Forward`](Self::Forward).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The routing decision applies.
    Pass,
    /// The packet goes to the host. A packet of the host comes back to it.
    Deliver,
    /// The packet goes to the peer with this key, independent of the peer's allowed IPs; the other side still checks
    /// the source. The hop limit of a peer's packet is lowered by one, as in a router. A packet that needs a real
    /// router (hop limit 1, IP options, longer than the MTU) goes to the host. If no peer has this key, the packet is
    /// dropped, and counted as [`NoRoute`](crate::DropReason::NoRoute).
    Forward(PublicKey),
    /// The packet goes to the host's network stack, independent of the routing decision: a packet of the host comes
    /// back to it, a packet of a peer is delivered. The host's own rules then decide; Linux accepts no packet with one
    /// of its own addresses as the source.
    Bounce,
    /// The packet is dropped, and counted as [`Filtered`](crate::DropReason::Filtered).
    Drop,
}

/// The function that [`Builder::filter`](crate::Builder::filter) sets.
pub(crate) type Filter = Box<dyn Fn(&Packet<'_>) -> Verdict + Send + Sync>;
