//! eventfd and ppoll.
use super::check;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    time::Duration,
};

/// An eventfd: readable from [`signal`](Self::signal) to [`clear`](Self::clear).
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel has just given us this descriptor, nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // Only fails when the counter is full (EAGAIN), and then it is readable already.
        // SAFETY: `one` is valid for its 8 bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // Only fails when the counter is zero (EAGAIN), which is what is wanted.
        // SAFETY: `count` is valid for 8 bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One entry of [`poll`]. Holds the bare number, so that a set can be kept between calls: at worst a descriptor that
/// was closed meanwhile is polled, which the kernel answers with POLLNVAL.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PollFd(libc::pollfd);

impl PollFd {
    pub(crate) fn readable(fd: BorrowedFd<'_>) -> Self {
        Self(libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
    }

    /// Ready, in error or hung up.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// ppoll with the signal mask as it is. Returns how many entries are ready.
pub(crate) fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = libc::nfds_t::try_from(fds.len()).expect("a set of descriptors is far smaller than nfds_t");
    // SAFETY: `PollFd` is a transparent pollfd, `fds` has `count` of them; `timeout` is null or outlives the call.
    let ready = check(unsafe { libc::ppoll(fds.as_mut_ptr().cast(), count, timeout, ptr::null()) })?;
    Ok(ready.try_into().expect("check() lets nothing negative through"))
}
