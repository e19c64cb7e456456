//! The key that seals the records of a network.

use base64ct::{Base64, Encoding};
use core::fmt;
use rustguard_crypto::{hash, random};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a store key.
pub const LEN: usize = 32;
/// The context from which the keys for records and snapshots are derived, together with the store key.
const LABEL: &[u8] = b"rustguard store v1";

/// The key that seals the records of a network. Every server of the network has it, and the store never sees it. A
/// reader of the store therefore reads no record. A writer of the store can withhold and destroy records, but makes
/// none.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct StoreKey {
    bytes: [u8; LEN],
    records: [u8; LEN],
    snapshots: [u8; LEN],
}

/// A text is no store key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no store key: it has 32 bytes in base64, which are 44 characters")]
pub struct NotAKey;

impl StoreKey {
    /// A new key, of random bytes.
    ///
    /// # Errors
    /// [`random::Unavailable`].
    pub fn generate() -> Result<Self, random::Unavailable> {
        Ok(Self::from_bytes(&*random::bytes()?))
    }

    /// The key with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; LEN]) -> Self {
        let [mut records, mut snapshots] = hash::kdf(bytes, LABEL);
        let key = Self { bytes: *bytes, records, snapshots };
        records.zeroize();
        snapshots.zeroize();
        key
    }

    /// Reads a key in base64. White space around it does not count.
    ///
    /// # Errors
    /// [`NotAKey`].
    pub fn from_base64(text: &str) -> Result<Self, NotAKey> {
        let mut bytes = Zeroizing::new([0; LEN]);
        let decoded = Base64::decode(text.trim(), &mut *bytes).map_err(|_| NotAKey)?;
        if decoded.len() != LEN {
            return Err(NotAKey);
        }
        Ok(Self::from_bytes(&bytes))
    }

    /// The key in base64.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(&self.bytes))
    }

    /// The key of the records.
    pub(crate) fn records(&self) -> &[u8; LEN] {
        &self.records
    }

    /// The key of the snapshots.
    pub(crate) fn snapshots(&self) -> &[u8; LEN] {
        &self.snapshots
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = StoreKey::from_bytes(&[7; LEN]);
        let text = key.to_base64();
        let read = StoreKey::from_base64(&format!("  {}\n", *text)).unwrap();
        assert_eq!((read.bytes, read.records, read.snapshots), (key.bytes, key.records, key.snapshots));
        assert_ne!(key.records, key.snapshots);
        for text in ["", "abc", &text[..43], &format!("{}AAAA", *text), "no base64 at all, but of the right length!!!"]
        {
            assert_eq!(StoreKey::from_base64(text).map(drop), Err(NotAKey), "{text}");
        }
        assert_eq!(format!("{key:?}"), "StoreKey(..)");
    }
}
