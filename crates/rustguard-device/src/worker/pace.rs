//! How closely batches follow each other: whether packets come singly or in a stream, and whether to poll again before
//! sleeping.

use rustguard_core::time::Instant;
use std::time::Duration;

/// A batch that is found within this time after the previous one belongs to the same row. A wake-up from sleep takes
/// longer.
const SOON: Duration = Duration::from_micros(20);
/// From this many batches in a row on, packets come in a stream.
const STREAM: u32 = 4;
/// From this many batches in a row on, the worker polls again before it sleeps: the next packets probably arrive in a
/// few microseconds, and sleeping and waking takes longer.
const BUSY: u32 = 8;
/// How often the worker then polls without finding packets.
const LOOKS: u32 = 16;

/// The batches of a worker in time.
#[derive(Default)]
pub(super) struct Pace {
    /// Batches since the last pause.
    row: u32,
    /// Polls without a result since the last batch.
    looks: u32,
    /// The end of the last batch.
    end: Option<Instant>,
}

impl Pace {
    /// Whether to poll without sleeping.
    pub(super) fn looks(&self) -> bool {
        self.row >= BUSY && self.looks < LOOKS
    }

    /// There are packets. Returns whether they belong to a stream.
    pub(super) fn found(&mut self, now: Instant) -> bool {
        let soon = self.end.is_some_and(|end| now.since(end) < SOON);
        self.row = if soon { self.row.saturating_add(1) } else { 0 };
        self.looks = 0;
        self.row >= STREAM
    }

    /// The batch is done.
    pub(super) fn ended(&mut self, now: Instant) {
        self.end = Some(now);
    }

    /// There was nothing.
    pub(super) fn found_nothing(&mut self) {
        self.looks = self.looks.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 50_000;

    /// Batches with these pauses before them, in nanoseconds. Returns which of them belonged to a stream.
    fn run(pace: &mut Pace, pauses: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut now = pace.end.map_or(1 << 40, Instant::as_nanos);
        let mut one = |pause| {
            now += pause;
            let stream = pace.found(Instant::from_nanos(now));
            now += BATCH;
            pace.ended(Instant::from_nanos(now));
            stream
        };
        pauses.into_iter().map(&mut one).collect()
    }

    #[test]
    fn batches_without_pauses_are_a_stream_and_others_come_singly() {
        let mut pace = Pace::default();
        assert_eq!(
            run(&mut pace, [5_000; 6]),
            [false, false, false, false, true, true],
            "the first has none before it"
        );
        assert_eq!(run(&mut pace, [20_000, 5_000]), [false, false]);
        assert_eq!(run(&mut pace, [1_000_000; 20]), [false; 20]);
        assert!(!pace.looks(), "the next one is far away");
    }

    #[test]
    fn looks_are_few_and_only_in_a_row() {
        let mut pace = Pace::default();
        for _ in 0..3 {
            run(&mut pace, [5_000; 9]);
            let looks = std::iter::from_fn(|| pace.looks().then(|| pace.found_nothing())).take(1_000).count();
            assert_eq!(looks, LOOKS as usize);
            run(&mut pace, [1_000_000]);
            assert!(!pace.looks());
        }
    }
}
