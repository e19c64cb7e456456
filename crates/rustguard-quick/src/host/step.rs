//! The host changes of a set-up, with the data that is needed to undo them.

use super::tunable::is_of_forwarding;
use crate::helper::DnsEntry;
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
    /// Whether the tunnel of this interface makes such a step. The processes that write a record have fewer rights than
    /// the processes that undo it.
    pub(super) fn is_of(&self, interface: &str) -> bool {
        match self {
            Self::Sysctl(Sysctl { name, before, set }) => {
                let is_small = |value: &String| matches!(value.as_str(), "" | "0" | "1" | "2");
                is_of_forwarding(name) && is_small(before) && is_small(set)
            }
            Self::Dns(entry) => entry.is_of(interface),
            _ => true,
        }
    }

    /// Whether the change stays when the interface is deleted. Addresses and routes are deleted with it.
    pub(super) fn outlives_interface(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Rule(_) | Self::Guard { .. } | Self::Nat { .. } | Self::Sysctl(_))
    }
}

impl DnsEntry {
    /// Whether a tunnel of this interface makes such an entry.
    pub(crate) fn is_of(&self, interface: &str) -> bool {
        match self {
            Self::Resolved => true,
            Self::Resolvconf { name } => name.strip_suffix(interface).is_some_and(is_prefix),
        }
    }
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

/// Whether this is a valid text before the interface's name in an entry of resolvconf.
fn is_prefix(text: &str) -> bool {
    text.is_empty() || text.strip_suffix('.').is_some_and(|prefix| is_plain(prefix) && !prefix.starts_with('-'))
}

/// Whether a prefix has no special character of shells or paths.
pub(super) fn is_plain(prefix: &str) -> bool {
    !prefix.is_empty() && prefix.chars().all(|character| character.is_ascii_alphanumeric() || character == '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tunable::{FORWARDING_V4, FORWARDING_V6};

    #[test]
    fn a_record_sets_no_tunable_that_no_tunnel_sets() {
        let sysctl = |name: &str, before: &str| {
            Step::Sysctl(Sysctl { name: name.to_owned(), before: before.to_owned(), set: "1".to_owned() })
        };
        for name in [FORWARDING_V4, FORWARDING_V6, "net/ipv4/conf/eth0.1/forwarding", "net/ipv6/conf/eth0/accept_ra"] {
            assert!(sysctl(name, "0").is_of("wg0"), "{name}");
            assert!(!sysctl(name, "|/tmp/x").is_of("wg0"), "{name}");
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
            assert!(!sysctl(name, "0").is_of("wg0"), "{name}");
        }
        let entry = |name: &str| Step::Dns(DnsEntry::Resolvconf { name: name.to_owned() });
        for (name, is_ours) in
            [("tun.wg0", true), ("wg0", true), ("tun.wg1", false), ("-x", false), ("../wg0", false), ("eth0", false)]
        {
            assert_eq!(entry(name).is_of("wg0"), is_ours, "{name}");
        }
    }
}
