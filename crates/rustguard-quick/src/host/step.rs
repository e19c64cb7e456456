//! The host changes of a set-up, with the data that is needed to undo them.

use super::forwarding::{FORWARDING_V4, FORWARDING_V6};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// An address of the interface.
    Address(IpNet),
    /// The interface was set up. The fields are its state before.
    Link {
        /// MTU in bytes.
        mtu: u32,
        /// Whether it was up.
        up: bool,
    },
    /// Name servers and search domains.
    Dns(DnsEntry),
    /// A route through the interface.
    Route {
        /// The destination.
        net: IpNet,
        /// The routing table.
        table: u32,
    },
    /// A policy rule.
    Rule(Rule),
    /// The nftables guard.
    Guard {
        /// Whether there is one for IPv4.
        v4: bool,
        /// Whether there is one for IPv6.
        v6: bool,
    },
    /// The nftables tables that translate addresses.
    Nat {
        /// Whether there is one for IPv4.
        v4: bool,
        /// Whether there is one for IPv6.
        v6: bool,
    },
    /// A setting of the kernel.
    Sysctl(Sysctl),
}

/// A changed setting of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sysctl {
    /// Its path below /proc/sys.
    pub name: String,
    /// Its former value.
    pub before: String,
    /// The value that was set.
    pub set: String,
}

impl Step {
    /// Whether a tunnel makes such a step. A record is written by processes with fewer rights than those that undo it.
    pub(super) fn is_of_tunnels(&self) -> bool {
        let plain = |text: &str| !text.is_empty() && !text.starts_with(['.', '-']) && !text.contains(['/', '\0']);
        match self {
            Self::Sysctl(Sysctl { name, before, set }) => {
                let is_small = |value: &String| matches!(value.as_str(), "" | "0" | "1" | "2");
                let setting = name.strip_prefix("net/ipv4/conf/").map(|rest| (rest, false));
                let setting = setting.or_else(|| name.strip_prefix("net/ipv6/conf/").map(|rest| (rest, true)));
                let is_known = match setting.and_then(|(rest, v6)| Some((rest.rsplit_once('/')?, v6))) {
                    Some(((interface, "forwarding"), _) | ((interface, "accept_ra"), true)) => plain(interface),
                    _ => [FORWARDING_V4, FORWARDING_V6].contains(&name.as_str()),
                };
                is_known && is_small(before) && is_small(set)
            }
            Self::Dns(DnsEntry::Resolvconf { name }) => plain(name),
            _ => true,
        }
    }

    /// Whether the change stays when the interface is deleted. Addresses and routes are deleted with it.
    pub(super) fn outlives_interface(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Rule(_) | Self::Guard { .. } | Self::Nat { .. } | Self::Sysctl(_))
    }
}

/// The DNS settings that were made, with the data that is needed to withdraw them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DnsEntry {
    /// systemd-resolved's settings of the interface.
    Resolved,
    /// resolvconf's entry of this name.
    Resolvconf {
        /// The interface's name, with a prefix if the system's resolvconf sorts entries by prefixes.
        name: String,
    },
}

/// One policy rule of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rule {
    /// IPv6, or else IPv4.
    pub v6: bool,
    /// Its priority; lower ones come first. It is always explicit, so that removing the rule cannot remove another
    /// program's rule.
    pub priority: u32,
    /// The kind of rule.
    pub kind: RuleKind,
}

/// The kind of a tunnel's policy rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RuleKind {
    /// `lookup main suppress_prefixlength 0`
    MainWithoutDefault,
    /// `fwmark mark goto target`
    Exempt {
        /// The mark of another tunnel.
        mark: u32,
        /// Priority of this tunnel's [`RuleKind::End`].
        target: u32,
    },
    /// `not fwmark mark lookup mark`: table and mark are the same number.
    IntoTunnel {
        /// The mark of this tunnel's own packets.
        mark: u32,
    },
    /// `nop`
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_sets_no_tunable_that_no_tunnel_sets() {
        let sysctl = |name: &str, before: &str| {
            Step::Sysctl(Sysctl { name: name.to_owned(), before: before.to_owned(), set: "1".to_owned() })
        };
        for name in [FORWARDING_V4, FORWARDING_V6, "net/ipv4/conf/eth0.1/forwarding", "net/ipv6/conf/eth0/accept_ra"] {
            assert!(sysctl(name, "0").is_of_tunnels(), "{name}");
            assert!(!sysctl(name, "|/tmp/x").is_of_tunnels(), "{name}");
        }
        for name in [
            "kernel/core_pattern",
            "/etc/passwd",
            "net/ipv4/conf/../../../kernel/core_pattern",
            "net/ipv4/conf/../forwarding",
            "net/ipv4/conf/a/../../x/forwarding",
            "net/ipv4/conf/eth0/accept_ra",
            "net/ipv6/conf//forwarding",
        ] {
            assert!(!sysctl(name, "0").is_of_tunnels(), "{name}");
        }
        let entry = |name: &str| Step::Dns(DnsEntry::Resolvconf { name: name.to_owned() });
        assert!(entry("tun.wg0").is_of_tunnels());
        assert!(!entry("-x").is_of_tunnels() && !entry("../x").is_of_tunnels());
    }
}
