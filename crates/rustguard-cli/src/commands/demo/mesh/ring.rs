//! The ring of the demonstration: its nodes, the paths of packets in it, and the logs of its nodes.

use std::time::{Duration, Instant};

/// The nodes, in the order of the ring.
pub(super) const NAMES: [&str; 5] = ["ann", "bob", "cem", "dia", "eli"];
/// The cable that fails leads from this node to the next one.
pub(super) const CUT: usize = 1;
/// The interval between the echo requests of a pair.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// For each node, its next hop to each other node.
pub(super) type Table = [[Option<usize>; NAMES.len()]; NAMES.len()];

/// The log of a node.
#[derive(Default)]
pub(super) struct Log {
    /// The requests of the node, in the order in which they were sent.
    pub(super) samples: Vec<Sample>,
}

/// An echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// The destination.
    pub(super) to: usize,
    /// The time of sending.
    pub(super) at: Instant,
    /// The time until the answer, or `None` without an answer.
    pub(super) round_trip: Option<Duration>,
}

/// The nodes on the path of a packet. If the packet cannot arrive, the path ends at the node that loses it.
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
