//! Poly1305 of eight packets with limbs of 44 bits, for the multiplications of IFMA (RFC 8439, section 2.5).
//!
//! A number below 2^130 has three limbs of 44, 44 and 42 bits per lane. IFMA multiplies two factors below 2^52, and
//! adds the low or the high 52 bits of the product to a sum. A high half weighs 2^52 times as much as the low half,
//! which is 2^8 times the weight of the next limb.

use super::{BLOCK, HALF, Packet, from_array};
use core::{arch::x86_64::*, array};
use zeroize::Zeroize;

const MASK44: i64 = (1 << 44) - 1;
const MASK42: i64 = (1 << 42) - 1;

/// Eight numbers, one in each lane.
type Limbs = [__m512i; 3];

/// A power of `r` as a factor: its limbs, and 20 times the upper two limbs, because 2^132 equals 20 modulo 2^130 - 5.
#[derive(Clone, Copy)]
struct Factor {
    limbs: Limbs,
    times20: [__m512i; 2],
}

/// The running sums of eight packets, and their one-time keys.
pub(super) struct Poly1305 {
    sum: Limbs,
    r: Factor,
    /// The second half of the key, as low and high 64 bits.
    s: (__m512i, __m512i),
}

/// The values with which a chunk of four blocks is absorbed with a single reduction.
pub(super) struct Powers {
    /// The factors of the four blocks of a chunk: r^4, r^3, r^2 and r.
    factors: [Factor; 4],
    /// The constant contribution of the bits above the 128 bits of each block.
    tops: Product,
}

/// A chunk of each packet, while it is absorbed.
pub(super) struct Chunk {
    blocks: [(__m512i, __m512i); 4],
    product: Product,
}

impl Poly1305 {
    /// Takes the one-time keys of one half of a group. Each vector has one word of every key of the group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn new(one_time: &[__m512i; 8], half: usize) -> Self {
        let [r_low, r_high, s_low, s_high] = array::from_fn(|i| pair(one_time[2 * i], one_time[2 * i + 1], half));
        let r = split(
            _mm512_and_si512(r_low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff)),
            _mm512_and_si512(r_high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc)),
        );
        Self { sum: [_mm512_setzero_si512(); 3], r: factor(r), s: (s_low, s_high) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn powers(&self) -> Powers {
        let r = self.r;
        let r2 = factor(multiply(r.limbs, &r));
        let factors = [factor(multiply(r2.limbs, &r2)), factor(multiply(r2.limbs, &r)), r2, r];
        let mut tops = zero();
        for power in &factors {
            tops =
                multiply_add(tops, [_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_set1_epi64(1 << 40)], power);
        }
        Powers { factors, tops }
    }

    /// Absorbs a whole chunk of 64 bytes of every packet.
    ///
    /// # Safety
    /// Each of `packets` has a whole chunk of this number.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) unsafe fn absorb(&mut self, powers: &Powers, packets: &[Packet; HALF], chunk: usize) {
        // SAFETY: the caller promises this.
        let mut chunk = unsafe { Chunk::load(powers, packets, chunk) };
        for i in [1, 2, 3] {
            chunk.multiply(powers, i);
        }
        self.add(powers, chunk);
    }

    /// Adds the present sum to the products of the chunk: (sum + b0) r^4 + b1 r^3 + b2 r^2 + b3 r.
    ///
    /// Only this step has to wait for the chunk before.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn add(&mut self, powers: &Powers, chunk: Chunk) {
        let (low, high) = chunk.blocks[0];
        self.sum = reduce(multiply_add(chunk.product, add(self.sum, split(low, high)), &powers.factors[0]));
    }

    /// Absorbs the texts from the chunk `from` on, the padding and the lengths (RFC 8439, section 2.8).
    ///
    /// Every packet has at least `from` chunks. Returns the tags, as low and high 64 bits.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn finish(&mut self, packets: &[Packet; HALF], from: usize) -> (__m512i, __m512i) {
        let chunks = packets.iter().map(|packet| packet.len).fold(0, usize::max).div_ceil(BLOCK);
        // `common` chunks exist in all packets, and the others only in some.
        let common = packets.iter().map(|packet| packet.len).fold(usize::MAX, usize::min) / BLOCK;
        if common >= from + POWERS_PAY {
            let mut powers = self.powers();
            for chunk in from..common {
                // SAFETY: every text has at least `common` chunks, of which this is one.
                unsafe { self.absorb(&powers, packets, chunk) };
            }
            powers.wipe();
        } else {
            for chunk in from..common {
                // SAFETY: as above.
                let blocks = unsafe { load(array::from_fn(|i| packets[i].text.add(chunk * BLOCK).cast_const())) };
                for block in blocks {
                    self.sum = multiply(add(self.sum, message(block)), &self.r);
                }
            }
        }
        for chunk in common.max(from)..chunks {
            // The chunk is copied and padded with zeros. It is sealed text, so the copy need not be wiped.
            let mut padded = [[0u8; BLOCK]; HALF];
            let left = from_fn_usize(|i| packets[i].len.saturating_sub(chunk * BLOCK).min(BLOCK));
            for i in 0..HALF {
                let mask = if left[i] == BLOCK as u64 { u64::MAX } else { (1 << left[i]) - 1 };
                // SAFETY: the mask has one bit for each byte that the text has in this chunk. No other bytes are read.
                let text = unsafe { _mm512_maskz_loadu_epi8(mask, packets[i].text.wrapping_add(chunk * BLOCK).cast()) };
                // SAFETY: 64 bytes are written to an array of 64 bytes.
                unsafe { _mm512_storeu_epi8(padded[i].as_mut_ptr().cast(), text) };
            }
            // SAFETY: each is a whole array of 64 bytes.
            let blocks = unsafe { load(array::from_fn(|i| padded[i].as_ptr())) };
            let left = from_array(left);
            for (i, block) in (0..).zip(blocks) {
                let present = _mm512_cmpgt_epu64_mask(left, _mm512_set1_epi64(16 * i));
                if present == 0 {
                    break;
                }
                let next = multiply(add(self.sum, message(block)), &self.r);
                self.sum = array::from_fn(|limb| _mm512_mask_mov_epi64(self.sum[limb], present, next[limb]));
            }
        }
        // The last block has the length of the additional data, which is 0, and the length of the text.
        let lengths = (_mm512_setzero_si512(), from_array(from_fn_usize(|i| packets[i].len)));
        let sum = multiply(add(self.sum, message(lengths)), &self.r);
        add_s(sum, self.s)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn wipe(&mut self) {
        self.sum.zeroize();
        self.r.wipe();
        self.s.0.zeroize();
        self.s.1.zeroize();
    }
}

impl Powers {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn wipe(&mut self) {
        self.factors.iter_mut().for_each(Factor::wipe);
        self.tops.low.zeroize();
        self.tops.high.zeroize();
    }
}

impl Chunk {
    /// # Safety
    /// Each of `packets` has a whole chunk of this number.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) unsafe fn load(powers: &Powers, packets: &[Packet; HALF], chunk: usize) -> Self {
        // SAFETY: the caller promises this.
        let blocks = unsafe { load(array::from_fn(|i| packets[i].text.add(chunk * BLOCK).cast_const())) };
        Self { blocks, product: powers.tops }
    }

    /// Multiplies one of the blocks 1 to 3 by its power.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn multiply(&mut self, powers: &Powers, i: usize) {
        let (low, high) = self.blocks[i];
        self.product = multiply_add(self.product, split(low, high), &powers.factors[i]);
    }
}

/// From this number of common chunks on, absorbing whole chunks saves more time than the computation of r^2, r^3 and
/// r^4 costs.
pub(super) const POWERS_PAY: usize = 3;

/// Joins two 32-bit words of each packet of a half to 64-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn pair(low: __m512i, high: __m512i, half: usize) -> __m512i {
    let [low, high] = [low, high].map(|words| {
        let words = if half == 0 { _mm512_castsi512_si256(words) } else { _mm512_extracti64x4_epi64::<1>(words) };
        _mm512_cvtepu32_epi64(words)
    });
    _mm512_or_si512(low, _mm512_slli_epi64::<32>(high))
}

/// Loads 64 bytes of each of eight packets as four blocks. Each block has low and high 64 bits, with packet `i` in lane
/// `i`.
///
/// # Safety
/// 64 bytes can be read at each of `texts`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
unsafe fn load(texts: [*const u8; HALF]) -> [(__m512i, __m512i); 4] {
    // Inserting from memory saves half of the shuffles, for which Intel's processors have a single port.
    let two = |a: usize, b: usize, offset: usize| {
        // SAFETY: `offset` is 0 or 32, so the 32 bytes from there are among the 64.
        unsafe {
            let a = _mm256_loadu_si256(texts[a].add(offset).cast());
            let b = _mm256_loadu_si256(texts[b].add(offset).cast());
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
        }
    };
    let mut blocks = [(_mm512_setzero_si512(), _mm512_setzero_si512()); 4];
    for i in 0..2 {
        // Each of these has 128 bits of a block and of the next block of one packet, and the same of a second packet.
        let quarter = [two(0, 2, 32 * i), two(1, 3, 32 * i), two(4, 6, 32 * i), two(5, 7, 32 * i)];
        let low = [_mm512_unpacklo_epi64(quarter[0], quarter[1]), _mm512_unpacklo_epi64(quarter[2], quarter[3])];
        let high = [_mm512_unpackhi_epi64(quarter[0], quarter[1]), _mm512_unpackhi_epi64(quarter[2], quarter[3])];
        blocks[2 * i] = (_mm512_shuffle_i64x2::<0x88>(low[0], low[1]), _mm512_shuffle_i64x2::<0x88>(high[0], high[1]));
        blocks[2 * i + 1] =
            (_mm512_shuffle_i64x2::<0xdd>(low[0], low[1]), _mm512_shuffle_i64x2::<0xdd>(high[0], high[1]));
    }
    blocks
}

/// A block as a number: its 128 bits, and a 1 above them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn message((low, high): (__m512i, __m512i)) -> Limbs {
    let [m0, m1, m2] = split(low, high);
    [m0, m1, _mm512_or_si512(m2, _mm512_set1_epi64(1 << 40))]
}

/// 128 bits as limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn split(low: __m512i, high: __m512i) -> Limbs {
    let mask = _mm512_set1_epi64(MASK44);
    let middle = _mm512_shrdi_epi64::<44>(low, high);
    [_mm512_and_si512(low, mask), _mm512_and_si512(middle, mask), _mm512_srli_epi64::<24>(high)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn add(a: Limbs, b: Limbs) -> Limbs {
    array::from_fn(|i| _mm512_add_epi64(a[i], b[i]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn factor(limbs: Limbs) -> Factor {
    let times20 = |limb| _mm512_add_epi64(_mm512_slli_epi64::<4>(limb), _mm512_slli_epi64::<2>(limb));
    Factor { limbs, times20: [times20(limbs[1]), times20(limbs[2])] }
}

impl Factor {
    fn wipe(&mut self) {
        self.limbs.zeroize();
        self.times20.zeroize();
    }
}

/// The limbs of a product before the carries: sums of low halves, and sums of high halves.
#[derive(Clone, Copy)]
struct Product {
    low: Limbs,
    high: Limbs,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn multiply(a: Limbs, b: &Factor) -> Limbs {
    reduce(multiply_add(zero(), a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn zero() -> Product {
    Product { low: [_mm512_setzero_si512(); 3], high: [_mm512_setzero_si512(); 3] }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn multiply_add(mut sum: Product, a: Limbs, b: &Factor) -> Product {
    let [b0, b1, b2] = b.limbs;
    let [b1x20, b2x20] = b.times20;
    // Row i contains the factors with which a[i] contributes to each limb.
    for (a, row) in a.into_iter().zip([[b0, b1, b2], [b2x20, b0, b1], [b1x20, b2x20, b0]]) {
        for (limb, b) in row.into_iter().enumerate() {
            sum.low[limb] = _mm512_madd52lo_epu64(sum.low[limb], a, b);
            sum.high[limb] = _mm512_madd52hi_epu64(sum.high[limb], a, b);
        }
    }
    sum
}

/// Carries the product. The limbs of the result have 44, a little over 44, and 42 bits.
///
/// Factors stay below 2^52: a limb of a sum has at most 46 bits, and a limb of a power times 20 at most 49. With four
/// products, the sums stay below 2^56 and 2^46, and the part that wraps around stays below 2^51.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn reduce(Product { low, high }: Product) -> Limbs {
    let (mask44, mask42) = (_mm512_set1_epi64(MASK44), _mm512_set1_epi64(MASK42));
    let carry = _mm512_srli_epi64::<44>(low[0]);
    let h0 = _mm512_and_si512(low[0], mask44);
    let d1 = _mm512_add_epi64(_mm512_add_epi64(low[1], _mm512_slli_epi64::<8>(high[0])), carry);
    let carry = _mm512_srli_epi64::<44>(d1);
    let h1 = _mm512_and_si512(d1, mask44);
    let d2 = _mm512_add_epi64(_mm512_add_epi64(low[2], _mm512_slli_epi64::<8>(high[1])), carry);
    let h2 = _mm512_and_si512(d2, mask42);
    // The part from 2^130 on is added at the bottom, times 5.
    let carry = _mm512_add_epi64(_mm512_srli_epi64::<42>(d2), _mm512_slli_epi64::<10>(high[2]));
    let h0 = _mm512_add_epi64(h0, _mm512_add_epi64(carry, _mm512_slli_epi64::<2>(carry)));
    let carry = _mm512_srli_epi64::<44>(h0);
    [_mm512_and_si512(h0, mask44), _mm512_add_epi64(h1, carry), h2]
}

/// The sum modulo 2^130 - 5, plus `s`, modulo 2^128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn add_s(sum: Limbs, (s_low, s_high): (__m512i, __m512i)) -> (__m512i, __m512i) {
    let (mask44, mask42) = (_mm512_set1_epi64(MASK44), _mm512_set1_epi64(MASK42));
    // Carry once around and up to the top again. The part above 2^130 is then less than 5.
    let [h0, h1, h2] = sum;
    let h2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(h1));
    let h1 = _mm512_and_si512(h1, mask44);
    let carry = _mm512_srli_epi64::<42>(h2);
    let h2 = _mm512_and_si512(h2, mask42);
    let h0 = _mm512_add_epi64(h0, _mm512_add_epi64(carry, _mm512_slli_epi64::<2>(carry)));
    let h1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(h0));
    let h0 = _mm512_and_si512(h0, mask44);
    let h2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(h1));
    let h1 = _mm512_and_si512(h1, mask44);

    // Compute the sum plus 5 minus 2^130. If that is not negative, it is the reduced sum.
    let g0 = _mm512_add_epi64(h0, _mm512_set1_epi64(5));
    let g1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(g0));
    let g2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(g1));
    let g2 = _mm512_sub_epi64(g2, _mm512_set1_epi64(1 << 42));
    let negative = _mm512_movepi64_mask(g2);
    let h0 = _mm512_mask_mov_epi64(_mm512_and_si512(g0, mask44), negative, h0);
    let h1 = _mm512_mask_mov_epi64(_mm512_and_si512(g1, mask44), negative, h1);
    let h2 = _mm512_mask_mov_epi64(g2, negative, h2);

    let low = _mm512_or_si512(h0, _mm512_slli_epi64::<44>(h1));
    let high = _mm512_or_si512(_mm512_srli_epi64::<20>(h1), _mm512_slli_epi64::<24>(h2));
    let low = _mm512_add_epi64(low, s_low);
    let high = _mm512_add_epi64(high, s_high);
    let carry = _mm512_cmplt_epu64_mask(low, s_low);
    (low, _mm512_mask_add_epi64(high, carry, high, _mm512_set1_epi64(1)))
}

fn from_fn_usize(value: impl Fn(usize) -> usize) -> [u64; HALF] {
    array::from_fn(|i| value(i) as u64)
}
