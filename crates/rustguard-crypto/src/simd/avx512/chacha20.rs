//! Sixteen blocks of ChaCha20 at a time, with word `i` of each in vector `i` (RFC 8439, section 2.3).

use super::{
    BLOCK, Blocks, CONSTANTS, GROUP, Group, Lanes,
    poly1305::{Chunk, Poly1305, Powers},
    words,
};
use core::{arch::x86_64::*, array, ops::Range};
use zeroize::Zeroize;

/// One round of sixteen blocks. All four quarter rounds advance together, step by step, so that neighbouring
/// instructions are independent.
///
/// This is a macro because the state has to stay in registers, and the compiler might not inline a function.
macro_rules! round {
    ($state:ident, columns) => {
        round!($state: [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]);
    };
    ($state:ident, diagonals) => {
        round!($state: [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]);
    };
    ($state:ident: $([$a:literal $b:literal $c:literal $d:literal])*) => {
        $(round!($state: $a += $b, $d <<<= 16);)*
        $(round!($state: $c += $d, $b <<<= 12);)*
        $(round!($state: $a += $b, $d <<<= 8);)*
        $(round!($state: $c += $d, $b <<<= 7);)*
    };
    ($state:ident: $sum:literal += $other:literal, $mixed:literal <<<= $by:literal) => {
        $state[$sum] = _mm512_add_epi32($state[$sum], $state[$other]);
        $state[$mixed] = _mm512_rol_epi32::<$by>(_mm512_xor_si512($state[$mixed], $state[$sum]));
    };
}

macro_rules! double_round {
    ($state:ident) => {
        round!($state, columns);
        round!($state, diagonals);
    };
}

/// One block of each of sixteen packets. The blocks have the same number, so the first round is mostly the same for all
/// numbers.
pub(super) struct Together {
    initial: [__m512i; 16],
    /// The state after the first round, except for column 0. The number of the block is only in that column.
    columns: [__m512i; 16],
    /// Column 0 before the first round, without the number.
    column: [u32; 3],
}

impl Together {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn new(key: &[u32; 8], group: &Group<'_>) -> Self {
        let (low, high) = group.nonces::<GROUP>(0);
        let initial = initial(key, &Counters { block: _mm512_setzero_si512(), low: words(&low), high: words(&high) });
        let mut columns = initial;
        round!(columns: [1 5 9 13] [2 6 10 14] [3 7 11 15]);
        Self { initial, columns, column: [CONSTANTS[0], key[0], key[4]] }
    }

    /// The state of block `number` after its first round.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn start(&self, number: u32) -> [__m512i; 16] {
        let [mut a, mut b, mut c] = self.column;
        a = a.wrapping_add(b);
        let mut d = (number ^ a).rotate_left(16);
        c = c.wrapping_add(d);
        b = (b ^ c).rotate_left(12);
        a = a.wrapping_add(b);
        d = (d ^ a).rotate_left(8);
        c = c.wrapping_add(d);
        b = (b ^ c).rotate_left(7);
        let mut state = self.columns;
        for (i, word) in (0..).step_by(4).zip([a, b, c, d]) {
            state[i as usize] = _mm512_set1_epi32(word.cast_signed());
        }
        state
    }

    /// Adds the initial state, which ends a block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn end(&self, number: u32, state: [__m512i; 16]) -> [__m512i; 16] {
        let mut words: [__m512i; 16] = array::from_fn(|i| _mm512_add_epi32(state[i], self.initial[i]));
        words[12] = _mm512_add_epi32(words[12], _mm512_set1_epi32(number.cast_signed()));
        words
    }

    /// The first eight words of block 0 of every packet, with packet `i` in lane `i`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn one_time_keys(&self) -> [__m512i; 8] {
        *self.block(0).first_chunk().expect("eight are fewer than sixteen")
    }

    /// Computes only block `number`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn block(&self, number: u32) -> [__m512i; 16] {
        let mut state = self.start(number);
        round!(state, diagonals);
        for _ in 0..9 {
            double_round!(state);
        }
        self.end(number, state)
    }

    /// Computes block `number`. Meanwhile it transposes the block before, and XORs it into its chunk of the texts.
    ///
    /// # Safety
    /// `number` is at least 2. The group is full, and every packet has `number - 1` whole chunks.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    unsafe fn block_and_mix(&self, number: u32, before: &mut Transposition, group: &mut Group<'_>) {
        let mut state = self.start(number);
        round!(state, diagonals);
        for i in 0..4 {
            double_round!(state);
            before.first_half(i);
        }
        for i in 0..4 {
            double_round!(state);
            // SAFETY: the caller promises this.
            unsafe { mix_four(group, i, before.second_half(i), number as usize - 2) };
        }
        double_round!(state);
        before.0 = self.end(number, state);
    }

    /// Does the same as [`block_and_mix`](Self::block_and_mix), and each half of the group absorbs a chunk.
    ///
    /// ChaCha20 alone leaves execution units idle: on Intel's processors, rotations have a single port, and shuffles
    /// have another. Multiplications take four cycles, in which other instructions can start.
    ///
    /// # Safety
    /// The conditions of [`block_and_mix`](Self::block_and_mix), and every packet has a whole chunk with the number
    /// `chunk`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    unsafe fn block_and_all(
        &self,
        number: u32,
        before: &mut Transposition,
        group: &mut Group<'_>,
        ([hash0, hash1], [powers0, powers1]): (&mut [Poly1305; 2], &[Powers; 2]),
        chunk: usize,
    ) {
        let mixed = number as usize - 2;
        let mut state = self.start(number);
        round!(state, diagonals);
        // SAFETY: the caller promises this.
        let mut chunk0 = unsafe { Chunk::load(powers0, group.half(0), chunk) };
        double_round!(state);
        before.first_half(0);
        chunk0.multiply(powers0, 1);
        double_round!(state);
        before.first_half(1);
        chunk0.multiply(powers0, 2);
        double_round!(state);
        before.first_half(2);
        chunk0.multiply(powers0, 3);
        double_round!(state);
        before.first_half(3);
        hash0.add(powers0, chunk0);
        double_round!(state);
        // SAFETY: the caller promises this.
        let mut chunk1 = unsafe { Chunk::load(powers1, group.half(1), chunk) };
        // SAFETY: the caller promises this.
        unsafe { mix_four(group, 0, before.second_half(0), mixed) };
        double_round!(state);
        chunk1.multiply(powers1, 1);
        // SAFETY: the caller promises this.
        unsafe { mix_four(group, 1, before.second_half(1), mixed) };
        double_round!(state);
        chunk1.multiply(powers1, 2);
        // SAFETY: the caller promises this.
        unsafe { mix_four(group, 2, before.second_half(2), mixed) };
        double_round!(state);
        chunk1.multiply(powers1, 3);
        // SAFETY: the caller promises this.
        unsafe { mix_four(group, 3, before.second_half(3), mixed) };
        double_round!(state);
        hash1.add(powers1, chunk1);
        before.0 = self.end(number, state);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn wipe(&mut self) {
        self.initial.zeroize();
        self.columns.zeroize();
        self.column.zeroize();
    }
}

/// XORs keystream into the first `blocks` blocks of every packet.
///
/// # Safety
/// The group is full. Every packet has `blocks - 1` whole chunks and at least one byte more.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) unsafe fn apply_together(together: &Together, group: &mut Group<'_>, blocks: usize) {
    if blocks == 0 {
        return;
    }
    let mut before = Transposition(together.block(1));
    for number in 2..=blocks as u32 {
        // SAFETY: the caller promises this.
        unsafe { together.block_and_mix(number, &mut before, group) };
    }
    // SAFETY: the caller promises this.
    unsafe { mix_last(group, group.everyone(), &mut before, blocks - 1) };
}

/// Does the same as [`apply_together`], and absorbs the resulting whole chunks. Their number is `blocks`, or one less.
///
/// Every step computes block n, XORs block n - 1 into its chunk, and absorbs the chunk before that.
///
/// # Safety
/// The conditions of [`apply_together`], and `blocks` is at least 2.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) unsafe fn seal_together(
    together: &Together,
    group: &mut Group<'_>,
    hashes: &mut [Poly1305; 2],
    (blocks, chunks): (usize, usize),
) {
    let mut powers = [hashes[0].powers(), hashes[1].powers()];
    let mut before = Transposition(together.block(1));
    // SAFETY: the caller promises this.
    unsafe { together.block_and_mix(2, &mut before, group) };
    for number in 3..=blocks as u32 {
        // SAFETY: the caller promises this.
        unsafe { together.block_and_all(number, &mut before, group, (hashes, &powers), number as usize - 3) };
    }
    // SAFETY: the caller promises this.
    unsafe { mix_last(group, group.everyone(), &mut before, blocks - 1) };
    for (half, (hash, powers)) in hashes.iter_mut().zip(&mut powers).enumerate() {
        for chunk in blocks - 2..chunks {
            // SAFETY: the caller promises this.
            unsafe { hash.absorb(powers, group.half(half), chunk) };
        }
        powers.wipe();
    }
}

/// Absorbs the whole chunks among the first `blocks`, which are all or all but the last, and decrypts all but the last.
///
/// The last block is computed and returned, but not XORed into the text. Every chunk is absorbed before it is
/// decrypted.
///
/// # Safety
/// The conditions of [`seal_together`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) unsafe fn open_together(
    together: &Together,
    group: &mut Group<'_>,
    hashes: &mut [Poly1305; 2],
    (blocks, chunks): (usize, usize),
) -> Transposition {
    let mut powers = [hashes[0].powers(), hashes[1].powers()];
    for (half, (hash, powers)) in hashes.iter_mut().zip(&powers).enumerate() {
        // SAFETY: the caller promises this.
        unsafe { hash.absorb(powers, group.half(half), 0) };
    }
    let mut before = Transposition(together.block(1));
    for number in 2..=chunks as u32 {
        // SAFETY: the caller promises this.
        unsafe { together.block_and_all(number, &mut before, group, (hashes, &powers), number as usize - 1) };
    }
    if blocks > chunks {
        // SAFETY: the caller promises this.
        unsafe { together.block_and_mix(blocks as u32, &mut before, group) };
    }
    for powers in &mut powers {
        powers.wipe();
    }
    before
}

/// XORs blocks of keystream into a whole chunk of the packets c, 4 + c, 8 + c and 12 + c.
///
/// # Safety
/// The group is full, and every packet has a whole chunk of this number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
unsafe fn mix_four(group: &mut Group<'_>, c: usize, stream: [__m512i; 4], chunk: usize) {
    for (i, block) in stream.into_iter().enumerate() {
        // SAFETY: the caller promises that these 64 bytes lie inside the slab, which the group borrows mutably.
        unsafe {
            let text = group.packets[4 * i + c].text.add(chunk * BLOCK).cast();
            _mm512_storeu_epi8(text, _mm512_xor_si512(_mm512_loadu_epi8(text), block));
        }
    }
}

/// XORs blocks of keystream into a last chunk of the `wanted` packets. That chunk may be partial.
///
/// # Safety
/// The group is full. Every packet has at least `chunk` whole chunks and one byte more.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) unsafe fn mix_last(group: &mut Group<'_>, wanted: u32, before: &mut Transposition, chunk: usize) {
    before.run();
    for (i, (packet, block)) in group.packets.iter().zip(&before.0).enumerate() {
        if wanted >> i & 1 == 0 {
            continue;
        }
        let len = (packet.len - chunk * BLOCK).min(BLOCK);
        // SAFETY: the text has `len` more bytes, inside the slab that the group borrows mutably. One block is enough
        // for them.
        unsafe { mix(packet.text.add(chunk * BLOCK), block, len) };
    }
    before.wipe();
}

/// Encrypts or decrypts the given range of `bytes` of the `wanted` packets' texts, as far as each text has them. The
/// range starts at the start of a block.
///
/// On Intel's processors, shuffles have a single port, and rotations have another. While sixteen blocks go through
/// their rounds, the sixteen blocks before them are transposed. Doing one after the other takes a tenth longer.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
pub(super) fn apply_keystream(key: &[u32; 8], group: &mut Group<'_>, wanted: u32, bytes: Range<usize>) {
    let mut blocks = Blocks::new(group, wanted, bytes);
    let [mut before, mut here, mut ahead] = [Lanes::<16>::new(); 3];
    let [mut before, mut here, mut ahead] = [&mut before, &mut here, &mut ahead];
    // The keystream of the lanes before. There are none at first.
    let mut transposition = Transposition([_mm512_setzero_si512(); 16]);
    let mut more = blocks.next(here);
    if !more {
        return;
    }
    while more {
        let counters = Counters { block: words(&here.block), low: words(&here.low), high: words(&here.high) };
        let mut state = initial(key, &counters);
        for i in 0..4 {
            double_round!(state);
            transposition.first_half(i);
        }
        // The lanes are filled one iteration ahead. Otherwise, words that were just written would be read as vectors,
        // and the reads would wait for the stores.
        more = blocks.next(ahead);
        for i in 0..4 {
            double_round!(state);
            transposition.store_second_half(i);
        }
        for _ in 0..2 {
            double_round!(state);
        }
        mix_all(before, &transposition.0);
        (before, here, ahead) = (here, ahead, before);
        let initial = initial(key, &counters);
        for i in 0..16 {
            transposition.0[i] = _mm512_add_epi32(state[i], initial[i]);
        }
    }
    transposition.run();
    mix_all(before, &transposition.0);
    transposition.wipe();
}

/// The inputs in which blocks under one key differ.
#[derive(Clone, Copy)]
struct Counters {
    /// The block counter.
    block: __m512i,
    /// The packet's counter: low half and high half.
    low: __m512i,
    high: __m512i,
}

/// XORs sixteen blocks of keystream into their texts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
fn mix_all(lanes: &Lanes<16>, stream: &[__m512i; 16]) {
    for piece in &lanes.pieces[..lanes.count] {
        // SAFETY: the text of a piece lies inside the slab, which the group borrows mutably. The piece has a lane for
        // each of its blocks.
        unsafe { mix(piece.text, stream.as_ptr().add(piece.lane), piece.len) };
    }
}

/// XORs keystream into text.
///
/// # Safety
/// `len` bytes at `text` can be read and written. As many whole blocks as they need can be read at `stream`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
unsafe fn mix(text: *mut u8, stream: *const __m512i, len: usize) {
    for i in 0..len / BLOCK {
        // SAFETY: block `i` is whole, so its bytes are among the `len` bytes.
        unsafe {
            let text = text.add(i * BLOCK).cast();
            _mm512_storeu_epi8(text, _mm512_xor_si512(_mm512_loadu_epi8(text), *stream.add(i)));
        }
    }
    let left = len % BLOCK;
    if left > 0 {
        let mask = (1 << left) - 1;
        // SAFETY: the mask has a bit for each of the remaining bytes. Other bytes are neither read nor written.
        unsafe {
            let text = text.add(len - left).cast();
            let mixed = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, text), *stream.add(len / BLOCK));
            _mm512_mask_storeu_epi8(text, mask, mixed);
        }
    }
}

/// The initial state of RFC 8439, section 2.3, with WireGuard's nonce: 32 zero bits and the packet's counter.
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

/// Transposes sixteen blocks in place, in eight steps: from word `i` of every block in vector `i` to block `i` in
/// vector `i`.
pub(super) struct Transposition(
    /// Between the halves, vector `4g + c` has words 4g to 4g + 3 of blocks c, 4 + c, 8 + c and 12 + c, with 128 bits
    /// of each.
    [__m512i; 16],
);

impl Transposition {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn first_half(&mut self, g: usize) {
        let [a, b, c, d] = array::from_fn(|i| self.0[4 * g + i]);
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        self.0[4 * g] = _mm512_unpacklo_epi64(ab_low, cd_low);
        self.0[4 * g + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        self.0[4 * g + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        self.0[4 * g + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }

    /// Returns blocks c, 4 + c, 8 + c and 12 + c.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn second_half(&self, c: usize) -> [__m512i; 4] {
        let [q0, q1, q2, q3] = array::from_fn(|g| self.0[4 * g + c]);
        let (even_low, odd_low) = (_mm512_shuffle_i32x4::<0x88>(q0, q1), _mm512_shuffle_i32x4::<0xdd>(q0, q1));
        let (even_high, odd_high) = (_mm512_shuffle_i32x4::<0x88>(q2, q3), _mm512_shuffle_i32x4::<0xdd>(q2, q3));
        [
            _mm512_shuffle_i32x4::<0x88>(even_low, even_high),
            _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high),
            _mm512_shuffle_i32x4::<0xdd>(even_low, even_high),
            _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn store_second_half(&mut self, c: usize) {
        for (i, block) in self.second_half(c).into_iter().enumerate() {
            self.0[4 * i + c] = block;
        }
    }

    /// All eight steps.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    fn run(&mut self) {
        (0..4).for_each(|g| self.first_half(g));
        (0..4).for_each(|c| self.store_second_half(c));
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
    pub(super) fn wipe(&mut self) {
        self.0.zeroize();
    }
}
