//! The settings of the network that every joiner receives, and their limits.
use core::net::IpAddr;
use ipnet::IpNet;

/// The largest number of routes that a machine accepts from its server.
pub const MAX_ROUTES: usize = 64;
/// The largest number of name servers that a machine accepts from its server. Resolvers use three (`MAXNS` of
/// resolv.conf(5)).
pub const MAX_DNS: usize = 8;
/// The largest number of search domains that a machine accepts from its server.
pub const MAX_SEARCH: usize = 16;

/// The settings of the network that every joiner receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The server's own addresses inside the tunnel.
    pub addresses: Vec<IpAddr>,
    /// The routes into the tunnel for joiners: usually the pools and the networks behind the server.
    pub routes: Vec<IpNet>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The tunnel's MTU, in bytes.
    pub mtu: Option<u16>,
    /// The UDP port of WireGuard, if it differs from the port of enrolment.
    pub port: Option<u16>,
    /// The interval between keepalives that joiners are advised to send, in seconds.
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
    /// The settings do not fit into one datagram.
    #[error(
        "routes, name servers and search domains take {len} bytes of the {most} that fit into one datagram; push fewer"
    )]
    TooLong {
        /// Its length, in bytes.
        len: usize,
        /// The longest that fits, in bytes.
        most: usize,
    },
    /// A list is longer than joiners accept.
    #[error("{count} {what} are too many: joiners accept at most {most}; push fewer")]
    TooMany {
        /// The kind of element in the list.
        what: &'static str,
        /// The number of elements in the list.
        count: usize,
        /// The largest number that a joiner accepts.
        most: usize,
    },
}
