//! The report of an engine, for people.
use super::NextHops;
use crate::{peer::PeerId, time::Instant};
use alloc::{string::String, vec::Vec};
use core::time::Duration;
use ipnet::IpNet;

/// An engine's state. For engines without a protocol it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The name of the engine, in lower-case letters; `None`: it has nothing to report.
    pub engine: Option<&'static str>,
    /// The engine's own identifier in its protocol, if it has one.
    pub router_id: Option<[u8; 8]>,
    /// The peers that it communicates with.
    pub neighbours: Vec<Neighbour>,
    /// The prefixes that it knows.
    pub routes: Vec<Route>,
    /// The names that origins claim, for people to read. Several origins may claim the same name.
    pub names: Vec<OriginName>,
    /// How often the engine refused something, by reason. Reasons that never occurred are left out.
    pub refused: Vec<RefusedCount>,
}

/// A peer that speaks the engine's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbour {
    /// The peer.
    pub peer: PeerId,
    /// Whether its messages arrive.
    pub heard: bool,
    /// The cost of the link in the engine's metric; `None`: it cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// How many prefixes it announces.
    pub routes: usize,
    /// It authenticates its packets inside the tunnel, and drops the packets of this engine, which does not (for
    /// Babel, RFC 8967).
    pub wants_macs: bool,
}

impl Neighbour {
    /// A peer that was not heard yet.
    pub const fn new(peer: PeerId) -> Self {
        Self { peer, heard: false, cost: None, round_trip: None, routes: 0, wants_macs: false }
    }
}

/// A prefix that an engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The prefix.
    pub prefix: IpNet,
    /// Whether this host announces it as its own.
    pub local: bool,
    /// How far it is in the engine's metric; `None`: unreachable.
    pub metric: Option<u16>,
    /// The identifier of the host that originates it.
    pub origin: Option<[u8; 8]>,
    /// The peers that get packets for it.
    pub hops: NextHops,
    /// Since when, if the engine records it.
    pub since: Option<Instant>,
    /// The peers that announce it.
    pub learned: Vec<Announcement>,
}

impl Route {
    /// A prefix that is unreachable and that nobody announces.
    pub const fn new(prefix: IpNet) -> Self {
        Self {
            prefix,
            local: false,
            metric: None,
            origin: None,
            hops: NextHops::UNREACHABLE,
            since: None,
            learned: Vec::new(),
        }
    }
}

/// A prefix as a peer announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announcement {
    /// The peer.
    pub from: PeerId,
    /// The peer's distance to the prefix, in the engine's metric.
    pub metric: u16,
    /// Whether the route could be used: under Babel, because it cannot cause a loop (RFC 8966, section 3.5.1); behind
    /// a member, because the member answers or was not asked.
    pub feasible: bool,
    /// The round trip to the peer, if the engine measures it.
    pub round_trip: Option<Duration>,
}

impl Announcement {
    /// An announcement of the peer `from`.
    pub const fn new(from: PeerId, metric: u16, feasible: bool) -> Self {
        Self { from, metric, feasible, round_trip: None }
    }
}

/// The name that an origin claims.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginName {
    /// The origin's identifier in the engine's protocol.
    pub origin: [u8; 8],
    /// The name.
    pub name: String,
}

impl OriginName {
    /// The name of an origin.
    pub const fn new(origin: [u8; 8], name: String) -> Self {
        Self { origin, name }
    }
}

/// How often an engine refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedCount {
    /// The reason, in lower-case letters and `_`.
    pub reason: &'static str,
    /// The number of refusals since the start.
    pub count: u64,
}

impl RefusedCount {
    /// This many refusals for a reason.
    pub const fn new(reason: &'static str, count: u64) -> Self {
        Self { reason, count }
    }
}
