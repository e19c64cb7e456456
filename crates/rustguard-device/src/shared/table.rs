//! What the workers decide by, as one snapshot: routes, peers, and what may be relayed.

use crate::{relay::RelayRule, sharded::Sharded, shared::peer::PeerShared};
use rustguard_core::{
    flow,
    node::PeerId,
    packet::IpHead,
    routing::{Routes, Target},
};
use rustguard_crypto::x25519::PublicKey;
use std::sync::{Arc, atomic::Ordering};

/// A snapshot of the forwarding decision.
#[derive(Clone, Default)]
pub(crate) struct Table {
    /// Prefix → next hops, by the routing engine, and which peer may use which source.
    pub(crate) routes: Routes,
    /// Peer → its shared state.
    pub(crate) peers: Sharded<PeerId, Arc<PeerShared>>,
    /// Public key → peer, filled only for a filter, which names peers by their keys.
    pub(crate) keys: Sharded<PublicKey, PeerId>,
    /// What the workers pass from peer to peer without the host.
    pub(crate) relay_rule: RelayRule,
}

impl Table {
    /// The peer that gets this packet; `None` when no peer does.
    pub(crate) fn next_hop(&self, head: &IpHead, bytes: &[u8]) -> Option<PeerId> {
        match self.routes.target(head.destination)? {
            Target::Peer(peer) => Some(*peer),
            Target::Several(hops) => hops.pick(flow::hash(bytes, head), |peer| {
                self.peers.get(&peer).is_some_and(|peer| peer.usable.load(Ordering::Relaxed))
            }),
            Target::Host | Target::Nobody => None,
        }
    }
}
