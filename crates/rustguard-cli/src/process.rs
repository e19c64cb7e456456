//! This process: background, environment, log, memory, runtime, signals.

pub(crate) mod detach;
pub(crate) mod harden;
pub(crate) mod lifetime;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod port;
pub(crate) mod progress;
pub(crate) mod sandbox;
pub(crate) mod watchdog;
pub(crate) mod web;

use std::path::Path;

/// Whether systemd is process 1.
pub(crate) fn systemd_runs() -> bool {
    // sd_booted(3)
    Path::new("/run/systemd/system").is_dir()
}

/// The runtime for the asynchronous part of a command, on the calling thread.
///
/// # Errors
/// The process has no free descriptors.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
