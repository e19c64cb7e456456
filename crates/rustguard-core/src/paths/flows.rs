//! Which flow goes by which path: an active flow stays on its path, a new flow gets the path with the fewest flows.
//!
//! A hash alone would leave a path empty for one in eight sets of four flows, and a home with two links has only a
//! handful of flows that matter. So a table remembers the path of each flow. Flows that share a slot share its path. A
//! slot that was silent for [`REST`] may move: none of its packets is still in flight, so none can be overtaken.
use super::probe::MAX_SHARES;
use crate::time::Instant;
use core::time::Duration;
use portable_atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

/// Slots for flows. With more flows, some share a slot.
const SLOTS: usize = 512;
/// The upper bits of a hash are its best mixed ones.
const SLOT_SHIFT: u32 = u64::BITS - SLOTS.ilog2();
/// A flow that was silent for so long may change its path. This is longer than the difference in delay of two paths,
/// and longer than the pauses within a transfer.
pub const REST: Duration = Duration::from_secs(2);
/// The clock of the slots, in milliseconds. It is coarse, so that a slot is written four times a second and not for
/// every packet.
const TICK: u64 = 256;

/// A path that takes flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, below [`MAX_SHARES`].
    pub path: u8,
    /// Its weight, at least 1: of two paths, the one with twice the weight gets twice the flows.
    pub weight: u8,
}

/// The flows to one peer, shared by the workers. For a packet they only do a load, and a store if the flow is new or
/// the clock has moved.
#[derive(Debug)]
pub struct Flows {
    /// The clock's low 24 bits at the last packet, and the path's number + 1 in the low 8; 0: empty.
    slots: [AtomicU32; SLOTS],
    /// Slots by path.
    going: [AtomicU32; MAX_SHARES],
}

impl Default for Flows {
    fn default() -> Self {
        Self { slots: core::array::from_fn(|_| AtomicU32::new(0)), going: core::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

fn ticks(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000 / TICK) as u32 & 0xff_ffff
}

/// How long before `now` a slot was used, in ticks. The clock's 24 bits wrap after 49 days. A slot that looks young
/// after that is a single flow that stays on its path.
fn age(slot: u32, now: u32) -> u32 {
    now.wrapping_sub(slot >> 8) & 0xff_ffff
}

const RESTED: u32 = (REST.as_millis() as u64 / TICK) as u32;

impl Flows {
    /// The path of the flow with this hash, one of `shares`. `None` without any.
    pub fn path(&self, flow: u64, shares: &[Share], now: Instant) -> Option<u8> {
        let now = ticks(now);
        let slot = &self.slots[(flow >> SLOT_SHIFT) as usize];
        let before = slot.load(Relaxed);
        if before != 0 && age(before, now) <= RESTED {
            let path = (before & 0xff) as u8 - 1;
            if shares.iter().any(|share| share.path == path) {
                if age(before, now) != 0 {
                    // A failure means that another worker has written the same, or has moved the flow.
                    let _ = slot.compare_exchange(before, (now << 8) | (before & 0xff), Relaxed, Relaxed);
                }
                return Some(path);
            }
        }
        let path = self.emptiest(shares)?;
        let after = (now << 8) | (u32::from(path) + 1);
        // Counted before the exchange: the worker that empties the slot later decrements the counter.
        self.going[usize::from(path)].fetch_add(1, Relaxed);
        match slot.compare_exchange(before, after, AcqRel, Relaxed) {
            Ok(_) => {
                self.left(before);
                Some(path)
            }
            // Another worker was faster.
            Err(theirs) => {
                self.going[usize::from(path)].fetch_sub(1, Relaxed);
                let theirs = shares.iter().map(|share| share.path).find(|&path| u32::from(path) + 1 == theirs & 0xff);
                theirs.or(Some(path))
            }
        }
    }

    /// Forgets the flows that rest. With `level`, also moves as many other flows as are needed to make the new `shares`
    /// even. To be called once in a while, and when a path is added.
    pub fn sweep(&self, shares: &[Share], now: Instant, level: bool) {
        let now = ticks(now);
        for slot in &self.slots {
            let before = slot.load(Relaxed);
            if before != 0 && age(before, now) > RESTED && slot.compare_exchange(before, 0, AcqRel, Relaxed).is_ok() {
                self.left(before);
            }
        }
        let weights: u32 = shares.iter().map(|share| u32::from(share.weight)).sum();
        if !level || weights == 0 {
            return;
        }
        let all: u32 = self.going.iter().map(|going| going.load(Relaxed)).sum();
        for slot in &self.slots {
            let before = slot.load(Relaxed);
            let Some(path) = (before & 0xff).checked_sub(1) else { continue };
            let weight = shares.iter().find(|share| u32::from(share.path) == path).map_or(0, |share| share.weight);
            let fair = (all * u32::from(weight)).div_ceil(weights);
            let going = self.going[path as usize].load(Relaxed);
            if going > fair && slot.compare_exchange(before, 0, AcqRel, Relaxed).is_ok() {
                self.left(before);
            }
        }
    }

    /// How many flows go by this path, including resting flows that were not swept yet.
    pub fn going(&self, path: u8) -> u32 {
        self.going.get(usize::from(path)).map_or(0, |going| going.load(Relaxed))
    }

    /// The path where one more flow makes the least load for its weight; the first of several.
    fn emptiest(&self, shares: &[Share]) -> Option<u8> {
        let load = |share: &Share| u64::from(self.going(share.path)) + 1;
        // a / b < c / d, without a division.
        let best = shares.iter().copied().reduce(|best, share| {
            if load(&share) * u64::from(best.weight) < load(&best) * u64::from(share.weight) { share } else { best }
        });
        best.map(|share| share.path)
    }

    fn left(&self, slot: u32) {
        if let Some(path) = (slot & 0xff).checked_sub(1) {
            self.going[path as usize].fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use alloc::vec::Vec;

    const START: Instant = Instant::from_nanos(1_000_000_000);
    const EVEN: [Share; 2] = [Share { path: 0, weight: 1 }, Share { path: 1, weight: 1 }];

    /// A flow with a slot of its own for each number.
    fn flow(n: u64) -> u64 {
        n << SLOT_SHIFT | 7
    }

    fn spread(flows: &Flows, count: u64, shares: &[Share], now: Instant) -> [usize; MAX_SHARES] {
        let mut got = [0; MAX_SHARES];
        for n in 0..count {
            got[usize::from(flows.path(flow(n), shares, now).expect("there is a path"))] += 1;
        }
        got
    }

    #[test]
    fn four_flows_use_both_paths_evenly_whatever_their_hashes() {
        for seed in 0..100 {
            let flows = Flows::default();
            let mut got = [0; 2];
            for n in 0..4 {
                got[usize::from(flows.path(flow(seed * 4 + n), &EVEN, START).unwrap())] += 1;
            }
            assert_eq!(got, [2, 2]);
        }
    }

    #[test]
    fn weights_are_kept() {
        let shares = [Share { path: 2, weight: 3 }, Share { path: 5, weight: 1 }];
        assert_eq!(spread(&Flows::default(), 400, &shares, START), [0, 0, 300, 0, 0, 100, 0, 0]);
        assert_eq!(Flows::default().path(1, &[], START), None);
    }

    #[test]
    fn a_flow_stays_while_it_goes_on_and_only_those_of_a_lost_path_move() {
        let flows = Flows::default();
        let before: Vec<_> = (0..40).map(|n| flows.path(flow(n), &EVEN, START)).collect();
        let mut now = START;
        for _ in 0..20 {
            now = now + (REST - Duration::from_millis(TICK));
            let again: Vec<_> = (0..40).map(|n| flows.path(flow(n), &EVEN, now)).collect();
            assert_eq!(again, before, "never silent for long enough");
        }
        let left = [EVEN[1]];
        for n in 0..40 {
            assert_eq!(flows.path(flow(n), &left, now), Some(1));
        }
        assert_eq!((flows.going(0), flows.going(1)), (0, 40));
        // The path is there again: active flows stay until the table is levelled.
        assert_eq!(spread(&flows, 40, &EVEN, now)[..2], [0, 40]);
        flows.sweep(&EVEN, now, true);
        assert_eq!(flows.going(1), 20);
        assert_eq!(spread(&flows, 40, &EVEN, now)[..2], [20, 20]);
        assert_eq!((flows.going(0), flows.going(1)), (20, 20));
    }

    #[test]
    fn a_resting_flow_makes_room() {
        let flows = Flows::default();
        spread(&flows, 30, &EVEN, START);
        let later = START + REST + Duration::from_millis(2 * TICK);
        assert_eq!(flows.path(flow(0), &EVEN, later), Some(0));
        // A rested flow goes to the path with the fewest flows now, not to its former path.
        let alone = [Share { path: 0, weight: 200 }, Share { path: 1, weight: 1 }];
        assert_eq!(flows.path(flow(3), &EVEN, START), Some(1));
        assert_eq!(flows.path(flow(3), &alone, later), Some(0));
        flows.sweep(&EVEN, later, false);
        assert_eq!((flows.going(0), flows.going(1)), (2, 0));
        // Long enough for the clock's bits to wrap.
        let much_later = later + Duration::from_secs(50 * 24 * 3600);
        flows.sweep(&EVEN, much_later, false);
        assert!(flows.path(flow(1), &EVEN, much_later).is_some());
        assert!(flows.going(0) + flows.going(1) <= 2);
    }

    #[test]
    fn workers_agree() {
        let flows = Flows::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50 {
                        let now = START + Duration::from_millis(100 * round);
                        let shares = if round % 10 < 5 { &EVEN[..] } else { &EVEN[1..] };
                        spread(&flows, 600, shares, now);
                        flows.sweep(shares, now, round % 7 == 0);
                    }
                });
            }
        });
        let counted =
            |path: u32| flows.slots.iter().filter(|slot| slot.load(Relaxed) & 0xff == path + 1).count() as u32;
        assert_eq!((flows.going(0), flows.going(1)), (counted(0), counted(1)), "the counters are the slots'");
    }
}
