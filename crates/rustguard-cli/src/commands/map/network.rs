//! The map of a network: its servers and members, and how this machine reaches each of them.

use super::{Edge, EdgeKind, Graph, Kind, Node};
use crate::{
    commands::status,
    escape::escape,
    output::way,
    uapi::{self, Device, Peer},
};
use anyhow::Result;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::key::from_base64;
use rustguard_network::{ListedRole, Report};
use rustguard_serve::request::Status;
use std::collections::BTreeMap;

/// The map of the network of an interface; `None` for an interface of no network.
///
/// # Errors
/// The interface cannot be asked.
pub(super) fn graph(interface: &str, host: &str) -> Result<Option<Graph>> {
    if let Some(status) = status::of_server(interface)?.filter(|status| status.network.is_some()) {
        return Ok(Some(of_server(&status, &uapi::get(interface)?, host)));
    }
    // A user who may not read it gets the map of the routing protocol, or an error that says so.
    let Some(report) = Report::read(interface).ok().flatten() else { return Ok(None) };
    Ok(Some(of_member(&report, &uapi::get(interface)?, host)))
}

/// A machine of the network.
struct Machine {
    name: String,
    role: Role,
    /// Its addresses, and the prefixes behind it.
    prefixes: Vec<String>,
    public_key: Option<PublicKey>,
}

enum Role {
    Server,
    Member,
    /// The server of this name announces it; without a name, this machine does.
    Client(Option<String>),
}

fn of_member(report: &Report, device: &Device, host: &str) -> Graph {
    let own = device.public_key.map(|key| key.to_string());
    let (here, others): (Vec<_>, Vec<_>) =
        report.list.iter().partition(|listed| own.as_ref() == Some(&listed.public_key));
    let prefixes = |listed: &rustguard_network::Listed| {
        let addresses = listed.addresses.iter().map(ToString::to_string);
        addresses.chain(listed.prefixes.iter().map(ToString::to_string)).collect::<Vec<_>>()
    };
    let is_server = here.iter().any(|listed| listed.role == ListedRole::Server);
    let machines = others.into_iter().map(|listed| Machine {
        name: listed.name.clone(),
        role: match (listed.role, &listed.server) {
            (ListedRole::Server, _) => Role::Server,
            (ListedRole::Client, server) => Role::Client(server.clone()),
            _ => Role::Member,
        },
        prefixes: prefixes(listed),
        public_key: from_base64(&listed.public_key).ok().map(|key| PublicKey(*key)),
    });
    let own = Own {
        name: report.own_name.as_deref().unwrap_or(host),
        network: report.name.as_deref(),
        is_server,
        prefixes: here.into_iter().flat_map(prefixes).collect(),
    };
    build(own, machines.collect(), device)
}

fn of_server(status: &Status, device: &Device, host: &str) -> Graph {
    let machines = status.peers.iter().map(|peer| Machine {
        name: peer.label.clone().or_else(|| peer.name.clone()).unwrap_or_else(|| peer.public_key.to_string()),
        role: match (peer.server, peer.member) {
            (true, _) => Role::Server,
            (_, true) => Role::Member,
            _ => Role::Client(None),
        },
        prefixes: {
            let addresses = peer.addresses.iter().map(ToString::to_string);
            addresses.chain(peer.prefixes.iter().map(ToString::to_string)).collect()
        },
        public_key: Some(peer.public_key),
    });
    let addresses = status.pools.iter().map(|pool| pool.address.to_string());
    let own = Own {
        name: host,
        network: status.network.as_ref().map(|network| network.name.as_str()),
        is_server: true,
        prefixes: addresses.chain(status.routes.iter().map(ToString::to_string)).collect(),
    };
    build(own, machines.collect(), device)
}

/// This machine.
struct Own<'a> {
    name: &'a str,
    network: Option<&'a str>,
    is_server: bool,
    prefixes: Vec<String>,
}

/// How a machine is reached.
struct Reached {
    /// The name of the server that it is reached through.
    through: Option<String>,
    /// Whether it is reached, or was when there was last something to send; `None` before anything was sent.
    usable: Option<bool>,
    /// The way or the state, in words.
    words: String,
}

fn build(own: Own<'_>, mut machines: Vec<Machine>, device: &Device) -> Graph {
    let title = match own.network {
        Some(network) => format!("The network {network}, as {} knows it", own.name),
        None => format!("The network of {}, which has not told it yet", own.name),
    };
    let detail = if own.is_server { "this machine, server" } else { "this machine" };
    let here = Node { kind: Kind::Here, name: own.name.to_owned(), detail: detail.to_owned(), prefixes: own.prefixes };
    let mut graph = Graph { title, nodes: vec![here], edges: Vec::new() };
    let peers: BTreeMap<_, _> = device.peers.iter().map(|peer| (peer.public_key.0, peer)).collect();
    let rank = |machine: &Machine| match machine.role {
        Role::Server => 0,
        Role::Member => 1,
        Role::Client(_) => 2,
    };
    machines.sort_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    let mut edges = Vec::new();
    for machine in machines {
        let peer = machine.public_key.and_then(|key| peers.get(&key.0).copied());
        let reached = reached(&machine.role, peer, &device.peers);
        let to = graph.nodes.len();
        let (direct, usable) = (reached.through.is_none() && reached.usable.is_some(), reached.usable != Some(false));
        let (kind, role) = match machine.role {
            Role::Server => (Kind::Server { direct, usable }, "server, "),
            Role::Member => (Kind::Member { direct, usable }, ""),
            Role::Client(None) => (Kind::Client, "client, "),
            Role::Client(Some(_)) => (Kind::ClientOfServer, ""),
        };
        let line = match (reached.usable, kind) {
            (None, _) => None,
            (Some(false), _) => Some(EdgeKind::Broken),
            (_, Kind::ClientOfServer) => Some(EdgeKind::Link),
            _ if reached.through.is_some() => Some(EdgeKind::Sealed),
            _ => Some(EdgeKind::Link),
        };
        edges.extend(line.map(|line| (reached.through, to, line)));
        let detail = format!("{role}{}", reached.words);
        graph.nodes.push(Node { kind, name: machine.name, detail, prefixes: machine.prefixes });
    }
    for (through, to, kind) in edges {
        let is_it = |node: &Node| through.as_ref() == Some(&node.name);
        let from = graph.nodes.iter().position(is_it).filter(|from| *from != to).unwrap_or(0);
        graph.edges.push(Edge { from, to, label: String::new(), kind });
    }
    graph
}

fn reached(role: &Role, peer: Option<&Peer>, peers: &[Peer]) -> Reached {
    let Some(peer) = peer else {
        return match role {
            Role::Client(Some(server)) => {
                Reached { through: Some(server.clone()), usable: Some(true), words: format!("client of {server}") }
            }
            _ => Reached { through: None, usable: None, words: "waits for the key of the pair".to_owned() },
        };
    };
    let through = peer.through.map(|relay| way::called(&relay.to_string(), peers));
    let state = peer.connection.as_ref().map_or("", |connection| connection.state.as_str());
    let usable = match state {
        "online" | "idle" => Some(true),
        // A session begins only when there is something to send.
        "never connected" | "" => None,
        _ => Some(false),
    };
    let words = match usable {
        None => "idle: nothing was said yet".to_owned(),
        Some(false) => escape(state).into_owned(),
        Some(true) => {
            let way = way::words(peer, peers).unwrap_or_default();
            way::round_trip(peer).map_or(way.clone(), |time| format!("{way}, {time}"))
        }
    };
    // The way of a session that was never made is not known.
    Reached { through: through.filter(|_| usable.is_some()), usable, words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_device::uapi::ConnectionView;
    use serde_json::json;

    fn key(byte: u8) -> String {
        PublicKey([byte; 32]).to_string()
    }

    fn peer(byte: u8, name: &str, state: &str) -> Peer {
        let connection = ConnectionView { state: state.to_owned(), since: None, attempts: None };
        let name = Some(name.to_owned());
        let endpoint = Some("192.0.2.7:51820".to_owned());
        Peer { name, endpoint, connection: Some(connection), ..Peer::new(PublicKey([byte; 32])) }
    }

    fn graph() -> Graph {
        let report: Report = serde_json::from_value(json!({
            "key": "the key", "name": "home", "own_name": "laptop", "standing": "member", "number": 7, "members": 7,
            "list": [
                { "name": "desk", "public_key": key(2), "addresses": ["10.150.0.3"], "role": "member", "prefixes": ["192.168.1.0/24"] },
                { "name": "hub", "public_key": key(3), "addresses": ["10.150.0.1"], "role": "server" },
                { "name": "laptop", "public_key": key(1), "addresses": ["10.150.0.2"], "role": "member" },
                { "name": "nas", "public_key": key(7), "addresses": ["10.150.0.7"], "role": "member" },
                { "name": "old", "public_key": key(8), "addresses": ["10.150.0.8"], "role": "member" },
                { "name": "phone", "public_key": key(4), "addresses": ["10.150.0.4"], "role": "client", "server": "hub" },
                { "name": "tv", "public_key": key(5), "addresses": ["10.150.0.5"], "role": "member" },
            ],
        }))
        .unwrap();
        let relayed = Peer { through: Some(PublicKey([3; 32])), ..peer(5, "tv", "online") };
        let peers = vec![
            peer(2, "desk", "online"),
            peer(3, "hub", "online"),
            relayed,
            peer(7, "nas", "never connected"),
            peer(8, "old", "offline"),
        ];
        let mut device = Device { peers, ..Device::default() };
        device.public_key = Some(PublicKey([9; 32]));
        let mut report = report;
        report.list[2].public_key = device.public_key.unwrap().to_string();
        of_member(&report, &device, "host")
    }

    #[test]
    fn a_member_sees_who_is_direct_who_is_sealed_through_a_server_and_who_is_idle() {
        let graph = graph();
        assert_eq!(graph.title, "The network home, as laptop knows it");
        let nodes: Vec<_> = graph.nodes.iter().map(|node| (&*node.name, node.kind, &*node.detail)).collect();
        let member = |direct, usable| Kind::Member { direct, usable };
        assert_eq!(
            nodes,
            [
                ("laptop", Kind::Here, "this machine"),
                ("hub", Kind::Server { direct: true, usable: true }, "server, direct 192.0.2.7:51820"),
                ("desk", member(true, true), "direct 192.0.2.7:51820"),
                ("nas", member(false, true), "idle: nothing was said yet"),
                ("old", member(true, false), "offline"),
                ("tv", member(false, true), "through hub"),
                ("phone", Kind::ClientOfServer, "client of hub"),
            ]
        );
        assert_eq!(graph.nodes[2].prefixes, ["10.150.0.3", "192.168.1.0/24"]);
        let edges: Vec<_> = graph.edges.iter().map(|edge| (edge.from, edge.to, edge.kind)).collect();
        assert_eq!(
            edges,
            [
                (0, 1, EdgeKind::Link),
                (0, 2, EdgeKind::Link),
                (0, 4, EdgeKind::Broken),
                (1, 5, EdgeKind::Sealed),
                (1, 6, EdgeKind::Link),
            ]
        );
    }

    #[test]
    fn it_is_drawn() {
        let graph = graph();
        let svg = super::super::picture::draw(&graph);
        assert!(svg.contains(">tv</text>") && svg.contains("sealed, through a server"), "{svg}");
        assert!(super::super::dot::write(&graph).contains("n1 -- n5 [label=\"\", style=dashed];"));
    }
}
