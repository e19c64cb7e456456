//! Numbers modulo 2^255 - 19, the field of Curve25519, with five limbs of 51 bits.
//!
//! Vectors compute the ladder of X25519. The rest is done here. Its longest part is the inversion at the end, a chain
//! of squarings, which takes less time with the processor's multiplier of 64 bits.

use zeroize::Zeroize;

const MASK: u64 = (1 << 51) - 1;

/// A number of the field. Its limbs are below 2^52: they may have more than 51 bits.
#[derive(Clone, Copy, Zeroize)]
pub(crate) struct Field(pub(crate) [u64; 5]);

impl Field {
    pub(crate) const ZERO: Self = Self([0; 5]);
    pub(crate) const ONE: Self = Self([1, 0, 0, 0, 0]);

    /// Takes little-endian bytes, without the highest bit (RFC 7748, section 5).
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes.as_chunks().0[i]);
        let [a, b, c, d] = [word(0), word(1), word(2), word(3)];
        Self([a, a >> 51 | b << 13, b >> 38 | c << 26, c >> 25 | d << 39, d >> 12].map(|limb| limb & MASK))
    }

    /// The number below p, as little-endian bytes.
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut limbs = self.carried().carried().0;
        // Now below 2p. Adding 19 carries into bit 255 exactly if the number is p or more.
        let mut carry = 19;
        for limb in limbs {
            carry = (limb + carry) >> 51;
        }
        limbs[0] += 19 * carry;
        let mut carry = 0;
        for limb in &mut limbs {
            *limb += carry;
            carry = *limb >> 51;
            *limb &= MASK;
        }
        let [a, b, c, d, e] = limbs;
        let mut bytes = [0; 32];
        let words = [a | b << 51, b >> 13 | c << 38, c >> 26 | d << 25, d >> 39 | e << 12];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        limbs.zeroize();
        bytes
    }

    /// Carries each limb into the next, and the last into the first.
    fn carried(self) -> Self {
        let mut limbs = self.0;
        let mut carry = 0;
        for limb in &mut limbs {
            *limb += carry;
            carry = *limb >> 51;
            *limb &= MASK;
        }
        limbs[0] += 19 * carry;
        Self(limbs)
    }

    pub(crate) fn multiply(&self, other: &Self) -> Self {
        let m = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let [a0, a1, a2, a3, a4] = self.0;
        let [b0, b1, b2, b3, b4] = other.0;
        // 2^255 is 19.
        let [c1, c2, c3, c4] = [19 * b1, 19 * b2, 19 * b3, 19 * b4];
        reduce([
            m(a0, b0) + m(a1, c4) + m(a2, c3) + m(a3, c2) + m(a4, c1),
            m(a0, b1) + m(a1, b0) + m(a2, c4) + m(a3, c3) + m(a4, c2),
            m(a0, b2) + m(a1, b1) + m(a2, b0) + m(a3, c4) + m(a4, c3),
            m(a0, b3) + m(a1, b2) + m(a2, b1) + m(a3, b0) + m(a4, c4),
            m(a0, b4) + m(a1, b3) + m(a2, b2) + m(a3, b1) + m(a4, b0),
        ])
    }

    /// Squares `times` times.
    fn squared(&self, times: u32) -> Self {
        let m = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let mut square = *self;
        for _ in 0..times {
            let [a0, a1, a2, a3, a4] = square.0;
            let (b0, b1, b2) = (2 * a0, 2 * a1, 2 * a2);
            let (c3, c4) = (19 * a3, 19 * a4);
            square = reduce([
                m(a0, a0) + m(b1, c4) + m(b2, c3),
                m(b0, a1) + m(b2, c4) + m(a3, c3),
                m(b0, a2) + m(a1, a1) + m(2 * a3, c4),
                m(b0, a3) + m(b1, a2) + m(a4, c4),
                m(b0, a4) + m(b1, a3) + m(a2, a2),
            ]);
        }
        square
    }

    /// The inverse; 0 for 0. This is the power p - 2 = 2^255 - 21 (Fermat).
    pub(crate) fn inverted(&self) -> Self {
        // `x5` is the power 2^5 - 1, and so on.
        let z2 = self.squared(1);
        let z9 = z2.squared(2).multiply(self);
        let z11 = z9.multiply(&z2);
        let x5 = z11.squared(1).multiply(&z9);
        let x10 = x5.squared(5).multiply(&x5);
        let x20 = x10.squared(10).multiply(&x10);
        let x40 = x20.squared(20).multiply(&x20);
        let x50 = x40.squared(10).multiply(&x10);
        let x100 = x50.squared(50).multiply(&x50);
        let x200 = x100.squared(100).multiply(&x100);
        let x250 = x200.squared(50).multiply(&x50);
        x250.squared(5).multiply(&z11)
    }
}

/// Carries the limbs of a product, each below 2^113 and the last below 2^110.
#[inline]
fn reduce(product: [u128; 5]) -> Field {
    // Carries each limb into the next twice, all limbs at once, because a chain of squarings waits for each result.
    let [h0, h1, h2, h3, h4] = product.map(|limb| (limb >> 51) as u64);
    let [l0, l1, l2, l3, l4] = product.map(|limb| limb as u64 & MASK);
    let sums = [l0 + 19 * h4, l1 + h0, l2 + h1, l3 + h2, l4 + h3];
    let [h0, h1, h2, h3, h4] = sums.map(|limb| limb >> 51);
    let [l0, l1, l2, l3, l4] = sums.map(|limb| limb & MASK);
    Field([l0 + 19 * h4, l1 + h0, l2 + h1, l3 + h2, l4 + h3])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extreme values of a result's limbs: around p, and with bits above the 51st.
    #[test]
    fn numbers_are_reduced() {
        let bytes = |number: u8| core::array::from_fn(|i| if i == 0 { number } else { 0 });
        for above in 0..19 {
            // p + above, in limbs of 51 bits, and with a limb that is not carried.
            let limbs = [MASK - 18 + u64::from(above), MASK, MASK, MASK, MASK];
            let uncarried = [limbs[0] + MASK + 1, MASK - 1, MASK, MASK, MASK];
            assert_eq!(Field(limbs).to_bytes(), bytes(above));
            assert_eq!(Field(uncarried).to_bytes(), bytes(above));
        }
        // p - 1 is the highest number that stays.
        let mut highest = [0xff; 32];
        (highest[0], highest[31]) = (0xec, 0x7f);
        assert_eq!(Field([MASK - 19, MASK, MASK, MASK, MASK]).to_bytes(), highest);
        // Twice 2^255 - 1, which is 18, and 1.
        assert_eq!(Field([2 * MASK + 1, 2 * MASK, 2 * MASK, 2 * MASK, 2 * MASK]).to_bytes(), bytes(37));
    }

    #[test]
    fn inverses() {
        let mut number = Field([3, 1 << 51, MASK + 19, 7, MASK]);
        for _ in 0..100 {
            assert_eq!(number.multiply(&number.inverted()).to_bytes(), Field::ONE.to_bytes());
            number = number.multiply(&number).multiply(&Field([5, 0, 0, 0, 1]));
        }
        assert_eq!(Field::ZERO.inverted().to_bytes(), [0; 32]);
    }
}
