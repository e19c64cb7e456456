//! The peers of a tunnel: which are connected, and the problems of the others.

use super::{
    finding::{Finding, Verdict},
    tunnel::Tunnel,
};
use crate::{
    output::{
        way,
        words::{ago, now},
    },
    uapi::Peer,
};
use rustguard_device::{core::constants::REJECT_AFTER_TIME, key::to_base64};
use std::time::Duration;

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
    let now = now();
    // The names of the file's endpoints have findings of their own.
    let has_finding = |peer: &&Peer| {
        tunnel.config.is_some() && peer.problem.as_ref().is_some_and(|problem| problem.kind == "not-resolved")
    };
    let peers = device.peers.iter().filter(|peer| !has_finding(peer));
    let mut findings: Vec<_> = peers.map(|peer| finding(peer, &device.peers, now)).collect();
    // One peer that does not answer may be switched off. If no peer answers, the tunnel is of no use.
    if findings.iter().all(|finding| finding.verdict == Verdict::Warning) {
        findings.iter_mut().for_each(|finding| finding.verdict = Verdict::Wrong);
    }
    // The worst findings come first, because a long list of peers must not hide them.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    if findings.len() > MOST {
        let more = findings.len() - MOST;
        findings.truncate(MOST);
        findings.push(Finding::unknown("peers", format!("{more} more peers: rustguard show {}", tunnel.name)));
    }
    findings
}

/// A peer that has not answered, without a known cause. RustGuard knows a cause after ten seconds: before, nothing is
/// wrong yet.
fn not_answered(peer: &Peer, text: String, remedy: &str) -> Finding {
    match &peer.connection {
        Some(connection) if connection.state == "connecting" => {
            Finding::unknown("peers", format!("{text}. Ask again in ten seconds, when the cause is known"))
        }
        _ => Finding::warning("peers", text, remedy),
    }
}

fn finding(peer: &Peer, peers: &[Peer], now: Duration) -> Finding {
    let name = peer.name.clone().unwrap_or_else(|| to_base64(&peer.public_key.0).to_string());
    if let Some(problem) = &peer.problem {
        // The text has the remedy.
        return Finding {
            verdict: Verdict::Warning,
            check: "peers",
            text: format!("{name}: {}", problem.text),
            remedy: None,
        };
    }
    if peer.last_handshake.is_zero() {
        return match &peer.endpoint {
            Some(endpoint) if peer.tx_bytes > 0 => not_answered(
                peer,
                format!("{name} has not answered yet, at {endpoint}"),
                "check its address, port and key",
            ),
            Some(endpoint) => Finding::unknown("peers", format!("nothing was sent to {name} at {endpoint} yet")),
            None if peer.through.is_some() && peer.tx_bytes == 0 => {
                Finding::unknown("peers", format!("nothing was sent to {name} yet"))
            }
            None if peer.through.is_some() => {
                let way = way::words(peer, peers).unwrap_or_default();
                not_answered(peer, format!("{name} has not answered yet, {way}"), "look whether it runs")
            }
            None => Finding::unknown(
                "peers",
                format!(
                    "{name} has not called yet. It has no endpoint here, so its own `Endpoint` has to be an address of this machine that it can reach, with the UDP port"
                ),
            ),
        };
    }
    let heard = ago(now, peer.last_handshake);
    let state = match &peer.connection {
        Some(connection) => connection.state.as_str(),
        // Another implementation does not report the connection.
        None if now.saturating_sub(peer.last_handshake) < REJECT_AFTER_TIME => "online",
        None => "idle",
    };
    Finding::fine("peers", format!("{name}: {state} (last handshake {heard})"))
}
