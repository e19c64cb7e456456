//! Waiting for several descriptors, and waking a thread that waits.
use crate::sys::{self, EventFd, PollFd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Wakes the thread that waits with the [`Waiter`] it was made with. Cheap to clone, callable from anywhere.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Wakes; several calls before the thread looks count as one.
    pub fn wake(&self) {
        self.0.signal();
    }
}

/// Waits until a descriptor is readable or somebody wakes it.
#[derive(Debug)]
pub struct Waiter {
    event: Arc<EventFd>,
    /// Kept between calls: waiting allocates nothing once it has seen its largest set.
    polled: Vec<PollFd>,
}

impl Waiter {
    /// A waiter and its waker (an eventfd).
    pub fn new() -> io::Result<(Self, Waker)> {
        let event = Arc::new(EventFd::new()?);
        Ok((Self { event: event.clone(), polled: Vec::new() }, Waker(event)))
    }

    /// Waits (`ppoll`). `ready[i]` says whether `fds[i]` is readable, has an error or was hung up. Returns whether it
    /// was woken. `None` waits without limit; a signal that interrupts ends the wait early with nothing ready.
    ///
    /// # Panics
    /// When `ready` is shorter than `fds`.
    pub fn wait(&mut self, fds: &[BorrowedFd<'_>], ready: &mut [bool], timeout: Option<Duration>) -> io::Result<bool> {
        let ready = &mut ready[..fds.len()];
        ready.fill(false);
        self.polled.clear();
        self.polled.push(PollFd::readable(self.event.as_fd()));
        self.polled.extend(fds.iter().map(|&fd| PollFd::readable(fd)));
        match sys::poll(&mut self.polled, timeout) {
            // A signal handler may have set a flag the caller wants to look at.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            result => result?,
        };
        for (ready, polled) in ready.iter_mut().zip(&self.polled[1..]) {
            *ready = polled.is_ready();
        }
        let woken = self.polled[0].is_ready();
        if woken {
            self.event.clear();
        }
        Ok(woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn wakes_are_counted_once_and_survive_until_looked_at() {
        let (mut waiter, waker) = Waiter::new().unwrap();
        let clone = waker.clone();
        waker.wake();
        clone.wake();
        assert!(waiter.wait(&[], &mut [], None).unwrap());
        assert!(!waiter.wait(&[], &mut [], Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_wake_from_another_thread_ends_an_endless_wait() {
        let (mut waiter, waker) = Waiter::new().unwrap();
        let other = thread::spawn(move || waker.wake());
        assert!(waiter.wait(&[], &mut [], None).unwrap());
        other.join().unwrap();
    }

    #[test]
    fn readiness_is_reported_per_descriptor() {
        let (mut waiter, _waker) = Waiter::new().unwrap();
        let (idle, busy) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        busy.signal();
        let mut ready = [true, false, true];
        let woken = waiter.wait(&[idle.as_fd(), busy.as_fd()], &mut ready, Some(Duration::from_secs(5))).unwrap();
        assert!(!woken);
        assert_eq!(ready, [false, true, true], "places beyond the descriptors are left alone");
    }

    #[test]
    fn a_hang_up_counts_as_ready() {
        let (mut waiter, _waker) = Waiter::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let mut ready = [false];
        waiter.wait(&[ours.as_fd()], &mut ready, Some(Duration::from_secs(5))).unwrap();
        assert!(ready[0]);
    }
}
