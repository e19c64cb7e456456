//! Before a batch leaves, a worker may yield its core to the sender of small packets: this is a turn.
//!
//! If sender and worker share a core, a turn lets the sender fill the batch: 40 % more 64-byte packets pass. But
//! `sched_yield` gives the core to any waiting program, and a busy one keeps it for milliseconds. So each turn is
//! judged by its time and the packets that it brought. After a turn that was not worth it, there is none for a while.

use rustguard_core::time::Instant;
use std::time::Duration;

/// A turn of this length costs nothing.
const FREE: Duration = Duration::from_micros(20);
/// The time that a turn may take for each packet that it brings: the sender's own work for the packet.
const PER_PACKET: Duration = Duration::from_micros(3);
/// The time without turns after one that was not worth it. It doubles, up to `LONGEST_PAUSE`, while further turns are
/// not worth it either.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The turns of one worker.
pub(super) struct Turns {
    /// The duration of the last turn, until it is judged.
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

    /// Judges the last turn once, by the number of packets after it.
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

    /// Tries to give a turn once in each of these milliseconds. Each turn takes `took` and brings `packets`. Returns
    /// the number of turns.
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
