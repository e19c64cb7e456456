//! What brings the most packets: senders that have proved their key, which get sockets of their own (`rx`), and flows
//! of the host that nobody answers, which get another lane (`lanes/strays`).
//!
//! Counting is exact for whatever has more than an eighth of all packets, and close for others (Misra and Gries 1982).

use rustguard_core::time::Instant;
use std::time::Duration;

/// Senders or flows that are counted at a time.
const PLACES: usize = 8;
/// Counts begin anew after so long.
const WINDOW: Duration = Duration::from_millis(100);
/// So many packets in a window make a sender or a flow one of the busiest: 10,000 a second, or 120 Mbit/s of full ones.
const MANY: u32 = 1_000;

/// The counts of a window, by what is counted.
pub(super) struct Busiest<K> {
    counts: Vec<Count<K>>,
    began: Option<Instant>,
}

struct Count<K> {
    of: K,
    packets: u32,
}

impl<K> Default for Busiest<K> {
    fn default() -> Self {
        Self { counts: Vec::new(), began: None }
    }
}

impl<K: PartialEq> Busiest<K> {
    /// Counts packets. Returns whether what they are of has just become one of the busiest: once in a window, so that
    /// what was undone for a silence is done again.
    pub(super) fn count(&mut self, of: K, packets: usize, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.since(began) >= WINDOW) {
            self.counts.clear();
            self.began = Some(now);
        }
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        let count = match self.counts.iter_mut().position(|count| count.of == of) {
            Some(known) => &mut self.counts[known],
            None if self.counts.len() < PLACES => {
                self.counts.push(Count { of, packets: 0 });
                self.counts.last_mut().expect("it was just put there")
            }
            None => {
                for count in &mut self.counts {
                    count.packets = count.packets.saturating_sub(packets);
                }
                self.counts.retain(|count| count.packets > 0);
                return false;
            }
        };
        let before = count.packets;
        count.packets = before.saturating_add(packets);
        before < MANY && count.packets >= MANY
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
}
