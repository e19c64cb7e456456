//! AWS-LC's ChaCha20-Poly1305 and X25519, through aws-lc-rs.
//!
//! AWS-LC keeps AEAD keys and X25519 private keys on its own heap. Its `OPENSSL_free` overwrites every block before it
//! returns it. AWS-LC also wipes the copies of a key that sealing and opening leave on the stack. aws-lc-rs zeroizes
//! the shared secret that it returns.
//!
//! Making a key and a Diffie-Hellman exchange allocate memory. Sealing and opening packets do not, with one exception:
//! AWS-LC allocates an error state for a thread at that thread's first forged packet.

use super::{Aead, DiffieHellman};
use crate::{
    frame::{Forged, KEY_LEN, NONCE_LEN, TAG_LEN},
    keys::{LowOrder, PublicKey, SharedSecret},
};
use alloc::sync::Arc;
use aws_lc_rs::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    agreement::{self, PrivateKey, UnparsedPublicKey},
};
use zeroize::Zeroizing;

/// An AEAD key.
// `LessSafeKey` means that the caller chooses the nonces. In WireGuard, they are the session's counters.
pub struct Key(LessSafeKey);

impl Aead for Key {
    fn new(key: &[u8; KEY_LEN]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("a 32-byte key fits, and memory is not exhausted");
        Self(LessSafeKey::new(key))
    }

    fn seal_packet(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        // The scatter form writes the tag into an array. The form that returns the tag wraps it in a `Tag` of variable
        // length.
        let mut tag = [0; TAG_LEN];
        self.0
            .seal_in_place_scatter(Nonce::assume_unique_for_key(*nonce), Aad::from(aad), text, &[], &mut tag)
            .expect("ChaCha20-Poly1305 takes texts of up to 256 GiB");
        tag
    }

    fn open_packet(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        // This call decrypts while it authenticates. If the tag is wrong, it overwrites the text with zeros.
        self.0
            .open_in_place_separate_tag(Nonce::assume_unique_for_key(*nonce), Aad::from(aad), tag, text)
            .map(|_| ())
            .map_err(|_| Forged)
    }
}

/// An X25519 private key and its public half.
#[derive(Clone)]
pub struct StaticSecret {
    scalar: Zeroizing<[u8; 32]>,
    // The key is parsed once, because AWS-LC computes the public half each time it takes a private key.
    key: Arc<PrivateKey>,
    public: PublicKey,
}

impl DiffieHellman for StaticSecret {
    fn from_clamped(scalar: &[u8; 32]) -> Self {
        let key = PrivateKey::from_private_key(&agreement::X25519, scalar)
            .expect("any 32 bytes are an X25519 private key, and memory is not exhausted");
        let public = key.compute_public_key().expect("an X25519 private key has its public half");
        let public = PublicKey(public.as_ref().try_into().expect("an X25519 public key has 32 bytes"));
        Self { scalar: Zeroizing::new(*scalar), key: Arc::new(key), public }
    }

    fn to_bytes(&self) -> [u8; 32] {
        *self.scalar
    }

    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn diffie_hellman(&self, public: &PublicKey) -> Result<SharedSecret, LowOrder> {
        // AWS-LC itself refuses an all-zero result. For keys of 32 bytes, it has no other error.
        let public = UnparsedPublicKey::new(&agreement::X25519, public.0);
        agreement::agree(&self.key, public, LowOrder, |shared| {
            Ok(SharedSecret::new(shared.try_into().expect("an X25519 shared secret has 32 bytes")))
        })
    }
}
