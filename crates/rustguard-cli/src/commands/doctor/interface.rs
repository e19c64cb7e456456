//! Checks of a tunnel's interface in the kernel: its state, its addresses, its MTU.

use super::{
    finding::Finding,
    kernel::{Kernel, Way},
    tunnel::Tunnel,
};
use anyhow::Result;
use rustguard_device::kernel::Link;
use rustguard_quick::{
    conf::{Config, Table},
    host,
};
use std::net::IpAddr;

/// The findings about the interface of a running tunnel.
pub(super) async fn check(kernel: &Kernel, tunnel: &Tunnel) -> Vec<Finding> {
    let name = &tunnel.name;
    let link = match kernel.link(name).await {
        Ok(Some(link)) => link,
        Ok(None) => {
            return vec![Finding::wrong(
                "interface",
                format!("a process runs {name}, but the interface is not in this network namespace"),
                format!(
                    "run doctor in the namespace of the interface, or start the tunnel again: rustguard down {name}"
                ),
            )];
        }
        Err(error) => return vec![Finding::unknown("interface", format!("{error:#}"))],
    };
    if !link.up {
        return vec![Finding::wrong(
            "interface",
            format!("{name} is down, so it carries no packets"),
            format!("ip link set {name} up"),
        )];
    }
    let mut findings = vec![Finding::fine("interface", format!("{name} is up"))];
    findings.extend(addresses(kernel, tunnel, link).await.unwrap_or_else(|error| {
        vec![Finding::unknown("addresses", format!("the addresses of {name} cannot be read: {error:#}"))]
    }));
    findings.extend(mtu(kernel, tunnel, link).await);
    findings
}

/// Whether a tunnel that is not up can have the IPv6 addresses and routes of its file.
pub(super) fn ipv6(config: &Config) -> Option<Finding> {
    let routes = config.peers.iter().flat_map(|peer| &peer.allowed_ips);
    let routes = routes.filter(|_| config.interface.table != Table::Off);
    let wanted = config.interface.addresses.iter().chain(routes).find(|net| net.addr().is_ipv6())?;
    (!host::ipv6_available()).then(|| {
        Finding::wrong(
            "ipv6",
            format!("IPv6 is off on this machine, so the tunnel cannot start: its file has {wanted}"),
            "sysctl -w net.ipv6.conf.default.disable_ipv6=0, or boot without ipv6.disable=1, or remove the IPv6 addresses from the file",
        )
    })
}

async fn addresses(kernel: &Kernel, tunnel: &Tunnel, link: Link) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let name = &tunnel.name;
    let present = kernel.addresses(link.index).await?;
    let wanted = tunnel.config.as_ref().map_or(&[][..], |config| &config.interface.addresses);
    let missing: Vec<_> =
        wanted.iter().filter(|address| !present.iter().any(|one| one.addr() == address.addr())).collect();
    for address in &missing {
        if address.addr().is_ipv6() && host::ipv6_disabled_on(name) {
            findings.push(Finding::wrong(
                "ipv6",
                format!("IPv6 is off on {name}, so it does not have the address {address} of its file"),
                format!("sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, then start the tunnel again"),
            ));
            continue;
        }
        findings.push(Finding::wrong(
            "addresses",
            format!("{name} does not have the address {address} of its file: somebody removed it"),
            format!("ip address add {address} dev {name}"),
        ));
    }
    let usable = present.iter().any(|address| match address.addr() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    if !usable && missing.is_empty() {
        findings.push(Finding::warning(
            "addresses",
            format!("{name} has no address, so this machine cannot send into the tunnel"),
            format!("add `Address = …` to the file, or: ip address add 10.0.0.2/24 dev {name}"),
        ));
    } else if missing.is_empty() {
        findings.push(Finding::fine("addresses", format!("{name} has its addresses")));
    }
    Ok(findings)
}

/// The overhead of a way through a peer for each packet, in bytes: the header of the forwarded datagram (24), and
/// header and tag of the message to the relay (32).
const THROUGH_PEER: u32 = 56;

/// The route to an endpoint that takes the shortest packets.
struct Tightest {
    /// The longest packet inside the tunnel, in bytes.
    fits: u32,
    /// The MTU that `up` would choose.
    good: u32,
    way: String,
}

/// Whether packets as large as the MTU fit the routes to the endpoints with WireGuard's overhead.
async fn mtu(kernel: &Kernel, tunnel: &Tunnel, link: Link) -> Option<Finding> {
    let device = tunnel.device.as_ref()?;
    let through_peers = tunnel.config.as_ref().is_some_and(Config::leads_through_peers);
    let mut worst: Option<Tightest> = None;
    for peer in &device.peers {
        let Some(endpoint) = &peer.endpoint else { continue };
        let Some(address) = kernel.address_of(endpoint).await else { continue };
        let Way::Out { interface, mtu } = kernel.way_of_datagrams(address, device.fwmark).await else { continue };
        // Outer header, UDP (8), data header (16) and tag (16), in bytes.
        let overhead = if address.is_ipv4() { 60 } else { 80 };
        let fits = mtu.saturating_sub(if through_peers { overhead + THROUGH_PEER } else { overhead });
        if interface != tunnel.name && worst.as_ref().is_none_or(|worst| fits < worst.fits) {
            let good = if through_peers { host::mtu_for_path(mtu, true) } else { fits };
            worst = Some(Tightest { fits, good, way: format!("{interface} to {endpoint}") });
        }
    }
    let Tightest { fits, good, way } = worst?;
    let layers = if through_peers { ", with a second layer through a peer," } else { "" };
    Some(if link.mtu > fits {
        Finding::warning(
            "mtu",
            format!(
                "the MTU of {} is {}, but the way by {way}{layers} takes {fits} bytes only, so large packets are fragmented or lost",
                tunnel.name, link.mtu
            ),
            format!("set `MTU = {good}` or remove the key; now: ip link set {} mtu {good}", tunnel.name),
        )
    } else {
        let layers = if through_peers { ", also with a second layer through a peer" } else { "" };
        Finding::fine("mtu", format!("the MTU of {} bytes fits the routes to the endpoints{layers}", link.mtu))
    })
}
