//! One rtnetlink connection.

use super::error::KernelError;
use rtnetlink::Handle;
use tokio::task::JoinHandle;

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
