//! The state of a routing engine.

use crate::key::to_base64;
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use std::{fmt, net::SocketAddr, time::Duration};

/// The state of a routing engine. An engine without a protocol, such as static routes, leaves all of it empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutingStatus {
    /// The engine's name; `None` if allowed IPs alone decide, or if the engine reports nothing.
    pub engine: Option<&'static str>,
    /// This node's identifier in the routing protocol.
    pub router_id: Option<RouterId>,
    /// The peers that speak the routing protocol.
    pub neighbours: Vec<NeighbourStatus>,
    /// The prefixes that the engine knows.
    pub routes: Vec<RouteStatus>,
    /// The names that origins claim. Several may claim the same.
    pub names: Vec<OriginName>,
    /// Counters of what the engine refused, by reason.
    pub refused: Vec<super::Counter>,
}

/// The identifier of a node in a routing protocol, as Babel's router-id (RFC 8966, section 4.1.2). `Display` writes it
/// as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId([u8; 8]);

impl RouterId {
    /// The identifier of these bytes.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The name that an origin claims.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginName {
    /// The origin's identifier.
    pub origin: RouterId,
    /// Its name.
    pub name: String,
}

/// A peer by its public key, with its name if it has one. `Display` writes the name, or else the key in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLabel {
    /// The public key.
    pub public_key: PublicKey,
    /// The name.
    pub name: Option<String>,
}

impl fmt::Display for PeerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => f.write_str(&to_base64(&self.public_key.0)),
        }
    }
}

/// A peer that speaks the routing protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeighbourStatus {
    /// The peer.
    pub peer: PeerLabel,
    /// The peer's address and port; `None` while they are unknown.
    pub endpoint: Option<SocketAddr>,
    /// Whether packets of the neighbour arrive.
    pub heard: bool,
    /// The cost of the link in the engine's metric; `None` while the link cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round-trip time.
    pub round_trip: Option<Duration>,
    /// The number of prefixes that the neighbour announces.
    pub routes: usize,
    /// Whether the neighbour requires packets that are also authenticated inside the tunnel, which this engine does
    /// not send (for Babel, RFC 8967).
    pub wants_macs: bool,
}

/// A prefix that the routing engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStatus {
    /// The prefix.
    pub prefix: IpNet,
    /// Whether this host announces the prefix as its own.
    pub local: bool,
    /// The distance in the engine's metric; `None` while the prefix is unreachable.
    pub metric: Option<u16>,
    /// The node that originates the prefix.
    pub origin: Option<RouterId>,
    /// The peers that get packets for the prefix, the best first.
    pub next_hops: Vec<PeerLabel>,
    /// The peer that takes over when all next hops are lost.
    pub backup: Option<PeerLabel>,
    /// When the next hops began to get these packets, as the time since 1970, if the engine notes it.
    pub since: Option<Duration>,
    /// The announcements of the prefix; with the engine `members`, the peers that have it.
    pub announcements: Vec<AnnouncementStatus>,
    /// Why the prefix is missing from the kernel's table, if it should be there.
    pub kernel: Option<String>,
}

/// A neighbour's announcement of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnnouncementStatus {
    /// The neighbour.
    pub from: PeerLabel,
    /// The distance from there, in the engine's metric.
    pub metric: u16,
    /// Whether the route could be used: with Babel, because it cannot cause a loop (RFC 8966, section 2.4); with
    /// `members`, because the member answers or was not probed.
    pub feasible: bool,
    /// The round trip to the peer, if the engine measures it.
    pub round_trip: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_id_is_written_in_hexadecimal() {
        assert_eq!(RouterId::from_bytes([0, 1, 2, 3, 4, 0xab, 0xcd, 0xef]).to_string(), "0001020304abcdef");
    }

    #[test]
    fn a_peer_without_a_name_is_called_by_its_key() {
        let mut peer = PeerLabel { public_key: PublicKey([0; 32]), name: None };
        assert_eq!(peer.to_string(), format!("{}=", "A".repeat(43)));
        peer.name = Some("laptop".into());
        assert_eq!(peer.to_string(), "laptop");
    }
}
