//! ML-KEM of the crate `ml-kem`: it needs no C compiler, and the tests compare AWS-LC with it.
use super::{CIPHERTEXT_LEN, Encapsulated, InvalidKey, KEY_LEN, SHARED_LEN};
use ml_kem::{
    Decapsulate as _, Encapsulate as _, MlKem768,
    kem::{Kem as _, KeyExport as _},
    ml_kem_768,
};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

/// A private key, wiped on drop. It is boxed because it is large and its owner is moved.
pub(crate) struct DecapsulationKey(Box<ml_kem_768::DecapsulationKey>);

/// A fresh pair.
pub(super) fn generate(rng: &mut impl CryptoRng) -> (super::DecapsulationKey, [u8; KEY_LEN]) {
    let (secret, key) = MlKem768::generate_keypair_from_rng(rng);
    (super::DecapsulationKey::Portable(DecapsulationKey(Box::new(secret))), key.to_bytes().into())
}

/// A ciphertext for the owner of `key`, and the shared secret.
pub(super) fn encapsulate(key: &[u8; KEY_LEN], rng: &mut impl CryptoRng) -> Result<Encapsulated, InvalidKey> {
    let key = ml_kem_768::EncapsulationKey::new(key.into()).map_err(|_| InvalidKey)?;
    let (ciphertext, shared) = key.encapsulate_with_rng(rng);
    Ok((ciphertext.into(), Zeroizing::new(shared.into())))
}

impl DecapsulationKey {
    /// The shared secret.
    pub(super) fn decapsulate(&self, ciphertext: &[u8; CIPHERTEXT_LEN]) -> Zeroizing<[u8; SHARED_LEN]> {
        Zeroizing::new(self.0.decapsulate(ciphertext.into()).into())
    }

    /// The key in FIPS 203's encoding.
    #[cfg(all(test, feature = "aws-lc"))]
    #[expect(deprecated, reason = "the other implementation takes no seed")]
    pub(super) fn encoded(&self) -> Zeroizing<Vec<u8>> {
        use ml_kem::ExpandedKeyEncoding as _;
        Zeroizing::new(self.0.to_expanded_bytes().to_vec())
    }
}
