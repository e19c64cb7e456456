//! The difference between two configurations, as a type.

use crate::{
    NameServer,
    conf::{Accept, Config, Interface, NetworkKey, NodeName, Peer, Pin, Redistribute, Routing, Table},
};
use ipnet::IpNet;
use rustguard_core::routing::Role;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{EndpointSpec, PathSpec, PresharedKey, SourceCheck};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

/// What has to change to get from one configuration to another.
///
/// The order of peers, of addresses and of prefixes does not count. The order of name servers, search domains,
/// endpoints and hooks does. If two peers have the same allowed IP, the last one gets it, as in WireGuard; under Babel
/// both have it.
///
/// `Debug` shows no secrets.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Difference {
    /// The `[Interface]` section.
    pub interface: InterfaceDifference,
    /// The peers that only the new configuration has.
    pub added: Vec<Peer>,
    /// The peers that only the old configuration has.
    pub removed: Vec<Peer>,
    /// The peers that have other settings.
    pub changed: Vec<PeerDifference>,
    /// Routes of the host that change although no peer does. `wg set` and `rustguard set` give a peer allowed IPs
    /// without routes. Only [`Session::difference`](crate::Session::difference) finds them.
    pub routes: Nets,
    /// The names of the relays of the new configuration, by the words that have their keys.
    pub(super) relays: Vec<(String, String)>,
}

/// The old and the new value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed<T> {
    /// The old value.
    pub from: T,
    /// The new value.
    pub to: T,
}

/// A change to a set of prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nets {
    /// The prefixes that only the new configuration has.
    pub added: Vec<IpNet>,
    /// The prefixes that only the old configuration has.
    pub removed: Vec<IpNet>,
}

/// What changes in the `[Interface]` section. `None` means no change.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are those of `conf::Interface`, and documented there")]
pub struct InterfaceDifference {
    pub private_key: Option<Changed<Option<StaticSecret>>>,
    pub listen_port: Option<Changed<Option<u16>>>,
    /// The ports of `ListenPort` beyond the first. They need a restart.
    pub more_listen_ports: Option<Changed<Vec<u16>>>,
    /// `ListenAddress`. It needs a restart.
    pub listen_addresses: Option<Changed<Vec<IpAddr>>>,
    pub fwmark: Option<Changed<Option<u32>>>,
    pub addresses: Nets,
    pub dns: Option<Changed<Vec<NameServer>>>,
    pub dns_search: Option<Changed<Vec<String>>>,
    pub mtu: Option<Changed<Option<u16>>>,
    pub table: Option<Changed<Table>>,
    pub pre_up: Option<Changed<Vec<String>>>,
    pub post_up: Option<Changed<Vec<String>>>,
    pub pre_down: Option<Changed<Vec<String>>>,
    pub post_down: Option<Changed<Vec<String>>>,
    pub routing: Option<Changed<Routing>>,
    pub announce: Nets,
    pub redistribute: Option<Changed<Vec<Redistribute>>>,
    pub pins: Option<Changed<Vec<Pin>>>,
    pub source_check: Option<Changed<SourceCheck>>,
    pub node_name: Option<Changed<NodeName>>,
    pub forward: Option<Changed<Option<bool>>>,
    pub public_endpoints: Option<Changed<Vec<EndpointSpec>>>,
    pub port_mapping: Option<Changed<Option<bool>>>,
    /// `Nat`.
    pub nat: Option<Changed<Option<bool>>>,
    pub handshake_on_up: Option<Changed<Option<bool>>>,
    /// `Network`. It needs a restart.
    pub network: Option<Changed<Option<NetworkKey>>>,
    pub accept: Option<Changed<Accept>>,
    pub save_config: Option<Changed<bool>>,
}

/// What changes about one peer. `None` means no change.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the other fields are those of `conf::Peer`, and documented there")]
pub struct PeerDifference {
    /// The peer.
    pub public_key: PublicKey,
    /// Its name in the new configuration, or else in the old one.
    pub label: Option<String>,
    pub name: Option<Changed<Option<String>>>,
    pub preshared_key: Option<Changed<Option<PresharedKey>>>,
    pub endpoints: Option<Changed<Vec<PathSpec>>>,
    pub allowed_ips: Nets,
    pub persistent_keepalive: Option<Changed<Option<Duration>>>,
    pub direct: Option<Changed<Option<bool>>>,
    /// `Parity`.
    pub parity: Option<Changed<Option<u8>>>,
    pub role: Option<Changed<Option<Role>>>,
    /// Whether direct paths are to be looked for, where that may have changed. The endpoints say it in place of a missing `Direct`.
    pub(super) looks_for_direct_paths: Option<bool>,
}

impl Nets {
    fn between(from: &[IpNet], to: &[IpNet]) -> Self {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = (from.iter().copied().collect(), to.iter().copied().collect());
        Self { added: to.difference(&from).copied().collect(), removed: from.difference(&to).copied().collect() }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    fn apply_to(&self, nets: &mut Vec<IpNet>) {
        let removed: HashSet<_> = self.removed.iter().collect();
        nets.retain(|net| !removed.contains(net));
        nets.extend(&self.added);
    }
}

impl Difference {
    /// The changes from one configuration to another.
    pub fn between(from: &Config, to: &Config) -> Self {
        let before: HashMap<PublicKey, Peer> = peers(from).map(|peer| (peer.public_key, peer)).collect();
        let mut difference = Self {
            interface: InterfaceDifference::between(&from.interface, &to.interface),
            relays: relays(&[from, to]),
            ..Self::default()
        };
        let mut kept = HashSet::new();
        for peer in peers(to) {
            match before.get(&peer.public_key) {
                None => difference.added.push(peer),
                Some(before) => {
                    kept.insert(peer.public_key);
                    difference.changed.extend(PeerDifference::between(before, &peer));
                }
            }
        }
        difference.removed = peers(from).filter(|peer| !kept.contains(&peer.public_key)).collect();
        difference
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.lines().is_empty()
    }

    /// The changes to the allowed IPs of all peers, without those that `self` contains as changes to peers.
    pub(super) fn other_routes(&self, from: &[IpNet], to: &Config) -> Nets {
        let all = |peers: &[Peer]| peers.iter().flat_map(|peer| peer.allowed_ips.clone()).collect::<Vec<_>>();
        let mut routes = Nets::between(from, &to.routes());
        let changed = || self.changed.iter().map(|change| &change.allowed_ips);
        let added: HashSet<_> = changed().flat_map(|nets| nets.added.clone()).chain(all(&self.added)).collect();
        let removed: HashSet<_> = changed().flat_map(|nets| nets.removed.clone()).chain(all(&self.removed)).collect();
        routes.added.retain(|net| !added.contains(net));
        routes.removed.retain(|net| !removed.contains(net));
        routes
    }

    /// Makes the changes to a configuration.
    pub fn apply_to(&self, config: &mut Config) {
        // Otherwise a prefix that another peer has now would come back with the end of that peer.
        config.peers = peers(config).collect();
        self.interface.apply_to(&mut config.interface);
        let removed: HashSet<_> = self.removed.iter().map(|peer| peer.public_key).collect();
        let changed: HashMap<_, _> = self.changed.iter().map(|change| (change.public_key, change)).collect();
        config.peers.retain(|peer| !removed.contains(&peer.public_key));
        for peer in &mut config.peers {
            if let Some(change) = changed.get(&peer.public_key) {
                change.apply_to(peer);
            }
        }
        config.peers.extend(self.added.iter().cloned());
    }
}

/// The endpoints through peers with a name, and how a file has them.
fn relays(configs: &[&Config]) -> Vec<(String, String)> {
    let peers = || configs.iter().flat_map(|config| &config.peers);
    let names: HashMap<_, _> = peers().filter_map(|peer| Some((peer.public_key, peer.name.as_deref()?))).collect();
    let endpoints = peers().flat_map(|peer| &peer.endpoints).map(|path| &path.endpoint);
    let named = endpoints.filter_map(|endpoint| match endpoint {
        EndpointSpec::Peer(relay) => Some((endpoint.to_string(), format!("via-peer {}", names.get(relay)?))),
        _ => None,
    });
    named.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The peers as a device has them: without the one that has our own key, which WireGuard ignores; without host bits;
/// and an allowed IP belongs to one peer, unless a routing engine decides about routes.
fn peers(config: &Config) -> impl Iterator<Item = Peer> {
    let own = config.interface.private_key.as_ref().map(StaticSecret::public_key);
    let shared = config.interface.routing.shares_prefixes();
    let mut owners = BTreeMap::new();
    for peer in &config.peers {
        owners.extend(peer.allowed_ips.iter().map(|net| (net.trunc(), peer.public_key)));
    }
    config.peers.iter().filter(move |peer| own != Some(peer.public_key)).map(move |peer| {
        let nets: BTreeSet<_> = peer.allowed_ips.iter().map(IpNet::trunc).collect();
        let owned = |net: &IpNet| shared || owners.get(net) == Some(&peer.public_key);
        Peer { allowed_ips: nets.into_iter().filter(owned).collect(), ..peer.clone() }
    })
}

impl InterfaceDifference {
    fn between(from: &Interface, to: &Interface) -> Self {
        // Without `..`, so that a new setting cannot be forgotten here.
        let Interface {
            private_key,
            listen_port,
            more_listen_ports,
            listen_addresses,
            fwmark,
            addresses,
            dns,
            dns_search,
            mtu,
            table,
            pre_up,
            post_up,
            pre_down,
            post_down,
            routing,
            announce,
            redistribute,
            pins,
            source_check,
            node_name,
            forward,
            public_endpoints,
            port_mapping,
            nat,
            handshake_on_up,
            network,
            accept,
            save_config,
        } = from;
        Self {
            // A secret has no comparison.
            private_key: changed_as(private_key, &to.private_key, |key| key.as_ref().map(StaticSecret::public_key)),
            listen_port: changed(listen_port, &to.listen_port),
            more_listen_ports: changed(more_listen_ports, &to.more_listen_ports),
            listen_addresses: changed(listen_addresses, &to.listen_addresses),
            // 0 and no mark mean the same.
            fwmark: changed_as(fwmark, &to.fwmark, |mark| mark.unwrap_or(0)),
            addresses: Nets::between(addresses, &to.addresses),
            dns: changed(dns, &to.dns),
            dns_search: changed(dns_search, &to.dns_search),
            mtu: changed(mtu, &to.mtu),
            table: changed(table, &to.table),
            pre_up: changed(pre_up, &to.pre_up),
            post_up: changed(post_up, &to.post_up),
            pre_down: changed(pre_down, &to.pre_down),
            post_down: changed(post_down, &to.post_down),
            routing: changed(routing, &to.routing),
            announce: Nets::between(announce, &to.announce),
            redistribute: changed(redistribute, &to.redistribute),
            pins: changed(pins, &to.pins),
            source_check: changed(source_check, &to.source_check),
            node_name: changed(node_name, &to.node_name),
            forward: changed_as(forward, &to.forward, |forward| forward.unwrap_or(false)),
            public_endpoints: changed(public_endpoints, &to.public_endpoints),
            port_mapping: changed_as(port_mapping, &to.port_mapping, |on| on.unwrap_or(true)),
            nat: changed_as(nat, &to.nat, |on| on.unwrap_or(false)),
            handshake_on_up: changed_as(handshake_on_up, &to.handshake_on_up, |greet| greet.unwrap_or(true)),
            network: changed(network, &to.network),
            accept: changed_as(accept, &to.accept, |accept| accept.words().collect::<BTreeSet<_>>()),
            save_config: changed(save_config, &to.save_config),
        }
    }

    fn apply_to(&self, interface: &mut Interface) {
        set(&mut interface.private_key, &self.private_key);
        set(&mut interface.listen_port, &self.listen_port);
        set(&mut interface.more_listen_ports, &self.more_listen_ports);
        set(&mut interface.listen_addresses, &self.listen_addresses);
        set(&mut interface.fwmark, &self.fwmark);
        self.addresses.apply_to(&mut interface.addresses);
        set(&mut interface.dns, &self.dns);
        set(&mut interface.dns_search, &self.dns_search);
        set(&mut interface.mtu, &self.mtu);
        set(&mut interface.table, &self.table);
        set(&mut interface.pre_up, &self.pre_up);
        set(&mut interface.post_up, &self.post_up);
        set(&mut interface.pre_down, &self.pre_down);
        set(&mut interface.post_down, &self.post_down);
        set(&mut interface.routing, &self.routing);
        self.announce.apply_to(&mut interface.announce);
        set(&mut interface.redistribute, &self.redistribute);
        set(&mut interface.pins, &self.pins);
        set(&mut interface.source_check, &self.source_check);
        set(&mut interface.node_name, &self.node_name);
        set(&mut interface.forward, &self.forward);
        set(&mut interface.public_endpoints, &self.public_endpoints);
        set(&mut interface.port_mapping, &self.port_mapping);
        set(&mut interface.nat, &self.nat);
        set(&mut interface.handshake_on_up, &self.handshake_on_up);
        set(&mut interface.network, &self.network);
        set(&mut interface.accept, &self.accept);
        set(&mut interface.save_config, &self.save_config);
    }
}

impl PeerDifference {
    /// `None` if nothing changes.
    fn between(from: &Peer, to: &Peer) -> Option<Self> {
        let Peer {
            name,
            public_key,
            preshared_key,
            endpoints,
            allowed_ips,
            persistent_keepalive,
            direct,
            parity,
            role,
        } = from;
        let difference = Self {
            public_key: *public_key,
            label: to.name.clone().or_else(|| name.clone()),
            name: changed(name, &to.name),
            preshared_key: changed(preshared_key, &to.preshared_key),
            endpoints: changed(endpoints, &to.endpoints),
            allowed_ips: Nets::between(allowed_ips, &to.allowed_ips),
            persistent_keepalive: changed(persistent_keepalive, &to.persistent_keepalive),
            direct: changed(direct, &to.direct),
            parity: changed(parity, &to.parity),
            looks_for_direct_paths: (*direct != to.direct || from.leads_through_peers() != to.leads_through_peers())
                .then(|| to.direct.unwrap_or_else(|| to.leads_through_peers())),
            role: changed_as(role, &to.role, |role| role.unwrap_or(Role::Router)),
        };
        (!difference.lines().is_empty()).then_some(difference)
    }

    fn apply_to(&self, peer: &mut Peer) {
        set(&mut peer.name, &self.name);
        set(&mut peer.preshared_key, &self.preshared_key);
        set(&mut peer.endpoints, &self.endpoints);
        self.allowed_ips.apply_to(&mut peer.allowed_ips);
        set(&mut peer.persistent_keepalive, &self.persistent_keepalive);
        set(&mut peer.direct, &self.direct);
        set(&mut peer.parity, &self.parity);
        set(&mut peer.role, &self.role);
    }
}

fn changed<T: PartialEq + Clone>(from: &T, to: &T) -> Option<Changed<T>> {
    (from != to).then(|| Changed { from: from.clone(), to: to.clone() })
}

/// As [`changed`], where only the `meaning` of the values counts.
fn changed_as<T: Clone, M: PartialEq>(from: &T, to: &T, meaning: impl Fn(&T) -> M) -> Option<Changed<T>> {
    (meaning(from) != meaning(to)).then(|| Changed { from: from.clone(), to: to.clone() })
}

fn set<T: Clone>(value: &mut T, change: &Option<Changed<T>>) {
    if let Some(change) = change {
        value.clone_from(&change.to);
    }
}
