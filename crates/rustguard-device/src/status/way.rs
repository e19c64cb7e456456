//! How datagrams to a peer travel.

use rustguard_core::paths::TransportAddress;
use rustguard_crypto::x25519::PublicKey;
use std::{fmt, net::SocketAddr};

/// How datagrams to a peer travel, or how a datagram of the peer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Directly: by UDP to or from this address of the peer.
    Direct(SocketAddr),
    /// Through this peer, the relay.
    Relayed(PublicKey),
    /// By a transport of the embedder's own: see [`WithTransport`](crate::WithTransport).
    Transport(TransportAddress),
}

impl Way {
    /// Whether the way is UDP from end to end, without a relay.
    pub const fn is_direct(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// The kind of the way in one word that does not change between versions: `direct`, `through` or `transport`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Direct(_) => "direct",
            Self::Relayed(_) => "through",
            Self::Transport(_) => "transport",
        }
    }
}

/// The way to an address.
impl From<SocketAddr> for Way {
    fn from(address: SocketAddr) -> Self {
        TransportAddress::of(address).map_or(Self::Direct(address), Self::Transport)
    }
}

/// `direct 203.0.113.7:51820`, `through` and the public key of the relay, or `transport 7`.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => write!(f, "direct {address}"),
            Self::Relayed(relay) => write!(f, "through {relay}"),
            Self::Transport(at) => at.fmt(f),
        }
    }
}
