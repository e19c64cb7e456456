//! How datagrams to a peer travel.

use rustguard_crypto::x25519::PublicKey;
use std::{fmt, net::SocketAddr};

/// How datagrams to a peer travel, or how one of the peer's came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Directly: to this address of the peer's, or from it.
    Direct(SocketAddr),
    /// Through this peer, the relay.
    Through(PublicKey),
}

impl Way {
    /// Whether no relay is on the way.
    pub const fn is_direct(&self) -> bool {
        matches!(self, Self::Direct(_))
    }
}

/// `direct 203.0.113.7:51820`, or `through` and the public key of the relay.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => write!(f, "direct {address}"),
            Self::Through(relay) => write!(f, "through {relay}"),
        }
    }
}
