//! What an engine tells people about itself.
use super::NextHops;
use crate::peer::PeerId;
use alloc::{string::String, vec::Vec};
use core::time::Duration;
use ipnet::IpNet;

/// An engine's state. Engines without a protocol have none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The engine's own identifier in its protocol, where it has one.
    pub router_id: Option<[u8; 8]>,
    /// Who it talks to.
    pub neighbours: Vec<Neighbour>,
    /// What it knows of prefixes.
    pub routes: Vec<Route>,
    /// What origins are called, as they claim: for people to read. Several may claim the same.
    pub names: Vec<([u8; 8], String)>,
    /// What it passed over, by reason: counters that only grow, those of zero left out.
    pub refused: Vec<(&'static str, u64)>,
}

/// A peer that speaks the engine's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Which peer.
    pub peer: PeerId,
    /// Whether it is heard.
    pub heard: bool,
    /// The cost of the link in the engine's metric; `None`: it cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// How many prefixes it announces.
    pub routes: usize,
}

/// A prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which.
    pub prefix: IpNet,
    /// Whether this host announces it as its own.
    pub local: bool,
    /// How far it is in the engine's metric; `None`: out of reach.
    pub metric: Option<u16>,
    /// Who originates it.
    pub origin: Option<[u8; 8]>,
    /// Who gets packets for it.
    pub hops: NextHops,
    /// Who announces it, and how far it is from there; the last says whether it could be used.
    pub learned: Vec<(PeerId, u16, bool)>,
}
