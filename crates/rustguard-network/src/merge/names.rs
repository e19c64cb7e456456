//! Where this machine sends queries for names of the network, and queries for the names that the network's name servers
//! answer.
//!
//! A link of systemd-resolved has one list of name servers. So this machine's resolver is the only one of the link, and
//! forwards queries that are for the network's own name servers.

use super::Merged;
use crate::dns::{PORT, Upstream, zone::is_foreign};
use ipnet::IpNet;
use rustguard_quick::{
    NameServer,
    conf::{Config, Interface},
    host::{NameService, Table},
};
use rustguard_roster::settings::Settings;
use std::net::{IpAddr, SocketAddr};

/// The documentation on what this machine and its user can do about names.
const GUIDE: &str = "docs/guide/names.md";

/// The host's means for names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// `None` until it is detected: nothing is set then.
    pub(crate) service: Option<NameService>,
    /// `None` until it was tried.
    pub(crate) resolver: Option<Resolver>,
}

/// The resolver of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolver {
    /// The addresses where it answers, at port 53. Empty if it cannot.
    pub addresses: Vec<IpAddr>,
    /// The domains that it answers for. The network's domain is the first.
    pub domains: Vec<String>,
}

impl Resolver {
    /// Makes it the name server of an interface, for its domains only. If it does not answer, the interface gets none.
    pub fn set(&self, interface: &mut Interface) {
        interface.dns = without_zones(&self.addresses);
        let domains = if self.addresses.is_empty() { &[][..] } else { &self.domains };
        interface.dns_search = routing(domains.iter().map(String::as_str));
    }
}

/// The names for which the network's name servers are used.
enum Taken<'s> {
    None,
    Some(Vec<&'s str>),
    All,
}

impl Merged {
    /// Sets name servers and domains of the interface. The peers have to be set before.
    pub(super) fn names(&mut self, base: &Config, settings: &Settings, host: &Host) {
        let file = &base.interface;
        let ours = host.resolver.as_ref().filter(|resolver| !resolver.addresses.is_empty());
        if !file.dns.is_empty() || !file.dns_search.is_empty() {
            if let (Some(resolver), Some(NameService::Resolved)) = (ours, host.service) {
                self.refused.push(format!("{resolver}: `DNS` in the file stays as it is; {GUIDE} shows how to ask it"));
            }
            return;
        }
        let servers: Vec<_> = settings.name_servers.iter().copied().filter(super::is_host).collect();
        let routes_all = file.table != Table::Off
            && IpNet::aggregate(&self.config.routes()).iter().any(|route| route.prefix_len() == 0);
        let taken = self.taken(file.accept.dns, settings, &servers, routes_all);
        let (Some(service), Some(_)) = (host.service, &host.resolver) else { return };
        let interface = &mut self.config.interface;
        let unable = match (service, &taken, ours) {
            (NameService::Resolved, Taken::None, Some(resolver)) if routes_all => {
                // systemd-resolved sends all queries to a link with a default route.
                self.refused.push(format!(
                    "{resolver}: a default route leads through the network, and systemd-resolved would ask there for every name; {GUIDE} \
                     shows how to ask it"
                ));
                return;
            }
            (NameService::Resolved, _, Some(resolver)) => {
                interface.dns = without_zones(&resolver.addresses);
                let servers = servers.iter().map(|server| SocketAddr::new(*server, PORT));
                let mut domains: Vec<&str> = resolver.domains.iter().map(String::as_str).collect();
                match taken {
                    Taken::None => {}
                    Taken::Some(others) => {
                        self.upstream = Upstream::new(servers, others.iter().copied());
                        domains.extend(others);
                    }
                    Taken::All => {
                        self.upstream = Upstream::new(servers, []);
                        domains.push(".");
                    }
                }
                interface.dns_search = routing(domains);
                return;
            }
            (_, Taken::None, _) => return,
            (NameService::Resolved, Taken::Some(domains), None) => {
                (interface.dns, interface.dns_search) = (without_zones(&servers), routing(domains.iter().copied()));
                return;
            }
            (NameService::Resolved | NameService::Resolvconf, Taken::All, _) => {
                interface.dns = without_zones(&servers);
                return;
            }
            (NameService::Resolvconf, Taken::Some(_), _) => "resolvconf cannot ask for some domains only",
            _ => "this host has neither systemd-resolved nor resolvconf",
        };
        let domains = if let Taken::Some(domains) = taken { domains.join(", ") } else { EVERY_NAME.to_owned() };
        let ours = ours.map_or(String::new(), |resolver| format!("; {resolver} is here, see {GUIDE}"));
        self.refused.push(format!("{}: {unable}{ours}", name_servers(&servers, &domains)));
    }

    /// The names that the network's name servers are asked for, as far as the file permits it.
    fn taken<'s>(&mut self, accept: bool, settings: &'s Settings, servers: &[IpAddr], routes_all: bool) -> Taken<'s> {
        let domains = || settings.domains.iter().map(|domain| &**domain);
        let (most, some): (Vec<_>, Vec<_>) = domains().partition(|domain| needs_consent(domain));
        let everything = settings.domains.is_empty() || routes_all;
        if servers.is_empty() {
            return Taken::None;
        }
        if accept {
            return if everything { Taken::All } else { Taken::Some(domains().collect()) };
        }
        if everything || !most.is_empty() {
            let refused = if everything { EVERY_NAME.to_owned() } else { most.join(", ") };
            let because = if routes_all { ", as a default route leads through the network" } else { "" };
            self.refused.push(format!("{}{because}: `Accept = dns` takes them", name_servers(servers, &refused)));
        }
        if everything || some.is_empty() { Taken::None } else { Taken::Some(some) }
    }
}

/// Whether a name server for this domain would control names outside the network: nearly all names if the domain has
/// one label, such as com; reverse names of other networks; and the names under which clouds offer credentials to a
/// machine.
fn needs_consent(domain: &str) -> bool {
    !domain.contains('.') || domain.ends_with(".arpa") || is_foreign(domain)
}

const EVERY_NAME: &str = "every name";

fn name_servers(servers: &[IpAddr], domains: &str) -> String {
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    format!("the name servers {} for {domains}", servers.join(", "))
}

fn without_zones(addresses: &[IpAddr]) -> Vec<NameServer> {
    addresses.iter().copied().map(Into::into).collect()
}

/// The domains as routing-only domains of a link, without repetition.
fn routing<'d>(domains: impl IntoIterator<Item = &'d str>) -> Vec<String> {
    let mut routing: Vec<String> = Vec::new();
    for domain in domains.into_iter().map(|domain| format!("~{domain}")) {
        if !routing.contains(&domain) {
            routing.push(domain);
        }
    }
    routing
}

impl std::fmt::Display for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        let domain = self.domains.first().map_or("", String::as_str);
        write!(f, "the resolver for {domain} at {}", addresses.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_quick::conf::Peer;

    const OWN: &str = "10.150.0.11";

    fn host(service: NameService) -> Host {
        let domains = vec!["lab.internal".to_owned(), "0.150.10.in-addr.arpa".to_owned()];
        Host { service: Some(service), resolver: Some(Resolver { addresses: vec![address(OWN)], domains }) }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn settings(domains: &[&str]) -> Settings {
        let mut settings = Settings::new("lab".parse().unwrap());
        // The second is not a valid host address.
        settings.name_servers = vec![address("10.150.0.53"), address("127.0.0.53")];
        settings.domains = domains.iter().map(|domain| (*domain).into()).collect();
        settings
    }

    fn file(accept: bool) -> Config {
        let mut base = Config::default();
        base.interface.accept.dns = accept;
        base
    }

    /// With these routes into the tunnel.
    fn names(base: &Config, settings: &Settings, host: &Host, routes: &[&str]) -> Merged {
        let mut merged = Merged { config: base.clone(), ..Merged::default() };
        let mut peer = Peer::new(PublicKey([1; 32]));
        peer.allowed_ips = routes.iter().map(|route| route.parse().unwrap()).collect();
        merged.config.peers.push(peer);
        merged.names(base, settings, host);
        merged
    }

    /// Checks the servers and domains that are set, and the names that the resolver forwards.
    fn assert_set(merged: &Merged, servers: &[&str], domains: &[&str], upstream: Option<&[&str]>) {
        let interface = &merged.config.interface;
        let servers: Vec<_> = servers.iter().map(|server| address(server)).collect();
        assert_eq!(
            (&interface.dns, &interface.dns_search[..]),
            (&without_zones(&servers), &domains.map_to_strings()[..])
        );
        let to = [SocketAddr::new(address("10.150.0.53"), PORT)];
        let expected = upstream.map_or_else(Upstream::default, |domains| Upstream::new(to, domains.iter().copied()));
        assert_eq!(merged.upstream, expected);
    }

    trait Strings {
        fn map_to_strings(&self) -> Vec<String>;
    }

    impl Strings for [&str] {
        fn map_to_strings(&self) -> Vec<String> {
            self.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn resolved_asks_the_own_resolver_for_the_network_and_for_what_is_taken() {
        let host = host(NameService::Resolved);
        let own = ["~lab.internal", "~0.150.10.in-addr.arpa"];
        let with = |more: &[&'static str]| [&own[..], more].concat();
        let nothing = Settings::new("lab".parse().unwrap());
        assert_set(&names(&file(false), &nothing, &host, &[]), &[OWN], &own, None);

        let corp = settings(&["corp.example", "lab.internal"]);
        let merged = names(&file(false), &corp, &host, &[]);
        assert_set(&merged, &[OWN], &with(&["~corp.example"]), Some(&["corp.example", "lab.internal"]));
        assert!(merged.refused.is_empty(), "{:?}", merged.refused);

        let all = settings(&[]);
        assert_set(&names(&file(true), &all, &host, &[]), &[OWN], &with(&["~."]), Some(&[]));
        let merged = names(&file(false), &all, &host, &[]);
        assert_set(&merged, &[OWN], &own, None);
        assert_eq!(merged.refused, ["the name servers 10.150.0.53 for every name: `Accept = dns` takes them"]);

        let top = settings(&["com", "corp.example"]);
        let merged = names(&file(false), &top, &host, &[]);
        assert_set(&merged, &[OWN], &with(&["~corp.example"]), Some(&["corp.example"]));
        assert_eq!(merged.refused, ["the name servers 10.150.0.53 for com: `Accept = dns` takes them"]);
        for domain in ["in-addr.arpa", "8.e.f.ip6.arpa", "google.internal", "metadata.google.internal"] {
            let merged = names(&file(false), &settings(&[domain]), &host, &[]);
            assert_set(&merged, &[OWN], &own, None);
            let refused = format!("the name servers 10.150.0.53 for {domain}: `Accept = dns` takes them");
            assert_eq!(merged.refused, [refused]);
        }
        let merged = names(&file(true), &top, &host, &[]);
        assert_set(&merged, &[OWN], &with(&["~com", "~corp.example"]), Some(&["com", "corp.example"]));
    }

    /// systemd-resolved sends all queries to a link with a default route. The own resolver refuses other names, so it
    /// must not be asked then.
    #[test]
    fn with_a_default_route_the_link_answers_every_name_or_none() {
        let host = host(NameService::Resolved);
        let halves = ["0.0.0.0/1", "128.0.0.0/1"];
        let corp = settings(&["corp.example"]);
        let own = ["~lab.internal", "~0.150.10.in-addr.arpa", "~."];
        assert_set(&names(&file(true), &corp, &host, &halves), &[OWN], &own, Some(&[]));
        let merged = names(&file(false), &corp, &host, &halves);
        assert_set(&merged, &[], &[], None);
        assert_eq!(merged.refused.len(), 2, "{:?}", merged.refused);
        let nothing = Settings::new("lab".parse().unwrap());
        assert_set(&names(&file(true), &nothing, &host, &["::/0"]), &[], &[], None);
        let mut base = file(false);
        base.interface.table = Table::Off;
        assert_set(&names(&base, &nothing, &host, &["::/0"]), &[OWN], &own[..2], None);
    }

    #[test]
    fn without_resolved_nothing_of_the_host_changes_that_would_ask_the_wrong_server() {
        let (all, corp) = (settings(&[]), settings(&["corp.example"]));
        let resolvconf = host(NameService::Resolvconf);
        assert_set(&names(&file(true), &all, &resolvconf, &[]), &["10.150.0.53"], &[], None);
        let here = "the resolver for lab.internal at 10.150.0.11 is here, see docs/guide/names.md";
        let nothing = Settings::new("lab".parse().unwrap());
        for (host, settings, why) in [
            (&resolvconf, &corp, "for corp.example: resolvconf cannot ask for some domains only"),
            (
                &host(NameService::None),
                &corp,
                "for corp.example: this host has neither systemd-resolved nor resolvconf",
            ),
            (&host(NameService::None), &all, "for every name: this host has neither systemd-resolved nor resolvconf"),
        ] {
            let merged = names(&file(true), settings, host, &[]);
            assert_set(&merged, &[], &[], None);
            assert_eq!(merged.refused, [format!("the name servers 10.150.0.53 {why}; {here}")]);
            let merged = names(&file(true), &nothing, host, &[]);
            assert_set(&merged, &[], &[], None);
            assert!(merged.refused.is_empty(), "{:?}", merged.refused);
        }
    }

    /// Another program uses the port: the network's name servers are asked directly.
    #[test]
    fn without_the_own_resolver_resolved_asks_the_name_servers_of_the_network() {
        let host = Host { service: Some(NameService::Resolved), resolver: Some(Resolver::default()) };
        assert_set(&names(&file(true), &settings(&[]), &host, &[]), &["10.150.0.53"], &[], None);
        let corp = settings(&["corp.example"]);
        assert_set(&names(&file(false), &corp, &host, &[]), &["10.150.0.53"], &["~corp.example"], None);
    }

    #[test]
    fn nothing_is_set_before_the_host_is_known_or_where_the_file_says_it() {
        for host in [Host::default(), Host { resolver: None, ..host(NameService::Resolved) }] {
            let merged = names(&file(true), &settings(&[]), &host, &[]);
            assert_set(&merged, &[], &[], None);
            assert!(merged.refused.is_empty(), "{:?}", merged.refused);
        }
        let mut base = file(true);
        base.interface.dns = vec![address("192.0.2.53").into()];
        let merged = names(&base, &settings(&[]), &host(NameService::Resolved), &[]);
        assert_set(&merged, &["192.0.2.53"], &[], None);
        assert_eq!(merged.refused.len(), 1);
        assert!(merged.refused[0].contains("`DNS` in the file stays"), "{:?}", merged.refused);
    }
}
