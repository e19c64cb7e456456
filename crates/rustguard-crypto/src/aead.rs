//! ChaCha20-Poly1305 (RFC 8439) with WireGuard's 64-bit little-endian nonces, and XChaCha20-Poly1305 for cookies.

pub use crate::frame::{Forged, Frame, KEY_LEN, NONCE_LEN, TAG_LEN};
use crate::{
    backend::{Aead, batch, preferred},
    frame::nonce,
};
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305};
use core::fmt;

const _: () = crate::wiped_on_drop::<XChaCha20Poly1305>();

/// Bytes in a nonce of XChaCha20-Poly1305.
pub const XNONCE_LEN: usize = 24;

/// A key for whole runs of packets, expanded once per session. It is zeroized on drop, and `Debug` prints nothing of
/// it.
pub struct Key(batch::Key);

impl Key {
    /// Expands `key`.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        Self(batch::Key::new(key))
    }

    /// Seals every frame in place and writes its tag.
    ///
    /// Frames must not overlap. No counter may ever be used twice with a key.
    ///
    /// # Panics
    /// When a frame and its tag do not lie inside the slab.
    pub fn seal(&self, slab: &mut [u8], frames: &[Frame]) {
        self.0.seal_run(slab, frames);
    }

    /// Opens every frame in place, and sets `opened[i]` to whether frame `i` was authentic.
    ///
    /// The text of a forged frame is then unspecified, but it is never the decryption. Entries of `opened` past the
    /// frames are not changed.
    ///
    /// Frames must not overlap.
    ///
    /// # Panics
    /// When a frame and its tag do not lie inside the slab, or `opened` is shorter than `frames`.
    pub fn open(&self, slab: &mut [u8], frames: &[Frame], opened: &mut [bool]) {
        let opened = opened.get_mut(..frames.len()).expect("there is a result for every frame");
        self.0.open_run(slab, frames, opened);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Seals `text` in place under a one-time key (handshake fields) and returns the tag.
pub fn seal_once(key: &[u8; KEY_LEN], counter: u64, aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
    preferred::Key::new(key).seal_packet(&nonce(counter), aad, text)
}

/// Opens `text` in place under a one-time key.
///
/// # Errors
/// [`Forged`] when `tag` does not authenticate `aad` and `text`. `text` is then unspecified, but it is never the
/// decryption.
pub fn open_once(
    key: &[u8; KEY_LEN],
    counter: u64,
    aad: &[u8],
    text: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> Result<(), Forged> {
    preferred::Key::new(key).open_packet(&nonce(counter), aad, text, tag)
}

/// Seals `text` in place with XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03), for cookie replies. Returns the tag.
pub fn xseal(key: &[u8; KEY_LEN], nonce: &[u8; XNONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
    let tag = XChaCha20Poly1305::new(key.into()).encrypt_inout_detached(nonce.into(), aad, text.into());
    tag.expect("ChaCha20-Poly1305 takes texts of up to 256 GiB").into()
}

/// Opens `text` in place with XChaCha20-Poly1305, for cookie replies.
///
/// # Errors
/// [`Forged`] when `tag` does not authenticate `aad` and `text`. `text` is then not changed.
pub fn xopen(
    key: &[u8; KEY_LEN],
    nonce: &[u8; XNONCE_LEN],
    aad: &[u8],
    text: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> Result<(), Forged> {
    XChaCha20Poly1305::new(key.into())
        .decrypt_inout_detached(nonce.into(), aad, text.into(), tag.into())
        .map_err(|_| Forged)
}
