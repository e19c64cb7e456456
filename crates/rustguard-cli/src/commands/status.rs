//! `rustguard status`: the state of a running `serve`, or of any other tunnel.

mod member;
mod tunnel;

use crate::{
    arguments::enrolment::Status as Arguments,
    escape::escape,
    one,
    output::{
        colour::Palette,
        columns::field,
        peers::{Before, PeerRow, Rates, list},
        screen, way,
        words::{UNEXPECTED_ANSWER, ago, now, span},
    },
    process::runtime,
    uapi,
};
use anyhow::{Result, bail};
use rustguard_device::interface::check_name;
use rustguard_quick::host::{self, Gateway, Obstacle};
use rustguard_serve::{
    AskError, Reach, ask, is_served,
    request::{Answer, NetworkView, PeerView, PoolView, Request, StandbyView, Status},
    shown_number,
};
use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write as _},
    time::Duration,
};

/// The most members without the last roster that are named. At a restart, a large network has thousands of them for a
/// moment.
const LAGGING: usize = 8;

/// Runs `status`.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let interface = &interface(arguments)?;
    if arguments.json {
        let json = match ask_status(interface)? {
            Some(status) => serde_json::to_string_pretty(&status)?,
            None => tunnel::json(interface)?,
        };
        writeln!(io::stdout(), "{json}")?;
        return Ok(());
    }
    let mut before = Before::default();
    let palette = Palette::of(&io::stdout());
    // The host is asked once. Its firewall may have thousands of rules.
    let runtime = runtime()?;
    let obstacles = match ask_status(interface)? {
        Some(status) => runtime.block_on(obstacles(&status)),
        None => Vec::new(),
    };
    screen::show(arguments.watch, || match ask_status(interface)? {
        Some(status) => {
            let rows = rows_with_ways(&status, interface);
            let rates = before.rates(&rows);
            Ok(page(&status, &obstacles, &rows, &rates, (screen::width(), screen::height()), palette))
        }
        None => tunnel::page(interface, &mut before, (screen::width(), screen::height()), palette),
    })
}

/// The given interface, or the one that is served, or else the only tunnel.
fn interface(arguments: &Arguments) -> Result<String> {
    if let Some(name) = &arguments.name {
        check_name(name)?;
        if !is_served(name) && !uapi::interfaces()?.contains(name) {
            bail!(
                "{name} is not up: `rustguard up {name}` starts the tunnel of a file, and `rustguard serve --interface {name}` a server"
            );
        }
        return Ok(name.clone());
    }
    let served = one::served_or_default(&arguments.interface)?;
    let is_chosen = arguments.interface.interface.is_some() || is_served(&served);
    if is_chosen {
        return Ok(served);
    }
    if uapi::interfaces()?.is_empty() {
        bail!(
            "no tunnel is up, and nobody serves {served}: `rustguard up NAME` starts the tunnel of a file, and `rustguard serve` a network"
        );
    }
    one::tunnel(None)
}

/// The state of the `serve` of an interface; `None` where none runs.
pub(crate) fn of_server(interface: &str) -> Result<Option<Status>> {
    if is_served(interface) { ask_status(interface) } else { Ok(None) }
}

/// The state of a `serve`; `None` for another tunnel.
fn ask_status(interface: &str) -> Result<Option<Status>> {
    match ask(interface, &Request::Status) {
        Ok(Answer::Status(status)) => Ok(Some(*status)),
        Ok(_) => bail!(UNEXPECTED_ANSWER),
        Err(AskError::NotServed { .. }) if uapi::interfaces()?.iter().any(|name| name == interface) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The obstacles between joined machines and the networks behind this host. Empty if the host cannot be asked.
pub(crate) async fn obstacles(status: &Status) -> Vec<Obstacle> {
    let pools = status.pools.iter().map(|pool| pool.prefix).collect();
    let gateway = Gateway { pools, networks: status.routes.clone() };
    host::obstacles(&status.interface, &gateway, status.nat).await.unwrap_or_default()
}

/// The state of a `serve` for people.
fn page(
    status: &Status,
    obstacles: &[Obstacle],
    rows: &[PeerRow],
    rates: &Rates,
    (width, height): (usize, Option<usize>),
    palette: Palette,
) -> String {
    let mut text = format!("{}: {}\n", palette.good("interface").bold(), palette.good(&status.interface));
    let mut line = |key: &str, value: &str| text += &field(key, value, width, palette);
    line("public key", &status.public_key.to_string());
    match &status.endpoint {
        Some(endpoint) => match Reach::of(endpoint) {
            Some(reach) => line("reached at", &format!("{endpoint}; {reach}")),
            None => line("reached at", endpoint),
        },
        None => line("listening port", &status.port.to_string()),
    }
    if let Some(network) = &status.network {
        line("network", &format!("{}, with the key {}", network.name, network.key));
        line("roster", &roster(network));
        line("policy", &policy(network));
        if let Some(versions) = versions(&status.peers) {
            line("versions", &versions);
        }
        network.standbys.iter().for_each(|it| line("standby", &standby(it)));
        if let Some(problem) = &network.problem {
            line("problem", &format!("members are not told of the latest changes: {problem}"));
        }
    }
    if let Some(store) = &status.store {
        line("store", &format!("{}, up to record {}", store.store, store.revision));
        if let Some(problem) = &store.problem {
            let began = store.since.map(|since| ago(now(), Duration::from_secs(since).min(now())));
            let began = began.map_or_else(String::new, |began| format!(" (it began {began})"));
            line("problem", &format!("nothing can be decided{began}, and everything else goes on: {problem}"));
        }
    }
    for pool in &status.pools {
        // For an IPv6 /64, the share in use is of no interest.
        let of = if pool.capacity <= 1 << 24 { format!(" of {}", pool.capacity) } else { String::new() };
        let full = pool.leased as u64 >= pool.capacity;
        let full = if full { "; full: remove peers, or serve a larger pool that contains it" } else { "" };
        let PoolView { prefix, leased, address, .. } = pool;
        line("pool", &format!("{prefix} ({leased}{of} leased; this machine is {address}{full})"));
    }
    for route in &status.routes {
        let nat = if status.nat { " (with an address of this machine)" } else { "" };
        line("route", &format!("{route}{nat}"));
    }
    for obstacle in obstacles {
        line(if obstacle.is_certain() { "problem" } else { "note" }, &obstacle.to_string());
    }
    if status.isolate {
        line("isolated", "peers cannot reach each other");
    }
    match &status.window {
        None => line("window", "closed; `rustguard open` opens it"),
        Some(window) => {
            let approve = if window.approve { ", with approval" } else { "" };
            let left = format!("{} left, {} guesses", span(window.seconds_left), window.attempts_left);
            line("window", &format!("open for a {}{approve}: {left}", window.secret));
        }
    }
    for waiting in &status.waiting {
        let name = escape(waiting.name.as_deref().unwrap_or("a machine without a name"));
        line("waits for approval", &format!("{} {name}, at {}", waiting.code, waiting.source));
    }
    if status.usable_invites > 0 {
        line("invites", &format!("{} can be used; `rustguard invite ls`", status.usable_invites));
    }
    let counters: Vec<_> =
        status.counters.iter().map(|counter| format!("{} {}", counter.count, counter.name)).collect();
    if !counters.is_empty() {
        line("since the start", &counters.join(", "));
    }
    if !rows.is_empty() {
        text.push('\n');
        let height = height.map(|height| height.saturating_sub(text.lines().count()));
        text += &list(rows, "ADDRESS", rates, (width, height), palette);
    }
    text
}

/// A standby, and how current its copy of this server's state is.
fn standby(standby: &StandbyView) -> String {
    let name = &standby.name;
    match (standby.current, standby.stored) {
        (true, _) => format!("{name} has the present state of this server"),
        (false, Some(made)) => {
            let made = ago(now(), Duration::from_secs(made).min(now()));
            format!("{name} has the state of {made}, and not the present one; is it connected?")
        }
        (false, None) => {
            format!("{name} has not said yet which state it has; is it up, with `Standby = on` in its file?")
        }
    }
}

fn roster(network: &NetworkView) -> String {
    let Some(issued) = network.issued else { return "none was issued yet".to_owned() };
    let issued = ago(now(), Duration::from_secs(issued));
    let clients = match network.clients {
        0 => String::new(),
        1 => " and 1 client".to_owned(),
        clients => format!(" and {clients} clients"),
    };
    let members = if network.members == 1 { "1 member" } else { &format!("{} members", network.members) };
    let lagging = match network.lagging.split_at(network.lagging.len().min(LAGGING)) {
        ([], _) => String::new(),
        (names, []) => format!("; not yet known to {}", names.join(", ")),
        (names, more) => format!("; not yet known to {} and {} more", names.join(", "), more.len()),
    };
    format!("number {}, issued {issued}: {members}{clients}{lagging}", shown_number(network.roster))
}

/// The versions of the members' programs. The members with a rare version are named. `None` if no member has reported a
/// version.
fn versions(peers: &[PeerView]) -> Option<String> {
    const NAMED: usize = 3;
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for peer in peers.iter().filter(|peer| peer.member) {
        let name = peer.label.as_deref().or(peer.name.as_deref()).unwrap_or("a member");
        by_version.entry(peer.version.as_deref().unwrap_or_default()).or_default().push(name);
    }
    let of_version = |(version, names): (&str, Vec<&str>)| {
        let version = if version.is_empty() { "not known" } else { version };
        let who = if names.len() <= NAMED { names.join(", ") } else { format!("{} members", names.len()) };
        format!("{} ({})", escape(version), escape(&who))
    };
    let is_known = by_version.keys().any(|version| !version.is_empty());
    is_known.then(|| by_version.into_iter().rev().map(of_version).collect::<Vec<_>>().join(", "))
}

/// The policy, in numbers.
fn policy(network: &NetworkView) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match network.policy {
        None => "none: everybody may talk to everybody".to_owned(),
        Some(policy) => format!("{}, {}", count(policy.rules, "rule"), count(policy.tests, "test")),
    }
}

/// The peers of a `serve`, with the way to each as the device reports it.
fn rows_with_ways(status: &Status, interface: &str) -> Vec<PeerRow> {
    let mut rows = rows(&status.peers);
    // Without the device, the rows have only data of the service.
    let peers = uapi::get(interface).map(|device| device.peers).unwrap_or_default();
    let known: HashMap<_, _> = peers.iter().map(|peer| (peer.public_key, peer)).collect();
    for row in &mut rows {
        if let Some(peer) = known.get(&row.public_key) {
            row.way = way::words(peer, &peers).or_else(|| row.way.take());
            row.round_trip = way::round_trip(peer);
            row.not_direct = way::not_direct(peer).map(str::to_owned);
        }
    }
    rows
}

/// The peers of a `serve` for [`list`].
pub(crate) fn rows(peers: &[PeerView]) -> Vec<PeerRow> {
    let row = |peer: &PeerView| {
        let mut words = peer.tags.clone();
        words.extend(peer.server.then(|| "server".to_owned()));
        words.extend(peer.ephemeral.then(|| "ephemeral".to_owned()));
        let prefixes = peer.prefixes.iter().map(ToString::to_string);
        PeerRow {
            public_key: peer.public_key,
            // Members know it by its name in the network.
            name: peer.label.clone().or_else(|| peer.name.clone()),
            connection: Some(peer.connection.clone()),
            last_handshake: peer.last_handshake,
            problem: peer.problem.as_ref().map(|problem| problem.text.clone()),
            addresses: peer.addresses.iter().map(ToString::to_string).chain(prefixes).collect(),
            way: peer.endpoint.map(|endpoint| way::direct(&endpoint.to_string(), Some(&peer.connection.state))),
            round_trip: None,
            not_direct: None,
            waiting: waiting(peer, peers),
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
            tag: words.join(", "),
            joined_by: peer.origin.to_string(),
            server: peer.server,
        }
    };
    peers.iter().map(row).collect()
}

/// The prefixes that a member announces without admission, with the command that admits them.
fn waiting(peer: &PeerView, all: &[PeerView]) -> Option<String> {
    let prefixes: Vec<_> = peer.waiting.iter().map(ToString::to_string).collect();
    if prefixes.is_empty() {
        return None;
    }
    // Several peers may have the same name; an address belongs to one peer.
    let named =
        peer.name.as_ref().filter(|name| all.iter().filter(|other| other.name.as_ref() == Some(name)).count() == 1);
    let who = named.cloned().or_else(|| peer.addresses.first().map(ToString::to_string))?;
    let is_default = peer.waiting.iter().any(|net| net.prefix_len() == 0);
    let consent = if is_default { " --default-route" } else { "" };
    let command = format!("rustguard peer allow {who} {}{consent}", prefixes.join(" "));
    Some(format!("announces {}, which nobody has admitted: `{command}`", prefixes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_serve::request::{NetworkKey, PublicKey};
    use serde_json::json;

    #[test]
    fn versions_are_told_with_those_that_have_them() {
        let peer = |name: &str, member: bool, version: Option<&str>| -> PeerView {
            serde_json::from_value(json!({
                "name": name, "public_key": PublicKey([1; 32]).to_string(), "addresses": [], "state": "active", "origin": "window",
                "tags": [], "ephemeral": false, "member": member, "server": false, "prefixes": [], "admitted": [], "waiting": [],
                "created": 1, "expires": null, "last_handshake": null, "endpoint": null, "rx_bytes": 0, "tx_bytes": 0,
                "version": version,
            }))
            .unwrap()
        };
        let mut peers = vec![peer("old", true, None), peer("phone", false, None)];
        assert_eq!(versions(&peers), None, "nobody has said any");
        peers.extend(["a", "b", "c", "d"].map(|name| peer(name, true, Some("0.1.0"))));
        peers.push(peer("laptop", true, Some("0.2.0")));
        assert_eq!(versions(&peers).as_deref(), Some("0.2.0 (laptop), 0.1.0 (4 members), not known (old)"));
    }

    #[test]
    fn a_thousand_members_without_the_last_roster_are_counted() {
        let network = |lagging: usize| -> NetworkView {
            let lagging: Vec<_> = (0..lagging).map(|n| format!("m{n}")).collect();
            serde_json::from_value(json!({
                "name": "rg0", "key": NetworkKey([2; 32]).to_string(), "roster": 7, "issued": 5, "members": 1_000,
                "clients": 1, "lagging": lagging, "problem": null,
            }))
            .unwrap()
        };
        assert!(roster(&network(0)).ends_with("1000 members and 1 client"));
        assert!(roster(&network(2)).ends_with("; not yet known to m0, m1"));
        assert!(roster(&network(1_000)).ends_with("m6, m7 and 992 more"));
    }

    #[test]
    fn whether_there_is_a_policy() {
        let of = |more: serde_json::Value| {
            let mut network = json!({
                "name": "rg0", "key": NetworkKey([2; 32]).to_string(), "roster": 7, "issued": 5, "members": 1,
                "clients": 1, "lagging": [], "problem": null,
            });
            network.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            policy(&serde_json::from_value(network).unwrap())
        };
        assert_eq!(of(json!({ "policy": { "rules": 1, "tests": 0 } })), "1 rule, 0 tests");
        assert_eq!(of(json!({ "policy": null })), "none: everybody may talk to everybody");
        // The answer of an earlier version of the server.
        assert_eq!(of(json!({})), "none: everybody may talk to everybody");
    }

    #[test]
    fn a_page() {
        let mut status: Status = serde_json::from_value(json!({
            "interface": "rg0",
            "public_key": PublicKey([1; 32]).to_string(),
            "port": 51_820,
            "endpoint": "192.0.2.1:51820",
            "pools": [{ "prefix": "10.150.0.0/24", "address": "10.150.0.1", "leased": 1, "capacity": 253 }],
            "isolate": true,
            "routes": ["192.168.50.0/24"],
            "nat": false,
            "window": { "seconds_left": 61, "secret": "code", "attempts_left": 4, "approve": true },
            "waiting": [{ "code": "12345678", "name": null, "source": "192.0.2.9:1" }],
            "usable_invites": 1,
            "peers": [{
                "name": "laptop", "public_key": PublicKey([2; 32]).to_string(), "addresses": ["10.150.0.2"],
                "state": "pending", "origin": "window", "tags": ["ci"], "ephemeral": true,
                "member": false, "server": false, "prefixes": [], "admitted": [], "waiting": [], "created": 0, "expires": null,
                "last_handshake": null, "endpoint": null, "rx_bytes": 2_048, "tx_bytes": 1,
            }],
            "counters": [["admitted", 3], ["refused", 2]],
        }))
        .unwrap();
        let page = |status: &Status, obstacles: &[Obstacle]| {
            page(status, obstacles, &rows(&status.peers), &Rates::default(), (80, None), Palette::PLAIN)
        };
        assert_eq!(
            page(&status, &[Obstacle::ForwardingOff { v6: false }]),
            "interface: rg0\n  public key: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n  reached at: 192.0.2.1:51820\n  \
             pool: 10.150.0.0/24 (1 of 253 leased; this machine is 10.150.0.1)\n  \
             route: 192.168.50.0/24\n  problem: this host forwards no IPv4 packets, so joined machines do not get\n    beyond it: sysctl -w net.ipv4.ip_forward=1, or --nat\n  isolated: peers cannot reach each other\n  \
             window: open for a code, with approval: 1 minute, 1 second left, 4 guesses\n  \
             waits for approval: 12345678 a machine without a name, at 192.0.2.9:1\n  \
             invites: 1 can be used; `rustguard invite ls`\n  since the start: 3 admitted, 2 refused\n\n\
             NAME    STATUS  ADDRESS     IN, OUT  TAG            JOINED BY\n\
             laptop  never   10.150.0.2  2.0K, 1  ci, ephemeral  window\n"
        );
        (status.endpoint, status.window) = (None, None);
        status.waiting.clear();
        status.peers.clear();
        status.counters.clear();
        let text = page(&status, &[]);
        assert!(text.contains("listening port: 51820") && text.contains("window: closed"));
        assert!(!text.contains("since") && !text.contains("NAME"));
    }
}
