//! A device's state at one moment, for `show`, the control socket and embedders. It holds no secrets: see
//! [`Secrets`](crate::Secrets).

mod connection;
mod policy;
mod problem;
mod routing;
mod way;

use crate::{config::PathSpec, drops::DropReason};
pub use connection::Connection;
pub(crate) use connection::SILENCE;
use ipnet::IpNet;
pub use policy::{PolicyStatus, Refusal};
pub use problem::{Cause, Problem, Route};
pub use routing::{AnnouncementStatus, NeighbourStatus, OriginName, PeerLabel, RouteStatus, RouterId, RoutingStatus};
use rustguard_core::paths::{Relayed, State};
use rustguard_crypto::x25519::PublicKey;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
pub use way::Way;

/// The state of a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// The public key; `None` if the device has no private key.
    pub public_key: Option<PublicKey>,
    /// Whether the tunnel works. While its interface is set down, the UDP port is closed and there are no sessions.
    pub up: bool,
    /// The UDP port.
    pub listen_port: u16,
    /// The UDP ports beyond that one.
    pub more_listen_ports: Vec<u16>,
    /// The addresses at which the device listens; all addresses of the host if there are none.
    pub listen_addresses: Vec<IpAddr>,
    /// The firewall mark; 0 stands for no mark.
    pub fwmark: u32,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerStatus>,
    /// Whether packets go from peer to peer without the host.
    pub relaying: RelayStatus,
    /// The number of packets that went from peer to peer without the host: see [`Relay`](crate::Relay).
    pub relayed: u64,
    /// Whether the device forwards sealed datagrams between its peers: see
    /// [`Builder::forward`](crate::Builder::forward).
    pub forward: bool,
    /// The number of sealed datagrams that were forwarded from peer to peer.
    pub forwarded: u64,
    /// The number of packets of routers that passed although their sources were not announced: see
    /// [`SourceCheck::Log`](crate::SourceCheck::Log).
    pub unannounced: u64,
    /// The numbers of dropped packets, by reason. Reasons that never happened are left out.
    pub drops: Vec<DropCount>,
    /// The policy, and what it has refused; `None` without one.
    pub policy: Option<PolicyStatus>,
    /// The embedder's counters: see [`Builder::counters`](crate::Builder::counters).
    pub counters: Vec<Counter>,
}

impl Status {
    /// The number of packets that were dropped for this reason since the start.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        dropped(&self.drops, reason)
    }
}

fn dropped(drops: &[DropCount], reason: DropReason) -> u64 {
    drops.iter().find(|count| count.reason == reason).map_or(0, |count| count.packets)
}

/// The number of packets that were dropped for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropCount {
    /// The reason.
    pub reason: DropReason,
    /// The number of packets since the start.
    pub packets: u64,
}

/// A counter with a name. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counter {
    /// Its name, in lower-case letters and `_`.
    pub name: &'static str,
    /// Its value since the start.
    pub value: u64,
}

impl Counter {
    /// A counter with this name and value.
    pub const fn new(name: &'static str, value: u64) -> Self {
        Self { name, value }
    }
}

/// Whether packets from peer to peer are relayed: see [`Relay`](crate::Relay).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayStatus {
    /// They are relayed if the mode permits.
    On,
    /// The host gets them, because of the configuration.
    Off,
    /// They are dropped: peers are kept apart.
    Isolated,
    /// The host gets them, because netfilter has rules for forwarded packets. The text names the rules.
    Rules(String),
    /// The host gets them, because it is not known yet whether netfilter has rules for them.
    #[default]
    Unknown,
}

impl RelayStatus {
    /// The state in one word, as the control socket and `show --json` write it.
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

/// The state of a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The peer's name, if it has one.
    pub name: Option<String>,
    /// The peer's public key.
    pub public_key: PublicKey,
    /// Whether there is a preshared key. [`Secrets`](crate::Secrets) has the key.
    pub has_preshared_key: bool,
    /// The peer's address and port; `None` while they are unknown.
    pub endpoint: Option<SocketAddr>,
    /// The relay: the peer through which this peer is reached now. `None` if it is reached at an address, or not at
    /// all.
    pub through: Option<PublicKey>,
    /// Why no direct way to the peer is used. `None` if a direct way is used. Also `None` if no way of this peer leads
    /// through a peer and direct ways are not [looked for](crate::PeerUpdate::direct).
    pub not_direct: Option<Relayed>,
    /// The name of the peer's only endpoint, while it has no address.
    pub unresolved: Option<UnresolvedEndpoint>,
    /// The paths to the peer. Empty if there is no choice: the peer has one endpoint, and has used one.
    pub paths: Vec<PathStatus>,
    /// The interval of persistent keepalives; `None` if they are off.
    pub persistent_keepalive: Option<Duration>,
    /// When the last handshake completed, as the time since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// The number of handshakes that were completed since the peer was added.
    pub handshakes: u64,
    /// Bytes received in UDP payloads: transport and handshake messages.
    pub rx_bytes: u64,
    /// Bytes sent in UDP payloads: transport and handshake messages.
    pub tx_bytes: u64,
    /// The peer's allowed IPs.
    pub allowed_ips: Vec<IpNet>,
    /// The longest packet that reaches the peer; `None` while nothing is known. Only a RustGuard answers the probes.
    pub path_mtu: Option<PathMtu>,
    /// Parities, if they are [configured](crate::PeerUpdate::parity).
    pub parity: Option<ParityStatus>,
    /// The number of lanes by which several threads send to the peer, each from its own port: see
    /// [`rustguard_core::lanes`]. 0 while all datagrams leave from one port.
    pub lanes: u8,
    /// The numbers of dropped packets from and to the peer, by reason, since the peer was added. Reasons that never
    /// happened are left out. [`Status::drops`] includes these drops, and drops whose peer is not known.
    pub drops: Vec<DropCount>,
    /// Whether the peer can be talked to.
    pub connection: Connection,
    /// The problem of the connection to the peer, with the likely cause.
    pub problem: Option<Problem>,
}

impl PeerStatus {
    /// The number of packets from or to the peer that were dropped for this reason since it was added.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        dropped(&self.drops, reason)
    }

    /// How datagrams to the peer travel; `None` while its address is unknown.
    pub fn way(&self) -> Option<Way> {
        self.through.map(Way::Relayed).or(self.endpoint.map(Way::from))
    }

    /// A peer about which nothing is known yet.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            name: None,
            public_key,
            has_preshared_key: false,
            endpoint: None,
            through: None,
            not_direct: None,
            unresolved: None,
            paths: Vec::new(),
            persistent_keepalive: None,
            last_handshake: None,
            handshakes: 0,
            rx_bytes: 0,
            tx_bytes: 0,
            allowed_ips: Vec::new(),
            path_mtu: None,
            parity: None,
            lanes: 0,
            drops: Vec::new(),
            connection: Connection::default(),
            problem: None,
        }
    }
}

/// An endpoint whose name has no address yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnresolvedEndpoint {
    /// The name and the port.
    pub name: String,
    /// The resolver's error; `None` during the first attempt.
    pub error: Option<String>,
}

/// The state of the parities that are configured for a peer: see [`rustguard_core::fec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParityStatus {
    /// Bytes of data for one byte of parity.
    pub size: u8,
    /// Whether the peer accepts them in the present session. Only a RustGuard with the same setting does.
    pub accepted: bool,
    /// Parities that were sent.
    pub sent: u64,
    /// Lost packets of the peer that were rebuilt from its parities.
    pub rebuilt: u64,
}

/// The longest packet that reaches a peer: see [`rustguard_core::path_mtu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathMtu {
    /// Bytes of the longest packet inside the tunnel that is known to reach the peer.
    pub packet: u16,
    /// Bytes of the IP datagram that it becomes outside. With a transport of the embedder's own, bytes of the
    /// WireGuard message.
    pub datagram: u32,
    /// Whether the interface's MTU permits longer packets, which are lost. An MTU of [`packet`](Self::packet) solves
    /// this.
    pub limited: bool,
}

/// One of several paths to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatus {
    /// The path as it was configured; `None` for a path that was learned from the peer's packets, or that was found.
    pub configured: Option<PathSpec>,
    /// Whether the path was found by the search for direct ways.
    pub found: bool,
    /// The peer's address and port on this path; `None` while the name is not resolved, and for a path through a peer.
    pub endpoint: Option<SocketAddr>,
    /// The relay, for a path through a peer.
    pub through: Option<PublicKey>,
    /// Our address on this path, if the path is bound to one.
    pub local: Option<IpAddr>,
    /// Whether the path works.
    pub state: State,
    /// The smoothed round-trip time, if this side probes the path.
    pub round_trip: Option<Duration>,
    /// Whether packets that are not spread over several paths take this one.
    pub active: bool,
    /// The path's share of the flows while they are spread; `None` while they are not.
    pub weight: Option<u8>,
}
