//! The state of a tunnel that is no `serve`: from a file, by `join`, or of another implementation.

use super::{
    super::show::json::{JsonDevice, device as json_of},
    member,
};
use crate::{
    netlink::interface::{addresses, routes},
    output::{
        colour::Palette,
        columns::field,
        peers::{Before, PeerRow, list},
        way,
    },
    process::runtime,
    uapi::{self, Device, Peer},
};
use anyhow::Result;
use ipnet::IpNet;
use rustguard_device::kernel::Netlink;
use rustguard_network::Report;
use rustguard_quick::{
    TunnelFile, conf,
    host::{Record, Step, record_path},
};
use serde::Serialize;
use std::{fs, net::IpAddr};
use zeroize::Zeroizing;

/// The tunnel's state on the host.
#[derive(Debug, Default, Serialize)]
struct Host {
    addresses: Vec<String>,
    routes: Vec<String>,
    dns: Vec<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    host: Host,
    /// A member's report about its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Report>,
    #[serde(flatten)]
    device: JsonDevice<'a>,
}

/// The state as JSON: the output of `show`, and the state on the host.
pub(super) fn json(interface: &str) -> Result<String> {
    let device = uapi::get(interface)?;
    let network = Report::read(interface)?;
    let json = Json { host: Host::read(interface), network, device: json_of(interface, device) };
    Ok(serde_json::to_string_pretty(&json)?)
}

/// The state for people.
pub(super) fn page(
    interface: &str,
    before: &mut Before,
    size: (usize, Option<usize>),
    palette: Palette,
) -> Result<String> {
    let device = uapi::get(interface)?;
    // Without a report, this is the page of a tunnel whose peers come from a file.
    let report = Report::read(interface).ok().flatten();
    Ok(written(interface, &device, &Host::read(interface), report.as_ref(), before, size, palette))
}

fn written(
    interface: &str,
    device: &Device,
    host: &Host,
    report: Option<&Report>,
    before: &mut Before,
    (width, height): (usize, Option<usize>),
    palette: Palette,
) -> String {
    let mut text = format!("{}: {}\n", palette.good("interface").bold(), palette.good(interface));
    let mut line = |key: &str, value: &str| {
        if !value.is_empty() {
            text += &field(key, value, width, palette);
        }
    };
    line("public key", &device.public_key.map(|key| key.to_string()).unwrap_or_default());
    let ports: Vec<_> = device.all_listen_ports().map(|port| port.to_string()).collect();
    line(if ports.len() > 1 { "listening ports" } else { "listening port" }, &ports.join(", "));
    let at: Vec<_> = device.listen_addresses.iter().map(ToString::to_string).collect();
    line("listening address", &at.join(", "));
    line("address", &host.addresses.join(", "));
    line("routes", &host.routes.join(", "));
    line("dns", &host.dns.join(", "));
    if let Some(report) = report {
        member::lines(interface, report, device).iter().for_each(|(key, value)| line(key, value));
    }
    if device.relay.as_deref() == Some("isolated") {
        line("isolated", "peers cannot reach each other");
    }
    let peers = device.peers.iter().map(|peer| row(peer, &device.peers)).collect();
    let (heading, rows) = match report {
        Some(report) => ("ADDRESS", member::rows(peers, report, device)),
        None => ("ALLOWED IPS", peers),
    };
    if !rows.is_empty() {
        text.push('\n');
        let height = height.map(|height| height.saturating_sub(text.lines().count()));
        text += &list(&rows, heading, &before.rates(&rows), (width, height), palette);
    }
    text
}

pub(super) fn row(peer: &Peer, peers: &[Peer]) -> PeerRow {
    let last_handshake = Some(peer.last_handshake.as_secs()).filter(|&at| at > 0);
    PeerRow {
        public_key: peer.public_key,
        name: peer.name.clone(),
        connection: peer.connection.clone(),
        last_handshake,
        problem: peer.problem.as_ref().map(|problem| problem.text.clone()),
        addresses: peer.allowed_ips.iter().map(ToString::to_string).collect(),
        way: way::words(peer, peers),
        round_trip: way::round_trip(peer),
        not_direct: way::not_direct(peer).map(str::to_owned),
        waiting: None,
        rx_bytes: peer.rx_bytes,
        tx_bytes: peer.tx_bytes,
        tag: String::new(),
        joined_by: String::new(),
        server: false,
    }
}

impl Host {
    /// Reads the kernel's state, and the name servers, which only the file has. Unreadable parts are left out: the
    /// interface may be in another network namespace.
    fn read(interface: &str) -> Self {
        let text = |nets: Vec<IpNet>| nets.iter().map(ToString::to_string).collect();
        let (mut addresses, mut routes) = networks(interface).unwrap_or_default();
        // The kernel gives every interface a link-local address.
        addresses.retain(|net| !matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local()));
        routes.retain(|route| !is_own(route, &addresses));
        Self { addresses: text(addresses), routes: text(routes), dns: name_servers(interface).unwrap_or_default() }
    }
}

/// Whether the kernel made the route for one of the interface's own addresses: an IPv6 address of /128 has such a
/// route.
fn is_own(route: &IpNet, addresses: &[IpNet]) -> bool {
    addresses.iter().any(|own| IpNet::from(own.addr()) == *route)
}

/// The interface's addresses and routes.
fn networks(interface: &str) -> Result<(Vec<IpNet>, Vec<IpNet>)> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let netlink = Netlink::open()?;
        let Some(link) = netlink.link_by_name(interface).await? else { return Ok(Default::default()) };
        Ok((addresses(&netlink, link.index).await?, routes(&netlink, link.index).await?))
    })
}

/// The name servers and search domains of the file from which the tunnel was started, if they were set.
fn name_servers(interface: &str) -> Option<Vec<String>> {
    let record = serde_json::from_slice::<Record>(&fs::read(record_path(interface)).ok()?).ok()?;
    record.steps.iter().find(|step| matches!(step, Step::Dns(_)))?;
    let path = TunnelFile::path_of(interface).ok()??;
    let config = conf::parse(&Zeroizing::new(fs::read_to_string(path).ok()?)).0?.interface;
    let servers = config.dns.iter().map(ToString::to_string);
    Some(servers.chain(config.dns_search.iter().map(ToString::to_string)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;

    #[test]
    fn the_kernels_routes_to_the_own_addresses_are_left_out() {
        let addresses = ["10.150.0.2/24", "fd00::2/128"].map(|net| net.parse().unwrap());
        for (route, own) in
            [("fd00::2/128", true), ("10.150.0.2/32", true), ("10.150.0.0/24", false), ("fd00::/64", false)]
        {
            assert_eq!(is_own(&route.parse().unwrap(), &addresses), own, "{route}");
        }
    }

    #[test]
    fn a_page_fits_and_shows_what_the_host_has() {
        let long = "fd15:aaaa:bbbb:cccc:dddd:eeee:1111:2222";
        let host = Host {
            addresses: vec!["10.150.0.2/24".to_owned(), format!("{long}/64")],
            routes: (0..9).map(|n| format!("10.{n}.0.0/16")).collect(),
            dns: vec!["10.150.0.1".to_owned(), "corp.example".to_owned()],
        };
        let mut peer = Peer::new(PublicKey([2; 32]));
        peer.name = Some("server".to_owned());
        peer.endpoint = Some(format!("[{long}]:51820"));
        peer.allowed_ips = vec!["10.150.0.0/24".parse().unwrap(), format!("{long}/64").parse().unwrap()];
        (peer.rx_bytes, peer.tx_bytes) = (1_536, 3);
        let device = Device { listen_port: 51_820, peers: vec![peer], ..Device::default() };
        let text = written("rg0", &device, &host, None, &mut Before::default(), (80, None), Palette::PLAIN);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for words in [
            "interface: rg0\n  listening port: 51820\n  address: 10.150.0.2/24,",
            "\n  routes: 10.0.0.0/16, 10.1.0.0/16,",
            "\n  dns: 10.150.0.1, corp.example\n\nNAME    STATUS  ALLOWED IPS",
            "\nserver  never   10.150.0.0/24",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
