//! Whether the host's firewall lets peers in.

use super::finding::Finding;
use rustguard_quick::host::{Admission, admission};

/// Checks the rules for datagrams to this UDP port.
pub(super) async fn check(port: u16) -> Finding {
    match admission(port).await {
        Some(Admission::Admitted) => Finding::fine("firewall", format!("the packet filters admit UDP port {port}")),
        Some(Admission::Dropped { chain }) => Finding::warning(
            "firewall",
            format!(
                "the chain {chain} of nftables drops what arrives at UDP port {port}, so only peers that this machine calls can answer"
            ),
            format!("nft insert rule {chain} udp dport {port} accept; with ufw: ufw allow {port}/udp"),
        ),
        Some(Admission::DroppedByIptables { program }) => Finding::warning(
            "firewall",
            format!(
                "the chain INPUT of {program} drops what arrives at UDP port {port}, so only peers that this machine calls can answer"
            ),
            format!("{program} -I INPUT -p udp --dport {port} -j ACCEPT"),
        ),
        Some(_) => Finding::unknown(
            "firewall",
            format!(
                "whether the packet filters admit UDP port {port} depends on rules that doctor does not understand"
            ),
        ),
        None => Finding::unknown("firewall", "the rules of nftables cannot be read: is nft installed?"),
    }
}
