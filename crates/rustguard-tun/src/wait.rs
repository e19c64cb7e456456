//! Waits for several descriptors, and wakes a waiting thread.
use crate::sys::{self, EventFd, PollFd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Wakes the thread that waits with the corresponding [`Waiter`]. It is cheap to clone, and any thread can call it.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Wakes the thread. Several calls before the thread looks count as one.
    pub fn wake(&self) {
        self.0.signal();
    }
}

/// The reason why a wait ended. Both fields are false when its time was over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// [`Waker::wake`] was called.
    pub woken: bool,
    /// One of the descriptors is readable, has an error or was hung up.
    pub ready: bool,
}

/// Waits until a descriptor is readable or a [`Waker`] wakes it.
#[derive(Debug)]
pub struct Waiter {
    event: Arc<EventFd>,
    /// The list is kept between calls, so that waiting allocates nothing once the largest set was seen.
    polled: Vec<PollFd>,
}

impl Waiter {
    /// A waiter and its waker (an eventfd).
    pub fn new() -> io::Result<(Self, Waker)> {
        let event = Arc::new(EventFd::new()?);
        Ok((Self { event: event.clone(), polled: Vec::new() }, Waker(event)))
    }

    /// Waits (`ppoll`) until one of `fds` is readable, has an error or was hung up. `None` waits without a limit. A
    /// signal ends the wait early; both fields of the result are then false.
    pub fn wait<'fd>(
        &mut self,
        fds: impl IntoIterator<Item = BorrowedFd<'fd>>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        self.polled.clear();
        self.polled.push(PollFd::readable(self.event.as_fd()));
        self.polled.extend(fds.into_iter().map(PollFd::readable));
        match sys::poll(&mut self.polled, timeout) {
            // A signal handler may have set a flag that the caller wants to check.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Wake::default()),
            result => result?,
        };
        let woken = self.polled[0].is_ready();
        if woken {
            self.event.clear();
        }
        Ok(Wake { woken, ready: self.polled[1..].iter().any(PollFd::is_ready) })
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
        assert_eq!(waiter.wait([], None).unwrap(), Wake { woken: true, ready: false });
        assert_eq!(waiter.wait([], Some(Duration::ZERO)).unwrap(), Wake::default());
    }

    #[test]
    fn a_wake_from_another_thread_ends_an_endless_wait() {
        let (mut waiter, waker) = Waiter::new().unwrap();
        let other = thread::spawn(move || waker.wake());
        assert!(waiter.wait([], None).unwrap().woken);
        other.join().unwrap();
    }

    #[test]
    fn any_of_the_descriptors_ends_a_wait() {
        let (mut waiter, waker) = Waiter::new().unwrap();
        let (idle, busy) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        assert_eq!(waiter.wait([idle.as_fd(), busy.as_fd()], Some(Duration::ZERO)).unwrap(), Wake::default());
        busy.signal();
        let ready = Wake { woken: false, ready: true };
        assert_eq!(waiter.wait([idle.as_fd(), busy.as_fd()], Some(Duration::from_secs(5))).unwrap(), ready);
        waker.wake();
        assert_eq!(waiter.wait([busy.as_fd(), idle.as_fd()], None).unwrap(), Wake { woken: true, ready: true });
    }

    #[test]
    fn a_hang_up_counts_as_ready() {
        let (mut waiter, _waker) = Waiter::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        assert!(waiter.wait([ours.as_fd()], Some(Duration::from_secs(5))).unwrap().ready);
    }
}
