//! eventfd and ppoll.
use super::check;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    time::Duration,
};

/// An eventfd. It is readable from [`signal`](Self::signal) to [`clear`](Self::clear).
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // The write fails only when the counter is full (EAGAIN). The descriptor is then readable already.
        // SAFETY: `one` is valid for its 8 bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // The read fails only when the counter is zero (EAGAIN), which is the wanted state.
        // SAFETY: `count` is valid for 8 bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One entry of [`poll`]. It holds the bare number of the descriptor, so that a set can be kept between calls. If a
/// descriptor was closed meanwhile, the kernel answers with POLLNVAL.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PollFd(libc::pollfd);

impl PollFd {
    pub(crate) fn readable(fd: BorrowedFd<'_>) -> Self {
        Self(libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
    }

    /// Whether the descriptor is ready, has an error or was hung up.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// Calls ppoll with the current signal mask. Returns the number of ready entries.
pub(crate) fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        // Below 10⁹, and a number of 32 bits on 32-bit processors.
        tv_nsec: limit.subsec_nanos().cast_signed().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = libc::nfds_t::try_from(fds.len()).expect("a set of descriptors is far smaller than nfds_t");
    // SAFETY: `PollFd` is a transparent pollfd, and `fds` has `count` of them. `timeout` is null or outlives the call.
    let ready = check(unsafe { libc::ppoll(fds.as_mut_ptr().cast(), count, timeout, ptr::null()) })?;
    Ok(ready.try_into().expect("check() lets nothing negative through"))
}
