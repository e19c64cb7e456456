//! The owners of a shard's entries: the host or peers. The peer with the most entries is found without a search.

use rustguard_core::node::PeerId;
use std::collections::{BTreeSet, HashMap};

/// The number of the host. Peers have other numbers while they have entries.
pub(super) const HOST: u32 = 0;

/// The places of entries, by owner.
#[derive(Default)]
pub(super) struct Owners {
    /// Indexed by the owner's number.
    places: Vec<Vec<u32>>,
    numbers: HashMap<PeerId, u32>,
    /// The number of entries of each peer, with the peer's number.
    counts: BTreeSet<(u32, u32)>,
    peers: Vec<Option<PeerId>>,
    /// Unused numbers.
    free: Vec<u32>,
}

impl Owners {
    /// Notes a new entry. Returns the owner's number, and the index among the owner's places.
    pub(super) fn add(&mut self, owner: Option<PeerId>, place: u32) -> (u32, u32) {
        let number = owner.map_or(HOST, |peer| self.number(peer));
        if self.places.len() <= number as usize {
            self.places.resize_with(number as usize + 1, Vec::new);
        }
        let places = &mut self.places[number as usize];
        let slot = places.len() as u32;
        places.push(place);
        self.count(number, slot, slot + 1);
        (number, slot)
    }

    /// Notes that an entry was removed. Returns the place of the entry that is at `slot` now.
    pub(super) fn remove(&mut self, number: u32, slot: u32) -> Option<u32> {
        let places = &mut self.places[number as usize];
        places.swap_remove(slot as usize);
        let (moved, left) = (places.get(slot as usize).copied(), places.len() as u32);
        self.count(number, left + 1, left);
        if left == 0
            && let Some(peer) = self.peers.get_mut(number as usize).and_then(Option::take)
        {
            self.numbers.remove(&peer);
            self.places[number as usize] = Vec::new();
            self.free.push(number);
        }
        moved
    }

    /// An entry has moved.
    pub(super) fn moved(&mut self, number: u32, slot: u32, place: u32) {
        self.places[number as usize][slot as usize] = place;
    }

    /// The places of one owner's entries.
    pub(super) fn places(&self, number: u32) -> &[u32] {
        self.places.get(number as usize).map_or(&[], Vec::as_slice)
    }

    /// The number of a peer that has entries.
    pub(super) fn known(&self, peer: PeerId) -> Option<u32> {
        self.numbers.get(&peer).copied()
    }

    /// The number of the peer with the most entries.
    pub(super) fn largest(&self) -> Option<u32> {
        self.counts.last().map(|(_, number)| *number)
    }

    fn number(&mut self, peer: PeerId) -> u32 {
        if let Some(number) = self.known(peer) {
            return number;
        }
        // Number 0 is the host's.
        let number = self.free.pop().unwrap_or(self.peers.len().max(1) as u32);
        if self.peers.len() <= number as usize {
            self.peers.resize(number as usize + 1, None);
        }
        self.peers[number as usize] = Some(peer);
        self.numbers.insert(peer, number);
        number
    }

    fn count(&mut self, number: u32, before: u32, now: u32) {
        if number != HOST {
            self.counts.remove(&(before, number));
            if now > 0 {
                self.counts.insert((now, number));
            }
        }
    }

    /// Checks the counts. Returns the number of entries of all owners.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        let counts = self.places.iter().enumerate().skip(1).filter(|(_, places)| !places.is_empty());
        let counts: BTreeSet<_> = counts.map(|(number, places)| (places.len() as u32, number as u32)).collect();
        assert_eq!(counts, self.counts);
        assert_eq!(self.numbers.len(), counts.len());
        assert!(self.numbers.iter().all(|(peer, number)| self.peers[*number as usize] == Some(*peer)));
        self.places.iter().map(Vec::len).sum()
    }
}
