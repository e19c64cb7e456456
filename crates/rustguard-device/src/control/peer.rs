//! What control knows of one peer besides the node.

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

/// What control knows of a peer besides the node. A member of a network has a thousand, and is busy with few of them:
/// the parts that only these need are boxed, and made when there is something in them.
pub(super) struct Peer {
    pub(super) shared: Arc<PeerShared>,
    pub(super) name: Option<String>,
    /// As configured, and then the servers through which it is reached too.
    pub(super) endpoints: Vec<ConfiguredEndpoint>,
    /// Whether direct ways are looked for, where the configuration says it.
    pub(super) direct: Option<bool>,
    /// For a peer that is asked how it sees this node.
    pub(super) observer: Option<Box<Observer>>,
    /// For a peer with several paths: configured here, or shown by the peer's probes.
    pub(super) paths: Option<Box<PeerPaths>>,
    /// The way that was reported last.
    pub(super) told_way: Option<Arc<Way>>,
    /// Once there was traffic.
    pub(super) path_mtu: Option<Box<PathMtuChecks>>,
    /// Where parities are configured.
    pub(super) parities: Option<Box<Parities>>,
    /// Once lanes were wanted for its sessions.
    pub(super) lanes: Option<Box<SessionLanes>>,
    /// For a peer whose endpoint has a name.
    pub(super) race: Option<Box<Race>>,
    /// Sent bytes of overhead: handshakes, probes and the routing engine's packets.
    pub(super) overhead_tx: u64,
    /// Handshakes that were completed.
    pub(super) handshakes: u64,
    /// For a peer with an address: see [`source`](Self::source).
    pub(super) source: Option<Box<Source>>,
    /// Its name towards relays by the key that it had before. Members that do not know the present one use it.
    pub(super) old_name: Option<Name>,
    /// The connection to the peer.
    pub(super) link: Link,
    /// When it is looked at next.
    pub(super) look: Option<Instant>,
    /// Its state at the last look.
    pub(super) shown: Connection,
}

/// The checks of how long packets to the peer may be.
#[derive(Default)]
pub(super) struct PathMtuChecks {
    pub(super) checks: PathMtu,
    /// The bytes of traffic that had been sent when the last check began.
    pub(super) sent: u64,
    /// Since when the result is what it is.
    pub(super) since: Option<Instant>,
}

impl Peer {
    /// What to call the peer in the log.
    pub(super) fn label(&self, key: &PublicKey) -> String {
        self.name.clone().unwrap_or_else(|| crate::key::abbreviate(key))
    }

    /// What the configuration says of where it is.
    pub(super) fn configured(&self) -> impl Iterator<Item = &ConfiguredEndpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.spec.policy != PathPolicy::Fallback)
    }

    /// The address in use; `None` where there is none, and where the way leads through a peer.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.shared.endpoint()
    }

    /// The way in use.
    pub(super) fn way(&self) -> Option<Way> {
        self.shared.way.load().as_deref().copied()
    }

    /// What is remembered of the way to the peer, and of our own address on it.
    pub(super) fn source(&mut self) -> &mut Source {
        self.source.get_or_insert_default()
    }

    /// Adds a handshake message to the byte counters, which `wg` shows together with the data.
    pub(super) fn count_received(&self, bytes: usize) {
        self.shared.activity.count_received(bytes as u64);
        self.shared.overhead_rx.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The same for one that is sent.
    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.shared.activity.count_sent(bytes as u64);
        self.overhead_tx += bytes as u64;
    }
}
