//! `rustguard map`: the mesh or the network as this node knows it. A distance vector protocol does not know the nodes
//! between a neighbour and a distant origin, so the map of a mesh does not show them.

mod dot;
mod network;
mod picture;

use crate::{
    arguments::mesh::{Format, Map},
    mesh::{Mesh, called},
    one::{Choice, only},
    uapi,
};
use anyhow::{Context as _, Result};
use rustguard_babel::params::{COST, METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT, METRIC_CLIENT_SILENT};
use rustguard_device::uapi::RouteView;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write as _},
};

/// Runs `map`.
pub(crate) fn run(arguments: &Map) -> Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let graph = match arguments.interface.interface.as_deref() {
        Some(interface) => graph(interface, &host)?,
        None => the_only_one(&host)?,
    };
    let text = match arguments.format {
        _ if arguments.json => serde_json::to_string_pretty(&graph)? + "\n",
        Format::Svg => picture::draw(&graph),
        Format::Dot => dot::write(&graph),
    };
    match &arguments.output {
        Some(path) => fs::write(path, text).with_context(|| format!("cannot write the map to {}", path.display())),
        None => Ok(io::stdout().write_all(text.as_bytes())?),
    }
}

/// The map of an interface.
fn graph(interface: &str, host: &str) -> Result<Graph> {
    if let Some(graph) = network::graph(interface, host)? {
        return Ok(graph);
    }
    Ok(Graph::of(&Mesh::ask(Some(interface), Choice::Option)?, host))
}

/// The map of the only interface that has one.
fn the_only_one(host: &str) -> Result<Graph> {
    let mut graphs = BTreeMap::new();
    for interface in uapi::interfaces()? {
        // Interfaces of other programs do not answer.
        if let Ok(graph) = graph(&interface, host) {
            graphs.insert(interface, graph);
        }
    }
    if graphs.is_empty() {
        return Ok(Graph::of(&Mesh::ask(None, Choice::Option)?, host));
    }
    let name = only(graphs.keys().cloned().collect(), "", "several interfaces have a map", Choice::Option)?;
    graphs.remove(&name).context("it is one of them")
}

/// The nodes and edges of the map, and the output of `--json`.
#[derive(Serialize)]
struct Graph {
    title: String,
    /// In the order of [`Kind`], then by name, so that the same mesh always gives the same map.
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

/// A node with its prefixes.
#[derive(Serialize)]
struct Node {
    #[serde(flatten)]
    kind: Kind,
    name: String,
    /// The protocol's information about the node, in words.
    detail: String,
    prefixes: Vec<String>,
}

/// The relation of a node to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Kind {
    /// This node.
    Here,
    /// A peer of this node that does not speak the protocol, or is no member of the network.
    Client,
    /// A server of the network.
    Server {
        /// Whether it is reached without another server.
        direct: bool,
        /// Whether it is reached.
        usable: bool,
    },
    /// A member of the network.
    Member {
        /// Whether it is reached without a server.
        direct: bool,
        /// Whether it was reached when there was last something to send.
        usable: bool,
    },
    /// A stock WireGuard client that another machine of the network announces.
    ClientOfServer,
    /// A router among the peers.
    Neighbour {
        /// Whether the link can be used.
        usable: bool,
    },
    /// A node beyond the neighbours.
    Further {
        /// The distance from the nearest next hop, estimated from the metric: this many links of the least cost. At
        /// least 1.
        links: u16,
    },
}

impl Kind {
    /// Whether it should be reached and is not.
    fn is_lost(self) -> bool {
        matches!(
            self,
            Self::Neighbour { usable: false } | Self::Server { usable: false, .. } | Self::Member { usable: false, .. }
        )
    }
}

/// An edge between two nodes, which are given by their indexes.
#[derive(Serialize)]
struct Edge {
    from: usize,
    to: usize,
    label: String,
    kind: EdgeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum EdgeKind {
    /// A tunnel that packets pass.
    Link,
    /// A tunnel that packets cannot pass now.
    Broken,
    /// A tunnel through a server, which passes on what it cannot read.
    Sealed,
    /// From the next hop to a node further away.
    Via,
    /// From the backup next hop to a node further away.
    Backup,
}

impl Graph {
    /// `host` is the name of this node.
    fn of(mesh: &Mesh, host: &str) -> Self {
        let view = &mesh.view;
        let mut graph =
            Self { title: format!("The mesh of {}, as {host} knows it", mesh.interface), nodes: vec![], edges: vec![] };
        let own = view
            .routes
            .iter()
            .filter(|route| route.local && !mesh.is_client(route))
            .map(|route| route.prefix.to_string());
        let id = view.router_id.clone().unwrap_or_default();
        graph.nodes.push(Node {
            kind: Kind::Here,
            name: host.to_owned(),
            detail: format!("this node, {id}"),
            prefixes: own.collect(),
        });
        graph.add_clients(mesh);
        let neighbours = graph.add_neighbours(mesh);
        graph.add_further(mesh, &neighbours);
        graph
    }

    fn add_clients(&mut self, mesh: &Mesh) {
        let mut clients = BTreeMap::<&str, (u16, Vec<String>)>::new();
        for route in mesh.view.routes.iter().filter(|route| mesh.is_client(route)) {
            for client in &route.next_hops {
                let (metric, prefixes) = clients.entry(client).or_default();
                *metric = route.metric.unwrap_or(0).max(*metric);
                prefixes.push(route.prefix.to_string());
            }
        }
        for (name, (metric, prefixes)) in clients {
            let detail = state(metric).to_owned();
            let node = Node { kind: Kind::Client, name: name.to_owned(), detail, prefixes };
            self.join(0, node, String::new(), EdgeKind::Link);
        }
    }

    /// Returns the index of each neighbour among the nodes.
    fn add_neighbours<'a>(&mut self, mesh: &'a Mesh) -> BTreeMap<&'a str, usize> {
        let mut sorted: Vec<_> = mesh.view.neighbours.iter().collect();
        sorted.sort_by_key(|neighbour| (called(neighbour), &neighbour.public_key));
        let mut places = BTreeMap::new();
        for neighbour in sorted {
            let name = called(neighbour);
            let time = neighbour.round_trip_us.map(|us| format!(", {:.1} ms", us as f64 / 1e3)).unwrap_or_default();
            let (detail, kind) = match (neighbour.cost, neighbour.heard) {
                (Some(cost), _) => (format!("cost {cost}{time}"), EdgeKind::Link),
                (None, true) => ("one way: does not hear this node".to_owned(), EdgeKind::Broken),
                (None, false) => ("silent".to_owned(), EdgeKind::Broken),
            };
            let owner = |origin: &String| mesh.name(origin);
            let owned = mesh.view.routes.iter().filter(|route| !route.local);
            let owned = owned.filter(|route| route.origin.as_ref().and_then(owner) == Some(name));
            let node = Node {
                kind: Kind::Neighbour { usable: kind == EdgeKind::Link },
                name: name.to_owned(),
                detail: detail.clone(),
                prefixes: owned.map(described).collect(),
            };
            places.insert(name, self.join(0, node, detail, kind));
        }
        places
    }

    fn add_further(&mut self, mesh: &Mesh, neighbours: &BTreeMap<&str, usize>) {
        let mut origins = BTreeMap::<&str, Origin<'_>>::new();
        for route in mesh.view.routes.iter().filter(|route| !route.local) {
            let (Some(id), Some(metric)) = (route.origin.as_deref(), route.metric) else { continue };
            if mesh.name(id).is_some_and(|name| neighbours.contains_key(name)) {
                continue;
            }
            let metric = metric - presence(metric);
            let origin = origins.entry(id).or_insert_with(|| Origin { metric, ..Origin::default() });
            origin.metric = origin.metric.min(metric);
            origin.prefixes.push(described(route));
            origin.via.extend(route.next_hops.iter().map(String::as_str));
            origin.backup.extend(route.backup.as_deref());
        }
        let cost = |name: &str| mesh.view.neighbours.iter().find(|neighbour| called(neighbour) == name)?.cost;
        let mut further: Vec<_> = origins
            .into_iter()
            .map(|(id, origin)| {
                let nearest = origin.via.iter().filter_map(|name| cost(name)).min().unwrap_or(0);
                let links = origin.metric.saturating_sub(nearest).div_ceil(COST).max(1);
                (links, mesh.name(id).unwrap_or(id), origin)
            })
            .collect();
        further.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        for (links, name, origin) in further {
            let via: Vec<_> = origin.via.iter().copied().collect();
            let detail = format!("metric {} via {}", origin.metric, via.join(", "));
            let node = Node { kind: Kind::Further { links }, name: name.to_owned(), detail, prefixes: origin.prefixes };
            let to = self.nodes.len();
            self.nodes.push(node);
            let by = |names: &BTreeSet<&str>, kind| {
                let places = names.iter().filter_map(|name| neighbours.get(name));
                places.map(|&from| Edge { from, to, label: String::new(), kind }).collect::<Vec<_>>()
            };
            let only_backup: BTreeSet<_> = origin.backup.difference(&origin.via).copied().collect();
            self.edges.extend(by(&origin.via, EdgeKind::Via));
            self.edges.extend(by(&only_backup, EdgeKind::Backup));
            for edge in self.edges.iter_mut().filter(|edge| edge.to == to && edge.kind == EdgeKind::Via) {
                edge.label = format!("metric {}", origin.metric);
            }
        }
    }

    /// Adds a node and the edge to it; returns its index.
    fn join(&mut self, from: usize, node: Node, label: String, kind: EdgeKind) -> usize {
        let to = self.nodes.len();
        self.nodes.push(node);
        self.edges.push(Edge { from, to, label, kind });
        to
    }
}

/// The part of a metric that encodes the presence of a client. The rest is the metric of the path to it.
fn presence(metric: u16) -> u16 {
    [METRIC_CLIENT_SILENT, METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT]
        .into_iter()
        .find(|&presence| metric >= presence)
        .unwrap_or(0)
}

/// The state of a client with this metric.
fn state(metric: u16) -> &'static str {
    match presence(metric) {
        METRIC_CLIENT_SILENT => "client, silent",
        METRIC_CLIENT_IDLE => "client, idle",
        _ => "client",
    }
}

/// A prefix that another node announces, with a note if it belongs to a client.
fn described(route: &RouteView) -> String {
    match route.metric.filter(|&metric| presence(metric) > 0) {
        Some(metric) => format!("{} ({})", route.prefix, state(metric)),
        None => route.prefix.to_string(),
    }
}

/// A node beyond the neighbours that announces prefixes.
#[derive(Default)]
struct Origin<'a> {
    metric: u16,
    prefixes: Vec<String>,
    via: BTreeSet<&'a str>,
    backup: BTreeSet<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::tests::mesh;

    #[test]
    fn everything_known_is_on_the_map_and_nothing_else() {
        let graph = Graph::of(&mesh(), "here");
        let nodes: Vec<_> =
            graph.nodes.iter().map(|node| (node.name.as_str(), node.kind, node.prefixes.join(" "))).collect();
        let usable = |usable| Kind::Neighbour { usable };
        assert_eq!(
            nodes,
            [
                ("here", Kind::Here, "10.0.0.1/32".to_owned()),
                ("phone", Kind::Client, "10.0.0.9/32".to_owned()),
                ("b", usable(true), "10.0.0.2/32".to_owned()),
                ("c<&>\"", usable(true), "10.0.0.3/32".to_owned()),
                ("x", usable(false), String::new()),
                ("0404040404040404", Kind::Further { links: 1 }, "10.0.0.4/32 10.4.0.0/16 fd00::4/128".to_owned()),
                ("0505050505050505", Kind::Further { links: 2 }, "10.4.4.0/24".to_owned()),
            ]
        );
        let edges: Vec<_> = graph.edges.iter().map(|edge| (edge.from, edge.to, edge.kind)).collect();
        assert_eq!(
            edges,
            [
                (0, 1, EdgeKind::Link),
                (0, 2, EdgeKind::Link),
                (0, 3, EdgeKind::Link),
                (0, 4, EdgeKind::Broken),
                (2, 5, EdgeKind::Via),
                (3, 5, EdgeKind::Backup),
                (2, 6, EdgeKind::Via),
            ]
        );
        assert_eq!(graph.nodes[2].detail, "cost 96, 12.3 ms");
        assert_eq!(graph.nodes[4].detail, "silent");
        assert_eq!(graph.nodes[5].detail, "metric 192 via b");
    }

    #[test]
    fn the_best_metric_counts_and_who_is_a_next_hop_is_no_backup() {
        let mut mesh = mesh();
        let route = crate::mesh::tests::route;
        let c = "c<&>\"";
        mesh.view.routes.push(route("10.5.5.0/24", 5, Some(280), &[c], &[(c, 96), ("b", 96)]));
        assert_eq!(mesh.view.routes.last().unwrap().backup.as_deref(), Some("b"));
        let graph = Graph::of(&mesh, "here");
        assert_eq!(graph.nodes[6].detail, "metric 280 via b, c<&>\"");
        let edges = graph.edges.iter().filter(|edge| edge.to == 6).map(|edge| (edge.from, edge.kind));
        assert_eq!(edges.collect::<Vec<_>>(), [(2, EdgeKind::Via), (3, EdgeKind::Via)]);
    }

    #[test]
    fn a_client_that_is_held_is_silent() {
        let mut mesh = mesh();
        assert_eq!(Graph::of(&mesh, "here").nodes[1].detail, "client");
        for (metric, detail) in [(METRIC_CLIENT_IDLE, "client, idle"), (METRIC_CLIENT_SILENT, "client, silent")] {
            let phone = mesh.view.routes.iter_mut().find(|route| route.next_hops == ["phone"]).unwrap();
            phone.metric = Some(metric);
            assert_eq!(Graph::of(&mesh, "here").nodes[1].detail, detail);
        }
    }

    #[test]
    fn clients_of_others_are_shown_with_who_announces_them() {
        let mut mesh = mesh();
        let route = crate::mesh::tests::route;
        for (prefix, origin, metric) in [
            ("10.9.0.1/32", 2, METRIC_CLIENT_PRESENT + 96),
            ("10.9.0.2/32", 4, METRIC_CLIENT_IDLE + 192),
            ("10.9.0.3/32", 6, METRIC_CLIENT_SILENT + 288),
        ] {
            mesh.view.routes.push(route(prefix, origin, Some(metric), &["b"], &[("b", metric - 96)]));
        }
        let graph = Graph::of(&mesh, "here");
        let shown = |text: &str| {
            graph.nodes.iter().find(|node| node.prefixes.iter().any(|prefix| prefix == text)).map(|node| &*node.name)
        };
        assert_eq!(shown("10.9.0.1/32 (client)"), Some("b"));
        assert_eq!(shown("10.9.0.2/32 (client, idle)"), Some("0404040404040404"));
        assert_eq!(shown("10.9.0.3/32 (client, silent)"), Some("0606060606060606"));
        let gateway = graph.nodes.last().unwrap();
        assert_eq!((gateway.kind, &*gateway.detail), (Kind::Further { links: 2 }, "metric 288 via b"), "the way to it");
    }

    #[test]
    fn a_node_alone_is_a_map_too() {
        let mut mesh = mesh();
        mesh.view.neighbours.clear();
        mesh.view.routes.clear();
        let graph = Graph::of(&mesh, "here");
        assert_eq!((graph.nodes.len(), graph.edges.len()), (1, 0));
        assert!(picture::draw(&graph).contains(">here</text>"));
    }

    #[test]
    fn the_same_mesh_gives_the_same_map() {
        let mut mixed = mesh();
        mixed.view.neighbours.reverse();
        let (a, b) = (Graph::of(&mesh(), "here"), Graph::of(&mixed, "here"));
        assert_eq!(picture::draw(&a), picture::draw(&b));
        assert_eq!(dot::write(&a), dot::write(&b));
    }
}
