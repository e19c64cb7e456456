//! The host's side of a tunnel: addresses, MTU, routes, policy rules and DNS, as wg-quick sets them up.
//!
//! The caller owns the interface. It creates the interface, calls [`apply`], and calls [`Applied::undo`] at the end:
//!
//! ```no_run
//! # async fn up() -> Result<(), rustguard_quick::host::HostError> {
//! use rustguard_quick::host::{self, HostConfig};
//!
//! let mut config = HostConfig::new("wg0");
//! config.addresses = vec!["10.0.0.2/24".parse().unwrap()];
//! config.allowed_ips = vec!["0.0.0.0/0".parse().unwrap()];
//! config.record = Some(host::record_path("wg0"));
//!
//! // The sockets need the mark before a default route into the tunnel captures their packets.
//! config.fwmark = host::choose_fwmark(&config).await?;
//! // … SO_MARK …
//! let applied = host::apply(&config).await?;
//! // … the tunnel runs …
//! applied.undo().await
//! # }
//! ```
//!
//! The order is: the [MTU](tunnel_mtu), the addresses, interface up, DNS, a route for each allowed IP, and, for a
//! default route, the policy rules and the guard against spoofed addresses. Each change is recorded as a [`Step`]. If
//! one fails, the earlier ones are undone. Changes that outlive the interface are also recorded in a file before they
//! are made. After SIGKILL, [`cleanup`] or the next [`apply`] can therefore undo them.
//!
//! Existing settings are left alone and stay when the tunnel ends. An address that the interface already has counts as
//! set up. A route to the same destination through another interface is [an error](HostError::RouteExists). Policy
//! rules are always added.
//!
//! The set-up uses netlink, and D-Bus for DNS where systemd-resolved runs. Only two tasks without a stable interface
//! use programs: `nft` and `resolvconf`. All functions are async and run on the caller's tokio runtime, which may be a
//! current-thread runtime and needs I/O and time enabled. They work in the network namespace of the calling thread.

mod admission;
mod apply;
mod change;
mod command;
mod config;
mod dns;
mod error;
mod forwarding;
mod guard;
mod iptables;
mod learned;
mod link;
mod mtu;
mod nat;
mod netlink;
pub mod networks;
mod nftables;
mod policy;
mod record;
mod routes;
mod rules;
mod step;
#[cfg(test)]
mod tests;
mod tunable;
mod undo;

pub use crate::{
    gateway::Gateway,
    helper::{DnsEntry, NameService},
    overhead::{explain_mtu_through_peers, mtu_for_path},
};
pub use admission::{Admission, admission};
pub use apply::{Applied, apply, choose_fwmark};
pub use command::find_program;
pub use config::{HostConfig, Table};
pub use dns::name_service;
pub(crate) use dns::{drop_names_here, name_service_here, set_names_here};
pub use error::{ChangeError, HostError, Warning};
pub(crate) use forwarding::dropping_here;
pub use forwarding::{Obstacle, obstacles};
pub use link::{delete_link, ipv6_available, ipv6_disabled_on, link_exists, link_index, wait_link_gone};
pub use mtu::tunnel_mtu;
pub use record::{Record, record_path};
pub(crate) use record::{check_trusted, namespace};
pub(crate) use rules::load_here as load_rules_here;
pub use step::{Rule, RuleKind, Step, Sysctl};
pub(crate) use tunable::is_tunable;
pub use undo::cleanup;
