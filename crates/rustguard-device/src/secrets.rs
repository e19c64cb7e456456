//! The secret keys of a device, for the control socket, and for programs that save the configuration.

use crate::key::PresharedKey;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{collections::HashMap, fmt};

/// The secret keys of a device, from [`DeviceHandle::secrets`](crate::DeviceHandle::secrets).
///
/// All keys are wiped on drop. `Debug` does not show them.
#[derive(Clone, Default)]
pub struct Secrets {
    private_key: Option<StaticSecret>,
    preshared_keys: HashMap<PublicKey, PresharedKey>,
}

impl Secrets {
    /// The secrets of a device with this private key and these preshared keys. Keys of 32 zero bytes are left out.
    pub fn new(
        private_key: Option<StaticSecret>,
        preshared_keys: impl IntoIterator<Item = (PublicKey, PresharedKey)>,
    ) -> Self {
        let preshared_keys = preshared_keys.into_iter().filter(|(_, key)| !key.is_zero()).collect();
        Self { private_key, preshared_keys }
    }

    /// The private key, if one is set.
    pub fn private_key(&self) -> Option<&StaticSecret> {
        self.private_key.as_ref()
    }

    /// The preshared key with this peer, if there is one.
    pub fn preshared_key(&self, peer: &PublicKey) -> Option<&PresharedKey> {
        self.preshared_keys.get(peer)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_asked_for_by_peer_and_show_nothing() {
        let peers = [1, 2].map(|n| PublicKey([n; 32]));
        let keys = [[7; 32], [0; 32]].map(|key| PresharedKey::from_bytes(&key));
        let secrets = Secrets::new(Some(StaticSecret::from_bytes([9; 32])), peers.into_iter().zip(keys));
        assert_eq!(secrets.preshared_key(&peers[0]).map(PresharedKey::as_bytes), Some(&[7; 32]));
        assert!(secrets.preshared_key(&peers[1]).is_none(), "a key of zeros is none");
        assert!(secrets.private_key().is_some());
        assert_eq!(format!("{secrets:?}"), "Secrets(..)");
    }
}
