//! Ways through other peers: which endpoints lead through which relay, and the handling of relays that are added and
//! removed.

use super::{Control, discovery::looks_for_direct_ways, timer::now};
use crate::{
    config::{EndpointSpec, PathSpec},
    way::Way,
};
use rustguard_core::{
    node::PeerId,
    paths::{Locator, MAX_ENDPOINTS, PathPolicy},
    routing::Role,
};
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

/// Which peers are behind which relays.
#[derive(Default)]
pub(super) struct Relays {
    /// By the relay's key, the peers that have an endpoint through it. The relay need not exist.
    behind: HashMap<PublicKey, HashSet<PeerId>>,
    /// The peers that were removed since [`relays_removed`](Control::relays_removed).
    removed: HashSet<PeerId>,
    /// The servers of the network ([`Role::Server`]), through which members and other servers are reached too. In the
    /// order of their keys.
    servers: BTreeMap<[u8; 32], PeerId>,
    /// The peers whose role has changed since [`servers_changed`](Control::servers_changed).
    pub(super) stale: HashSet<PeerId>,
}

impl Control {
    /// An endpoint leads through the peer with this key, if there is such a peer.
    pub(super) fn find_relay(&mut self, peer: PeerId, path: usize, relay: &PublicKey) {
        self.relays.behind.entry(*relay).or_default().insert(peer);
        self.shared.has_relayed.store(true, Relaxed);
        if let Some(relay) = self.node.peer_by_key(relay).filter(|relay| *relay != peer) {
            self.found_locator(peer, path, Locator::Peer(relay));
        }
    }

    /// The peer's endpoints have changed, or the peer was removed.
    pub(super) fn leave_relays(&mut self, peer: PeerId) {
        if !self.relays.behind.is_empty() {
            self.relays.behind.retain(|_, peers| {
                peers.remove(&peer);
                !peers.is_empty()
            });
        }
    }

    /// A peer was added: the peers behind it have a way now.
    pub(super) fn relay_added(&mut self, relay: &PublicKey) {
        let behind: Vec<_> = self.relays.behind.get(relay).into_iter().flatten().copied().collect();
        for peer in behind {
            let Some(entry) = self.peers.get(&peer) else { continue };
            let is_it = |spec: &EndpointSpec| matches!(spec, EndpointSpec::Peer(key) if key == relay);
            let paths: Vec<_> =
                (0..entry.endpoints.len()).filter(|path| is_it(&entry.endpoints[*path].spec.endpoint)).collect();
            let waits = !entry.shared.waiting.lock().is_empty();
            for path in paths {
                self.find_relay(peer, path, relay);
            }
            if waits {
                // The initiations so far were sent nowhere.
                self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions);
            }
        }
    }

    /// A peer has another public key: the endpoints through it stay.
    pub(super) fn relay_has_key(&mut self, before: &PublicKey, key: PublicKey) {
        let Some(behind) = self.relays.behind.remove(before) else { return };
        for peer in &behind {
            let Some(entry) = self.peers.get_mut(peer) else { continue };
            for path in &mut entry.endpoints {
                if path.spec.endpoint == EndpointSpec::Peer(*before) {
                    path.spec.endpoint = EndpointSpec::Peer(key);
                }
            }
        }
        self.relays.behind.entry(key).or_default().extend(behind);
    }

    /// The ways to a member or a server through the servers of the network. They are in reserve, for when none of its
    /// own endpoints answers.
    pub(super) fn fallbacks(&self, peer: PeerId, direct: bool) -> Vec<PathSpec> {
        let has_relays = !direct && self.engine_host.role(peer).is_some_and(Role::has_relays);
        let others = self.relays.servers.iter().filter(|(_, server)| has_relays && **server != peer);
        let fallback =
            |key: &[u8; 32]| PathSpec::from(EndpointSpec::Peer(PublicKey(*key))).policy(PathPolicy::Fallback);
        others.map(|(key, _)| fallback(key)).collect()
    }

    /// After an update: gives each peer that is reached through servers too the current servers.
    pub(super) fn servers_changed(&mut self) {
        let stale = std::mem::take(&mut self.relays.stale);
        let is_server = |peer: &&PeerId| self.engine_host.role(**peer).is_some_and(Role::is_server);
        let servers: BTreeMap<_, _> = self
            .peers
            .keys()
            .filter(is_server)
            .filter_map(|peer| Some((self.node.peer_config(*peer)?.public_key.0, *peer)))
            .collect();
        let all = servers != self.relays.servers;
        self.relays.servers = servers;
        let peers: Vec<_> = self.peers.keys().copied().filter(|peer| all || stale.contains(peer)).collect();
        for peer in peers {
            let Some(entry) = self.peers.get(&peer) else { continue };
            let own: Vec<_> = entry.configured().map(|endpoint| endpoint.spec.clone()).collect();
            let has = entry.endpoints.iter().skip(own.len()).map(|endpoint| &endpoint.spec);
            let wanted = self.fallbacks(peer, looks_for_direct_ways(entry.direct, &own));
            if !has.eq(wanted.iter().take(MAX_ENDPOINTS.saturating_sub(own.len()))) {
                self.set_endpoints(peer, own);
            }
        }
    }

    /// A peer was removed.
    pub(super) fn relay_removed(&mut self, relay: PeerId) {
        if self.shared.has_relayed.load(Relaxed) {
            self.relays.removed.insert(relay);
        }
    }

    /// Peers were removed: a peer that was behind one of them, by configuration or because it was heard there, loses
    /// this way. One walk over the peers is enough for all removals of an update.
    pub(super) fn relays_removed(&mut self) {
        let removed = std::mem::take(&mut self.relays.removed);
        if removed.is_empty() {
            return;
        }
        let peers: Vec<_> = self.peers.keys().copied().collect();
        for peer in peers {
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            if let Some(Way::Relayed(relay)) = entry.way()
                && removed.contains(&relay)
            {
                entry.shared.way.store(None);
            }
            if let Some(peer_paths) = &mut entry.paths {
                peer_paths.paths.lose_relays(|relay| removed.contains(&relay), now().instant);
                self.paths_changed(peer);
            } else if entry.way().is_none() {
                self.other_locator_at_rest(peer);
            }
        }
    }
}
