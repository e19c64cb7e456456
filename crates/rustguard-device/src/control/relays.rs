//! Ways through other peers: which peers have an endpoint that leads through which, and what becomes of it when the
//! relay comes and goes.

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

/// Who is behind whom.
#[derive(Default)]
pub(super) struct Relays {
    /// By the relay's key, the peers that have an endpoint through it. The relay need not exist.
    behind: HashMap<PublicKey, HashSet<PeerId>>,
    /// The peers that were removed since [`relays_removed`](Control::relays_removed).
    removed: HashSet<PeerId>,
    /// The servers of the network ([`Role::Server`]), through which members and other servers are reached too. In the
    /// order of their keys.
    servers: BTreeMap<[u8; 32], PeerId>,
    /// The peers whose role is another since [`servers_changed`](Control::servers_changed).
    pub(super) stale: HashSet<PeerId>,
}

impl Control {
    /// An endpoint leads through the peer with this key, if there is one.
    pub(super) fn find_relay(&mut self, peer: PeerId, path: usize, relay: &PublicKey) {
        self.relays.behind.entry(*relay).or_default().insert(peer);
        self.shared.has_relayed.store(true, Relaxed);
        if let Some(relay) = self.node.peer_by_key(relay).filter(|relay| *relay != peer) {
            self.found_locator(peer, path, Locator::Peer(relay));
        }
    }

    /// The peer has other endpoints, or is removed.
    pub(super) fn leave_relays(&mut self, peer: PeerId) {
        if !self.relays.behind.is_empty() {
            self.relays.behind.retain(|_, peers| {
                peers.remove(&peer);
                !peers.is_empty()
            });
        }
    }

    /// A peer was added: those behind it have a way.
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
                // Initiations went nowhere.
                self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions);
            }
        }
    }

    /// A peer has another public key: what leads through it still does.
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

    /// The ways to a member or a server through the servers of the network: in reserve, for when none of its own
    /// answers.
    pub(super) fn fallbacks(&self, peer: PeerId, direct: bool) -> Vec<PathSpec> {
        let has_relays = !direct && self.engine_host.role(peer).is_some_and(Role::has_relays);
        let others = self.relays.servers.iter().filter(|(_, server)| has_relays && **server != peer);
        let fallback =
            |key: &[u8; 32]| PathSpec::from(EndpointSpec::Peer(PublicKey(*key))).policy(PathPolicy::Fallback);
        others.map(|(key, _)| fallback(key)).collect()
    }

    /// After an update: whoever is reached through servers too has those that there are now.
    pub(super) fn servers_changed(&mut self) {
        let stale = std::mem::take(&mut self.relays.stale);
        let is_server = |peer: &&PeerId| self.engine_host.role(**peer) == Some(Role::Server);
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

    /// Peers were removed: whoever was behind one, by configuration or because it was heard there, has no way any more.
    /// One walk over the peers is enough for all that an update removes.
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
