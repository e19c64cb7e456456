//! A member as a peer of the device.

use rustguard_device::{PeerUpdate, PresharedKey};
use rustguard_enroll::action::PeerConfig;

/// The update that gives the device this peer. It replaces all earlier settings of the peer except its endpoint. The
/// endpoint is replaced only if a further server has reported one.
pub(crate) fn to_update(peer: PeerConfig) -> PeerUpdate {
    let mut update = PeerUpdate::new(peer.public_key)
        .preshared_key(PresharedKey::from_bytes(&peer.preshared_key))
        .role(peer.role)
        .replace_allowed_ips(peer.allowed_ips);
    if !peer.endpoints.is_empty() {
        update = update.replace_endpoints(peer.endpoints.into_iter().map(Into::into));
    }
    update.name = peer.name;
    update
}
