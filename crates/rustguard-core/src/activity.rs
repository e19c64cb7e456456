//! What the data plane tells the timers of a peer: relaxed atomics, stamped once per run and read lazily.
use crate::time::Instant;
use portable_atomic::{AtomicBool, AtomicU64};

/// Traffic of one peer. Shared between the data plane, which stamps, and the [`Node`](crate::node::Node), which reads.
///
/// A stamp that starts a waiting period (data received and nothing sent yet, data sent and nothing heard yet) returns
/// `true` when the node has no timer that would look at it: the caller then calls
/// [`Node::activity`](crate::node::Node::activity) once (in the device: over the queue to control).
#[derive(Debug, Default)]
pub struct Activity {
    /// Transport bytes sent, headers and tags included, as `wg` counts them. Handshake messages are added by the device.
    pub tx_bytes: AtomicU64,
    /// Transport bytes received.
    pub rx_bytes: AtomicU64,
    _private: AtomicBool,
}

impl Activity {
    /// A run with data (not a keepalive) was sealed and sent.
    #[must_use]
    pub fn data_sent(&self, _now: Instant, _bytes: u64) -> bool {
        todo!()
    }
    /// A keepalive was sent.
    pub fn keepalive_sent(&self, _now: Instant, _bytes: u64) {
        todo!()
    }
    /// A run with data was authenticated.
    #[must_use]
    pub fn data_received(&self, _now: Instant, _bytes: u64) -> bool {
        todo!()
    }
    /// A keepalive was authenticated.
    pub fn keepalive_received(&self, _now: Instant, _bytes: u64) {
        todo!()
    }
}
