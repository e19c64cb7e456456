//! The secrets that pairs of members share: the preshared keys of their sessions.

use rustguard_core::preshared_key::PresharedKey;
use rustguard_crypto::{hash::hmac, x25519::PublicKey};
use std::fmt;
use zeroize::Zeroizing;

const LABEL: &[u8] = b"rustguard roster v1 pair";
const ID_LABEL: &[u8] = b"rustguard roster v1 pair secret";

/// The name of a [`PairSecret`]: 16 bytes of its hash. The signed roster contains it, so only the issuer of the roster
/// can make a server accept a secret, or a member accept a key derived from an older one. It reveals nothing about the
/// secret, which is 32 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecretId([u8; 16]);

impl SecretId {
    /// From the bytes of [`as_bytes`](Self::as_bytes).
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The secret from which the preshared keys of all pairs of members are derived. Only servers have it. They send each
/// member the keys of its own pairs, in sessions whose own preshared key comes from ML-KEM. So recorded traffic between
/// two members stays secret even if X25519 is broken one day, as long as no server was compromised.
///
/// It is wiped on drop, and `Debug` does not print it.
#[derive(Clone)]
pub struct PairSecret {
    bytes: Box<Zeroizing<[u8; 32]>>,
    id: SecretId,
}

impl PairSecret {
    /// Copies 32 random bytes. The caller has to wipe its own copy.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut secret = Box::new(Zeroizing::new([0; 32]));
        secret.copy_from_slice(bytes);
        let id = hmac(&secret[..], &[ID_LABEL]);
        Self { bytes: secret, id: SecretId(*id.first_chunk().expect("a hash has 32 bytes")) }
    }

    /// The bytes, to be stored.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Its name.
    pub const fn id(&self) -> SecretId {
        self.id
    }

    /// The preshared key of two members, in any order: HMAC-BLAKE2s of both keys.
    pub fn preshared_key(&self, one: &PublicKey, other: &PublicKey) -> PresharedKey {
        let (low, high) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        PresharedKey::from_bytes(&Zeroizing::new(hmac(&self.bytes[..], &[LABEL, &low.0, &high.0])))
    }
}

impl fmt::Debug for PairSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_a_key_of_its_own_whoever_asks() {
        let secret = PairSecret::from_bytes(&[7; 32]);
        let [a, b, c] = [1, 2, 3].map(|byte| PublicKey([byte; 32]));
        assert_eq!(secret.preshared_key(&a, &b), secret.preshared_key(&b, &a));
        assert_ne!(secret.preshared_key(&a, &b), secret.preshared_key(&a, &c));
        let other = PairSecret::from_bytes(&[8; 32]);
        assert_ne!(secret.preshared_key(&a, &b), other.preshared_key(&a, &b));
        assert_ne!(secret.id(), other.id());
        assert_eq!(secret.id(), PairSecret::from_bytes(&[7; 32]).id());
    }
}
