//! The settings of the network that every joiner receives, and their limits.
use crate::usable::{is_domain, is_special};
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

impl ServerConfig {
    /// Checks what joiners would refuse or leave out.
    pub(crate) fn check_contents(&self) -> Result<(), ConfigError> {
        // The limits of a joiner, less the routes to the server's own addresses that the joiner adds.
        let counts = [
            ("routes", self.routes.len(), MAX_ROUTES - self.addresses.len().min(2)),
            ("name servers", self.dns.len(), MAX_DNS),
            ("search domains", self.search.len(), MAX_SEARCH),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(ConfigError::TooMany { what, count, most });
        }
        if let Some(route) = self.routes.iter().find(|route| is_special(route)) {
            return Err(ConfigError::Route(*route));
        }
        if let Some(server) = self.dns.iter().find(|server| is_special(&(**server).into())) {
            return Err(ConfigError::NameServer(*server));
        }
        if let Some(domain) = self.search.iter().find(|domain| !is_domain(domain)) {
            return Err(ConfigError::SearchDomain(domain.clone()));
        }
        if self.dns.is_empty() && !self.search.is_empty() {
            return Err(ConfigError::SearchWithoutDns);
        }
        Ok(())
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
    /// A route to special-purpose addresses. Joiners would leave it out.
    #[error(
        "the route {0} leads to loopback, link-local, multicast or reserved addresses, which are never behind a tunnel; leave it out"
    )]
    Route(IpNet),
    /// An address that no name server can have. Joiners would leave it out.
    #[error(
        "{0} cannot be a name server of joined machines: they would ask themselves, or nobody; give an address that they reach"
    )]
    NameServer(IpAddr),
    /// Not a domain name. Joiners would leave it out.
    #[error("{0:?} is not a search domain; write a domain name, such as corp.example")]
    SearchDomain(String),
    /// Search domains without a name server that knows them. Joiners would leave them out.
    #[error("search domains are of no use without a name server; give one too")]
    SearchWithoutDns,
}
