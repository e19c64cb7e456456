//! Seals for peers behind a relay: the run is copied to a slab with room for two layers, sealed for the peer, and then
//! for the relay.
//!
//! Only runs for peers behind a relay pay for the copy. A run stays a run: its datagrams are adjacent, at an equal
//! stride.

use super::{Batch, Ecn, send};
use crate::{
    drops::DropReason,
    shared::{Shared, peer::PeerShared, table::Table, to_control::Notice},
};
use rustguard_core::{
    control_message::Kind,
    ecn,
    forward::{self, Header},
    node::PeerId,
    session::{HEADER_LEN, OVERHEAD, Sealer},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Network, Transmit};

/// Bytes before the text of a packet: the relay's transport header, the header of forwarding, the peer's transport
/// header.
const BEFORE: usize = HEADER_LEN + forward::HEADER_LEN + HEADER_LEN;
/// Bytes behind it: two tags.
const BEHIND: usize = 2 * TAG_LEN;

/// Datagrams that leave through relays. It keeps its memory between batches.
#[derive(Default)]
pub(crate) struct RelayedRuns {
    slab: Vec<u8>,
    /// The place of the next datagram.
    end: usize,
    /// The run that is sealed, and its ECN fields.
    frames: Vec<Frame>,
    ecn: Vec<u8>,
    transmits: Vec<Transmit>,
    relays: Vec<PeerId>,
}

impl Batch<'_> {
    /// Seals a run for `peer`, and then for its relay. Returns false when there is no way to the relay: the packets are
    /// dropped, and counted. Texts that `peer` was to forward, and that waited for a session with it, are dropped and
    /// counted too: they have both layers already.
    pub(super) fn seal_relayed(&mut self, sealer: &Sealer, peer: &PeerShared, relay: PeerId, frames: &[Frame]) -> bool {
        let Self { slab, table, lane, now, shared, .. } = self;
        let refused = |reason| {
            shared.dropped(peer, reason, frames.len());
            false
        };
        let (Some(relay), Some(own)) = (table.peers.get(&relay), table.own_name) else {
            return refused(DropReason::NoEndpoint);
        };
        let Some(relayed) = self.relayed.as_deref_mut() else { return refused(DropReason::ForwardNoWay) };
        let sent = |frames: &[Frame]| {
            let bytes = frames.iter().map(|frame| (frame.len + OVERHEAD) as u64).sum();
            if peer.activity.data_sent(*now, bytes) {
                shared.control.notify(Notice::Activity(peer.id));
            }
        };
        if relay.relayed_by().is_some() {
            // The relay was reached at an address when this way was chosen. The host sees this as a lost packet, and
            // the choice of ways sees data without an answer: it soon finds another relay.
            shared.dropped(peer, DropReason::ForwardNoWay, frames.len());
            sent(frames);
            return true;
        }
        relayed.copy(slab, frames);
        if relayed.frames.len() < frames.len() {
            shared.dropped(peer, DropReason::ForwardNoWay, frames.len() - relayed.frames.len());
        }
        if relayed.frames.is_empty() {
            return true;
        }
        sealer.seal(&mut relayed.slab, &relayed.frames);
        sent(&relayed.frames);
        relayed.wrap(&Header::new(peer.name(), own));
        relayed.relays.push(relay.id);
        let RelayedRuns { slab, frames, ecn, transmits, .. } = relayed;
        Batch { slab, transmits, relayed: None, parities: None, lane: *lane, table, now: *now, shared }.seal(
            relay,
            frames,
            Ecn::Given(ecn),
        )
    }
}

impl RelayedRuns {
    /// Sends the sealed datagrams, and clears the list.
    pub(crate) fn send(&mut self, network: &mut dyn Network, table: &Table, shared: &Shared) {
        if !self.transmits.is_empty() {
            let relays = self.relays.iter().filter_map(|relay| table.peers.get(relay));
            send(network, &self.slab, &self.transmits, relays.map(|relay| &**relay), shared);
        }
        self.end = 0;
        self.transmits.clear();
        self.relays.clear();
    }

    /// Copies the texts of a run, with room for both layers around each. Texts that are sealed for another peer already
    /// are left out.
    fn copy(&mut self, from: &[u8], frames: &[Frame]) {
        self.frames.clear();
        self.ecn.clear();
        for &Frame { offset, len, counter } in frames {
            let text = &from[offset..offset + len];
            if Kind::of(text) == Some(Kind::Forwarded) {
                continue;
            }
            let at = self.end + BEFORE;
            self.end = at + len + BEHIND;
            if self.slab.len() < self.end {
                self.slab.resize(self.end.next_power_of_two(), 0);
            }
            self.slab[at..at + len].copy_from_slice(text);
            self.ecn.push(ecn::of(text));
            self.frames.push(Frame { offset: at, len, counter });
        }
    }

    /// Turns the sealed run into the texts for the relay.
    fn wrap(&mut self, header: &Header) {
        let header = header.to_bytes();
        for Frame { offset, len, .. } in &mut self.frames {
            *offset -= forward::HEADER_LEN + HEADER_LEN;
            *len += forward::HEADER_LEN + OVERHEAD;
            self.slab[*offset..*offset + forward::HEADER_LEN].copy_from_slice(&header);
        }
    }
}
