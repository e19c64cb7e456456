//! A walk through a state in steps, for a snapshot that is written in slices.
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::TokenId,
    store::{Change, State},
};
use std::{collections::BTreeMap, ops::Bound};

/// A position in a walk through a state. The state may change between two steps.
#[derive(Debug, Default)]
pub(super) struct Walk {
    map: usize,
    peer: Option<PublicKey>,
    invite: Option<TokenId>,
}

impl Walk {
    /// The next entries, at most `most` of them, as the changes that make them. If there are fewer, the walk is
    /// complete.
    pub(super) fn step(&mut self, state: &State, most: usize) -> Vec<Change> {
        let mut changes = Vec::with_capacity(most);
        while changes.len() < most && self.map < 5 {
            let room = most - changes.len();
            match self.map {
                0 => changes.extend([Change::Time(state.time), Change::Serial(state.serial)]),
                1 => changes.extend(after(&state.invites, &mut self.invite, room, Change::Invite)),
                2 => changes.extend(after(&state.released, &mut self.peer, room, Change::Released)),
                3 => changes.extend(after(&state.removed, &mut self.peer, room, Change::Removed)),
                _ => changes.extend(after(&state.leases, &mut self.peer, room, Change::Lease)),
            }
            if self.map == 0 || changes.len() < most {
                self.map += 1;
                self.peer = None;
            }
        }
        changes
    }
}

/// The entries after `last`, which advances.
fn after<K: Ord + Copy, V: Clone>(
    map: &BTreeMap<K, V>,
    last: &mut Option<K>,
    room: usize,
    change: fn(V) -> Change,
) -> Vec<Change> {
    let from = last.map_or(Bound::Unbounded, Bound::Excluded);
    let entries = map.range((from, Bound::Unbounded)).take(room);
    entries.inspect(|(key, _)| *last = Some(**key)).map(|(_, value)| change(value.clone())).collect()
}
