//! Whether packets from one peer to another pass if the host has to forward them.

use super::{finding::Finding, tunnel::Tunnel};
use crate::uapi::Device;
use rustguard_quick::conf::Peer;
use std::fs;

/// The kernel's forwarding settings, for each family.
const SWITCHES: [(bool, &str, &str); 2] = [
    (false, "net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    (true, "net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"),
];

/// The findings for a device with several peers. A device that uses the kernel's routes relays only where the switches
/// are on. A server and a node of a mesh know the routes themselves, and need the host only where netfilter has rules.
/// A machine that reaches peers through another peer, as a member of a network does, is not on the way between peers
/// itself.
pub(super) fn check(tunnel: &Tunnel, device: &Device) -> Vec<Finding> {
    let mut peers = tunnel.config.iter().flat_map(|config| &config.peers);
    let an_end = device.forwarded.is_none() && (peers.any(Peer::leads_through_peers) || tunnel.is_member());
    let knows_routes = !device.counters.is_empty() || tunnel.learns_routes();
    if knows_routes && device.relay.as_deref() == Some("on") {
        return vec![Finding::fine("forwarding", "packets from peer to peer can pass")];
    }
    if device.peers.len() < 2 || device.relay.as_deref() == Some("isolated") || an_end {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (v6, name, path) in SWITCHES {
        // Two peers with addresses of the family could talk to each other.
        let peers = device.peers.iter().filter(|peer| peer.allowed_ips.iter().any(|net| net.addr().is_ipv6() == v6));
        if peers.count() > 1 && fs::read_to_string(path).is_ok_and(|text| text.trim() == "0") {
            let family = if v6 { "IPv6" } else { "IPv4" };
            let but = if device.forwarded.is_some() { ", except sealed, by `via-peer`" } else { "" };
            findings.push(Finding::warning(
                "forwarding",
                format!("this machine forwards no {family} packets, so peers reach it, but not each other{but}"),
                format!("sysctl -w {name}=1; if peers should not reach each other, nothing is wrong"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::fine("forwarding", "packets from peer to peer can pass"));
    }
    if let Some(rules) = &device.relay_rules {
        findings.push(Finding::unknown(
            "forwarding",
            format!("whether {rules} lets packets from peer to peer pass was not checked"),
        ));
    }
    findings
}
