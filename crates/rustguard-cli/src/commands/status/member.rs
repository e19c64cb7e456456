//! The additional state of a tunnel if this machine is a member of a network.

use crate::{
    output::{peers::PeerRow, words},
    uapi::{self, Device},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{
    key::from_base64,
    uapi::{ConnectionView, RouteView},
};
use rustguard_network::{Listed, ListedRole, Report, Standing};
use rustguard_serve::shown_number;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// From this age on, a roster indicates a problem: servers issue one every hour.
const STALE: u64 = 3 * 3_600;
/// How far the clock of the server may be ahead of this machine's without a message.
const AHEAD: u64 = 300;
/// The most lines about prefixes, and about refused prefixes.
const LINES: usize = 8;

/// The lines about the network.
pub(super) fn lines(interface: &str, report: &Report, device: &Device) -> Vec<(&'static str, String)> {
    let now = words::now();
    let mut lines = vec![("network", membership(report, now)), ("network key", report.key.clone())];
    let own = device.public_key.map(|key| key.to_string());
    let own = report.list.iter().find(|listed| own.as_ref() == Some(&listed.public_key));
    if let Some(own) = own {
        lines.push(("this machine", named(own)));
    }
    if report.standing == Standing::Member {
        lines.push(("policy", policy(device)));
    }
    lines.extend(freshness(report, now).map(|problem| ("problem", problem)));
    let mut holders = BTreeMap::<_, Vec<&str>>::new();
    for listed in &report.list {
        let name = if own == Some(listed) { "this machine" } else { &listed.name };
        listed.prefixes.iter().for_each(|prefix| holders.entry(*prefix).or_default().push(name));
    }
    // If several members have a prefix, the engine knows which one gets the packets.
    let chosen = holders.values().any(|holders| holders.len() > 1).then(|| uapi::routing(interface).ok()).flatten();
    let chosen: HashMap<_, _> =
        chosen.iter().flat_map(|view| &view.routes).map(|route: &RouteView| (route.prefix, route)).collect();
    let prefixes = holders.iter().map(|(prefix, holders)| {
        let next = chosen.get(prefix).and_then(|route| route.next_hops.first()).map(String::as_str);
        let text = match (&holders[..], next) {
            ([only], _) => format!("{prefix} behind {only}"),
            (several, Some(next)) => {
                let others: Vec<_> = several.iter().copied().filter(|name| *name != next).collect();
                format!("{prefix} behind {next}, or {}", others.join(", "))
            }
            (several, None) => format!("{prefix} behind {}", several.join(", ")),
        };
        ("prefix", text)
    });
    let all = format!("`rustguard routes {interface}` shows all");
    lines.extend(at_most(prefixes, "prefix", &all));
    lines.extend(standby(report, now).map(|standby| ("standby", standby)));
    let refused = report.refused.iter().map(|why| ("not taken", why.clone()));
    lines.extend(at_most(refused, "not taken", &format!("`rustguard status {interface} --json` shows all")));
    lines
}

/// The first lines, and how many there are beyond.
fn at_most(
    lines: impl ExactSizeIterator<Item = (&'static str, String)>,
    key: &'static str,
    all: &str,
) -> Vec<(&'static str, String)> {
    let left = lines.len().saturating_sub(LINES);
    let more = (left > 0).then(|| (key, format!("and {left} more; {all}")));
    lines.take(LINES).chain(more).collect()
}

/// `laptop, 10.150.0.2`.
fn named(listed: &Listed) -> String {
    let addresses = listed.addresses.iter().map(ToString::to_string);
    let words = std::iter::once(listed.name.clone()).chain(addresses).chain(role(listed));
    words.collect::<Vec<_>>().join(", ")
}

/// The part of the network's policy that this machine enforces.
fn policy(device: &Device) -> String {
    match &device.policy {
        None => "none: every member may talk to this machine".to_owned(),
        Some(policy) => {
            let rules = if policy.rules == 1 { "1 rule".to_owned() } else { format!("{} rules", policy.rules) };
            format!("{rules} about this machine, {} packets refused", policy.refused)
        }
    }
}

/// The role of the member, if it has a name.
fn role(listed: &Listed) -> Option<String> {
    match (listed.role, &listed.server) {
        (ListedRole::Server, _) => Some("server".to_owned()),
        (ListedRole::Client, Some(server)) => Some(format!("client of {server}")),
        (ListedRole::Client, None) => Some("client".to_owned()),
        _ => None,
    }
}

/// Whether this machine could take the place of the server.
fn standby(report: &Report, now: Duration) -> Option<String> {
    if !report.standby {
        return None;
    }
    Some(match report.server_state {
        Some(made) => format!("has the server's state of {}", words::ago(now, Duration::from_secs(made).min(now))),
        None => {
            "has nothing of the server's state yet; `rustguard invite new --standby` on the server admits a standby"
                .to_owned()
        }
    })
}

/// The network in words.
fn membership(report: &Report, now: Duration) -> String {
    let Some(name) = &report.name else { return "not known yet; the server has to answer first".to_owned() };
    // A time in the near future counts as now, because the server's clock may be a little ahead.
    let issued = Duration::from_secs(report.issued);
    let issued = if issued.as_secs() <= now.as_secs() + AHEAD { issued.min(now) } else { issued };
    let roster = match now.checked_sub(issued) {
        Some(_) => format!("roster {}, issued {}", shown_number(report.number), words::ago(now, issued)),
        None => format!("roster {}", shown_number(report.number)),
    };
    match report.standing {
        Standing::Removed => {
            format!("{name}; this machine was removed from it ({roster}); to join again: `rustguard join`")
        }
        Standing::Member => {
            let members =
                if report.members == 1 { "1 member".to_owned() } else { format!("{} members", report.members) };
            format!("{name}, {members} ({roster})")
        }
        _ => format!("{name}; it does not have this machine yet ({roster})"),
    }
}

/// Without a server, nobody issues rosters, and a relay may withhold newer rosters. The age shows both.
fn freshness(report: &Report, now: Duration) -> Option<String> {
    report.name.as_ref()?;
    let now = now.as_secs();
    let age = now.saturating_sub(report.issued);
    if report.issued > now + AHEAD {
        let ahead = words::span(report.issued - now);
        return Some(format!(
            "the roster was issued {ahead} from now: the clock of the server or of this machine is wrong"
        ));
    }
    (report.standing == Standing::Member && age >= STALE).then(|| {
        let age = words::span(age / 3_600 * 3_600);
        format!(
            "the roster was not renewed for {age}: no server is reached, or a relay withholds newer ones, or a clock is wrong. What \
             is known goes on working; nobody can join, and removed machines stay"
        )
    })
}

/// A row for each member but this one, and for each other peer of the file.
pub(super) fn rows(peers: Vec<PeerRow>, report: &Report, device: &Device) -> Vec<PeerRow> {
    let own = device.public_key.map(|key| key.to_string());
    let mut peers: HashMap<_, _> = peers.into_iter().map(|row| (row.public_key, row)).collect();
    let listed = report.list.iter().filter(|listed| own.as_ref() != Some(&listed.public_key));
    let mut rows: Vec<_> = listed
        .filter_map(|listed| {
            let key = PublicKey(*from_base64(&listed.public_key).ok()?);
            Some(row(key, peers.remove(&key), listed))
        })
        .collect();
    // In the order of the device.
    rows.extend(device.peers.iter().filter_map(|peer| peers.remove(&peer.public_key)));
    rows
}

fn row(public_key: PublicKey, peer: Option<PeerRow>, listed: &Listed) -> PeerRow {
    let addresses = listed.addresses.iter().map(ToString::to_string);
    let prefixes = listed.prefixes.iter().map(ToString::to_string);
    let addresses = addresses.chain(prefixes).collect();
    let mut words = listed.tags.clone();
    words.extend(role(listed));
    let (name, tag, server) = (Some(listed.name.clone()), words.join(", "), listed.role == ListedRole::Server);
    if let Some(peer) = peer {
        let mut row = PeerRow { name, addresses, tag, server, ..peer };
        // A session begins only when there is something to send, so a missing session is no fault.
        if let Some(connection) = row.connection.as_mut().filter(|connection| connection.state == "never connected") {
            "idle".clone_into(&mut connection.state);
        }
        return row;
    }
    let state = |state: &str| ConnectionView { state: state.to_owned(), since: None, attempts: None };
    let (connection, way, waiting) = match (listed.role, &listed.server) {
        (ListedRole::Client, server) => {
            (state("client"), server.as_ref().map(|server| format!("through {server}")), None)
        }
        _ => {
            let why = "no server has told the preshared key of the pair yet, and without it there is no session";
            (state("waiting"), None, Some(why.to_owned()))
        }
    };
    PeerRow {
        public_key,
        name,
        connection: Some(connection),
        last_handshake: None,
        problem: None,
        addresses,
        way,
        round_trip: None,
        not_direct: None,
        waiting,
        rx_bytes: 0,
        tx_bytes: 0,
        tag,
        joined_by: String::new(),
        server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::Peer;
    use serde_json::json;

    fn key(byte: u8) -> String {
        PublicKey([byte; 32]).to_string()
    }

    fn report() -> Report {
        serde_json::from_value(json!({
            "key": "the key", "name": "home", "standing": "member", "number": 7, "issued": words::now().as_secs() - 60, "members": 4,
            "list": [
                { "name": "desk", "public_key": key(2), "addresses": ["10.150.0.3"], "role": "member", "prefixes": ["192.168.1.0/24"] },
                { "name": "hub", "public_key": key(3), "addresses": ["10.150.0.1"], "role": "server" },
                { "name": "phone", "public_key": key(4), "addresses": ["10.150.0.4"], "role": "client", "server": "hub" },
                { "name": "tv", "public_key": key(5), "addresses": ["10.150.0.5"], "role": "member", "tags": ["den"] },
            ],
        }))
        .unwrap()
    }

    fn line<'l>(lines: &'l [(&str, String)], key: &str) -> Option<&'l str> {
        lines.iter().find(|(of, _)| *of == key).map(|(_, value)| value.as_str())
    }

    #[test]
    fn members_without_a_session_are_idle_and_clients_are_the_servers() {
        let peer = |byte: u8, state: &str| Peer {
            connection: Some(ConnectionView { state: state.to_owned(), since: None, attempts: None }),
            ..Peer::new(PublicKey([byte; 32]))
        };
        let device = Device {
            peers: vec![peer(9, "never connected"), peer(2, "never connected"), peer(3, "offline")],
            ..Device::default()
        };
        let peers = device.peers.iter().map(|peer| super::super::tunnel::row(peer, &device.peers)).collect();
        let rows = rows(peers, &report(), &device);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| {
                let state = row.connection.as_ref().map_or("", |connection| &connection.state);
                (row.name.as_deref().unwrap_or("-"), state, row.addresses.join(" "), row.tag.as_str())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("desk", "idle", "10.150.0.3 192.168.1.0/24".to_owned(), ""),
                ("hub", "offline", "10.150.0.1".to_owned(), "server"),
                ("phone", "client", "10.150.0.4".to_owned(), "client of hub"),
                ("tv", "waiting", "10.150.0.5".to_owned(), "den"),
                ("-", "never connected", String::new(), ""),
            ]
        );
        assert_eq!(rows[2].way.as_deref(), Some("through hub"));
        assert!(rows[3].waiting.as_ref().is_some_and(|why| why.contains("preshared key")));
    }

    #[test]
    fn the_age_of_a_roster_is_a_problem_only_where_it_is_one() {
        let now = words::now().as_secs();
        for (issued, problem) in [
            (now, None),
            (now - STALE + 60, None),
            (now - STALE - 60, Some("not renewed for 3 hours")),
            (now - 30 * 86_400, Some("not renewed for 30 days")),
            (now + 100, None),
            (now + 86_401, Some("from now: the clock")),
        ] {
            let mut report = report();
            report.issued = issued;
            let lines = lines("rg0", &report, &Device::default());
            let said = line(&lines, "problem");
            match problem {
                Some(words) => assert!(said.is_some_and(|said| said.contains(words)), "{words}: {said:?}"),
                None => assert_eq!(said, None),
            }
        }
    }

    #[test]
    fn the_lines_have_the_network_the_prefixes_and_what_is_refused() {
        let mut report = report();
        report.refused = (0..20).map(|n| format!("10.{n}.0.0/16")).collect();
        let mut device = Device::default();
        let lines_of = |report: &Report, device: &Device| lines("rg0", report, device);
        let lines = lines_of(&report, &device);
        assert_eq!(line(&lines, "network"), Some("home, 4 members (roster 7, issued 1 minute ago)"));
        assert_eq!(line(&lines, "prefix"), Some("192.168.1.0/24 behind desk"));
        assert_eq!(lines.iter().filter(|(key, _)| *key == "not taken").count(), LINES + 1);
        assert!(lines.last().is_some_and(|(_, last)| last.starts_with("and 12 more; `rustguard status rg0 --json`")));
        device.public_key = Some(PublicKey([7; 32]));
        report.list[0].public_key = device.public_key.unwrap().to_string();
        let lines = lines_of(&report, &device);
        assert_eq!(line(&lines, "this machine"), Some("desk, 10.150.0.3"));
        assert_eq!(line(&lines, "prefix"), Some("192.168.1.0/24 behind this machine"));
        report.name = None;
        assert!(line(&lines_of(&report, &device), "network").is_some_and(|text| text.starts_with("not known yet")));
        assert_eq!(line(&lines_of(&report, &device), "problem"), None);
    }
}
