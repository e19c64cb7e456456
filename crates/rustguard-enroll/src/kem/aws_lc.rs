//! ML-KEM of AWS-LC, through aws-lc-rs. AWS-LC keeps private keys on its own heap and overwrites that memory before it
//! frees it. aws-lc-rs wipes the shared secrets that it returns.
use super::{CIPHERTEXT_LEN, Encapsulated, InvalidKey, KEY_LEN, SHARED_LEN};
use aws_lc_rs::kem::{self, Ciphertext, EncapsulationKey, ML_KEM_768, SharedSecret};
use zeroize::Zeroizing;

const MEMORY: &str = "AWS-LC does this unless memory is exhausted";

/// A private key.
pub(crate) struct DecapsulationKey(kem::DecapsulationKey);

/// A fresh pair.
pub(super) fn generate() -> (super::DecapsulationKey, [u8; KEY_LEN]) {
    let secret = kem::DecapsulationKey::generate(&ML_KEM_768).expect(MEMORY);
    let key = secret.encapsulation_key().and_then(|key| key.key_bytes()).expect(MEMORY);
    let key = key.as_ref().try_into().expect("keys of ML-KEM-768 have one length");
    (super::DecapsulationKey::AwsLc(DecapsulationKey(secret)), key)
}

/// A ciphertext for the owner of `key`, and the shared secret. AWS-LC checks the modulus when it encapsulates.
pub(super) fn encapsulate(key: &[u8; KEY_LEN]) -> Result<Encapsulated, InvalidKey> {
    let key = EncapsulationKey::new(&ML_KEM_768, key).map_err(|_| InvalidKey)?;
    let (ciphertext, secret) = key.encapsulate().map_err(|_| InvalidKey)?;
    let ciphertext = ciphertext.as_ref().try_into().expect("ciphertexts of ML-KEM-768 have one length");
    Ok((ciphertext, shared(&secret)))
}

impl DecapsulationKey {
    /// The shared secret.
    pub(super) fn decapsulate(&self, ciphertext: &[u8; CIPHERTEXT_LEN]) -> Zeroizing<[u8; SHARED_LEN]> {
        shared(&self.0.decapsulate(Ciphertext::from(&ciphertext[..])).expect(MEMORY))
    }

    /// The key of FIPS 203's encoding.
    #[cfg(all(test, feature = "portable"))]
    pub(super) fn from_encoded(bytes: &[u8]) -> Self {
        Self(kem::DecapsulationKey::new(&ML_KEM_768, bytes).expect("a key"))
    }
}

fn shared(secret: &SharedSecret) -> Zeroizing<[u8; SHARED_LEN]> {
    let mut shared = Zeroizing::new([0; SHARED_LEN]);
    shared.copy_from_slice(secret.as_ref());
    shared
}
