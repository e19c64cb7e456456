//! `Routing = babel`: adds a Babel speaker to the tunnel.

use crate::{
    conf::{self, NodeName},
    error::RoutingError,
    host::HostConfig,
    routing_state::RoutingState,
};
use ipnet::IpNet;
use rustguard_babel::{Babel, Config, Name, Pin, RouterId, Start};
use rustguard_core::routing::Located;
use rustguard_crypto::random::SystemRng;
use rustguard_device::{Builder, Relay};

/// Adds a Babel speaker to the tunnel. It announces the interface's addresses and the prefixes of `Announce`. The
/// routes that it learns go into the tables of the host's set-up.
///
/// With `relays`, packets between peers do not pass through the host.
pub(crate) fn speaker(
    builder: Builder,
    config: &conf::Interface,
    host: &HostConfig,
    relays: bool,
) -> Result<Builder, RoutingError> {
    let key = config.private_key.as_ref().ok_or(RoutingError::NoPrivateKey)?;
    let state = RoutingState::open(&host.interface)?;
    let start = state.load()?.map_or(Start::First, Start::Stored);
    let address_v4 = config.addresses.iter().find_map(|net| match net {
        IpNet::V4(net) => Some(net.addr()),
        IpNet::V6(_) => None,
    });
    let name = match &config.node_name {
        NodeName::Host => host_name(&rustix::system::uname().nodename().to_string_lossy()),
        NodeName::Off => None,
        NodeName::Is(name) => name.parse().ok(),
    };
    let pins = config.pins.iter().map(|pin| Pin::new(pin.prefix, RouterId::of_key(&pin.key)));
    let babel = Config::new(key.public_key()).address_v4(address_v4).pins(pins).start(start).name(name);
    let engine = Babel::new(babel, &mut SystemRng);
    let addresses = config.addresses.iter().map(|net| IpNet::from(net.addr()));
    let builder = match config.network {
        // Members of a network have sessions with each other. Babel finds the servers that forward their sealed
        // datagrams.
        Some(_) => builder.routing(Located::new(engine)),
        None => builder.routing(engine),
    };
    let mut builder = builder
        .source_check(config.source_check)
        .routing_state(move |bytes| {
            if let Err(error) = state.store(bytes) {
                tracing::warn!("{error}");
            }
        })
        .announce(addresses.chain(config.announce.iter().copied()))
        .redistribute(config.redistribute.iter().copied());
    // A server of a network has routes of its own: see `HostConfig::allowed_ips`.
    if let Some(tables) = host.learned_tables().filter(|_| host.learned) {
        builder = builder.routing_tables(tables);
    }
    Ok(if relays { builder.relay(Relay::ByEngine) } else { builder })
}

/// The first label of a host name, as this node's name for other nodes; `None` if it is not valid.
fn host_name(host: &str) -> Option<Name> {
    let label = host.split('.').next().filter(|&label| label != "localhost")?;
    label.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_called_by_the_first_label_of_its_host_name() {
        let host = |name: &str| host_name(name).map(|name| name.as_str().to_owned());
        assert_eq!((host("gw-1.example.com"), host("localhost"), host("(none)")), (Some("gw-1".into()), None, None));
    }
}
