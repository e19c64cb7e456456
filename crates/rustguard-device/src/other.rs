//! Another protocol on the tunnel's port: which datagrams are its own, and the queue they wait in.

use crate::{
    device::Datagram,
    drops::{DropReason, Drops},
    fair::FairQueue,
};
use rustguard_core::time::Instant;
use rustguard_tun::Endpoint;
use tokio::sync::mpsc;

/// Who speaks another protocol on our port.
pub(crate) struct OtherProtocol {
    pub(crate) recognises: fn(&[u8]) -> bool,
    queue: FairQueue<Datagram>,
}

impl OtherProtocol {
    pub(crate) fn new(recognises: fn(&[u8]) -> bool, queue: mpsc::Sender<Datagram>) -> Self {
        Self { recognises, queue: FairQueue::new(queue) }
    }

    /// Copies a datagram for those who speak the protocol.
    #[cold]
    pub(crate) fn take(&self, from: Endpoint, datagram: &[u8], now: Instant, drops: &Drops) {
        let copy = || Datagram { endpoint: from, bytes: datagram.into() };
        if !self.queue.push(from.remote.ip(), now, copy) {
            drops.count(DropReason::DatagramQueueFull, 1);
        }
    }
}
