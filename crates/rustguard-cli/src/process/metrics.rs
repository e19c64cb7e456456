//! The server for `--metrics`.

use crate::arguments::metrics::Metrics;
use rustguard_metrics::{Address, BindError, Exporter};
use rustguard_quick::helper::open_socket;
use std::net::IpAddr;

/// Opens the socket or port, before there is a tunnel. `own` are the addresses that the tunnel will have.
pub(crate) fn bind(metrics: &Metrics, own: &[IpAddr]) -> Result<Option<Exporter>, BindError> {
    let Some(address) = &metrics.metrics else { return Ok(None) };
    let exporter = Exporter::bind_by(open_socket, address, own)?;
    match exporter.address() {
        Address::Tcp(at) => tracing::info!("metrics: http://{at}/metrics"),
        address => tracing::info!("metrics: {address}"),
    }
    if exporter.is_exposed() {
        tracing::warn!(
            "everybody who can reach {} can read names, public keys and addresses of peers; if that is not meant, use a loopback \
             address or a Unix socket, or let a firewall restrict it",
            exporter.address()
        );
    }
    Ok(Some(exporter))
}
