//! ChaCha20-Poly1305 (RFC 8439) with WireGuard's 64-bit little-endian nonces, and XChaCha20-Poly1305 for cookies.

/// Bytes in a key.
pub const KEY_LEN: usize = 32;
/// Bytes in an authentication tag.
pub const TAG_LEN: usize = 16;

/// One packet of a run: where its text lies in the slab, and its counter.
///
/// The text is `slab[offset..offset + len]`; the tag follows it at once, in `slab[offset + len..offset + len + TAG_LEN]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// First byte of the text.
    pub offset: usize,
    /// Bytes of text, without the tag.
    pub len: usize,
    /// The counter, which is the nonce.
    pub counter: u64,
}

/// Authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// A key expanded once per session, used for whole runs of packets.
pub struct Key(());

impl Key {
    /// Expands `key`.
    pub fn new(_key: &[u8; KEY_LEN]) -> Self {
        todo!()
    }
    /// Seals every frame in place and writes its tag.
    ///
    /// # Panics
    /// When a frame with its tag does not lie inside the slab.
    pub fn seal(&self, _slab: &mut [u8], _frames: &[Frame]) {
        todo!()
    }
    /// Opens every frame in place; `opened[i]` says whether frame `i` was authentic. The text of a forged frame is unspecified.
    ///
    /// # Panics
    /// When a frame with its tag does not lie inside the slab, or `opened` is shorter than `frames`.
    pub fn open(&self, _slab: &mut [u8], _frames: &[Frame], _opened: &mut [bool]) {
        todo!()
    }
}

/// Seals `text` in place under a one-time key (handshake fields) and returns the tag.
pub fn seal_once(_key: &[u8; KEY_LEN], _counter: u64, _aad: &[u8], _text: &mut [u8]) -> [u8; TAG_LEN] {
    todo!()
}
/// Opens `text` in place under a one-time key.
pub fn open_once(
    _key: &[u8; KEY_LEN],
    _counter: u64,
    _aad: &[u8],
    _text: &mut [u8],
    _tag: &[u8; TAG_LEN],
) -> Result<(), Forged> {
    todo!()
}
/// XChaCha20-Poly1305 sealing in place (cookie replies).
pub fn xseal(_key: &[u8; KEY_LEN], _nonce: &[u8; 24], _aad: &[u8], _text: &mut [u8]) -> [u8; TAG_LEN] {
    todo!()
}
/// XChaCha20-Poly1305 opening in place (cookie replies).
pub fn xopen(
    _key: &[u8; KEY_LEN],
    _nonce: &[u8; 24],
    _aad: &[u8],
    _text: &mut [u8],
    _tag: &[u8; TAG_LEN],
) -> Result<(), Forged> {
    todo!()
}
