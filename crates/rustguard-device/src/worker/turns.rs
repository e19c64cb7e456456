//! The turns that a worker gives to the sender of small packets on its core, before a batch leaves.
//!
//! Where sender and worker share a core, a turn lets the sender fill the batch: of 64-byte packets, 40 % more pass. But
//! `sched_yield` gives the core to whoever waits for it, and a program that computes keeps it for milliseconds. So each
//! turn is judged by what it took and what it brought, and after one that was not worth it there is none for a while.

use rustguard_core::time::Instant;
use std::time::Duration;

/// A turn so short has cost nobody anything.
const FREE: Duration = Duration::from_micros(20);
/// What a turn may take for each packet that it brings: the sender's own work for it.
const PER_PACKET: Duration = Duration::from_micros(3);
/// The time without turns after one that was not worth it. It doubles up to the longest as long as all others are not
/// worth it either.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The turns of one worker.
pub(super) struct Turns {
    /// What the last turn took, until it is judged.
    took: Option<Duration>,
    /// There is none before this.
    paused: Option<Instant>,
    pause: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self { took: None, paused: None, pause: FIRST_PAUSE }
    }
}

impl Turns {
    /// Gives a turn, unless there is a pause. Returns whether it did.
    pub(super) fn give(&mut self, now: impl Fn() -> Instant, yield_now: impl FnOnce()) -> bool {
        let begin = now();
        if self.paused.is_some_and(|until| begin < until) {
            return false;
        }
        yield_now();
        self.took = Some(now().since(begin));
        true
    }

    /// Judges the last turn by how many packets there were after it; once.
    pub(super) fn brought(&mut self, packets: usize, now: impl Fn() -> Instant) {
        let Some(took) = self.took.take() else { return };
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        if took <= FREE.max(PER_PACKET.saturating_mul(packets)) {
            self.pause = FIRST_PAUSE;
        } else {
            self.paused = Some(now() + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Attempts for this many milliseconds, one in each; each turn takes so long and brings so many packets. Returns
    /// how many there were.
    fn turns(turns: &mut Turns, clock: &Cell<u64>, milliseconds: u64, took: Duration, packets: usize) -> usize {
        let now = || Instant::from_nanos(clock.get());
        let mut count = 0;
        for _ in 0..milliseconds {
            let before = clock.get();
            if turns.give(now, || clock.set(before + took.as_nanos() as u64)) {
                count += 1;
                turns.brought(packets, now);
            }
            clock.set(before + 1_000_000);
        }
        count
    }

    #[test]
    fn turns_go_on_while_they_are_worth_it() {
        let (mut all, clock) = (Turns::default(), Cell::new(1 << 40));
        assert_eq!(turns(&mut all, &clock, 100, Duration::from_micros(5), 0), 100, "nobody had wanted the core");
        assert_eq!(turns(&mut all, &clock, 100, Duration::from_micros(90), 30), 100);
        assert_eq!(turns(&mut all, &clock, 20, Duration::from_micros(91), 30), 1, "3 µs for each packet, and no more");
    }

    #[test]
    fn a_program_that_keeps_the_core_gets_few_and_a_sender_that_comes_back_all() {
        let (mut all, clock) = (Turns::default(), Cell::new(1 << 40));
        let long = Duration::from_millis(4);
        // After 0, 20, 60, 140, 300, 620, 1,260, 2,540, and then every 2,000 ms.
        assert_eq!(turns(&mut all, &clock, 10_000, long, 0), 11);
        assert!(turns(&mut all, &clock, 2_000, Duration::from_micros(30), 30) > 0, "the longest pause is over");
        assert_eq!(turns(&mut all, &clock, 100, Duration::from_micros(30), 30), 100);
        assert_eq!(turns(&mut all, &clock, 60, long, 0), 2, "the pauses are short again");
    }
}
