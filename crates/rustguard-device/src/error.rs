//! Why a device did not start, and why a device ended.

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
    /// The interface was deleted.
    #[error("the interface was deleted")]
    InterfaceDeleted,
    /// A system call failed permanently.
    #[error("{0}")]
    Failed(String),
}

/// The device has ended, and does not answer. [`Device::closed`](crate::Device::closed) tells why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has ended")]
pub struct Closed;

/// Why a device did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The interface could not be created.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The first configuration was refused: port, mark, …
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The kernel does not provide io_uring.
    #[error(transparent)]
    Uring(io::Error),
    /// A thread, an eventfd or memory could not be obtained.
    #[error("cannot start the device's threads: {0}")]
    System(#[from] io::Error),
}
