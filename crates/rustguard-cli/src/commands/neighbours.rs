//! `rustguard neighbours`: the routers with which the routing protocol exchanges packets.

use crate::{
    arguments::mesh::Routes,
    mesh::Mesh,
    one::Choice,
    output::{screen, words::table},
};
use anyhow::Result;
use rustguard_device::uapi::{NeighbourView, RoutingView};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

/// Runs `neighbours`.
pub(crate) fn run(arguments: &Routes) -> Result<()> {
    let interface = arguments.interface.as_deref();
    if arguments.json {
        let view = Mesh::ask(interface, Choice::Argument)?.view;
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&JsonNeighbours::of(&view))?)?;
        return Ok(());
    }
    screen::show(arguments.watch, || Ok(neighbour_page(&Mesh::ask(interface, Choice::Argument)?.view)))
}

/// `neighbours --json`.
#[derive(Serialize)]
struct JsonNeighbours<'a> {
    /// This node's own identifier.
    router_id: Option<&'a str>,
    neighbours: &'a [NeighbourView],
    /// The number of announcements that were refused, by reason.
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
            (None, true) if neighbour.wants_macs => "one way: wants MACs (RFC 8967)".to_owned(),
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

    #[test]
    fn a_line_for_each_neighbour_and_what_was_refused() {
        let neighbour = |name: &str, cost, heard| NeighbourView {
            name: Some(name.into()),
            public_key: "KEY".into(),
            endpoint: Some("192.0.2.1:1".into()),
            heard,
            cost,
            round_trip_us: Some(1_540),
            routes: 3,
            wants_macs: false,
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
