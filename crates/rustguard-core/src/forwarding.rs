//! The seat of the forwarding decision, monomorphised into the data path.
use crate::{allowed_ips::AllowedIps, node::PeerId, packet::IpHead};

/// Where a plaintext packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The host, through the TUN device.
    Host,
    /// A peer.
    Peer(PeerId),
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the host, through the TUN device.
    Deliver,
    /// Sealed for a peer.
    Forward(PeerId),
    /// Nowhere: nobody has the destination.
    NoRoute,
    /// Nowhere: somebody has the destination, and this origin must not reach them.
    Prohibited,
}

/// Decides about packets, once per run where neighbours agree.
pub trait Forwarding {
    /// Whether `from` may present a packet with this source.
    fn permits(&self, from: PeerId, packet: &IpHead) -> bool;
    /// Where the packet goes. `bytes` is all of it, for those who tell flows apart.
    fn decide(&self, origin: Origin, packet: &IpHead, bytes: &[u8]) -> Verdict;
}

/// WireGuard's own rule: the allowed IPs decide both ways, and what comes from a peer goes to the host.
impl Forwarding for AllowedIps {
    fn permits(&self, from: PeerId, packet: &IpHead) -> bool {
        self.lookup(packet.source) == Some(from)
    }

    fn decide(&self, origin: Origin, packet: &IpHead, _: &[u8]) -> Verdict {
        match origin {
            Origin::Peer(_) => Verdict::Deliver,
            Origin::Host => self.lookup(packet.destination).map_or(Verdict::NoRoute, Verdict::Forward),
        }
    }
}
