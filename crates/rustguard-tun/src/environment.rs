//! Secrets that come by the environment.

use crate::sys;
use std::{ffi::OsString, io};

/// Takes a variable out of the environment: children do not inherit it, and its value is no longer where the process began with
/// it, which `/proc/PID/environ` shows.
///
/// # Errors
/// The process has more than one thread: another one may be reading the environment. To be called first in `main`. Without
/// `/proc`, nobody knows how many there are. The variable is then as it was.
pub fn take(name: &str) -> io::Result<Option<OsString>> {
    sys::take_variable(name)
}
