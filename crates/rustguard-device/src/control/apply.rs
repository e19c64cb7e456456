//! Carries out what the node decided.

use super::{Control, Line, Topic, count_received, now};
use crate::{
    binder::Binder,
    drops::DropReason,
    event::Event,
    handshakes::HandshakeDatagram,
    shared::peer::{LocationChange, PeerShared},
    waiting::Waiting,
    worker::seal,
};
use rustguard_core::{
    ecn,
    node::{Action, Event as NodeEvent, PeerId},
    routing::Signal,
    session::{HEADER_LEN, OVERHEAD, Sealer},
    wire::Message,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Network, Segments, Transmit};
use std::sync::Arc;

/// Bytes of waiting packets that are sealed and sent together.
const LOT: usize = 64 * 1024;
/// The DS field of handshake messages: AF41, as the kernel's WireGuard has it (HANDSHAKE_DSCP). That of data has no DSCP, which would
/// tell an observer what is inside.
const HANDSHAKE_DS: u8 = 0x88;

/// What is sealed.
#[derive(Clone, Copy)]
pub(super) enum Payload {
    Keepalive,
    /// A packet of the routing engine's.
    Engine,
    /// A probe, for this place and no other.
    Probe(Endpoint),
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
                    self.transmit(handled.from, 0, &datagram);
                }
            }
            Action::SetScreen(screen) => self.shared.handshakes.screen.store(screen.map(Arc::new)),
            Action::Endpoint { peer } => {
                let (Some(handled), Some(entry)) = (handled, self.peers.get(&peer)) else { return };
                count_received(&entry.shared.activity, handled.len);
                if entry.shared.seen_at(&handled.from) == LocationChange::Endpoint {
                    self.moved(peer);
                }
                self.source_learned(peer);
                self.path_heard(peer, &handled.from);
            }
            Action::AddOpener { peer, opener } => {
                let Some(entry) = self.peers.get(&peer) else { return };
                self.shared.sessions.insert(opener, Arc::clone(&entry.shared));
            }
            Action::RemoveOpener { index } => self.shared.sessions.remove(index),
            Action::SetSealer { peer, sealer } => self.set_sealer(peer, sealer),
            // What waited has left with the sealer's first counters.
            Action::Flush { peer, or_keepalive } => {
                if or_keepalive && self.sealer(peer).is_some_and(|sealer| sealer.is_unused()) {
                    self.keepalive(peer);
                }
            }
            Action::Keepalive { peer } => self.keepalive(peer),
            Action::DropStaged { peer } => {
                if let Some(entry) = self.peers.get(&peer) {
                    let dropped = entry.shared.waiting.lock().clear(&self.shared.waiting_bytes);
                    self.shared.drops.count(DropReason::StagingFull, dropped);
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
            Some(handled) if matches!(Message::parse(datagram), Some(Message::Response(_))) => {
                vec![self.answer_to(peer, handled.from)]
            }
            _ => self.initiation_endpoints(peer),
        };
        if let Some(index) = datagram.get(4..).and_then(|rest| rest.first_chunk()) {
            // Known to the workers before they can read the datagram from the TUN, should a route lead it there.
            shared.handshake_index.store(u32::from_le_bytes(*index), std::sync::atomic::Ordering::Relaxed);
        }
        for endpoint in endpoints {
            shared.activity.tx_bytes.fetch_add(datagram.len() as u64, portable_atomic::Ordering::Relaxed);
            if self.transmit(endpoint, HANDSHAKE_DS, datagram) {
                shared.forget_source();
            }
        }
    }

    /// Sends one datagram; returns true when it could not leave from the address it should have.
    pub(super) fn transmit(&mut self, to: Endpoint, ds: u8, datagram: &[u8]) -> bool {
        let len = datagram.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        let [network, ..] = &mut *self.networks else {
            // The interface is down.
            self.shared.drops.count(DropReason::SendFailed, 1);
            return false;
        };
        let sent = network.send(datagram, &[Transmit { to, segments, ds }]);
        self.shared.drops.count(DropReason::SendFailed, sent.failed);
        sent.source_lost > 0
    }

    /// Sends what waited for the session, then lets the workers have the sealer: their packets are newer.
    fn set_sealer(&mut self, peer: PeerId, sealer: Option<Arc<Sealer>>) {
        let Some(shared) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) else { return };
        // Workers with packets for this peer wait for as long: the time that sending 128 packets takes.
        let mut waiting = shared.waiting.lock();
        if let Some(sealer) = &sealer {
            self.send_waiting(&shared, sealer, &mut waiting);
        }
        shared.sealer.store(sealer);
    }

    fn send_waiting(&mut self, peer: &PeerShared, sealer: &Sealer, waiting: &mut Waiting) {
        let now = now();
        let [network, ..] = &mut *self.networks else { return };
        while !waiting.is_empty() {
            if !sealer.usable(now.instant) {
                // It was confirmed so late that it has just run out: start over with what waits.
                self.node.handshake_wanted(peer.id, now, &mut rand::rng(), &mut self.actions);
                return;
            }
            let (slab, mut frames, mut transmits) = (&mut self.scratch, Vec::new(), Vec::new());
            slab.clear();
            while slab.len() < LOT
                && let Some(packet) = waiting.pop(&self.shared.waiting_bytes)
            {
                let offset = slab.len() + HEADER_LEN;
                slab.resize(offset, 0);
                slab.extend_from_slice(&packet);
                slab.resize(offset + packet.len() + TAG_LEN, 0);
                frames.push(Frame { offset, len: packet.len(), counter: 0 });
            }
            let Some(reserved) = sealer.reserve(now.instant, frames.len()) else {
                return self.shared.drops.count(DropReason::StagingFull, frames.len());
            };
            let slab = &mut slab[..];
            seal::seal_with(sealer, &reserved, peer, slab, &mut frames, now.instant, &mut transmits, &self.shared);
            seal::send(network, slab, &transmits, std::iter::once(peer), &self.shared);
        }
    }

    fn sealer(&self, peer: PeerId) -> Option<Arc<Sealer>> {
        self.peers.get(&peer).and_then(|entry| entry.shared.sealer.load_full())
    }

    fn keepalive(&mut self, peer: PeerId) {
        if let Some(sealer) = self.sealer(peer) {
            self.seal_and_send(peer, &sealer, &[], Payload::Keepalive);
        }
    }

    /// Seals one packet (already padded) and sends it, unless the session has run out.
    pub(super) fn seal_and_send(&mut self, peer: PeerId, sealer: &Sealer, packet: &[u8], text: Payload) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let shared = Arc::clone(&entry.shared);
        let now = now();
        let active = || shared.endpoint.load().as_deref().copied();
        let Some(endpoint) = (if let Payload::Probe(to) = text { Some(to) } else { active() }) else {
            return self.shared.drops.count(DropReason::NoEndpoint, 1);
        };
        if !matches!(text, Payload::Keepalive) {
            entry.overhead_tx += (packet.len() + OVERHEAD) as u64;
        }
        let Some(reserved) = sealer.reserve(now.instant, 1) else {
            return self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
        };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
        }
        let ds = ecn::of(packet);
        let mut slab = std::mem::take(&mut self.scratch);
        slab.clear();
        slab.resize(HEADER_LEN, 0);
        slab.extend_from_slice(packet);
        slab.resize(HEADER_LEN + packet.len() + TAG_LEN, 0);
        sealer.seal(&mut slab, &[Frame { offset: HEADER_LEN, len: packet.len(), counter: reserved.first }]);
        let bytes = slab.len() as u64;
        if matches!(text, Payload::Keepalive | Payload::Probe(_)) {
            // No answer is owed; a probe has one of its own.
            shared.activity.keepalive_sent(now.instant, bytes);
        } else if shared.activity.data_sent(now.instant, bytes) {
            self.node.activity(peer, now.instant);
            self.wake_paths(peer);
        }
        if self.transmit(endpoint, ds, &slab) {
            shared.forget_source();
        }
        self.scratch = slab;
    }

    /// The peer's endpoint is another.
    pub(super) fn moved(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(public_key) = self.node.peer_config(peer).map(|config| config.public_key) else { return };
        let Some(endpoint) = entry.shared.endpoint.load().as_deref().map(|endpoint| endpoint.remote) else { return };
        let line = Line::new(entry.label(&public_key), format_args!("endpoint is {endpoint}"));
        self.tell(peer, Topic::Endpoint, line);
        self.emit(Event::PeerRoamed { peer: public_key, endpoint });
        self.tell_endpoints(peer);
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
                self.tell(*peer, Topic::Handshake, Line::new(name, format_args!("handshake complete")));
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
