//! The difference between two configurations, as a type.

use crate::conf::{
    Config, Interface, Peer,
    keys::{self, Section as _},
};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::EndpointSpec;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The changes from one configuration to another.
///
/// The order of peers, of addresses and of prefixes does not count. The order of name servers, search domains,
/// endpoints and hooks does. If two peers have the same allowed IP, the last one gets it, as in WireGuard. Under Babel
/// both have it.
///
/// `Debug` shows no secrets.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Difference {
    /// The `[Interface]` section.
    pub interface: Changed<Interface>,
    /// The peers that only the new configuration has.
    pub added: Vec<Peer>,
    /// The peers that only the old configuration has.
    pub removed: Vec<Peer>,
    /// The peers that have other settings.
    pub changed: Vec<Changed<Peer>>,
    /// Routes of the host that change although no peer does. `wg set` and `rustguard set` give a peer allowed IPs
    /// without routes. Only [`Session::difference`](crate::Session::difference) finds them.
    pub routes: Nets,
    /// The endpoints with a relay's key, and their text with the relay's name in the new configuration.
    pub(super) relays: Vec<(String, String)>,
}

/// A section of a file before and after.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Changed<T> {
    /// The old one.
    pub from: T,
    /// The new one.
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

impl Nets {
    pub(super) fn between(from: &[IpNet], to: &[IpNet]) -> Self {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = (from.iter().copied().collect(), to.iter().copied().collect());
        Self { added: to.difference(&from).copied().collect(), removed: from.difference(&to).copied().collect() }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl Difference {
    /// The changes from one configuration to another.
    pub fn between(from: &Config, to: &Config) -> Self {
        let mut before: HashMap<PublicKey, Peer> = peers(from).map(|peer| (peer.public_key, peer)).collect();
        let mut difference = Self {
            interface: Changed { from: from.interface.clone(), to: to.interface.clone() },
            relays: relays(&[from, to]),
            ..Self::default()
        };
        let mut kept = HashSet::new();
        for peer in peers(to) {
            match before.remove(&peer.public_key) {
                None => difference.added.push(peer),
                Some(before) => {
                    kept.insert(peer.public_key);
                    let changes = before != peer && keys::all(Peer::TOLD).any(|key| key.changes(&before, &peer));
                    difference.changed.extend(changes.then_some(Changed { from: before, to: peer }));
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

    /// The changes to the allowed IPs of all peers, except changes that `self` contains as changes to peers.
    pub(super) fn other_routes(&self, from: &[IpNet], to: &Config) -> Nets {
        let all = |peers: &[Peer]| peers.iter().flat_map(|peer| peer.allowed_ips.clone()).collect::<Vec<_>>();
        let mut routes = Nets::between(from, &to.routes());
        let changed = || self.changed.iter().map(Changed::allowed_ips);
        let added: HashSet<_> = changed().flat_map(|nets| nets.added).chain(all(&self.added)).collect();
        let removed: HashSet<_> = changed().flat_map(|nets| nets.removed).chain(all(&self.removed)).collect();
        routes.added.retain(|net| !added.contains(net));
        routes.removed.retain(|net| !removed.contains(net));
        routes
    }
}

impl Changed<Peer> {
    /// The peer.
    pub fn public_key(&self) -> PublicKey {
        self.to.public_key
    }

    pub(super) fn allowed_ips(&self) -> Nets {
        Nets::between(&self.from.allowed_ips, &self.to.allowed_ips)
    }
}

/// The endpoints through peers with a name, and their text in a file.
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

/// The peers as a device has them: without a peer that has our own key, which WireGuard ignores; without host bits; and
/// with each allowed IP at one peer only, unless a routing engine decides about routes.
fn peers(config: &Config) -> impl Iterator<Item = Peer> {
    let own = config.interface.public_key();
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
