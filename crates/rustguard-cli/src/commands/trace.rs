//! `rustguard trace`: the decision of this node for an address, and the hops on the path to it.

use crate::{
    arguments::mesh::Trace,
    echo::{self, Answer, Kind},
    mesh::Mesh,
    one::Choice,
    output::words::table,
    process::runtime,
};
use anyhow::{Result, bail};
use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use rustguard_device::uapi::RouteView;
use serde_json::json;
use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
};

/// Runs `trace`.
pub(crate) fn run(arguments: &Trace) -> Result<()> {
    let mesh = Mesh::ask(arguments.interface.interface.as_deref(), Choice::Option)?;
    let to = arguments.address;
    let Some(route) = mesh.covering(to) else {
        bail!(
            "no prefix that {} knows contains {to}; a node has to announce one (`Address` or `Announce` in its configuration); \
             `rustguard routes {}` shows all prefixes",
            mesh.interface,
            mesh.interface
        )
    };
    let mine = route.local && !mesh.is_client(route);
    let mut out = io::stdout().lock();
    if !arguments.json {
        write!(out, "{}", plan(&mesh, to, route))?;
        // The host's own routes are additional information. An error in reading them does not end the command.
        if let Ok(Some(other)) = elsewhere(&mesh.interface, to)
            && !mine
        {
            writeln!(
                out,
                "  but           this host's routes send {to} to {other}; the echo requests below use {}",
                mesh.interface
            )?;
        }
    }
    let mut hops: Vec<Option<Answer>> = Vec::new();
    // Echo requests are pointless for an address of this host and for a prefix without a route.
    if !route.next_hops.is_empty() {
        if !arguments.json {
            writeln!(out)?;
        }
        echo::path(&mesh.interface, to, |hop, answer| {
            // Silent hops are shown as soon as a later hop answers.
            if answer.is_some() && !arguments.json {
                let silent = hops.iter().rev().take_while(|answer| answer.is_none()).count();
                let silent = u8::try_from(silent).unwrap_or(hop);
                for (hop, answer) in (hop - silent..hop).map(|hop| (hop, None)).chain([(hop, answer)]) {
                    writeln!(out, "{}", line(&mesh, hop, answer))?;
                }
                out.flush()?;
            }
            hops.push(answer);
            Ok(())
        })?;
        if !arguments.json && hops.last().is_some_and(Option::is_none) {
            let answered = hops.iter().rposition(Option::is_some).map_or(0, |index| index + 1);
            writeln!(out, "{:>2}  * no answer up to hop {}", answered + 1, hops.len())?;
        }
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document(&mesh, to, route, &hops))?)?;
    } else if let Some(advice) = advice(to, route, &hops) {
        write!(out, "\n{advice}")?;
    }
    Ok(())
}

/// Describes the decision of this node.
fn plan(mesh: &Mesh, to: IpAddr, route: &RouteView) -> String {
    let mut text = format!("{}: {to} is in {}\n", mesh.interface, route.prefix);
    let mut row = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<13} {value}");
    };
    let hops = || if route.next_hops.len() == 1 { "next hop" } else { "next hops" };
    match (route.local, route.next_hops.is_empty()) {
        (true, true) => row("this host", "has the address and announces it"),
        (false, true) => row("out of reach", "no node announces a route to it any more"),
        (true, false) => row("client", &format!("{}, a peer of this host", route.next_hops.join(", "))),
        (false, false) => row(hops(), &route.next_hops.join(", ")),
    }
    if let Some(backup) = &route.backup {
        row("backup", backup);
    }
    if let Some(metric) = route.metric.filter(|_| !route.local || mesh.is_client(route)) {
        row("metric", &metric.to_string());
    }
    if let Some(origin) = route.origin.as_deref().filter(|_| !route.local) {
        match mesh.name(origin) {
            Some(name) => row("origin", &format!("{name} ({origin})")),
            None => row("origin", origin),
        }
    }
    if !route.learned.is_empty() {
        let rows = route.learned.iter().map(|learned| {
            let usable = if learned.feasible { "" } else { "not used: could be a loop" };
            vec![format!("  {}", learned.from), learned.metric.to_string(), usable.to_owned()]
        });
        text += &table(&["  ANNOUNCED BY", "METRIC", ""], &rows.collect::<Vec<_>>());
    }
    text
}

/// The line of a hop, in the style of traceroute.
fn line(mesh: &Mesh, hop: u8, answer: Option<Answer>) -> String {
    let Some(answer) = answer else { return format!("{hop:>2}  *") };
    let name = mesh.who_has(answer.from).map(|name| format!(" ({name})")).unwrap_or_default();
    let who = format!("{}{name}", answer.from);
    let why = match answer.kind {
        Kind::Unreachable(code) => format!("  unreachable: {}", reason(answer.from, code)),
        Kind::Reached | Kind::Hop => String::new(),
    };
    format!("{hop:>2}  {who:<32} {:>8.2} ms{why}", answer.round_trip.as_secs_f64() * 1e3)
}

/// The words for the codes of Destination Unreachable (RFC 792, RFC 1812 §5.2.7.1, RFC 4443 §3.1).
fn reason(from: IpAddr, code: u8) -> String {
    match (from, code) {
        (IpAddr::V4(_), 0) | (IpAddr::V6(_), 0) => "no route".into(),
        (IpAddr::V4(_), 1) | (IpAddr::V6(_), 3) => "the host does not answer".into(),
        (IpAddr::V4(_), 9 | 10 | 13) | (IpAddr::V6(_), 1) => "forbidden by a filter".into(),
        _ => format!("code {code}"),
    }
}

/// Advice about hops that did not answer.
fn advice(to: IpAddr, route: &RouteView, hops: &[Option<Answer>]) -> Option<String> {
    // An answer "unreachable" includes its reason already.
    if matches!(hops.last(), Some(Some(Answer { kind: Kind::Unreachable(_), .. }))) {
        return None;
    }
    let reached = matches!(hops.last(), Some(Some(_)));
    let silent = hops.contains(&None);
    let switch = if to.is_ipv4() { "net.ipv4.ip_forward=1" } else { "net.ipv6.conf.all.forwarding=1" };
    match (reached, silent, hops.iter().any(Option::is_some)) {
        _ if hops.is_empty() => None,
        (true, true, _) => Some(format!(
            "A hop with * forwards packets, but its host does not answer. `sysctl {switch}` there makes it answer.\n"
        )),
        (false, true, true) => Some(format!(
            "{to} did not answer. It may be down, or it or a filter before it ignores echo requests. Look next at the last hop with \
             an answer. `sysctl {switch}` makes the other hops answer.\n"
        )),
        (false, true, false) if route.local => Some(format!(
            "{} did not answer. It may be down, or it ignores echo requests. `rustguard show` says when its last handshake was.\n",
            route.next_hops.join(", ")
        )),
        (false, true, false) => Some(format!(
            "No hop answered. `rustguard neighbours` shows whether the next hop works. `sysctl {switch}` makes hops answer.\n"
        )),
        _ => None,
    }
}

fn document(mesh: &Mesh, to: IpAddr, route: &RouteView, hops: &[Option<Answer>]) -> serde_json::Value {
    let hop = |(index, answer): (usize, &Option<Answer>)| {
        let kind = answer.map(|answer| match answer.kind {
            Kind::Reached => "reached",
            Kind::Hop => "hop",
            Kind::Unreachable(_) => "unreachable",
        });
        json!({
            "hop": index + 1,
            "address": answer.map(|answer| answer.from),
            "name": answer.and_then(|answer| mesh.who_has(answer.from)),
            "round_trip_us": answer.map(|answer| u64::try_from(answer.round_trip.as_micros()).unwrap_or(u64::MAX)),
            "answer": kind,
        })
    };
    json!({
        "interface": mesh.interface,
        "address": to,
        "route": route,
        "origin_name": route.origin.as_deref().and_then(|origin| mesh.name(origin)),
        "hops": hops.iter().enumerate().map(hop).collect::<Vec<_>>(),
    })
}

/// The interface that the host's own routes choose, if that is another one than `interface`.
fn elsewhere(interface: &str, to: IpAddr) -> Result<Option<String>> {
    runtime()?.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let mut question = RouteMessage::default();
        let (family, bits, address) = match to {
            IpAddr::V4(to) => (AddressFamily::Inet, 32, RouteAddress::Inet(to)),
            IpAddr::V6(to) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(to)),
        };
        question.header.address_family = family;
        question.header.destination_prefix_length = bits;
        question.attributes.push(RouteAttribute::Destination(address));
        let routes: Vec<RouteMessage> = handle.route().get(question).execute().try_collect().await?;
        let index = routes.iter().flat_map(|route| &route.attributes).find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        let Some(index) = index else { return Ok(None) };
        let name = crate::netlink::links::name(&handle, index).await?;
        Ok((name != interface).then_some(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::tests::mesh;
    use std::time::Duration;

    fn planned(address: &str) -> String {
        let mesh = mesh();
        let to = address.parse().unwrap();
        plan(&mesh, to, mesh.covering(to).unwrap())
    }

    #[test]
    fn what_this_node_would_do() {
        assert_eq!(
            planned("10.0.0.4"),
            "wg0: 10.0.0.4 is in 10.0.0.4/32\n\
             \x20 next hop      b\n\
             \x20 backup        c<&>\"\n\
             \x20 metric        192\n\
             \x20 origin        0404040404040404\n\
             \x20 ANNOUNCED BY  METRIC\n\
             \x20 b             96\n\
             \x20 c<&>\"         96\n"
        );
        assert!(planned("10.0.0.2").contains("origin        b (0202020202020202)"));
        assert!(planned("10.0.0.1").contains("this host     has the address and announces it"));
        assert!(planned("10.5.0.1").contains("no node announces"));
        assert!(planned("10.0.0.9").contains("client        phone, a peer of this host"));
    }

    fn answer(from: &str, kind: Kind) -> Option<Answer> {
        Some(Answer { from: from.parse().unwrap(), round_trip: Duration::from_micros(1_234), kind })
    }

    #[test]
    fn hops_have_names() {
        let mesh = mesh();
        assert_eq!(line(&mesh, 1, None), " 1  *");
        assert_eq!(line(&mesh, 2, answer("10.0.0.2", Kind::Hop)), " 2  10.0.0.2 (b)                         1.23 ms");
        assert!(
            line(&mesh, 3, answer("10.9.9.9", Kind::Unreachable(13)))
                .ends_with("ms  unreachable: forbidden by a filter")
        );
        assert!(line(&mesh, 3, answer("fd00::1", Kind::Unreachable(9))).ends_with("code 9"));
    }

    #[test]
    fn advice_fits_what_was_seen() {
        let to = "10.0.0.4".parse().unwrap();
        let (hop, end) = (answer("10.0.0.2", Kind::Hop), answer("10.0.0.4", Kind::Reached));
        let mesh = mesh();
        let advice = |to, hops: &[_]| advice(to, mesh.covering(to).unwrap(), hops);
        assert_eq!(advice(to, &[]), None);
        assert_eq!(advice(to, &[hop, end]), None);
        assert_eq!(advice(to, &[None, answer("10.0.0.2", Kind::Unreachable(1))]), None);
        assert!(advice(to, &[None, end]).unwrap().contains("ip_forward=1"));
        assert!(advice(to, &[hop, None]).unwrap().contains("did not answer"));
        assert!(advice("10.0.0.9".parse().unwrap(), &[None]).unwrap().starts_with("phone did not answer"));
        assert!(advice("fd00::4".parse().unwrap(), &[None]).unwrap().contains("conf.all.forwarding=1"));
    }

    #[test]
    fn programs_get_the_same() {
        let mesh = mesh();
        let to = "10.0.0.4".parse().unwrap();
        let hops = [None, answer("10.0.0.2", Kind::Hop)];
        let json = document(&mesh, to, mesh.covering(to).unwrap(), &hops);
        assert_eq!(json["route"]["next_hops"][0], "b");
        assert_eq!(
            json["hops"][0],
            json!({"hop": 1, "address": null, "name": null, "round_trip_us": null, "answer": null})
        );
        assert_eq!(
            json["hops"][1],
            json!({"hop": 2, "address": "10.0.0.2", "name": "b", "round_trip_us": 1234, "answer": "hop"})
        );
    }
}
