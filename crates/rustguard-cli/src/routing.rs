//! `routes` and `neighbours`, and how a tunnel gets its routing protocol.

use crate::{cli::Routes, mesh::Mesh, uapi, words::table};
use anyhow::{Result, bail};
use ipnet::IpNet;
use rustguard_babel::{Babel, Config, Name, Pin, RouterId, Start};
use rustguard_device::{
    Builder, Relay,
    conf::{self, NodeName},
    host::HostConfig,
    uapi::{NeighbourView, RouteView, RoutingView},
};
use rustguard_serve::Folder;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    net::IpAddr,
    time::Duration,
};

/// Gives the tunnel a Babel speaker: it announces the interface's addresses and what `Announce` says, and what it learns goes to
/// the tables of the host's set-up.
pub(crate) fn babel(builder: Builder, config: &conf::Interface, host: &HostConfig, relay: bool) -> Result<Builder> {
    let Some(key) = &config.private_key else {
        bail!("Routing = babel takes the PrivateKey in the file: the addresses of the protocol are made of it")
    };
    let folder = Folder::open(&host.interface)?;
    let start = folder.routing_state()?.map_or(Start::First, Start::Kept);
    let address_v4 = config.addresses.iter().find_map(|net| match net {
        IpNet::V4(net) => Some(net.addr()),
        IpNet::V6(_) => None,
    });
    let name = match &config.node_name {
        NodeName::Host => host_name(&rustix::system::uname().nodename().to_string_lossy()),
        NodeName::Off => None,
        NodeName::Is(name) => Name::new(name.as_bytes()),
    };
    let pins = config.pins.iter().map(|pin| Pin { prefix: pin.prefix, origin: RouterId::of_key(&pin.key) }).collect();
    let engine =
        Babel::new(Config { address_v4, pins, start, name, ..Config::new(key.public_key()) }, &mut rand::rng());
    let addresses = config.addresses.iter().map(|net| IpNet::from(net.addr()));
    let mut builder = builder
        .routing(engine)
        .source_check(config.source_check)
        .routing_state(move |state| {
            if let Err(error) = folder.set_routing_state(state) {
                tracing::warn!("{error}");
            }
        })
        .announce(addresses.chain(config.announce.iter().copied()))
        .redistribute(config.redistribute.iter().copied());
    if let Some(tables) = host.learned_tables() {
        builder = builder.routing_tables(tables);
    }
    Ok(if relay { builder.relay(Relay::Routed) } else { builder })
}

/// The first label of a host name, where other nodes can be told that.
fn host_name(host: &str) -> Option<Name> {
    let label = host.split('.').next().filter(|&label| label != "localhost")?;
    Name::new(label.as_bytes())
}

/// `rustguard routes`.
pub(crate) fn routes(arguments: &Routes) -> Result<()> {
    let json = |view: &RoutingView, mesh: &Mesh| {
        let routes = view.routes.iter().map(|route| JsonRoute { route, origin_name: origin_name(route, mesh) });
        serde_json::to_string_pretty(&routes.collect::<Vec<_>>())
    };
    show(arguments, json, route_page)
}

/// `rustguard neighbours`.
pub(crate) fn neighbours(arguments: &Routes) -> Result<()> {
    let json = |view: &RoutingView, _: &Mesh| serde_json::to_string_pretty(&JsonNeighbours::of(view));
    show(arguments, json, |mesh| neighbour_page(&mesh.view))
}

/// A route of `routes --json`.
#[derive(Serialize)]
struct JsonRoute<'a> {
    #[serde(flatten)]
    route: &'a RouteView,
    /// What its origin is called, if that is another node.
    origin_name: Option<&'a str>,
}

fn origin_name<'a>(route: &RouteView, mesh: &'a Mesh) -> Option<&'a str> {
    route.origin.as_deref().filter(|_| !route.local).and_then(|origin| mesh.name(origin))
}

/// `neighbours --json`.
#[derive(Serialize)]
struct JsonNeighbours<'a> {
    /// This node's own identifier.
    router_id: Option<&'a str>,
    neighbours: &'a [NeighbourView],
    /// What was passed over, by reason.
    refused: BTreeMap<&'a str, u64>,
}

impl<'a> JsonNeighbours<'a> {
    fn of(view: &'a RoutingView) -> Self {
        Self {
            router_id: view.router_id.as_deref(),
            neighbours: &view.neighbours,
            refused: view.refused.iter().map(|(reason, count)| (&**reason, *count)).collect(),
        }
    }
}

fn show(
    arguments: &Routes,
    json: impl Fn(&RoutingView, &Mesh) -> serde_json::Result<String>,
    page: impl Fn(&Mesh) -> String,
) -> Result<()> {
    loop {
        let view = uapi::routing(&arguments.interface)?;
        if view == RoutingView::default() {
            bail!(
                "{name} has no routing protocol, its peers' AllowedIPs alone decide: rustguard show {name} has them; \
                 `Routing = babel` in its file makes it learn routes",
                name = arguments.interface
            );
        }
        let mesh = Mesh::named(&arguments.interface, view.clone())?;
        let mut out = io::stdout().lock();
        if arguments.json {
            writeln!(out, "{}", json(&view, &mesh)?)?;
            return Ok(());
        }
        if !arguments.watch {
            write!(out, "{}", page(&mesh))?;
            return Ok(());
        }
        if out.is_terminal() {
            write!(out, "\x1b[H{}\x1b[J", page(&mesh).replace('\n', "\x1b[K\n"))?;
        } else {
            writeln!(out, "{}", page(&mesh))?;
        }
        out.flush()?;
        drop(out);
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn route_page(mesh: &Mesh) -> String {
    let mut page = route_table(mesh);
    for route in &mesh.view.routes {
        let others: Vec<&str> =
            route.learned.iter().filter(|learned| learned.feasible).map(|learned| &*learned.from).collect();
        if route.local && !others.is_empty() {
            let who = others.join(", ");
            page += &format!(
                "\n{} is announced by this host, which uses its own route to it, and by {who} as well\n",
                route.prefix
            );
        }
        if let Some(why) = &route.kernel {
            page += &format!("\n{} is not in the kernel's table: {why}\n", route.prefix);
        }
    }
    page
}

fn route_table(mesh: &Mesh) -> String {
    let mut routes: Vec<_> = mesh.view.routes.iter().collect();
    routes.sort_by_key(|route| (matches!(route.prefix.addr(), IpAddr::V6(_)), route.prefix));
    let row = |route: &&RouteView| {
        let via = match (&*route.next_hops, route.local) {
            ([], true) => "this host".to_owned(),
            ([], false) => "nobody".to_owned(),
            (hops, _) => hops.join(", "),
        };
        let metric = route.metric.map_or_else(|| "out of reach".to_owned(), |metric| metric.to_string());
        let backup = route.backup.clone().unwrap_or_default();
        let origin = match (origin_name(route, mesh), route.origin.as_deref()) {
            (Some(name), Some(origin)) => format!("{name} ({origin})"),
            (_, origin) => origin.unwrap_or_default().to_owned(),
        };
        vec![route.prefix.to_string(), via, metric, origin, backup]
    };
    table(&["PREFIX", "VIA", "METRIC", "ORIGIN", "BACKUP"], &routes.iter().map(row).collect::<Vec<_>>())
}

fn neighbour_page(view: &RoutingView) -> String {
    let mut page = neighbour_table(&view.neighbours);
    if !view.refused.is_empty() {
        let refused: Vec<String> = view.refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        page += &format!("\nrefused: {}\n", refused.join(", "));
    }
    page
}

fn neighbour_table(neighbours: &[NeighbourView]) -> String {
    let row = |neighbour: &NeighbourView| {
        let cost = match (neighbour.cost, neighbour.heard) {
            (Some(cost), _) => cost.to_string(),
            (None, true) => "one way".to_owned(),
            (None, false) => "silent".to_owned(),
        };
        let round_trip = neighbour.round_trip_us.map_or_else(String::new, |us| format!("{:.1} ms", us as f64 / 1e3));
        vec![
            neighbour.name.clone().unwrap_or_else(|| neighbour.public_key.clone()),
            cost,
            round_trip,
            neighbour.routes.to_string(),
            neighbour.endpoint.clone().unwrap_or_default(),
        ]
    };
    table(&["NEIGHBOUR", "COST", "ROUND TRIP", "PREFIXES", "ENDPOINT"], &neighbours.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_device::uapi::LearnedView;

    #[test]
    fn tables() {
        let route = |prefix: &str, via: &[&str], metric, local| RouteView {
            prefix: prefix.parse().unwrap(),
            local,
            metric,
            origin: Some("0102030405060708".into()),
            next_hops: via.iter().map(|&via| via.to_owned()).collect(),
            backup: None,
            learned: vec![],
            kernel: None,
        };
        let far = RouteView { origin: Some("04".repeat(8)), ..route("10.3.0.0/16", &["b"], Some(192), false) };
        let routes = vec![
            far,
            route("fd00::/64", &["b", "c"], Some(352), false),
            route("10.2.0.0/16", &[], None, false),
            route("10.1.0.1/32", &[], Some(0), true),
        ];
        let names = [("04".repeat(8), "far".to_owned())].into();
        let mesh = Mesh::new("wg0".into(), RoutingView { routes, names, ..RoutingView::default() }, []);
        assert_eq!(
            route_table(&mesh),
            "PREFIX       VIA        METRIC        ORIGIN                  BACKUP\n\
             10.1.0.1/32  this host  0             0102030405060708\n\
             10.2.0.0/16  nobody     out of reach  0102030405060708\n\
             10.3.0.0/16  b          192           far (0404040404040404)\n\
             fd00::/64    b, c       352           0102030405060708\n"
        );
        let mut shared = route("0.0.0.0/0", &[], Some(0), true);
        let learned = |from: &str, feasible| LearnedView { from: from.to_owned(), metric: 0, feasible };
        shared.learned = vec![learned("echo", false), learned("g2", true)];
        let mut refused = route("10.2.0.0/16", &["b"], Some(96), false);
        refused.kernel = Some("because".to_owned());
        let routes = vec![shared, refused];
        let page = route_page(&Mesh::new("wg0".into(), RoutingView { routes, ..RoutingView::default() }, []));
        assert!(
            page.ends_with(
                "\n0.0.0.0/0 is announced by this host, which uses its own route to it, and by g2 as well\n\
                 \n10.2.0.0/16 is not in the kernel's table: because\n"
            ),
            "{page}"
        );
        let host = |name: &str| host_name(name).map(|name| name.as_str().to_owned());
        assert_eq!((host("gw-1.example.com"), host("localhost"), host("(none)")), (Some("gw-1".into()), None, None));
        let neighbour = |name: &str, cost, heard| NeighbourView {
            name: Some(name.into()),
            public_key: "KEY".into(),
            endpoint: Some("192.0.2.1:1".into()),
            heard,
            cost,
            round_trip_us: Some(1_540),
            routes: 3,
        };
        assert_eq!(
            neighbour_table(&[neighbour("a", Some(96), true), neighbour("b", None, true), neighbour("c", None, false)]),
            "NEIGHBOUR  COST     ROUND TRIP  PREFIXES  ENDPOINT\n\
             a          96       1.5 ms      3         192.0.2.1:1\n\
             b          one way  1.5 ms      3         192.0.2.1:1\n\
             c          silent   1.5 ms      3         192.0.2.1:1\n"
        );
        let mut view = RoutingView { neighbours: vec![neighbour("a", Some(96), true)], ..RoutingView::default() };
        assert_eq!(neighbour_page(&view), neighbour_table(&view.neighbours), "nothing was refused");
        view.refused = vec![("martian".into(), 2), ("outside_allowed_ips".into(), 1)];
        assert_eq!(
            neighbour_page(&view),
            neighbour_table(&view.neighbours) + "\nrefused: martian 2, outside_allowed_ips 1\n"
        );
        let json = serde_json::to_value(JsonNeighbours::of(&view)).unwrap();
        assert_eq!((&json["refused"]["martian"], &json["neighbours"][0]["cost"]), (&2.into(), &96.into()));
    }
}
