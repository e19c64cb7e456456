//! Public keys and shared secrets. Every backend of X25519 takes and returns these types.

use core::fmt;
use zeroize::Zeroizing;

/// A public key. `Debug` prints the first characters of its base64, the encoding of `wg show`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// The result of a Diffie-Hellman exchange, zeroized on drop. `Debug` prints nothing of it.
pub struct SharedSecret(Zeroizing<[u8; 32]>);

/// The peer's public key has a low order. The shared secret is all zeros and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowOrder;

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = self.0;
        f.write_str("PublicKey(")?;
        for triple in [[a, b, c], [d, e, g]] {
            write_base64(f, triple)?;
        }
        f.write_str("…)")
    }
}

impl SharedSecret {
    /// Copies the result of a backend.
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl fmt::Display for LowOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the public key is of low order")
    }
}

impl core::error::Error for LowOrder {}

/// Writes three bytes as four characters of base64. It is not constant-time, so it is for public keys only.
fn write_base64(f: &mut fmt::Formatter<'_>, [a, b, c]: [u8; 3]) -> fmt::Result {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u32::from_be_bytes([0, a, b, c]);
    [18, 12, 6, 0].into_iter().try_for_each(|shift| {
        let sextet = (bits >> shift) & 0x3f;
        fmt::Write::write_char(f, char::from(ALPHABET[sextet as usize]))
    })
}
