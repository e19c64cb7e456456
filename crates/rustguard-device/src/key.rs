//! Keys as text: base64 in files and on screens, hexadecimal on the control socket.

use base64ct::{Base64, Encoding};
pub use rustguard_core::preshared_key::PresharedKey;
pub use rustguard_crypto::base64::{KeyError, decode as from_base64};
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

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
