//! The lanes of a session, for the workers: see [`rustguard_core::lanes`]. (The lanes of a worker, which are its TUN
//! queues, are another thing.)

use rustguard_core::{lanes::Lanes, session::Sealer};
use rustguard_tun::Endpoint;
use std::sync::Arc;

/// Packets of a run from which on lanes are wanted: there is a stream. A few are nothing that one core is not enough
/// for.
pub(crate) const STREAM: usize = 16;

/// Lanes that the peer has acknowledged in a session.
pub(crate) struct InUse {
    pub(crate) lanes: Arc<Lanes>,
    /// The endpoint at which it did. By another way, they may not arrive.
    pub(crate) at: Endpoint,
}

impl InUse {
    /// Whether they are what is sealed with, and the peer is where it was.
    pub(crate) fn are_for(&self, sealer: &Arc<Sealer>, at: &Endpoint) -> bool {
        self.at == *at && Arc::ptr_eq(self.lanes.sealer(), sealer)
    }
}
