//! A member as a peer of the device.

use crate::settings::Settings;
use ipnet::IpNet;
use rustguard_core::routing::Role;
use rustguard_device::{PeerUpdate, PresharedKey};
use rustguard_enroll::action::PeerConfig;

/// The update that gives the device this peer. It replaces all earlier settings of the peer except its endpoint, which is that of a further
/// server if it has said one.
///
/// A further server may carry everything in the pools: members that only it reaches.
pub(crate) fn to_update(peer: PeerConfig, settings: &Settings) -> PeerUpdate {
    let mut allowed_ips = peer.allowed_ips;
    if peer.server {
        allowed_ips.extend(settings.pools.iter().map(IpNet::trunc));
    }
    let mut update = PeerUpdate::new(peer.public_key)
        .preshared_key(PresharedKey::from_bytes(&peer.preshared_key))
        .role(if peer.server { Role::Router } else { Role::Client })
        .replace_allowed_ips(allowed_ips);
    if !peer.endpoints.is_empty() {
        update = update.replace_endpoints(peer.endpoints.into_iter().map(Into::into));
    }
    update.name = peer.name;
    update
}
