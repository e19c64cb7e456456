//! Parities that are sealed between the packets of a run. See [`rustguard_core::fec`].
//!
//! Only runs for peers that have accepted parities pay for this: they are copied to a slab with room for the parities.
//! Each parity lies directly behind its group, so that a run stays a run.

use super::{Batch, Ecn, extend, send};
use crate::{
    fec::Outgoing,
    shared::{Shared, peer::PeerShared, table::Table, to_control::Notice},
};
use rustguard_core::{
    node::PeerId,
    session::{HEADER_LEN, Sealer},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Network, Transmit};

/// Datagrams with parities between them. It keeps its memory between batches, and has none before the first parity.
#[derive(Default)]
pub(crate) struct Outbound {
    slab: Vec<u8>,
    /// The place of the next datagram.
    end: usize,
    frames: Vec<Frame>,
    transmits: Vec<Transmit>,
    peers: Vec<PeerId>,
}

impl Batch<'_> {
    /// Seals a run, with parities for the groups that it completes.
    pub(super) fn seal_with_parities(
        &mut self,
        sealer: &Sealer,
        peer: &PeerShared,
        to: Endpoint,
        frames: &[Frame],
        ecn: Ecn<'_>,
        outgoing: &Outgoing,
    ) {
        let Self { slab, parities: Some(out), now, shared, .. } = self else { return };
        out.frames.clear();
        let (mut bytes, mut parities) = (0, 0);
        let mut group = outgoing.group.lock();
        for (n, &Frame { offset, len, counter }) in frames.iter().enumerate() {
            let text = &slab[offset..offset + len];
            let ds = ecn.of_frame(n, text);
            bytes += out.append(to, ds, counter, text);
            if let Some(parity) = group.add(counter, text, *now) {
                bytes += out.append(to, ds, parity.counter, parity.text);
                parities += 1;
            }
        }
        drop(group);
        sealer.seal(&mut out.slab, &out.frames);
        out.peers.push(peer.id);
        peer.parities.count_sent(parities);
        if peer.activity.data_sent(*now, bytes as u64) {
            shared.control.notify(Notice::Activity(peer.id));
        }
    }
}

impl Outbound {
    /// Sends the sealed datagrams, and clears the list.
    pub(crate) fn send(&mut self, network: &mut dyn Network, table: &Table, shared: &Shared) {
        if !self.transmits.is_empty() {
            let peers = self.peers.iter().filter_map(|peer| table.peers.get(peer));
            send(network, &self.slab, &self.transmits, peers.map(|peer| &**peer), shared);
            self.end = 0;
            self.transmits.clear();
            self.peers.clear();
        }
    }

    /// Copies a text, and lists its datagram. Returns the bytes of the datagram.
    fn append(&mut self, to: Endpoint, ds: u8, counter: u64, text: &[u8]) -> usize {
        let (start, offset) = (self.end, self.end + HEADER_LEN);
        self.end = offset + text.len() + TAG_LEN;
        if self.slab.len() < self.end {
            self.slab.resize(self.end.next_power_of_two(), 0);
        }
        self.slab[offset..offset + text.len()].copy_from_slice(text);
        self.frames.push(Frame { offset, len: text.len(), counter });
        extend(&mut self.transmits, to, ds, start, self.end - start);
        self.end - start
    }
}
