//! The keys of `[Interface]`.

use super::{Holds, Kind, Order, Reader, Restart, Section, Told, joined, list, nets, switch};
use crate::conf::{
    Config, Diagnostic, Interface, NodeName, Pin, Routing, Table,
    piece::{Piece, SECRET_LENGTH},
    value::{self, Accepted, Dns},
};
use ipnet::IpNet;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{Change, MAX_PUBLIC_ENDPOINTS, SourceCheck, Update, key::to_base64, tun::udp::MAX_PORTS};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

type Key = super::Key<Interface>;

impl Section for Interface {
    type Update = Update;

    const LISTED: Order<Self> = &[IDENTITY, PORT, LISTEN, MARK, HOST, HOOKS, SAVE, GREETING, PATHS, ROUTING, NETWORK];
    const PRINTED: Order<Self> = &[HOST, SAVE, GREETING, PATHS, ROUTING, NETWORK, HOOKS, LISTEN, PORT, MARK, IDENTITY];
    const TOLD: Order<Self> = &[IDENTITY, HOST, PORT, LISTEN, MARK, ROUTING, HOOKS, PATHS, GREETING, NETWORK, SAVE];
    const RESTARTED: Order<Self> =
        &[PORT, PATHS, LISTEN, NETWORK, IDENTITY, ROUTING, HOST, MARK, HOOKS, GREETING, SAVE];

    fn empty() -> Self {
        Self::default()
    }
}

const NEXT_UP: &str = "counts from the next `up` on";
const AT_THE_END: &str = "runs at the end of the tunnel";

const CHANGES: fn(bool, &Config, &Config) -> bool = |changes, _, _| changes;
/// Without a routing protocol its settings have no effect.
const CHANGES_WITH_BABEL: fn(bool, &Config, &Config) -> bool =
    |changes, from, _| changes && from.interface.routing.learns();
const SPEAKER: &[Restart] = &[(CHANGES_WITH_BABEL, "the Babel speaker gets it when it starts")];
const TABLES: &str = "the routes that Babel has learned are in the tables of the start";

const IDENTITY: &[Key] = &[Key::new("PrivateKey", Kind::One, private_key, |i| {
    i.private_key.iter().map(|key| to_base64(&Zeroizing::new(key.to_bytes()))).collect()
})
.of_wg()
.holds(Holds::Secret)
.told(Told::Hidden)
// Secrets cannot be compared directly.
.same(|one, other| one.public_key() == other.public_key())
.note(|_| Some("another identity: all sessions end, and the peers need the new public key"))
.settle(|update, _, to| update.private_key = Change::set_or_remove(to.private_key.clone()))
.restart(&[(
    // A member of a network changes its key while it runs. The speaker keeps its identity until the next start.
    |changes, from, to| CHANGES_WITH_BABEL(changes, from, to) && from.interface.network.is_none(),
    "the identity of the Babel speaker is made of it",
)])];

const PORT: &[Key] =
    &[Key::new("ListenPort", Kind::OneList, listen_port, |i| list(i.listen_port.iter().chain(&i.more_listen_ports)))
        .of_wg()
        .told(Told::Words(&[
            ("ListenPort", |i| i.listen_port.map_or_else(|| "any".to_owned(), |port| port.to_string())),
            ("ListenPort", |i| match &i.more_listen_ports[..] {
                [] => "no further ports".to_owned(),
                ports => format!("further {}", joined(ports)),
            }),
        ]))
        .note(|to| to.listen_port.is_none().then_some("the present port stays"))
        .restart(&[(
            |changes, from, to| {
                changes && [from, to].iter().any(|config| !config.interface.more_listen_ports.is_empty())
            },
            "several ports are bound when the tunnel starts",
        )])];

const LISTEN: &[Key] = &[Key::new("ListenAddress", Kind::List, listen_address, |i| list(&i.listen_addresses))
    .told(Told::Values("all"))
    .restart(&[(CHANGES, "the sockets get their addresses when the tunnel starts")])];

const MARK: &[Key] = &[Key::new(
    "FwMark",
    Kind::One,
    |i, r| i.fwmark = r.one(value::fwmark),
    // 0 means no mark, as a missing line does.
    |i| list(i.fwmark.filter(|mark| *mark != 0).map(|mark| format!("{mark:#x}"))),
)
.of_wg()
.told(Told::Words(&[("FwMark", |i| match i.fwmark {
    None => "automatic".to_owned(),
    Some(0) => "off".to_owned(),
    Some(mark) => format!("{mark:#x}"),
})]))
.same(|one, other| one.fwmark.unwrap_or(0) == other.fwmark.unwrap_or(0))
.restart(&[(|changes, from, to| CHANGES_WITH_BABEL(changes, from, to) && from.has_default(), TABLES)])];

const HOST: &[Key] = &[
    Key::new("Address", Kind::List, address, |i| list(&i.addresses))
        .told(Told::Nets(|i| &i.addresses))
        .settle(announce)
        .restart(&[
            (other_first_address, "the Babel speaker uses the first IPv4 address as its own"),
            (
                |changes, from, to| CHANGES_WITH_BABEL(changes, from, to) && from.has_default(),
                "the guard of a learned default route protects the addresses of the start",
            ),
        ]),
    Key::new("DNS", Kind::List, dns, |i| {
        list(i.dns.iter().map(ToString::to_string).chain(i.dns_search.iter().cloned()))
    })
    .told(Told::Words(&[("DNS", |i| joined(&i.dns)), ("DNS search domains", |i| joined(&i.dns_search))])),
    Key::new("MTU", Kind::One, mtu, |i| list(i.mtu)).told(Told::Values("automatic")),
    Key::new("Table", Kind::One, table, |i| {
        list(match i.table {
            Table::Auto => None,
            Table::Off => Some("off".to_owned()),
            Table::Number(number) => Some(number.to_string()),
        })
    })
    .told(Told::Values("auto"))
    .restart(&[(CHANGES_WITH_BABEL, TABLES)]),
];

const HOOKS: &[Key] = &[
    Key::new("PreUp", Kind::Lines, |i, r| i.pre_up.extend(r.command()), |i| list(&i.pre_up))
        .told(Told::Hidden)
        .note(|_| Some(NEXT_UP)),
    Key::new("PostUp", Kind::Lines, |i, r| i.post_up.extend(r.command()), |i| list(&i.post_up))
        .told(Told::Hidden)
        .note(|_| Some(NEXT_UP)),
    Key::new("PreDown", Kind::Lines, |i, r| i.pre_down.extend(r.command()), |i| list(&i.pre_down))
        .told(Told::Hidden)
        .note(|_| Some(AT_THE_END)),
    Key::new("PostDown", Kind::Lines, |i, r| i.post_down.extend(r.command()), |i| list(&i.post_down))
        .told(Told::Hidden)
        .note(|_| Some(AT_THE_END)),
];

const SAVE: &[Key] = &[Key::new(
    "SaveConfig",
    Kind::One,
    |i, r| i.save_config = r.one(value::boolean).unwrap_or(false),
    |i| list(i.save_config.then_some(true)),
)
.told(Told::Values("false"))];

const GREETING: &[Key] = &[Key::new(
    "HandshakeOnUp",
    Kind::One,
    |i, r| i.handshake_on_up = r.one(value::boolean),
    |i| list(i.handshake_on_up),
)
.told(Told::Values("true"))
.note(|_| Some(NEXT_UP))];

const PATHS: &[Key] = &[
    Key::new("Forward", Kind::One, |i, r| i.forward = r.one(value::switch), |i| switch(i.forward))
        .told(Told::Values("off"))
        .settle(|update, _, to| update.forward = Some(to.forward.unwrap_or(false))),
    Key::new("Standby", Kind::One, |i, r| i.standby = r.one(value::switch), |i| switch(i.standby))
        .told(Told::Values("off"))
        .restart(&[(|changes, _, _| changes, "what a standby keeps is decided when the tunnel starts")]),
    Key::new("PublicEndpoint", Kind::List, public_endpoint, |i| list(&i.public_endpoints))
        .told(Told::Values("none"))
        .settle(|update, _, to| update.public_endpoints = Some(to.public_endpoints.clone())),
    Key::new("PortMapping", Kind::One, |i, r| i.port_mapping = r.one(value::switch), |i| switch(i.port_mapping))
        .told(Told::Values("on"))
        .settle(|update, _, to| update.port_mapping = Some(to.port_mapping.unwrap_or(true))),
    Key::new("Nat", Kind::One, |i, r| i.nat = r.one(value::switch), |i| switch(i.nat))
        .told(Told::Values("off"))
        .restart(&[(translates_otherwise, "the rules of address translation are made when the tunnel starts")]),
];

const ROUTING: &[Key] = &[
    Key::new(
        "Routing",
        Kind::One,
        |i, r| i.routing = r.one(value::routing).unwrap_or_default(),
        |i| list((i.routing != own_routing(i)).then_some(i.routing)),
    )
    .told(Told::Words(&[("Routing", |i| i.routing.to_string())]))
    .restart(&[(
        // A network brings an engine with it.
        |changes, from, to| changes && from.interface.network == to.interface.network,
        "the routing protocol is chosen when the tunnel starts",
    )]),
    Key::new(
        "Announce",
        Kind::Set,
        |i, r| i.announce.extend(r.list(value::net).iter().map(|(net, _)| net.trunc())),
        |i| list(&i.announce),
    )
    .needs_babel()
    .told(Told::Nets(|i| &i.announce))
    .settle(announce),
    Key::new(
        "Redistribute",
        Kind::Set,
        |i, r| i.redistribute.extend(r.list(value::redistribute).into_iter().map(|(which, _)| which)),
        |i| list(&i.redistribute),
    )
    .needs_babel()
    .restart(SPEAKER),
    Key::new("Pin", Kind::Set, pins, |i| {
        list(i.pins.iter().map(|Pin { prefix, key }| format!("{prefix} {}", *to_base64(&key.0))))
    })
    .phrases()
    .holds(Holds::PublicKeys)
    .needs_babel()
    .restart(SPEAKER),
    Key::new(
        "SourceCheck",
        Kind::One,
        |i, r| i.source_check = r.one(value::source_check).unwrap_or_default(),
        |i| list((i.source_check != SourceCheck::Enforce).then(|| i.source_check.name())),
    )
    .needs_babel()
    .told(Told::Values("enforce"))
    .restart(&[(CHANGES_WITH_BABEL, "the workers get it when they start")]),
    Key::new(
        "NodeName",
        Kind::One,
        |i, r| i.node_name = r.one(value::node_name).unwrap_or_default(),
        |i| {
            list(match &i.node_name {
                NodeName::Host => None,
                NodeName::Off => Some("off"),
                NodeName::Is(name) => Some(name.as_str()),
            })
        },
    )
    .needs_babel()
    .told(Told::Values("of the host"))
    .restart(SPEAKER),
];

const NETWORK: &[Key] = &[
    Key::new("Network", Kind::One, |i, r| i.network = r.one(value::network), |i| list(i.network))
        .told(Told::Values("none"))
        .restart(&[(CHANGES, "the tunnel takes part in a network from its start on")]),
    Key::new("Accept", Kind::Set, accept, |i| list(i.accept.words()))
        .told(Told::Values("nothing"))
        .same(|one, other| accepted(one) == accepted(other)),
];

fn private_key(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    let Some(bytes) = reader.one(value::key) else { return };
    if *bytes == [0; 32] {
        reader.error(reader.line.value, "PrivateKey is all zeros, which is no key", "`rustguard genkey` makes one");
    }
    interface.private_key = Some(StaticSecret::from_bytes(*bytes));
}

fn listen_port(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    let Interface { listen_port, more_listen_ports, .. } = interface;
    (*listen_port, *more_listen_ports) = (None, Vec::new());
    for (port, item) in reader.list(value::listen_port) {
        let Some(first) = *listen_port else {
            *listen_port = Some(port);
            continue;
        };
        let (problem, help) = if port == 0 || first == 0 {
            ("has 0 among several ports".to_owned(), "0 lets the system choose the only port: give numbers for several")
        } else if port == first || more_listen_ports.contains(&port) {
            (format!("has the port {port} twice"), "give each port once")
        } else if more_listen_ports.len() + 1 == MAX_PORTS {
            (format!("has more than {MAX_PORTS} ports"), "leave some of them out")
        } else {
            more_listen_ports.push(port);
            continue;
        };
        reader.error(item, format!("ListenPort {problem}"), help);
    }
}

fn listen_address(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    for (address, item) in reader.list(value::listen_address) {
        let first = interface.listen_addresses.iter().find(|first| first.is_ipv4() == address.is_ipv4());
        if let Some(first) = first {
            let version = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let message = format!("ListenAddress has a second {version} address after {first}: `{}`", item.str());
            let help = "a tunnel listens at one address of each IP version, or at all addresses without ListenAddress";
            reader.error(item, message, help);
        } else {
            interface.listen_addresses.push(address);
        }
    }
}

fn address(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    for (net, item) in reader.list(value::net) {
        let at = interface.addresses.iter().position(|other| *other == net);
        if let Some(first) = at.and_then(|at| reader.places.items("Address").nth(at)) {
            let message = format!("Address `{}` is given twice, first in line {}", item.str(), first.line);
            reader.error(item, message, "remove one of them");
        } else {
            interface.addresses.push(net);
            reader.note(item);
        }
    }
}

/// The addresses of this host, and the networks behind it.
fn announce(update: &mut Update, _: &Interface, to: &Interface) {
    let addresses = to.addresses.iter().map(|net| IpNet::from(net.addr()));
    update.announce = Some(addresses.chain(to.announce.iter().copied()).collect());
}

/// The first IPv4 address is removed, or there was none.
fn other_first_address(changes: bool, from: &Config, to: &Config) -> bool {
    let first = |config: &Config| config.interface.addresses.iter().find(|net| net.addr().is_ipv4()).copied();
    let stays = first(from).is_some_and(|first| to.interface.addresses.contains(&first));
    CHANGES_WITH_BABEL(changes, from, to) && !stays && first(from) != first(to)
}

fn dns(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    for (entry, item) in reader.list(value::dns) {
        match entry {
            Dns::Server(server) => {
                interface.dns.push(server);
                reader.note(item);
            }
            Dns::Search(domain) => interface.dns_search.push(domain),
        }
    }
}

fn mtu(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    if !reader.is_empty() {
        interface.mtu = reader.one(|text| value::number(text, 576..=65_535));
        reader.note(reader.line.value);
    }
}

fn table(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    if !reader.is_empty() {
        interface.table = reader.one(value::table).unwrap_or(Table::Auto);
    }
}

fn public_endpoint(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    for (endpoint, item) in reader.list(value::endpoint) {
        if interface.public_endpoints.len() == MAX_PUBLIC_ENDPOINTS {
            let message = format!("PublicEndpoint has more than {MAX_PUBLIC_ENDPOINTS}: `{}`", item.str());
            reader.error(item, message, "the addresses of this host's interfaces are found without it");
        } else {
            interface.public_endpoints.push(endpoint);
            reader.note(item);
        }
    }
}

fn translates_otherwise(changes: bool, from: &Config, to: &Config) -> bool {
    let networks = |Config { interface, .. }: &Config| [nets(&interface.announce), nets(&interface.addresses)];
    changes || from.interface.nat == Some(true) && networks(from) != networks(to)
}

/// The routing without a `Routing` line.
fn own_routing(interface: &Interface) -> Routing {
    match interface.network {
        Some(_) => Routing::of_member(interface.forward == Some(true)),
        None => Routing::Static,
    }
}

fn pins(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    reader.items().for_each(|item| pin(interface, reader, item));
}

/// `PREFIX KEY`.
fn pin<'a>(interface: &mut Interface, reader: &mut Reader<'a, '_>, item: Piece<'a>) {
    let words: Vec<_> = item.words(char::is_whitespace).collect();
    // Prefixes are shorter than keys. Longer text in the place of a prefix is not repeated, because it may be a
    // secret key.
    let is_prefix = |word: Piece<'_>| word.str().len() < SECRET_LENGTH || word.str().contains(':');
    let (prefix, key) = match words[..] {
        [prefix, key] if is_prefix(prefix) => (prefix, key),
        _ => {
            let help =
                "for example `Pin = 10.77.0.5/32 PUBLICKEY`; more of them after commas, or in lines of their own";
            return reader.error(item, "Pin must be a prefix and a public key", help);
        }
    };
    let net = reader.value(prefix, value::net);
    let bytes = reader.value(key, value::key);
    if bytes.as_ref().is_some_and(|bytes| **bytes == [0; 32]) {
        reader.diagnostics.push(Diagnostic::error(key.span(), "Pin has a key that is all zeros, which is no key"));
    }
    let (Some(net), Some(bytes)) = (net, bytes) else { return };
    let pin = Pin { prefix: net.trunc(), key: PublicKey(*bytes) };
    let at = interface.pins.iter().position(|other| other.prefix == pin.prefix);
    match at.and_then(|at| Some((interface.pins[at], reader.places.items("Pin").nth(at)?))) {
        Some((other, first)) if other.key != pin.key => {
            let message = format!("Pin gives {} to another key than line {} does", pin.prefix, first.line);
            reader.error(item, message, "a prefix has one origin; remove one of them, or pin parts of the prefix");
        }
        Some((_, first)) => {
            let message = format!("Pin of {} is given twice, first in line {}", pin.prefix, first.line);
            reader.warning(item, message, "remove one of them");
        }
        None => {
            interface.pins.push(pin);
            reader.note(item);
        }
    }
}

fn accept(interface: &mut Interface, reader: &mut Reader<'_, '_>) {
    let accept = &mut interface.accept;
    for (accepted, _) in reader.list(value::accept) {
        match accepted {
            Accepted::Dns => accept.dns = true,
            Accepted::DefaultRoute => accept.default_route = true,
            Accepted::Routes => accept.routes = true,
            Accepted::Prefix(net) if accept.prefixes.contains(&net) => {}
            Accepted::Prefix(net) => accept.prefixes.push(net),
        }
    }
}

/// The order of prefixes has no meaning.
fn accepted(interface: &Interface) -> BTreeSet<String> {
    interface.accept.words().collect()
}
