//! Between peers: what came from one peer and is for another never touches the host. It is sealed again where it lies, and
//! leaves in the shape it came in: runs of datagrams stay runs.

use super::seal;
use crate::shared::{Relaying, RouteQuestion, Shared, Table};
use rustguard_core::{
    forwarding::{Forwarding, Origin, Verdict},
    node::PeerId,
    packet::{IpHead, padded_len, take_hop},
    time::Instant,
};
use rustguard_crypto::aead::Frame;
use rustguard_tun::{Network, Transmit};
use std::{cell::Cell, sync::atomic::Ordering};

/// The forwarding decision for one batch: where the routing engine sends a packet, and for what peers send, whether it is
/// relayed.
pub(super) struct Decision<'a> {
    table: &'a Table,
    shared: &'a Shared,
    /// The last answer: the packets of a run mostly have the same addresses.
    last: Cell<Option<(RouteQuestion, Relayed)>>,
}

/// What is to become of a packet that some peer has, by its addresses.
#[derive(Clone, Copy)]
enum Relayed {
    Yes,
    No,
    Prohibited,
}

impl<'a> Decision<'a> {
    pub(super) fn new(table: &'a Table, shared: &'a Shared) -> Self {
        Self { table, shared, last: Cell::new(None) }
    }

    fn relayed(&self, question: RouteQuestion) -> Relayed {
        let yes = match &self.table.relaying {
            Relaying::Never => false,
            Relaying::Isolated => return Relayed::Prohibited,
            // Is it for this host? Asked first: else packets would go back and forth until their hops are used up.
            Relaying::Always { local } => {
                !local.contains(&question.destination) && !question.destination.is_multicast()
            }
            Relaying::AsRouted => match self.shared.routed.pin().get(&question) {
                Some(&routed) => routed,
                None => {
                    self.shared.control.ask_route(question);
                    false
                }
            },
        };
        if yes { Relayed::Yes } else { Relayed::No }
    }
}

impl Forwarding for Decision<'_> {
    fn permits(&self, from: PeerId, packet: &IpHead) -> bool {
        self.table.routes.permits(from, packet.source)
    }

    fn decide(&self, origin: Origin, packet: &IpHead, bytes: &[u8]) -> Verdict {
        if origin == Origin::Host {
            return self.table.next_hop(packet, bytes).map_or(Verdict::NoRoute, Verdict::Forward);
        }
        if matches!(self.table.relaying, Relaying::Never) {
            return Verdict::Deliver;
        }
        // What is nobody else's is the host's, and so is what nobody can be reached for: it answers for us.
        let Some(peer) = self.table.next_hop(packet, bytes) else { return Verdict::Deliver };
        let question = RouteQuestion { source: packet.source, destination: packet.destination };
        let relayed = match self.last.get() {
            Some((last, relayed)) if last == question => relayed,
            _ => {
                let relayed = self.relayed(question);
                self.last.set(Some((question, relayed)));
                relayed
            }
        };
        match relayed {
            Relayed::Yes => Verdict::Forward(peer),
            Relayed::No => Verdict::Deliver,
            Relayed::Prohibited => Verdict::Prohibited,
        }
    }
}

/// What of a batch is for other peers; keeps its memory between batches.
#[derive(Default)]
pub(super) struct Relay {
    peers: Vec<PeerId>,
    /// The packets, in the order they came; `peers[i]` gets `frames[i]`.
    frames: Vec<Frame>,
    transmits: Vec<Transmit>,
}

impl Relay {
    /// Takes a packet for `peer`; false when it needs the host's router: its last hop is here (the host's ICMP lets traceroute
    /// see this hop), it is longer than the MTU, or it has options.
    pub(super) fn take(&mut self, slab: &mut [u8], peer: PeerId, frame: Frame, head: &IpHead, mtu: usize) -> bool {
        if head.len > mtu || !take_hop(&mut slab[frame.offset..frame.offset + head.len]) {
            return false;
        }
        // The sender's padding is kept, so that equal datagrams stay equal, unless it is more than padding is for.
        let len = frame.len.min(padded_len(head.len, mtu));
        self.peers.push(peer);
        self.frames.push(Frame { len, ..frame });
        true
    }

    /// Seals what was taken and sends it.
    pub(super) fn flush(
        &mut self,
        slab: &mut [u8],
        network: &mut impl Network,
        table: &Table,
        now: Instant,
        shared: &Shared,
    ) {
        if self.frames.is_empty() {
            return;
        }
        let mut frames = &mut *self.frames;
        for run in self.peers.chunk_by(|a, b| a == b) {
            let (these, rest) = frames.split_at_mut(run.len());
            frames = rest;
            if let Some(peer) = table.peers.get(&run[0]) {
                seal::seal(peer, slab, these, now, &mut self.transmits, shared);
            }
        }
        let peers = self.peers.chunk_by(|a, b| a == b).filter_map(|run| table.peers.get(&run[0]));
        seal::send(network, slab, &self.transmits, peers.map(|peer| &**peer), shared);
        shared.relayed.fetch_add(self.frames.len() as u64, Ordering::Relaxed);
        self.peers.clear();
        self.frames.clear();
        self.transmits.clear();
    }
}
