//! One rtnetlink connection.

use super::error::KernelError;
use futures_util::{Stream, StreamExt as _};
use rtnetlink::{Handle, MulticastGroup, packet_core::NetlinkMessage, packet_route::RouteNetlinkMessage};
use std::pin::Pin;
use tokio::task::JoinHandle;

/// The stream of the kernel's announcements.
pub(super) type Announcements = Pin<Box<dyn Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Send>>;

/// The announcements of changes that can alter the route of a packet.
pub(super) const ROUTING: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// A netlink connection. It belongs to the network namespace of the thread that opened it.
///
/// It needs a tokio runtime. The task that transfers its messages ends with it.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Netlink {
    /// Opens a connection in the calling thread's network namespace. This needs no privilege.
    ///
    /// # Errors
    /// [`KernelError::Netlink`] if no socket could be opened.
    pub fn open() -> Result<Self, KernelError> {
        // Strict checking lets the kernel filter dumps. Without it, a request for the few routes of one table would
        // read a whole BGP table. Kernels before 4.20 do not support it, so callers also filter.
        let (connection, handle, _unsolicited) = rtnetlink::new_connection_with_strict_check()
            .or_else(|_| rtnetlink::new_connection())
            .map_err(|source| KernelError::Netlink { action: "open a netlink socket".into(), source })?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }

    /// Opens a connection that also listens to the kernel's announcements. On this socket the kernel's answers and
    /// announcements have one order: announcements from before an answer are in the stream when the answer is there.
    pub(super) fn listening(groups: &[MulticastGroup]) -> Result<(Self, Announcements), KernelError> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(groups)
            .map_err(|source| KernelError::Netlink { action: "listen to changes of the network".into(), source })?;
        let messages = Box::pin(messages.map(|(message, _)| message));
        Ok((Self { handle, task: tokio::spawn(connection) }, messages))
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
