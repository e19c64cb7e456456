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

/// The set of ready descriptors, by their positions in the given order. A position from 64 on always counts as ready:
/// asking a descriptor without data costs a system call, but not asking one with data costs a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready(u64);

impl Ready {
    /// All descriptors count as ready, because their state is not known.
    pub const ALL: Self = Self(u64::MAX);
    /// None of the first 64.
    pub const NONE: Self = Self(0);

    /// Whether the descriptor at this position may be ready.
    #[must_use]
    pub fn contains(self, position: usize) -> bool {
        position >= 64 || (self.0 >> position) & 1 == 1
    }

    /// Whether none of the first `count` is ready.
    #[must_use]
    pub fn is_empty(self, count: usize) -> bool {
        (0..count).all(|position| !self.contains(position))
    }

    /// The set for the descriptors from position `count` on.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        // The state of positions from 64 on is not known.
        (0..64).map(|position| self.contains(count + position)).collect()
    }
}

impl FromIterator<bool> for Ready {
    fn from_iter<I: IntoIterator<Item = bool>>(ready: I) -> Self {
        let mask = ready.into_iter().take(64).zip(0..);
        Self(mask.fold(0, |mask, (ready, position)| mask | u64::from(ready) << position))
    }
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
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.polled.clear();
                return Ok(Wake::default());
            }
            result => result?,
        };
        let woken = self.polled[0].is_ready();
        if woken {
            self.event.clear();
        }
        Ok(Wake { woken, ready: self.polled[1..].iter().any(PollFd::is_ready) })
    }

    /// The ready descriptors of the last [`wait`](Self::wait), from position `first` on.
    #[must_use]
    pub fn ready(&self, first: usize) -> Ready {
        // The waker's own descriptor comes before them.
        self.polled.iter().skip(1 + first).map(PollFd::is_ready).collect()
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
    fn the_ready_ones_are_known_by_their_positions() {
        let (mut waiter, waker) = Waiter::new().unwrap();
        let fds: Vec<_> = (0..70).map(|_| EventFd::new().unwrap()).collect();
        for ready in [0, 3, 66] {
            fds[ready].signal();
        }
        waiter.wait(fds.iter().map(EventFd::as_fd), None).unwrap();
        let positions = |ready: Ready| (0..64).filter(|&position| ready.contains(position)).collect::<Vec<_>>();
        assert_eq!(positions(waiter.ready(0)), [0, 3]);
        assert_eq!(positions(waiter.ready(2)), [1]);
        assert_eq!(positions(waiter.ready(60)), [6]);
        assert!(waiter.ready(0).contains(64), "it is not known, and must be asked");
        waker.wake();
        waiter.wait(fds[..3].iter().map(EventFd::as_fd), None).unwrap();
        assert_eq!(positions(waiter.ready(0)), [0]);
    }

    #[test]
    fn a_set_of_ready_ones_can_be_cut() {
        let ready: Ready = [false, true, false, true].into_iter().collect();
        assert!(ready.is_empty(1) && !ready.is_empty(2));
        assert!(ready.after(1).contains(0) && !ready.after(1).contains(1) && ready.after(3).contains(0));
        assert!(Ready::NONE.is_empty(64) && !Ready::NONE.is_empty(65) && Ready::ALL.is_empty(0));
        assert!(!Ready::NONE.after(1).contains(62) && Ready::NONE.after(1).contains(63), "what is not known is asked");
        assert_eq!(Ready::NONE.after(64), Ready::ALL);
        assert_eq!(Ready::NONE.after(1_000), Ready::ALL);
    }

    #[test]
    fn a_hang_up_counts_as_ready() {
        let (mut waiter, _waker) = Waiter::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        assert!(waiter.wait([ours.as_fd()], Some(Duration::from_secs(5))).unwrap().ready);
    }
}
