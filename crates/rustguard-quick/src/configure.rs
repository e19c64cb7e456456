//! A configuration, applied to a device.

use crate::conf::Config;
use rustguard_device::Builder;

/// The builder of a device with everything of a configuration that is not the host's: keys, ports, peers. For a device
/// without an interface, see [`Builder::start_with`].
///
/// The environment variable `WG_ENDPOINT_RESOLUTION_RETRIES` has the same meaning as for `wg`.
#[must_use]
pub fn configured(builder: Builder, config: &Config) -> Builder {
    let interface = &config.interface;
    let mut builder = builder.greet(config.greets());
    if let Some(port) = interface.listen_port {
        builder = builder.listen_port(port);
    }
    builder = builder.more_listen_ports(interface.more_listen_ports.iter().copied());
    builder = builder
        .listen_addresses(interface.listen_addresses.iter().copied())
        .public_endpoints(interface.public_endpoints.iter().cloned())
        .port_mapping(interface.port_mapping.unwrap_or(true));
    builder = builder.pools(config.pools.iter().copied());
    // The server of a network forwards without a `Forward` line in a file.
    if let Some(forward) = interface.forward {
        builder = builder.forward(forward);
    }
    if let Some(mtu) = interface.mtu {
        builder = builder.mtu(mtu.into());
    }
    if let Some(key) = &interface.private_key {
        builder = builder.private_key(key.clone());
    }
    if let Some(retries) = resolution_retries() {
        builder = builder.resolution_retries(retries);
    }
    for peer in &config.peers {
        builder = builder.peer(peer.to_update());
    }
    builder
}

/// wg's variable: a number, or `infinity`, which is the default.
fn resolution_retries() -> Option<u32> {
    let text = std::env::var("WG_ENDPOINT_RESOLUTION_RETRIES").ok().filter(|text| text != "infinity")?;
    let retries = text.parse().ok();
    if retries.is_none() {
        tracing::warn!("WG_ENDPOINT_RESOLUTION_RETRIES={text} is neither a number nor `infinity`, and is ignored");
    }
    retries
}
