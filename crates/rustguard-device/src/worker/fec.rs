//! Rebuilds lost packets from received parities. See [`rustguard_core::fec`].

use parking_lot::Mutex;
use rustguard_core::{
    fec::{Cover, Kept, LONGEST, Rebuilt},
    session::{HEADER_LEN, OVERHEAD, ReplayWindow},
};
use rustguard_crypto::aead::{Frame, TAG_LEN};

/// The most packets that are rebuilt in one batch. Others stay lost.
const REBUILT: usize = 64;
/// The bytes for each rebuilt packet, with space for header and tag, because the packet may be sealed again in place.
const ROOM: usize = HEADER_LEN + LONGEST + TAG_LEN;

/// Rebuilds packets in a worker's receiving direction.
#[derive(Default)]
pub(super) struct Inbound {
    /// The place for rebuilt packets in the slab, behind the part that the network fills. `None` until the first
    /// parity may come.
    room: Option<usize>,
    /// The packets that were rebuilt in this batch.
    made: usize,
}

/// The result for the parities of a run.
#[derive(Default)]
pub(super) struct Made {
    /// The packets that were rebuilt, and the bytes that their datagrams had.
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

    /// Removes the parities from an opened run, and adds the packets that can be rebuilt. In `opened`, packets that the
    /// replay window has refused count as not opened. If a packet was rebuilt, the run is sorted by counter.
    ///
    /// The replay window does not check parities, so a parity may be a copy. A parity alone changes only the `Kept` of
    /// its session.
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
        // Packets before parities: a packet that arrives in the same run as its parity is not rebuilt.
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
