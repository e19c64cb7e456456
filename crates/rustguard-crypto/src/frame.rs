//! The places of a run's packets in the slab, and the parts of the AEAD that all backends share.

use core::fmt;

/// Bytes in a key.
pub const KEY_LEN: usize = 32;
/// Bytes in an authentication tag.
pub const TAG_LEN: usize = 16;
/// Bytes in a nonce of RFC 8439.
pub const NONCE_LEN: usize = 12;

/// One packet of a run: the place of its text in the slab, and its counter.
///
/// The text is `slab[offset..offset + len]`. The tag follows directly, in `slab[offset + len..offset + len + TAG_LEN]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The offset of the text's first byte.
    pub offset: usize,
    /// The length of the text in bytes, without the tag.
    pub len: usize,
    /// The counter, from which the nonce is made.
    pub counter: u64,
}

impl Frame {
    /// The text and the tag.
    pub(crate) fn split<'slab>(&self, slab: &'slab mut [u8]) -> (&'slab mut [u8], &'slab mut [u8; TAG_LEN]) {
        // Each part is checked separately, so that no sum can overflow.
        slab.get_mut(self.offset..)
            .and_then(|rest| rest.split_at_mut_checked(self.len))
            .and_then(|(text, rest)| Some((text, rest.first_chunk_mut()?)))
            .expect("a frame and its tag lie inside the slab")
    }
}

/// Authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

impl fmt::Display for Forged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("authentication failed")
    }
}

impl core::error::Error for Forged {}

/// The nonce of a counter: 32 zero bits, then the counter in little-endian (whitepaper, section 5.4, "AEAD").
pub(crate) fn nonce(counter: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}
