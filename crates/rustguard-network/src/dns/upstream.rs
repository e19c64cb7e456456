//! Name servers that answer for some domains, or for everything else.

use crate::dns::{PORT, WireName};
use std::net::{IpAddr, SocketAddr};

/// The most name servers that are asked for one query.
const SERVERS: usize = 3;

/// Name servers, and the domains that they are asked for.
///
/// A link of systemd-resolved has one list of name servers for all its domains. So if a network has its own name
/// servers, this server is still the only one of the link, and forwards their queries to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    servers: Vec<SocketAddr>,
    domains: Vec<WireName>,
}

impl Upstream {
    /// The servers, mostly at port 53, for these domains, such as `corp.example`. Without domains, or with `.`, they
    /// are for all names. Malformed domains are ignored.
    pub fn new<'a>(servers: impl IntoIterator<Item = SocketAddr>, domains: impl IntoIterator<Item = &'a str>) -> Self {
        let mut domains: Vec<&str> = domains.into_iter().collect();
        if domains.is_empty() {
            domains.push(".");
        }
        let domains = domains.into_iter().filter_map(|domain| domain.parse().ok());
        Self { servers: servers.into_iter().collect(), domains: domains.collect() }
    }

    /// The servers to ask for a name, but never `own`, because this machine would ask itself endlessly.
    pub(crate) fn servers(&self, name: &WireName, own: &[IpAddr]) -> Vec<SocketAddr> {
        if !self.domains.iter().any(|domain| name.ends_with(domain)) {
            return Vec::new();
        }
        self.servers
            .iter()
            .filter(|server| !own.contains(&server.ip()) || server.port() != PORT)
            .take(SERVERS)
            .copied()
            .collect()
    }
}
