//! The preshared keys of a server's sessions.
//!
//! | Peer | with this server's own key | with the gateway key |
//! |---|---|---|
//! | another server | that of the pair | |
//! | a member, or a server that joined | that of the pair | that of its lease |
//! | a client | that of its lease | that of its lease |
//!
//! The first server has one key, which is the gateway key: to it the last column applies, and for other servers that of
//! the pair.

use super::Seat;
use crate::{
    documents::{self, servers},
    peer::to_update,
    replica::Documents,
};
use rustguard_core::routing::Role;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{PeerUpdate, PresharedKey, key};
use rustguard_enroll::action::PeerConfig;
use rustguard_network::roster::pair::PairSecret;
use std::collections::BTreeSet;

/// See the module's page.
pub(crate) struct SessionKeys {
    own: PublicKey,
    gateway: PublicKey,
    pairs: Option<PairSecret>,
    servers: BTreeSet<PublicKey>,
}

impl SessionKeys {
    pub(crate) fn new(own: PublicKey, gateway: PublicKey, log: &Documents) -> Self {
        let pairs = log.get(documents::PAIR_SECRET).and_then(|text| std::str::from_utf8(text).ok());
        let pairs = pairs.and_then(|text| Some(PairSecret::from_bytes(&*key::from_base64(text.trim_end()).ok()?)));
        Self { own, gateway, pairs, servers: servers(log) }
    }

    pub(crate) fn of(seat: &Seat, own: PublicKey) -> Self {
        Self::new(own, seat.gateway.public_key(), seat.link.documents())
    }

    /// The update that gives the device this peer; `None` if it is this server.
    pub(crate) fn update(&self, peer: PeerConfig) -> Option<PeerUpdate> {
        let (key, role) = (peer.public_key, peer.role);
        if key == self.own {
            return None;
        }
        let of_lease = PresharedKey::from_bytes(&peer.preshared_key);
        let update = to_update(peer);
        let is_first = self.own == self.gateway;
        let is_server = self.servers.contains(&key);
        if role == Role::Client || is_first && !is_server {
            return Some(update);
        }
        let update = match &self.pairs {
            Some(pairs) => update.preshared_key(pairs.preshared_key(&self.own, &key)),
            None => update,
        };
        Some(if is_server { update.role(Role::Gateway) } else { update.second_preshared_key(of_lease) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_enroll::{
        lease::{Lease, PresharedKey as LeaseKey, ServerRole},
        ledger::{Ledger, Policy},
        pool::Pools,
        server::{Server, ServerConfig},
        store::{Change, LeaseStore as _, MemoryStore, State},
    };
    use zeroize::Zeroizing;

    #[test]
    fn a_pair_of_machines_has_one_key_from_both_sides() {
        let [a, b, member, client, joined] = [1, 2, 3, 4, 5].map(|byte| PublicKey([byte; 32]));
        let pairs = PairSecret::from_bytes(&[9; 32]);
        let mut log = Documents::new();
        let text = format!("{}\n", *key::to_base64(&[9; 32]));
        log.insert(documents::PAIR_SECRET.to_owned(), Zeroizing::new(text.into_bytes()));
        for server in [a, b] {
            log.insert(documents::server_document(&server), Zeroizing::default());
        }
        let lease = |key: PublicKey, member, server| {
            let lease = Lease::new(key, LeaseKey::from_bytes(&key.0));
            Change::Lease(Lease {
                member,
                server: ServerRole::from(server),
                v4: Some([10, 0, 0, key.0[0] + 1].into()),
                ..lease
            })
        };
        let changes = [
            lease(a, true, true),
            lease(b, true, true),
            lease(member, true, false),
            lease(client, false, false),
            lease(joined, true, true),
        ];
        let mut store = MemoryStore::default();
        store.commit(&changes, &State::default()).unwrap();
        let (now, pools) = (crate::clock::now(), Pools::new(&["10.0.0.0/24".parse().unwrap()]).unwrap().without_own());
        let ledger = Ledger::open(store, pools, Policy::default(), now).unwrap();
        let secret = rustguard_crypto::x25519::StaticSecret::from_bytes([1; 32]);
        let rng = &mut rustguard_crypto::random::SystemRng;
        let server = Server::new(secret, ledger, &ServerConfig::default(), now, rng).unwrap();
        let keys = |own: PublicKey, peer: PublicKey| {
            let update = SessionKeys::new(own, a, &log).update(server.peer(&peer).unwrap())?;
            Some((
                *update.preshared_key.into_value().unwrap().as_bytes(),
                update.second_preshared_key.map(|key| *key.as_bytes()),
            ))
        };
        let pair = |one, other| *pairs.preshared_key(&one, &other).as_bytes();
        assert_eq!((keys(a, a), keys(b, b)), (None, None));
        assert_eq!((keys(a, b), keys(b, a)), (Some((pair(a, b), None)), Some((pair(a, b), None))));
        // The first server has the key of the lease: the machine has joined by the gateway key.
        for (peer, of_lease) in [(member, member.0), (client, client.0), (joined, joined.0)] {
            assert_eq!(keys(a, peer), Some((of_lease, None)));
        }
        assert_eq!(keys(b, member), Some((pair(b, member), Some(member.0))));
        assert_eq!(keys(b, joined), Some((pair(b, joined), Some(joined.0))));
        assert_eq!(keys(b, client), Some((client.0, None)));
    }
}
