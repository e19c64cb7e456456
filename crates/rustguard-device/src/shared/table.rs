//! What the workers decide by, as one snapshot: routes, peers, and what may be relayed.

use crate::{relay::RelayRule, sharded::Sharded, shared::peer::PeerShared};
use rustguard_core::{
    node::PeerId,
    packet::{self, IpHead},
    routing::{Routes, Target},
};
use rustguard_crypto::x25519::PublicKey;
use std::sync::{Arc, atomic::Ordering};

/// A snapshot of the forwarding decision.
#[derive(Clone, Default)]
pub(crate) struct Table {
    /// Prefix → where it is, as the routing engine says, and who may present which source.
    pub(crate) routes: Routes,
    /// Peer → what is shared of it.
    pub(crate) peers: Sharded<PeerId, Arc<PeerShared>>,
    /// Public key → peer, where there is a filter that may ask.
    pub(crate) keys: Sharded<PublicKey, PeerId>,
    /// What may go from peer to peer without the host.
    pub(crate) relay_rule: RelayRule,
}

impl Table {
    /// Who gets this packet; `None` when nobody does, the host included.
    pub(crate) fn next_hop(&self, head: &IpHead, bytes: &[u8]) -> Option<PeerId> {
        match self.routes.target(head.destination)? {
            Target::Peer(peer) => Some(*peer),
            Target::Several(hops) => hops.pick(packet::flow(bytes, head), |peer| {
                self.peers.get(&peer).is_some_and(|peer| peer.usable.load(Ordering::Relaxed))
            }),
            Target::Host | Target::Nobody => None,
        }
    }
}
