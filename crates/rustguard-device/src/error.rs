//! Why a device did not start, and why one ended.

use crate::config::UpdateError;
use rustguard_tun::tun::TunError;
use std::io;

/// Why a device ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Device::shutdown`](crate::Device::shutdown), or the handle was dropped.
    #[error("the device was shut down")]
    Shutdown,
    /// Somebody deleted the interface.
    #[error("the interface was deleted")]
    InterfaceDeleted,
    /// A system call failed in a way that cannot be mended.
    #[error("{0}")]
    Failed(String),
}

/// The device has ended, and answers nothing. [`Device::closed`](crate::Device::closed) says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has ended")]
pub struct Closed;

/// Why a device did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The interface could not be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The first configuration was refused: port, mark, …
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The kernel has no io_uring for us.
    #[error(transparent)]
    Uring(io::Error),
    /// No thread, no eventfd, no memory.
    #[error("cannot start the device's threads: {0}")]
    System(#[from] io::Error),
}
