//! The host changes of a set-up, with the data that is needed to undo them.

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
