//! The Montgomery ladder of X25519 (RFC 7748, section 5), with four multiplications at a time.
//!
//! A step of the ladder has nine multiplications on three levels, and those of a level do not depend on each other. So
//! lane `i` of a vector has limb `k` of the number `i` of a level. One ladder fills the four lanes of 256 bits, and two
//! ladders fill 512 bits. Most of the time, each instruction waits for earlier ones, so two ladders take little longer
//! than one.
//!
//! Numbers have five limbs of 51 bits. IFMA multiplies factors below 2^52 and adds the low or the high 52 bits of the
//! product to a sum. So limbs are carried before they are multiplied: a sum of two limbs could be 2^52.

use crate::simd::field::Field;
use core::{array, ptr};
use zeroize::Zeroize;

const MASK51: i64 = (1 << 51) - 1;
/// (486662 + 2) / 4. RFC 7748 uses a constant that is less by 1, and AA in place of BB.
const A24: u64 = 121_666;

/// The lanes of Z2 and Z3, of both ladders. Narrow vectors ignore the upper half of a mask.
const ODD: u8 = 0b1010_1010;
const LANE0: u8 = 0b0001_0001;
const LANE1: u8 = 0b0010_0010;

/// The same code for vectors of both widths. `$flips` makes a vector of one value for each ladder.
macro_rules! ladder {
    ($Vector:ident, $LADDERS:literal, $flips:expr) => {
        const LANES: usize = 4 * $LADDERS;

        /// A number of the field in each lane.
        type Numbers = [$Vector; 5];

        /// Multiplies each point by its scalar. Returns X and Z of the products, whose coordinate u is X / Z.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        pub(in crate::simd) fn ladder(
            scalars: [&[u8; 32]; $LADDERS],
            points: [&Field; $LADDERS],
        ) -> [(Field, Field); $LADDERS] {
            let (one, zero) = (&Field::ONE, &Field::ZERO);
            // X2, Z2, X3 and Z3.
            let mut state = load(points.map(|point| [one, zero, point, one]));
            let difference = load(points.map(|point| [one, zero, one, point]));
            let a24 = set1(A24.cast_signed());
            let identity = load_lanes(&array::from_fn(|i| i as u64));
            let mut words: [[u64; 4]; $LADDERS] =
                scalars.map(|scalar| array::from_fn(|i| u64::from_le_bytes(scalar.as_chunks().0[i])));
            let mut before = [0; $LADDERS];
            for t in (0..255).rev() {
                let bits: [u64; $LADDERS] = array::from_fn(|i| words[i][t / 64] >> (t % 64) & 1);
                // (X2, Z2) and (X3, Z3) are exchanged where the bit changes. The bit goes into an index of lanes: no
                // address depends on it.
                let swap = array::from_fn(|i| ((bits[i] ^ before[i]) << 1).cast_signed());
                before = bits;
                let index = xor(identity, $flips(swap));
                let neighbour = xor(index, set1(1));
                // A, B, C and D.
                let sums = sums_and_differences(
                    &state.map(|limb| permutexvar(index, limb)),
                    &state.map(|limb| permutexvar(neighbour, limb)),
                );
                // AA, BB, CB and DA.
                let products = multiply_add([zeros(); 5], &sums, &sums.map(|limb| permutex::<0b00_01_01_00>(limb)));
                // In the lanes 1 to 3: E, DA + CB, and CB - DA, whose square is that of DA - CB.
                let swapped = products.map(|limb| shuffle::<0b01_00_11_10>(limb));
                let sums = sums_and_differences(&products, &swapped);
                // X2 = AA * BB, BB + a24 * E, X3 = (DA + CB)^2, (DA - CB)^2.
                let left: Numbers = array::from_fn(|k| mask_mov(sums[k], LANE0, products[k]));
                let right: Numbers = array::from_fn(|k| mask_mov(sums[k], LANE0, swapped[k]));
                let right: Numbers = array::from_fn(|k| mask_mov(right[k], LANE1, if k == 0 { a24 } else { zeros() }));
                let start = products.map(|limb| maskz_mov(LANE1, limb));
                let next = multiply_add(start, &left, &right);
                // X2 * 1, Z2 = E * (BB + a24 * E), X3 * 1, Z3 = (DA - CB)^2 * u.
                let left: Numbers = array::from_fn(|k| mask_mov(next[k], LANE1, sums[k]));
                let right: Numbers = array::from_fn(|k| mask_mov(difference[k], LANE1, next[k]));
                state = multiply_add([zeros(); 5], &left, &right);
            }
            // A clamped scalar is even, so no exchange is left to do.
            words.zeroize();
            let mut limbs = [[0u64; LANES]; 5];
            for (lanes, limb) in limbs.iter_mut().zip(state) {
                // SAFETY: the array is as large as the vector.
                unsafe { ptr::from_mut(lanes).cast::<$Vector>().write_unaligned(limb) };
            }
            let lane = |lane: usize| Field(array::from_fn(|k| limbs[k][lane]));
            let results = array::from_fn(|i| (lane(4 * i), lane(4 * i + 1)));
            limbs.zeroize();
            results
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        fn load(numbers: [[&Field; 4]; $LADDERS]) -> Numbers {
            array::from_fn(|k| load_lanes(&array::from_fn(|lane| numbers[lane / 4][lane % 4].0[k])))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        fn load_lanes(lanes: &[u64; LANES]) -> $Vector {
            // SAFETY: the array is as large as the vector.
            unsafe { ptr::from_ref(lanes).cast::<$Vector>().read_unaligned() }
        }

        /// In even lanes `swapped + x`, and in odd lanes `swapped - x`. The limbs of both are below 2^52 - 38.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        fn sums_and_differences(x: &Numbers, swapped: &Numbers) -> Numbers {
            // 2p is added, so that no limb is negative.
            carry(array::from_fn(|k| {
                let twice_p = set1(2 * if k == 0 { MASK51 - 18 } else { MASK51 });
                add(swapped[k], mask_sub(x[k], ODD, twice_p, x[k]))
            }))
        }

        /// `start + x * y`. The limbs of the factors are below 2^52, and those of `start` below 2^53.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        fn multiply_add(start: Numbers, x: &Numbers, y: &Numbers) -> Numbers {
            let (mut low, mut high) = ([zeros(); 10], [zeros(); 10]);
            low[..5].copy_from_slice(&start);
            // The upper limbs come first, because the lower ones wait for them. Loops with constant bounds are
            // unrolled: with bounds that depend on `k`, the limbs are in memory, and a ladder takes twice as long.
            for k in (0..9usize).rev() {
                for i in 0..5 {
                    if i <= k && k - i < 5 {
                        low[k] = madd52lo(low[k], x[i], y[k - i]);
                        high[k + 1] = madd52hi(high[k + 1], x[i], y[k - i]);
                    }
                }
            }
            // A high half weighs 2^52, twice as much as the next limb.
            let limbs: [$Vector; 10] = array::from_fn(|k| add(low[k], add(high[k], high[k])));
            carry(array::from_fn(|k| {
                // 2^255 is 19, which is 1 + 2 + 16. The limbs are below 2^56, so a rotation is a shift. LLVM 22 turns
                // shifts and sums into VPMULLQ, which takes longer.
                let upper = limbs[k + 5];
                add(add(limbs[k], upper), add(rol::<1>(upper), rol::<4>(upper)))
            }))
        }

        /// Carries each limb into the next, all at once. Limbs below 2^61 become less than 2^51 + 2^15.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512ifma,avx512vbmi2")]
        fn carry(limbs: Numbers) -> Numbers {
            let carries = limbs.map(|limb| srli::<51>(limb));
            let low = limbs.map(|limb| and(limb, set1(MASK51)));
            array::from_fn(|k| match k {
                0 => madd52lo(low[0], carries[4], set1(19)),
                _ => add(low[k], carries[k - 1]),
            })
        }
    };
}

/// One ladder in vectors of 256 bits.
pub(in crate::simd) mod one {
    use super::*;
    use core::arch::x86_64::{
        __m256i, _mm256_add_epi64 as add, _mm256_and_si256 as and, _mm256_madd52hi_epu64 as madd52hi,
        _mm256_madd52lo_epu64 as madd52lo, _mm256_mask_mov_epi64 as mask_mov, _mm256_mask_sub_epi64 as mask_sub,
        _mm256_maskz_mov_epi64 as maskz_mov, _mm256_permutex_epi64 as permutex,
        _mm256_permutexvar_epi64 as permutexvar, _mm256_rol_epi64 as rol, _mm256_set1_epi64x as set1,
        _mm256_setzero_si256 as zeros, _mm256_shuffle_epi32 as shuffle, _mm256_srli_epi64 as srli,
        _mm256_xor_si256 as xor,
    };

    ladder!(__m256i, 1, |[flip]: [i64; 1]| set1(flip));
}

/// Two ladders in vectors of 512 bits.
pub(in crate::simd) mod two {
    use super::*;
    use core::arch::x86_64::{
        __m512i, _mm512_add_epi64 as add, _mm512_and_si512 as and, _mm512_madd52hi_epu64 as madd52hi,
        _mm512_madd52lo_epu64 as madd52lo, _mm512_mask_mov_epi64 as mask_mov, _mm512_mask_set1_epi64 as mask_set1,
        _mm512_mask_sub_epi64 as mask_sub, _mm512_maskz_mov_epi64 as maskz_mov, _mm512_permutex_epi64 as permutex,
        _mm512_permutexvar_epi64 as permutexvar, _mm512_rol_epi64 as rol, _mm512_set1_epi64 as set1,
        _mm512_setzero_si512 as zeros, _mm512_shuffle_epi32 as shuffle, _mm512_srli_epi64 as srli,
        _mm512_xor_si512 as xor,
    };

    ladder!(__m512i, 2, |[low, high]: [i64; 2]| mask_set1(set1(low), 0b1111_0000, high));
}
