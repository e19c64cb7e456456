//! The host's side of a tunnel: addresses, MTU, routes, policy rules and DNS, as wg-quick sets them up.
//!
//! The interface itself belongs to the caller. The caller creates it, calls [`apply`], and calls [`Applied::undo`] at the end:
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
//! // The sockets have to carry the mark before a default route catches what they send.
//! config.fwmark = host::choose_fwmark(&config).await?;
//! // … SO_MARK …
//! let applied = host::apply(&config).await?;
//! // … the tunnel runs …
//! applied.undo().await
//! # }
//! ```
//!
//! In order: the [MTU](tunnel_mtu), the addresses, the interface up, DNS, a route for each allowed IP, and for a
//! default route the policy rules and the guard against spoofed addresses. Each change is noted as a [`Step`]; when
//! one fails, those before it are undone. Changes that would survive the interface are also noted in a file, ahead of
//! being made, so that after SIGKILL [`cleanup`], or the next [`apply`], can undo them.
//!
//! What exists already is left alone, and stays when the tunnel goes: an address the interface has counts as set up,
//! a route to the same destination through another interface is [an error](HostError::RouteExists), policy rules are
//! always added anew.
//!
//! Everything goes through netlink, and DNS over D-Bus where systemd-resolved runs; only what has no stable interface
//! of its own is left to programs, `nft` and `resolvconf`. All of it is async, on the caller's tokio runtime (a
//! current-thread one will do, with I/O and time enabled), and happens in the network namespace of the calling thread.

mod apply;
mod command;
mod config;
mod dns;
mod error;
mod guard;
mod learned;
mod link;
mod mtu;
mod netlink;
mod policy;
mod record;
mod routes;
mod step;
#[cfg(test)]
mod tests;
mod undo;

pub use apply::{Applied, apply, choose_fwmark};
pub use config::{HostConfig, Table};
pub use error::{HostError, Warning};
pub use link::{delete_link, ipv6_available, link_exists, link_index, wait_link_gone};
pub use mtu::tunnel_mtu;
pub use record::{Record, record_path};
pub use step::{DnsEntry, Rule, RuleKind, Step};
pub use undo::cleanup;
