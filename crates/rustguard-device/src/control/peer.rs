//! Control's state of one peer, besides the node's.

pub(super) mod fec;
pub(super) mod link;
pub(super) mod paths;
pub(super) mod session_lanes;
pub(super) mod source;

use super::happy_eyeballs::Race;
use crate::{shared::peer::PeerShared, status::Connection, way::Way};
use fec::Parities;
use link::Link;
use paths::{ConfiguredEndpoint, PeerPaths};
use rustguard_core::{
    forward::Name,
    path_mtu::PathMtu,
    paths::{Observer, PathPolicy},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::Endpoint;
use session_lanes::SessionLanes;
use source::Source;
use std::sync::{Arc, atomic::Ordering};

/// Control's state of a peer, besides the node's. A member of a network has a thousand peers, and is busy with few of
/// them. The parts that only these few need are boxed, and made on first use.
pub(super) struct Peer {
    pub(super) shared: Arc<PeerShared>,
    pub(super) name: Option<String>,
    /// The configured endpoints, and then the servers through which the peer is reached too.
    pub(super) endpoints: Vec<ConfiguredEndpoint>,
    /// Whether direct ways are searched for; `None` if the configuration does not say it.
    pub(super) direct: Option<bool>,
    /// For a peer that is asked at which address it sees this node.
    pub(super) observer: Option<Box<Observer>>,
    /// For a peer with several paths: configured here, or shown by the peer's probes.
    pub(super) paths: Option<Box<PeerPaths>>,
    /// The way that was reported last.
    pub(super) told_way: Option<Arc<Way>>,
    /// Made once there was traffic.
    pub(super) path_mtu: Option<Box<PathMtuChecks>>,
    /// Made where parities are configured.
    pub(super) parities: Option<Box<Parities>>,
    /// Made once lanes were wanted for the peer's sessions.
    pub(super) lanes: Option<Box<SessionLanes>>,
    /// For a peer whose endpoint has a name.
    pub(super) race: Option<Box<Race>>,
    /// Sent bytes of overhead: handshakes, probes and the routing engine's packets.
    pub(super) overhead_tx: u64,
    /// Handshakes that were completed.
    pub(super) handshakes: u64,
    /// For a peer with an address: see [`source`](Self::source).
    pub(super) source: Option<Box<Source>>,
    /// The peer's name towards relays, from its previous key. Members that do not know the present key use this name.
    pub(super) old_name: Option<Name>,
    /// The connection to the peer.
    pub(super) link: Link,
    /// When the connection is looked at next.
    pub(super) look: Option<Instant>,
    /// The connection's state at the last look.
    pub(super) shown: Connection,
}

/// The checks of how long packets to the peer may be.
#[derive(Default)]
pub(super) struct PathMtuChecks {
    pub(super) checks: PathMtu,
    /// The bytes of traffic that had been sent when the last check began.
    pub(super) sent: u64,
    /// Since when the result has been the same.
    pub(super) since: Option<Instant>,
}

impl Peer {
    /// The peer's name in the log.
    pub(super) fn label(&self, key: &PublicKey) -> String {
        self.name.clone().unwrap_or_else(|| crate::key::abbreviate(key))
    }

    /// The endpoints from the configuration.
    pub(super) fn configured(&self) -> impl Iterator<Item = &ConfiguredEndpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.spec.policy != PathPolicy::Fallback)
    }

    /// The address in use; `None` if there is none, or if the way leads through a peer.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.shared.endpoint()
    }

    /// The way in use.
    pub(super) fn way(&self) -> Option<Way> {
        self.shared.way.load().as_deref().copied()
    }

    /// The remembered facts about the way to the peer, and about our own address on it.
    pub(super) fn source(&mut self) -> &mut Source {
        self.source.get_or_insert_default()
    }

    /// Adds a handshake message to the byte counters, which `wg` shows together with the data.
    pub(super) fn count_received(&self, bytes: usize) {
        self.shared.activity.count_received(bytes as u64);
        self.shared.overhead_rx.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The same for a message that is sent.
    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.shared.activity.count_sent(bytes as u64);
        self.overhead_tx += bytes as u64;
    }
}
