//! Finds the sources of most packets: senders that have proved their key, which get sockets of their own (`rx`), and
//! unanswered flows of the host, which get another lane (`lanes/strays`).
//!
//! A sender or flow with more than a ninth of all packets keeps its place; counts of others may be too low (Misra and
//! Gries 1982, with the run of packets as the weight).

use rustguard_core::time::Instant;
use std::time::Duration;

/// Senders or flows that are counted at the same time.
const PLACES: usize = 8;
/// Counts start at zero again after this time.
const WINDOW: Duration = Duration::from_millis(100);
/// A sender or a flow with this many packets in a window is one of the busiest: 10,000 a second, or 120 Mbit/s of full
/// packets.
const MANY: u32 = 1_000;

/// The counts of a window, by sender or flow.
pub(super) struct Busiest<K> {
    counts: Vec<Count<K>>,
    began: Option<Instant>,
}

struct Count<K> {
    of: K,
    packets: u32,
    /// Whether it was found to be one of the busiest.
    is_found: bool,
}

impl<K> Default for Busiest<K> {
    fn default() -> Self {
        Self { counts: Vec::new(), began: None }
    }
}

impl<K: PartialEq> Busiest<K> {
    /// Counts packets of a sender or flow. Returns whether it has just become one of the busiest. That happens once in
    /// a window, so that callers repeat actions that were undone during a silence.
    pub(super) fn count(&mut self, of: K, packets: usize, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.since(began) >= WINDOW) {
            self.counts.clear();
            self.began = Some(now);
        }
        let mut packets = u32::try_from(packets).unwrap_or(u32::MAX);
        let count = match self.counts.iter_mut().position(|count| count.of == of) {
            Some(known) => &mut self.counts[known],
            None if self.counts.len() < PLACES => {
                self.counts.push(Count { of, packets: 0, is_found: false });
                self.counts.last_mut().expect("it was just put there")
            }
            None => {
                // A run takes from each count only as many packets as the smallest one has, and the rest has a place
                // then.
                let smallest = self.counts.iter().map(|count| count.packets).min().unwrap_or_default();
                let taken = packets.min(smallest);
                for count in &mut self.counts {
                    count.packets -= taken;
                }
                self.counts.retain(|count| count.packets > 0);
                if packets == taken {
                    return false;
                }
                self.counts.push(Count { of, packets: 0, is_found: false });
                packets -= taken;
                self.counts.last_mut().expect("it was just put there")
            }
        };
        count.packets = count.packets.saturating_add(packets);
        let is_new = count.packets >= MANY && !count.is_found;
        count.is_found |= is_new;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_of_many_is_found_once_in_a_window() {
        let mut busiest = Busiest::default();
        let at = |milliseconds: u64| Instant::from_nanos((1 << 40) + milliseconds * 1_000_000);
        let mut found = Vec::new();
        for millisecond in 0..200 {
            for (sender, packets) in [(1, 50), (2, 9)] {
                if busiest.count(sender, packets, at(millisecond)) {
                    found.push((millisecond, sender));
                }
            }
        }
        assert_eq!(found, [19, 119].map(|at| (at, 1)));
    }

    #[test]
    fn it_is_found_among_many_small_ones_and_they_fill_nothing() {
        let mut busiest = Busiest::default();
        let now = Instant::from_nanos(1 << 40);
        let mut found = Vec::new();
        for n in 0..3_000 {
            for sender in [n % 1_000, 5_000] {
                if busiest.count(sender, 1, now) {
                    found.push(sender);
                }
            }
            assert!(busiest.counts.len() <= PLACES);
        }
        assert_eq!(found, [5_000]);
    }

    #[test]
    fn long_runs_of_many_senders_do_not_hide_one_that_sends_a_fifth() {
        let mut busiest = Busiest::default();
        let now = Instant::from_nanos(1 << 40);
        let mut found = Vec::new();
        for n in 0..250 {
            // Each of the others is heard once.
            for (sender, packets) in [(5_000, 16), (n, 64)] {
                if busiest.count(sender, packets, now) {
                    found.push(sender);
                }
            }
            assert!(busiest.counts.len() <= PLACES);
        }
        assert_eq!(found, [5_000]);
    }
}
