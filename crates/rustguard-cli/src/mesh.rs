//! The mesh as this node knows it, with the names of nodes, for `routes`, `neighbours`, `trace` and `map`.

use crate::{
    one::{Choice, only},
    uapi,
};
use anyhow::{Context as _, Result, bail};
use rustguard_babel::RouterId;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{
    key::to_base64,
    uapi::{RouteView, RoutingView},
};
use rustix::process::geteuid;
use std::{collections::BTreeMap, net::IpAddr};

/// The knowledge of the routing protocol of an interface.
pub(crate) struct Mesh {
    /// The interface.
    pub(crate) interface: String,
    /// The report of the routing engine.
    pub(crate) view: RoutingView,
    /// Names of origins, by their router-ids in hexadecimal. If the router-id is derived from a key, only the derived
    /// part is the index.
    names: BTreeMap<String, String>,
}

impl Mesh {
    /// Asks an interface, or the only one that has a routing protocol.
    pub(crate) fn ask(interface: Option<&str>, choice: Choice) -> Result<Self> {
        Self::ask_engine(interface, choice, &PROTOCOL)
    }

    /// Asks an interface, or the only one where an engine decides about routes, with or without a protocol.
    pub(crate) fn ask_any(interface: Option<&str>, choice: Choice) -> Result<Self> {
        Self::ask_engine(interface, choice, &ENGINE)
    }

    fn ask_engine(interface: Option<&str>, choice: Choice, wanted: &Wanted) -> Result<Self> {
        let (interface, view) = match interface {
            Some(interface) => (interface.to_owned(), asked(interface, wanted)?),
            None => the_only_one(choice, wanted)?,
        };
        Self::named(&interface, view)
    }

    /// Adds names to the report of an interface.
    pub(crate) fn named(interface: &str, view: RoutingView) -> Result<Self> {
        let peers = uapi::get(interface)?.peers.into_iter().map(|peer| (peer.public_key, peer.name));
        Ok(Self::new(interface.to_owned(), view, peers))
    }

    /// `peers` are the configured peers of the interface. A configured name takes precedence. Other nodes, and peers
    /// without a name, have the names that they claim.
    pub(crate) fn new(
        interface: String,
        mut view: RoutingView,
        peers: impl IntoIterator<Item = (PublicKey, Option<String>)>,
    ) -> Self {
        let peers: Vec<_> = peers.into_iter().collect();
        let configured = peers.iter().filter_map(|(_, name)| name.as_deref());
        let claimed = claimed(&view, &configured.collect::<Vec<_>>());
        let mut names = BTreeMap::new();
        let mut renamed = BTreeMap::new();
        for (key, name) in peers {
            let (part, key) = (part_of_key(&key), to_base64(&key.0).to_string());
            let claim = || claimed.range(part.clone()..).next().filter(|(id, _)| id.starts_with(&part));
            let name = name.unwrap_or_else(|| {
                let name = claim().map_or_else(|| key.clone(), |(_, name)| name.clone());
                renamed.insert(key, name.clone());
                name
            });
            names.insert(part, name);
        }
        rename(&mut view, &renamed);
        // A neighbour that announces a prefix at metric 0 is its origin. This also names other implementations, whose
        // router-ids are not derived from their keys.
        for route in &view.routes {
            let (Some(origin), Some(hop)) = (&route.origin, route.next_hops.first()) else { continue };
            if route.learned.iter().any(|learned| learned.from == *hop && learned.metric == 0) {
                names.insert(origin.clone(), hop.clone());
            }
        }
        for (origin, name) in claimed {
            names.entry(origin).or_insert(name);
        }
        Self { interface, view, names }
    }

    /// The longest prefix that covers an address.
    pub(crate) fn covering(&self, address: IpAddr) -> Option<&RouteView> {
        let covering = self.view.routes.iter().filter(|route| route.prefix.contains(&address));
        covering.max_by_key(|route| route.prefix.prefix_len())
    }

    /// The name of the node with this router-id: the name of the peer, or its key, or the name that the node claims.
    pub(crate) fn name(&self, origin: &str) -> Option<&str> {
        let of_key = origin.get(..KEY_DIGITS).and_then(|part| self.names.get(part));
        of_key.or_else(|| self.names.get(origin)).map(String::as_str)
    }

    /// Whether this is the prefix of a plain WireGuard peer, which this node announces.
    pub(crate) fn is_client(&self, route: &RouteView) -> bool {
        route.local && !route.next_hops.is_empty()
    }

    /// The name of the node that has an address, if it is known: the next hop if that is a client, or else the origin
    /// of the prefix.
    pub(crate) fn who_has(&self, address: IpAddr) -> Option<&str> {
        let route = self.covering(address)?;
        if self.is_client(route) {
            return route.next_hops.first().map(String::as_str);
        }
        self.name(route.origin.as_deref()?)
    }
}

/// The names that other nodes claim, by router-id. If another node has the same name, the router-id is appended.
fn claimed(view: &RoutingView, configured: &[&str]) -> BTreeMap<String, String> {
    let same = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let others = view.names.iter().filter(|(id, _)| view.router_id.as_ref() != Some(id));
    let display = |(id, name): (&String, &String)| {
        let twice = view.names.iter().any(|(other, claim)| other != id && same(claim, name));
        let taken = twice || configured.iter().any(|configured| same(configured, name));
        (id.clone(), if taken { format!("{name}~{id}") } else { name.clone() })
    };
    others.map(display).collect()
}

/// Puts names in place of keys.
fn rename(view: &mut RoutingView, names: &BTreeMap<String, String>) {
    let change = |word: &mut String| {
        if let Some(name) = names.get(word) {
            word.clone_from(name);
        }
    };
    for route in &mut view.routes {
        route.next_hops.iter_mut().chain(&mut route.backup).for_each(change);
        route.learned.iter_mut().map(|learned| &mut learned.from).for_each(change);
    }
    for neighbour in view.neighbours.iter_mut().filter(|neighbour| neighbour.name.is_none()) {
        neighbour.name = names.get(&neighbour.public_key).cloned();
    }
}

/// The number of hexadecimal digits of a router-id that are derived from the key. The other digits are random.
const KEY_DIGITS: usize = 12;

fn part_of_key(key: &PublicKey) -> String {
    let digits: String = RouterId::of_key(key).bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..KEY_DIGITS].to_owned()
}

/// The word for a neighbour in routes: its name, or its key.
pub(crate) fn called(neighbour: &rustguard_device::uapi::NeighbourView) -> &str {
    neighbour.name.as_deref().unwrap_or(&neighbour.public_key)
}

/// The requirement of a command on an interface.
struct Wanted {
    has: fn(&RoutingView) -> bool,
    /// The name of the requirement, and the way to fulfil it.
    what: &'static str,
    remedy: &'static str,
}

const PROTOCOL: Wanted = Wanted {
    has: |view| view.router_id.is_some(),
    what: "routing protocol",
    remedy: "`Routing = babel` in its configuration turns a routing protocol on",
};

const ENGINE: Wanted = Wanted {
    has: |view| view.router_id.is_some() || view.engine.is_some(),
    what: "routing engine",
    remedy: "`Routing = babel` in its configuration turns a routing protocol on, and `Routing = members` lets several peers have \
             a prefix",
};

/// The report of the engine of an interface, with keys for peers without a name.
fn asked(interface: &str, wanted: &Wanted) -> Result<RoutingView> {
    let view = uapi::routing(interface)?;
    if !(wanted.has)(&view) {
        let Wanted { what, remedy, .. } = wanted;
        bail!(
            "{interface} has no {what}, so only the AllowedIPs of its peers decide (`rustguard show {interface}`); {remedy}"
        );
    }
    Ok(view)
}

/// The only userspace interface that fulfils the requirement.
fn the_only_one(choice: Choice, wanted: &Wanted) -> Result<(String, RoutingView)> {
    let (mut found, mut silent) = (BTreeMap::new(), false);
    for interface in uapi::interfaces()? {
        match uapi::routing(&interface) {
            Ok(view) if (wanted.has)(&view) => drop(found.insert(interface, view)),
            Ok(_) => {}
            // Interfaces of other programs do not answer.
            Err(_) => silent = true,
        }
    }
    if found.is_empty() && silent && !geteuid().is_root() {
        bail!("this user may not ask the interfaces that are up: run as root, or with sudo");
    }
    let Wanted { what, remedy, .. } = wanted;
    let name = only(
        found.keys().cloned().collect(),
        &format!("no interface that is up has a {what}; {remedy}"),
        &format!("several interfaces have a {what}"),
        choice,
    )?;
    found.remove_entry(&name).context("it is one of them")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustguard_device::uapi::{LearnedView, NeighbourView};

    /// A route as an engine reports it. `learned` has the neighbours that announce it, with their metrics.
    pub(crate) fn route(
        prefix: &str,
        origin: u8,
        metric: Option<u16>,
        next_hops: &[&str],
        learned: &[(&str, u16)],
    ) -> RouteView {
        RouteView {
            prefix: prefix.parse().unwrap(),
            local: origin == 1,
            metric,
            origin: metric.map(|_| format!("{origin:02x}").repeat(8)),
            next_hops: next_hops.iter().map(|&hop| hop.to_owned()).collect(),
            backup: learned.get(next_hops.len()).map(|(from, _)| (*from).to_owned()),
            learned: learned
                .iter()
                .map(|&(from, metric)| LearnedView {
                    from: from.to_owned(),
                    metric,
                    feasible: true,
                    round_trip_us: None,
                })
                .collect(),
            kernel: None,
            since: None,
        }
    }

    pub(crate) fn neighbour(name: &str, cost: Option<u16>, heard: bool) -> NeighbourView {
        NeighbourView {
            name: Some(name.to_owned()),
            public_key: "KEY".into(),
            endpoint: Some("192.0.2.1:51820".into()),
            heard,
            cost,
            round_trip_us: cost.map(|_| 12_340),
            routes: 3,
            wants_macs: false,
        }
    }

    /// This node (1), the neighbours b (2) and c (3), d (4) behind both, e (5) behind d, a phone, and a silent one.
    pub(crate) fn mesh() -> Mesh {
        let view = RoutingView {
            engine: Some("babel".to_owned()),
            router_id: Some("01".repeat(8)),
            neighbours: vec![
                neighbour("b", Some(96), true),
                neighbour("c<&>\"", Some(310), true),
                neighbour("x", None, false),
            ],
            routes: vec![
                route("10.0.0.1/32", 1, Some(0), &[], &[]),
                route("10.0.0.2/32", 2, Some(96), &["b"], &[("b", 0), ("c<&>\"", 200)]),
                route("10.0.0.3/32", 3, Some(310), &["c<&>\""], &[("c<&>\"", 0)]),
                route("10.0.0.4/32", 4, Some(192), &["b"], &[("b", 96), ("c<&>\"", 96)]),
                route("10.4.0.0/16", 4, Some(192), &["b"], &[("b", 96), ("c<&>\"", 96)]),
                route("10.4.4.0/24", 5, Some(288), &["b"], &[("b", 192)]),
                route("10.5.0.0/24", 5, None, &[], &[]),
                route("10.0.0.9/32", 1, Some(0), &["phone"], &[]),
                route("fd00::4/128", 4, Some(192), &["b"], &[("b", 96)]),
            ],
            names: BTreeMap::new(),
            refused: vec![],
        };
        Mesh::new("wg0".into(), view, [])
    }

    #[test]
    fn the_longest_prefix_and_its_owner() {
        let mesh = mesh();
        let covering = |address: &str| mesh.covering(address.parse().unwrap()).map(|route| route.prefix.to_string());
        assert_eq!(covering("10.4.4.1").as_deref(), Some("10.4.4.0/24"));
        assert_eq!(covering("10.4.5.1").as_deref(), Some("10.4.0.0/16"));
        assert_eq!(covering("fd00::4").as_deref(), Some("fd00::4/128"));
        assert_eq!(covering("192.0.2.1"), None);
        let who = |address: &str| mesh.who_has(address.parse().unwrap());
        assert_eq!((who("10.0.0.2"), who("10.0.0.9"), who("10.0.0.4")), (Some("b"), Some("phone"), None));
        assert_eq!(who("10.0.0.1"), None, "this node has no peer's name");
    }

    #[test]
    fn a_router_id_made_of_a_known_key_has_its_name() {
        let key = PublicKey([7; 32]);
        let id = part_of_key(&key) + "1234";
        let named = Mesh::new("wg0".into(), mesh().view, [(key, Some("far".into()))]);
        assert_eq!((named.name(&id), named.name("00")), (Some("far"), None));
        let nameless = Mesh::new("wg0".into(), mesh().view, [(key, None)]);
        assert_eq!(nameless.name(&id), Some(&**to_base64(&[7; 32])));
    }

    #[test]
    fn others_are_called_as_they_claim_unless_that_is_somebody_else() {
        let mut view = mesh().view;
        let claims = [
            ("01", "here"),
            ("04", "far"),
            ("05", "B"),
            ("06", "twin"),
            ("07", "Twin"),
            ("08", "here"),
            ("02", "liar"),
        ];
        view.names = claims.map(|(id, name)| (id.repeat(8), name.to_owned())).into();
        let (key, other) = (PublicKey([7; 32]), PublicKey([8; 32]));
        view.names.insert(part_of_key(&other) + "1234", "unnamed".into());
        view.names.insert(part_of_key(&key) + "1234", "liar".into());
        let nameless = to_base64(&other.0).to_string();
        view.routes[4].next_hops = vec![nameless.clone()];
        view.neighbours.push(NeighbourView { name: None, public_key: nameless, ..neighbour("", None, true) });
        let mesh = Mesh::new("wg0".into(), view, [(key, Some("b".into())), (other, None)]);
        let name = |id: &str| mesh.name(&id.repeat(8)).map(str::to_owned);
        assert_eq!(name("04").as_deref(), Some("far"));
        assert_eq!(name("05"), Some(format!("B~{}", "05".repeat(8))), "a peer has that name here");
        assert_eq!(name("06"), Some(format!("twin~{}", "06".repeat(8))));
        assert_eq!(name("07"), Some(format!("Twin~{}", "07".repeat(8))));
        assert_eq!(name("08"), Some(format!("here~{}", "08".repeat(8))), "this node has it");
        assert_eq!(name("02").as_deref(), Some("b"), "a neighbour with a name here");
        assert_eq!(mesh.name(&(part_of_key(&key) + "1234")), Some("b"));
        assert_eq!(mesh.name(&(part_of_key(&other) + "1234")), Some("unnamed"));
        assert_eq!((called(&mesh.view.neighbours[3]), &*mesh.view.routes[4].next_hops[0]), ("unnamed", "unnamed"));
        assert_eq!(mesh.who_has("10.0.0.4".parse().unwrap()), Some("far"));
    }

    #[test]
    fn a_client_is_no_origin() {
        let mesh = mesh();
        assert_eq!(mesh.name(&"01".repeat(8)), None);
        let clients: Vec<_> = mesh.view.routes.iter().filter(|route| mesh.is_client(route)).collect();
        assert_eq!(clients.len(), 1);
        assert_eq!(clients[0].next_hops, ["phone"]);
    }
}
