//! How a tunnel gets its routing protocol.

use anyhow::{Result, bail};
use ipnet::IpNet;
use rustguard_babel::{Babel, Config, Name, Pin, RouterId, Start};
use rustguard_crypto::random::SystemRng;
use rustguard_device::{Builder, Relay};
use rustguard_quick::{
    conf::{self, NodeName},
    host::HostConfig,
};
use rustguard_serve::Folder;

/// Gives the tunnel a Babel speaker: it announces the interface's addresses and what `Announce` says, and what it learns goes to
/// the tables of the host's set-up.
pub(crate) fn speaker(builder: Builder, config: &conf::Interface, host: &HostConfig, relay: bool) -> Result<Builder> {
    let Some(key) = &config.private_key else {
        bail!("Routing = babel takes the PrivateKey in the file: the addresses of the protocol are made of it")
    };
    let folder = Folder::open(&host.interface)?;
    let start = folder.routing_state()?.map_or(Start::First, Start::Stored);
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
    let mut builder = builder
        .routing(engine)
        .source_check(config.source_check)
        .routing_state(move |state| {
            if let Err(error) = folder.set_routing_state(state) {
                tracing::warn!("{error}");
            }
        })
        .announce(addresses.chain(config.announce.iter().copied()))
        .redistribute(config.redistribute.iter().copied());
    if let Some(tables) = host.learned_tables() {
        builder = builder.routing_tables(tables);
    }
    Ok(if relay { builder.relay(Relay::ByEngine) } else { builder })
}

/// The first label of a host name, where other nodes can be told that.
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
