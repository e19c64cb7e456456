//! The two implementations behind [`aead::Key`](crate::aead::Key) and
//! [`x25519::StaticSecret`](crate::x25519::StaticSecret).
//!
//! A backend is a module with a `Key` that implements [`Aead`] and a `StaticSecret` that implements [`DiffieHellman`].
//! Code that processes packets never names a backend. The traits are public for tests and benchmarks.

use crate::{
    frame::{Forged, Frame, KEY_LEN, NONCE_LEN, TAG_LEN, nonce},
    keys::{LowOrder, PublicKey, SharedSecret},
};

#[cfg(feature = "aws-lc")]
pub mod aws_lc;
#[cfg(feature = "portable")]
pub mod portable;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
pub mod simd;

#[cfg(feature = "aws-lc")]
pub(crate) use aws_lc as preferred;
#[cfg(all(feature = "portable", not(feature = "aws-lc")))]
pub(crate) use portable as preferred;
#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
pub(crate) use preferred as batch;
/// The backend for runs of packets and for Diffie-Hellman exchanges. The preferred backend handles single packets.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
pub(crate) use simd as batch;

/// ChaCha20-Poly1305 (RFC 8439) under one key.
///
/// A backend that handles one packet at a time implements the `_packet` methods and inherits the `_run` methods. A
/// backend that handles several packets at once overrides the `_run` methods.
pub trait Aead: Sized {
    /// Expands `key`.
    fn new(key: &[u8; KEY_LEN]) -> Self;

    /// Encrypts `text` in place and returns its tag.
    fn seal_packet(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN];

    /// Authenticates `text` and decrypts it in place.
    ///
    /// # Errors
    /// [`Forged`] when `tag` does not authenticate `aad` and `text`. `text` then never contains the decryption.
    fn open_packet(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged>;

    /// Does what [`Key::seal`](crate::aead::Key::seal) promises.
    fn seal_run(&self, slab: &mut [u8], frames: &[Frame]) {
        for frame in frames {
            let (text, tag) = frame.split(slab);
            *tag = self.seal_packet(&nonce(frame.counter), &[], text);
        }
    }

    /// Does what [`Key::open`](crate::aead::Key::open) promises. `opened` is as long as `frames`.
    fn open_run(&self, slab: &mut [u8], frames: &[Frame], opened: &mut [bool]) {
        for (frame, opened) in frames.iter().zip(opened) {
            let (text, tag) = frame.split(slab);
            *opened = self.open_packet(&nonce(frame.counter), &[], text, tag).is_ok();
        }
    }
}

/// X25519 (RFC 7748) with one private key.
pub trait DiffieHellman: Clone {
    /// Takes a clamped scalar and computes its public half.
    fn from_clamped(scalar: &[u8; 32]) -> Self;
    /// The clamped scalar.
    fn to_bytes(&self) -> [u8; 32];
    /// The public half, which was computed when the secret was made.
    fn public_key(&self) -> PublicKey;
    /// The shared secret with `public`.
    ///
    /// # Errors
    /// [`LowOrder`] when the shared secret is all zeros.
    fn diffie_hellman(&self, public: &PublicKey) -> Result<SharedSecret, LowOrder>;

    /// Two shared secrets. A backend that does both at once takes less time than for one after the other.
    ///
    /// # Errors
    /// [`LowOrder`] when one of the shared secrets is all zeros.
    fn diffie_hellman_pair([one, other]: [(&Self, &PublicKey); 2]) -> Result<[SharedSecret; 2], LowOrder> {
        Ok([one.0.diffie_hellman(one.1)?, other.0.diffie_hellman(other.1)?])
    }
}
