//! Parities: sealed between the packets of a run, and made use of where a packet was lost. See [`rustguard_core::parity`].
//!
//! Only peers that have accepted them pay for it. What is sent to these is copied to a slab with room for the parities, each right behind
//! its group, so that a run stays a run.

use super::seal::{self, Batch, Ecn};
use crate::{
    parity::Outgoing,
    shared::{Shared, peer::PeerShared, table::Table, to_control::Notice},
};
use parking_lot::Mutex;
use rustguard_core::{
    node::PeerId,
    parity::{Cover, Kept, LONGEST, Rebuilt},
    session::{HEADER_LEN, OVERHEAD, ReplayWindow, Sealer},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Network, Transmit};

/// Packets that are made of parities in one batch, at most. Others stay lost.
const REBUILT: usize = 64;
/// The bytes of each: with the header before it and the tag behind it, because it may be sealed again where it lies.
const ROOM: usize = HEADER_LEN + LONGEST + TAG_LEN;

/// Datagrams that leave with parities between them. It keeps its memory between batches, and has none before the first parity.
#[derive(Default)]
pub(crate) struct Outbound {
    slab: Vec<u8>,
    /// Where the next datagram goes.
    end: usize,
    frames: Vec<Frame>,
    transmits: Vec<Transmit>,
    peers: Vec<PeerId>,
}

impl Batch<'_> {
    /// Seals a run with the parities of the groups that it completes.
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
    /// Sends what was sealed, and forgets it.
    pub(crate) fn send(&mut self, network: &mut impl Network, table: &Table, shared: &Shared) {
        if !self.transmits.is_empty() {
            let peers = self.peers.iter().filter_map(|peer| table.peers.get(peer));
            seal::send(network, &self.slab, &self.transmits, peers.map(|peer| &**peer), shared);
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
        seal::extend(&mut self.transmits, to, ds, start, self.end - start);
        self.end - start
    }
}

/// Makes packets of parities, in a worker's receiving direction.
#[derive(Default)]
pub(super) struct Inbound {
    /// Where they are made: behind what the network fills, once there is something to make.
    room: Option<usize>,
    /// How many there are in this batch.
    made: usize,
}

/// What has become of the parities of a run.
#[derive(Default)]
pub(super) struct Made {
    /// The packets that were made, and the bytes that their datagrams had.
    pub(super) packets: usize,
    pub(super) bytes: u64,
}

impl Inbound {
    /// The bytes of the slab that the network may fill.
    pub(super) fn received_len(&self, slab: &[u8]) -> usize {
        self.room.unwrap_or(slab.len())
    }

    /// A batch begins.
    pub(super) fn begin(&mut self) {
        self.made = 0;
    }

    /// Takes the parities out of a run that was opened, and puts the packets in that can be made. In `opened`, packets that the replay
    /// window has refused count as not opened. A run in which something was made is in the order of sending.
    ///
    /// A parity is not in the replay window: it may be a copy. By itself it changes nothing but what is kept for its session.
    pub(super) fn rebuild(
        &mut self,
        kept: &Mutex<Kept>,
        window: &mut ReplayWindow,
        slab: &mut Box<[u8]>,
        frames: &mut Vec<Frame>,
        opened: &mut Vec<bool>,
    ) -> Made {
        let room = *self.room.get_or_insert_with(|| {
            let (len, mut with_room) = (slab.len(), std::mem::take(slab).into_vec());
            with_room.resize(len + REBUILT * ROOM, 0);
            *slab = with_room.into();
            len
        });
        let (received, mut made) = (frames.len(), Made::default());
        let mut kept = kept.lock();
        // Packets before parities: a packet that only overtook its parity is not made a second time.
        for parities in [false, true] {
            for n in 0..received {
                let Frame { offset, len, counter } = frames[n];
                let cover = Cover::of(counter);
                if !opened[n] || cover.is_some() != parities {
                    continue;
                }
                let text = &slab[offset..offset + len];
                let rebuilt = match cover {
                    Some(cover) => {
                        opened[n] = false;
                        kept.parity(cover, text)
                    }
                    None => kept.packet(counter, text),
                };
                let Some(Rebuilt { counter, text }) = rebuilt else { continue };
                if self.made == REBUILT || window.accept(counter).is_err() {
                    continue;
                }
                let (offset, len) = (room + self.made * ROOM + HEADER_LEN, text.len());
                slab[offset..offset + len].copy_from_slice(text);
                frames.push(Frame { offset, len, counter });
                opened.push(true);
                self.made += 1;
                made.packets += 1;
                made.bytes += (len + OVERHEAD) as u64;
            }
        }
        drop(kept);
        let mut these = opened.iter();
        frames.retain(|_| *these.next().expect("one for each frame"));
        opened.clear();
        opened.resize(frames.len(), true);
        if made.packets > 0 {
            frames.sort_by_key(|frame| frame.counter);
        }
        made
    }
}
