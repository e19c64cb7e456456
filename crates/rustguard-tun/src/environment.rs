//! The inheritance of a process: secrets in environment variables, and files that another process has opened.

use crate::sys;
use std::{ffi::OsString, io, os::fd::RawFd};

/// Closes the inherited files above standard error, except those in `keep`: a shell, a supervisor or `flock` has opened
/// them for itself. Files of the process itself stay open: they have FD_CLOEXEC, and files that remain open across
/// exec(2) do not. Call this first in `main`, before anything opens a file without the flag.
///
/// # Errors
/// The process has more than one thread, which may have opened files. Without `/proc`, the number of threads is
/// unknown, which is an error, too. In both cases nothing is closed.
pub fn close_inherited(keep: &[RawFd]) -> io::Result<()> {
    sys::close_inherited(keep)
}

/// Removes a variable from the environment and returns its value. Child processes do not inherit the variable, and the
/// value is overwritten in the process's initial environment, which `/proc/PID/environ` shows.
///
/// # Errors
/// The process has more than one thread: another thread may be reading the environment. Call this first in `main`.
/// Without `/proc`, the number of threads is unknown, which is an error, too. In both cases the variable is unchanged.
pub fn take(name: &str) -> io::Result<Option<OsString>> {
    sys::take_variable(name)
}

/// From now on, allocations of 32 KiB or more are memory of their own (mmap): pages that were not written yet take no
/// memory, and all of it goes back to the system when it is freed. glibc begins like this, and gives it up when the
/// first such piece is freed. For programs with many large buffers that are mostly unused. Other allocators stay as
/// they are.
pub fn separate_large_allocations() {
    sys::set_separate_allocations(32 * 1_024);
}
