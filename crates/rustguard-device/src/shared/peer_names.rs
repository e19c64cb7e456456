//! The names of peers towards relays, and the peer of each name.

use crate::sharded::Sharded;
use rustguard_core::{forward::Name, node::PeerId};

/// Name → peer. A name is a part of a hash: two keys can have the same name. Making such a pair takes 2³² attempts.
#[derive(Clone, Default)]
pub(crate) struct PeerNames {
    known: Sharded<Name, PeerId>,
    /// Peers whose name belongs to an earlier peer. Usually none.
    later: Vec<(Name, PeerId)>,
}

impl PeerNames {
    /// The peer with this name; if there are several, the first one.
    pub(crate) fn get(&self, name: &Name) -> Option<&PeerId> {
        self.known.get(name)
    }

    /// Adds a peer. Returns whether the name means this peer.
    pub(crate) fn add(&mut self, name: Name, peer: PeerId) -> bool {
        let first = *self.known.get(&name).unwrap_or(&peer) == peer;
        if first {
            self.known.insert(name, peer);
        } else {
            self.later.push((name, peer));
        }
        first
    }

    /// Removes a peer. Another peer with the same name then gets the name.
    pub(crate) fn remove(&mut self, name: &Name, peer: PeerId) {
        self.later.retain(|later| *later != (*name, peer));
        if self.known.get(name) == Some(&peer) {
            match self.later.iter().position(|(later, _)| later == name) {
                Some(next) => self.known.insert(*name, self.later.remove(next).1),
                None => self.known.remove(name),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;

    #[test]
    fn a_name_of_two_peers_means_the_first_and_then_the_second() {
        let (name, other) = (Name::of(&PublicKey([1; 32])), Name::of(&PublicKey([2; 32])));
        let mut names = PeerNames::default();
        let added = [(name, 1), (name, 2), (other, 3), (name, 4)].map(|(name, peer)| names.add(name, PeerId(peer)));
        assert_eq!(added, [true, false, true, false]);
        assert!(names.add(name, PeerId(1)), "once more");
        assert_eq!(names.get(&name), Some(&PeerId(1)));
        names.remove(&name, PeerId(2));
        names.remove(&name, PeerId(1));
        assert_eq!((names.get(&name), names.get(&other)), (Some(&PeerId(4)), Some(&PeerId(3))));
        names.remove(&name, PeerId(4));
        assert_eq!((names.get(&name), names.later.len()), (None, 0));
    }
}
