//! ML-KEM-768 (FIPS 203), in the bytes that go over the wire.
use ml_kem::{
    Decapsulate as _, Encapsulate as _, MlKem768,
    kem::{Kem as _, KeyExport as _},
    ml_kem_768,
};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

/// Bytes of an encapsulation key.
pub(crate) const KEY_LEN: usize = 1184;
/// Bytes of a ciphertext.
pub(crate) const CIPHERTEXT_LEN: usize = 1088;

/// The joiner's half, wiped on drop; boxed, since it is large and moves with what holds it.
pub(crate) struct Secret(Box<ml_kem_768::DecapsulationKey>);

/// The key is not canonical (FIPS 203, section 7.2: the modulus check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidKey;

/// A fresh pair: what decapsulates, and the key to send.
pub(crate) fn generate(rng: &mut impl CryptoRng) -> (Secret, [u8; KEY_LEN]) {
    let (secret, key) = MlKem768::generate_keypair_from_rng(rng);
    (Secret(Box::new(secret)), key.to_bytes().into())
}

/// The server's half: a ciphertext for the owner of `key`, and the shared secret.
pub(crate) fn encapsulate(
    key: &[u8; KEY_LEN],
    rng: &mut impl CryptoRng,
) -> Result<([u8; CIPHERTEXT_LEN], Zeroizing<[u8; 32]>), InvalidKey> {
    let key = ml_kem_768::EncapsulationKey::new(key.into()).map_err(|_| InvalidKey)?;
    let (ciphertext, shared) = key.encapsulate_with_rng(rng);
    Ok((ciphertext.into(), Zeroizing::new(shared.into())))
}

impl Secret {
    /// The shared secret. A forged ciphertext gives another one, without a sign: the message around it has to tell.
    pub(crate) fn decapsulate(&self, ciphertext: &[u8; CIPHERTEXT_LEN]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.decapsulate(ciphertext.into()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng as _, rngs::StdRng};

    #[test]
    fn both_sides_agree_and_a_changed_ciphertext_does_not() {
        let mut rng = StdRng::seed_from_u64(1);
        let (secret, key) = generate(&mut rng);
        let (mut ciphertext, shared) = encapsulate(&key, &mut rng).expect("an honest key");
        assert_eq!(secret.decapsulate(&ciphertext), shared);
        ciphertext[0] ^= 1;
        assert_ne!(secret.decapsulate(&ciphertext), shared);
    }

    #[test]
    fn non_canonical_keys_are_refused() {
        // 12-bit coefficients of 0xfff are above the modulus 3329.
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(encapsulate(&[0xff; KEY_LEN], &mut rng).err(), Some(InvalidKey));
    }
}
