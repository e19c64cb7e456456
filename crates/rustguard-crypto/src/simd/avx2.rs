//! Eight blocks of ChaCha20 at a time, and Poly1305 of four packets with limbs of 26 bits.

use super::{Blocks, CONSTANTS, GROUP, Group, Lanes, Packet};
use core::{arch::x86_64::*, array};
use zeroize::Zeroize;

/// The number of packets whose one-time keys are computed at once.
const HALF: usize = GROUP / 2;
/// The number of packets that Poly1305 processes at once: one per 64-bit lane.
const QUARTER: usize = GROUP / 4;

/// Does what [`Avx2::seal`](super::Avx2::seal) promises.
#[target_feature(enable = "avx2")]
pub(super) fn seal(key: &[u32; 8], group: &mut Group<'_>) {
    apply_keystream(key, group, group.everyone());
    for half in (0..group.count).step_by(HALF) {
        let mut one_time = one_time_keys(key, group, half);
        for quarter in (half..group.count.min(half + HALF)).step_by(QUARTER) {
            let (low, high) = tags(&one_time, quarter - half, quarter_of(&group.packets, quarter));
            let (low, high) = (to_array(low), to_array(high));
            for i in 0..QUARTER.min(group.count - quarter) {
                group.set_tag(quarter + i, low[i], high[i]);
            }
        }
        one_time.zeroize();
    }
}

/// Does what [`Avx2::open`](super::Avx2::open) promises.
#[target_feature(enable = "avx2")]
pub(super) fn open(key: &[u32; 8], group: &mut Group<'_>) -> u32 {
    let mut authentic = 0;
    for half in (0..group.count).step_by(HALF) {
        let mut one_time = one_time_keys(key, group, half);
        for quarter in (half..group.count.min(half + HALF)).step_by(QUARTER) {
            let (low, high) = tags(&one_time, quarter - half, quarter_of(&group.packets, quarter));
            let came: [(u64, u64); QUARTER] = array::from_fn(|i| group.tag(quarter + i));
            let (came_low, came_high) = (came.map(|(low, _)| low), came.map(|(_, high)| high));
            let same_low = _mm256_cmpeq_epi64(low, from_array(&came_low));
            let same_high = _mm256_cmpeq_epi64(high, from_array(&came_high));
            let same = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_and_si256(same_low, same_high)));
            authentic |= same.cast_unsigned() << quarter;
        }
        one_time.zeroize();
    }
    authentic &= group.everyone();
    apply_keystream(key, group, authentic);
    authentic
}

fn quarter_of(packets: &[Packet; GROUP], first: usize) -> &[Packet; QUARTER] {
    packets[first..].first_chunk().expect("a quarter begins at a multiple of its size")
}

// ----------------------------------------------------------------------------------------------------------------
// ChaCha20

/// The first eight words of block 0 of the packets of a half, with packet `half + i` in lane `i`.
#[target_feature(enable = "avx2")]
fn one_time_keys(key: &[u32; 8], group: &Group<'_>, half: usize) -> [__m256i; 8] {
    let (low, high) = group.nonces::<HALF>(half);
    let [front, _] = keystream(key, _mm256_setzero_si256(), words(&low), words(&high));
    front
}

/// Encrypts or decrypts the texts of the `wanted` packets.
#[target_feature(enable = "avx2")]
fn apply_keystream(key: &[u32; 8], group: &mut Group<'_>, wanted: u32) {
    let mut blocks = Blocks::new(group, wanted, 0..usize::MAX);
    let mut stream = [[_mm256_setzero_si256(); 2]; 8];
    let mut lanes = Lanes::<8>::new();
    while blocks.next(&mut lanes) {
        let [front, back] = keystream(key, words(&lanes.block), words(&lanes.low), words(&lanes.high));
        let (front, back) = (transpose(front), transpose(back));
        for lane in 0..8 {
            stream[lane] = [front[lane], back[lane]];
        }
        for piece in &lanes.pieces[..lanes.count] {
            // SAFETY: the text of a piece lies inside the slab, which the group borrows mutably. The piece has a lane
            // for each of its blocks.
            unsafe { mix(piece.text, stream.as_ptr().add(piece.lane).cast(), piece.len) };
        }
    }
    stream.zeroize();
}

/// XORs keystream into text.
///
/// # Safety
/// `len` bytes at `text` can be read and written, and `len` bytes at `stream` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn mix(text: *mut u8, stream: *const u8, len: usize) {
    let mut done = 0;
    while done + 32 <= len {
        // SAFETY: the 32 bytes from `done` on are among the `len`.
        unsafe {
            let text = text.add(done).cast();
            let mixed = _mm256_xor_si256(_mm256_loadu_si256(text), _mm256_loadu_si256(stream.add(done).cast()));
            _mm256_storeu_si256(text, mixed);
        }
        done += 32;
    }
    for i in done..len {
        // SAFETY: `i` is below `len`.
        unsafe { *text.add(i) ^= *stream.add(i) };
    }
}

/// Eight blocks, with word `i` of each in vector `i`. The result has words 0 to 7, and words 8 to 15.
#[inline]
#[target_feature(enable = "avx2")]
fn keystream(key: &[u32; 8], block: __m256i, low: __m256i, high: __m256i) -> [[__m256i; 8]; 2] {
    let initial: [__m256i; 16] = array::from_fn(|i| match i {
        0..4 => _mm256_set1_epi32(CONSTANTS[i].cast_signed()),
        4..12 => _mm256_set1_epi32(key[i - 4].cast_signed()),
        12 => block,
        // WireGuard's nonces begin with 32 zero bits.
        13 => _mm256_setzero_si256(),
        14 => low,
        _ => high,
    });
    let mut state = initial;
    for _ in 0..10 {
        for [a, b, c, d] in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]] {
            quarter_round(&mut state, a, b, c, d);
        }
        for [a, b, c, d] in [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]] {
            quarter_round(&mut state, a, b, c, d);
        }
    }
    array::from_fn(|half| array::from_fn(|i| _mm256_add_epi32(state[8 * half + i], initial[8 * half + i])))
}

/// The quarter round of RFC 8439, section 2.1.
#[inline]
#[target_feature(enable = "avx2")]
fn quarter_round(state: &mut [__m256i; 16], a: usize, b: usize, c: usize, d: usize) {
    // A rotation by whole bytes takes one shuffle.
    let by16 =
        _mm256_set_epi64x(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302, 0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302);
    let by8 =
        _mm256_set_epi64x(0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003, 0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003);
    state[a] = _mm256_add_epi32(state[a], state[b]);
    state[d] = _mm256_shuffle_epi8(_mm256_xor_si256(state[d], state[a]), by16);
    state[c] = _mm256_add_epi32(state[c], state[d]);
    let t = _mm256_xor_si256(state[b], state[c]);
    state[b] = _mm256_or_si256(_mm256_slli_epi32::<12>(t), _mm256_srli_epi32::<20>(t));
    state[a] = _mm256_add_epi32(state[a], state[b]);
    state[d] = _mm256_shuffle_epi8(_mm256_xor_si256(state[d], state[a]), by8);
    state[c] = _mm256_add_epi32(state[c], state[d]);
    let t = _mm256_xor_si256(state[b], state[c]);
    state[b] = _mm256_or_si256(_mm256_slli_epi32::<7>(t), _mm256_srli_epi32::<25>(t));
}

/// Transposes eight half blocks: from word `i` of each in vector `i` to half block `i` in vector `i`.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(word: [__m256i; 8]) -> [__m256i; 8] {
    // Words 4g to 4g + 3 of blocks c and 4 + c, 128 bits each.
    let halves: [[__m256i; 4]; 2] = array::from_fn(|g| {
        let [a, b, c, d] = array::from_fn(|i| word[4 * g + i]);
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    });
    let mut block = word;
    for c in 0..4 {
        block[c] = _mm256_permute2x128_si256::<0x20>(halves[0][c], halves[1][c]);
        block[4 + c] = _mm256_permute2x128_si256::<0x31>(halves[0][c], halves[1][c]);
    }
    block
}

#[inline]
#[target_feature(enable = "avx2")]
fn words(lanes: &[u32; 8]) -> __m256i {
    // SAFETY: 32 bytes are read from an array of 32 bytes, at any alignment.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

// ----------------------------------------------------------------------------------------------------------------
// Poly1305
//
// A number below 2^130 has five limbs of 26 bits per lane, because AVX2 multiplies 32 bits by 32 bits to 64 bits.

const MASK26: i64 = (1 << 26) - 1;

/// Four numbers, one in each lane.
type Limbs = [__m256i; 5];

/// The tags of four packets, as low and high 64 bits: Poly1305 of text, padding and lengths (RFC 8439, section 2.8).
///
/// Their one-time keys are in `one_time` from lane `first` on. `first` is 0 or 4.
#[target_feature(enable = "avx2")]
fn tags(one_time: &[__m256i; 8], first: usize, packets: &[Packet; QUARTER]) -> (__m256i, __m256i) {
    let [r_low, r_high, s_low, s_high] = array::from_fn(|i| pair(one_time[2 * i], one_time[2 * i + 1], first));
    let r = split(
        _mm256_and_si256(r_low, _mm256_set1_epi64x(0x0fff_fffc_0fff_ffff)),
        _mm256_and_si256(r_high, _mm256_set1_epi64x(0x0fff_fffc_0fff_fffc)),
    );
    // 2^130 equals 5 modulo 2^130 - 5.
    let times5 = r.map(|limb| _mm256_add_epi64(limb, _mm256_slli_epi64::<2>(limb)));

    let mut sum = [_mm256_setzero_si256(); 5];
    // The whole blocks that all packets have come first, then the blocks that only some have.
    let common = packets.iter().map(|packet| packet.len).fold(usize::MAX, usize::min) / 16;
    let blocks = packets.iter().map(|packet| packet.len).fold(0, usize::max).div_ceil(16);
    for block in 0..common {
        // SAFETY: every text has at least `common` whole blocks, of which this is one.
        let block = unsafe { load(array::from_fn(|i| packets[i].text.add(16 * block).cast_const())) };
        sum = multiply(add(sum, message(block)), &r, &times5);
    }
    for block in common..blocks {
        // The block is copied and padded with zeros. It is sealed text, so the copy need not be wiped.
        let mut padded = [[0u8; 16]; QUARTER];
        let mut present = [0; QUARTER];
        for i in 0..QUARTER {
            let left = packets[i].len.saturating_sub(16 * block).min(16);
            // SAFETY: the text has `left` bytes from this block on, and `left` is at most 16.
            unsafe { padded[i].as_mut_ptr().copy_from_nonoverlapping(packets[i].text.wrapping_add(16 * block), left) };
            present[i] = if left > 0 { u64::MAX } else { 0 };
        }
        // SAFETY: each is a whole array of 16 bytes.
        let block = unsafe { load(array::from_fn(|i| padded[i].as_ptr())) };
        let next = multiply(add(sum, message(block)), &r, &times5);
        let present = from_array(&present);
        sum = array::from_fn(|limb| _mm256_blendv_epi8(sum[limb], next[limb], present));
    }
    // The last block has the length of the additional data, which is 0, and the length of the text.
    let lengths = (_mm256_setzero_si256(), from_array(&array::from_fn(|i| packets[i].len as u64)));
    finish(multiply(add(sum, message(lengths)), &r, &times5), s_low, s_high)
}

/// Joins two 32-bit words of each of four packets to 64-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn pair(low: __m256i, high: __m256i, first: usize) -> __m256i {
    let [low, high] = [low, high].map(|words| {
        let words = if first == 0 { _mm256_castsi256_si128(words) } else { _mm256_extracti128_si256::<1>(words) };
        _mm256_cvtepu32_epi64(words)
    });
    _mm256_or_si256(low, _mm256_slli_epi64::<32>(high))
}

/// Loads a block of each of four packets, as low and high 64 bits, with packet `i` in lane `i`.
///
/// # Safety
/// 16 bytes can be read at each of `texts`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(texts: [*const u8; QUARTER]) -> (__m256i, __m256i) {
    // SAFETY: 16 bytes are read at each of `texts`, at any alignment.
    let [a, b, c, d] = texts.map(|text| unsafe { _mm_loadu_si128(text.cast()) });
    let (ac, bd) = (_mm256_set_m128i(c, a), _mm256_set_m128i(d, b));
    (_mm256_unpacklo_epi64(ac, bd), _mm256_unpackhi_epi64(ac, bd))
}

/// A block as a number: its 128 bits, and a 1 above them.
#[inline]
#[target_feature(enable = "avx2")]
fn message((low, high): (__m256i, __m256i)) -> Limbs {
    let [m0, m1, m2, m3, m4] = split(low, high);
    [m0, m1, m2, m3, _mm256_or_si256(m4, _mm256_set1_epi64x(1 << 24))]
}

/// 128 bits as limbs.
#[inline]
#[target_feature(enable = "avx2")]
fn split(low: __m256i, high: __m256i) -> Limbs {
    let mask = _mm256_set1_epi64x(MASK26);
    let middle = _mm256_or_si256(_mm256_srli_epi64::<52>(low), _mm256_slli_epi64::<12>(high));
    [
        _mm256_and_si256(low, mask),
        _mm256_and_si256(_mm256_srli_epi64::<26>(low), mask),
        _mm256_and_si256(middle, mask),
        _mm256_and_si256(_mm256_srli_epi64::<14>(high), mask),
        _mm256_srli_epi64::<40>(high),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: Limbs, b: Limbs) -> Limbs {
    array::from_fn(|i| _mm256_add_epi64(a[i], b[i]))
}

/// The product of `a` and `r`. Its limbs have 26 bits, except for the second, which has a few more.
///
/// Factors stay below 2^32: a limb of a sum has at most 28 bits, and a limb of `times5` at most 29. Five products fit
/// 60 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply(a: Limbs, r: &Limbs, times5: &Limbs) -> Limbs {
    let mut d: Limbs = array::from_fn(|i| _mm256_mul_epu32(a[0], r[i]));
    for j in 1..5 {
        for i in 0..5 {
            let factor = if i >= j { r[i - j] } else { times5[5 + i - j] };
            d[i] = _mm256_add_epi64(d[i], _mm256_mul_epu32(a[j], factor));
        }
    }
    carry(d)
}

/// Passes carries from limb 0 up to limb 4, from there around to limb 0, and into limb 1.
#[inline]
#[target_feature(enable = "avx2")]
fn carry(mut d: Limbs) -> Limbs {
    let mask = _mm256_set1_epi64x(MASK26);
    for i in 0..4 {
        d[i + 1] = _mm256_add_epi64(d[i + 1], _mm256_srli_epi64::<26>(d[i]));
        d[i] = _mm256_and_si256(d[i], mask);
    }
    let over = _mm256_srli_epi64::<26>(d[4]);
    d[4] = _mm256_and_si256(d[4], mask);
    d[0] = _mm256_add_epi64(d[0], _mm256_add_epi64(over, _mm256_slli_epi64::<2>(over)));
    d[1] = _mm256_add_epi64(d[1], _mm256_srli_epi64::<26>(d[0]));
    d[0] = _mm256_and_si256(d[0], mask);
    d
}

/// The sum modulo 2^130 - 5, plus `s`, modulo 2^128.
#[inline]
#[target_feature(enable = "avx2")]
fn finish(sum: Limbs, s_low: __m256i, s_high: __m256i) -> (__m256i, __m256i) {
    let mask = _mm256_set1_epi64x(MASK26);
    // Carry once around and up to the top again. The part above 2^130 is then less than 5.
    let mut h = carry(sum);
    for i in 1..4 {
        h[i + 1] = _mm256_add_epi64(h[i + 1], _mm256_srli_epi64::<26>(h[i]));
        h[i] = _mm256_and_si256(h[i], mask);
    }

    // Compute the sum plus 5 minus 2^130. If that is not negative, it is the reduced sum.
    let mut g = h;
    g[0] = _mm256_add_epi64(g[0], _mm256_set1_epi64x(5));
    for i in 0..4 {
        g[i + 1] = _mm256_add_epi64(g[i + 1], _mm256_srli_epi64::<26>(g[i]));
        g[i] = _mm256_and_si256(g[i], mask);
    }
    g[4] = _mm256_sub_epi64(g[4], _mm256_set1_epi64x(1 << 26));
    let negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), g[4]);
    let h: Limbs = array::from_fn(|i| _mm256_blendv_epi8(g[i], h[i], negative));

    let low = _mm256_or_si256(_mm256_or_si256(h[0], _mm256_slli_epi64::<26>(h[1])), _mm256_slli_epi64::<52>(h[2]));
    let high = _mm256_or_si256(
        _mm256_or_si256(_mm256_srli_epi64::<12>(h[2]), _mm256_slli_epi64::<14>(h[3])),
        _mm256_slli_epi64::<40>(h[4]),
    );
    let low = _mm256_add_epi64(low, s_low);
    // AVX2 only compares signed numbers. With flipped top bits, their order is that of unsigned numbers.
    let top = _mm256_set1_epi64x(i64::MIN);
    let carry = _mm256_cmpgt_epi64(_mm256_xor_si256(s_low, top), _mm256_xor_si256(low, top));
    (low, _mm256_sub_epi64(_mm256_add_epi64(high, s_high), carry))
}

#[inline]
#[target_feature(enable = "avx2")]
fn from_array(lanes: &[u64; QUARTER]) -> __m256i {
    // SAFETY: 32 bytes are read from an array of 32 bytes, at any alignment.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn to_array(lanes: __m256i) -> [u64; QUARTER] {
    let mut array = [0; QUARTER];
    // SAFETY: 32 bytes are written to an array of 32 bytes, at any alignment.
    unsafe { _mm256_storeu_si256(array.as_mut_ptr().cast(), lanes) };
    array
}

/// The tags of a full group under given one-time keys. Each array has one word of every key.
#[cfg(test)]
#[target_feature(enable = "avx2")]
pub(super) fn tags_of_all(keys: &[[u32; GROUP]; 8], group: &Group<'_>) -> [u128; GROUP] {
    let mut all = [0; GROUP];
    for quarter in (0..GROUP).step_by(QUARTER) {
        let first = quarter % HALF;
        let keys = array::from_fn(|i| words(keys[i][quarter - first..].first_chunk().expect("there are two halves")));
        let (low, high) = tags(&keys, first, quarter_of(&group.packets, quarter));
        let (low, high) = (to_array(low), to_array(high));
        for i in 0..QUARTER {
            all[quarter + i] = u128::from(high[i]) << 64 | u128::from(low[i]);
        }
    }
    all
}
