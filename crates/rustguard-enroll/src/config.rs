//! What every joiner is told about the network, and how much of it fits.
use core::net::IpAddr;
use ipnet::IpNet;

/// Routes that a machine takes from its server.
pub const MAX_ROUTES: usize = 64;
/// Name servers that a machine takes from its server. Resolvers ask three (`MAXNS` of resolv.conf(5)).
pub const MAX_DNS: usize = 8;
/// Search domains that a machine takes from its server.
pub const MAX_SEARCH: usize = 16;

/// What every joiner is told about the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The server's own addresses inside the tunnel.
    pub addresses: Vec<IpAddr>,
    /// What joiners route into the tunnel: usually the pools, and what lies behind the server.
    pub routes: Vec<IpNet>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The tunnel's MTU, in bytes.
    pub mtu: Option<u16>,
    /// The UDP port of WireGuard, when it is not the one that enrolment uses.
    pub port: Option<u16>,
    /// Seconds between keepalives that joiners are advised to send.
    pub keepalive: Option<u16>,
}

impl ServerConfig {
    /// Sets [`addresses`](Self::addresses).
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..self }
    }

    /// Sets [`routes`](Self::routes).
    #[must_use]
    pub fn with_routes(self, routes: Vec<IpNet>) -> Self {
        Self { routes, ..self }
    }

    /// Sets [`dns`](Self::dns).
    #[must_use]
    pub fn with_dns(self, dns: Vec<IpAddr>) -> Self {
        Self { dns, ..self }
    }

    /// Sets [`search`](Self::search).
    #[must_use]
    pub fn with_search(self, search: Vec<String>) -> Self {
        Self { search, ..self }
    }

    /// Sets [`mtu`](Self::mtu).
    #[must_use]
    pub fn with_mtu(self, mtu: impl Into<Option<u16>>) -> Self {
        Self { mtu: mtu.into(), ..self }
    }

    /// Sets [`port`](Self::port).
    #[must_use]
    pub fn with_port(self, port: impl Into<Option<u16>>) -> Self {
        Self { port: port.into(), ..self }
    }

    /// Sets [`keepalive`](Self::keepalive).
    #[must_use]
    pub fn with_keepalive(self, keepalive: impl Into<Option<u16>>) -> Self {
        Self { keepalive: keepalive.into(), ..self }
    }
}

/// Why a [`ServerConfig`] cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It does not fit into one datagram.
    #[error(
        "routes, name servers and search domains take {len} bytes of the {most} that fit into one datagram; push fewer"
    )]
    TooLong {
        /// Its length, in bytes.
        len: usize,
        /// The longest that fits, in bytes.
        most: usize,
    },
    /// A list is longer than joiners take.
    #[error("{count} {what} for those who join are more than the {most} that they take; push fewer")]
    TooMany {
        /// What the list holds.
        what: &'static str,
        /// How many it holds.
        count: usize,
        /// How many a joiner takes.
        most: usize,
    },
}
