//! Control's clocks, which include sleep: a timer on CLOCK_BOOTTIME, and a detector for suspends of the machine.
//!
//! tokio's own timers run on CLOCK_MONOTONIC, which stands still during suspend: a session would look ten minutes
//! younger than its peer believes.

use rustguard_core::time::{Instant, Now};
use rustguard_tun::clock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::{io, os::fd::AsFd as _, time::Duration};
use tokio::net::unix::pipe::Receiver;

/// Both clocks.
pub(super) fn now() -> Now {
    Now { instant: Instant::from_nanos(clock::boottime_nanos()), unix: clock::unix() }
}

/// A timerfd on CLOCK_BOOTTIME; it fires at once after a resume that lies past its time.
pub(super) struct BootTimer {
    /// tokio's safe wrapper for a descriptor that becomes readable. It is meant for pipes, but checks nothing.
    fd: Receiver,
    set: Option<Instant>,
}

impl BootTimer {
    /// Must be called inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd: Receiver::from_owned_fd_unchecked(fd)?, set: None })
    }

    /// Sets the time to fire at; costs nothing when it has not changed.
    pub(super) fn set(&mut self, deadline: Option<Instant>) {
        if self.set == deadline {
            return;
        }
        self.set = deadline;
        // Zero would disarm the timer: the earliest deadline is one nanosecond after the start of the clock.
        let nanos = deadline.map_or(0, |deadline| deadline.as_nanos().max(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000) as _,
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(self.fd.as_fd(), TimerfdTimerFlags::ABSTIME, &spec)
            .expect("a valid descriptor and a normalised time cannot be refused (timerfd_settime(2), ERRORS)");
    }

    /// Waits until the time has come. The timer must be set again afterwards.
    pub(super) async fn expired(&mut self) {
        loop {
            // Fails only when the runtime shuts down, and then nobody polls this any more.
            if self.fd.readable().await.is_err() {
                return std::future::pending().await;
            }
            let mut expirations = [0; 8];
            // WouldBlock: the timer was set anew after it had fired.
            if self.fd.try_read(&mut expirations).is_ok() {
                self.set = None;
                return;
            }
        }
    }
}

/// Detects that CLOCK_BOOTTIME has run ahead of CLOCK_MONOTONIC: the difference between them is sleep.
///
/// The thread may wait for a core between reading the two clocks. So CLOCK_MONOTONIC is read before and after
/// CLOCK_BOOTTIME, and the time awake is never underestimated.
pub(super) struct SuspendDetector {
    before: std::time::Instant,
    boottime: u64,
    after: std::time::Instant,
}

impl SuspendDetector {
    /// A shorter suspend changes nothing that a handshake could mend.
    const WORTH_MENTIONING: Duration = Duration::from_secs(2);

    pub(super) fn new() -> Self {
        let before = std::time::Instant::now();
        Self { before, boottime: clock::boottime_nanos(), after: std::time::Instant::now() }
    }

    /// How long the machine slept since the last call; `None` if it did not.
    pub(super) fn resumed(&mut self) -> Option<Duration> {
        self.resumed_at(Self::new())
    }

    fn resumed_at(&mut self, next: Self) -> Option<Duration> {
        let awake = next.after.saturating_duration_since(self.before);
        let elapsed = Duration::from_nanos(next.boottime.saturating_sub(self.boottime));
        *self = next;
        Some(elapsed.saturating_sub(awake)).filter(|&slept| slept > Self::WORTH_MENTIONING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fires_when_due_at_once_when_late_and_again_when_set_again() {
        let mut timer = BootTimer::new().unwrap();
        timer.set(Some(Instant::from_nanos(0)));
        timer.expired().await;
        let deadline = Instant::from_nanos(clock::boottime_nanos()) + Duration::from_millis(5);
        timer.set(Some(deadline));
        timer.expired().await;
        assert!(clock::boottime_nanos() >= deadline.as_nanos());
        timer.set(Some(Instant::from_nanos(clock::boottime_nanos()) + Duration::from_secs(3600)));
        timer.set(Some(Instant::from_nanos(1)));
        timer.expired().await;
    }

    #[tokio::test]
    async fn a_timer_without_a_time_stays_silent() {
        let mut timer = BootTimer::new().unwrap();
        timer.set(Some(Instant::from_nanos(1)));
        timer.set(None);
        assert!(tokio::time::timeout(Duration::from_millis(20), timer.expired()).await.is_err());
    }

    #[test]
    fn sleep_is_what_boottime_has_more() {
        let start = std::time::Instant::now();
        let at = |before: u64, boottime: u64, after: u64| SuspendDetector {
            before: start + Duration::from_secs(before),
            boottime: Duration::from_secs(boottime).as_nanos() as u64,
            after: start + Duration::from_secs(after),
        };
        let mut detector = at(0, 7, 0);
        assert_eq!(detector.resumed_at(at(1, 8, 1)), None);
        assert_eq!(detector.resumed_at(at(2, 609, 2)), Some(Duration::from_secs(600)));
        assert_eq!(detector.resumed_at(at(3, 610, 3)), None);
        // A minute without a core, before the other clock was read or after it.
        assert_eq!(detector.resumed_at(at(4, 671, 64)), None);
        assert_eq!(detector.resumed_at(at(65, 672, 125)), None);
        assert_eq!(detector.resumed_at(at(126, 733, 126)), None);
        assert_eq!(SuspendDetector::new().resumed(), None);
    }
}
