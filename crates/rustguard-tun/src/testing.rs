//! Test bodies for real devices and sockets, which run over every backend.
pub(crate) mod tun;
pub(crate) mod udp;

use std::time::Duration;

/// A time limit for waiting. Every step of these tests takes much less, so reaching the limit means that something was
/// lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
