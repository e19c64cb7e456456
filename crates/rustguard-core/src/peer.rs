//! The name and the configuration of a peer.
use core::{fmt, time::Duration};
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroize;

/// Identifies a peer for as long as it exists; never reused by the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The configuration of a peer, as the node needs it. The preshared key is zeroized on drop, and `Debug` does not print
/// it.
#[derive(Clone)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Its static public key.
    pub public_key: PublicKey,
    /// The preshared key; all zeros means none.
    pub preshared_key: [u8; 32],
    /// The longest silence before a keepalive is sent. `None` or zero: no persistent keepalives.
    pub persistent_keepalive: Option<Duration>,
}

impl PeerConfig {
    /// A peer without preshared key and persistent keepalive.
    pub const fn new(public_key: PublicKey) -> Self {
        Self { public_key, preshared_key: [0; 32], persistent_keepalive: None }
    }

    /// With this preshared key; all zeros means none.
    pub const fn with_preshared_key(mut self, key: [u8; 32]) -> Self {
        self.preshared_key = key;
        self
    }

    /// With a keepalive after this silence; `None` or zero: without keepalives.
    pub const fn with_persistent_keepalive(mut self, interval: Option<Duration>) -> Self {
        self.persistent_keepalive = interval;
        self
    }
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
