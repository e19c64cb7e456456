//! Handles packets of peers that the policy refuses: they are counted, shown and answered, so that users see a refusal
//! and not a timeout.
//!
//! The answer goes back to the peer that sent the packet. Its source is the destination of the packet, as with the
//! answers of [`unreachable`](super::unreachable). The rate of answers is limited for each peer and in total.

use crate::{
    drops::DropReason,
    key::to_base64,
    policy::refusals::{Reason, Refused},
    seal::{self, Batch, Ecn, relayed::RelayedRuns},
    shared::{Shared, peer::PeerShared, table::Table},
};
use rustguard_core::{
    dissect, icmp,
    limit::{Bucket, Rate},
    node::PeerId,
    packet::{IpHead, padded_len},
    session::HEADER_LEN,
    time::Instant,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Network, Transmit};
use std::time::Duration;

/// Answers of one worker.
const RATE: Rate = Rate { interval: Duration::from_millis(1), burst: 200 };
/// Answers of one worker to one peer.
const OF_A_PEER: Rate = Rate { interval: Duration::from_millis(10), burst: 50 };
/// The number of limits for peers. Peers whose ids are equal modulo this number share a limit.
const LIMITS: usize = 64;

/// The answers of a batch. It has no memory before the first refusal.
#[derive(Default)]
pub(super) struct Refuse {
    all: Bucket,
    of_peers: Vec<Bucket>,
    slab: Vec<u8>,
    peers: Vec<PeerId>,
    frames: Vec<Frame>,
    transmits: Vec<Transmit>,
    relayed: RelayedRuns,
}

impl Refuse {
    /// Counts a refused packet, and prepares the answer.
    #[expect(clippy::too_many_arguments, reason = "a packet, and what it was refused for")]
    #[cold]
    pub(super) fn packet(
        &mut self,
        packet: &[u8],
        head: &IpHead,
        refused: Refused,
        from: &PeerShared,
        mtu: usize,
        now: Instant,
        shared: &Shared,
    ) {
        shared.dropped(from, DropReason::Policy, 1);
        let seat = &shared.policy;
        seat.refusals.note(from.id, head, refused, now);
        if seat.refused.count(now) {
            let IpHead { source, destination, .. } = head;
            let port = refused.port.map(|port| format!(" port {port}")).unwrap_or_default();
            tracing::info!(
                peer = *to_base64(&from.public_key().0),
                "refused a packet from {source} for {destination}, protocol {}{port}: {}; there may be more: `show` counts them as \
                 policy",
                refused.protocol,
                match refused.reason {
                    Reason::NotAllowed => "the policy does not allow it",
                    other => other.word(),
                }
            );
        }
        // Malformed packets get no answer, and broadcasts must not get one.
        let bad = matches!(refused.reason, Reason::Bad(_));
        if bad || !icmp::may_answer(packet, head) || shared.is_broadcast(head.destination) {
            return;
        }
        if self.of_peers.is_empty() {
            self.of_peers.resize(LIMITS, Bucket::default());
        }
        let limit = &mut self.of_peers[from.id.0 as usize % LIMITS];
        if limit.take(OF_A_PEER, now) && self.all.take(RATE, now) {
            self.answer(packet, head, refused, from, mtu);
        }
    }

    fn answer(&mut self, packet: &[u8], head: &IpHead, refused: Refused, from: &PeerShared, mtu: usize) {
        let mut answer = [0; icmp::MAX_LEN];
        let len = if refused.protocol == TCP {
            let mut reset = [0; dissect::RESET_MAX];
            let len = dissect::reset(packet, &mut reset);
            answer[..len].copy_from_slice(&reset[..len]);
            len
        } else {
            icmp::prohibited(packet, head, &mut answer)
        };
        if len == 0 {
            return;
        }
        let (offset, padded) = (self.slab.len() + HEADER_LEN, padded_len(len, mtu));
        self.slab.resize(offset, 0);
        self.slab.extend_from_slice(&answer[..len]);
        self.slab.resize(offset + padded + TAG_LEN, 0);
        self.peers.push(from.id);
        self.frames.push(Frame { offset, len: padded, counter: 0 });
    }

    /// Seals the answers and sends them.
    pub(super) fn flush(&mut self, network: &mut dyn Network, table: &Table, now: Instant, shared: &Shared) {
        if self.frames.is_empty() {
            return;
        }
        let mut frames = &mut *self.frames;
        let mut batch = Batch {
            slab: &mut self.slab,
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
        seal::send(network, &self.slab, &self.transmits, peers.map(|peer| &**peer), shared);
        self.relayed.send(network, table, shared);
        self.slab.clear();
        self.peers.clear();
        self.frames.clear();
        self.transmits.clear();
    }
}

const TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing;
    use rustguard_crypto::x25519::PublicKey;
    use std::sync::Arc;

    #[test]
    fn answers_have_a_limit_for_each_peer() {
        let (shared, _inbox) = testing::shared(2);
        let peer = |id| PeerShared::new(PeerId(id), PublicKey([1; 32]), Arc::default());
        let (flooder, other) = (peer(1), peer(2));
        let mut packet = [0; 40];
        packet[..20].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        (packet[32], packet[33]) = (0x50, 2);
        let head = IpHead::parse(&packet).unwrap();
        let refused = Refused { reason: Reason::NotAllowed, protocol: TCP, port: Some(22) };
        let now = Instant::from_nanos(1 << 40);
        let mut refuse = Refuse::default();
        let mut send = |n: usize, peer: &PeerShared, refused, to: u8| {
            packet[19] = to;
            let head = IpHead { destination: [10, 0, 0, to].into(), ..head };
            (0..n).for_each(|_| refuse.packet(&packet, &head, refused, peer, 1_420, now, &shared));
            refuse.peers.len()
        };
        assert_eq!(send(1_000, &flooder, refused, 2), 50);
        assert_eq!(send(1, &other, refused, 2), 51, "the other has a limit of its own");
        shared.set_network("10.0.0.9/29".parse().unwrap(), true);
        assert_eq!(send(1, &other, refused, 15), 51, "a broadcast is not answered");
        let bad = Refused { reason: Reason::Bad(dissect::Bad::Header), ..refused };
        assert_eq!(send(1, &other, bad, 2), 51, "nor is what is malformed");
        assert_eq!(shared.drops.snapshot(), [(DropReason::Policy, 1_003)]);
    }
}
