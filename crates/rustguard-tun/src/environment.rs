//! Secrets in environment variables.

use crate::sys;
use std::{ffi::OsString, io};

/// Removes a variable from the environment and returns its value. Child processes do not inherit the variable, and the
/// value is overwritten in the process's initial environment, which `/proc/PID/environ` shows.
///
/// # Errors
/// The process has more than one thread: another thread may be reading the environment. Call this first in `main`.
/// Without `/proc`, the number of threads is unknown, which is an error, too. In both cases the variable is unchanged.
pub fn take(name: &str) -> io::Result<Option<OsString>> {
    sys::take_variable(name)
}
