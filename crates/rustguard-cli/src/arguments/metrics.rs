//! `--metrics`, which `up`, `serve` and `join` share.

use clap::Args;
use rustguard_metrics::Address;
use std::path::PathBuf;

/// `--metrics`. Services can set it in the environment.
#[derive(Args, Clone, Debug)]
pub(crate) struct Metrics {
    /// Serve metrics for Prometheus at this Unix socket or TCP port: unix:PATH or ADDR:PORT
    ///
    /// The paths are /metrics, /healthz and /readyz. Anyone who can connect can read the names, public keys and
    /// addresses of peers: prefer a Unix socket, a loopback address, or the address of the tunnel itself. Port 0 takes
    /// any free port, which is printed.
    #[arg(long, value_name = "unix:PATH|ADDR:PORT", env = "RUSTGUARD_METRICS", hide_env = true)]
    pub(crate) metrics: Option<Address>,
}

impl Metrics {
    /// The name of this argument in clap.
    pub(crate) const ID: &str = "metrics";

    /// The path of the socket, if it is one.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        match &self.metrics {
            Some(Address::Unix(path)) => Some(path.clone()),
            _ => None,
        }
    }
}
