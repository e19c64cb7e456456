//! Packets that control itself sends: packets that waited for a session, keepalives, probes, and the routing engine's
//! packets.

use super::{Control, timer::now};
use crate::{
    drops::DropReason,
    seal::{self, Batch, Ecn, relayed::RelayedRuns},
    shared::peer::PeerShared,
    texts::Text,
    waiting::Waiting,
    way::{Sender, Way},
};
use rustguard_core::{
    ecn,
    forward::Header,
    node::PeerId,
    paths::{Address, Locator, OPENING_HOPS},
    session::{HEADER_LEN, OVERHEAD, Sealer},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Segments, Sent, Transmit};
use std::sync::{Arc, atomic::Ordering};

/// The number of bytes of waiting packets that are sealed and sent together.
const LOT: usize = 64 * 1024;

/// The kind of packet to seal.
#[derive(Clone, Copy)]
pub(super) enum Payload {
    Keepalive,
    /// A packet of the routing engine.
    Engine,
    /// A ping, which counts as data: somebody asked for it, and waits for the answer.
    Ping,
    /// A text of the embedder's protocol, which counts as data.
    Text,
    /// A probe, or candidates, which go only this way.
    Probe(Way),
    /// A probe that only opens the routers on our side.
    Opening(Address),
    /// A message of another peer's session that the relay forwards, with the DS field of its datagram.
    Forwarded(u8),
}

impl Control {
    /// Sends one datagram.
    pub(super) fn transmit(&mut self, to: Endpoint, ds: u8, datagram: &[u8]) -> Sent {
        let len = datagram.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        let Some(network) = self.sockets.first() else {
            // The interface is down.
            self.shared.drops.count(DropReason::SendFailed, 1);
            return Sent { failed: 1, ..Sent::default() };
        };
        let sent = network.send(datagram, &[Transmit { to, segments, ds }]);
        self.shared.drops.count(DropReason::SendFailed, sent.failed);
        sent
    }

    /// Sends one datagram that opens the routers on our side for packets from `to`, and gets no further.
    fn open_way(&mut self, to: Endpoint, datagram: &[u8]) {
        // Without it, the peer's probes may find our router closed until later probes of ours open it.
        let sent = self.sockets.first().map(|network| network.send_near(datagram, to, OPENING_HOPS));
        self.shared.drops.count(DropReason::SendFailed, sent.map_or(1, |sent| sent.failed));
    }

    /// Sends a handshake message to the source of the message that it answers.
    pub(super) fn reply(&mut self, to: Sender, datagram: &[u8]) {
        match to {
            Sender::Direct(endpoint) => {
                self.transmit(endpoint, 0, datagram);
            }
            Sender::Relayed { relay, peer } => {
                if let Some(peer) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) {
                    self.transmit_to(&peer, Way::Relayed(relay), 0, datagram);
                }
            }
        }
    }

    /// Sends a message of a peer's session by this way. Returns whether the message has left, or waits for a session
    /// with the relay.
    pub(super) fn transmit_to(&mut self, peer: &PeerShared, way: Way, ds: u8, datagram: &[u8]) -> bool {
        match way {
            Way::Direct(endpoint) => {
                let sent = self.transmit(endpoint, ds, datagram);
                if sent.source_lost > 0 {
                    peer.forget_source();
                }
                sent.sent > 0
            }
            Way::Relayed(relay) => self.transmit_relayed(peer, relay, ds, datagram),
        }
    }

    /// Gives a message of a peer's session to the relay. Without a session with the relay, the message waits for one,
    /// as packets do.
    fn transmit_relayed(&mut self, peer: &PeerShared, relay: PeerId, ds: u8, datagram: &[u8]) -> bool {
        let (Some(relay), Some(own)) =
            (self.peers.get(&relay).map(|entry| Arc::clone(&entry.shared)), self.published.own_name)
        else {
            self.shared.dropped(peer, DropReason::NoEndpoint, 1);
            return false;
        };
        if relay.relayed_by().is_some() {
            self.shared.dropped(peer, DropReason::ForwardNoWay, 1);
            // A direct way to the relay may exist by now, and is needed.
            self.paths_asked(relay.id);
            return false;
        }
        let text = [&Header::new(peer.name(), own).to_bytes()[..], datagram].concat();
        if let Some(sealer) = relay.sealer.load_full().filter(|sealer| sealer.usable(now().instant)) {
            self.seal_and_send(relay.id, &sealer, &text, Payload::Forwarded(ds));
            return true;
        }
        if relay.way.load().is_none() && !relay.has_configured_endpoint.load(Ordering::Relaxed) {
            self.shared.dropped(peer, DropReason::NoEndpoint, 1);
            return false;
        }
        let dropped = relay.waiting.lock().push(&text, &self.shared.waiting_bytes);
        self.shared.dropped(&relay, DropReason::StagingFull, dropped);
        self.node.handshake_wanted(relay.id, now(), &mut rand::rng(), &mut self.actions);
        true
    }

    /// Sends a text of the embedder's protocol. Without a session with the peer, the text waits for one, as packets do.
    pub(super) fn say(&mut self, text: &Text) {
        let peer = self.node.peer_by_key(&text.peer).and_then(|peer| self.peers.get(&peer));
        let Some(peer) = peer.map(|entry| Arc::clone(&entry.shared)) else { return };
        if !self.shared.own_protocol.as_ref().is_some_and(|own| own.recognises(&text.bytes)) {
            // The other end would take it for another kind of message.
            return self.shared.dropped(&peer, DropReason::NotIp, 1);
        }
        if let Some(sealer) = peer.sealer.load_full().filter(|sealer| sealer.usable(now().instant)) {
            return self.seal_and_send(peer.id, &sealer, &text.bytes, Payload::Text);
        }
        if peer.way.load().is_none() && !peer.has_configured_endpoint.load(Ordering::Relaxed) {
            return self.shared.dropped(&peer, DropReason::NoEndpoint, 1);
        }
        let dropped = peer.waiting.lock().push(&text.bytes, &self.shared.waiting_bytes);
        self.shared.dropped(&peer, DropReason::StagingFull, dropped);
        self.node.handshake_wanted(peer.id, now(), &mut rand::rng(), &mut self.actions);
    }

    /// Sends the packets that waited for the session, then gives the workers the sealer: their packets are newer.
    pub(super) fn set_sealer(&mut self, peer: PeerId, sealer: Option<Arc<Sealer>>) {
        let Some(shared) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) else { return };
        // Workers with packets for this peer wait meanwhile: at most for the time that sending 128 packets takes.
        let mut waiting = shared.waiting.lock();
        if let Some(sealer) = &sealer {
            self.send_waiting(&shared, sealer, &mut waiting);
        }
        waiting.next = None;
        shared.sealer.store(sealer);
        drop(waiting);
        self.lanes_session(peer);
        self.offer_parities(peer);
        self.send_pings(peer);
    }

    fn send_waiting(&mut self, peer: &PeerShared, sealer: &Sealer, waiting: &mut Waiting) {
        let now = now();
        let Some(network) = self.sockets.first() else { return };
        let mut relayed = RelayedRuns::default();
        while !waiting.is_empty() {
            if !sealer.usable(now.instant) {
                // The session was confirmed so late that it has just expired: the packets wait for another handshake.
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
                return self.shared.dropped(peer, DropReason::StagingFull, frames.len());
            };
            let table = self.shared.table.load();
            Batch {
                slab: &mut slab[..],
                transmits: &mut transmits,
                relayed: Some(&mut relayed),
                parities: None,
                lane: None,
                table: &table,
                now: now.instant,
                shared: &self.shared,
            }
            .seal_with(sealer, &reserved, peer, &mut frames, Ecn::Packets);
            seal::send(network, slab, &transmits, std::iter::once(peer), &self.shared);
            relayed.send(network, &table, &self.shared);
        }
    }

    pub(super) fn sealer(&self, peer: PeerId) -> Option<Arc<Sealer>> {
        self.peers.get(&peer).and_then(|entry| entry.shared.sealer.load_full())
    }

    /// Sends a keepalive in the live session. Without one, a keepalive is no reason for a handshake.
    pub(super) fn keepalive(&mut self, peer: PeerId) {
        if let Some(sealer) = self.sealer(peer).filter(|sealer| sealer.usable(now().instant)) {
            self.seal_and_send(peer, &sealer, &[], Payload::Keepalive);
        }
    }

    /// Seals one packet (already padded) and sends it, unless the session has run out.
    pub(super) fn seal_and_send(&mut self, peer: PeerId, sealer: &Sealer, packet: &[u8], text: Payload) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let shared = Arc::clone(&entry.shared);
        let now = now();
        let way = match text {
            Payload::Probe(way) => Some(way),
            Payload::Opening(to) => Some(Locator::from(to).into()),
            Payload::Forwarded(_) => shared.endpoint().map(Way::Direct),
            Payload::Keepalive | Payload::Engine | Payload::Ping | Payload::Text => entry.way(),
        };
        let Some(way) = way else {
            return self.shared.dropped(&shared, DropReason::NoEndpoint, 1);
        };
        if matches!(text, Payload::Engine | Payload::Probe(_) | Payload::Opening(_)) {
            entry.overhead_tx += (packet.len() + OVERHEAD) as u64;
        }
        let Some(reserved) = sealer.reserve(now.instant, 1) else {
            return self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
        };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, &mut rand::rng(), &mut self.actions);
        }
        let ds = if let Payload::Forwarded(ds) = text { ds } else { ecn::of(packet) };
        let mut slab = std::mem::take(&mut self.scratch);
        slab.clear();
        slab.resize(HEADER_LEN, 0);
        slab.extend_from_slice(packet);
        slab.resize(HEADER_LEN + packet.len() + TAG_LEN, 0);
        sealer.seal(&mut slab, &[Frame { offset: HEADER_LEN, len: packet.len(), counter: reserved.first }]);
        let bytes = slab.len() as u64;
        if matches!(text, Payload::Keepalive | Payload::Probe(_) | Payload::Opening(_)) {
            // WireGuard expects no answer to these; a probe has an answer of its own.
            shared.activity.keepalive_sent(now.instant, bytes);
        } else if shared.activity.data_sent(now.instant, bytes) {
            self.active(peer);
        }
        match (text, way) {
            (Payload::Opening(_), Way::Direct(to)) => self.open_way(to, &slab),
            _ => drop(self.transmit_to(&shared, way, ds, &slab)),
        }
        self.scratch = slab;
    }
}
