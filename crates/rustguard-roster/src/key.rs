//! The network's key, which signs the roster.

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use rustguard_crypto::{
    base64::{self, KeyError},
    x25519,
};
use std::{fmt, str::FromStr};

/// Bytes of a signature.
pub(crate) const SIGNATURE: usize = 64;

/// The public half of a network's key (Ed25519, RFC 8032). Members get it when they join, and accept a roster only if
/// this key has signed it. Its text is base64, as for WireGuard's keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkKey(pub [u8; 32]);

/// The private half of a network's key. It permits its holder to add and remove members. It does not decrypt any
/// session.
///
/// It is wiped on drop, and `Debug` does not print it.
pub struct NetworkSecret(SigningKey);

impl NetworkKey {
    /// Whether this key has signed `text`. Signatures that only a malformed key makes valid are refused
    /// (`verify_strict`).
    pub(crate) fn has_signed(&self, text: &[u8], signature: &[u8; SIGNATURE]) -> bool {
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(&self.0).is_ok_and(|key| key.verify_strict(text, &signature).is_ok())
    }
}

impl NetworkSecret {
    /// The key with this seed: 32 random bytes. The caller has to wipe its own copy.
    pub fn from_bytes(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The seed, to be stored.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// The public half.
    pub fn public_key(&self) -> NetworkKey {
        NetworkKey(self.0.verifying_key().to_bytes())
    }

    pub(crate) fn sign(&self, text: &[u8]) -> [u8; SIGNATURE] {
        self.0.sign(text).to_bytes()
    }
}

impl fmt::Display for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&x25519::PublicKey(self.0), f)
    }
}

impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkKey({self})")
    }
}

impl FromStr for NetworkKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        base64::decode(text).map(|key| Self(*key))
    }
}

impl fmt::Debug for NetworkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hex_literal::hex;

    /// RFC 8032, section 7.1, test 2.
    #[test]
    fn the_vector_of_the_rfc() {
        let secret =
            NetworkSecret::from_bytes(&hex!("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"));
        let public = NetworkKey(hex!("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"));
        let signature = hex!(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        );
        assert_eq!(secret.public_key(), public);
        assert_eq!(secret.sign(&[0x72]), signature);
        assert!(public.has_signed(&[0x72], &signature));
        assert!(!public.has_signed(&[0x73], &signature));
    }

    /// With a key of small order, one signature would be valid for every text.
    #[test]
    fn a_malformed_key_has_signed_nothing() {
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; SIGNATURE];
        signature[0] = 1;
        assert!(!NetworkKey(neutral).has_signed(b"anything", &signature));
    }

    #[test]
    fn the_text_is_base64() {
        let key = NetworkKey([7; 32]);
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(format!("{:?}", NetworkSecret::from_bytes(&[7; 32])), "NetworkSecret(..)");
    }
}
