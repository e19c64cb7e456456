//! A difference as updates of the device.
//!
//! There are three. What the host's set-up may need is [added](Difference::additions) before it changes, and can be
//! [taken back](Difference::without_additions). The [rest](Difference::settlement) follows when nothing can fail any
//! more, because a removed peer cannot get its session back.

use super::difference::{Changed, Difference, PeerDifference};
use crate::conf::{Config, Peer};
use ipnet::IpNet;
use rustguard_core::routing::Role;
use rustguard_device::{Change, PeerUpdate, Update};

impl Difference {
    /// New peers, and allowed IPs for peers. A prefix that moves from one peer to another is never without a peer.
    pub(super) fn additions(&self) -> Update {
        let gains = self.changed.iter().filter(|change| !change.allowed_ips.added.is_empty());
        let gains = gains.map(|change| {
            let update = PeerUpdate::new(change.public_key).update_only();
            change.allowed_ips.added.iter().fold(update, |update, net| update.allowed_ip(*net))
        });
        Update::new().peers(self.added.iter().map(Peer::to_update)).peers(gains)
    }

    /// The reverse of the [additions](Self::additions) to a device that had the peers of `before`.
    pub(super) fn without_additions(&self, before: &Config) -> Update {
        // A removed peer may have lost a prefix to another one as well.
        let touched = self.changed.iter().map(|change| change.public_key);
        let touched: Vec<_> = touched.chain(self.removed.iter().map(|peer| peer.public_key)).collect();
        let restored = before.peers.iter().filter(|peer| touched.contains(&peer.public_key)).map(|peer| {
            PeerUpdate::new(peer.public_key).update_only().replace_allowed_ips(peer.allowed_ips.iter().copied())
        });
        Update::new().peers(self.added.iter().map(|peer| PeerUpdate::remove(peer.public_key))).peers(restored)
    }

    /// Everything that a device takes without refusing. `after` is the new configuration.
    pub(super) fn settlement(&self, after: &Config) -> Update {
        let removed = self.removed.iter().map(|peer| PeerUpdate::remove(peer.public_key));
        let mut update = Update::new().peers(removed).peers(self.changed.iter().map(PeerDifference::settlement));
        if let Some(Changed { to, .. }) = &self.interface.private_key {
            update = update.private_key(Change::set_or_remove(to.clone()));
        }
        if let Some(Changed { to, .. }) = &self.interface.forward {
            update = update.forward(to.unwrap_or(false));
        }
        if let Some(Changed { to, .. }) = &self.interface.public_endpoints {
            update = update.public_endpoints(to.iter().cloned());
        }
        if let Some(Changed { to, .. }) = &self.interface.port_mapping {
            update = update.port_mapping(to.unwrap_or(true));
        }
        if !self.interface.addresses.is_empty() || !self.interface.announce.is_empty() {
            let addresses = after.interface.addresses.iter().map(|net| IpNet::from(net.addr()));
            update = update.announce(addresses.chain(after.interface.announce.iter().copied()));
        }
        if !after.pools.is_empty() {
            update = update.pools(after.pools.iter().copied());
        }
        update
    }
}

impl PeerDifference {
    fn settlement(&self) -> PeerUpdate {
        let mut update = PeerUpdate::new(self.public_key).update_only();
        update = self.allowed_ips.removed.iter().fold(update, |update, net| update.without_allowed_ip(*net));
        if let Some(Changed { to, .. }) = &self.name {
            update = update.name(to.clone().unwrap_or_default());
        }
        if let Some(Changed { to, .. }) = &self.preshared_key {
            update = update.preshared_key(Change::set_or_remove(to.clone()));
        }
        if let Some(Changed { to, .. }) = &self.endpoints {
            update = update.replace_endpoints(to.iter().cloned());
        }
        if let Some(Changed { to, .. }) = &self.persistent_keepalive {
            update = update.persistent_keepalive(Change::set_or_remove(*to));
        }
        update.direct = self.looks_for_direct_paths;
        if let Some(Changed { to, .. }) = &self.parity {
            update = update.parity(Change::set_or_remove(*to));
        }
        if let Some(Changed { to, .. }) = &self.role {
            update = update.role(to.unwrap_or(Role::Router));
        }
        update
    }
}
