//! A server that has standbys contacts only a few members first, because a standby may have taken its place while it
//! was off. A peer that this machine contacts would move its traffic here, away from the new server, and return there
//! only after the timeouts of WireGuard.

use rustguard_core::{routing::Role, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{PathSpec, PeerUpdate};
use std::{collections::BTreeMap, time::Duration};

/// How many members are contacted first, of those that were connected.
const FIRST: usize = 2;
/// How long they have to report their list. If it is not newer, the others are contacted at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a newer list that they report may take to arrive.
const FETCH: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// The peers that are not contacted yet, and their endpoints.
#[derive(Default)]
pub(crate) struct Held {
    peers: BTreeMap<PublicKey, Vec<PathSpec>>,
    first: usize,
    since: Option<Instant>,
}

impl Held {
    /// Keeps a peer's endpoints back, unless it is one of the first.
    pub(crate) fn hold(&mut self, mut peer: PeerUpdate) -> PeerUpdate {
        if peer.endpoints.is_empty() {
            return peer;
        }
        // Only members come first. A further server may have taken this one's place: it does not answer a machine with
        // its own key.
        if peer.role == Some(Role::Member) && self.first < FIRST {
            self.first += 1;
        } else {
            self.peers.insert(peer.public_key, std::mem::take(&mut peer.endpoints));
        }
        peer
    }

    /// When to check again whether the others may be contacted. `is_newer`: whether a member has reported a newer list
    /// than this server's; `None`: no report yet.
    pub(crate) fn waits(&mut self, is_newer: Option<bool>, now: Instant) -> Option<Instant> {
        if self.peers.is_empty() {
            return None;
        }
        let passed = now.since(*self.since.get_or_insert(now));
        let waits = match is_newer {
            Some(is_newer) => is_newer && passed < FETCH,
            None => self.first > 0 && passed < PATIENCE,
        };
        waits.then(|| now + POLL)
    }

    /// A peer has connected by itself, perhaps from another endpoint.
    pub(crate) fn came(&mut self, peer: &PublicKey) {
        self.peers.remove(peer);
    }

    /// The others, to be contacted now.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = PeerUpdate> + use<> {
        let peers = std::mem::take(&mut self.peers).into_iter();
        peers.map(|(peer, at)| PeerUpdate::new(peer).update_only().endpoints(at))
    }

    /// Whether no peer is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(byte: u8, role: Role, is_known: bool) -> PeerUpdate {
        let at = is_known.then(|| PathSpec::from(std::net::SocketAddr::from(([198, 51, 100, byte], 5))));
        PeerUpdate::new(PublicKey([byte; 32])).role(role).endpoints(at)
    }

    #[test]
    fn two_members_are_called_first_and_nobody_is_forgotten() {
        let mut held = Held::default();
        let peers = [
            (1, Role::Client, true),
            (2, Role::Server, true),
            (3, Role::Member, false),
            (4, Role::Member, true),
            (5, Role::Member, true),
            (6, Role::Member, true),
        ];
        let called = peers.map(|(byte, role, is_known)| held.hold(peer(byte, role, is_known)));
        let called = called.iter().filter(|peer| !peer.endpoints.is_empty()).map(|peer| peer.public_key.0[0]);
        assert_eq!(called.collect::<Vec<_>>(), [4, 5]);
        held.came(&PublicKey([2; 32]));
        let others: Vec<_> = held.take().map(|peer| (peer.public_key.0[0], peer.endpoints.len())).collect();
        assert_eq!((others, held.is_empty()), (vec![(1, 1), (6, 1)], true));
    }

    #[test]
    fn the_others_wait_for_a_word_and_never_for_long() {
        let at = |millis| Instant::from_nanos(0) + Duration::from_millis(millis);
        let held = || {
            let mut held = Held::default();
            [4, 5, 6].into_iter().for_each(|byte| drop(held.hold(peer(byte, Role::Member, true))));
            held
        };
        let mut silent = held();
        assert_eq!(silent.waits(None, at(0)), Some(at(50)));
        assert_eq!((silent.waits(None, at(1_999)).is_some(), silent.waits(None, at(2_000))), (true, None));
        let mut same = held();
        assert_eq!(same.waits(Some(false), at(0)), None, "nobody has a newer list");
        let mut newer = held();
        assert!(newer.waits(Some(true), at(0)).is_some());
        assert_eq!((newer.waits(Some(true), at(4_999)).is_some(), newer.waits(Some(true), at(5_000))), (true, None));
        let mut alone = Held::default();
        alone.hold(peer(1, Role::Client, true));
        assert_eq!(alone.waits(None, at(0)), None, "nobody could say anything");
        assert_eq!(Held::default().waits(None, at(0)), None);
    }
}
