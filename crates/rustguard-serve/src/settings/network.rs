//! The settings of the network that joined machines are members of.

use super::{KEEPALIVE, Settings};
use rustguard_core::host_port::HostPort;
use rustguard_network::{
    MTUS,
    roster::{label::Label, settings::Settings as RosterSettings},
};
use serde::{Deserialize, Serialize};

/// The MTU of a network: packets of this size fit into 1,500 bytes on every path. The overhead is 32 bytes for a
/// session through a server, 16 and 32 bytes for the session with that server, and 48 bytes for IPv6 and UDP.
pub const NETWORK_MTU: u16 = 1360;
/// The smallest MTU with IPv6 (RFC 8200, section 5).
pub const MIN_MTU: u16 = *MTUS.start();
/// The largest MTU that members accept.
pub const MAX_MTU: u16 = *MTUS.end();

/// The settings of the network. They are stored beside the other settings, where earlier versions of the program ignore
/// them. Such versions can still serve the state folder, as a star.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct NetworkSettings {
    /// There is no network: traffic between joined machines goes through this server, which decrypts it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub star: bool,
    /// The network's name. By default it is the name of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The MTU of all members, in bytes. By default it is [`NETWORK_MTU`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

impl Settings {
    /// The settings that all servers of a network share. The rest is each server's own: its port, its endpoint, the
    /// networks behind it, and its addresses in the pools.
    pub(crate) fn shared(&self) -> Self {
        let Self { pools, isolate, dns, search, lease_seconds, ephemeral_seconds, network, .. } = self.clone();
        let pools = pools.iter().map(ipnet::IpNet::trunc).collect();
        Self { pools, isolate, dns, search, lease_seconds, ephemeral_seconds, network, ..Self::default() }
    }

    /// These settings with those that all servers share.
    pub(crate) fn with_shared(self, shared: &Self) -> Self {
        let own = |pool: &ipnet::IpNet| self.pools.iter().find(|own| own.trunc() == *pool).copied();
        let pools = shared.pools.iter().map(|pool| own(pool).unwrap_or(*pool)).collect();
        let Self { port, endpoint, routes, nat, .. } = self;
        Self { pools, port, endpoint, routes, nat, ..shared.clone() }
    }

    /// Whether joined machines are members of a network. They are not if traffic between them is blocked.
    pub fn has_network(&self) -> bool {
        !self.network.star && !self.isolate
    }

    /// The MTU that joined machines are told.
    pub(crate) fn mtu(&self) -> Option<u16> {
        self.network.mtu.or(self.has_network().then_some(NETWORK_MTU))
    }

    /// The settings for all members of the network of `interface`.
    pub(crate) fn to_roster(&self, interface: &str) -> RosterSettings {
        let name = self.network.name.as_deref().unwrap_or(interface);
        // An interface may be called `_`.
        let name = Label::clean(name).or_else(|| Label::clean("network")).expect("a label");
        let mut settings = RosterSettings::new(name);
        settings.mtu = self.mtu();
        settings.pools = self.pools.iter().map(ipnet::IpNet::trunc).collect();
        settings.name_servers.clone_from(&self.dns);
        settings.domains = self.search.iter().filter_map(|domain| domain_of(domain)).collect();
        settings.keepalive = Some(KEEPALIVE);
        settings
    }

    /// The search domains that members are not told, because they would refuse them.
    pub(crate) fn untold_domains(&self) -> impl Iterator<Item = &str> {
        self.search.iter().map(String::as_str).filter(|domain| domain_of(domain).is_none())
    }

    /// The endpoint where members reach this server, if it is known.
    pub(crate) fn reached_at(&self) -> Option<HostPort> {
        self.reachable_at()?.parse().ok()
    }
}

/// A search domain in the form for members. `None` for a domain with a `_`, which members would refuse.
fn domain_of(search: &str) -> Option<Box<str>> {
    let domain = search.strip_prefix('~').unwrap_or(search);
    let domain = domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase();
    domain.split('.').all(|label| label.parse::<Label>().is_ok()).then(|| domain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings { pools: vec!["10.83.41.0/24".parse().unwrap()], ..Settings::default() };
        settings.dns = vec!["10.83.41.1".parse().unwrap()];
        settings.search = ["Corp.Example.", "~lab.example", "_odd.example"].map(str::to_owned).into();
        settings
    }

    #[test]
    fn members_are_told_the_settings() {
        let told = settings().to_roster("rg0");
        assert_eq!(told.check(), Ok(()));
        assert_eq!((told.name.as_str(), told.mtu, told.keepalive), ("rg0", Some(1360), Some(25)));
        assert_eq!((told.pools, told.name_servers), (settings().pools, settings().dns));
        assert_eq!(told.domains, ["corp.example".into(), "lab.example".into()]);
        assert_eq!(settings().untold_domains().collect::<Vec<_>>(), ["_odd.example"]);
        let mut named = settings();
        (named.network.name, named.network.mtu) = (Some("home".to_owned()), Some(1280));
        let told = named.to_roster("rg0");
        assert_eq!((told.name.as_str(), told.mtu), ("home", Some(1280)));
        assert_eq!(settings().to_roster("__").name.as_str(), "network");
    }

    #[test]
    fn a_star_has_no_network() {
        let mut star = settings();
        assert!(star.has_network());
        star.network.star = true;
        assert_eq!((star.has_network(), star.mtu()), (false, None));
        assert!(!Settings { isolate: true, ..settings() }.has_network());
    }

    /// Earlier versions of the program refuse an unknown setting, but ignore unknown fields beside the settings.
    #[test]
    fn programs_before_this_one_can_read_the_file() {
        let mut star = settings();
        star.network.star = true;
        let text = star.to_json();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["network"], serde_json::json!({ "star": true }));
        assert!(json["settings"].get("network").is_none(), "{json}");
        assert_eq!(Settings::from_json(&text), Ok(star));
        let text = settings().to_json();
        assert!(!String::from_utf8(text.clone()).unwrap().contains("network"), "nothing is stored that was not said");
        assert_eq!(Settings::from_json(&text), Ok(settings()));
        let wrong =
            String::from_utf8(text).unwrap().replace("\"version\": 1", "\"version\": 1, \"network\": {\"str\": 1}");
        assert!(Settings::from_json(wrong.as_bytes()).unwrap_err().contains("str"), "{wrong}");
    }
}
