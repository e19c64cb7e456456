//! Changes to the configuration: peers, keys, port and mark, and the table that the workers get.

use super::{Control, peer::Peer, timer::now};
use crate::{
    config::{AllowedIpChange, Change, PeerUpdate, Update, UpdateError},
    drops::DropReason,
    event::Event,
    ping::PingError,
    shared::{peer::PeerShared, table::Table},
};
use rustguard_core::{
    forward::Name,
    node::{AddPeerError, PeerConfig, PeerId},
    routing::RouteTable,
};
use rustguard_crypto::x25519::PublicKey;
use std::sync::Arc;

impl Control {
    /// Applies an update. Steps that the system may refuse come first, so that a refusal leaves everything else
    /// unchanged.
    pub(super) fn update(&mut self, update: Update) -> Result<(), UpdateError> {
        if let Some(port) = update.listen_port
            && self.sockets.listen(port, update.fwmark.unwrap_or(self.sockets.fwmark()))?
        {
            self.rebound();
        }
        if let Some(mark) = update.fwmark.filter(|&mark| mark != self.sockets.fwmark()) {
            self.sockets.set_fwmark(mark)?;
            self.tell_mark();
        }
        if update.replace_peers {
            let all: Vec<_> = self.node.peers().collect();
            for peer in all {
                self.remove(peer);
            }
        }
        if !update.private_key.is_keep()
            && let Some(own) = self.node.set_private_key(update.private_key.into_value(), &mut self.actions)
        {
            tracing::warn!("removed the peer that has our own public key");
            self.forget(own);
        }
        if !update.second_private_key.is_keep() {
            let second = update.second_private_key.into_value();
            // A key that others have too is no address here: datagrams are forwarded to the node that is known by it.
            let own = second.as_ref().filter(|second| second.initiates);
            let name = own.map(|second| Name::of(&second.private_key.public_key()));
            self.published.second_name = name;
            let initiates = second.as_ref().is_some_and(|second| second.initiates);
            let (key, preshared_keys) =
                second.map_or((None, Vec::new()), |second| (Some(second.private_key), second.preshared_keys));
            let preshared_keys = preshared_keys.iter().map(|(peer, key)| (*peer, *key.as_bytes()));
            self.node.set_second_private_key(key, initiates, preshared_keys, &mut self.actions);
        }
        if let Some(endpoints) = update.public_endpoints {
            self.own_addresses.tell(endpoints, self.ports());
        }
        if let Some(on) = update.port_mapping {
            self.own_addresses.set_port_mapping(on, self.ports());
        }
        self.published.own_name = self.node.public_key().map(|key| Name::of(&key));
        if let Some(forward) = update.forward {
            self.published.forward = forward;
        }
        if let Some(prefixes) = &update.pools {
            self.set_pools(prefixes);
        }
        for peer in update.peers {
            self.update_peer(peer);
        }
        self.servers_changed();
        if let Some(prefixes) = &update.announce {
            self.announce(prefixes);
        }
        self.relays_removed();
        self.publish();
        self.apply(None);
        Ok(())
    }

    /// There are new sockets: the kernel chooses our addresses anew. Peers with a session are told the port at once,
    /// because a peer that only answers, or waits for this side, would send to the old port for ever.
    fn rebound(&mut self) {
        self.shared.ports.set(self.sockets.port(), &self.sockets.other_ports());
        self.tell_mark();
        let peers: Vec<_> = self.peers.keys().copied().collect();
        for peer in peers {
            self.lanes_rebound(peer);
            if let Some(entry) = self.peers.get(&peer) {
                entry.shared.forget_local();
            }
            self.keepalive(peer);
        }
        self.own_candidates_changed();
        self.look_at_own_addresses();
    }

    /// The interface was set down: the port is closed, and all sessions, handshakes and timers end.
    pub(super) fn stop(&mut self) {
        if self.sockets.close() {
            tracing::info!("the interface was set down: the UDP port is closed, and sessions end");
            self.node.stop(&mut self.actions);
            self.links_stop();
            self.pings.end(|_| true, PingError::Down);
            self.want_own_addresses();
        }
    }

    /// The interface was set up again: the port is bound, and peers that had a session or have persistent keepalive are
    /// told.
    pub(super) fn resume(&mut self) {
        match self.sockets.reopen() {
            Ok(false) if self.node.is_stopped() => self.node.resume(now(), &mut self.actions),
            Ok(false) => {}
            Ok(true) => {
                self.rebound();
                self.want_own_addresses();
                tracing::info!("the interface was set up: listening on UDP port {}", self.sockets.port());
                self.node.resume(now(), &mut self.actions);
            }
            Err(error) => tracing::error!(
                "{error}; choose another (wg set … listen-port), and set the interface down and up again"
            ),
        }
    }

    fn update_peer(&mut self, update: PeerUpdate) {
        let known = self.node.peer_by_key(&update.public_key);
        if update.remove {
            if let Some(peer) = known {
                self.remove(peer);
            }
            return;
        }
        if let (Some(peer), Some(key)) = (known, update.new_public_key) {
            self.set_key(peer, key);
        }
        let peer = match known {
            Some(peer) => peer,
            None if update.update_only => return,
            None => match self.add(&update) {
                Some(peer) => peer,
                None => return,
            },
        };
        if known.is_some() && !update.preshared_key.is_keep() {
            self.node.set_preshared_key(peer, preshared_key(&update));
        }
        if let Some(key) = &update.second_preshared_key {
            self.node.set_second_preshared_key(peer, *key.as_bytes());
        }
        if update.replace_allowed_ips {
            self.allowed.remove_peer(peer);
        }
        for &change in &update.allowed_ips {
            match change {
                AllowedIpChange::Remove(net) => self.allowed.remove(net, peer),
                AllowedIpChange::Add(net) => {
                    if let Some(before) = self.allowed.insert(net, peer) {
                        self.set_own_address(before);
                        self.engine_peer(before);
                    }
                }
            }
        }
        if (update.replace_allowed_ips || !update.allowed_ips.is_empty())
            && let Some(entry) = self.peers.get(&peer)
        {
            entry.shared.refused_source.forget();
        }
        if let Some(role) = update.role
            && self.engine_host.role(peer) != Some(role)
        {
            self.engine_host.set_role(peer, role);
            self.relays.stale.insert(peer);
        }
        if known.is_none() || update.replace_allowed_ips || !update.allowed_ips.is_empty() || update.role.is_some() {
            self.set_own_address(peer);
            self.engine_peer(peer);
        }
        if let Some(name) = update.name
            && let Some(entry) = self.peers.get_mut(&peer)
        {
            entry.name = Some(name).filter(|name| !name.is_empty());
        }
        let before = self.peers.get(&peer).and_then(|entry| entry.direct);
        let direct = update.direct.or(before);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.direct = direct;
        }
        if !update.endpoints.is_empty() || update.replace_endpoints {
            self.set_endpoints(peer, update.endpoints);
        } else if direct != before
            && let Some(entry) = self.peers.get(&peer)
        {
            let same = entry.configured().map(|path| path.spec.clone()).collect();
            self.set_endpoints(peer, same);
        }
        match update.parity {
            Change::Keep => {}
            Change::Set(size) => self.set_parity(peer, Some(size)),
            Change::Remove => self.set_parity(peer, None),
        }
        if known.is_some() && !update.persistent_keepalive.is_keep() {
            let interval = update.persistent_keepalive.into_value();
            self.node.set_persistent_keepalive(peer, interval, now(), &mut rand::rng(), &mut self.actions);
        }
    }

    /// Tells the workers which address is the peer's own: the first of its allowed IPs.
    fn set_own_address(&self, peer: PeerId) {
        if let Some(entry) = self.peers.get(&peer) {
            let nets = self.allowed.of(peer);
            // A router's allowed IPs also contain networks that it may carry.
            let own = nets.iter().find(|net| net.prefix_len() == net.max_prefix_len()).or(nets.first());
            let first = own.map(|net| Arc::new(net.addr()));
            entry.shared.own_address.store(first);
        }
    }

    /// Adds a peer; `None` when its key is our own, which the kernel's WireGuard ignores as well.
    fn add(&mut self, update: &PeerUpdate) -> Option<PeerId> {
        let config = PeerConfig::new(update.public_key)
            .with_preshared_key(preshared_key(update))
            .with_persistent_keepalive(update.persistent_keepalive.into_value());
        let peer = match self.node.add_peer(config) {
            Ok(peer) | Err(AddPeerError::Exists(peer)) => peer,
            Err(error) => {
                tracing::warn!("a peer was left out: {error}");
                return None;
            }
        };
        let activity = self.node.activity_of(peer).expect("the node has just added this peer");
        let entry = Box::new(Peer {
            shared: Arc::new(PeerShared::new(peer, update.public_key, activity)),
            name: None,
            endpoints: Vec::new(),
            direct: None,
            observer: None,
            paths: None,
            told_way: None,
            path_mtu: None,
            parities: None,
            lanes: None,
            race: None,
            overhead_tx: 0,
            handshakes: 0,
            source: None,
            old_name: None,
            link: Default::default(),
            look: None,
            shown: Default::default(),
        });
        self.published.peers.insert(peer, Arc::clone(&entry.shared));
        let name = entry.shared.name();
        if self.published.own_name == Some(name) || !self.published.names.add(name, peer) {
            tracing::warn!(
                "nothing can be forwarded to or from the peer {}: another key has the same name towards relays; make another \
                 key for one of them",
                crate::key::abbreviate(&update.public_key)
            );
        }
        if self.shared.filter.is_some() {
            self.published.keys.insert(update.public_key, peer);
        }
        self.peers.insert(peer, entry);
        self.emit(Event::PeerAdded { peer: update.public_key });
        self.relay_added(&update.public_key);
        Some(peer)
    }

    /// A peer has another public key. Its sessions, its way and its allowed IPs stay.
    fn set_key(&mut self, peer: PeerId, key: PublicKey) {
        let Some(before) = self.node.peer_config(peer).map(|config| config.public_key).filter(|before| *before != key)
        else {
            return;
        };
        if let Err(error) = self.node.set_peer_key(peer, key) {
            tracing::warn!("a peer keeps its public key: {error}");
            return;
        }
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let old = entry.shared.name();
        entry.shared.set_public_key(key);
        let (name, older) = (entry.shared.name(), entry.old_name.replace(old));
        if let Some(older) = older {
            self.published.names.remove(&older, peer);
        }
        self.published.names.add(name, peer);
        if self.shared.filter.is_some() {
            self.published.keys.remove(&before);
            self.published.keys.insert(key, peer);
        }
        self.relay_has_key(&before, key);
        self.emit(Event::PeerKeyChanged { before, peer: key });
    }

    /// Removes a peer with its sessions, handshakes and allowed IPs.
    fn remove(&mut self, peer: PeerId) {
        let public_key = self.node.peer_config(peer).map(|config| config.public_key);
        self.node.remove_peer(peer, &mut self.actions);
        self.forget(peer);
        if let Some(peer) = public_key {
            self.emit(Event::PeerRemoved { peer });
        }
    }

    /// Drops what control keeps of a peer that the node has removed.
    fn forget(&mut self, peer: PeerId) {
        self.allowed.remove_peer(peer);
        self.engine_peer_removed(peer);
        if let Some(entry) = self.peers.remove(&peer) {
            self.published.peers.remove(&peer);
            self.published.keys.remove(&entry.shared.public_key());
            self.published.names.remove(&entry.shared.name(), peer);
            if let Some(old) = &entry.old_name {
                self.published.names.remove(old, peer);
            }
            self.leave_relays(peer);
            self.relay_removed(peer);
            // A worker that holds the old table for the rest of its batch must not seal any more, nor keep packets.
            let mut waiting = entry.shared.waiting.lock();
            entry.shared.sealer.store(None);
            entry.shared.lanes.store(None);
            self.shared.drops.count(DropReason::NoSession, waiting.close(&self.shared.waiting_bytes));
            drop(waiting);
            self.forget_link(peer, entry.look);
            self.forget_searching(peer);
            self.tasks.forget(peer);
            self.pings.end(|ping| ping.peer == peer, PingError::UnknownPeer);
            self.tell_endpoints(peer);
            self.peer_log.forget(peer);
        }
    }

    /// Gives the workers a new snapshot, which shares the peers that did not change. Then sends the routing engine's
    /// packets that had to wait for the snapshot.
    pub(super) fn publish(&mut self) {
        self.tunnel_prefixes_changed();
        let started = now().instant;
        let (routes, relay_rule) = (self.engine_host.table.snapshot(), self.relay.rule());
        let places = self.engine_host.places.as_ref().map(RouteTable::snapshot);
        self.shared.table.store(Arc::new(Table { routes, places, relay_rule, ..self.published.clone() }));
        self.engine_published(started);
    }
}

/// The new preshared key, all zeros where it is removed.
fn preshared_key(update: &PeerUpdate) -> [u8; 32] {
    match &update.preshared_key {
        Change::Set(key) => *key.as_bytes(),
        Change::Keep | Change::Remove => [0; 32],
    }
}
