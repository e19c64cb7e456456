//! Whether the kernel sends packets for the peers into the tunnel, and the tunnel's own datagrams out of it.

use super::{
    finding::Finding,
    kernel::{Kernel, Way},
    tunnel::Tunnel,
};
use crate::output::way;
use ipnet::IpNet;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The most allowed IPs and endpoints that are checked. Each costs up to three questions to the kernel.
const MOST: usize = 200;

/// Addresses of the public internet for the check of a default route, in both halves of each address space: public
/// name servers and root servers. Nothing is sent to them.
const PUBLIC_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(9, 9, 9, 9), Ipv4Addr::new(193, 0, 14, 129)];
const PUBLIC_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe), Ipv6Addr::new(0x2001, 0x7fd, 0, 0, 0, 0, 0, 1)];

/// The findings about the routes of one running tunnel.
pub(super) async fn check(kernel: &Kernel, tunnel: &Tunnel) -> Vec<Finding> {
    let mut findings = Vec::new();
    if tunnel.has_routes() {
        findings.extend(into_the_tunnel(kernel, tunnel).await);
        findings.extend(own_networks(kernel, tunnel).await);
    }
    findings.extend(to_the_endpoints(kernel, tunnel).await);
    findings
}

async fn into_the_tunnel(kernel: &Kernel, tunnel: &Tunnel) -> Vec<Finding> {
    let Some(device) = &tunnel.device else { return Vec::new() };
    let nets: BTreeSet<IpNet> = device.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect();
    let mut findings = Vec::new();
    for net in nets.iter().take(MOST) {
        findings.extend(shadowed(kernel, tunnel, *net).await);
    }
    if findings.is_empty() && !nets.is_empty() {
        findings.push(Finding::fine("routes", format!("packets for the peers go into {}", tunnel.name)));
    }
    findings
}

/// A network whose packets do not go into the tunnel. More specific routes may take a part of it: this machine's own
/// network usually is a part of a default route. Therefore several addresses have to go elsewhere.
async fn shadowed(kernel: &Kernel, tunnel: &Tunnel, net: IpNet) -> Option<Finding> {
    let name = &tunnel.name;
    let mut elsewhere = None;
    for address in samples(net) {
        match kernel.way_to(address).await {
            Way::Out { interface, .. } if interface == *name => return None,
            // An own address inside the network says nothing about the rest of it.
            Way::Local if net.prefix_len() != net.max_prefix_len() => {}
            way => elsewhere = Some((address, way)),
        }
    }
    let (address, way) = elsewhere?;
    let (cause, remedy) = match way {
        Way::Out { interface, .. } => (
            format!("packets for {net} go to {interface} and not into {name}: another route or rule comes first"),
            format!("see `ip route get {address}` and `ip rule`; remove that route, or start the tunnel again"),
        ),
        Way::Local => (
            format!("packets for {net} stay on this machine, because {address} is its own address"),
            "give this machine and its peers different addresses".to_owned(),
        ),
        Way::Nowhere(reason) => (
            format!("packets for {net} do not go into {name}: {reason}"),
            format!("start the tunnel again, or: ip route add {net} dev {name}"),
        ),
    };
    Some(Finding::wrong("routes", cause, remedy))
}

/// Networks of this machine whose packets go into the tunnel, because an allowed IP covers them and its route has a
/// better metric.
async fn own_networks(kernel: &Kernel, tunnel: &Tunnel) -> Vec<Finding> {
    let name = &tunnel.name;
    let Ok(Some(link)) = kernel.link(name).await else { return Vec::new() };
    let mut findings = Vec::new();
    for (interface, address) in kernel.addresses_of_others(link.index).await.into_iter().take(MOST) {
        let net = address.trunc();
        let is_local = match net {
            IpNet::V4(net) => net.addr().is_loopback() || net.addr().is_link_local(),
            IpNet::V6(net) => net.addr().is_loopback() || net.addr().is_unicast_link_local(),
        };
        if is_local || net.prefix_len() == net.max_prefix_len() {
            continue;
        }
        let mut ways = Vec::new();
        for sample in samples(net) {
            ways.push(kernel.way_to(sample).await);
        }
        // This machine's own address says nothing about the others.
        ways.retain(|way| *way != Way::Local);
        if !ways.is_empty() && ways.iter().all(|way| matches!(way, Way::Out { interface, .. } if interface == name)) {
            findings.push(Finding::warning(
                "routes",
                format!(
                    "packets for {net}, the network of {interface}, go into {name}: this machine reaches nobody there"
                ),
                format!("leave {net} out of AllowedIPs, or give one of the two networks other addresses"),
            ));
        }
    }
    findings
}

/// Addresses that stand for the network: public ones for a default route, otherwise the first, one in the middle, and
/// the last.
fn samples(net: IpNet) -> Vec<IpAddr> {
    if net.prefix_len() == 0 {
        return match net {
            IpNet::V4(_) => PUBLIC_V4.map(IpAddr::V4).into(),
            IpNet::V6(_) => PUBLIC_V6.map(IpAddr::V6).into(),
        };
    }
    let bits = u32::from(net.max_prefix_len() - net.prefix_len());
    if bits == 0 {
        return vec![net.addr()];
    }
    let size = 1u128.checked_shl(bits).unwrap_or(u128::MAX);
    [1, size / 2, size.saturating_sub(2)].map(|offset| nth(net, offset)).into()
}

fn nth(net: IpNet, offset: u128) -> IpAddr {
    match net {
        // The offset is smaller than the network, so it fits.
        IpNet::V4(net) => Ipv4Addr::from(net.network().to_bits() + offset as u32).into(),
        IpNet::V6(net) => Ipv6Addr::from(net.network().to_bits() + offset).into(),
    }
}

async fn to_the_endpoints(kernel: &Kernel, tunnel: &Tunnel) -> Vec<Finding> {
    let Some(device) = &tunnel.device else { return Vec::new() };
    let endpoints: BTreeSet<&String> = device
        .peers
        .iter()
        .flat_map(|peer| peer.endpoint.iter().chain(peer.paths.iter().filter_map(|path| path.endpoint.as_ref())))
        // The kernel has no routes there.
        .filter(|endpoint| way::transport(endpoint).is_none())
        .collect();
    let mut findings = Vec::new();
    for endpoint in endpoints.iter().take(MOST) {
        let Some(address) = kernel.address_of(endpoint).await else { continue };
        findings.extend(match kernel.way_of_datagrams(address, device.fwmark).await {
            Way::Out { interface, .. } if interface == tunnel.name => Some(Finding::wrong(
                "endpoint-route",
                format!("the route to the endpoint {endpoint} leads into {interface} itself, so nothing reaches it"),
                format!(
                    "add a route by the real uplink: ip route add {} via GATEWAY; or leave the address out of AllowedIPs",
                    address.ip()
                ),
            )),
            Way::Nowhere(reason) => Some(Finding::wrong(
                "endpoint-route",
                format!("there is no way to the endpoint {endpoint}: {reason}"),
                format!("check this machine's own connection: ip route get {}", address.ip()),
            )),
            Way::Out { .. } | Way::Local => None,
        });
    }
    if findings.is_empty() && !endpoints.is_empty() {
        findings.push(Finding::fine("endpoint-route", "there is a route to each endpoint, outside of the tunnel"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_inside_the_network() {
        for net in [
            "10.0.0.0/8",
            "10.0.0.4/30",
            "10.0.0.4/31",
            "10.0.0.1/32",
            "0.0.0.0/0",
            "0.0.0.0/1",
            "::/0",
            "8000::/1",
            "fd00::1/128",
        ] {
            let net: IpNet = net.parse().unwrap();
            let samples = samples(net);
            assert!(!samples.is_empty() && samples.iter().all(|address| net.contains(address)), "{net}: {samples:?}");
        }
    }
}
