//! Who sends the most, among senders that have proved their key: each of them gets a socket of its own.
//!
//! Counting is exact for a sender that has more than an eighth of all datagrams, and close for others (Misra and Gries 1982).

use rustguard_core::{node::PeerId, time::Instant};
use rustguard_tun::Endpoint;
use std::time::Duration;

/// Senders that are counted at a time.
const PLACES: usize = 8;
/// Counts begin anew after so long.
const WINDOW: Duration = Duration::from_millis(100);
/// So many datagrams in a window make a sender one of the busiest: 10,000 a second, or 120 Mbit/s of full ones.
const MANY: u32 = 1_000;

/// The counts of a window.
#[derive(Default)]
pub(super) struct Busiest {
    counts: Vec<Count>,
    began: Option<Instant>,
    /// One that has reached the number, until it is taken.
    found: Option<(Endpoint, PeerId)>,
}

struct Count {
    from: Endpoint,
    datagrams: u32,
}

impl Busiest {
    /// Counts authentic datagrams of a peer.
    pub(super) fn count(&mut self, from: Endpoint, peer: PeerId, datagrams: usize, now: Instant) {
        if self.began.is_none_or(|began| now.since(began) >= WINDOW) {
            self.counts.clear();
            self.began = Some(now);
        }
        let datagrams = u32::try_from(datagrams).unwrap_or(u32::MAX);
        let count = match self.counts.iter_mut().position(|count| count.from == from) {
            Some(known) => &mut self.counts[known],
            None if self.counts.len() < PLACES => {
                self.counts.push(Count { from, datagrams: 0 });
                self.counts.last_mut().expect("it was just put there")
            }
            None => {
                for count in &mut self.counts {
                    count.datagrams = count.datagrams.saturating_sub(datagrams);
                }
                return self.counts.retain(|count| count.datagrams > 0);
            }
        };
        let before = count.datagrams;
        count.datagrams = before.saturating_add(datagrams);
        if before < MANY && count.datagrams >= MANY {
            self.found = Some((from, peer));
        }
    }

    /// A sender that has just become one of the busiest: once in a window, so that one whose socket was closed for its silence gets
    /// another.
    pub(super) fn take(&mut self) -> Option<(Endpoint, PeerId)> {
        self.found.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(n: u16) -> Endpoint {
        Endpoint::new(([192, 0, 2, 1], 1_000 + n).into())
    }

    #[test]
    fn a_sender_of_many_is_found_once_in_a_window() {
        let mut busiest = Busiest::default();
        let at = |milliseconds: u64| Instant::from_nanos((1 << 40) + milliseconds * 1_000_000);
        let mut found = Vec::new();
        for millisecond in 0..200 {
            busiest.count(sender(1), PeerId(1), 50, at(millisecond));
            busiest.count(sender(2), PeerId(2), 9, at(millisecond));
            found.extend(busiest.take().map(|found| (millisecond, found)));
        }
        assert_eq!(found, [19, 119].map(|at| (at, (sender(1), PeerId(1)))));
    }

    #[test]
    fn it_is_found_among_many_small_ones_and_they_fill_nothing() {
        let mut busiest = Busiest::default();
        let now = Instant::from_nanos(1 << 40);
        let mut found = None;
        for n in 0..3_000 {
            busiest.count(sender(n % 1_000), PeerId(1), 1, now);
            busiest.count(sender(5_000), PeerId(2), 1, now);
            found = found.or(busiest.take());
            assert!(busiest.counts.len() <= PLACES);
        }
        assert_eq!(found, Some((sender(5_000), PeerId(2))));
    }
}
