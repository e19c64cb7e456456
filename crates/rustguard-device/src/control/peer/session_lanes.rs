//! Control's state of a peer for which lanes were wanted.

use rustguard_core::lanes::{Lanes, Negotiation};
use rustguard_tun::Endpoint;
use std::sync::Arc;

/// The lanes of the sessions with a peer.
pub(in crate::control) struct SessionLanes {
    pub(in crate::control) negotiation: Negotiation<Endpoint>,
    /// The counters in the session, from the first request in a lane until the session ends. They are made only once.
    pub(in crate::control) counters: Option<Arc<Lanes>>,
}
