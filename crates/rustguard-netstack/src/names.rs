//! Names, asked of name servers inside the tunnel.

use crate::{
    inner::{Inner, Shared},
    stack::Stack,
};
use smoltcp::{
    socket::dns::{GetQueryResultError, QueryHandle, Socket},
    wire::DnsQueryType,
};
use std::{future::poll_fn, io, net::IpAddr, sync::Arc, task::Poll};

/// The most names that are asked at once.
const AT_ONCE: usize = 64;

impl Stack {
    /// The addresses of a name, IPv6 first where this stack has such an address.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the name has no address, there are no name servers, or none answers.
    pub async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let (v6, v4) = tokio::join!(self.ask(name, DnsQueryType::Aaaa), self.ask(name, DnsQueryType::A));
        let mut found = v6.as_ref().cloned().unwrap_or_default();
        found.extend(v4.as_ref().cloned().unwrap_or_default());
        match (found.is_empty(), v6.and(v4)) {
            (false, _) => Ok(found),
            (true, Err(error)) => Err(error),
            (true, Ok(_)) => Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address"))),
        }
    }

    async fn ask(&self, name: &str, kind: DnsQueryType) -> io::Result<Vec<IpAddr>> {
        let not_found = |why: &str| io::Error::new(io::ErrorKind::NotFound, format!("{name}: {why}"));
        let query = {
            let mut inner = self.0.lock();
            let resolver = inner.resolver.ok_or_else(|| not_found("the tunnel has no name servers"))?;
            let is_of_family = |address: &smoltcp::wire::IpCidr| match kind {
                DnsQueryType::A => matches!(address, smoltcp::wire::IpCidr::Ipv4(_)),
                _ => matches!(address, smoltcp::wire::IpCidr::Ipv6(_)),
            };
            if !inner.interface.ip_addrs().iter().any(is_of_family) {
                return Ok(Vec::new());
            }
            if inner.queries >= AT_ONCE {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many names are asked for"));
            }
            let Inner { interface, sockets, queries, .. } = &mut *inner;
            let socket = sockets.get_mut::<Socket<'_>>(resolver);
            let query = socket.start_query(interface.context(), name, kind).map_err(|_| not_found("it is no name"))?;
            *queries += 1;
            Query { shared: Arc::clone(&self.0), query: Some(query) }
        };
        self.0.wake();
        let mut query = query;
        poll_fn(|context| {
            let mut inner = self.0.lock();
            let (Some(resolver), Some(handle)) = (inner.resolver, query.query) else {
                return Poll::Ready(Err(not_found("it was asked for already")));
            };
            if inner.has_ended() {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            let socket = inner.sockets.get_mut::<Socket<'_>>(resolver);
            let found = match socket.get_query_result(handle) {
                Err(GetQueryResultError::Pending) => {
                    socket.register_query_waker(handle, context.waker());
                    return Poll::Pending;
                }
                Ok(found) => found.iter().map(|address| IpAddr::from(*address)).collect(),
                Err(GetQueryResultError::Failed) => Vec::new(),
            };
            query.query = None;
            inner.queries -= 1;
            Poll::Ready(Ok(found))
        })
        .await
    }
}

/// A question that goes on. It ends with the future that waits for it.
struct Query {
    shared: Arc<Shared>,
    query: Option<QueryHandle>,
}

impl Drop for Query {
    fn drop(&mut self) {
        let Some(query) = self.query.take() else { return };
        let mut inner = self.shared.lock();
        inner.queries -= 1;
        if let Some(resolver) = inner.resolver {
            inner.sockets.get_mut::<Socket<'_>>(resolver).cancel_query(query);
        }
    }
}
