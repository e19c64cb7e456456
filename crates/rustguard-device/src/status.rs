//! A device's state at one moment, for `show`, the UAPI and embedders.

use crate::drops::DropReason;
use ipnet::IpNet;
use rustguard_core::paths::State;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use zeroize::Zeroizing;

/// Everything about a device. Holds the private key: handle it as such.
pub struct Status {
    /// The private key, if one is set.
    pub private_key: Option<StaticSecret>,
    /// Its public half.
    pub public_key: Option<PublicKey>,
    /// The UDP port.
    pub listen_port: u16,
    /// The firewall mark, 0 for none.
    pub fwmark: u32,
    /// The peers, in the order they were added.
    pub peers: Vec<PeerStatus>,
    /// Whether packets go from peer to peer without the host.
    pub relaying: RelayStatus,
    /// Packets that went from peer to peer without the host: see [`Relay`](crate::Relay).
    pub relayed: u64,
    /// Packets of routers that were let through though their sources were not announced: see
    /// [`SourceCheck::Log`](crate::SourceCheck::Log).
    pub unannounced: u64,
    /// What was dropped, by reason; reasons that never happened are left out.
    pub drops: Vec<(DropReason, u64)>,
    /// The embedder's own: see [`Builder::counters`](crate::Builder::counters).
    pub counters: Vec<(&'static str, u64)>,
}

/// Whether packets from peer to peer are relayed: see [`Relay`](crate::Relay).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayStatus {
    /// They are, where the mode says so.
    On,
    /// The host gets them: that is how it is configured.
    Off,
    /// They are dropped: peers are kept apart.
    Isolated,
    /// The host gets them, for these rules of netfilter to see them.
    Rules(String),
    /// The host gets them, because it is not known whether netfilter has rules for them.
    Unknown,
}

impl RelayStatus {
    /// In one word, as the control socket and `show --json` say it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Isolated => "isolated",
            Self::Rules(_) => "rules",
            Self::Unknown => "unknown",
        }
    }
}

/// What a routing engine tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingStatus {
    /// The engine's own identifier in its protocol, where it has one.
    pub router_id: Option<[u8; 8]>,
    /// Who it talks to.
    pub neighbours: Vec<NeighbourStatus>,
    /// What it knows of prefixes.
    pub routes: Vec<LearnedRoute>,
    /// What origins are called, as they claim.
    pub names: Vec<([u8; 8], String)>,
    /// What it passed over, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

/// A peer's public key, and its name if it has one.
pub type Who = (PublicKey, Option<String>);

/// A neighbour of a routing engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourStatus {
    /// Who.
    pub peer: PublicKey,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Where it is, as far as known.
    pub endpoint: Option<SocketAddr>,
    /// Whether it is heard.
    pub heard: bool,
    /// The cost of the link; `None`: it cannot be used.
    pub cost: Option<u16>,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// How many prefixes it announces.
    pub routes: usize,
}

/// A prefix, as a routing engine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRoute {
    /// Which.
    pub prefix: IpNet,
    /// Whether this host announces it as its own.
    pub local: bool,
    /// How far it is; `None`: out of reach.
    pub metric: Option<u16>,
    /// Who originates it.
    pub origin: Option<[u8; 8]>,
    /// Who gets packets for it, the best first.
    pub next_hops: Vec<Who>,
    /// Who takes over.
    pub backup: Option<Who>,
    /// Who announces it, how far it is from there, and whether it could be used.
    pub learned: Vec<(Who, u16, bool)>,
    /// Why it is not in the kernel's table, where it should be.
    pub kernel: Option<String>,
}

/// One of several paths to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// As it was configured; `None` for one that the peer has shown us.
    pub configured: Option<String>,
    /// Where it leads; `None` while its name is not resolved.
    pub endpoint: Option<SocketAddr>,
    /// Our address on it, where it matters.
    pub local: Option<IpAddr>,
    /// Whether it works.
    pub state: State,
    /// Its smoothed round trip, where we probe it.
    pub round_trip: Option<Duration>,
    /// It carries what is not spread.
    pub active: bool,
    /// Its share of the flows, while they are spread.
    pub weight: Option<u8>,
}

/// Everything about a peer.
pub struct PeerStatus {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// The preshared key; all zeros means none.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// Where it is, as far as known.
    pub endpoint: Option<SocketAddr>,
    /// The paths to it, where it has several endpoints, or has shown that there are several ways to us.
    pub paths: Vec<PathStatus>,
    /// Persistent keepalive.
    pub persistent_keepalive: Option<Duration>,
    /// When the last handshake completed, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes received: transport and handshake messages.
    pub rx_bytes: u64,
    /// Bytes sent: transport and handshake messages.
    pub tx_bytes: u64,
    /// Its allowed IPs.
    pub allowed_ips: Vec<IpNet>,
}
