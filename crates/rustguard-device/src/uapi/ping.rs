//! A ping, in the form of the socket.

use crate::{
    key::to_base64,
    ping::{PingError, Pong},
    status::Way,
};
use serde::{Deserialize, Serialize};

/// The result of a ping: the answer to `get=rustguard-ping`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PingView {
    /// The peer has answered.
    Answer {
        /// The time from the request to the answer, in microseconds.
        round_trip_us: u64,
        /// The way of the request.
        asked: WayView,
        /// The way of the answer.
        way: WayView,
    },
    /// There is no answer.
    Error {
        /// The cause in one word that does not change between versions, such as `no-answer`.
        kind: String,
        /// The cause in a sentence.
        text: String,
    },
}

/// How datagrams to a peer travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WayView {
    /// Directly: the peer's address and port.
    Direct(String),
    /// Through a peer: the public key of the relay, in base64.
    #[serde(rename = "through")]
    Relayed(String),
    /// By a transport of the program's own: the number of the address there.
    Transport(u64),
}

impl From<&Way> for WayView {
    fn from(way: &Way) -> Self {
        match way {
            Way::Direct(address) => Self::Direct(address.to_string()),
            Way::Relayed(relay) => Self::Relayed(to_base64(&relay.0).to_string()),
            Way::Transport(at) => Self::Transport(at.number()),
        }
    }
}

impl From<&Result<Pong, PingError>> for PingView {
    fn from(result: &Result<Pong, PingError>) -> Self {
        match result {
            Ok(Pong { round_trip, asked, way }) => Self::Answer {
                round_trip_us: u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX),
                asked: asked.into(),
                way: way.into(),
            },
            Err(error) => Self::Error { kind: error.word().to_owned(), text: error.to_string() },
        }
    }
}
