//! The checks of the server's settings, before a machine uses them.
//!
//! The server is authentic. Its settings may still be wrong for this machine: the server may be hostile or compromised,
//! or its administrator may not know this machine's networks. The settings are therefore checked before they take
//! effect:
//!
//! | Settings from the server | Result |
//! |---|---|
//! | more than [`MAX_ROUTES`] routes, [`MAX_DNS`] name servers, [`MAX_SEARCH`] domains | refused: [`Unacceptable`] |
//! | an MTU too small for a tunnel; an address that is unusable or in one of this machine's networks | refused |
//! | a default route, whole or in parts | taken if the user accepts it |
//! | name servers and search domains | taken if the user accepts them, except for invalid ones |
//! | a route that contains the server's own endpoint | left out: the tunnel's packets would go into the tunnel |
//! | a route that overlaps a network of this machine | left out, unless the user accepts this route |
//! | a route to loopback, multicast, link-local or reserved addresses | left out |
//! | in a network, whose server changes routes later too: a route to addresses of the Internet | left out, unless the user accepts it |
//!
//! Omissions are reported as [`LeftOut`].
use super::joined::Joined;
use crate::{
    config::{MAX_DNS, MAX_ROUTES, MAX_SEARCH},
    usable::{WIDE_V4, WIDE_V6, is_domain, is_private, is_special},
};
use core::{fmt, net::IpAddr};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// The smallest MTU of a tunnel: every IPv4 host accepts packets of this size (RFC 791).
const MIN_MTU: u16 = 576;
/// The smallest MTU of a tunnel with an IPv6 address (RFC 8200, section 5).
const MIN_MTU_V6: u16 = 1280;

/// This machine's networks, and the settings that its user accepts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LocalPolicy {
    /// The addresses of the server outside the tunnel. The tunnel's packets may go to each of them.
    pub endpoints: Vec<IpAddr>,
    /// The networks that this machine is connected to. A single address is a /32 or /128.
    pub networks: Vec<IpNet>,
    /// Whether the user accepts default routes.
    pub default_route: bool,
    /// Whether the user accepts name servers and search domains.
    pub dns: bool,
    /// Routes that the user accepts although they overlap networks of this machine, or lead to addresses of the
    /// Internet.
    pub routes: Vec<IpNet>,
}

impl LocalPolicy {
    /// The policy of a user who accepts none of the optional settings.
    pub fn new(endpoints: Vec<IpAddr>, networks: Vec<IpNet>) -> Self {
        Self { endpoints, networks, default_route: false, dns: false, routes: Vec::new() }
    }

    /// Sets whether the user accepts default routes.
    #[must_use]
    pub fn with_default_route(self, default_route: bool) -> Self {
        Self { default_route, ..self }
    }

    /// Sets whether the user accepts name servers and search domains.
    #[must_use]
    pub fn with_dns(self, dns: bool) -> Self {
        Self { dns, ..self }
    }

    /// Sets [`routes`](Self::routes).
    #[must_use]
    pub fn with_routes(self, routes: Vec<IpNet>) -> Self {
        Self { routes, ..self }
    }

    /// Whether a network may have these addresses: private ones, or those that the user accepts.
    fn permits(&self, route: &IpNet) -> bool {
        self.default_route || is_private(route) || self.routes.iter().any(|accepted| accepted.contains(route))
    }
}

/// The settings that passed the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The settings for the tunnel.
    pub joined: Joined,
    /// The settings that were left out.
    pub left_out: Vec<LeftOut>,
}

/// A setting that was left out, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftOut {
    /// A default route, or a part of one, that the user has not accepted.
    DefaultRoute(IpNet),
    /// A route that contains the server's endpoint address.
    Endpoint(IpNet, IpAddr),
    /// A route that overlaps this network of the machine.
    Overlap(IpNet, IpNet),
    /// A route of a network to addresses of the Internet.
    Public(IpNet),
    /// A route to special-purpose addresses, which are never behind a tunnel.
    Special(IpNet),
    /// Name servers and search domains that the user has not accepted.
    Dns(Vec<IpAddr>, Vec<String>),
    /// An address that cannot be a name server's.
    NameServer(IpAddr),
    /// A text that is not a domain name.
    SearchDomain(String),
}

/// Settings that no tunnel can be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unacceptable {
    /// A list is longer than a machine accepts.
    #[error("the server sends {count} {what}; this machine takes at most {most}; nothing was written")]
    TooMany {
        /// The kind of element in the list.
        what: &'static str,
        /// The number of elements in the list.
        count: usize,
        /// The largest number accepted.
        most: usize,
    },
    /// An MTU that is too small for a tunnel.
    #[error(
        "the server asks for an MTU of {0} bytes; a tunnel has at least {MIN_MTU}, and {MIN_MTU_V6} with IPv6; nothing was written"
    )]
    Mtu(u16),
    /// No address for this machine.
    #[error("the server gave this machine no address; nothing was written")]
    NoAddress,
    /// An address that no machine can use.
    #[error("the server gave this machine the address {0}, which cannot be a machine's; nothing was written")]
    Address(IpAddr),
    /// The server's own address, inside the tunnel or outside.
    #[error("the server gave this machine the address {0}, which is its own; nothing was written")]
    ServersAddress(IpAddr),
    /// An address in a network that this machine is connected to.
    #[error(
        "the server gave this machine the address {0}, but {1} is a network that it is connected to already; \
         the server has to use another pool (`rustguard serve --pool`), or leave that network; nothing was written"
    )]
    AddressInNetwork(IpAddr, IpNet),
    /// The network has only addresses of the Internet, which the user has not accepted.
    #[error(
        "the network has {0}, which are addresses of the Internet; --accept-route {0} takes them; nothing was written"
    )]
    Public(IpNet),
    /// None of the server's routes can be used.
    #[error("none of the server's routes can be used here; nothing was written")]
    NoRoute,
}

impl Joined {
    /// The routes that form a default route, whole or in parts: with them, most Internet traffic goes through the
    /// server.
    pub fn default_routes(&self) -> Vec<IpNet> {
        let mut default = Vec::new();
        for family in [true, false] {
            let counts = |net: &IpNet| is_v4(net) == family && !is_private(net) && !is_special(net);
            let mut public: Vec<IpNet> = self.routes.iter().map(IpNet::trunc).filter(counts).collect();
            public.sort_by_key(|net| (net.prefix_len(), *net));
            public.dedup();
            let wide = share(if family { WIDE_V4 } else { WIDE_V6 });
            let mut covered: u128 = public.iter().map(|net| share(net.prefix_len())).sum();
            // The widest routes are taken first. The remaining ones may be intended.
            default.extend(public.into_iter().take_while(|net| {
                let too_wide = covered > wide;
                covered -= share(net.prefix_len());
                too_wide
            }));
        }
        default
    }

    /// Accepts the settings that suit the machine described by `here`.
    ///
    /// # Errors
    /// See [`Unacceptable`].
    pub fn accept(mut self, here: &LocalPolicy) -> Result<Accepted, Unacceptable> {
        let counts = [
            ("routes", self.routes.len(), MAX_ROUTES),
            ("name servers", self.dns.len(), MAX_DNS),
            ("search domains", self.search.len(), MAX_SEARCH),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(Unacceptable::TooMany { what, count, most });
        }
        let least = if self.addresses.iter().all(is_v4) { MIN_MTU } else { MIN_MTU_V6 };
        if let Some(mtu) = self.mtu.filter(|&mtu| mtu < least) {
            return Err(Unacceptable::Mtu(mtu));
        }
        self.check_addresses(here)?;
        let mut left_out = Vec::new();
        self.routes = self.acceptable_routes(here, &mut left_out);
        if self.routes.is_empty() {
            let public =
                left_out.iter().find_map(|it| if let LeftOut::Public(route) = it { Some(*route) } else { None });
            return Err(public.map_or(Unacceptable::NoRoute, Unacceptable::Public));
        }
        self.accept_dns(here, &mut left_out);
        Ok(Accepted { joined: self, left_out })
    }

    fn check_addresses(&self, here: &LocalPolicy) -> Result<(), Unacceptable> {
        if self.addresses.is_empty() {
            return Err(Unacceptable::NoAddress);
        }
        for address in self.addresses.iter().map(IpNet::addr) {
            if is_special(&address.into()) {
                return Err(Unacceptable::Address(address));
            }
            if here.endpoints.contains(&address) || self.server_addresses.contains(&address) {
                return Err(Unacceptable::ServersAddress(address));
            }
            // This machine's own addresses count as taken in any case.
            let accepted = here.routes.iter().any(|route| route.contains(&address));
            let taken = |net: &&IpNet| net.contains(&address) && (!accepted || net.addr() == address);
            if let Some(network) = here.networks.iter().find(taken) {
                return Err(Unacceptable::AddressInNetwork(address, network.trunc()));
            }
        }
        Ok(())
    }

    fn acceptable_routes(&self, here: &LocalPolicy, left_out: &mut Vec<LeftOut>) -> Vec<IpNet> {
        let default: BTreeSet<IpNet> = self.default_routes().into_iter().collect();
        let mut routes = Vec::new();
        for route in self.routes.iter().map(IpNet::trunc) {
            if routes.contains(&route) {
                continue;
            }
            let is_default = default.contains(&route);
            // A /0 route excludes the tunnel's own packets by their mark. All other routes are plain routes.
            let looped = here.endpoints.iter().find(|endpoint| route.prefix_len() > 0 && route.contains(*endpoint));
            // This machine's networks are more specific than a default route and keep priority over it.
            let overlapped = here.networks.iter().find(|network| overlap(network, &route)).filter(|_| !is_default);
            let reason = if is_default && !here.default_route {
                LeftOut::DefaultRoute(route)
            } else if let Some(&endpoint) = looped {
                LeftOut::Endpoint(route, endpoint)
            } else if is_special(&route) {
                LeftOut::Special(route)
            } else if let Some(network) = overlapped.filter(|_| !here.routes.iter().any(|net| net.trunc() == route)) {
                LeftOut::Overlap(route, network.trunc())
            } else if self.network.is_some() && !is_default && !here.permits(&route) {
                LeftOut::Public(route)
            } else {
                routes.push(route);
                continue;
            };
            if !left_out.contains(&reason) {
                left_out.push(reason);
            }
        }
        routes
    }

    fn accept_dns(&mut self, here: &LocalPolicy, left_out: &mut Vec<LeftOut>) {
        let (dns, search) = (core::mem::take(&mut self.dns), core::mem::take(&mut self.search));
        if !here.dns {
            if !(dns.is_empty() && search.is_empty()) {
                left_out.push(LeftOut::Dns(dns, search.into_iter().filter(|domain| is_domain(domain)).collect()));
            }
            return;
        }
        for server in dns {
            if is_special(&server.into()) {
                left_out.push(LeftOut::NameServer(server));
            } else if !self.dns.contains(&server) {
                self.dns.push(server);
            }
        }
        for domain in search {
            // Search domains are useless without a server that knows them.
            if !is_domain(&domain) || self.dns.is_empty() {
                left_out.push(LeftOut::SearchDomain(domain));
            } else if !self.search.contains(&domain) {
                self.search.push(domain);
            }
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute(route) => write!(
                f,
                "the server's route {route} is left out: it would take most of this machine's traffic to the server; \
                 --accept-default-route takes it"
            ),
            Self::Endpoint(route, endpoint) => write!(
                f,
                "the server's route {route} is left out: the server itself is at {endpoint}, and its packets would go \
                 round for ever"
            ),
            Self::Overlap(route, network) => write!(
                f,
                "the server's route {route} is left out: it overlaps {network}, which this machine is connected to; \
                 --accept-route {route} takes it"
            ),
            Self::Public(route) => write!(
                f,
                "the server's route {route} is left out: it leads to addresses of the Internet; --accept-route {route} \
                 takes it"
            ),
            Self::Special(route) => {
                write!(f, "the server's route {route} is left out: no such addresses are behind a tunnel")
            }
            Self::Dns(servers, search) => {
                let all = servers.iter().map(ToString::to_string).chain(search.iter().cloned());
                let all = all.collect::<Vec<_>>().join(", ");
                write!(f, "the server's DNS ({all}) is left out: --accept-dns takes it, and asks it for every name")
            }
            Self::NameServer(server) => {
                write!(f, "the server's name server {server} is left out: it cannot be a name server's address")
            }
            // The text may contain anything and is shown on a terminal, so it is escaped.
            Self::SearchDomain(domain) => {
                write!(f, "the server's search domain {domain:?} is left out: it is none, or has no name server")
            }
        }
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// The share of its family's addresses that a prefix of this length covers, in units of 2^-64.
fn share(len: u8) -> u128 {
    1 << (64 - u32::from(len.min(64)))
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}
