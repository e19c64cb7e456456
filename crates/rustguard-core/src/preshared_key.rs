//! The preshared key of two peers.

use alloc::boxed::Box;
use core::{fmt, str::FromStr};
use rustguard_crypto::{
    base64::{self, KeyError},
    hash,
};
use zeroize::Zeroizing;

/// A preshared key: 32 bytes that both peers mix into every handshake (whitepaper §5.2). 32 zero bytes are WireGuard's
/// value for "none".
///
/// The key is wiped on drop. It is on the heap, so that a move leaves no copy behind. Comparison takes constant time.
/// `Debug` does not print it.
#[derive(Clone)]
pub struct PresharedKey(Box<Zeroizing<[u8; 32]>>);

impl PresharedKey {
    /// Copies the 32 bytes. The caller has to wipe its own copy.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        key.copy_from_slice(bytes);
        Self(key)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether this is WireGuard's value for "none". Takes constant time.
    pub fn is_zero(&self) -> bool {
        hash::ct_eq(self.as_bytes(), &[0; 32])
    }
}

/// Reads base64. If the text has the right length, this takes constant time.
impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        base64::decode(text).map(|key| Self::from_bytes(&key))
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        hash::ct_eq(self.as_bytes(), other.as_bytes())
    }
}

impl Eq for PresharedKey {}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_preshared_key_is_read_compared_and_shows_nothing_of_itself() {
        let key: PresharedKey = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=".parse().unwrap();
        assert_eq!((key.as_bytes(), key.is_zero()), (&[7; 32], false));
        assert_eq!(key, PresharedKey::from_bytes(&[7; 32]));
        assert_ne!(key, PresharedKey::from_bytes(&[8; 32]));
        assert!(PresharedKey::from_bytes(&[0; 32]).is_zero());
        assert_eq!(format!("{key:?}"), "PresharedKey(..)");
    }
}
