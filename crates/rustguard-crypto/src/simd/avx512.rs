//! Sixteen packets at a time on AVX-512. ChaCha20 uses lanes of 32 bits, and Poly1305 lanes of 64 bits. X25519 is in
//! [`ladder`].

use self::{
    chacha20::{Together, apply_keystream, apply_together, mix_last, open_together, seal_together},
    poly1305::{POWERS_PAY, Poly1305},
};
use super::{BLOCK, Blocks, CONSTANTS, GROUP, Group, Lanes, Packet};
use core::{arch::x86_64::*, array};
use zeroize::Zeroize;

mod chacha20;
pub(super) mod ladder;
mod poly1305;

/// The number of packets that Poly1305 processes at once: one per 64-bit lane.
const HALF: usize = GROUP / 2;

/// Does what [`Avx512::seal`](super::Avx512::seal) promises.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn seal(key: &[u32; 8], group: &mut Group<'_>) {
    let mut together = Together::new(key, group);
    let mut one_time = together.one_time_keys();
    let mut hashes = [Poly1305::new(&one_time, 0), Poly1305::new(&one_time, 1)];
    let (blocks, chunks) = group.together();
    let mut hashed = 0;
    if chunks >= POWERS_PAY {
        // SAFETY: every packet of the group has that many blocks, at least three.
        unsafe { seal_together(&together, group, &mut hashes, (blocks, chunks)) };
        hashed = chunks;
    } else {
        // SAFETY: every packet of the group has that many blocks.
        unsafe { apply_together(&together, group, blocks) };
    }
    apply_keystream(key, group, group.everyone(), blocks * BLOCK..usize::MAX);
    for (half, hash) in hashes.iter_mut().enumerate().take(group.count.div_ceil(HALF)) {
        let (low, high) = hash.finish(group.half(half), hashed);
        let (low, high) = (to_array(low), to_array(high));
        for i in 0..HALF.min(group.count - half * HALF) {
            group.set_tag(half * HALF + i, low[i], high[i]);
        }
    }
    one_time.zeroize();
    hashes.iter_mut().for_each(|hash| hash.wipe());
    together.wipe();
}

/// Does what [`Avx512::open`](super::Avx512::open) promises.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn open(key: &[u32; 8], group: &mut Group<'_>) -> u32 {
    let mut together = Together::new(key, group);
    let mut one_time = together.one_time_keys();
    let mut hashes = [Poly1305::new(&one_time, 0), Poly1305::new(&one_time, 1)];
    let (blocks, chunks) = group.together();
    // All blocks except for the last are decrypted before the tags are known, because doing both at once takes less
    // time.
    let mut last = None;
    let mut hashed = 0;
    if chunks >= POWERS_PAY {
        // SAFETY: every packet of the group has that many blocks, at least three.
        last = Some(unsafe { open_together(&together, group, &mut hashes, (blocks, chunks)) });
        hashed = chunks;
    }
    let mut authentic = 0;
    for (half, hash) in hashes.iter_mut().enumerate().take(group.count.div_ceil(HALF)) {
        let (low, high) = hash.finish(group.half(half), hashed);
        let came: [(u64, u64); HALF] = array::from_fn(|i| group.tag(half * HALF + i));
        let came_low = from_array(came.map(|(low, _)| low));
        let came_high = from_array(came.map(|(_, high)| high));
        let same = _mm512_cmpeq_epi64_mask(low, came_low) & _mm512_cmpeq_epi64_mask(high, came_high);
        authentic |= u32::from(same) << (half * HALF);
    }
    one_time.zeroize();
    hashes.iter_mut().for_each(|hash| hash.wipe());
    authentic &= group.everyone();
    let forged = group.everyone() & !authentic;
    let mut decrypted = 0;
    if let Some(last) = &mut last {
        // SAFETY: every packet of the group has that many blocks.
        unsafe { mix_last(group, authentic, last, blocks - 1) };
        // The same keystream is applied once more, which restores the received text of a forged packet.
        apply_keystream(key, group, forged, 0..(blocks - 1) * BLOCK);
        decrypted = blocks;
    } else if forged == 0 {
        // SAFETY: every packet of the group has that many blocks.
        unsafe { apply_together(&together, group, blocks) };
        decrypted = blocks;
    }
    apply_keystream(key, group, authentic, decrypted * BLOCK..usize::MAX);
    together.wipe();
    authentic
}

impl Group<'_> {
    fn half(&self, half: usize) -> &[Packet; HALF] {
        self.packets[half * HALF..].first_chunk().expect("a group has two halves")
    }

    /// The number of blocks that all packets of a full group have, and the number of them that are whole. The last
    /// block may be partial.
    fn together(&self) -> (usize, usize) {
        let shortest = self.packets.iter().map(|packet| packet.len).fold(usize::MAX, usize::min);
        if self.count == GROUP { (shortest.div_ceil(BLOCK), shortest / BLOCK) } else { (0, 0) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn words(lanes: &[u32; 16]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64 bytes, at any alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn from_array(lanes: [u64; HALF]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64 bytes, at any alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn to_array(lanes: __m512i) -> [u64; HALF] {
    let mut array = [0; HALF];
    // SAFETY: 64 bytes are written to an array of 64 bytes, at any alignment.
    unsafe { _mm512_storeu_si512(array.as_mut_ptr().cast(), lanes) };
    array
}

/// The tags of a full group under given one-time keys. Each array has one word of every key.
#[cfg(test)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn tags_of_all(keys: &[[u32; GROUP]; 8], group: &Group<'_>) -> [u128; GROUP] {
    let keys = array::from_fn(|i| words(&keys[i]));
    let halves = [0, 1].map(|half| Poly1305::new(&keys, half).finish(group.half(half), 0));
    let halves = halves.map(|(low, high)| (to_array(low), to_array(high)));
    array::from_fn(|i| {
        let (low, high) = &halves[i / HALF];
        u128::from(high[i % HALF]) << 64 | u128::from(low[i % HALF])
    })
}
