//! A foreign protocol on the tunnel's port: the function that recognises its datagrams, and the queue in which they
//! wait.

use crate::{
    drops::{DropReason, Drops},
    fair::FairQueue,
};
use rustguard_core::time::Instant;
use rustguard_tun::Endpoint;
use tokio::sync::mpsc;

/// A datagram of another protocol on the tunnel's port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// The remote address, and the local address at which the datagram arrived or from which it leaves. If an answer
    /// has the endpoint of its request, it leaves from the address to which the request was sent.
    pub endpoint: Endpoint,
    /// The payload.
    pub bytes: Box<[u8]>,
}

impl Datagram {
    /// A datagram to this endpoint.
    pub fn new(endpoint: Endpoint, bytes: impl Into<Box<[u8]>>) -> Self {
        Self { endpoint, bytes: bytes.into() }
    }
}

/// The datagrams of another protocol that have arrived: see [`Builder::datagrams`](crate::Builder::datagrams).
#[derive(Debug)]
pub struct Datagrams(mpsc::Receiver<Datagram>);

impl Datagrams {
    pub(crate) fn new(receiver: mpsc::Receiver<Datagram>) -> Self {
        Self(receiver)
    }

    /// Waits for the next datagram; `None` once the device has ended. Dropping the future loses no datagram.
    pub async fn recv(&mut self) -> Option<Datagram> {
        self.0.recv().await
    }

    /// Waits until there are datagrams, and appends up to `limit` of them to `batch`. Returns their number; 0 once the
    /// device has ended. Dropping the future loses no datagram.
    pub async fn recv_many(&mut self, batch: &mut Vec<Datagram>, limit: usize) -> usize {
        self.0.recv_many(batch, limit).await
    }
}

/// A protocol that an embedder speaks on the tunnel's port.
pub(crate) struct ForeignProtocol {
    pub(crate) recognises: fn(&[u8]) -> bool,
    queue: FairQueue<Datagram>,
}

impl ForeignProtocol {
    pub(crate) fn new(recognises: fn(&[u8]) -> bool, queue: mpsc::Sender<Datagram>) -> Self {
        Self { recognises, queue: FairQueue::new(queue) }
    }

    /// Copies a datagram into the protocol's queue.
    #[cold]
    pub(crate) fn take(&self, from: Endpoint, datagram: &[u8], now: Instant, drops: &Drops) {
        let copy = || Datagram { endpoint: from, bytes: datagram.into() };
        if !self.queue.push(from.remote.into(), now, copy) {
            drops.count(DropReason::DatagramQueueFull, 1);
        }
    }
}
