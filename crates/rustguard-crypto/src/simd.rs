//! ChaCha20-Poly1305 over several packets at once, and X25519. No other module of this crate has `unsafe` code.
//!
//! [`Group`] checks that the packets lie inside the slab. [`Avx512`] and [`Avx2`] prove that the processor has the
//! instructions. With both, the kernels are safe to call. [`backend::simd`](crate::backend::simd) decides which packets
//! go to which kernel.
//!
//! # Algorithm
//! ChaCha20 keeps word `i` of a block in vector `i`, with one block per 32-bit lane. Any lane can compute any block of
//! any packet. The texts of a group therefore form one stream of blocks ([`Blocks`]). Packets of different lengths
//! leave no lane idle, except at the end of the stream. Block 0 of every packet, the one-time Poly1305 key, is computed
//! first. Its words have one packet per lane, which is the layout that Poly1305 needs. Poly1305 processes one packet
//! per 64-bit lane, because the blocks of one packet depend on each other. Lanes without a packet repeat packet 0, and
//! their results are discarded.
//!
//! A full group on AVX-512 starts differently. Up to the end of its shortest packet, lane `i` is packet `i`, and all
//! lanes compute the block with the same number. Three quarters of the first round are then computed once for all
//! blocks. Poly1305 processes the sealed blocks between the rounds.
//!
//! X25519 is a Montgomery ladder, each step of which has four multiplications that do not depend on each other, on
//! three levels. They are done in four lanes of 64 bits. Two ladders fill a vector of 512 bits.
//!
//! # Secrets
//! No branch and no address depends on a key, on keystream or on text. They depend only on lengths, on the number of
//! packets, and on which packets are authentic. A ladder exchanges its points by an index of lanes, which is data. Tags
//! are compared in the vector registers; only the result leaves them. Memory that is meant for one-time keys or
//! keystream is wiped. The compiler does not report which registers it spills to the stack, so [`wipe_stack`]
//! overwrites the kernels' part of the stack after a run in which they took part. Registers are not wiped.
#![allow(unsafe_code)]

use self::{avx512::ladder, field::Field};
use crate::frame::{Frame, TAG_LEN};
use core::{arch::asm, marker::PhantomData, mem::MaybeUninit, ops::Range};
use zeroize::{Zeroize, Zeroizing};

mod avx2;
mod avx512;
mod field;

cpufeatures::new!(has_avx512, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512ifma", "avx512vbmi2");
cpufeatures::new!(has_avx2, "avx2");

/// The number of packets in a group, and of 32-bit lanes in the widest vector.
pub(crate) const GROUP: usize = 16;
/// The longest text in a group, in bytes. No datagram carries more. With this limit, no block counter, length or sum
/// here can overflow.
pub(crate) const MAX_LEN: usize = u16::MAX as usize;

/// The length of a ChaCha20 block in bytes.
const BLOCK: usize = 64;
/// The first row of every block: "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Proof that the processor and the operating system support AVX-512 F, BW, VL, DQ, IFMA and VBMI2 (Ice Lake, Zen 4 and
/// later).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns the proof if the features are there.
    pub(crate) fn detect() -> Option<Self> {
        has_avx512::get().then_some(Self(()))
    }

    /// Encrypts every text of the group in place and writes its tag behind it.
    pub(crate) fn seal(self, key: &[u32; 8], group: &mut Group<'_>) {
        // SAFETY: `self` exists only if `detect` found every feature.
        unsafe { avx512::seal(key, group) }
    }

    /// Decrypts the authentic texts in place, and does not change the others. Bit `i` of the result is set if packet
    /// `i` is authentic.
    pub(crate) fn open(self, key: &[u32; 8], group: &mut Group<'_>) -> u32 {
        // SAFETY: `self` exists only if `detect` found every feature.
        unsafe { avx512::open(key, group) }
    }

    /// X25519 of a clamped scalar and a coordinate u, whose highest bit is ignored (RFC 7748, section 5). The result is
    /// 0 if the point has a low order.
    #[inline(never)]
    pub(crate) fn x25519(self, scalar: &[u8; 32], point: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        // SAFETY: `self` exists only if `detect` found every feature.
        let [(mut x, mut z)] = unsafe { ladder::one::ladder([scalar], [&Field::from_bytes(point)]) };
        let shared = Zeroizing::new(x.multiply(&z.inverted()).to_bytes());
        x.zeroize();
        z.zeroize();
        shared
    }

    /// Does the same for two scalars and their points, in little more than the time of one. Both results are 0 if one
    /// of the points has a low order.
    #[inline(never)]
    pub(crate) fn x25519_pair(self, scalars: [&[u8; 32]; 2], points: [&[u8; 32]; 2]) -> [Zeroizing<[u8; 32]>; 2] {
        let [p, q] = points.map(Field::from_bytes);
        // SAFETY: `self` exists only if `detect` found every feature.
        let mut results = unsafe { ladder::two::ladder(scalars, [&p, &q]) };
        let [(x, z), (other_x, other_z)] = &results;
        // One inversion is enough for both: 1 / z is the other z, divided by the product of both.
        let mut inverse = z.multiply(other_z).inverted();
        let shared = [
            Zeroizing::new(x.multiply(other_z).multiply(&inverse).to_bytes()),
            Zeroizing::new(other_x.multiply(z).multiply(&inverse).to_bytes()),
        ];
        inverse.zeroize();
        results.iter_mut().for_each(|(x, z)| {
            x.zeroize();
            z.zeroize();
        });
        shared
    }
}

/// Proof that the processor and the operating system support AVX2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns the proof if the features are there.
    pub(crate) fn detect() -> Option<Self> {
        has_avx2::get().then_some(Self(()))
    }

    /// Encrypts every text of the group in place and writes its tag behind it.
    pub(crate) fn seal(self, key: &[u32; 8], group: &mut Group<'_>) {
        // SAFETY: `self` exists only if `detect` found the feature.
        unsafe { avx2::seal(key, group) }
    }

    /// Decrypts the authentic texts in place, and does not change the others. Bit `i` of the result is set if packet
    /// `i` is authentic.
    pub(crate) fn open(self, key: &[u32; 8], group: &mut Group<'_>) -> u32 {
        // SAFETY: `self` exists only if `detect` found the feature.
        unsafe { avx2::open(key, group) }
    }
}

/// Between 1 and [`GROUP`] packets of one slab.
///
/// Each of `packets` and its tag lie inside the slab, and the slab is borrowed for as long as the group lives. The
/// kernels rely on both. Only [`Group::new`] makes a group.
pub(crate) struct Group<'slab> {
    /// The entries past `count` repeat the first.
    packets: [Packet; GROUP],
    count: usize,
    slab: PhantomData<&'slab mut [u8]>,
}

/// The place of a packet in the slab, and its counter.
#[derive(Clone, Copy)]
struct Packet {
    /// The start of `len` bytes of text, which are followed by [`TAG_LEN`] bytes of tag.
    text: *mut u8,
    len: usize,
    counter: u64,
}

impl<'slab> Group<'slab> {
    /// Checks that the frames lie inside the slab.
    ///
    /// # Panics
    /// When a frame does not lie inside the slab, when there are no frames or more than [`GROUP`], or when a text is
    /// longer than [`MAX_LEN`].
    pub(crate) fn new(slab: &'slab mut [u8], frames: impl ExactSizeIterator<Item = Frame>) -> Self {
        let count = frames.len();
        assert!((1..=GROUP).contains(&count), "a group has between 1 and 16 packets");
        let base = slab.as_mut_ptr();
        let mut packets = [Packet { text: base, len: 0, counter: 0 }; GROUP];
        for (packet, frame) in packets.iter_mut().zip(frames) {
            assert!(frame.len <= MAX_LEN, "the text fits a datagram");
            // This call is only for its checks. Its pointers cannot be used, because each call would invalidate those
            // of the frame before.
            let _ = frame.split(slab);
            *packet = Packet { text: base.wrapping_add(frame.offset), len: frame.len, counter: frame.counter };
        }
        let first = packets[0];
        packets[count..].fill(first);
        Self { packets, count, slab: PhantomData }
    }

    /// A bit mask of all packets.
    fn everyone(&self) -> u32 {
        (1 << self.count) - 1
    }

    /// The low and high halves of the counters, which are the last two words of the nonces.
    fn nonces<const N: usize>(&self, first: usize) -> ([u32; N], [u32; N]) {
        let counter = |i: usize| self.packets[first + i].counter;
        (core::array::from_fn(|i| counter(i) as u32), core::array::from_fn(|i| (counter(i) >> 32) as u32))
    }

    /// The received tag of packet `i`, as two little-endian halves.
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
        // SAFETY: as in `tag`. The slab is borrowed mutably, also through `self`.
        unsafe { text.add(len).cast::<[u8; TAG_LEN]>().write(tag) };
    }
}

/// The texts of some packets of a group, as one stream of ChaCha20 blocks. Each text begins with block 1 of its packet.
struct Blocks<'group> {
    packets: &'group [Packet; GROUP],
    /// The part of each text that belongs to the stream. A shorter text ends earlier.
    bytes: Range<usize>,
    /// The packets that are left, none of them empty. Bit `i` stands for `packets[i]`.
    wanted: u32,
    /// The bytes of the first of these packets that are done. They are whole blocks.
    done: usize,
}

/// The next `N` blocks of a stream, or fewer at its end: the block that each lane computes, and the place of its text.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes<const N: usize> {
    /// The block counters.
    block: [u32; N],
    /// The packets' counters: low halves and high halves.
    low: [u32; N],
    high: [u32; N],
    /// The texts, in the order of the lanes.
    pieces: [Piece; N],
    /// The number of valid `pieces`.
    count: usize,
}

/// Consecutive blocks of one packet.
#[derive(Clone, Copy)]
struct Piece {
    /// The first lane of the piece. All pieces together take at most `N` lanes.
    lane: usize,
    /// The start of `len` bytes of text inside the slab. There is a lane for every 64 bytes, and one for the rest.
    text: *mut u8,
    len: usize,
}

impl<'group> Blocks<'group> {
    /// The stream of those `bytes` that the `wanted` packets' texts have. The range starts at the start of a block.
    fn new(group: &'group Group<'_>, mut wanted: u32, bytes: Range<usize>) -> Self {
        for (i, packet) in group.packets.iter().enumerate() {
            wanted &= !(u32::from(packet.len.min(bytes.end) <= bytes.start) << i);
        }
        Self { packets: &group.packets, wanted, done: bytes.start, bytes }
    }

    /// Writes the next blocks to `lanes`. Returns false if no blocks are left.
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

/// Overwrites the stack that a kernel has used when it was called at the same depth. The kernel may have left keystream
/// there.
///
/// No rule makes a compiler put stack frames where this function expects them, but every compiler for x86-64 does so.
#[inline(never)]
pub(crate) fn wipe_stack() {
    let mut frames = MaybeUninit::<[u8; STACK]>::uninit();
    let start = frames.as_mut_ptr();
    // SAFETY: the whole of `frames` is written, and nothing is read.
    unsafe { start.write_bytes(0, 1) };
    // SAFETY: the code has no instructions. The compiler has to assume that it reads `frames`, so the bytes must be
    // written before.
    unsafe { asm!("/* {} */", in(reg) start, options(nostack, preserves_flags)) };
}

/// The size in bytes. It is more than the kernels' stack frames: the deepest are `open`, `open_together` and
/// `block_and_all` of AVX-512, with 12,300 bytes together in an optimised build.
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

    /// Compares tags for keys and texts whose sums come close to 2^130 - 5, to 2^130 and to 2^128, and whose carries
    /// run through every limb.
    ///
    /// ChaCha20 practically never produces such keys, so tests of whole packets cannot find these cases.
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
                            // With the lengths, the sum is 2^130 minus `shift` where r is 1. Only this case shows
                            // whether the sum is reduced.
                            (32, 0, 0) => 0u128.wrapping_sub(shift as u128 + (32 << 64)),
                            (32, 0, 1) => 0,
                            // Packets of the first half repeat a single block. Packets of the second half use all
                            // blocks in turn.
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
