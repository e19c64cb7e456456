//! X25519 (RFC 7748).

/// A private key, clamped, zeroized on drop. `Debug` prints nothing of it.
#[derive(Clone)]
pub struct StaticSecret(());
/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);
/// The result of a Diffie-Hellman exchange, zeroized on drop.
pub struct SharedSecret(());
/// The peer's public key is of low order: the shared secret is all zeros and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowOrder;

impl StaticSecret {
    /// Takes 32 random or stored bytes, and clamps them.
    pub fn from_bytes(_bytes: [u8; 32]) -> Self {
        todo!()
    }
    /// The clamped bytes, as configuration files hold them.
    pub fn to_bytes(&self) -> [u8; 32] {
        todo!()
    }
    /// The public half.
    pub fn public_key(&self) -> PublicKey {
        todo!()
    }
    /// The shared secret with `public`.
    pub fn diffie_hellman(&self, _public: &PublicKey) -> Result<SharedSecret, LowOrder> {
        todo!()
    }
}
impl SharedSecret {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        todo!()
    }
}
