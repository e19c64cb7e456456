//! The peers of a tunnel: who is connected, and what is wrong with the others.

use super::{finding::Finding, tunnel::Tunnel};
use crate::{
    output::words::{ago, now},
    uapi::Peer,
};
use rustguard_device::key::to_base64;
use std::time::Duration;

/// A session is renewed after 120 s with traffic and dies after 180 s (Reject-After-Time in the WireGuard paper,
/// section 6.1).
const REJECT_AFTER: Duration = Duration::from_secs(180);
/// The most peers that are listed one by one.
const MOST: usize = 20;

/// The findings about the peers.
pub(super) fn check(tunnel: &Tunnel) -> Vec<Finding> {
    let Some(device) = &tunnel.device else { return Vec::new() };
    if device.peers.is_empty() {
        return vec![Finding::warning(
            "peers",
            format!("{} has no peers", tunnel.name),
            "add a [Peer] section to the file, or let a machine join",
        )];
    }
    let mut findings: Vec<_> = device.peers.iter().map(peer).collect();
    // The worst first: a long list of peers must not hide them.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    if findings.len() > MOST {
        let more = findings.len() - MOST;
        findings.truncate(MOST);
        findings.push(Finding::unknown("peers", format!("{more} more peers: rustguard show {}", tunnel.name)));
    }
    findings
}

fn peer(peer: &Peer) -> Finding {
    let name = peer.name.clone().unwrap_or_else(|| to_base64(&peer.public_key.0).to_string());
    if peer.last_handshake.is_zero() {
        let (text, remedy) = match &peer.endpoint {
            Some(endpoint) => (
                format!("{name} was never reached, at {endpoint}"),
                "check the address, the port and the firewalls on the way, and the keys on both sides",
            ),
            None => (
                format!("{name} was never reached: it has no endpoint, so it has to call this machine"),
                "its `Endpoint` has to be an address and the UDP port of this machine that it can reach",
            ),
        };
        return Finding::warning("peers", text, remedy);
    }
    let heard = ago(now(), peer.last_handshake);
    let fresh = now().saturating_sub(peer.last_handshake) < REJECT_AFTER;
    Finding::fine("peers", format!("{name}: {} (last handshake {heard})", if fresh { "connected" } else { "idle" }))
}
