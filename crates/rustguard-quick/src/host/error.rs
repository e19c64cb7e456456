//! Why the host could not be set up.

use crate::helper::{Answer, Failure, unexpected};
use ipnet::IpNet;
use rustguard_device::{UpdateError, kernel::KernelError};
use std::{fmt, io, path::PathBuf};
use thiserror::Error;

/// The actions on name servers, for errors.
pub(super) const SET_NAMES: &str = "set the name servers";
pub(super) const DROP_NAMES: &str = "withdraw the name servers";

/// A step of the host's set-up that failed. Every message names the thing, the cause and the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The kernel refused a netlink request, because CAP_NET_ADMIN is missing or for another reason.
    #[error(transparent)]
    Kernel(#[from] KernelError),

    /// The name is not valid for an interface, or a program could take it for an option.
    #[error("`{0}` is not an interface name: use 1 to 15 letters, digits or `_=+.-`, not beginning with `-`")]
    InterfaceName(String),

    /// There is no interface with this name in this network namespace.
    #[error("there is no interface `{0}`: create it before its host set-up, and in the same network namespace")]
    NoSuchInterface(String),
    /// The interface of a running tunnel was deleted or moved, so that its addresses and routes cannot be changed.
    #[error(
        "`{0}` is not in the network namespace any more in which its tunnel was started, so its addresses and routes cannot be \
         changed from here: move it back, or change them where it is now"
    )]
    InterfaceGone(String),

    /// The configuration needs IPv6, which is disabled on the interface or missing in the kernel.
    #[error(
        "cannot set up {wanted} on `{interface}`: IPv6 is disabled here; enable it \
         (sysctl -w net.ipv6.conf.default.disable_ipv6=0 for new interfaces, \
         net.ipv6.conf.{interface}.disable_ipv6=0 for this one, or boot without ipv6.disable=1), \
         or remove {wanted} from the configuration"
    )]
    Ipv6Disabled {
        /// The tunnel's interface.
        interface: String,
        /// The address or route that needs IPv6.
        wanted: IpNet,
    },

    /// The configured MTU is below 1,280 bytes, the minimum for IPv6 (RFC 8200 section 5), and there is an IPv6
    /// address.
    #[error("MTU = {mtu} is too small for IPv6 on `{interface}`: use 1280 or more, or remove the IPv6 addresses")]
    MtuTooSmall {
        /// The tunnel's interface.
        interface: String,
        /// The configured MTU in bytes.
        mtu: u32,
    },

    /// The table already has a route to exactly this destination through another interface. That route is not changed.
    #[error(
        "cannot route {net} through `{interface}`: table {table} already has a route to it; \
         remove that route, or use Table = off or another table"
    )]
    RouteExists {
        /// The tunnel's interface.
        interface: String,
        /// The destination.
        net: IpNet,
        /// The routing table.
        table: u32,
    },

    /// Existing policy rules of other programs leave no free priority before them.
    #[error(
        "cannot add the policy rules: rule {first} leaves no room for {needed} rules before it; \
         move it to a higher priority"
    )]
    NoRuleRoom {
        /// The priority of the first existing rule after the kernel's own rule at 0.
        first: u32,
        /// The number of rules that must be placed before it.
        needed: u32,
    },

    /// A tunable could not be written. In containers /proc/sys is often read-only.
    #[error(
        "cannot set {name}={value}: {source}; in a container, set it where the container is started (--sysctl {name}={value})"
    )]
    SysctlNotSet {
        /// The name of the setting, with dots.
        name: String,
        /// The value.
        value: String,
        /// The cause.
        source: io::Error,
    },

    /// Address translation needs the program nft.
    #[error("address translation (--nat) needs nft, which is not installed: install nftables, or start without --nat")]
    NatWithoutNft,

    /// A default route through the tunnel needs rules of netfilter.
    #[error(
        "a default route through the tunnel needs nft, or else iptables and an interface whose name does not end in `+`: without their rules, a strict reverse path filter \
         drops the answers, and everybody on the local network can look for connections in the tunnel (CVE-2019-14899); install nftables, or \
         set the routes yourself with `Table = off`"
    )]
    DefaultWithoutRules,

    /// Neither systemd-resolved nor resolvconf is available for the name servers.
    #[error(
        "cannot set DNS for `{interface}`: systemd-resolved does not answer on the system bus, \
         and there is no `resolvconf`; \
         start systemd-resolved, install openresolv, or remove the DNS line"
    )]
    NoDnsBackend {
        /// The tunnel's interface.
        interface: String,
    },

    /// Only systemd-resolved can send some names to the tunnel's servers and the others elsewhere.
    #[error(
        "cannot set DNS for `{interface}`: `{domain}` needs systemd-resolved, which does not answer on the system bus; \
         resolvconf sends all names to one set of servers; start systemd-resolved, or remove the domains behind `~`"
    )]
    NoSplitDns {
        /// The tunnel's interface.
        interface: String,
        /// The domain, with its `~`.
        domain: String,
    },

    /// systemd-resolved asks the servers of an interface through that interface only.
    #[error(
        "cannot set DNS for `{interface}`: `{server}` is at another interface, and systemd-resolved asks the name servers of a tunnel \
         through the tunnel only; set that server for its own interface (resolvectl dns), and remove it from the DNS line"
    )]
    ServerElsewhere {
        /// The tunnel's interface.
        interface: String,
        /// The server, with its zone.
        server: String,
    },

    /// systemd-resolved refused.
    #[error("systemd-resolved refused {action} for `{interface}`: {reason}; `resolvectl status` shows its state")]
    Resolved {
        /// The D-Bus method.
        action: String,
        /// The tunnel's interface.
        interface: String,
        /// resolved's answer.
        reason: String,
    },

    /// A program of the set-up failed.
    #[error("`{command}` failed: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// The program's standard error output, or its exit status.
        reason: String,
    },

    /// A task that needs the rights of the start failed: this process has given them up, and the privileged helper does
    /// not do the task.
    #[error("cannot {task} for `{interface}`: {reason}")]
    Helper {
        /// An infinitive.
        task: &'static str,
        /// The tunnel's interface.
        interface: String,
        /// The cause.
        reason: String,
    },

    /// The mark of the tunnel's sockets could not be changed.
    #[error(transparent)]
    Mark(#[from] UpdateError),

    /// The record of the changes could not be read or written.
    #[error(
        "cannot {action} {}: {source}; check its permissions, \
         or remove it once `ip rule` and `nft list tables` show nothing left over",
        path.display()
    )]
    Record {
        /// "read", "write" or "remove".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl HostError {
    /// Whether the error concerns name servers. The rest of the set-up works without them.
    pub(crate) fn is_of_names(&self) -> bool {
        match self {
            Self::NoDnsBackend { .. }
            | Self::NoSplitDns { .. }
            | Self::ServerElsewhere { .. }
            | Self::Resolved { .. } => true,
            Self::Command { command, .. } => command.contains("resolvconf"),
            Self::Helper { task, .. } => [SET_NAMES, DROP_NAMES].contains(task),
            _ => false,
        }
    }

    /// A task that the privileged helper has not done.
    pub(super) fn helper(task: &'static str, interface: &str, answer: Answer) -> Self {
        let interface = interface.to_owned();
        match answer {
            Answer::Failed(Failure::Command { command, reason }) => Self::Command { command, reason },
            Answer::Failed(Failure::NoDnsBackend) => Self::NoDnsBackend { interface },
            Answer::Failed(Failure::Resolved { action, reason }) => Self::Resolved { action, interface, reason },
            Answer::Failed(failure) => Self::Helper { task, interface, reason: failure.to_string() },
            answer => Self::Helper { task, interface, reason: unexpected(&answer).to_string() },
        }
    }

    /// A failed netlink request. `action` is an infinitive: "add the address 10.0.0.1/24 to `wg0`".
    pub(super) fn netlink(action: impl Into<String>, error: &rtnetlink::Error) -> Self {
        KernelError::netlink(action, error).into()
    }
}

/// The reason why a set-up could not be [changed](super::Applied::change).
#[derive(Debug, Error)]
#[error("{cause}")]
#[non_exhaustive]
pub struct ChangeError {
    /// The step that failed.
    pub cause: HostError,
    /// The earlier steps that could not be undone, and why. If empty, the set-up is the same as before.
    pub left: Vec<HostError>,
}

/// A part of the set-up that was left out, as a warning for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// There is neither `nft` nor iptables, so a default route that is learned later has no guard.
    NoRules,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRules => f.write_str(
                "neither nft nor iptables is installed: when a default route is learned, packets from the local network that claim to come \
                 through the tunnel are not filtered, and a strict reverse path filter may drop answers; install nftables",
            ),
        }
    }
}
