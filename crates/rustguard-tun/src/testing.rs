//! What every backend must do on real devices and sockets: bodies of tests, run over each.
pub(crate) mod tun;
pub(crate) mod udp;

use std::time::Duration;

/// Longer than anything here takes: whoever waits so long has lost something.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
