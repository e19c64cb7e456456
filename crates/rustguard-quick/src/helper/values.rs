//! The values in tasks and answers: settings of the host. `host` applies them.

use crate::{NameServer, gateway::Gateway};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The service of this machine that manages the name servers of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NameService {
    /// systemd-resolved: it sends some names to some servers, and others elsewhere.
    Resolved,
    /// The program resolvconf: all names go to one set of servers.
    Resolvconf,
    /// None.
    None,
}

/// The name servers of a tunnel, for one of the services.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Names {
    pub(crate) entry: DnsEntry,
    pub(crate) servers: Vec<NameServer>,
    pub(crate) search: Vec<String>,
    /// Whether everything is routed into the tunnel.
    pub(crate) all: bool,
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

/// A change to the tables of an interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rules {
    /// The guard of these default routes.
    Guard { defaults: Vec<IpNet>, mark: u32, addresses: Vec<IpNet> },
    /// No guard for these families.
    NoGuard { v4: bool, v6: bool },
    /// Address translation.
    Nat { v4: bool, v6: bool, gateway: Gateway },
    /// No translation for these families.
    NoNat { v4: bool, v6: bool },
}

/// A chain that drops forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    /// Its family, table and name.
    pub(crate) name: String,
    /// Whether Docker made it.
    pub(crate) docker: bool,
}
