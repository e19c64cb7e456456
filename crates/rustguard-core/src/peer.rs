//! The name and the configuration of a peer.
use core::{fmt, time::Duration};
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroize;

/// Names a peer for as long as it exists; never reused within a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A peer as the node needs to know it.
#[derive(Clone)]
pub struct PeerConfig {
    /// Its static public key.
    pub public_key: PublicKey,
    /// The preshared key; all zeros means none.
    pub preshared_key: [u8; 32],
    /// Persistent keepalive.
    pub persistent_keepalive: Option<Duration>,
}

impl fmt::Debug for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerConfig")
            .field("public_key", &self.public_key)
            .field("persistent_keepalive", &self.persistent_keepalive)
            .finish_non_exhaustive()
    }
}

impl Drop for PeerConfig {
    fn drop(&mut self) {
        self.preshared_key.zeroize();
    }
}
