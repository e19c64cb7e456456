//! A queue of deadlines: each key once, in the order of time. Both collections are in one type, because collections
//! that are changed by hand in several places get inconsistent one day, and a loop that relies on them then never ends.
use crate::time::Instant;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::RangeBounds;

/// Keys with a moment each.
#[derive(Clone, Debug)]
pub struct Agenda<K> {
    moments: BTreeMap<K, Instant>,
    /// The same entries, in the order of time.
    order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Agenda<K> {
    fn default() -> Self {
        Self { moments: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Agenda<K> {
    /// Sets when a key is due, replacing its earlier moment.
    pub fn set(&mut self, key: K, at: Instant) {
        if self.get(&key) == Some(at) {
            return;
        }
        self.remove(&key);
        self.moments.insert(key, at);
        self.order.insert((at, key));
    }

    /// Sets when a key is due; `None` takes it out.
    pub fn plan(&mut self, key: K, at: Option<Instant>) {
        match at {
            Some(at) => self.set(key, at),
            None => drop(self.remove(&key)),
        }
    }

    /// Takes a key out. Returns its moment.
    pub fn remove(&mut self, key: &K) -> Option<Instant> {
        let at = self.moments.remove(key)?;
        self.order.remove(&(at, *key));
        Some(at)
    }

    /// Takes out all keys of a range.
    pub fn remove_range(&mut self, keys: impl RangeBounds<K>) {
        while let Some((&key, _)) = self.moments.range((keys.start_bound(), keys.end_bound())).next() {
            self.remove(&key);
        }
    }

    /// When a key is due.
    pub fn get(&self, key: &K) -> Option<Instant> {
        self.moments.get(key).copied()
    }

    /// All keys, in their own order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.moments.keys()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// When the next one is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes out all keys that are due. Keys that the caller sets to the same moment again are for the next call, so
    /// that the caller does not loop forever.
    pub fn take_all_due(&mut self, now: Instant) -> Vec<K> {
        core::iter::from_fn(|| self.take_due(now)).collect()
    }

    /// Takes out one key that is due. A loop over it ends if it sets nothing: each call makes the agenda shorter by
    /// one.
    pub fn take_due(&mut self, now: Instant) -> Option<K> {
        let &(at, key) = self.order.first().filter(|(at, _)| *at <= now)?;
        self.order.remove(&(at, key));
        self.moments.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, sample::select};

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    proptest! {
        /// Compares with a model: a list that is searched.
        #[test]
        fn any_changes_leave_each_key_once(steps in prop::collection::vec((select(&["set", "plan", "remove", "range", "due", "all"][..]), 0..6_u8, 0..20_u64), 0..60)) {
            let (mut agenda, mut model) = (Agenda::default(), Vec::<(u64, u8)>::new());
            for (step, key, nanos) in steps {
                match step {
                    "set" => {
                        agenda.set(key, at(nanos));
                        model.retain(|(_, other)| *other != key);
                        model.push((nanos, key));
                    }
                    "plan" => {
                        agenda.plan(key, nanos.is_multiple_of(2).then(|| at(nanos)));
                        model.retain(|(_, other)| *other != key);
                        model.extend(nanos.is_multiple_of(2).then_some((nanos, key)));
                    }
                    "all" => {
                        let due = agenda.take_all_due(at(nanos));
                        model.sort_unstable();
                        let expected: Vec<_> = model.iter().filter(|(due, _)| *due <= nanos).map(|(_, key)| *key).collect();
                        prop_assert_eq!(due, expected);
                        model.retain(|(due, _)| *due > nanos);
                    }
                    "range" => {
                        agenda.remove_range(key..=key + 1);
                        model.retain(|(_, other)| !(key..=key + 1).contains(other));
                    }
                    "remove" => {
                        let known = model.iter().find(|(_, other)| *other == key).map(|(nanos, _)| at(*nanos));
                        prop_assert_eq!(agenda.remove(&key), known);
                        model.retain(|(_, other)| *other != key);
                    }
                    _ => {
                        let next = model.iter().min().copied().filter(|(due, _)| *due <= nanos);
                        prop_assert_eq!(agenda.take_due(at(nanos)), next.map(|(_, key)| key));
                        model.retain(|entry| Some(*entry) != next);
                    }
                }
                prop_assert_eq!(agenda.deadline(), model.iter().min().map(|(nanos, _)| at(*nanos)));
                prop_assert_eq!((agenda.len(), agenda.order.len()), (model.len(), model.len()));
                prop_assert_eq!(agenda.get(&key), model.iter().find(|(_, other)| *other == key).map(|(nanos, _)| at(*nanos)));
            }
        }
    }
}
