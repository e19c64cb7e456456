//! The host's side of a tunnel: addresses, MTU, routes, policy rules and DNS, as wg-quick sets them up.
//!
//! The interface itself belongs to the caller, who creates it, calls [`apply`], and calls [`Applied::undo`] at the end:
//!
//! ```no_run
//! # async fn up() -> Result<(), rustguard_device::host::HostError> {
//! use rustguard_device::host::{self, HostConfig};
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

mod changes;
mod command;
mod dns;
mod error;
mod guard;
mod learned;
mod link;
mod lookup;
mod monitor;
mod mtu;
mod netfilter;
mod netlink;
mod own;
mod policy;
mod record;
mod redistribute;
mod routes;
#[cfg(test)]
mod tests;

pub use dns::DnsEntry;
pub use error::HostError;
use ipnet::IpNet;
pub use learned::LearnedTables;
use learned::{Apart, Defaults};
pub(crate) use learned::{LearnedRoutes, local_addresses};
pub use link::{delete_link, ipv6_available, link_exists, link_index, wait_link_gone};
pub(crate) use lookup::{RouteChanges, RouteLookup, SourceLookup, Way};
pub use monitor::{HostEvent, Monitor};
pub use mtu::tunnel_mtu;
pub(crate) use netfilter::{ForwardRules, RulesWatch};
use netlink::Netlink;
pub use policy::{Rule, RuleKind};
use record::Journal;
pub use record::{Record, Step, cleanup, record_path};
pub(crate) use redistribute::KernelRoutes;
pub use redistribute::Redistribute;
use routes::Plan;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// What a tunnel needs from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Name of the tunnel's interface, which exists already.
    pub interface: String,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Its MTU in bytes; [computed](tunnel_mtu) when absent.
    pub mtu: Option<u32>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains. Without name servers they have no effect, as in wg-quick.
    pub dns_search: Vec<String>,
    /// Where routes go.
    pub table: Table,
    /// The allowed IPs of all peers together: the destinations to route into the tunnel.
    pub allowed_ips: Vec<IpNet>,
    /// Routes come from a routing engine, which [`learned_tables`](Self::learned_tables) are for; allowed IPs are bounds. No
    /// route is added, but where a default route may be learned, everything around it is prepared: mark, rules, guard.
    pub learned: bool,
    /// The mark the tunnel's sockets carry (SO_MARK), from the configuration or [`choose_fwmark`]. It is also the
    /// number of the table for default routes. 0 is no mark, as everywhere in WireGuard.
    pub fwmark: Option<u32>,
    /// The peers' endpoints as far as they are known, for the MTU.
    pub endpoints: Vec<SocketAddr>,
    /// Where to note what outlives the interface, usually [`record_path`]; `None` to note nothing.
    pub record: Option<PathBuf>,
}

impl HostConfig {
    /// An interface without addresses, routes, DNS and record; the fields add them.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            addresses: Vec::new(),
            mtu: None,
            dns: Vec::new(),
            dns_search: Vec::new(),
            table: Table::Auto,
            allowed_ips: Vec::new(),
            learned: false,
            fwmark: None,
            endpoints: Vec::new(),
            record: None,
        }
    }

    /// Where an engine's routes go in the tables of this set-up; `None` with `Table = off`. To be asked when the mark has been
    /// [chosen](choose_fwmark).
    pub fn learned_tables(&self) -> Option<LearnedTables> {
        match self.table {
            Table::Off => None,
            Table::Number(table) => Some(LearnedTables { table, defaults: Defaults::Together }),
            Table::Auto => {
                let apart = self.mark().map(|mark| Apart {
                    interface: self.interface.clone(),
                    nets: Plan::new(self).default,
                    mark,
                    addresses: self.addresses.clone(),
                });
                let main = LearnedTables::main();
                Some(match apart.filter(|apart| !apart.nets.is_empty()) {
                    Some(apart) => LearnedTables { defaults: Defaults::Apart(apart), ..main },
                    None => main,
                })
            }
        }
    }

    fn mark(&self) -> Option<u32> {
        self.fwmark.filter(|mark| *mark != 0)
    }
}

/// wg-quick's `Table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Table {
    /// Routes in the main table; a /0 in a table of its own, chosen by policy rules.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// All routes, a /0 included, in this table. Who uses it is the user's business.
    Number(u32),
}

/// Something that was left out, and that the user should hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// There is no `nft`, hence no guard for the tunnel's addresses.
    NoNft,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNft => f.write_str(
                "nft is not installed: packets from the local network that claim to come through the tunnel \
                 are not filtered, \
                 and a strict reverse path filter may drop answers; install nftables",
            ),
        }
    }
}

/// The mark the tunnel's sockets need: the configured one; otherwise, when a default route is to go into the tunnel,
/// the first number from 51820 that no route and no rule of this host uses as table or mark; otherwise none.
///
/// Set it on the sockets and as [`HostConfig::fwmark`] before [`apply`]: until the sockets carry it, a default route
/// would send their packets into the tunnel again.
pub async fn choose_fwmark(config: &HostConfig) -> Result<Option<u32>, HostError> {
    resolve_mark(&Netlink::open()?, config, &Plan::new(config)).await
}

/// Sets the host up for the tunnel.
///
/// # Errors
/// When a step fails, what was done before is undone, and the error says what failed. Should undoing fail as well,
/// that is logged, and what is left stays in the record for [`cleanup`].
pub async fn apply(config: &HostConfig) -> Result<Applied, HostError> {
    check_name(&config.interface)?;
    // The interface is the caller's and new, so a record under its name is of an earlier process, which is gone.
    if let Some(path) = &config.record {
        cleanup(path).await?;
    }

    let netlink = Netlink::open()?;
    let link = netlink.link_by_name(&config.interface).await?;
    let link = link.ok_or_else(|| HostError::NoSuchInterface(config.interface.clone()))?;
    let journal = Journal::new(&config.interface, link.index, config.record.clone());
    let mut applied = Applied { journal, mtu: link.mtu, fwmark: None, warnings: Vec::new() };
    match applied.set_up(config, &netlink, link).await {
        Ok(()) => Ok(applied),
        Err(error) => {
            if applied.journal.undo(&netlink).await.is_err() {
                tracing::warn!("`{}` could not be rolled back completely", config.interface);
            }
            Err(error)
        }
    }
}

/// A host that is set up. Dropping this leaves everything in place; [`undo`](Self::undo) takes it back.
#[derive(Debug)]
#[must_use = "dropping this leaves routes, rules and DNS in place; call undo at the end"]
pub struct Applied {
    journal: Journal,
    mtu: u32,
    fwmark: Option<u32>,
    warnings: Vec<Warning>,
}

impl Applied {
    /// The interface's MTU, bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The mark the tunnel's sockets must carry.
    pub fn fwmark(&self) -> Option<u32> {
        self.fwmark
    }

    /// What was left out.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// What was done.
    pub fn record(&self) -> &Record {
        self.journal.get()
    }

    /// Undoes everything, last to first. Quicker after the interface is deleted, when only what outlives it is left
    /// to undo.
    ///
    /// # Errors
    /// All that can be undone is undone; the first failure is returned, and the record stays for [`cleanup`].
    pub async fn undo(self) -> Result<(), HostError> {
        self.journal.undo(&Netlink::open()?).await
    }

    async fn set_up(&mut self, config: &HostConfig, netlink: &Netlink, link: link::Link) -> Result<(), HostError> {
        let name = &config.interface;
        let plan = Plan::new(config);
        self.fwmark = resolve_mark(netlink, config, &plan).await?;
        self.mtu = mtu::compute(netlink, config, self.fwmark).await?;

        // The MTU first: an interface with less than 1,280 bytes takes no IPv6 address.
        self.journal.record(Step::Link { mtu: link.mtu, up: link.up })?;
        netlink.set_link(name, link.index, self.mtu, link.up).await?;
        for address in &config.addresses {
            if netlink.add_address(name, link.index, *address).await? {
                self.journal.record(Step::Address(*address))?;
            }
        }
        if config.learned {
            // An engine learns as soon as the interface is up, and puts the guard up with the first default route.
            self.warnings.extend(guard::foresee(&mut self.journal, &plan.default)?);
        }
        netlink.set_link(name, link.index, self.mtu, true).await?;

        dns::add(&mut self.journal, config).await?;

        routes::add(netlink, &mut self.journal, &plan).await?;
        if let Some(mark) = self.fwmark
            && !plan.default.is_empty()
        {
            policy::add(netlink, &mut self.journal, &plan, mark).await?;
            if !config.learned {
                let warning = guard::add(&mut self.journal, &plan.default, mark, &config.addresses).await?;
                self.warnings.extend(warning);
            }
        }
        Ok(())
    }
}

async fn resolve_mark(netlink: &Netlink, config: &HostConfig, plan: &Plan) -> Result<Option<u32>, HostError> {
    match config.mark() {
        None if !plan.default.is_empty() => policy::unused_table(netlink).await.map(Some),
        mark => Ok(mark),
    }
}

/// The names wg-quick accepts. They go into nft's script and onto resolvconf's command line, so nothing else may.
fn check_name(name: &str) -> Result<(), HostError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
    let valid = (1..=15).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && name != "."
        && name != "..";
    if valid { Ok(()) } else { Err(HostError::InterfaceName(name.to_owned())) }
}
