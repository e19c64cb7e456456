//! Whose the entries of a shard are: the host's, or a peer's. The peer that has most is found without looking at the
//! others.

use rustguard_core::node::PeerId;
use std::collections::{BTreeSet, HashMap};

/// The number of the host. Peers have others, as long as they have entries.
pub(super) const HOST: u32 = 0;

/// The places of entries, by owner.
#[derive(Default)]
pub(super) struct Owners {
    /// By number.
    places: Vec<Vec<u32>>,
    numbers: HashMap<PeerId, u32>,
    /// How many entries each peer has, with its number.
    counts: BTreeSet<(u32, u32)>,
    peers: Vec<Option<PeerId>>,
    /// Numbers that nobody has now.
    free: Vec<u32>,
}

impl Owners {
    /// Notes a new entry. Returns its owner's number, and where among the owner's places it is.
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

    /// An entry is gone. Returns the place of the one that is at `slot` from now on.
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

    /// The number of a peer that has as many entries as any.
    pub(super) fn largest(&self) -> Option<u32> {
        self.counts.last().map(|(_, number)| *number)
    }

    fn number(&mut self, peer: PeerId) -> u32 {
        if let Some(number) = self.known(peer) {
            return number;
        }
        // The first number is the host's.
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

    /// How many entries each owner has.
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
