//! A path to a peer, the longest packet that reaches it, and parities, in the form of the socket and of `show --json`.

use crate::{
    key::to_base64,
    status::{ParityStatus, PathMtu, PathStatus},
};
use rustguard_core::paths::{Relayed, State};
use serde::{Deserialize, Serialize};

/// One of several paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// The path as it was configured; `null` if it was learned from the peer's packets, or was found.
    pub configured: Option<String>,
    /// Whether the path was found by the search for direct ways. Earlier versions do not report it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found: bool,
    /// The remote endpoint; `null` while its name is not resolved, and for a path through a peer.
    pub endpoint: Option<String>,
    /// The public key of the relay, for a path through a peer. Earlier versions do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// The local address on the path; `null` if it does not matter.
    pub local: Option<String>,
    /// Whether the path works: `up`, `down` or `unknown`.
    pub state: PathWord,
    /// The smoothed round-trip time in microseconds; `null` if this end does not probe the path.
    pub round_trip_us: Option<u64>,
    /// Whether the path carries the packets that are not spread over paths.
    pub active: bool,
    /// The path's share of the flows; `null` if flows are not spread.
    pub weight: Option<u8>,
}

/// Why no direct way is used to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotDirectView {
    /// The reason in one word that does not change between versions, such as `no-answer`.
    pub kind: String,
    /// The reason in a few words.
    pub text: String,
}

impl From<Relayed> for NotDirectView {
    fn from(relayed: Relayed) -> Self {
        Self { kind: relayed.word().to_owned(), text: relayed.to_string() }
    }
}

/// The longest packet that reaches a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMtuView {
    /// Bytes of the packet inside the tunnel.
    pub packet: u16,
    /// Bytes of the IP datagram outside.
    pub datagram: u32,
    /// Whether the interface permits longer packets, which are lost.
    pub limited: bool,
}

impl From<&PathMtu> for PathMtuView {
    fn from(&PathMtu { packet, datagram, limited }: &PathMtu) -> Self {
        Self { packet, datagram, limited }
    }
}

/// The parities that are configured for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityView {
    /// Bytes of data for one byte of parity.
    pub size: u8,
    /// Whether the peer accepts them in the present session.
    pub accepted: bool,
    /// Parities that were sent.
    pub sent: u64,
    /// Lost packets of the peer that were rebuilt from its parities.
    pub rebuilt: u64,
}

impl From<&ParityStatus> for ParityView {
    fn from(&ParityStatus { size, accepted, sent, rebuilt }: &ParityStatus) -> Self {
        Self { size, accepted, sent, rebuilt }
    }
}

/// Whether a path works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathWord {
    /// The path works in both directions.
    Up,
    /// The path does not work.
    Down,
    /// The path is not probed, or no probe was answered yet.
    Unknown,
}

impl From<&PathStatus> for PathView {
    fn from(path: &PathStatus) -> Self {
        Self {
            configured: path.configured.as_ref().map(ToString::to_string),
            found: path.found,
            endpoint: path.endpoint.map(|endpoint| endpoint.to_string()),
            through: path.through.map(|relay| to_base64(&relay.0).to_string()),
            local: path.local.map(|local| local.to_string()),
            state: match path.state {
                State::Up => PathWord::Up,
                State::Down => PathWord::Down,
                State::Unknown => PathWord::Unknown,
            },
            round_trip_us: path.round_trip.map(|trip| u64::try_from(trip.as_micros()).unwrap_or(u64::MAX)),
            active: path.active,
            weight: path.weight,
        }
    }
}
