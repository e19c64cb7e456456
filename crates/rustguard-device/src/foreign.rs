//! Another protocol on the tunnel's port: which datagrams are its own, and the queue they wait in.

use crate::{
    drops::{DropReason, Drops},
    fair::FairQueue,
};
use rustguard_core::time::Instant;
use rustguard_tun::Endpoint;
use tokio::sync::mpsc;

/// A datagram of another protocol on the tunnel's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where it came from, and by which of our addresses, or where it is to go. An answer goes to where the question came from,
    /// from the address that was asked.
    pub endpoint: Endpoint,
    /// What is in it.
    pub bytes: Box<[u8]>,
}

/// Who speaks another protocol on our port.
pub(crate) struct ForeignProtocol {
    pub(crate) recognises: fn(&[u8]) -> bool,
    queue: FairQueue<Datagram>,
}

impl ForeignProtocol {
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
