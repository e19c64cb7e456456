//! A configuration as keys and values, in the order and with the spelling in which a file has them.

use super::{Config, Interface, NodeName, Peer, Pin, Routing, Table, peer_names::PeerNames};
use rustguard_core::routing::Role;
use rustguard_device::{SourceCheck, key::to_base64};
use std::collections::{HashMap, HashSet};
use zeroize::Zeroizing;

/// How a file holds the values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One value. If a file has several lines, the last one counts.
    One,
    /// A list, in one line or spread over several, whose order has a meaning.
    List,
    /// A list whose order has none.
    Set,
    /// A line for each value, in their order.
    Lines,
}

/// A key with its values. A key without a value is not in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: &'static str,
    pub(super) kind: Kind,
    pub(super) values: Vec<Zeroizing<String>>,
}

/// All keys of `[Interface]`, in the order of wg-quick's `save`: wg-quick's own first, then those of `wg showconf`.
pub(super) fn of_interface(interface: &Interface) -> Vec<Entry> {
    let dns = interface.dns.iter().map(ToString::to_string).chain(interface.dns_search.iter().cloned());
    let table = match interface.table {
        Table::Auto => None,
        Table::Off => Some("off".to_owned()),
        Table::Number(number) => Some(number.to_string()),
    };
    // What it is without a line.
    let own_routing = match interface.network {
        Some(_) => Routing::of_member(interface.forward == Some(true)),
        None => Routing::Static,
    };
    let pins = interface.pins.iter().map(|Pin { prefix, key }| format!("{prefix} {}", *to_base64(&key.0)));
    let check = interface.source_check;
    let node_name = match &interface.node_name {
        NodeName::Host => None,
        NodeName::Off => Some("off"),
        NodeName::Is(name) => Some(name.as_str()),
    };
    let private_key = interface.private_key.as_ref().map(|key| to_base64(&Zeroizing::new(key.to_bytes())));
    vec![
        list("Address", Kind::List, &interface.addresses),
        list("DNS", Kind::List, dns),
        one("MTU", interface.mtu),
        one("Table", table),
        one("SaveConfig", interface.save_config.then_some(true)),
        one("HandshakeOnUp", interface.handshake_on_up),
        one("Forward", interface.forward.map(on_or_off)),
        list("PublicEndpoint", Kind::List, &interface.public_endpoints),
        one("PortMapping", interface.port_mapping.map(on_or_off)),
        one("Nat", interface.nat.map(on_or_off)),
        one("Routing", Some(interface.routing).filter(|routing| *routing != own_routing)),
        list("Announce", Kind::Set, &interface.announce),
        list("Redistribute", Kind::Set, &interface.redistribute),
        list("Pin", Kind::Set, pins),
        one("SourceCheck", (check != SourceCheck::Enforce).then(|| check.name())),
        one("NodeName", node_name),
        one("Network", interface.network),
        list("Accept", Kind::Set, interface.accept.words()),
        list("PreUp", Kind::Lines, &interface.pre_up),
        list("PostUp", Kind::Lines, &interface.post_up),
        list("PreDown", Kind::Lines, &interface.pre_down),
        list("PostDown", Kind::Lines, &interface.post_down),
        list("ListenAddress", Kind::List, &interface.listen_addresses),
        list("ListenPort", Kind::List, interface.listen_port.iter().chain(&interface.more_listen_ports)),
        // 0 means no mark, as a missing line does.
        one("FwMark", interface.fwmark.filter(|mark| *mark != 0).map(|mark| format!("{mark:#x}"))),
        secret("PrivateKey", private_key),
    ]
}

/// All keys of a `[Peer]`, in the order of `wg showconf`.
pub(super) fn of_peer(peer: &Peer) -> Vec<Entry> {
    let role = peer.role.map(|role| match role {
        // In a file, what a network says beyond these is not for its user to say.
        Role::Router | Role::Server => "router",
        Role::Client | Role::Member => "client",
    });
    vec![
        secret("PublicKey", Some(to_base64(&peer.public_key.0))),
        secret("PresharedKey", peer.preshared_key.as_ref().map(|key| to_base64(key.as_bytes()))),
        list("AllowedIPs", Kind::Set, &peer.allowed_ips),
        list("Endpoint", Kind::List, &peer.endpoints),
        one("Direct", peer.direct.map(on_or_off)),
        one("Parity", peer.parity),
        one("Role", role),
        one("PersistentKeepalive", peer.persistent_keepalive.map(|interval| interval.as_secs())),
    ]
}

/// [`of_peer`], with the names of relays in place of their keys.
pub(super) fn of_peer_with_names(peer: &Peer, names: &PeerNames<'_>) -> Vec<Entry> {
    let mut entries = of_peer(peer);
    for entry in entries.iter_mut().filter(|entry| entry.key == "Endpoint") {
        for value in &mut entry.values {
            *value = Zeroizing::new(names.written(value).into_owned());
        }
    }
    entries
}

impl Entry {
    /// Whether both say the same.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        if self.kind != Kind::Set {
            return self.values == other.values;
        }
        self.set() == other.set()
    }

    /// The values without their order.
    pub(super) fn set(&self) -> HashSet<&str> {
        self.values.iter().map(|value| value.as_str()).collect()
    }
}

/// Whether two configurations mean the same. The order of peers, and of lists that are sets, does not matter.
pub(super) fn same(one: &Config, other: &Config) -> bool {
    let agree = |these: &[Entry], those: &[Entry]| these.iter().zip(those).all(|(this, that)| this.agrees(that));
    let others: HashMap<_, _> = other.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let same_peer = |peer: &Peer| {
        others.get(&peer.public_key).is_some_and(|that| that.name == peer.name && agree(&of_peer(peer), &of_peer(that)))
    };
    agree(&of_interface(&one.interface), &of_interface(&other.interface))
        && one.peers.len() == other.peers.len()
        && one.peers.iter().all(same_peer)
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn one(key: &'static str, value: Option<impl ToString>) -> Entry {
    list(key, Kind::One, value)
}

fn secret(key: &'static str, value: Option<Zeroizing<String>>) -> Entry {
    Entry { key, kind: Kind::One, values: value.into_iter().collect() }
}

fn list(key: &'static str, kind: Kind, values: impl IntoIterator<Item = impl ToString>) -> Entry {
    Entry { key, kind, values: values.into_iter().map(|value| Zeroizing::new(value.to_string())).collect() }
}
