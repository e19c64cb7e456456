//! The lanes of a session, for the workers: see [`rustguard_core::lanes`]. (The lanes of a worker are its TUN queues,
//! and have nothing to do with these.)

use rustguard_core::{lanes::Lanes, session::Sealer};
use rustguard_tun::Endpoint;
use std::sync::Arc;

/// A run of this many packets is a stream, for which lanes are wanted. For shorter runs, one core is enough.
pub(crate) const STREAM: usize = 16;

/// Lanes that the peer has acknowledged in a session.
pub(crate) struct InUse {
    pub(crate) lanes: Arc<Lanes>,
    /// The endpoint at which the peer has acknowledged them. On another way, lanes may not work.
    pub(crate) at: Endpoint,
}

impl InUse {
    /// Whether the lanes belong to this sealer, and the peer has the same endpoint as then.
    pub(crate) fn are_for(&self, sealer: &Arc<Sealer>, at: &Endpoint) -> bool {
        self.at == *at && Arc::ptr_eq(self.lanes.sealer(), sealer)
    }
}
