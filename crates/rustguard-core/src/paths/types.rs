//! What goes into [`Paths`](super::Paths), and what comes out.
use super::{flows::Share, probe::Probe};
use crate::time::Instant;
use alloc::vec::Vec;
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Where a peer can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The peer's address.
    pub remote: SocketAddr,
    /// Ours, where it matters.
    pub local: Option<IpAddr>,
    /// The interface by which datagrams must leave; 0: as the kernel's routes say.
    pub interface: u32,
}

impl Place {
    /// Whether what came from `from` (an address, ours that it was sent to, the interface it came in by) came from here.
    pub fn covers(&self, from: &Self) -> bool {
        self.remote == from.remote
            && self.local.is_none_or(|local| from.local.is_none_or(|from| from == local))
            && (self.interface == 0 || from.interface == 0 || self.interface == from.interface)
    }
}

/// What an endpoint is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The best of those that work carries everything, the others are in reserve.
    #[default]
    Best,
    /// Flows are spread over all of these that work, by weight (1 to 255); those without a weight are in reserve.
    Weighted(u8),
    /// Everything goes here, whether or not it works, and wherever the peer is heard from.
    Pinned,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Seal this and send it there.
    Probe {
        /// Where to.
        to: Place,
        /// What.
        probe: Probe,
    },
    /// Begin a handshake, by every place ([`Paths::places`]).
    Handshake,
    /// A configured path works, or has ceased to: news for people.
    State {
        /// Its position in the configuration.
        path: usize,
        /// It works.
        up: bool,
    },
    /// A configured path does not work. Perhaps its name has another address; asked for again every 30 s.
    Elsewhere {
        /// Its position in the configuration.
        path: usize,
    },
}

/// What the device sees of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// There is a session to send in.
    pub session: bool,
    /// Bytes so far, both ways; those of probes and of a routing engine's packets left out.
    pub data: u64,
    /// Since when data that was sent has no answer.
    pub unanswered: Option<Instant>,
}

/// What the workers need to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Where everything goes that is not spread; `None`: wherever the peer was last heard from.
    pub active: Option<Place>,
    /// Where it may be heard from without having moved.
    pub known: Vec<Place>,
    /// Being heard from elsewhere does not move it.
    pub pinned: bool,
    /// The paths that flows are spread over, at least two, or none.
    pub spread: Vec<(Share, Place)>,
}

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not probed, or no answer yet.
    Unknown,
    /// It works both ways.
    Up,
    /// It does not.
    Down,
}

/// A path, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// Its position in the configuration; `None` for one that the peer has shown us.
    pub configured: Option<usize>,
    /// Where it leads.
    pub place: Option<Place>,
    /// How it is.
    pub state: State,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// It carries what is not spread.
    pub active: bool,
    /// Its share of the flows, while it has one.
    pub weight: Option<u8>,
}
