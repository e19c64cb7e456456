//! ML-KEM-768 (FIPS 203), as bytes for the wire, by one of two implementations. They are compatible: a joiner and a
//! server may use different ones.
#[cfg(feature = "aws-lc")]
mod aws_lc;
#[cfg(feature = "portable")]
mod portable;

use rand_core::CryptoRng;
use zeroize::Zeroizing;

#[cfg(not(any(feature = "aws-lc", feature = "portable")))]
compile_error!("rustguard-enroll needs an implementation of ML-KEM: the feature `aws-lc` or `portable`");

/// Bytes of an encapsulation key.
pub(crate) const KEY_LEN: usize = 1184;
/// Bytes of a ciphertext.
pub(crate) const CIPHERTEXT_LEN: usize = 1088;
/// Bytes of a shared secret.
const SHARED_LEN: usize = 32;

/// The implementation of ML-KEM that makes keys and secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kem {
    /// AWS-LC, with randomness from AWS-LC's own generator, which the operating system seeds. The default if it is
    /// compiled in.
    #[cfg(feature = "aws-lc")]
    AwsLc,
    /// The crate `ml-kem`, with randomness from the generator that the call is given. Exchanges are therefore
    /// reproducible byte by byte, which the test vectors need.
    #[cfg(feature = "portable")]
    Portable,
}

impl Default for Kem {
    fn default() -> Self {
        #[cfg(feature = "aws-lc")]
        return Self::AwsLc;
        #[cfg(not(feature = "aws-lc"))]
        return Self::Portable;
    }
}

/// The joiner's half, wiped on drop.
pub(crate) enum DecapsulationKey {
    #[cfg(feature = "aws-lc")]
    AwsLc(aws_lc::DecapsulationKey),
    #[cfg(feature = "portable")]
    Portable(portable::DecapsulationKey),
}

/// The result of encapsulation: the ciphertext for the owner of the key, and the shared secret.
pub(crate) type Encapsulated = ([u8; CIPHERTEXT_LEN], Zeroizing<[u8; SHARED_LEN]>);

/// The key is not canonical (FIPS 203, section 7.2: the modulus check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidKey;

impl Kem {
    /// Makes a fresh pair: the key that decapsulates, and the key to send.
    pub(crate) fn generate(self, rng: &mut impl CryptoRng) -> (DecapsulationKey, [u8; KEY_LEN]) {
        // AWS-LC has a generator of its own.
        #[cfg(not(feature = "portable"))]
        let _ = rng;
        match self {
            #[cfg(feature = "aws-lc")]
            Self::AwsLc => aws_lc::generate(),
            #[cfg(feature = "portable")]
            Self::Portable => portable::generate(rng),
        }
    }

    /// The server's half.
    pub(crate) fn encapsulate(self, key: &[u8; KEY_LEN], rng: &mut impl CryptoRng) -> Result<Encapsulated, InvalidKey> {
        #[cfg(not(feature = "portable"))]
        let _ = rng;
        match self {
            #[cfg(feature = "aws-lc")]
            Self::AwsLc => aws_lc::encapsulate(key),
            #[cfg(feature = "portable")]
            Self::Portable => portable::encapsulate(key, rng),
        }
    }
}

impl DecapsulationKey {
    /// The shared secret. A forged ciphertext gives a different secret without an error. The authentication of the
    /// message around it detects this.
    pub(crate) fn decapsulate(&self, ciphertext: &[u8; CIPHERTEXT_LEN]) -> Zeroizing<[u8; SHARED_LEN]> {
        match self {
            #[cfg(feature = "aws-lc")]
            Self::AwsLc(key) => key.decapsulate(ciphertext),
            #[cfg(feature = "portable")]
            Self::Portable(key) => key.decapsulate(ciphertext),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng as _, rngs::StdRng};

    /// All implementations that are compiled in.
    fn all() -> Vec<Kem> {
        vec![
            #[cfg(feature = "aws-lc")]
            Kem::AwsLc,
            #[cfg(feature = "portable")]
            Kem::Portable,
        ]
    }

    #[test]
    fn each_decapsulates_what_each_encapsulated_and_a_changed_ciphertext_gives_another_secret() {
        let mut rng = StdRng::seed_from_u64(1);
        for joiner in all() {
            for server in all() {
                let (secret, key) = joiner.generate(&mut rng);
                let (mut ciphertext, shared) = server.encapsulate(&key, &mut rng).expect("an honest key");
                assert_eq!(secret.decapsulate(&ciphertext), shared, "{joiner:?} and {server:?}");
                ciphertext[0] ^= 1;
                assert_ne!(secret.decapsulate(&ciphertext), shared, "{joiner:?} and {server:?}");
            }
        }
    }

    #[test]
    fn fips_203_section_7_2_keys_above_the_modulus_are_refused() {
        let mut rng = StdRng::seed_from_u64(1);
        for kem in all() {
            // 12-bit coefficients of 0xfff are above the modulus 3329.
            assert_eq!(kem.encapsulate(&[0xff; KEY_LEN], &mut rng).err(), Some(InvalidKey), "{kem:?}");
            // One invalid coefficient among valid ones: the first coefficient is 3329.
            let (_, mut key) = kem.generate(&mut rng);
            key[0] = 0x01;
            key[1] = key[1] & 0xf0 | 0x0d;
            assert_eq!(kem.encapsulate(&key, &mut rng).err(), Some(InvalidKey), "{kem:?}");
        }
    }

    /// AWS-LC takes no seed through this interface, but it takes a key in FIPS 203's encoding.
    #[cfg(all(feature = "aws-lc", feature = "portable"))]
    #[test]
    fn one_encoded_key_gives_the_same_secrets_in_both_also_for_forged_ciphertexts() {
        for seed in 0..20 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (DecapsulationKey::Portable(ours), key) = Kem::Portable.generate(&mut rng) else { panic!("as asked") };
            let theirs = aws_lc::DecapsulationKey::from_encoded(&ours.encoded());
            let (mut ciphertext, shared) = aws_lc::encapsulate(&key).expect("an honest key");
            assert_eq!((ours.decapsulate(&ciphertext), theirs.decapsulate(&ciphertext)), (shared.clone(), shared));
            ciphertext[usize::try_from(seed).expect("small")] ^= 1;
            assert_eq!(ours.decapsulate(&ciphertext), theirs.decapsulate(&ciphertext), "implicit rejection");
        }
    }
}
