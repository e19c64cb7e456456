//! What an embedder can listen to.

use crate::config::PathSpec;
use rustguard_crypto::x25519::PublicKey;
use std::{net::SocketAddr, time::Duration};

/// Something happened to a peer. Named as it happened; sent after the state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A handshake completed: there is a fresh session.
    HandshakeComplete {
        /// With whom.
        peer: PublicKey,
        /// From the first initiation to its answer, where this side initiated.
        took: Option<Duration>,
    },
    /// Ninety seconds of initiations stayed without an answer.
    HandshakeFailed {
        /// With whom.
        peer: PublicKey,
    },
    /// The session's keys were erased, nine minutes after the last handshake.
    SessionExpired {
        /// With whom.
        peer: PublicKey,
    },
    /// An authenticated packet came from a new address.
    PeerRoamed {
        /// Who.
        peer: PublicKey,
        /// Where it is now.
        endpoint: SocketAddr,
    },
    /// The endpoint's name was resolved.
    EndpointResolved {
        /// Whose.
        peer: PublicKey,
        /// To what.
        endpoint: SocketAddr,
    },
    /// The endpoint's name could not be resolved.
    EndpointUnresolved {
        /// Whose.
        peer: PublicKey,
        /// The name.
        name: String,
        /// What the resolver said.
        cause: String,
        /// That was the last of [`Builder::resolution_retries`](crate::Builder::resolution_retries); otherwise it is tried
        /// again.
        given_up: bool,
    },
    /// One of a peer's several endpoints works, or has ceased to.
    Path {
        /// Whose.
        peer: PublicKey,
        /// Which, as it was configured.
        path: PathSpec,
        /// It works.
        up: bool,
    },
    /// A peer became usable as a neighbour of the routing engine, or ceased to be.
    Neighbour {
        /// Who.
        peer: PublicKey,
        /// The cost of the link in the engine's metric; `None`: unusable.
        cost: Option<u16>,
    },
    /// A peer was added.
    PeerAdded {
        /// Who.
        peer: PublicKey,
    },
    /// A peer was removed.
    PeerRemoved {
        /// Who.
        peer: PublicKey,
    },
}
