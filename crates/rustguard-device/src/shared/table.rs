//! The snapshot on which the workers base their decisions: routes, peers, and the relay rule.

use crate::{
    relay::RelayRule,
    sharded::Sharded,
    shared::{peer::PeerShared, peer_names::PeerNames},
};
use rustguard_core::{
    flow,
    forward::Name,
    node::PeerId,
    packet::IpHead,
    routing::{Routes, Target},
};
use rustguard_crypto::x25519::PublicKey;
use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

/// A snapshot of the forwarding decision.
#[derive(Clone, Default)]
pub(crate) struct Table {
    /// Prefix → next hops, from the routing engine, and which peer may use which source.
    pub(crate) routes: Routes,
    /// Prefix → the peer that forwards sealed datagrams for the peers in it, if the engine provides this.
    pub(crate) places: Option<Routes>,
    /// Peer → its shared state.
    pub(crate) peers: Sharded<PeerId, Arc<PeerShared>>,
    /// Public key → peer, filled only for a filter, which names peers by their keys.
    pub(crate) keys: Sharded<PublicKey, PeerId>,
    /// Which packets the workers relay from peer to peer without the host.
    pub(crate) relay_rule: RelayRule,
    /// Name towards relays → peer.
    pub(crate) names: PeerNames,
    /// Our own name towards relays; `None` without a private key.
    pub(crate) own_name: Option<Name>,
    /// Our name by the second private key, while there is one.
    pub(crate) second_name: Option<Name>,
    /// Whether sealed datagrams are forwarded between peers.
    pub(crate) forward: bool,
}

impl Table {
    /// The peer that gets this packet; `None` when no peer does.
    pub(crate) fn next_hop(&self, head: &IpHead, bytes: &[u8]) -> Option<PeerId> {
        self.hop(&self.routes, head.destination, || flow::hash(bytes, head))
    }

    /// The next hop for datagrams to the peer that has this address.
    pub(crate) fn hop_to(&self, address: IpAddr, peer: PeerId) -> Option<PeerId> {
        self.hop(self.places.as_ref().unwrap_or(&self.routes), address, || peer.0.into())
    }

    fn hop(&self, routes: &Routes, address: IpAddr, flow: impl FnOnce() -> u64) -> Option<PeerId> {
        match routes.target(address)? {
            Target::Peer(peer) => Some(*peer),
            Target::Several(hops) => {
                hops.pick(flow(), |peer| self.peers.get(&peer).is_some_and(|peer| peer.usable.load(Ordering::Relaxed)))
            }
            Target::Host | Target::Nobody => None,
        }
    }
}
