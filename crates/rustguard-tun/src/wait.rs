//! Waiting for several descriptors, and waking a thread that waits.
use std::{io, os::fd::BorrowedFd, sync::Arc, time::Duration};

/// Wakes the thread that waits with the [`Waiter`] it was made with. Cheap to clone, callable from anywhere.
#[derive(Clone)]
pub struct Waker(Arc<()>);

impl Waker {
    /// Wakes; several calls before the thread looks count as one.
    pub fn wake(&self) {
        todo!()
    }
}

/// Waits until a descriptor is readable or somebody wakes it.
pub struct Waiter(());

impl Waiter {
    /// A waiter and its waker (an eventfd).
    pub fn new() -> io::Result<(Self, Waker)> {
        todo!()
    }
    /// Waits (`ppoll`). `ready[i]` says whether `fds[i]` is readable, has an error or was hung up. Returns whether it was woken.
    pub fn wait(
        &mut self,
        _fds: &[BorrowedFd<'_>],
        _ready: &mut [bool],
        _timeout: Option<Duration>,
    ) -> io::Result<bool> {
        todo!()
    }
}
