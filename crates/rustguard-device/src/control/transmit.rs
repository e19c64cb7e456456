//! What control sends itself: packets that waited for a session, keepalives, probes, and the routing engine's packets.

use super::{Control, timer::now};
use crate::{
    binder::Binder,
    drops::DropReason,
    shared::peer::PeerShared,
    waiting::Waiting,
    worker::seal::{self, Batch},
};
use rustguard_core::{
    ecn,
    node::PeerId,
    session::{HEADER_LEN, OVERHEAD, Sealer},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Network, Segments, Sent, Transmit};
use std::sync::Arc;

/// Bytes of waiting packets that are sealed and sent together.
const LOT: usize = 64 * 1024;

/// What kind of packet is sealed.
#[derive(Clone, Copy)]
pub(super) enum Payload {
    Keepalive,
    /// A packet of the routing engine's.
    Engine,
    /// A ping, which counts as data: somebody asked for it, and waits for the answer.
    Ping,
    /// Where this node may be reached, or the answer to the peer's word on that.
    Candidates,
    /// A probe, for this endpoint and no other.
    Probe(Endpoint),
}

impl<B: Binder> Control<B> {
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

    /// Sends the packets that waited for the session, then gives the workers the sealer: their packets are newer.
    pub(super) fn set_sealer(&mut self, peer: PeerId, sealer: Option<Arc<Sealer>>) {
        let Some(shared) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) else { return };
        // Workers with packets for this peer wait for as long: the time that sending 128 packets takes.
        let mut waiting = shared.waiting.lock();
        if let Some(sealer) = &sealer {
            self.send_waiting(&shared, sealer, &mut waiting);
        }
        shared.sealer.store(sealer);
        drop(waiting);
        self.send_pings(peer);
    }

    fn send_waiting(&mut self, peer: &PeerShared, sealer: &Sealer, waiting: &mut Waiting) {
        let now = now();
        let Some(network) = self.sockets.first() else { return };
        while !waiting.is_empty() {
            if !sealer.usable(now.instant) {
                // It was confirmed so late that it has just expired: the packets wait for another handshake.
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
            Batch { slab: &mut slab[..], transmits: &mut transmits, now: now.instant, shared: &self.shared }.seal_with(
                sealer,
                &reserved,
                peer,
                &mut frames,
            );
            seal::send(network, slab, &transmits, std::iter::once(peer), &self.shared);
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
        let active = || shared.endpoint.load().as_deref().copied();
        let Some(endpoint) = (if let Payload::Probe(to) = text { Some(to) } else { active() }) else {
            return self.shared.dropped(&shared, DropReason::NoEndpoint, 1);
        };
        if !matches!(text, Payload::Keepalive | Payload::Ping) {
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
        if matches!(text, Payload::Keepalive | Payload::Candidates | Payload::Probe(_)) {
            // WireGuard expects no answer to these; a probe has its own.
            shared.activity.keepalive_sent(now.instant, bytes);
        } else if shared.activity.data_sent(now.instant, bytes) {
            self.active(peer);
        }
        if self.transmit(endpoint, ds, &slab).source_lost > 0 {
            shared.forget_source();
        }
        self.scratch = slab;
    }
}
