//! The server for `--web`.

use crate::arguments::web::Web;
use rustguard_device::Device;
use rustguard_serve::Service;
use rustguard_web::{Address, Source, StartError, WebServer};
use std::{net::IpAddr, path::PathBuf};

/// Opens the socket or port, before there is a tunnel. `own` are the addresses that the tunnel will have.
pub(crate) fn bind(web: &Web, interface: &str, own: &[IpAddr]) -> Result<Option<WebServer>, StartError> {
    let Some(options) = web.options() else { return Ok(None) };
    let page = WebServer::bind(&options, interface, own)?;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    match page.address() {
        Address::Tcp(at) => tracing::info!("status page: {scheme}://{at}/; `rustguard web` prints a link to log in"),
        address => tracing::info!("status page: {address}; `rustguard web` prints a link to log in"),
    }
    Ok(Some(page))
}

/// Connects the page to the service, which can make links from now on.
pub(crate) fn attach(page: &WebServer, interface: &str, service: &mut Service, device: &Device, audit: PathBuf) {
    service.set_page(page.links());
    let source = Source::new(interface, service.handle(), device.handle(), audit);
    page.attach(source.policy(service.policy()));
}
