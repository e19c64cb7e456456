//! One rtnetlink connection, and what its errors mean.

use super::error::KernelError;
use rtnetlink::Handle;
use std::io;
use tokio::task::JoinHandle;

// The errno values that are told apart. They are the same on every Linux architecture.
pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const ESRCH: i32 = 3;
/// The kernel has what was to be added already.
pub const EEXIST: i32 = 17;
pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;

/// A netlink connection. It belongs to the network namespace of the thread that opened it.
///
/// It needs a tokio runtime. The task that moves its messages ends with it.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Netlink {
    /// Opens a connection in the calling thread's network namespace. Needs no privilege by itself.
    ///
    /// # Errors
    /// [`KernelError::Netlink`] when there is no socket.
    pub fn open() -> Result<Self, KernelError> {
        // Strict checking lets the kernel filter dumps: without it, asking for the handful of routes of one table reads
        // a whole BGP table. Kernels before 4.20 do not know it; callers filter again for those.
        let (connection, handle, _unsolicited) = rtnetlink::new_connection_with_strict_check()
            .or_else(|_| rtnetlink::new_connection())
            .map_err(|source| KernelError::Netlink { action: "open a netlink socket".into(), source })?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }

    /// For requests that this module does not have: a handle of the crate `rtnetlink`.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn handle_mut(&mut self) -> &mut Handle {
        &mut self.handle
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The errno that the kernel answered with; `None` when the error has another origin.
pub fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// Whether the error says that the thing to be removed is not there any more, for addresses, routes, rules and links.
pub fn already_gone(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| {
        matches!(code, ENOENT | ESRCH | ENODEV)
            || io::Error::from_raw_os_error(code).kind() == io::ErrorKind::AddrNotAvailable
    })
}

/// Whether the error says that the interface is down: no route can lead there.
pub(super) fn link_is_down(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| io::Error::from_raw_os_error(code).kind() == io::ErrorKind::NetworkDown)
}
