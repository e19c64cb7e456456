//! `rustguard status`: the state of a running `serve`, or of any other tunnel.

mod tunnel;

use crate::{
    arguments::enrolment::Status as Arguments,
    one,
    output::{
        colour::Palette,
        columns::field,
        escape::escape,
        peers::{Before, PeerRow, Rates, list},
        screen, way,
        words::{UNEXPECTED_ANSWER, span},
    },
    process::runtime,
    uapi,
};
use anyhow::{Result, bail};
use rustguard_device::interface::check_name;
use rustguard_quick::host::{self, Gateway, Obstacle};
use rustguard_serve::{
    AskError, Reach, ask,
    request::{Answer, PeerView, PoolView, Request, Status},
    socket_path,
};
use std::io::{self, Write as _};

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
            let rows = rows(&status.peers);
            let rates = before.rates(&rows);
            Ok(page(&status, &obstacles, &rows, &rates, screen::width(), palette))
        }
        None => tunnel::page(interface, &mut before, screen::width(), palette),
    })
}

/// The interface that was given, or the one that is served, or else the only tunnel.
fn interface(arguments: &Arguments) -> Result<String> {
    if let Some(name) = &arguments.name {
        check_name(name)?;
        if !socket_path(name).exists() && !uapi::interfaces()?.contains(name) {
            bail!(
                "{name} is not up: `rustguard up {name}` starts the tunnel of a file, and `rustguard serve --interface {name}` a server"
            );
        }
        return Ok(name.clone());
    }
    let served = one::served(&arguments.interface)?;
    let is_chosen = arguments.interface.interface.is_some() || socket_path(&served).exists();
    // Without any tunnel, the message is about `serve`.
    if is_chosen || uapi::interfaces()?.is_empty() { Ok(served) } else { one::tunnel(None) }
}

/// The state of a `serve`; `None` for another tunnel.
fn ask_status(interface: &str) -> Result<Option<Status>> {
    match ask(interface, &Request::Status) {
        Ok(Answer::Status(status)) => Ok(Some(status)),
        Ok(_) => bail!(UNEXPECTED_ANSWER),
        Err(AskError::NotServed { .. }) if uapi::interfaces()?.iter().any(|name| name == interface) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What keeps joined machines from the networks behind this host. Nothing is said if the host cannot be asked.
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
    width: usize,
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
    for pool in &status.pools {
        // Of an IPv6 /64, a part is of no interest.
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
        text += &list(rows, "ADDRESS", rates, width, palette);
    }
    text
}

/// The peers of a `serve` for [`list`].
pub(crate) fn rows(peers: &[PeerView]) -> Vec<PeerRow> {
    let row = |peer: &PeerView| {
        let words = [peer.tag.as_deref(), peer.ephemeral.then_some("ephemeral")];
        PeerRow {
            public_key: peer.public_key,
            name: peer.name.clone(),
            connection: Some(peer.connection.clone()),
            last_handshake: peer.last_handshake,
            problem: peer.problem.as_ref().map(|problem| problem.text.clone()),
            addresses: peer.addresses.iter().map(ToString::to_string).collect(),
            way: peer.endpoint.map(|endpoint| way::direct(&endpoint.to_string(), Some(&peer.connection.state))),
            round_trip: None,
            not_direct: None,
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
            tag: words.into_iter().flatten().collect::<Vec<_>>().join(", "),
            joined_by: peer.origin.to_string(),
        }
    };
    peers.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_serve::request::PublicKey;
    use serde_json::json;

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
                "state": "pending", "origin": "window", "tag": "ci", "ephemeral": true, "created": 0, "expires": null,
                "last_handshake": null, "endpoint": null, "rx_bytes": 2_048, "tx_bytes": 1,
            }],
            "counters": [["admitted", 3], ["refused", 2]],
        }))
        .unwrap();
        let page = |status: &Status, obstacles: &[Obstacle]| {
            page(status, obstacles, &rows(&status.peers), &Rates::default(), 80, Palette::PLAIN)
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
