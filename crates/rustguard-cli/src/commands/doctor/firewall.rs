//! Whether the host's firewall lets peers in.

use super::finding::Finding;
use rustguard_quick::host::{Admission, admission};

/// Checks the rules for datagrams to this UDP port.
pub(super) async fn check(port: u16) -> Finding {
    match admission(port).await {
        Some(Admission::Admitted) => Finding::fine("firewall", format!("nftables admits UDP port {port}")),
        Some(Admission::Dropped { chain }) => Finding::warning(
            "firewall",
            format!(
                "the chain {chain} of nftables drops what arrives at UDP port {port}, so only peers that this machine calls can answer"
            ),
            format!("nft insert rule {chain} udp dport {port} accept; with ufw: ufw allow {port}/udp"),
        ),
        Some(_) => Finding::unknown(
            "firewall",
            format!("whether nftables admits UDP port {port} depends on rules that doctor does not understand"),
        ),
        None => Finding::unknown("firewall", "the rules of nftables cannot be read: is nft installed?"),
    }
}
