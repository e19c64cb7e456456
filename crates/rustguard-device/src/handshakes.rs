//! Handshake messages on their way from the workers to control.
//!
//! The worker checks the MACs, which takes about a microsecond. A message with a wrong MAC1 ends there: its sender does not know our
//! public key. Senders that have proven their address by a cookie have a queue of their own, which control empties first: spoofed
//! sources can fill the other queue only.

use crate::{
    drops::{DropReason, Drops},
    fair::FairQueue,
};
use arc_swap::ArcSwapOption;
use rustguard_core::{
    cookie::{Screen, Standing},
    time::Instant,
    wire::Kind,
};
use rustguard_tun::Endpoint;
use tokio::sync::mpsc;

/// The longest handshake message, an initiation.
pub(crate) const HANDSHAKE_MAX: usize = 148;
/// Messages that may wait in each queue. At 36 µs of X25519 each, a full one is about 20 ms of work.
pub(crate) const HANDSHAKE_QUEUE: usize = 512;

/// A copy of a handshake message.
pub(crate) struct HandshakeDatagram {
    pub(crate) from: Endpoint,
    /// What its MACs say; `None` where the worker could not judge them.
    pub(crate) standing: Option<Standing>,
    pub(crate) bytes: [u8; HANDSHAKE_MAX],
    pub(crate) len: usize,
}

/// The workers' end.
pub(crate) struct Handshakes {
    /// Judges messages; `None` while there is no private key, or control has not brought it yet.
    pub(crate) screen: ArcSwapOption<Screen>,
    proven: FairQueue<HandshakeDatagram>,
    unproven: FairQueue<HandshakeDatagram>,
}

/// Control's end.
pub(crate) struct HandshakesInbox {
    proven: mpsc::Receiver<HandshakeDatagram>,
    unproven: mpsc::Receiver<HandshakeDatagram>,
}

impl Handshakes {
    /// With so much room in each queue.
    pub(crate) fn new(room: usize) -> (Self, HandshakesInbox) {
        let (proven, proven_in) = mpsc::channel(room);
        let (unproven, unproven_in) = mpsc::channel(room);
        let (proven, unproven) = (FairQueue::new(proven), FairQueue::new(unproven));
        (
            Self { screen: ArcSwapOption::empty(), proven, unproven },
            HandshakesInbox { proven: proven_in, unproven: unproven_in },
        )
    }

    /// Copies a message to control, if it may be worth looking at. [`Kind::of`] has checked its length.
    #[cold]
    pub(crate) fn take(&self, from: Endpoint, datagram: &[u8], now: Instant, drops: &Drops) {
        let screen = self.screen.load();
        // Cookie replies have no MACs.
        let screen = screen.as_deref().filter(|_| Kind::of(datagram) != Some(Kind::CookieReply));
        let standing = screen.map(|screen| screen.judge(from.remote, datagram, now));
        let queue = match standing {
            Some(Standing::Invalid) => {
                tracing::debug!(from = %from.remote, "handshake message refused: MAC1 is wrong");
                return drops.count(DropReason::HandshakeRefused, 1);
            }
            Some(Standing::Proven) => &self.proven,
            Some(Standing::Unproven) | None => &self.unproven,
        };
        let copy = || {
            let mut bytes = [0; HANDSHAKE_MAX];
            bytes[..datagram.len()].copy_from_slice(datagram);
            HandshakeDatagram { from, standing, bytes, len: datagram.len() }
        };
        if !queue.push(from.remote.ip(), now, copy) {
            drops.count(DropReason::HandshakeQueueFull, 1);
        }
    }
}

impl HandshakesInbox {
    /// The next message, of a proven source if there is one; `None` when the workers are gone. Nothing is lost when the future is
    /// dropped.
    pub(crate) async fn recv(&mut self) -> Option<HandshakeDatagram> {
        tokio::select! {
            biased;
            Some(message) = self.proven.recv() => Some(message),
            message = self.unproven.recv() => message,
        }
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&mut self) -> Option<HandshakeDatagram> {
        self.proven.try_recv().or_else(|_| self.unproven.try_recv()).ok()
    }
}
