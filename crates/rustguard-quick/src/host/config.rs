//! The parameters of the host's set-up.

use crate::{NameServer, gateway::Gateway};
use ipnet::IpNet;
use std::{net::SocketAddr, path::PathBuf};

/// The parameters of the host's set-up for one tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// The name of the tunnel's interface, which already exists.
    pub interface: String,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Its MTU in bytes. Without a value the MTU is [computed](super::tunnel_mtu).
    pub mtu: Option<u32>,
    /// Name servers.
    pub dns: Vec<NameServer>,
    /// Search domains. A domain after `~` is not searched: the servers are asked only for names in such domains (split
    /// DNS). `~.` stands for all names. Without name servers they have no effect, as in wg-quick.
    pub dns_search: Vec<String>,
    /// The routing table for the routes.
    pub table: Table,
    /// The allowed IPs of all peers. They are the destinations of the routes into the tunnel.
    pub allowed_ips: Vec<IpNet>,
    /// Routes come from a routing engine and go into the [`learned_tables`](Self::learned_tables). Allowed IPs are
    /// limits, and no route is added for them. If a default route may be learned, the mark, the rules and the guard
    /// are prepared for it.
    pub learned: bool,
    /// The mark of the tunnel's sockets (SO_MARK), from the configuration or [`choose_fwmark`](super::choose_fwmark).
    /// It is also the number of the table for default routes. 0 means no mark, as everywhere in WireGuard.
    pub fwmark: Option<u32>,
    /// The known endpoints of the peers, for the MTU.
    pub endpoints: Vec<SocketAddr>,
    /// Whether datagrams may travel through a peer, which requires a smaller MTU.
    pub through_peers: bool,
    /// The networks that the tunnel's machines reach through this host's address translation.
    pub nat: Option<Gateway>,
    /// The file that records changes that outlive the interface, usually [`record_path`](super::record_path). `None`:
    /// no record.
    pub record: Option<PathBuf>,
}

impl HostConfig {
    /// An interface without addresses, routes, DNS and record. Set the fields to add them.
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
            through_peers: false,
            nat: None,
            record: None,
        }
    }

    /// Whether the allowed IPs route all traffic of one IP version into the tunnel: a /0, or parts that add up to it.
    /// With a routing engine, they are only limits.
    pub(super) fn routes_everything(&self) -> bool {
        let everything = |net: &IpNet| net.prefix_len() == 0;
        !self.learned && self.table != Table::Off && IpNet::aggregate(&self.allowed_ips).iter().any(everything)
    }

    pub(super) fn mark(&self) -> Option<u32> {
        self.fwmark.filter(|mark| *mark != 0)
    }
}

/// wg-quick's `Table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Table {
    /// Routes go into the main table. A /0 goes into a table of its own, which policy rules select.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// All routes, including a /0, go into this table. The user makes the rules that select it.
    Number(u32),
}
