//! Carries out what the node decided.

use super::{
    Control, count_received, now,
    paths::{Configured, PeerPaths},
};
use crate::{
    binder::Binder,
    drops::DropReason,
    event::Event,
    handshakes::HandshakeDatagram,
    shared::{PeerShared, RxSession},
};
use parking_lot::Mutex;
use rustguard_core::{
    node::{Action, Event as NodeEvent, PeerId},
    routing::Signal,
    session::{HEADER_LEN, OVERHEAD, ReplayWindow, Sealer},
    staging::Staged,
    wire::Message,
};
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    x25519::PublicKey,
};
use rustguard_tun::{Endpoint, Network, Segments, Transmit};
use std::sync::Arc;

/// What control knows of a peer besides the node.
pub(super) struct Peer {
    pub(super) shared: Arc<PeerShared>,
    pub(super) name: Option<String>,
    /// As configured.
    pub(super) endpoints: Vec<Configured>,
    /// Where there are several, or the peer has shown some.
    pub(super) paths: Option<Box<PeerPaths>>,
    /// Bytes that the ends had for each other, among those sent: the routing engine's packets, probes.
    pub(super) talk_tx: u64,
    pub(super) staged: Staged,
}

/// What is sealed.
#[derive(Clone, Copy)]
pub(super) enum Text {
    Keepalive,
    /// A packet that waited for the session.
    Data,
    /// A packet of the routing engine's.
    Engine,
    /// A probe, for this place and no other.
    Probe(Endpoint),
}

impl Peer {
    /// What to call the peer in the log.
    pub(super) fn label(&self, key: &PublicKey) -> String {
        self.name.clone().unwrap_or_else(|| crate::key::abbreviate(key))
    }
}

impl<B: Binder> Control<B> {
    /// Carries out all actions, those included that come up meanwhile. `handled` is the datagram that caused them.
    pub(super) fn apply(&mut self, handled: Option<&HandshakeDatagram>) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.apply_one(action, handled);
            }
        }
    }

    fn apply_one(&mut self, action: Action, handled: Option<&HandshakeDatagram>) {
        match action {
            Action::Send { peer, datagram, attempt } => self.send_handshake(peer, &datagram, attempt, handled),
            Action::Reply { datagram } => {
                if let Some(handled) = handled {
                    self.transmit(handled.from, &datagram);
                }
            }
            Action::SetScreen(screen) => self.shared.handshakes.screen.store(screen.map(Arc::new)),
            Action::Endpoint { peer } => {
                let (Some(handled), Some(entry)) = (handled, self.peers.get(&peer)) else { return };
                count_received(&entry.shared.activity, handled.len);
                if entry.shared.seen_at(&handled.from) {
                    self.moved(peer);
                }
                self.path_heard(peer, &handled.from);
            }
            Action::AddOpener { peer, opener } => {
                let Some(entry) = self.peers.get(&peer) else { return };
                let index = opener.index();
                let session = RxSession {
                    opener: *opener,
                    replay: Mutex::new(ReplayWindow::default()),
                    peer: Arc::clone(&entry.shared),
                };
                self.shared.sessions.pin().insert(index, Arc::new(session));
            }
            Action::RemoveOpener { index } => {
                self.shared.sessions.pin().remove(&index);
            }
            Action::SetSealer { peer, sealer } => {
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.sealer.store(sealer);
                }
            }
            Action::Flush { peer, or_keepalive } => self.flush(peer, or_keepalive),
            Action::Keepalive { peer } => self.keepalive(peer),
            Action::DropStaged { peer } => {
                if let Some(entry) = self.peers.get_mut(&peer) {
                    self.shared.drops.count(DropReason::StagingFull, entry.staged.clear());
                }
            }
            Action::Event(event) => self.report(&event),
        }
    }

    /// Sends an initiation to the peer's endpoint, wherever that is now, or to all where there are several and none is known to
    /// work: the peer answers the first that comes, and takes the others for replays. A response goes where its
    /// initiation came from. Where no endpoint is known, it is not resolved yet, or the peer has to speak first.
    fn send_handshake(&mut self, peer: PeerId, datagram: &[u8], attempt: u32, handled: Option<&HandshakeDatagram>) {
        if attempt > 0 {
            // No answer: perhaps our address has changed, perhaps theirs.
            if let Some(entry) = self.peers.get(&peer) {
                entry.shared.forget_source();
            }
            self.resolve_again(peer, attempt);
        }
        let Some(shared) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) else { return };
        let endpoints = match handled {
            Some(handled) if matches!(Message::parse(datagram), Some(Message::Response(_))) => vec![handled.from],
            _ => self.initiation_endpoints(peer),
        };
        if let Some(index) = datagram.get(4..).and_then(|rest| rest.first_chunk()) {
            // Known to the workers before they can read the datagram from the TUN, should a route lead it there.
            shared.calling.store(u32::from_le_bytes(*index), std::sync::atomic::Ordering::Relaxed);
        }
        for endpoint in endpoints {
            shared.activity.tx_bytes.fetch_add(datagram.len() as u64, portable_atomic::Ordering::Relaxed);
            if self.transmit(endpoint, datagram) {
                shared.forget_source();
            }
        }
    }

    /// Sends one datagram; returns true when it could not leave from the address it should have.
    pub(super) fn transmit(&mut self, to: Endpoint, datagram: &[u8]) -> bool {
        let len = datagram.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        let [network, ..] = &mut *self.networks else { return false };
        let sent = network.send(datagram, &[Transmit { to, segments }]);
        self.shared.drops.count(DropReason::SendFailed, sent.failed);
        sent.source_lost > 0
    }

    /// Sends what waited for the session; a keepalive if nothing did and one is wanted.
    fn flush(&mut self, peer: PeerId, or_keepalive: bool) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if entry.staged.is_empty() {
            if or_keepalive {
                self.keepalive(peer);
            }
            return;
        }
        let Some(sealer) = entry.shared.sealer.load_full() else { return };
        while let Some(packet) = self.peers.get_mut(&peer).and_then(|entry| entry.staged.pop()) {
            if !self.seal_and_send(peer, &sealer, &packet) {
                // The session has just run out: start over with the packet in hand.
                self.stage(peer, packet);
                return;
            }
        }
    }

    fn keepalive(&mut self, peer: PeerId) {
        if let Some(sealer) = self.peers.get(&peer).and_then(|entry| entry.shared.sealer.load_full()) {
            self.seal_and_send(peer, &sealer, &[]);
        }
    }

    /// Seals one packet (already padded) and sends it; false when the session has run out.
    pub(super) fn seal_and_send(&mut self, peer: PeerId, sealer: &Sealer, packet: &[u8]) -> bool {
        self.seal_and_send_to(peer, sealer, packet, if packet.is_empty() { Text::Keepalive } else { Text::Data })
    }

    /// As [`seal_and_send`](Self::seal_and_send), for any text.
    pub(super) fn seal_and_send_to(&mut self, peer: PeerId, sealer: &Sealer, packet: &[u8], text: Text) -> bool {
        let Some(entry) = self.peers.get_mut(&peer) else { return true };
        let shared = Arc::clone(&entry.shared);
        let now = now();
        let active = || shared.endpoint.load().as_deref().copied();
        let Some(endpoint) = (if let Text::Probe(to) = text { Some(to) } else { active() }) else {
            self.shared.drops.count(DropReason::NoEndpoint, 1);
            return true;
        };
        if !matches!(text, Text::Keepalive | Text::Data) {
            entry.talk_tx += (packet.len() + OVERHEAD) as u64;
        }
        let Some(reserved) = sealer.reserve(now.instant, 1) else {
            self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
            return false;
        };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
        }
        let mut slab = std::mem::take(&mut self.scratch);
        slab.clear();
        slab.resize(HEADER_LEN, 0);
        slab.extend_from_slice(packet);
        slab.resize(HEADER_LEN + packet.len() + TAG_LEN, 0);
        sealer.seal(&mut slab, &[Frame { offset: HEADER_LEN, len: packet.len(), counter: reserved.first }]);
        let bytes = slab.len() as u64;
        if matches!(text, Text::Keepalive | Text::Probe(_)) {
            // No answer is owed; a probe has one of its own.
            shared.activity.keepalive_sent(now.instant, bytes);
        } else if shared.activity.data_sent(now.instant, bytes) {
            self.node.activity(peer, now.instant);
            self.wake_paths(peer);
        }
        if self.transmit(endpoint, &slab) {
            shared.forget_source();
        }
        self.scratch = slab;
        true
    }

    /// The peer's endpoint is another.
    pub(super) fn moved(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(public_key) = self.node.peer_config(peer).map(|config| config.public_key) else { return };
        let Some(endpoint) = entry.shared.endpoint.load().as_deref().map(|endpoint| endpoint.remote) else { return };
        tracing::info!(peer = entry.label(&public_key), "endpoint is {endpoint}");
        self.emit(Event::PeerRoamed { peer: public_key, endpoint });
    }

    /// Translates the node's events, which speak of ids, for embedders, who know keys.
    fn report(&mut self, event: &NodeEvent) {
        let (NodeEvent::HandshakeComplete { peer, .. }
        | NodeEvent::HandshakeFailed { peer }
        | NodeEvent::SessionExpired { peer }) = event;
        match *event {
            NodeEvent::HandshakeComplete { peer, took } => {
                self.paths_established(peer);
                self.engine_signal(peer, Signal::HandshakeComplete);
                if let Some(took) = took {
                    self.engine_signal(peer, Signal::RoundTrip(took));
                }
            }
            NodeEvent::HandshakeFailed { peer } => self.engine_signal(peer, Signal::HandshakeFailed),
            NodeEvent::SessionExpired { .. } => {}
        }
        let Some(entry) = self.peers.get(peer) else { return };
        let Some(config) = self.node.peer_config(*peer) else { return };
        let key = config.public_key;
        let name = entry.label(&key);
        match *event {
            NodeEvent::HandshakeComplete { took, .. } => {
                tracing::info!(peer = name, "handshake complete");
                self.emit(Event::HandshakeComplete { peer: key, took });
            }
            NodeEvent::HandshakeFailed { .. } => {
                tracing::warn!(peer = name, "no answer to handshake initiations for 90 s");
                self.emit(Event::HandshakeFailed { peer: key });
            }
            NodeEvent::SessionExpired { .. } => {
                tracing::info!(peer = name, "session keys erased");
                self.emit(Event::SessionExpired { peer: key });
            }
        }
    }
}
