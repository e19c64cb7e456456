//! What is asked of the host.

use ipnet::IpNet;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// What a tunnel needs from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// Name of the tunnel's interface, which exists already.
    pub interface: String,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Its MTU in bytes; [computed](super::tunnel_mtu) when absent.
    pub mtu: Option<u32>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains. Without name servers they have no effect, as in wg-quick.
    pub dns_search: Vec<String>,
    /// Where routes go.
    pub table: Table,
    /// The allowed IPs of all peers together: the destinations to route into the tunnel.
    pub allowed_ips: Vec<IpNet>,
    /// Routes come from a routing engine, into the [`learned_tables`](Self::learned_tables); allowed IPs are bounds. No route is
    /// added. Where a default route may be learned, mark, rules and guard are prepared for it.
    pub learned: bool,
    /// The mark the tunnel's sockets carry (SO_MARK), from the configuration or [`choose_fwmark`](super::choose_fwmark). It is also the
    /// number of the table for default routes. 0 is no mark, as everywhere in WireGuard.
    pub fwmark: Option<u32>,
    /// The peers' endpoints as far as they are known, for the MTU.
    pub endpoints: Vec<SocketAddr>,
    /// Where to note what outlives the interface, usually [`record_path`](super::record_path); `None` to note nothing.
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

    pub(super) fn mark(&self) -> Option<u32> {
        self.fwmark.filter(|mark| *mark != 0)
    }
}

/// wg-quick's `Table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Table {
    /// Routes in the main table; a /0 in a table of its own, chosen by policy rules.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// All routes, a /0 included, in this table. The user makes the rules that choose it.
    Number(u32),
}
