//! Safe functions for the system calls that std does not offer. No other module of this crate has `unsafe` code.
#![allow(unsafe_code)]

mod environment;
mod interface;
mod message;
mod poll;
mod uring;

pub(crate) use environment::{close_inherited, set_separate_allocations, take_variable};
pub(crate) use interface::{TunFlags, attach_tun, bring_up, index_of, mtu, name_of, set_mtu, set_tun_offload};
pub(crate) use message::{Messages, Outgoing, QueuedError, drop_all, queued_error, set_option, steer};
pub(crate) use poll::{EventFd, PollFd, poll};
use std::{io, time::Duration};
pub(crate) use uring::{BATCH as OUTBOX_BATCH, Inbox, Outbox};

/// Moves this thread into new namespaces (CLONE_NEW… flags).
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes no pointers. The process's memory and open files stay shared between its threads.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// The effective user and group of the process.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call can fail or touches memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Converts the result of a system call: a negative value means an error in `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// CLOCK_BOOTTIME.
pub(crate) fn boottime() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    // Linux has this clock since 2.6.39, and the pointer is valid. No other error is possible.
    debug_assert_eq!(result, 0);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}
