//! The embedder's seat on the data path: a function that sees every packet and has the last word about it.
//!
//! [`Builder::filter`](crate::Builder::filter) takes it. It runs on the workers, packet by packet, while their batches stay
//! whole: what it sends the same way leaves in the same run. It is asked about
//!
//! - what came from a peer, after authentication, the replay window and the check of the source. What fails there the filter
//!   does not see and cannot save;
//! - what came from the host, as the single packets that a super-packet was split into.
//!
//! It is not asked about the routing engine's own packets, nor about keepalives, which have nothing in them.
//!
//! ```
//! use rustguard_device::filter::{Origin, Packet, Routed, Verdict};
//!
//! /// Peers reach this host and what lies behind it, and each other by small packets only.
//! fn small_talk(packet: &Packet<'_>) -> Verdict {
//!     match (packet.origin, packet.routed) {
//!         (Origin::Peer(_), Routed::Forward(_)) if packet.bytes.len() > 200 => Verdict::Drop,
//!         _ => Verdict::Pass,
//!     }
//! }
//! let builder = rustguard_device::Device::builder().filter(small_talk);
//! ```

pub use rustguard_core::packet::IpHead;
use rustguard_crypto::x25519::PublicKey;

/// A packet in front of the filter.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Where it came from.
    pub origin: Origin,
    /// Its addresses and its length.
    pub head: IpHead,
    /// All of it, from the version field to the end of its payload, without padding.
    pub bytes: &'a [u8],
    /// What becomes of it without the filter.
    pub routed: Routed,
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The host, through the interface.
    Host,
    /// The peer with this key: it authenticated the packet, and may use its source.
    Peer(PublicKey),
}

/// What routing decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// To the host: it is the host's, or the host is to route it.
    Deliver,
    /// To the peer with this key.
    Forward(PublicKey),
    /// Nowhere: nobody has the destination.
    Unreachable,
    /// Nowhere: a peer has it, and peers are kept apart ([`Relay::Isolate`](crate::Relay::Isolate)).
    Isolated,
}

/// What is to become of a packet.
///
/// Nothing of a packet is changed, but for the hop that [`Forward`](Self::Forward) takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What routing decided.
    Pass,
    /// To the host, as its own. What came from the host and is delivered comes back to it.
    Deliver,
    /// To the peer with this key, whatever its allowed IPs: that peer's own check of the source still holds there. From a peer
    /// it loses a hop, as it would in a router; what takes a real one (the last hop, options, more than the MTU) goes to the
    /// host. A key that no peer has drops it, counted as [`NoRoute`](crate::DropReason::NoRoute).
    Forward(PublicKey),
    /// To the system, which is to decide itself, whatever routing said: back out of the interface it came in by, or out of
    /// the interface where a peer sent it. The host's own rules hold for what arrives there; Linux takes no packet with
    /// its own address as the source.
    Bounce,
    /// Nowhere, counted as [`Filtered`](crate::DropReason::Filtered).
    Drop,
}

/// What [`Builder::filter`](crate::Builder::filter) was given.
pub(crate) type Filter = Box<dyn Fn(&Packet<'_>) -> Verdict + Send + Sync>;
