//! The input of [`Paths`](super::Paths), and its output.
use super::{
    candidates::Candidates,
    flows::Share,
    locator::{Address, Locator},
    probe::Probe,
};
use crate::time::Instant;
use alloc::vec::Vec;
use core::time::Duration;

/// How an endpoint is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The best working endpoint carries everything, the others are in reserve.
    #[default]
    Best,
    /// Flows are spread over all working endpoints with a weight (1 to 255), in proportion. Those without a weight are
    /// in reserve.
    Weighted(u8),
    /// Everything goes here, whether it works or not, no matter where packets of the peer come from.
    Pinned,
    /// In reserve for the other endpoints, and not probed while one of them answers. Beside a single other endpoint,
    /// which moves with the peer as in WireGuard, nothing is probed without traffic. One exception: while the peer is
    /// reached through a relay, an address that was never tried is probed.
    Fallback,
}

/// The hop limit of [`Order::Open`]. One router, the one of this end's own network, forwards the datagram, and the next
/// one drops it. With a greater limit, it could arrive at the router of a peer that has the same provider.
pub const OPENING_HOPS: u8 = 2;

/// Something that the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Seal this and send it there.
    Probe {
        /// The destination.
        to: Locator,
        /// The text to seal.
        probe: Probe,
    },
    /// Seal this and send it there with [`OPENING_HOPS`] as its hop limit. This end's own router shall then expect
    /// datagrams of the peer from there, but the peer's router shall not receive this datagram.
    Open {
        /// The destination.
        to: Address,
        /// The text to seal.
        probe: Probe,
    },
    /// Begin a handshake. The initiation goes to every locator ([`Paths::locators`](super::Paths::locators)).
    Handshake,
    /// A configured path works now, or no longer works: report it.
    State {
        /// Its position in the configuration.
        path: usize,
        /// It works.
        up: bool,
    },
    /// A configured path does not work: resolve its name again, because the address may have changed. Repeated every 30
    /// s.
    Elsewhere {
        /// Its position in the configuration.
        path: usize,
    },
    /// Seal this and send it there.
    Tell {
        /// The destination.
        to: Locator,
        /// The text to seal.
        message: Candidates,
    },
    /// Ask the relays of this peer how they see this node ([`Observer`](super::Observer)).
    Observe,
}

/// Why no direct way is used to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relayed {
    /// The search is off in the configuration.
    Off,
    /// There is no search without traffic.
    Idle,
    /// The search goes on.
    Looking,
    /// The peer has not told where it may be reached: it does not look for direct ways.
    NoCandidates,
    /// None of the peer's candidates answers.
    NoAnswer,
    /// None of the peer's candidates answers, and the NATs of both ends map ports per destination, so that neither end
    /// knows its port as the other end sees it.
    BothMapPerDestination,
}

impl Relayed {
    /// The reason as one word that stays the same in all versions.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Idle => "idle",
            Self::Looking => "looking",
            Self::NoCandidates => "no-candidates",
            Self::NoAnswer => "no-answer",
            Self::BothMapPerDestination => "both-map-per-destination",
        }
    }
}

/// The reason in a few words.
impl core::fmt::Display for Relayed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Off => "no direct way is looked for",
            Self::Idle => "no direct way is looked for without traffic",
            Self::Looking => "a direct way is being looked for",
            Self::NoCandidates => "the peer does not say where it may be reached",
            Self::NoAnswer => "no address of the peer answers",
            Self::BothMapPerDestination => "the NATs of both ends map ports per destination",
        })
    }
}

/// The caller's knowledge of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// There is a session, in which probes can be sent.
    pub session: bool,
    /// Bytes so far, in both directions, without handshakes, probes and the packets of a routing engine.
    pub data: u64,
    /// When the oldest data was sent that has had no answer.
    pub unanswered: Option<Instant>,
}

/// Where packets are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The locator for everything that is not spread; `None`: the locator where the peer was heard last.
    pub active: Option<Locator>,
    /// Locators from which packets of the peer do not mean that it has moved.
    pub known: Vec<Locator>,
    /// The peer does not move when it is heard from elsewhere.
    pub pinned: bool,
    /// The paths that flows are spread over, at least two, or none.
    pub spread: Vec<(Share, Locator)>,
}

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not probed, or no answer yet.
    Unknown,
    /// It works in both directions.
    Up,
    /// It does not work.
    Down,
}

/// A path, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// Its position in the configuration; `None` for one that the peer has shown us.
    pub configured: Option<usize>,
    /// The search for direct ways found it.
    pub found: bool,
    /// The locator it leads to.
    pub locator: Option<Locator>,
    /// Its state.
    pub state: State,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// It carries everything that is not spread.
    pub active: bool,
    /// Its share of the flows, while it has one.
    pub weight: Option<u8>,
}
