//! Random delays, so that nodes do not send at the same time (RFC 8966 §3.1). Nothing secret depends on them.

/// SplitMix64 with a seed from the caller's generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jitter(pub(crate) u64);

impl Jitter {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Sixteen bits.
    pub(crate) fn number(&mut self) -> u16 {
        u16::try_from(self.next() >> 48).expect("16 bits")
    }

    /// The time, less up to one part in `parts` of it.
    pub(crate) fn shorten(&mut self, time: core::time::Duration, parts: u32) -> core::time::Duration {
        let thousandths = u32::try_from(self.next() % 1_000).expect("less than 1,000");
        time - time / parts * thousandths / 1_000
    }
}
