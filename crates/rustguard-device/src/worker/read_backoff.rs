//! Handles failed reads of one direction: that direction pauses and tries again while the other direction continues.
//! After too many failures it gives up.
//!
//! The kernel may be out of memory for a while, and sockets report errors of single datagrams. Such errors must not end
//! a tunnel: it ends after 32 failures in a row. The deletion of the interface is permanent, and ends the tunnel at
//! once.

use crate::logged_counter::LoggedCounter;
use rustguard_core::time::Instant;
use std::{io, time::Duration};

/// The pause before the first new attempt; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Attempts in a row: some 26 seconds.
const ATTEMPTS: u32 = 32;

/// The failed reads of one direction.
pub(super) struct ReadBackoff {
    /// The name of the source, for the log.
    from: &'static str,
    /// Attempts in a row that failed.
    failures: u32,
    /// There is no attempt before this.
    paused: Option<Instant>,
    /// All failures so far: frequent failures must not fill the log.
    remarked: LoggedCounter,
    /// The log has a line about the failures since the last success.
    told: bool,
}

impl ReadBackoff {
    pub(super) fn new(from: &'static str) -> Self {
        Self { from, failures: 0, paused: None, remarked: LoggedCounter::default(), told: false }
    }

    /// Whether the direction pauses. Reads the time only after a failure.
    pub(super) fn pause(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.paused.is_some_and(|until| {
            let over = now() >= until;
            if over {
                self.paused = None;
            }
            !over
        })
    }

    /// When the pause is over.
    pub(super) fn paused(&self) -> Option<Instant> {
        self.paused
    }

    /// Takes the result of a batch. Returns whether the batch had packets.
    ///
    /// # Errors
    /// When another attempt is pointless.
    pub(super) fn outcome(&mut self, result: io::Result<bool>, now: impl FnOnce() -> Instant) -> io::Result<bool> {
        match result {
            Ok(any) if self.failures == 0 => Ok(any),
            Ok(any) => {
                if std::mem::take(&mut self.told) {
                    tracing::info!("reading from the {} works again", self.from);
                }
                self.failures = 0;
                Ok(any)
            }
            Err(error) if is_final(&error) || self.failures + 1 >= ATTEMPTS => Err(error),
            Err(error) => self.failed(&error, now()),
        }
    }

    #[cold]
    fn failed(&mut self, error: &io::Error, now: Instant) -> io::Result<bool> {
        if self.remarked.count(now) && !self.told {
            self.told = true;
            tracing::warn!("cannot read from the {}: {error}; trying again", self.from);
        }
        let pause = (FIRST_PAUSE * 2_u32.pow(self.failures.min(7))).min(LONGEST_PAUSE);
        self.failures += 1;
        self.paused = Some(now + pause);
        Ok(false)
    }
}

/// Whether the interface, or its replacement, is gone: EBADFD of a queue becomes `NotConnected`.
fn is_final(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotConnected || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn failure() -> io::Result<bool> {
        Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
    }

    #[test]
    fn failures_make_growing_pauses_and_have_an_end() {
        let (mut reads, mut now, mut attempts) = (ReadBackoff::new("test"), NOW, 1);
        while reads.outcome(failure(), || now).is_ok() {
            let until = reads.paused().expect("a failure makes a pause");
            assert!(reads.pause(|| now), "it has begun");
            let pause = until.since(now);
            assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause), "{pause:?}");
            now = until;
            assert!(!reads.pause(|| now), "it is over");
            attempts += 1;
        }
        assert_eq!(attempts, ATTEMPTS);
        assert!(now.since(NOW) > Duration::from_secs(20));
    }

    #[test]
    fn a_success_makes_the_next_failure_the_first() {
        let mut reads = ReadBackoff::new("test");
        for _ in 0..10 * ATTEMPTS {
            reads.outcome(failure(), || NOW).expect("another attempt");
            assert_eq!(reads.paused(), Some(NOW + FIRST_PAUSE));
            assert!(!reads.pause(|| NOW + FIRST_PAUSE));
            assert!(reads.outcome(Ok(true), || NOW).expect("it works"));
            assert!(!reads.pause(|| panic!("nobody asks for the time")));
        }
    }

    #[test]
    fn what_is_gone_is_not_tried_again() {
        for error in
            [io::ErrorKind::NotConnected.into(), io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error())]
        {
            assert!(ReadBackoff::new("test").outcome(Err(error), || NOW).is_err());
        }
    }
}
