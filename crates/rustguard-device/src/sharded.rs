//! A map whose snapshots share the parts that have not changed.
//!
//! Each change of a peer gives the workers a new table. With 60,000 peers, copying a single map takes 20 ms of
//! control's time. The entries are therefore distributed over [`SHARDS`] maps: a change copies one of them, and a
//! snapshot copies none.

use rustguard_core::{forward::Name, node::PeerId};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::HashMap, hash::Hash, ops::Index, sync::Arc};

const SHARDS: usize = 256;

/// The map that the module describes. `Clone` makes a snapshot.
#[derive(Clone)]
pub(crate) struct Sharded<K, V>(Arc<[Arc<HashMap<K, V>>]>);

/// A key that determines the map of its entry.
pub(crate) trait Key: Eq + Hash + Clone {
    fn shard(&self) -> usize;
}

impl Key for PeerId {
    /// Identifiers are consecutive, so they are distributed evenly.
    fn shard(&self) -> usize {
        self.0 as usize
    }
}

impl Key for PublicKey {
    /// Each byte of a public key is nearly random, except for the last one, whose highest bit is zero.
    fn shard(&self) -> usize {
        self.0[0].into()
    }
}

impl Key for Name {
    /// It is the beginning of a hash.
    fn shard(&self) -> usize {
        self.as_bytes()[0].into()
    }
}

impl<K, V> Default for Sharded<K, V> {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Arc::new(HashMap::new())).collect())
    }
}

impl<K: Key, V: Clone> Sharded<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0[key.shard() % SHARDS].get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.shard(&key).insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        // The shard is copied only if the key is there.
        if self.get(key).is_some() {
            self.shard(key).remove(key);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().flat_map(|shard| shard.iter())
    }

    /// The key's map for a change. It is copied if a snapshot shares it.
    fn shard(&mut self, key: &K) -> &mut HashMap<K, V> {
        Arc::make_mut(&mut Arc::make_mut(&mut self.0)[key.shard() % SHARDS])
    }
}

impl<K: Key, V: Clone> Index<&K> for Sharded<K, V> {
    type Output = V;

    /// # Panics
    /// When the map does not have the key.
    fn index(&self, key: &K) -> &V {
        &self.0[key.shard() % SHARDS][key]
    }
}

impl<K: Key, V: Clone> FromIterator<(K, V)> for Sharded<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: u32 = 60_000;

    /// The number of entries that `after` does not share with `before`.
    fn copied<K, V>(before: &Sharded<K, V>, after: &Sharded<K, V>) -> usize {
        let shards = before.0.iter().zip(&*after.0);
        shards.filter(|(before, after)| !Arc::ptr_eq(before, after)).map(|(_, after)| after.len()).sum()
    }

    #[test]
    fn a_change_copies_one_shard_and_a_snapshot_none() {
        let mut map: Sharded<PeerId, u32> = (0..PEERS).map(|n| (PeerId(n), n)).collect();
        let before = map.clone();
        assert!(Arc::ptr_eq(&before.0, &map.0));
        map.insert(PeerId(PEERS), 7);
        let after = map.clone();
        assert_eq!(copied(&before, &after), PEERS as usize / SHARDS + 1);
        map.remove(&PeerId(5));
        assert!(copied(&after, &map) <= PEERS as usize / SHARDS);
        // Removing a missing key copies nothing.
        let before_nothing = map.clone();
        map.remove(&PeerId(5));
        assert!(Arc::ptr_eq(&before_nothing.0, &map.0));
        // Snapshots are not changed.
        assert_eq!((before.get(&PeerId(PEERS)), before[&PeerId(5)]), (None, 5));
        assert_eq!((after[&PeerId(PEERS)], map.get(&PeerId(5))), (7, None));
        assert_eq!(map.iter().count(), PEERS as usize);
    }

    #[test]
    fn keys_are_spread_by_their_bytes() {
        let key = |n: u8| PublicKey([n; 32]);
        let map: Sharded<PublicKey, u8> = (0..=255).map(|n| (key(n), n)).collect();
        assert!(map.0.iter().all(|shard| shard.len() == 1));
        assert_eq!(map[&key(9)], 9);
    }
}
