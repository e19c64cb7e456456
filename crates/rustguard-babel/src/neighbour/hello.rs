//! The history of a neighbour's Hellos (RFC 8966 A.1) and the quality of the link (A.2.1).
use crate::{params::from_centis, wire::types::Seqno};
use core::time::Duration;
use rustguard_core::time::Instant;

/// How many Hellos are remembered. A number that is farther off means that the sender restarted.
const LEN: i16 = 16;

/// One kind of Hellos, multicast or unicast.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History {
    /// The last sixteen Hellos, the latest in the lowest bit.
    bits: u16,
    /// The number expected next.
    expected: Seqno,
    interval: Duration,
    /// When the next Hello counts as missed.
    due: Option<Instant>,
}

/// The neighbour's numbers began anew: it was restarted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Restarted;

impl History {
    /// Notes a Hello. An interval of 0 promises no further Hello.
    pub(crate) fn received(&mut self, seqno: Seqno, interval: u16, now: Instant) -> Result<(), Restarted> {
        if self.bits != 0 {
            let off = seqno.ahead_of(self.expected);
            // Numbers half the circle apart are too far apart in both directions.
            if !(-LEN..=LEN).contains(&off) {
                return Err(Restarted);
            }
            // Behind: Hellos that were counted as missed had not been sent. Ahead: Hellos were sent and lost.
            let by = u32::from(off.unsigned_abs());
            self.bits = if off < 0 { self.bits.checked_shr(by) } else { self.bits.checked_shl(by) }.unwrap_or(0);
        }
        self.bits = self.bits << 1 | 1;
        self.expected = seqno.plus(1);
        if interval != 0 {
            self.interval = from_centis(interval);
            self.due = Some(now + self.interval * 3 / 2);
        }
        Ok(())
    }

    /// Counts the Hellos that should have come by now and did not. Returns how many.
    pub(crate) fn count_missed(&mut self, now: Instant) -> u32 {
        let mut missed = 0;
        while let Some(due) = self.due.filter(|&due| due <= now && self.bits != 0) {
            missed += 1;
            self.bits <<= 1;
            self.expected = self.expected.plus(1);
            self.due = Some(due + self.interval);
        }
        if self.bits == 0 {
            self.due = None;
        }
        missed
    }

    /// Two of the last three came.
    pub(crate) fn is_good(&self) -> bool {
        (self.bits & 0b111).count_ones() >= 2
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bits == 0
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    fn heard(seqnos: &[u16]) -> History {
        let mut history = History::default();
        for &seqno in seqnos {
            history.received(Seqno(seqno), 30, at(0)).expect("in order");
        }
        history
    }

    /// RFC 8966 A.2.1.
    #[test]
    fn two_hellos_out_of_three_make_a_good_link() {
        assert!(!heard(&[]).is_good() && !heard(&[9]).is_good());
        assert!(heard(&[9, 10]).is_good());
        assert!(heard(&[9, 11]).is_good(), "9 and 11 of 9, 10, 11");
        assert!(!heard(&[9, 12]).is_good());
        assert!(heard(&[65_534, 65_535, 0]).is_good());
        assert_eq!(heard(&[65_535, 0, 1]).bits, 0b111);
    }

    /// RFC 8966 A.1.
    #[test]
    fn a_number_ahead_means_loss_behind_a_slower_sender_far_off_a_restart() {
        assert_eq!(heard(&[1, 2, 5]).bits, 0b11001);
        let mut history = heard(&[1, 2, 3]);
        assert_eq!(history.count_missed(at(1_200)), 3);
        assert_eq!((history.bits, history.expected), (0b111_000, Seqno(7)));
        history.received(Seqno(4), 400, at(1_300)).expect("it had become slower");
        assert_eq!((history.bits, history.expected), (0b1111, Seqno(5)));
        assert_eq!(heard(&[1, 2]).received(Seqno(19), 30, at(0)), Ok(()));
        assert_eq!(heard(&[1, 2]).received(Seqno(20), 30, at(0)), Err(Restarted));
        assert_eq!(heard(&[100, 101]).received(Seqno(86), 30, at(0)), Ok(()));
        assert_eq!(heard(&[100, 101]).received(Seqno(85), 30, at(0)), Err(Restarted));
        assert_eq!(heard(&[1, 2]).received(Seqno(0x8003), 30, at(0)), Err(Restarted));
        let mut wrapped = heard(&[65_534]);
        assert_eq!((wrapped.received(Seqno(1), 30, at(0)), wrapped.bits), (Ok(()), 0b1001));
    }

    /// RFC 8966 A.1.
    #[test]
    fn the_timer_is_one_and_a_half_intervals_then_one() {
        let mut history = heard(&[1, 2, 3]);
        assert_eq!(history.due(), Some(at(450)));
        assert_eq!((history.count_missed(at(449)), history.count_missed(at(450))), (0, 1));
        assert!(history.is_good());
        assert_eq!((history.due(), history.count_missed(at(750))), (Some(at(750)), 1));
        assert!(!history.is_good());
        assert_eq!(history.count_missed(at(600_000)), 14, "ten minutes are not two thousand steps");
        assert!(history.is_empty() && history.due().is_none());
        history.received(Seqno(40_000), 30, at(600_001)).expect("an empty history expects nothing");
        assert_eq!(history.bits, 1);
    }

    /// RFC 8966 §3.4.1.
    #[test]
    fn an_unscheduled_hello_promises_no_other() {
        let mut history = heard(&[1]);
        history.received(Seqno(2), 0, at(200)).expect("in order");
        assert_eq!(
            (history.due(), history.interval(), history.bits),
            (Some(at(450)), Duration::from_millis(300), 0b11)
        );
        let mut only = History::default();
        only.received(Seqno(2), 0, at(0)).expect("the first");
        assert_eq!(only.due(), None);
    }
}
