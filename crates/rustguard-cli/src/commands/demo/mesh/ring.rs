//! The ring of the demonstration: its nodes, the ways that packets take in it, and what its nodes note.

use std::time::{Duration, Instant};

/// The nodes, in the order of the ring.
pub(super) const NAMES: [&str; 5] = ["ann", "bob", "cem", "dia", "eli"];
/// The cable that goes dead: from this node to the next one.
pub(super) const CUT: usize = 1;
/// From one echo request to the next, of each pair.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// For each node, who gets what it sends to each other.
pub(super) type Table = [[Option<usize>; NAMES.len()]; NAMES.len()];

/// What a node has noted.
#[derive(Default)]
pub(super) struct Log {
    /// Its requests, in the order they were made.
    pub(super) samples: Vec<Sample>,
}

/// An echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// To whom.
    pub(super) to: usize,
    /// When.
    pub(super) at: Instant,
    /// How long the answer took; `None`: there is none.
    pub(super) round_trip: Option<Duration>,
}

/// The nodes that a packet passes from one to another; what cannot arrive ends where it is lost.
pub(super) fn path(table: &Table, from: usize, to: usize) -> Vec<usize> {
    let mut path = vec![from];
    let mut here = from;
    while let Some(next) = table[here][to].filter(|_| here != to && path.len() <= NAMES.len()) {
        path.push(next);
        here = next;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_at_its_end_where_it_is_lost_or_after_a_round() {
        let mut table = Table::default();
        for (from, row) in table.iter_mut().enumerate() {
            *row = [Some((from + 1) % NAMES.len()); NAMES.len()];
        }
        assert_eq!(path(&table, 1, 3), [1, 2, 3]);
        assert_eq!(path(&table, 3, 0), [3, 4, 0]);
        table[2][0] = None;
        assert_eq!(path(&table, 1, 0), [1, 2]);
        table[2][0] = Some(1);
        assert!(path(&table, 1, 0).len() <= NAMES.len() + 1, "a loop");
    }
}
