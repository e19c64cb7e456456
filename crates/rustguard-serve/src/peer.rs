//! A member as a peer of the device.

use rustguard_device::{PeerUpdate, PresharedKey};
use rustguard_enroll::action::PeerConfig;

/// The peer as the device gets it. Nothing of what it was before is left but its endpoint.
pub(crate) fn to_update(peer: PeerConfig) -> PeerUpdate {
    let mut update = PeerUpdate::new(peer.public_key)
        .preshared_key(PresharedKey::from_bytes(&peer.preshared_key))
        .replace_allowed_ips(peer.allowed_ips);
    update.name = peer.name;
    update
}
