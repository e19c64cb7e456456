//! X25519 (RFC 7748).

use crate::backend::{DiffieHellman, batch};
pub use crate::keys::{LowOrder, PublicKey, SharedSecret};
#[cfg(feature = "getrandom")]
use crate::random;
use core::fmt;
use zeroize::Zeroizing;

/// A private key. It is clamped, and zeroized on drop. `Debug` prints nothing of it.
#[derive(Clone)]
pub struct StaticSecret(batch::StaticSecret);
impl StaticSecret {
    /// Takes 32 random or stored bytes, and clamps them (RFC 7748, section 5).
    ///
    /// The public half is computed here, once, by a scalar multiplication. [`public_key`](Self::public_key) then costs
    /// nothing.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let mut scalar = Zeroizing::new(bytes);
        scalar[0] &= 0b1111_1000;
        scalar[31] &= 0b0111_1111;
        scalar[31] |= 0b0100_0000;
        Self(batch::StaticSecret::from_clamped(&scalar))
    }

    /// A new key from the operating system's generator. Every key that is stored should come from there: the state of a
    /// generator in the process's memory could be read or copied (a snapshot of a virtual machine, a core dump) before
    /// the key is made.
    ///
    /// # Errors
    /// [`Unavailable`](random::Unavailable) when the operating system has no random bytes.
    #[cfg(feature = "getrandom")]
    pub fn generate() -> Result<Self, random::Unavailable> {
        random::bytes().map(|bytes| Self::from_bytes(*bytes))
    }

    /// The clamped bytes, as configuration files contain them. The caller must wipe them.
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
    /// [`LowOrder`] when the result is all zeros. Such a public key gives this result with every private key.
    pub fn diffie_hellman(&self, public: &PublicKey) -> Result<SharedSecret, LowOrder> {
        self.0.diffie_hellman(public)
    }

    /// The shared secrets of two private keys, each with its public key. On AVX-512, both take little longer than one.
    ///
    /// # Errors
    /// [`LowOrder`] when one of the results is all zeros.
    pub fn diffie_hellman_pair([one, other]: [(&Self, &PublicKey); 2]) -> Result<[SharedSecret; 2], LowOrder> {
        batch::StaticSecret::diffie_hellman_pair([(&one.0.0, one.1), (&other.0.0, other.1)])
    }
}

impl fmt::Debug for StaticSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticSecret(..)")
    }
}
