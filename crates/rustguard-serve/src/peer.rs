//! A member as a peer of the device.

use rustguard_device::{PeerUpdate, PresharedKey};
use rustguard_enroll::action::PeerConfig;

/// The update that gives the device this peer. It replaces all earlier settings of the peer except its endpoint.
pub(crate) fn to_update(peer: PeerConfig) -> PeerUpdate {
    let mut update = PeerUpdate::new(peer.public_key)
        .preshared_key(PresharedKey::from_bytes(&peer.preshared_key))
        .replace_allowed_ips(peer.allowed_ips);
    update.name = peer.name;
    update
}
