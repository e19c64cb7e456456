//! The sending direction: TUN → forwarding decision → padding → counters → sealed in place → UDP.

use super::{
    decision::{Decision, Outcome, is_for_all},
    lanes::Lanes,
    now,
    routing_loop::{self, LoopDetector},
    turns::Turns,
    unreachable::Unreachable,
};
use crate::{
    drops::DropReason,
    policy::gate::Gate,
    seal::{self, Batch, Ecn, fec::Outbound, relayed::RelayedRuns},
    shared::{Shared, table::Table},
};
use rustguard_core::{
    node::PeerId,
    packet::{IpHead, padded_len},
    session::HEADER_LEN,
    time::Instant,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{HEADROOM, Lane, Network, Segments, Span, Transmit};
use std::{io, ops::Range, sync::atomic::Ordering, thread};

/// Packets in a batch: enough to share the system calls, few enough to stay in the L2 cache (64 and 192 gave the same
/// speed).
const BATCH: usize = 64;
/// How often the sender of small packets gets a turn before the batch leaves.
const YIELDS: usize = 2;
/// Bytes of a batch beyond what a single read may need.
const SLAB: usize = 128 * 1024;

const _: () = assert!(HEADROOM == HEADER_LEN);

/// The buffers of one worker's sending direction.
pub(super) struct Tx {
    slab: Box<[u8]>,
    /// Where the next packet goes: directly behind the tag of the last one, so that datagrams of equal length lie at
    /// an equal stride.
    cursor: usize,
    frames: Vec<Frame>,
    runs: Vec<Run>,
    transmits: Vec<Transmit>,
    relayed: RelayedRuns,
    parities: Outbound,
    loops: LoopDetector,
    unreachable: Unreachable,
    turns: Turns,
    gate: Gate,
}

/// Consecutive frames for one peer.
struct Run {
    peer: PeerId,
    frames: Range<usize>,
}

impl Tx {
    pub(super) fn new(lanes: &Lanes) -> Self {
        Self {
            slab: vec![0; SLAB + lanes.max_read()].into(),
            cursor: 0,
            frames: Vec::with_capacity(4 * BATCH),
            runs: Vec::with_capacity(BATCH),
            transmits: Vec::with_capacity(BATCH),
            relayed: RelayedRuns::default(),
            parities: Outbound::default(),
            loops: LoopDetector::default(),
            unreachable: Unreachable::default(),
            turns: Turns::default(),
            gate: Gate::default(),
        }
    }

    /// Handles one batch from the lanes that are to be [read](Lanes::ask). Returns whether there were packets. `turns`:
    /// packets come in a stream, and none come from the network.
    ///
    /// # Errors
    /// When reading fails, after the packets that were read before are handled; and when the TUN is gone.
    pub(super) fn run(
        &mut self,
        lanes: &mut Lanes,
        network: &mut dyn Network,
        turns: bool,
        shared: &Shared,
    ) -> io::Result<bool> {
        self.cursor = 0;
        self.frames.clear();
        self.runs.clear();
        self.transmits.clear();
        let table = shared.table.load();
        let mtu = shared.mtu.load(Ordering::Relaxed) as usize;
        let decision = Decision::new(&table, shared);
        let (mut reads, mut packets) = (0, 0);
        let (mut yields, mut before) = (0, 0);
        let mut result = Ok(());
        while packets < BATCH && self.slab.len() - self.cursor >= lanes.max_read() {
            match lanes.read(&mut self.slab, self.cursor, mtu) {
                Ok(Some(segments)) => {
                    reads += 1;
                    packets += segments.count;
                    self.take(segments, &table, &decision, lanes, mtu, shared)?;
                }
                // The sender may run on this core, so it gets a turn. There are no turns while the network brings
                // packets too: then the host's packets are answers, which must not wait.
                Ok(None) if reads > 1 && yields < YIELDS && turns => {
                    self.turns.brought(packets - before, now);
                    if !self.turns.give(now, thread::yield_now) {
                        break;
                    }
                    (yields, before) = (yields + 1, packets);
                    lanes.ask_all();
                }
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.turns.brought(packets - before, now);
        if !self.runs.is_empty() {
            self.seal(&table, lanes, network.lane(), shared)?;
            let peers = self.runs.iter().filter_map(|run| table.peers.get(&run.peer));
            seal::send(network, &self.slab, &self.transmits, peers.map(|peer| &**peer), shared);
            self.relayed.send(network, &table, shared);
            self.parities.send(network, &table, shared);
        }
        if decision.is_filtered() {
            let refused = lanes.flush(&mut self.slab)?;
            shared.drops.count(DropReason::HostRefused, refused);
        }
        result.map(|()| reads > 0)
    }

    /// Decides about the packets that were read, and appends them to the batch. All packets of a super-packet get the
    /// same decision, unless a filter examines each one.
    fn take(
        &mut self,
        segments: Segments,
        table: &Table,
        decision: &Decision<'_>,
        lanes: &mut Lanes,
        mtu: usize,
        shared: &Shared,
    ) -> io::Result<()> {
        let Segments { stride, count, .. } = segments;
        let mut outcome = Outcome::Drop(DropReason::NotIp);
        for (n, Span { offset, len }) in segments.pieces().enumerate() {
            if n == 0 || decision.is_filtered() {
                let packet = &self.slab[offset..offset + len];
                let head = IpHead::parse(packet);
                outcome = match &head {
                    Some(head) => decision.outcome(None, head, packet),
                    None => Outcome::Drop(DropReason::NotIp),
                };
                match (outcome, &head) {
                    (Outcome::Forward(peer), _)
                        if routing_loop::may_be(packet, &shared.ports)
                            && self.loops.is_own(packet, peer, table, now(), shared) =>
                    {
                        if let Some(peer) = table.peers.get(&peer) {
                            let packets = if decision.is_filtered() { 1 } else { count };
                            peer.drops.count(DropReason::RoutingLoop, packets);
                        }
                        outcome = Outcome::Drop(DropReason::RoutingLoop);
                    }
                    (Outcome::Drop(DropReason::NoRoute), Some(head))
                        if is_for_all(head.destination) || shared.is_broadcast(head.destination) =>
                    {
                        outcome = Outcome::Ignore;
                    }
                    (Outcome::Drop(DropReason::NoRoute), Some(head)) => {
                        remark(head, now(), shared);
                        self.unreachable.tell(packet, head, lanes, now(), shared)?;
                    }
                    _ => {}
                }
            }
            let peer = match outcome {
                Outcome::Forward(peer) => {
                    // The segments of a super-packet belong to one flow. The last one may end the connection.
                    if let Some((policy, began)) = decision.policy()
                        && (n == 0 || n + 1 == count || decision.is_filtered())
                    {
                        self.gate.sent(&self.slab[offset..offset + len], policy, began);
                    }
                    peer
                }
                // The filter decided so. The packet stays in its place until the batch is done.
                Outcome::Deliver => {
                    lanes.deliver(&self.slab, Span { offset, len });
                    self.cursor = offset + len + TAG_LEN;
                    continue;
                }
                Outcome::Drop(reason) => {
                    shared.drops.count(reason, 1);
                    continue;
                }
                Outcome::Ignore => continue,
            };
            // Segments lie at a fixed stride, which limits the padding.
            let room = if count > 1 { stride - HEADER_LEN - TAG_LEN } else { usize::MAX };
            let padded = padded_len(len, mtu).min(room);
            self.slab[offset + len..offset + padded].fill(0);
            let frame = self.frames.len();
            self.frames.push(Frame { offset, len: padded, counter: 0 });
            self.cursor = offset + padded + TAG_LEN;
            match self.runs.last_mut() {
                Some(run) if run.peer == peer => run.frames.end = frame + 1,
                _ => self.runs.push(Run { peer, frames: frame..frame + 1 }),
            }
        }
        Ok(())
    }

    /// Seals run by run.
    fn seal(&mut self, table: &Table, lanes: &mut Lanes, lane: Option<Lane>, shared: &Shared) -> io::Result<()> {
        let now = now();
        let Self { slab, transmits, relayed, parities, .. } = self;
        let (relayed, parities) = (Some(relayed), Some(parities));
        let mut batch = Batch { slab, transmits, relayed, parities, lane, table, now, shared };
        for run in &self.runs {
            let Some(peer) = table.peers.get(&run.peer) else { continue };
            let frames = &mut self.frames[run.frames.clone()];
            if !batch.seal(peer, frames, Ecn::Packets) {
                for frame in &*frames {
                    let packet = &batch.slab[frame.offset..frame.offset + frame.len];
                    if let Some(head) = IpHead::parse(packet) {
                        self.unreachable.tell(packet, &head, lanes, now, shared)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Logs the address for which there is no peer.
#[cold]
fn remark(head: &IpHead, now: Instant, shared: &Shared) {
    if shared.unrouted.count(now) {
        let IpHead { source, destination, .. } = head;
        let (none, remedy) = match shared.is_engine_packet {
            Some(_) => ("no peer announces a route to", "`rustguard routes` shows the routes"),
            None => ("no peer has", "add it to AllowedIPs of the peer that it belongs to"),
        };
        tracing::warn!(
            "dropped a packet from {source} for {destination}: {none} that address; {remedy}; there may be more: `show` counts \
             them as no_route"
        );
    }
}

#[cfg(test)]
mod tests;
