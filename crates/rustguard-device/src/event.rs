//! Events of peers, for embedders.

use crate::{
    config::PathSpec,
    status::{Connection, Problem, Way},
};
use rustguard_crypto::x25519::PublicKey;
use std::{net::SocketAddr, time::Duration};
use tokio::sync::broadcast;

/// An event, mostly of a peer. It is sent after the state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A handshake completed: there is a fresh session.
    #[non_exhaustive]
    HandshakeComplete {
        /// The peer.
        peer: PublicKey,
        /// The time from the first initiation to the answer, if this side initiated.
        took: Option<Duration>,
    },
    /// Initiations were not answered for 90 seconds (Rekey-Attempt-Time in the WireGuard paper, section 6.1).
    #[non_exhaustive]
    HandshakeFailed {
        /// The peer.
        peer: PublicKey,
    },
    /// The session's keys were erased, nine minutes after the last handshake (three times Reject-After-Time).
    #[non_exhaustive]
    SessionExpired {
        /// The peer.
        peer: PublicKey,
    },
    /// An authenticated packet came from a new address.
    #[non_exhaustive]
    PeerRoamed {
        /// The peer.
        peer: PublicKey,
        /// The peer's new address.
        endpoint: SocketAddr,
    },
    /// A peer is now, or is no longer, reached through another peer or by a transport of the embedder's own. A new
    /// address of a directly reached peer is [`PeerRoamed`](Self::PeerRoamed).
    #[non_exhaustive]
    WayChanged {
        /// The peer.
        peer: PublicKey,
        /// The way before; `None` if there was none, or if it led through a peer that was removed.
        before: Option<Way>,
        /// The way now.
        now: Way,
    },
    /// The name of an endpoint was resolved.
    #[non_exhaustive]
    EndpointResolved {
        /// The peer.
        peer: PublicKey,
        /// The address.
        endpoint: SocketAddr,
    },
    /// The name of an endpoint could not be resolved.
    #[non_exhaustive]
    EndpointUnresolved {
        /// The peer.
        peer: PublicKey,
        /// The host name.
        name: String,
        /// The resolver's error.
        cause: String,
        /// Whether this was the last attempt of [`Builder::resolution_retries`](crate::Builder::resolution_retries).
        /// Otherwise the name is tried again.
        given_up: bool,
    },
    /// One of a peer's several paths works now, or no longer works.
    #[non_exhaustive]
    Path {
        /// The peer.
        peer: PublicKey,
        /// The path, as it was configured.
        path: PathSpec,
        /// Whether the path works.
        up: bool,
    },
    /// A peer is now, or is no longer, usable as a neighbour of the routing engine.
    #[non_exhaustive]
    Neighbour {
        /// The peer.
        peer: PublicKey,
        /// The cost of the link in the engine's metric; `None` while the link cannot be used.
        cost: Option<u16>,
    },
    /// The state of the connection to a peer has changed.
    #[non_exhaustive]
    ConnectionChanged {
        /// The peer.
        peer: PublicKey,
        /// The new state.
        connection: Connection,
    },
    /// A peer cannot be reached, or some packets of a reachable peer are lost. While it cannot be reached, there is one
    /// such event for each kind of cause until [`ProblemGone`](Self::ProblemGone). A source that is not allowed is
    /// reported at most once in an hour, and its end is not reported.
    #[non_exhaustive]
    ProblemFound {
        /// The peer.
        peer: PublicKey,
        /// The likely cause.
        problem: Problem,
    },
    /// A peer can be reached again, or long packets reach it again.
    #[non_exhaustive]
    ProblemGone {
        /// The peer.
        peer: PublicKey,
        /// The problem that has ended.
        problem: Problem,
    },
    /// A stranger repeats a handshake after four seconds or more, with a valid key that no peer has. Any stranger who
    /// knows our public key can cause this event, so at most ten are reported at once, and then one a minute.
    #[non_exhaustive]
    UnknownKey {
        /// The public key.
        public_key: PublicKey,
        /// The address of the stranger.
        from: SocketAddr,
    },
    /// A peer was added.
    #[non_exhaustive]
    PeerAdded {
        /// The peer.
        peer: PublicKey,
    },
    /// A peer has a new public key. Its sessions stay.
    #[non_exhaustive]
    PeerKeyChanged {
        /// The key before.
        before: PublicKey,
        /// The peer, by its new key.
        peer: PublicKey,
    },
    /// A peer was removed.
    #[non_exhaustive]
    PeerRemoved {
        /// The peer.
        peer: PublicKey,
    },
}

/// The events of a device, from [`Device::events`](crate::Device::events).
///
/// A listener that lags 1,024 events behind loses the oldest ones.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

/// Why there is no next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// This many events were lost, because the listener was too slow. The next call returns the oldest remaining event.
    #[error("{0} events were lost, because they were not taken in time")]
    Lagged(u64),
    /// The device has ended.
    #[error("the device has ended")]
    Closed,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self(receiver)
    }

    /// Waits for the next event. Dropping the future loses no event.
    ///
    /// # Errors
    /// See [`EventsError`].
    pub async fn recv(&mut self) -> Result<Event, EventsError> {
        self.0.recv().await.map_err(|error| match error {
            broadcast::error::RecvError::Lagged(lost) => EventsError::Lagged(lost),
            broadcast::error::RecvError::Closed => EventsError::Closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_lost() {
        let (sender, receiver) = broadcast::channel(2);
        let mut events = Events::new(receiver);
        let peer = PublicKey([1; 32]);
        for _ in 0..3 {
            sender.send(Event::PeerAdded { peer }).unwrap();
        }
        assert_eq!(events.recv().await, Err(EventsError::Lagged(1)));
        assert_eq!(events.recv().await, Ok(Event::PeerAdded { peer }));
        drop(sender);
        assert_eq!(events.recv().await, Ok(Event::PeerAdded { peer }));
        assert_eq!(events.recv().await, Err(EventsError::Closed));
    }
}
