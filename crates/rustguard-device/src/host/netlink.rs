//! One rtnetlink connection, and what its errors mean.

use super::HostError;
use rtnetlink::Handle;
use std::io;
use tokio::task::JoinHandle;

// The errno values the set-up tells apart. They are the same on every Linux architecture.
pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const ESRCH: i32 = 3;
pub(super) const EEXIST: i32 = 17;
pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;

/// A netlink connection whose pump task ends with it.
pub(super) struct Netlink {
    pub(super) handle: Handle,
    task: JoinHandle<()>,
}

impl Netlink {
    /// Opens a connection in the calling thread's network namespace. Needs no privilege by itself.
    pub(super) fn open() -> Result<Self, HostError> {
        // Strict checking lets the kernel filter dumps: without it, asking for the handful of routes of one table reads
        // a whole BGP table. Kernels before 4.20 do not know it; callers filter again for those.
        let (connection, handle, _unsolicited) = rtnetlink::new_connection_with_strict_check()
            .or_else(|_| rtnetlink::new_connection())
            .map_err(|source| HostError::Netlink { action: "open a netlink socket".into(), source })?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The errno the kernel answered with, if it was the kernel that answered.
pub(super) fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// Whether the error says that the thing to be removed is not there any more, for addresses, routes, rules and links.
pub(super) fn already_gone(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| {
        matches!(code, ENOENT | ESRCH | ENODEV)
            || io::Error::from_raw_os_error(code).kind() == io::ErrorKind::AddrNotAvailable
    })
}

/// The interface is down: no route can lead there.
pub(super) fn link_is_down(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| io::Error::from_raw_os_error(code).kind() == io::ErrorKind::NetworkDown)
}
