//! A path to a peer, as it goes through the socket and as `show --json` prints it.

use crate::status::PathStatus;
use rustguard_core::paths::State;
use serde::{Deserialize, Serialize};

/// One of several paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// As it was configured; `null` for one that the peer has shown us.
    pub configured: Option<String>,
    /// Where it leads; `null` while its name is not resolved.
    pub endpoint: Option<String>,
    /// Our address on it, where it matters.
    pub local: Option<String>,
    /// Whether it works: `up`, `down` or `unknown`.
    pub state: PathWord,
    /// Its smoothed round trip in microseconds, where it is probed from here.
    pub round_trip_us: Option<u64>,
    /// It carries what is not spread.
    pub active: bool,
    /// Its share of the flows, while they are spread.
    pub weight: Option<u8>,
}

/// Whether a path works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathWord {
    /// It works both ways.
    Up,
    /// It does not.
    Down,
    /// Not probed, or not answered yet.
    Unknown,
}

impl From<&PathStatus> for PathView {
    fn from(path: &PathStatus) -> Self {
        Self {
            configured: path.configured.as_ref().map(ToString::to_string),
            endpoint: path.endpoint.map(|endpoint| endpoint.to_string()),
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
