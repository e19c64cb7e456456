//! X25519 (RFC 7748).

use crate::backend::{DiffieHellman, preferred};
use core::fmt;
use zeroize::Zeroizing;

/// A private key, clamped, zeroized on drop. `Debug` prints nothing of it.
#[derive(Clone)]
pub struct StaticSecret(preferred::StaticSecret);
/// A public key. `Debug` prints the first characters of its base64, which is how `wg show` writes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);
/// The result of a Diffie-Hellman exchange, zeroized on drop. `Debug` prints nothing of it.
pub struct SharedSecret(Zeroizing<[u8; 32]>);
/// The peer's public key is of low order: the shared secret is all zeros and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowOrder;

impl StaticSecret {
    /// Takes 32 random or stored bytes, and clamps them (RFC 7748, section 5).
    ///
    /// The public half is computed here, once: this costs a scalar multiplication, and
    /// [`public_key`](Self::public_key) nothing.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let mut scalar = Zeroizing::new(bytes);
        scalar[0] &= 0b1111_1000;
        scalar[31] &= 0b0111_1111;
        scalar[31] |= 0b0100_0000;
        Self(preferred::StaticSecret::from_clamped(&scalar))
    }

    /// The clamped bytes, as configuration files hold them. Wiping them is the caller's business.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The public half.
    pub fn public_key(&self) -> PublicKey {
        self.0.public_key()
    }

    /// The shared secret with `public`, whose highest bit is ignored (RFC 7748, section 5).
    ///
    /// # Errors
    /// [`LowOrder`] when the result is all zeros, whichever private key this is.
    pub fn diffie_hellman(&self, public: &PublicKey) -> Result<SharedSecret, LowOrder> {
        self.0.diffie_hellman(public)
    }
}

impl fmt::Debug for StaticSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticSecret(..)")
    }
}

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
    /// Takes a copy of what a backend computed.
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

/// Three bytes as four characters of base64. Not constant-time: for public keys only.
fn write_base64(f: &mut fmt::Formatter<'_>, [a, b, c]: [u8; 3]) -> fmt::Result {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u32::from_be_bytes([0, a, b, c]);
    [18, 12, 6, 0].into_iter().try_for_each(|shift| {
        let sextet = (bits >> shift) & 0x3f;
        fmt::Write::write_char(f, char::from(ALPHABET[sextet as usize]))
    })
}
