//! Keys as base64 text, the format of configuration files and `wg`: 44 characters for 32 bytes.

use crate::x25519::{PublicKey, StaticSecret};
use base64ct::{Base64, Encoding};
use core::{fmt, str::FromStr};
use zeroize::Zeroizing;

/// The number of characters of 32 bytes in base64, padding included.
const LEN: usize = 44;

/// The reason why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not 44 characters long. The number is its length in characters.
    Length(usize),
    /// The text is not base64, or not the base64 of 32 bytes.
    Encoding,
}

/// Reads 32 bytes from base64. If the text has the right length, this takes constant time.
///
/// # Errors
/// See [`KeyError`].
pub fn decode(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    if text.len() != LEN {
        return Err(KeyError::Length(text.chars().count()));
    }
    let mut key = Zeroizing::new([0; 32]);
    // base64ct decodes the padding before it removes it, so the buffer has room for that.
    let mut buffer = Zeroizing::new([0; 33]);
    let bytes = Base64::decode(text, &mut *buffer).map_err(|_| KeyError::Encoding)?;
    if bytes.len() != key.len() {
        return Err(KeyError::Encoding);
    }
    key.copy_from_slice(bytes);
    Ok(key)
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a key has 44 characters of base64, this has {length}"),
            Self::Encoding => f.write_str("not base64 of 32 bytes"),
        }
    }
}

impl core::error::Error for KeyError {}

/// Reads base64.
impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|key| Self(*key))
    }
}

/// Writes base64.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; LEN];
        f.pad(Base64::encode(&self.0, &mut buffer).expect("32 bytes are 44 characters"))
    }
}

/// Reads base64. If the text has the right length, this takes constant time. The bytes are clamped.
impl FromStr for StaticSecret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|key| Self::from_bytes(*key))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString as _;

    /// A key pair from `wg genkey` and `wg pubkey`.
    const PRIVATE: &str = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    const PUBLIC: &str = "Y2FD6uTgrq+/bbBAXCNOtE+PGk8Papoh7qaWBpQUXn0=";

    #[test]
    fn keys_are_read_and_written_as_wg_does() {
        let public: PublicKey = PUBLIC.parse().unwrap();
        assert_eq!(PRIVATE.parse::<StaticSecret>().unwrap().public_key(), public);
        assert_eq!(public.to_string(), PUBLIC);
    }

    #[test]
    fn a_text_that_is_no_key_is_refused() {
        assert_eq!(decode("abc").unwrap_err(), KeyError::Length(3));
        assert_eq!(decode(&"!".repeat(44)).unwrap_err(), KeyError::Encoding);
        // 33 bytes also have 44 characters, but no padding.
        assert_eq!(decode(&"A".repeat(44)).unwrap_err(), KeyError::Encoding);
    }
}
