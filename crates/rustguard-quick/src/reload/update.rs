//! A difference as updates of the device.
//!
//! There are three updates. Peers and prefixes that the host's new set-up may need are [added](Difference::additions)
//! before the set-up changes, and can be [removed again](Difference::without_additions). The
//! [rest](Difference::settlement) follows when nothing can fail any more, because a removed peer cannot get its session
//! back.

use super::difference::{Changed, Difference};
use crate::conf::{
    Config, Peer,
    keys::{self, Section},
};
use rustguard_device::{PeerUpdate, Update};

impl Difference {
    /// New peers, and allowed IPs for peers. A prefix that moves from one peer to another is never without a peer.
    pub(super) fn additions(&self) -> Update {
        let gains = self.changed.iter().map(|change| (change.public_key(), change.allowed_ips().added));
        let gains = gains
            .filter(|(_, nets)| !nets.is_empty())
            .map(|(peer, nets)| nets.into_iter().fold(PeerUpdate::new(peer).update_only(), PeerUpdate::allowed_ip));
        Update::new().peers(self.added.iter().map(Peer::to_update)).peers(gains)
    }

    /// The reverse of the [additions](Self::additions) to a device that had the peers of `before`.
    pub(super) fn without_additions(&self, before: &Config) -> Update {
        // A removed peer may have lost a prefix to another one as well.
        let touched = self.changed.iter().map(Changed::public_key);
        let touched: Vec<_> = touched.chain(self.removed.iter().map(|peer| peer.public_key)).collect();
        let restored = before.peers.iter().filter(|peer| touched.contains(&peer.public_key)).map(|peer| {
            PeerUpdate::new(peer.public_key).update_only().replace_allowed_ips(peer.allowed_ips.iter().copied())
        });
        Update::new().peers(self.added.iter().map(|peer| PeerUpdate::remove(peer.public_key))).peers(restored)
    }

    /// All changes that a device never refuses. `after` is the new configuration.
    pub(super) fn settlement(&self, after: &Config) -> Update {
        let removed = self.removed.iter().map(|peer| PeerUpdate::remove(peer.public_key));
        let mut update = Update::new().peers(removed).peers(self.changed.iter().map(of_peer));
        settle(&mut update, &self.interface);
        if !after.pools.is_empty() {
            update = update.pools(after.pools.iter().copied());
        }
        update
    }
}

/// A change of a peer, without the allowed IPs that it gets.
fn of_peer(change: &Changed<Peer>) -> PeerUpdate {
    let update = PeerUpdate::new(change.public_key()).update_only();
    let mut update = change.allowed_ips().removed.into_iter().fold(update, PeerUpdate::without_allowed_ip);
    settle(&mut update, change);
    update
}

/// Adds the changes of a section.
fn settle<S: Section>(update: &mut S::Update, Changed { from, to }: &Changed<S>) {
    keys::all(S::TOLD).filter(|key| key.changes(from, to)).for_each(|key| (key.settle)(update, from, to));
}
