//! All neighbours, ordered by their deadlines. A speaker is asked for its deadline after every event, and most events
//! concern one neighbour of hundreds.
use crate::neighbour::Neighbour;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet, btree_map};

/// A map of neighbours with their deadlines in order. A neighbour that was borrowed to be changed may have another
/// deadline afterwards: [`Neighbours::refresh`] has to be called before the order is used.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    map: BTreeMap<PeerId, Neighbour>,
    /// The deadline of each neighbour in the order.
    known: BTreeMap<PeerId, Instant>,
    order: BTreeSet<(Instant, PeerId)>,
    touched: Vec<PeerId>,
    all_touched: bool,
}

impl Neighbours {
    pub(crate) fn get(&self, peer: &PeerId) -> Option<&Neighbour> {
        self.map.get(peer)
    }

    pub(crate) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut Neighbour> {
        if !self.all_touched && self.touched.last() != Some(peer) {
            self.touched.push(*peer);
        }
        self.map.get_mut(peer)
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, PeerId, Neighbour> {
        self.map.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> btree_map::IterMut<'_, PeerId, Neighbour> {
        self.all_touched = true;
        self.map.iter_mut()
    }

    pub(crate) fn insert(&mut self, peer: PeerId, neighbour: Neighbour) {
        self.touched.push(peer);
        self.map.insert(peer, neighbour);
    }

    pub(crate) fn remove(&mut self, peer: &PeerId) -> Option<Neighbour> {
        self.touched.push(*peer);
        self.map.remove(peer)
    }

    /// Brings the order up to date.
    pub(crate) fn refresh(&mut self) {
        if core::mem::take(&mut self.all_touched) {
            self.touched.extend(self.map.keys());
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        for peer in self.touched.drain(..) {
            let deadline = self.map.get(&peer).map(Neighbour::deadline);
            let known = self.known.get(&peer).copied();
            if deadline == known {
                continue;
            }
            if let Some(known) = known {
                self.order.remove(&(known, peer));
            }
            if let Some(deadline) = deadline {
                self.order.insert((deadline, peer));
                self.known.insert(peer, deadline);
            } else {
                self.known.remove(&peer);
            }
        }
    }

    /// The first deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        debug_assert!(self.touched.is_empty() && !self.all_touched, "the order is not up to date");
        self.order.first().map(|&(at, _)| at)
    }

    /// The neighbours whose deadlines have passed. Those that wait longest come first, because one call may not have
    /// time for all.
    pub(crate) fn due(&self, now: Instant) -> Vec<PeerId> {
        debug_assert!(self.touched.is_empty() && !self.all_touched, "the order is not up to date");
        self.order.iter().take_while(|(at, _)| *at <= now).map(|&(_, peer)| peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{jitter::Jitter, wire::types::Seqno};
    use core::time::Duration;

    #[test]
    fn the_order_equals_a_look_at_all_neighbours() {
        let at = |ms| Instant::from_nanos(1 << 40) + Duration::from_millis(ms);
        let (mut neighbours, mut random) = (Neighbours::default(), Jitter(7));
        for step in 0..2_000 {
            let (peer, ms) = (PeerId((random.next() % 20) as u32), random.next() % 1_000);
            match random.next() % 5 {
                0 => drop(neighbours.remove(&peer)),
                1 => neighbours.insert(peer, Neighbour::new(Vec::new(), Seqno(0), at(ms))),
                2 => neighbours.iter_mut().for_each(|(_, neighbour)| neighbour.dump_at(at(ms))),
                _ => {
                    if let Some(neighbour) = neighbours.get_mut(&peer) {
                        neighbour.dump_at(at(ms));
                        let _ = neighbour.dump_due(at(ms / 2), &mut random);
                    }
                }
            }
            if random.next() % 3 == 0 {
                continue;
            }
            neighbours.refresh();
            let all = || neighbours.iter().map(|(&peer, neighbour)| (neighbour.deadline(), peer));
            assert_eq!(neighbours.deadline(), all().map(|(at, _)| at).min(), "step {step}");
            let mut due: Vec<(Instant, PeerId)> = all().filter(|(deadline, _)| *deadline <= at(ms)).collect();
            due.sort_unstable();
            let due: Vec<PeerId> = due.into_iter().map(|(_, peer)| peer).collect();
            assert_eq!(neighbours.due(at(ms)), due, "step {step}");
        }
    }
}
