//! Sixteen blocks of ChaCha20 at a time, and Poly1305 of eight packets on limbs of 44 bits, which is what IFMA multiplies.

use core::arch::x86_64::*;
use core::array;

use zeroize::Zeroize;

use super::{BLOCK, Blocks, CONSTANTS, GROUP, Group, Lanes, Packet};

/// Packets that Poly1305 takes at once: one per lane of 64 bits.
const HALF: usize = GROUP / 2;

/// What [`Avx512::seal`](super::Avx512::seal) promises.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn seal(key: &[u32; 8], group: &mut Group<'_>) {
    let mut one_time = one_time_keys(key, group);
    apply_keystream(key, group, group.everyone());
    for half in 0..group.count.div_ceil(HALF) {
        let (low, high) = tags(&one_time, half, array_of(&group.packets, half));
        let (low, high) = (to_array(low), to_array(high));
        for i in 0..HALF.min(group.count - half * HALF) {
            group.set_tag(half * HALF + i, low[i], high[i]);
        }
    }
    one_time.zeroize();
}

/// What [`Avx512::open`](super::Avx512::open) promises.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn open(key: &[u32; 8], group: &mut Group<'_>) -> u32 {
    let mut one_time = one_time_keys(key, group);
    let mut authentic = 0;
    for half in 0..group.count.div_ceil(HALF) {
        let (low, high) = tags(&one_time, half, array_of(&group.packets, half));
        let came: [(u64, u64); HALF] = array::from_fn(|i| group.tag(half * HALF + i));
        let came_low = from_array(came.map(|(low, _)| low));
        let came_high = from_array(came.map(|(_, high)| high));
        let same = _mm512_cmpeq_epi64_mask(low, came_low) & _mm512_cmpeq_epi64_mask(high, came_high);
        authentic |= u32::from(same) << (half * HALF);
    }
    one_time.zeroize();
    authentic &= group.everyone();
    apply_keystream(key, group, authentic);
    authentic
}

fn array_of(packets: &[Packet; GROUP], half: usize) -> &[Packet; HALF] {
    packets[half * HALF..].first_chunk().expect("a group has two halves")
}

// ---------------------------------------------------------------------------------------------------------------- ChaCha20

/// Two rounds of sixteen blocks (RFC 8439, section 2.3), all four quarter rounds step by step: neighbours are independent.
///
/// A macro, because the state has to stay in registers, and a function would not be inlined for sure.
macro_rules! double_round {
    ($state:ident) => {
        double_round!($state: [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]);
        double_round!($state: [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]);
    };
    ($state:ident: $([$a:literal $b:literal $c:literal $d:literal])*) => {
        $(double_round!($state: $a += $b, $d <<<= 16);)*
        $(double_round!($state: $c += $d, $b <<<= 12);)*
        $(double_round!($state: $a += $b, $d <<<= 8);)*
        $(double_round!($state: $c += $d, $b <<<= 7);)*
    };
    ($state:ident: $sum:literal += $other:literal, $mixed:literal <<<= $by:literal) => {
        $state[$sum] = _mm512_add_epi32($state[$sum], $state[$other]);
        $state[$mixed] = _mm512_rol_epi32::<$by>(_mm512_xor_si512($state[$mixed], $state[$sum]));
    };
}

/// Block 0 of every packet: its first eight words, with packet `i` in lane `i`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn one_time_keys(key: &[u32; 8], group: &Group<'_>) -> [__m512i; 8] {
    let (low, high) = group.nonces::<GROUP>(0);
    let counters = Counters { block: _mm512_setzero_si512(), low: words(&low), high: words(&high) };
    let mut state = initial(key, &counters);
    for _ in 0..10 {
        double_round!(state);
    }
    let initial = initial(key, &counters);
    array::from_fn(|i| _mm512_add_epi32(state[i], initial[i]))
}

/// Encrypts, or decrypts, the texts of the `wanted` packets.
///
/// Shuffles have a single port on Intel's processors, rotations another: while sixteen blocks go through their rounds, the
/// sixteen before them are transposed. One after the other takes a tenth longer.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn apply_keystream(key: &[u32; 8], group: &mut Group<'_>, wanted: u32) {
    let mut blocks = Blocks::new(group, wanted);
    let [mut before, mut here, mut ahead] = [Lanes::<16>::new(); 3];
    let [mut before, mut here, mut ahead] = [&mut before, &mut here, &mut ahead];
    // Of the lanes before: at first there are none.
    let mut transposition = Transposition::new();
    let mut more = blocks.next(here);
    while more {
        let counters = Counters { block: words(&here.block), low: words(&here.low), high: words(&here.high) };
        let mut state = initial(key, &counters);
        for i in 0..4 {
            double_round!(state);
            transposition.first_half(i);
        }
        // A loop ahead, because reading as vectors what was just stored as words would wait for the stores.
        more = blocks.next(ahead);
        for i in 0..4 {
            double_round!(state);
            transposition.second_half(i);
        }
        for _ in 0..2 {
            double_round!(state);
        }
        mix_all(before, &transposition.blocks);
        (before, here, ahead) = (here, ahead, before);
        let initial = initial(key, &counters);
        for i in 0..16 {
            transposition.words[i] = _mm512_add_epi32(state[i], initial[i]);
        }
    }
    for i in 0..4 {
        transposition.first_half(i);
    }
    for i in 0..4 {
        transposition.second_half(i);
    }
    mix_all(before, &transposition.blocks);
    transposition.wipe();
}

/// What tells blocks of one key apart.
#[derive(Clone, Copy)]
struct Counters {
    /// The block counter.
    block: __m512i,
    /// The packet's counter, low half and high half.
    low: __m512i,
    high: __m512i,
}

/// Adds sixteen blocks of keystream to the texts that they are for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn mix_all(lanes: &Lanes<16>, stream: &[__m512i; 16]) {
    for piece in &lanes.pieces[..lanes.count] {
        // SAFETY: the text of a piece lies inside the slab that the group borrows mutably; it has a lane for each of its blocks.
        unsafe { mix(piece.text, stream.as_ptr().add(piece.lane), piece.len) };
    }
}

/// Adds keystream to text.
///
/// # Safety
/// There are `len` bytes at `text` to read and write, and as many whole blocks at `stream` to read as they need.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
unsafe fn mix(text: *mut u8, stream: *const __m512i, len: usize) {
    for i in 0..len / BLOCK {
        // SAFETY: block `i` is whole, and so among the `len` bytes.
        unsafe {
            let text = text.add(i * BLOCK).cast();
            _mm512_storeu_epi8(text, _mm512_xor_si512(_mm512_loadu_epi8(text), *stream.add(i)));
        }
    }
    let left = len % BLOCK;
    if left > 0 {
        let mask = (1 << left) - 1;
        // SAFETY: the mask has a bit for each of the bytes left, and others are neither read nor written.
        unsafe {
            let text = text.add(len - left).cast();
            let mixed = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, text), *stream.add(len / BLOCK));
            _mm512_mask_storeu_epi8(text, mask, mixed);
        }
    }
}

/// RFC 8439, section 2.3, with WireGuard's nonce: 32 zero bits and the packet's counter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn initial(key: &[u32; 8], counters: &Counters) -> [__m512i; 16] {
    let mut state = [_mm512_setzero_si512(); 16];
    for i in 0..4 {
        state[i] = _mm512_set1_epi32(CONSTANTS[i].cast_signed());
    }
    for i in 0..8 {
        state[4 + i] = _mm512_set1_epi32(key[i].cast_signed());
    }
    state[12] = counters.block;
    state[14] = counters.low;
    state[15] = counters.high;
    state
}

/// From word `i` of every block in vector `i` to block `i` in vector `i`, in eight steps.
struct Transposition {
    words: [__m512i; 16],
    /// `[g][c]`: words 4g to 4g + 3 of blocks c, 4 + c, 8 + c and 12 + c, 128 bits each.
    quarters: [[__m512i; 4]; 4],
    blocks: [__m512i; 16],
}

impl Transposition {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self { words: [zero; 16], quarters: [[zero; 4]; 4], blocks: [zero; 16] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn first_half(&mut self, g: usize) {
        let [a, b, c, d] = [self.words[4 * g], self.words[4 * g + 1], self.words[4 * g + 2], self.words[4 * g + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        self.quarters[g] = [
            _mm512_unpacklo_epi64(ab_low, cd_low),
            _mm512_unpackhi_epi64(ab_low, cd_low),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn second_half(&mut self, c: usize) {
        let [q0, q1, q2, q3] = [self.quarters[0][c], self.quarters[1][c], self.quarters[2][c], self.quarters[3][c]];
        let (even_low, odd_low) = (_mm512_shuffle_i32x4::<0x88>(q0, q1), _mm512_shuffle_i32x4::<0xdd>(q0, q1));
        let (even_high, odd_high) = (_mm512_shuffle_i32x4::<0x88>(q2, q3), _mm512_shuffle_i32x4::<0xdd>(q2, q3));
        self.blocks[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
        self.blocks[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        self.blocks[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
        self.blocks[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn wipe(&mut self) {
        self.words.zeroize();
        self.quarters.zeroize();
        self.blocks.zeroize();
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn words(lanes: &[u32; 16]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64 bytes, at any alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

// ---------------------------------------------------------------------------------------------------------------- Poly1305
//
// A number below 2^130 is three limbs of 44, 44 and 42 bits per lane. IFMA adds the low or the high 52 bits of a product of two
// factors below 2^52 to a sum. The weight of a high half is 2^52 times that of the low one: 2^8 times the next limb's.

const MASK44: i64 = (1 << 44) - 1;
const MASK42: i64 = (1 << 42) - 1;

/// A number in each of eight lanes.
type Limbs = [__m512i; 3];

/// A power of `r` as a factor: its limbs, and 20 times the upper two, as 2^132 is 20 modulo 2^130 - 5.
#[derive(Clone, Copy)]
struct Factor {
    limbs: Limbs,
    times20: [__m512i; 2],
}

/// The tags of half a group, low and high 64 bits: Poly1305 of text, padding and lengths (RFC 8439, section 2.8).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn tags(one_time: &[__m512i; 8], half: usize, packets: &[Packet; HALF]) -> (__m512i, __m512i) {
    let [r_low, r_high, s_low, s_high] = array::from_fn(|i| pair(one_time[2 * i], one_time[2 * i + 1], half));
    let r = split(
        _mm512_and_si512(r_low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff)),
        _mm512_and_si512(r_high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc)),
    );
    let r = factor(r);

    let mut sum = [_mm512_setzero_si512(); 3];
    // First what all of them have: chunks of four whole blocks. Then what only some have.
    let common = packets.iter().map(|packet| packet.len).fold(usize::MAX, usize::min) / BLOCK;
    let chunks = packets.iter().map(|packet| packet.len).fold(0, usize::max).div_ceil(BLOCK);
    if common >= POWERS_PAY {
        let r2 = factor(multiply(r.limbs, &r));
        let mut powers = [factor(multiply(r2.limbs, &r2)), factor(multiply(r2.limbs, &r)), r2, r];
        let mut tops = zero();
        for power in &powers {
            tops =
                multiply_add(tops, [_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_set1_epi64(1 << 40)], power);
        }
        for chunk in 0..common {
            // SAFETY: every text has at least `common` chunks, of which this is one.
            let blocks = unsafe { load(array::from_fn(|i| packets[i].text.add(chunk * BLOCK).cast_const())) };
            sum = absorb_four(sum, blocks, &powers, tops);
        }
        for power in &mut powers {
            power.wipe();
        }
    } else {
        for chunk in 0..common {
            // SAFETY: as above.
            let blocks = unsafe { load(array::from_fn(|i| packets[i].text.add(chunk * BLOCK).cast_const())) };
            for block in blocks {
                sum = multiply(add(sum, message(block)), &r);
            }
        }
    }
    for chunk in common..chunks {
        // A copy, padded with zeros. Of sealed text, so that there is nothing to wipe.
        let mut padded = [[0u8; BLOCK]; HALF];
        let left = from_fn_usize(|i| packets[i].len.saturating_sub(chunk * BLOCK).min(BLOCK));
        for i in 0..HALF {
            let mask = if left[i] == BLOCK as u64 { u64::MAX } else { (1 << left[i]) - 1 };
            // SAFETY: the mask has as many bits as bytes of this chunk are left of the text; no others are read.
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
            let next = multiply(add(sum, message(block)), &r);
            sum = array::from_fn(|limb| _mm512_mask_mov_epi64(sum[limb], present, next[limb]));
        }
    }
    // No additional data, and the length of the text.
    let lengths = (_mm512_setzero_si512(), from_array(from_fn_usize(|i| packets[i].len)));
    finish(multiply(add(sum, message(lengths)), &r), s_low, s_high)
}

/// Common chunks from which computing r^2, r^3 and r^4 is earned back.
const POWERS_PAY: usize = 3;

/// Two 32-bit words of the packets of a half as 64-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn pair(low: __m512i, high: __m512i, half: usize) -> __m512i {
    let [low, high] = [low, high].map(|words| {
        let words = if half == 0 { _mm512_castsi512_si256(words) } else { _mm512_extracti64x4_epi64::<1>(words) };
        _mm512_cvtepu32_epi64(words)
    });
    _mm512_or_si512(low, _mm512_slli_epi64::<32>(high))
}

/// The four blocks of 64 bytes of eight packets, each as its low and its high 64 bits with packet `i` in lane `i`.
///
/// # Safety
/// At each of `texts` there are 64 bytes to read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
unsafe fn load(texts: [*const u8; HALF]) -> [(__m512i, __m512i); 4] {
    // Inserting from memory spares half the shuffles, for which Intel's have a single port.
    let two = |a: usize, b: usize, offset: usize| {
        // SAFETY: `offset` is 0 or 32, and 32 bytes from there are among the 64.
        unsafe {
            let a = _mm256_loadu_si256(texts[a].add(offset).cast());
            let b = _mm256_loadu_si256(texts[b].add(offset).cast());
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
        }
    };
    let mut blocks = [(_mm512_setzero_si512(), _mm512_setzero_si512()); 4];
    for i in 0..2 {
        // Of each: 128 bits of one block, of the next block, and both again of the second packet.
        let quarter = [two(0, 2, 32 * i), two(1, 3, 32 * i), two(4, 6, 32 * i), two(5, 7, 32 * i)];
        let low = [_mm512_unpacklo_epi64(quarter[0], quarter[1]), _mm512_unpacklo_epi64(quarter[2], quarter[3])];
        let high = [_mm512_unpackhi_epi64(quarter[0], quarter[1]), _mm512_unpackhi_epi64(quarter[2], quarter[3])];
        blocks[2 * i] = (_mm512_shuffle_i64x2::<0x88>(low[0], low[1]), _mm512_shuffle_i64x2::<0x88>(high[0], high[1]));
        blocks[2 * i + 1] =
            (_mm512_shuffle_i64x2::<0xdd>(low[0], low[1]), _mm512_shuffle_i64x2::<0xdd>(high[0], high[1]));
    }
    blocks
}

/// A block as a number: 128 bits and the one above them.
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

/// Limbs of a product, not yet carried: sums of low halves, and of high halves.
#[derive(Clone, Copy)]
struct Product {
    low: Limbs,
    high: Limbs,
}

/// (sum + b0) r^4 + b1 r^3 + b2 r^2 + b3 r, for one reduction instead of four.
///
/// `tops` is what the bits above the 128 of each block contribute, always the same.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn absorb_four(sum: Limbs, blocks: [(__m512i, __m512i); 4], powers: &[Factor; 4], tops: Product) -> Limbs {
    let [b0, b1, b2, b3] = blocks.map(|(low, high)| split(low, high));
    // Two sums side by side: one would wait for its own multiplications.
    let one = multiply_add(multiply_add(tops, b1, &powers[1]), b2, &powers[2]);
    // Last the one that has to wait for the previous chunk.
    let other = multiply_add(multiply_add(zero(), b3, &powers[3]), add(sum, b0), &powers[0]);
    reduce(Product { low: add(one.low, other.low), high: add(one.high, other.high) })
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
    // Row i: what a[i] contributes to each limb.
    for (a, row) in a.into_iter().zip([[b0, b1, b2], [b2x20, b0, b1], [b1x20, b2x20, b0]]) {
        for (limb, b) in row.into_iter().enumerate() {
            sum.low[limb] = _mm512_madd52lo_epu64(sum.low[limb], a, b);
            sum.high[limb] = _mm512_madd52hi_epu64(sum.high[limb], a, b);
        }
    }
    sum
}

/// Limbs of 44, a little over 44, and 42 bits.
///
/// Factors stay below 2^52: a limb of a sum has at most 46 bits, one of a power times 20 at most 49. Four products then leave
/// the sums below 2^56 and 2^46, and what wraps around below 2^51.
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
    // From 2^130 on: five times as much below.
    let carry = _mm512_add_epi64(_mm512_srli_epi64::<42>(d2), _mm512_slli_epi64::<10>(high[2]));
    let h0 = _mm512_add_epi64(h0, _mm512_add_epi64(carry, _mm512_slli_epi64::<2>(carry)));
    let carry = _mm512_srli_epi64::<44>(h0);
    [_mm512_and_si512(h0, mask44), _mm512_add_epi64(h1, carry), h2]
}

/// The sum modulo 2^130 - 5, plus `s`, modulo 2^128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn finish(sum: Limbs, s_low: __m512i, s_high: __m512i) -> (__m512i, __m512i) {
    let (mask44, mask42) = (_mm512_set1_epi64(MASK44), _mm512_set1_epi64(MASK42));
    // Carries once around, and to the top again: what is left above 2^130 is less than 5.
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

    // Plus 5, minus 2^130: that is the sum where it is not negative.
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

/// The tags of a full group under given one-time keys, a word of each in every array.
#[cfg(test)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn tags_of_all(keys: &[[u32; GROUP]; 8], group: &Group<'_>) -> [u128; GROUP] {
    let keys = array::from_fn(|i| words(&keys[i]));
    let halves = [0, 1].map(|half| tags(&keys, half, array_of(&group.packets, half)));
    let halves = halves.map(|(low, high)| (to_array(low), to_array(high)));
    array::from_fn(|i| {
        let (low, high) = &halves[i / HALF];
        u128::from(high[i % HALF]) << 64 | u128::from(low[i % HALF])
    })
}
