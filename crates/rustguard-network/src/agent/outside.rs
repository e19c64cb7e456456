//! The addresses of peers outside the tunnel. Routes to them have to stay out of the tunnel.

use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

/// The most addresses that are kept for a peer. It may have several, but each of its packets may have another source.
const OUTSIDE: usize = 8;

/// The addresses of the peers that are no members, the latest of each first.
#[derive(Default)]
pub(super) struct Outside(BTreeMap<PublicKey, VecDeque<IpAddr>>);

impl Outside {
    /// Notes the address of a peer. Returns whether it is new. The oldest address may be dropped then.
    pub(super) fn learn(&mut self, peer: PublicKey, address: IpAddr) -> bool {
        let known = self.0.entry(peer).or_default();
        if known.contains(&address) {
            return false;
        }
        known.truncate(OUTSIDE - 1);
        known.push_front(address);
        true
    }

    /// Forgets all peers except these.
    pub(super) fn keep_only(&mut self, is_peer: impl Fn(&PublicKey) -> bool) {
        self.0.retain(|peer, _| is_peer(peer));
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.values().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_addresses_of_each_peer_are_kept() {
        let (peers, at) = ([1, 2].map(|n| PublicKey([n; 32])), |n: u8| IpAddr::from([192, 0, 2, n]));
        let mut outside = Outside::default();
        assert!(outside.learn(peers[1], at(100)));
        for n in 0..20 {
            assert!(outside.learn(peers[0], at(n)) && !outside.learn(peers[0], at(n)), "{n}");
        }
        assert!(outside.addresses().eq((12..20).rev().chain([100]).map(at)));
        outside.keep_only(|peer| *peer == peers[1]);
        assert!(outside.addresses().eq([at(100)]));
    }
}
