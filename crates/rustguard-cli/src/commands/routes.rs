//! `rustguard routes`: the routes of the routing engine.

use crate::{
    arguments::mesh::Routes,
    mesh::Mesh,
    one::Choice,
    output::{
        screen,
        way::milliseconds,
        words::{ago, now, table},
    },
};
use anyhow::Result;
use rustguard_device::uapi::{LearnedView, RouteView};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    net::IpAddr,
    time::Duration,
};

/// Runs `routes`.
pub(crate) fn run(arguments: &Routes) -> Result<()> {
    let interface = arguments.interface.as_deref();
    if arguments.json {
        let mesh = Mesh::ask_any(interface, Choice::Argument)?;
        let routes = mesh.view.routes.iter().map(|route| JsonRoute { route, origin_name: origin_name(route, &mesh) });
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&routes.collect::<Vec<_>>())?)?;
        return Ok(());
    }
    screen::show(arguments.watch, || {
        let mesh = Mesh::ask_any(interface, Choice::Argument)?;
        Ok(if mesh.view.engine.as_deref() == Some(MEMBERS) { prefix_table(&mesh, now()) } else { route_page(&mesh) })
    })
}

/// The name of the engine without a protocol.
const MEMBERS: &str = "members";

/// A route of `routes --json`.
#[derive(Serialize)]
struct JsonRoute<'a> {
    #[serde(flatten)]
    route: &'a RouteView,
    /// The name of the origin, if the origin is another node.
    origin_name: Option<&'a str>,
}

fn origin_name<'a>(route: &RouteView, mesh: &'a Mesh) -> Option<&'a str> {
    route.origin.as_deref().filter(|_| !route.local).and_then(|origin| mesh.name(origin))
}

fn route_page(mesh: &Mesh) -> String {
    let mut page = route_table(mesh);
    for route in &mesh.view.routes {
        let others: Vec<&str> =
            route.learned.iter().filter(|learned| learned.feasible).map(|learned| &*learned.from).collect();
        if route.local && !others.is_empty() {
            let who = others.join(", ");
            page += &format!(
                "\n{} is announced by this host and by {who} as well; this host uses its own route\n",
                route.prefix
            );
        }
        if let Some(why) = &route.kernel {
            page += &format!("\n{} is not in the kernel's table: {why}\n", route.prefix);
        }
    }
    page
}

/// The prefixes of peers, with the other members that have them.
fn prefix_table(mesh: &Mesh, now: Duration) -> String {
    let far = |learned: &LearnedView| {
        learned.round_trip_us.map(|us| format!("{} ms", milliseconds(Duration::from_micros(us))))
    };
    let row = |route: &&RouteView| {
        let holder = route.next_hops.first().cloned().unwrap_or_default();
        let (own, others): (Vec<_>, Vec<_>) = route.learned.iter().partition(|learned| learned.from == holder);
        let other = |learned: &&LearnedView| match (learned.feasible, far(learned)) {
            (false, _) => format!("{} (does not answer)", learned.from),
            (true, Some(time)) => format!("{} ({time})", learned.from),
            (true, None) => learned.from.clone(),
        };
        let silent = own.first().is_some_and(|learned| !learned.feasible);
        let time = own.first().and_then(|learned| far(learned)).unwrap_or_default();
        let since = route.since.filter(|_| !others.is_empty()).map(|since| ago(now, Duration::from_secs(since)));
        let others: Vec<_> = others.iter().map(other).collect();
        vec![
            route.prefix.to_string(),
            if silent { format!("{holder} (does not answer)") } else { holder },
            time,
            since.unwrap_or_default(),
            others.join(", "),
        ]
    };
    table(&["PREFIX", "VIA", "ROUND TRIP", "SINCE", "OTHERS"], &sorted(mesh).iter().map(row).collect::<Vec<_>>())
}

fn sorted(mesh: &Mesh) -> Vec<&RouteView> {
    let mut routes: Vec<_> = mesh.view.routes.iter().collect();
    routes.sort_by_key(|route| (matches!(route.prefix.addr(), IpAddr::V6(_)), route.prefix));
    routes
}

fn route_table(mesh: &Mesh) -> String {
    let routes = sorted(mesh);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_device::uapi::RoutingView;

    #[test]
    fn who_has_a_prefix_and_who_else() {
        let learned = |from: &str, round_trip_us, feasible| LearnedView {
            from: from.to_owned(),
            metric: 0,
            feasible,
            round_trip_us,
        };
        let route = |prefix: &str, since, learned: Vec<LearnedView>| RouteView {
            prefix: prefix.parse().unwrap(),
            local: false,
            metric: Some(0),
            origin: None,
            next_hops: vec!["office1".to_owned()],
            backup: None,
            learned,
            kernel: None,
            since,
        };
        let others = [learned("office2", Some(15_000), true), learned("office3", None, false)];
        let shared = [learned("office1", Some(12_340), true)].into_iter().chain(others).collect();
        let routes = vec![
            route("192.168.1.0/24", Some(940), shared),
            route("10.77.0.2/32", Some(3), vec![learned("office1", None, true)]),
        ];
        let view = RoutingView { engine: Some(MEMBERS.to_owned()), routes, ..RoutingView::default() };
        assert_eq!(
            prefix_table(&Mesh::new("wg0".into(), view, []), Duration::from_secs(1_000)),
            "PREFIX          VIA      ROUND TRIP  SINCE         OTHERS\n\
             10.77.0.2/32    office1\n\
             192.168.1.0/24  office1  12.3 ms     1 minute ago  office2 (15.0 ms), office3 (does not answer)\n"
        );
    }

    #[test]
    fn a_line_for_each_prefix_and_notes_below() {
        let route = |prefix: &str, via: &[&str], metric, local| RouteView {
            prefix: prefix.parse().unwrap(),
            local,
            metric,
            origin: Some("0102030405060708".into()),
            next_hops: via.iter().map(|&via| via.to_owned()).collect(),
            backup: None,
            learned: vec![],
            kernel: None,
            since: None,
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
        let learned =
            |from: &str, feasible| LearnedView { from: from.to_owned(), metric: 0, feasible, round_trip_us: None };
        shared.learned = vec![learned("echo", false), learned("g2", true)];
        let mut refused = route("10.2.0.0/16", &["b"], Some(96), false);
        refused.kernel = Some("because".to_owned());
        let routes = vec![shared, refused];
        let page = route_page(&Mesh::new("wg0".into(), RoutingView { routes, ..RoutingView::default() }, []));
        assert!(
            page.ends_with(
                "\n0.0.0.0/0 is announced by this host and by g2 as well; this host uses its own route\n\
                 \n10.2.0.0/16 is not in the kernel's table: because\n"
            ),
            "{page}"
        );
    }
}
