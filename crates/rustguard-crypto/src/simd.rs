//! ChaCha20-Poly1305 over several packets at once: the only module of this crate with `unsafe` in it.
//!
//! [`Group`] checks where packets lie; [`Avx512`] and [`Avx2`] prove that the processor has the instructions. Together they are
//! safe to call. [`backend::simd`](crate::backend::simd) decides which packets go through which of them.
//!
//! # How
//! ChaCha20 keeps word `i` of a block in vector `i`, one block per 32-bit lane, and any lane takes any block of any packet:
//! the texts of a group form one stream of blocks ([`Blocks`]), and packets of different lengths leave no lane idle but at its
//! end. Block 0 of every packet, the one-time Poly1305 key, is computed first; its words already lie one packet per lane, which
//! is how Poly1305 wants them. That runs one packet per 64-bit lane, because the blocks of one packet depend on each other.
//! Lanes without a packet repeat packet 0, and their results go nowhere.
//!
//! A full group on AVX-512 starts differently: up to the end of its shortest packet, lane `i` is packet `i`, and all lanes compute
//! the block with the same number. Three quarters of the first round are then done once for all blocks, and Poly1305 processes the
//! sealed blocks between the rounds.
//!
//! # Secrets
//! No branch and no address depends on a key, on keystream or on text, only on lengths, on the number of packets, and on which
//! packets turned out authentic. Tags are compared without leaving the vector registers: only the verdict does. Memory that holds
//! one-time keys or keystream by design is wiped. The compiler does not say what it spills, so [`wipe_stack`] overwrites the stack
//! that the kernels used when a run is done. Registers are not wiped.
#![allow(unsafe_code)]

use crate::frame::{Frame, TAG_LEN};
use core::{arch::asm, marker::PhantomData, mem::MaybeUninit, ops::Range};

mod avx2;
mod avx512;

cpufeatures::new!(has_avx512, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512ifma", "avx512vbmi2");
cpufeatures::new!(has_avx2, "avx2");

/// Packets in a group, and lanes of 32 bits in the widest vector.
pub(crate) const GROUP: usize = 16;
/// The longest text in a group: no datagram carries more, and no block counter, length or sum here can overflow.
pub(crate) const MAX_LEN: usize = u16::MAX as usize;

/// Bytes in a block of ChaCha20.
const BLOCK: usize = 64;
/// The first row of every block: "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Proof that the processor, and the operating system, can do AVX-512 F, BW, VL, DQ, IFMA and VBMI2: Ice Lake, Zen 4 and later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if there is one.
    pub(crate) fn detect() -> Option<Self> {
        has_avx512::get().then_some(Self(()))
    }

    /// Encrypts every text of the group in place and writes its tag behind it.
    pub(crate) fn seal(self, key: &[u32; 8], group: &mut Group<'_>) {
        // SAFETY: `self` exists only where `detect` found every feature.
        unsafe { avx512::seal(key, group) }
    }

    /// Decrypts the authentic texts in place and leaves the others as they are; bit `i` says whether packet `i` is authentic.
    pub(crate) fn open(self, key: &[u32; 8], group: &mut Group<'_>) -> u32 {
        // SAFETY: `self` exists only where `detect` found every feature.
        unsafe { avx512::open(key, group) }
    }
}

/// Proof that the processor, and the operating system, can do AVX2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if there is one.
    pub(crate) fn detect() -> Option<Self> {
        has_avx2::get().then_some(Self(()))
    }

    /// Encrypts every text of the group in place and writes its tag behind it.
    pub(crate) fn seal(self, key: &[u32; 8], group: &mut Group<'_>) {
        // SAFETY: `self` exists only where `detect` found the feature.
        unsafe { avx2::seal(key, group) }
    }

    /// Decrypts the authentic texts in place and leaves the others as they are; bit `i` says whether packet `i` is authentic.
    pub(crate) fn open(self, key: &[u32; 8], group: &mut Group<'_>) -> u32 {
        // SAFETY: `self` exists only where `detect` found the feature.
        unsafe { avx2::open(key, group) }
    }
}

/// Between 1 and [`GROUP`] packets of one slab.
///
/// Every one of `packets` lies inside the slab with its tag, and the slab is borrowed for as long as the group lives: the
/// kernels rely on both. Only [`Group::new`] makes one.
pub(crate) struct Group<'slab> {
    /// Those past `count` repeat the first.
    packets: [Packet; GROUP],
    count: usize,
    slab: PhantomData<&'slab mut [u8]>,
}

/// Where a packet lies, and its counter.
#[derive(Clone, Copy)]
struct Packet {
    /// `len` bytes of text, then [`TAG_LEN`] of tag.
    text: *mut u8,
    len: usize,
    counter: u64,
}

impl<'slab> Group<'slab> {
    /// Checks that the frames lie inside the slab.
    ///
    /// # Panics
    /// When one does not, when there are none or more than [`GROUP`], or when a text is longer than [`MAX_LEN`].
    pub(crate) fn new(slab: &'slab mut [u8], frames: impl ExactSizeIterator<Item = Frame>) -> Self {
        let count = frames.len();
        assert!((1..=GROUP).contains(&count), "a group has between 1 and 16 packets");
        let base = slab.as_mut_ptr();
        let mut packets = [Packet { text: base, len: 0, counter: 0 }; GROUP];
        for (packet, frame) in packets.iter_mut().zip(frames) {
            assert!(frame.len <= MAX_LEN, "the text fits a datagram");
            // For its checks: its pointers would each invalidate those of the frame before.
            let _ = frame.split(slab);
            *packet = Packet { text: base.wrapping_add(frame.offset), len: frame.len, counter: frame.counter };
        }
        let first = packets[0];
        packets[count..].fill(first);
        Self { packets, count, slab: PhantomData }
    }

    /// A bit for every packet.
    fn everyone(&self) -> u32 {
        (1 << self.count) - 1
    }

    /// The counters' low and high halves: the last two words of a nonce.
    fn nonces<const N: usize>(&self, first: usize) -> ([u32; N], [u32; N]) {
        let counter = |i: usize| self.packets[first + i].counter;
        (core::array::from_fn(|i| counter(i) as u32), core::array::from_fn(|i| (counter(i) >> 32) as u32))
    }

    /// The tag that packet `i` came with, as two little-endian halves.
    fn tag(&self, i: usize) -> (u64, u64) {
        let Packet { text, len, .. } = self.packets[i];
        // SAFETY: the tag lies behind the text inside the borrowed slab (`Group::new`).
        let tag = u128::from_le_bytes(unsafe { text.add(len).cast::<[u8; TAG_LEN]>().read() });
        (tag as u64, (tag >> 64) as u64)
    }

    /// Writes the tag of packet `i`.
    fn set_tag(&mut self, i: usize, low: u64, high: u64) {
        let Packet { text, len, .. } = self.packets[i];
        let tag = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        // SAFETY: as in `tag`, and the slab is borrowed mutably, through `self` too.
        unsafe { text.add(len).cast::<[u8; TAG_LEN]>().write(tag) };
    }
}

/// The texts of some packets of a group as one stream of ChaCha20 blocks, from block 1 of each.
struct Blocks<'group> {
    packets: &'group [Packet; GROUP],
    /// Where they start and end in each packet that is not shorter.
    bytes: Range<usize>,
    /// The packets to come, none of them empty: bit `i` stands for `packets[i]`.
    wanted: u32,
    /// Bytes of the first of them that are done: whole blocks.
    done: usize,
}

/// `N` blocks of a stream, or what was left of it: what each lane computes, and where it goes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes<const N: usize> {
    /// The block counters.
    block: [u32; N],
    /// The packets' counters, low halves and high halves.
    low: [u32; N],
    high: [u32; N],
    /// The texts, in the order of the lanes.
    pieces: [Piece; N],
    /// How many of `pieces` there are.
    count: usize,
}

/// Some blocks in a row of one packet.
#[derive(Clone, Copy)]
struct Piece {
    /// Its first lane. All pieces together take no more lanes than there are.
    lane: usize,
    /// `len` bytes of text inside the slab: a lane for every 64, and one for what is left.
    text: *mut u8,
    len: usize,
}

impl<'group> Blocks<'group> {
    /// Of the `wanted` packets' texts those `bytes` that they have. They start with a block.
    fn new(group: &'group Group<'_>, mut wanted: u32, bytes: Range<usize>) -> Self {
        for (i, packet) in group.packets.iter().enumerate() {
            wanted &= !(u32::from(packet.len.min(bytes.end) <= bytes.start) << i);
        }
        Self { packets: &group.packets, wanted, done: bytes.start, bytes }
    }

    /// The next blocks into `lanes`; false if there are none left.
    #[inline]
    fn next<const N: usize>(&mut self, lanes: &mut Lanes<N>) -> bool {
        let mut lane = 0;
        lanes.count = 0;
        while self.wanted != 0 && lane < N {
            let Packet { text, len, counter } = self.packets[self.wanted.trailing_zeros() as usize % GROUP];
            let len = len.min(self.bytes.end);
            let piece = (len - self.done).min((N - lane) * BLOCK);
            lanes.pieces[lanes.count] = Piece { lane, text: text.wrapping_add(self.done), len: piece };
            lanes.count += 1;
            let first = (self.done / BLOCK) as u32 + 1;
            for block in first..first + piece.div_ceil(BLOCK) as u32 {
                lanes.block[lane] = block;
                lanes.low[lane] = counter as u32;
                lanes.high[lane] = (counter >> 32) as u32;
                lane += 1;
            }
            self.done += piece;
            if self.done == len {
                self.wanted &= self.wanted - 1;
                self.done = self.bytes.start;
            }
        }
        lane > 0
    }
}

impl<const N: usize> Lanes<N> {
    fn new() -> Self {
        let piece = Piece { lane: 0, text: core::ptr::null_mut(), len: 0 };
        Self { block: [0; N], low: [0; N], high: [0; N], pieces: [piece; N], count: 0 }
    }
}

/// Overwrites the stack that a call of a kernel at the same depth has used, and may have left keystream in.
///
/// Nothing obliges a compiler to put frames where this assumes them; every one for x86-64 does.
#[inline(never)]
pub(crate) fn wipe_stack() {
    let mut frames = MaybeUninit::<[u8; STACK]>::uninit();
    let start = frames.as_mut_ptr();
    // SAFETY: the whole of `frames` is written, and nothing is read.
    unsafe { start.write_bytes(0, 1) };
    // SAFETY: no instructions at all. As far as the compiler knows it may read `frames`, which therefore has to be written.
    unsafe { asm!("/* {} */", in(reg) start, options(nostack, preserves_flags)) };
}

/// More than the kernels' frames, of which the deepest are `open`, `open_together` and `block_and_all` of AVX-512: 12,300 bytes
/// together, optimised.
const STACK: usize = 13 * 1024;

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use poly1305::{
        Poly1305,
        universal_hash::{KeyInit, UniversalHash},
    };
    use std::vec::Vec;

    /// Keys and texts at which sums come close to 2^130 - 5, to 2^130 and to 2^128, and carries run through every limb.
    ///
    /// ChaCha20 does not give such keys in a lifetime, so that no test of whole packets finds them.
    fn tags_at_the_edges(tags: impl Fn(&[[u32; GROUP]; 8], &Group<'_>) -> [u128; GROUP]) {
        const R: [u128; 8] = [0, 1, 2, 4, 5 << 32, 0x0fff_fffc << 96, u128::MAX, u128::MAX - 0xff];
        const S: [u128; 3] = [0, 1, u128::MAX];
        const BLOCKS: [u128; 8] =
            [0, 1, 1 << 127, u128::MAX, u128::MAX - 1, u128::MAX - 4, u128::MAX - 5, u64::MAX as u128];
        for len in [0, 1, 15, 16, 17, 32, 48, 63, 64, 80, 128, 191, 192, 256, 333] {
            for (s, shift) in S.into_iter().flat_map(|s| (0..BLOCKS.len()).map(move |shift| (s, shift))) {
                let stride = len + TAG_LEN;
                let mut slab = std::vec![0; GROUP * stride];
                let frames: Vec<Frame> = (0..GROUP).map(|i| Frame { offset: i * stride, len, counter: 0 }).collect();
                for (i, packet) in slab.chunks_mut(stride).enumerate() {
                    for (j, block) in packet[..len].chunks_mut(16).enumerate() {
                        let block_of = match (len, i / 8, j) {
                            // With the lengths: 2^130 minus `shift`, where r is 1. Whether that is reduced shows here only.
                            (32, 0, 0) => 0u128.wrapping_sub(shift as u128 + (32 << 64)),
                            (32, 0, 1) => 0,
                            // In the first half a single block all along, in the second half every one in turn.
                            (_, half, _) => BLOCKS[(shift + half * j) % BLOCKS.len()],
                        };
                        let bytes = block_of.to_le_bytes();
                        block.copy_from_slice(&bytes[..block.len()]);
                    }
                }
                let mut keys = [[0; GROUP]; 8];
                let mut expected = [0; GROUP];
                for i in 0..GROUP {
                    let mut key = [0; 32];
                    key[..16].copy_from_slice(&R[i % R.len()].to_le_bytes());
                    key[16..].copy_from_slice(&s.to_le_bytes());
                    for (words, bytes) in keys.iter_mut().zip(key.as_chunks().0) {
                        words[i] = u32::from_le_bytes(*bytes);
                    }
                    let mut poly1305 = Poly1305::new(&key.into());
                    poly1305.update_padded(&slab[i * stride..][..len]);
                    poly1305.update_padded(&((len as u128) << 64).to_le_bytes());
                    expected[i] = u128::from_le_bytes(poly1305.finalize().into());
                }
                let group = Group::new(&mut slab, frames.into_iter());
                assert_eq!(tags(&keys, &group), expected, "{len} bytes, s = {s:#x}, blocks from {shift}");
            }
        }
    }

    #[test]
    fn avx512_tags_at_the_edges() {
        if Avx512::detect().is_some() {
            // SAFETY: every feature was found.
            tags_at_the_edges(|keys, group| unsafe { avx512::tags_of_all(keys, group) });
        }
    }

    #[test]
    fn avx2_tags_at_the_edges() {
        if Avx2::detect().is_some() {
            // SAFETY: the feature was found.
            tags_at_the_edges(|keys, group| unsafe { avx2::tags_of_all(keys, group) });
        }
    }
}
