//! Relaying: a packet from one peer to another is sealed again in place, and the host does not see it. Runs of
//! datagrams stay runs.

use crate::{
    seal::{self, Batch, Ecn, relayed::RelayedRuns},
    shared::{Shared, table::Table},
};
use rustguard_core::{
    node::PeerId,
    packet::{IpHead, padded_len, take_hop},
    time::Instant,
};
use rustguard_crypto::aead::Frame;
use rustguard_tun::{Network, Transmit};
use std::sync::atomic::Ordering;

/// The packets of a batch that are for other peers. It keeps its memory between batches.
#[derive(Default)]
pub(super) struct RelayBatch {
    peers: Vec<PeerId>,
    /// The packets, in the order they came; `peers[i]` gets `frames[i]`.
    frames: Vec<Frame>,
    transmits: Vec<Transmit>,
    relayed: RelayedRuns,
}

impl RelayBatch {
    /// Takes a packet for `peer`. Returns false when the host must route it: its hop limit ends here (the host's ICMP
    /// makes this hop visible to traceroute), it is longer than the MTU, or it has options.
    pub(super) fn take(&mut self, slab: &mut [u8], peer: PeerId, frame: Frame, head: &IpHead, mtu: usize) -> bool {
        if head.len > mtu || !take_hop(&mut slab[frame.offset..frame.offset + head.len]) {
            return false;
        }
        // The sender's padding is kept, so that datagrams of equal length stay equal, but no more than the usual
        // padding.
        let len = frame.len.min(padded_len(head.len, mtu));
        self.peers.push(peer);
        self.frames.push(Frame { len, ..frame });
        true
    }

    /// Seals the packets and sends them.
    pub(super) fn flush(
        &mut self,
        slab: &mut [u8],
        network: &mut dyn Network,
        table: &Table,
        now: Instant,
        shared: &Shared,
    ) {
        if self.frames.is_empty() {
            return;
        }
        let mut frames = &mut *self.frames;
        let mut batch = Batch {
            slab: &mut *slab,
            transmits: &mut self.transmits,
            relayed: Some(&mut self.relayed),
            parities: None,
            lane: network.lane(),
            table,
            now,
            shared,
        };
        for run in self.peers.chunk_by(|a, b| a == b) {
            let (these, rest) = frames.split_at_mut(run.len());
            frames = rest;
            if let Some(peer) = table.peers.get(&run[0]) {
                batch.seal(peer, these, Ecn::Packets);
            }
        }
        let peers = self.peers.chunk_by(|a, b| a == b).filter_map(|run| table.peers.get(&run[0]));
        seal::send(network, slab, &self.transmits, peers.map(|peer| &**peer), shared);
        self.relayed.send(network, table, shared);
        shared.relayed.fetch_add(self.frames.len() as u64, Ordering::Relaxed);
        self.peers.clear();
        self.frames.clear();
        self.transmits.clear();
    }
}
