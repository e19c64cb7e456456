//! Pings: the time until a peer's RustGuard answers, and the way of the answer.

use crate::status::Way;
use std::time::Duration;

/// The longest time that a ping waits for its answer.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// The answer to a ping: see [`Device::ping`](crate::Device::ping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pong {
    /// The time from the request to the answer. A handshake before the request is not counted.
    pub round_trip: Duration,
    /// The way by which the request left.
    pub asked: Way,
    /// The way by which the answer came. The peer chooses it. The answer is authentic; the address of a direct way
    /// comes from the datagram, and a router could have changed it.
    pub way: Way,
}

impl Pong {
    /// Whether both request and answer travelled directly.
    pub fn is_direct(&self) -> bool {
        self.asked.is_direct() && self.way.is_direct()
    }
}

/// Why a ping has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// No peer has this public key, or the peer was removed meanwhile.
    #[error("no peer has this public key")]
    UnknownPeer,
    /// The peer's address is unknown: it has no endpoint, the endpoint's name is not resolved, or the peer has to
    /// begin.
    #[error("the peer's endpoint is not known")]
    NoEndpoint,
    /// The interface is set down.
    #[error("the interface is down")]
    Down,
    /// No session was established in time. [`PeerStatus::problem`](crate::PeerStatus::problem) has the likely cause.
    #[error("there is no session with the peer")]
    NoSession,
    /// The request was sent, and no answer came in time. The request or the answer was lost, or the peer is not a
    /// RustGuard: other implementations do not answer pings.
    #[error("the peer does not answer")]
    NoAnswer,
    /// Too many pings are waiting, or were just sent: 64 may wait at the same time, and 100 may be sent in a second.
    #[error("too many pings at a time; try again in a second")]
    TooMany,
    /// The device has ended.
    #[error("the device has ended")]
    Closed,
}

impl PingError {
    /// The error in one word that does not change between versions, as the control socket and `ping --json` write it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::UnknownPeer => "unknown-peer",
            Self::NoEndpoint => "no-endpoint",
            Self::Down => "down",
            Self::NoSession => "no-session",
            Self::NoAnswer => "no-answer",
            Self::TooMany => "too-many",
            Self::Closed => "closed",
        }
    }
}
