//! Out: TUN → forwarding decision → padding → counters → sealed in place → UDP.

use super::now;
use crate::{
    drops::DropReason,
    shared::{PeerShared, Shared, Table},
};
use rustguard_core::{
    forwarding::{Forwarding, Origin, Verdict},
    node::PeerId,
    packet::{IpHead, padded_len},
    session::HEADER_LEN,
    time::Instant,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, HEADROOM, Network, Segments, Transmit, TunQueue};
use std::{io, ops::Range, sync::atomic::Ordering, thread};

/// Packets in a batch: enough for the system calls to be shared, few enough to stay in the L2 cache (64 and 192 measured alike).
const BATCH: usize = 64;
/// How often the sender of small packets is given the core before what it has sent so far leaves. In a spike of this data
/// path: 40 % more packets of 64 bytes at 40 % less time each, and no delay where packets come singly.
const YIELDS: usize = 2;
/// Bytes of a batch beyond what a single read may need.
const SLAB: usize = 128 * 1024;

const _: () = assert!(HEADROOM == HEADER_LEN);

/// The buffers of one worker's sending direction.
pub(super) struct Tx {
    slab: Box<[u8]>,
    /// Where the next packet goes: right behind the tag of the last, so that equal datagrams lie at an equal stride.
    cursor: usize,
    frames: Vec<Frame>,
    runs: Vec<Run>,
    transmits: Vec<Transmit>,
}

/// Consecutive frames for one peer.
struct Run {
    peer: PeerId,
    frames: Range<usize>,
}

impl Tx {
    pub(super) fn new(tun: &impl TunQueue) -> Self {
        Self {
            slab: vec![0; SLAB + tun.max_read()].into(),
            cursor: 0,
            frames: Vec::with_capacity(4 * BATCH),
            runs: Vec::with_capacity(BATCH),
            transmits: Vec::with_capacity(BATCH),
        }
    }

    /// One batch. Returns whether there was anything.
    ///
    /// # Errors
    /// When the TUN is gone.
    pub(super) fn run(
        &mut self,
        tun: &mut impl TunQueue,
        network: &mut impl Network,
        shared: &Shared,
    ) -> io::Result<bool> {
        self.cursor = 0;
        self.frames.clear();
        self.runs.clear();
        self.transmits.clear();
        let table = shared.table.load();
        let mtu = shared.mtu.load(Ordering::Relaxed) as usize;
        let (mut reads, mut yields) = (0, 0);
        while self.frames.len() < BATCH && self.slab.len() - self.cursor >= tun.max_read() {
            match tun.read(&mut self.slab, self.cursor, mtu)? {
                Some(segments) => {
                    reads += 1;
                    self.take(segments, &table, mtu, shared);
                }
                // A stream of packets has begun, but the sender runs on this core or is about to go on: its turn.
                None if reads > 1 && yields < YIELDS => {
                    yields += 1;
                    thread::yield_now();
                }
                None => break,
            }
        }
        if !self.runs.is_empty() {
            self.seal(&table, shared);
            self.send(network, &table, shared);
        }
        Ok(reads > 0)
    }

    /// Decides about what was read and appends it to the batch.
    fn take(&mut self, segments: Segments, table: &Table, mtu: usize, shared: &Shared) {
        let Segments { offset, stride, count, len, last_len } = segments;
        let first_len = if count == 1 { last_len } else { len };
        let Some(head) = IpHead::parse(&self.slab[offset..offset + first_len]) else {
            return shared.drops.count(DropReason::NotIp, count);
        };
        let Verdict::Forward(peer) = table.allowed_ips.decide(Origin::Host, &head) else {
            return shared.drops.count(DropReason::NoRoute, count);
        };
        let first = self.frames.len();
        for piece in 0..count {
            let offset = offset + piece * stride;
            let len = if piece + 1 == count { last_len } else { len };
            // Several lie at a stride that has room for just so much text.
            let room = if count > 1 { stride - HEADER_LEN - TAG_LEN } else { usize::MAX };
            let padded = padded_len(len, mtu).min(room);
            self.slab[offset + len..offset + padded].fill(0);
            self.frames.push(Frame { offset, len: padded, counter: 0 });
            self.cursor = offset + padded + TAG_LEN;
        }
        match self.runs.last_mut() {
            Some(run) if run.peer == peer => run.frames.end = self.frames.len(),
            _ => self.runs.push(Run { peer, frames: first..self.frames.len() }),
        }
    }

    /// Seals run by run; what has no session goes to staging.
    fn seal(&mut self, table: &Table, shared: &Shared) {
        let now = now();
        for run in &self.runs {
            let Some(peer) = table.peers.get(&run.peer) else { continue };
            let frames = &mut self.frames[run.frames.clone()];
            if !seal_run(peer, &mut self.slab, frames, now, &mut self.transmits, shared) {
                stage(peer.id, &self.slab, frames, shared);
            }
        }
    }

    fn send(&mut self, network: &mut impl Network, table: &Table, shared: &Shared) {
        let sent = network.send(&self.slab, &self.transmits);
        shared.drops.count(DropReason::SendFailed, sent.failed);
        if sent.source_lost > 0 {
            for peer in self.runs.iter().filter_map(|run| table.peers.get(&run.peer)) {
                peer.forget_source();
            }
        }
    }
}

/// Seals a run and lists its datagrams; false when there is no session to seal with.
fn seal_run(
    peer: &PeerShared,
    slab: &mut [u8],
    frames: &mut [Frame],
    now: Instant,
    transmits: &mut Vec<Transmit>,
    shared: &Shared,
) -> bool {
    let sealer = peer.sealer.load();
    let Some(sealer) = sealer.as_deref() else { return false };
    let Some(reserved) = sealer.reserve(now, frames.len()) else { return false };
    if reserved.rekey {
        shared.control.want_handshake(peer);
    }
    let endpoint = peer.endpoint.load();
    let Some(&endpoint) = endpoint.as_deref() else {
        shared.drops.count(DropReason::NoEndpoint, frames.len());
        return true;
    };
    for (frame, counter) in frames.iter_mut().zip(reserved.first..) {
        frame.counter = counter;
    }
    sealer.seal(slab, frames);
    let mut bytes = 0;
    for frame in &*frames {
        let (offset, len) = (frame.offset - HEADER_LEN, HEADER_LEN + frame.len + TAG_LEN);
        bytes += len as u64;
        extend(transmits, endpoint, offset, len);
    }
    if peer.activity.data_sent(now, bytes) {
        shared.control.signal(crate::shared::Signal::Activity(peer.id));
    }
    true
}

/// Adds a datagram to the last transmit where it continues it, else starts one.
fn extend(transmits: &mut Vec<Transmit>, to: Endpoint, offset: usize, len: usize) {
    if let Some(Transmit { to: last_to, segments: last }) = transmits.last_mut()
        && *last_to == to
        && last.last_len == last.len
        && len <= last.len
        && offset == last.offset + last.count * last.stride
    {
        last.count += 1;
        last.last_len = len;
        return;
    }
    let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
    transmits.push(Transmit { to, segments });
}

/// Hands packets over to control, which keeps them until a handshake is complete.
#[cold]
fn stage(peer: PeerId, slab: &[u8], frames: &[Frame], shared: &Shared) {
    for frame in frames {
        let packet = slab[frame.offset..frame.offset + frame.len].into();
        if shared.control.staging.try_send((peer, packet)).is_err() {
            shared.drops.count(DropReason::StagingBusy, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_datagrams_side_by_side_become_one_transmit_and_a_short_one_ends_it() {
        let a = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
        let b = Endpoint { remote: "192.0.2.2:1".parse().unwrap(), local: None };
        let mut out = Vec::new();
        for (to, offset, len) in [(a, 0, 100), (a, 100, 100), (a, 200, 60), (a, 260, 60), (b, 320, 60), (b, 380, 80)] {
            extend(&mut out, to, offset, len);
        }
        let seg = |offset, stride, count, last_len| Segments { offset, stride, count, len: stride, last_len };
        assert_eq!(
            out,
            [
                Transmit { to: a, segments: seg(0, 100, 3, 60) },
                Transmit { to: a, segments: seg(260, 60, 1, 60) },
                Transmit { to: b, segments: seg(320, 60, 1, 60) },
                Transmit { to: b, segments: seg(380, 80, 1, 80) },
            ]
        );
    }

    #[test]
    fn datagrams_with_a_gap_between_them_stay_apart() {
        let a = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
        let mut out = Vec::new();
        extend(&mut out, a, 0, 100);
        extend(&mut out, a, 116, 100);
        assert_eq!(out.len(), 2);
    }
}
