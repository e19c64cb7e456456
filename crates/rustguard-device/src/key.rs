//! Keys as text: base64 in files and on screens, hexadecimal on the control socket. Preshared keys.

use base64ct::{Base64, Encoding};
pub use rustguard_crypto::base64::{KeyError, decode as from_base64};
use rustguard_crypto::x25519::PublicKey;
use std::{fmt, str::FromStr};
use zeroize::Zeroizing;

/// A preshared key: 32 bytes that both peers mix into every handshake. 32 zero bytes are WireGuard's way to say "none".
///
/// The key is wiped on drop. It is on the heap, so that a move leaves no copy behind. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct PresharedKey(Box<Zeroizing<[u8; 32]>>);

impl PresharedKey {
    /// Takes a copy of the 32 bytes. The caller wipes the original.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        key.copy_from_slice(bytes);
        Self(key)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether this is WireGuard's "none": 32 zero bytes. Takes the same time for every key.
    pub fn is_zero(&self) -> bool {
        self.0.iter().fold(0, |bits, byte| bits | byte) == 0
    }

    /// The key in base64, as configuration files have it. The text is wiped on drop.
    pub fn to_base64(&self) -> Zeroizing<String> {
        to_base64(&self.0)
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    /// Reads base64, in constant time where the text has the right length.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(|key| Self::from_bytes(&key))
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// The 32 bytes in base64.
pub fn to_base64(key: &[u8; 32]) -> Zeroizing<String> {
    Zeroizing::new(Base64::encode_string(key))
}

/// Reads 64 hexadecimal digits; anything else is `None`.
pub fn from_hex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    if text.len() != 2 * key.len() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(digits[0])? << 4 | digit(digits[1])?).ok()?;
    }
    Some(key)
}

/// Appends 64 hexadecimal digits.
pub(crate) fn push_hex(out: &mut String, key: &[u8; 32]) {
    for byte in key {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(digit.into(), 16).expect("four bits are a hexadecimal digit"));
        }
    }
}

/// The first eight characters of a public key: enough to tell peers apart in a log.
pub(crate) fn abbreviate(key: &PublicKey) -> String {
    let text = to_base64(&key.0);
    format!("{}…", &text[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preshared_key_shows_nothing_of_itself() {
        let key: PresharedKey = to_base64(&[7; 32]).parse().unwrap();
        assert_eq!((key.as_bytes(), key.is_zero()), (&[7; 32], false));
        assert_eq!(*key.to_base64(), *to_base64(&[7; 32]));
        assert!(PresharedKey::from_bytes(&[0; 32]).is_zero());
        assert_eq!(format!("{key:?}"), "PresharedKey(..)");
    }

    #[test]
    fn base64_and_hex_round_trip() {
        let key: [u8; 32] = std::array::from_fn(|i| (i * 9) as u8);
        assert_eq!(*from_base64(&to_base64(&key)).unwrap(), key);
        let mut hex = String::new();
        push_hex(&mut hex, &key);
        assert_eq!(hex.len(), 64);
        assert_eq!(*from_hex(&hex).unwrap(), key);
    }

    #[test]
    fn a_text_that_is_no_key_is_refused() {
        assert!(from_hex(&"g".repeat(64)).is_none());
        assert!(from_hex("00").is_none());
        assert!(from_hex(&"é".repeat(32)).is_none());
    }
}
