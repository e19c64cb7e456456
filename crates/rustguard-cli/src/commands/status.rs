//! `rustguard status`: the state of a running `serve`.

use crate::{
    arguments::enrolment::Status as Arguments,
    one,
    output::{
        screen,
        words::{UNEXPECTED_ANSWER, ago, bytes, now, span, table},
    },
};
use anyhow::{Result, bail};
use rustguard_quick::host::{self, Gateway, Obstacle};
use rustguard_serve::{
    Reach, ask,
    request::{Answer, PeerView, PoolView, PublicKey, Request, Status},
};
use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{self, Write as _},
    time::{Duration, Instant},
};

/// Runs `status`.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let interface = &one::served(&arguments.interface)?;
    if arguments.json {
        let status = ask_status(interface)?;
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&status)?)?;
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let obstacles = runtime.block_on(obstacles(&ask_status(interface)?));
    let mut before: HashMap<PublicKey, (u64, u64)> = HashMap::new();
    let mut at = Instant::now();
    screen::show(arguments.watch, || {
        let status = ask_status(interface)?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let rate = |peer: &PeerView| {
            let (rx, tx) = before.get(&peer.public_key)?;
            let per_second = |new: u64, old: u64| (new.saturating_sub(old) as f64 / seconds) as u64;
            Some((peer.public_key, (per_second(peer.rx_bytes, *rx), per_second(peer.tx_bytes, *tx))))
        };
        let page = page(&status, &status.peers.iter().filter_map(rate).collect(), &obstacles);
        before = status.peers.into_iter().map(|peer| (peer.public_key, (peer.rx_bytes, peer.tx_bytes))).collect();
        Ok(page)
    })
}

fn ask_status(interface: &str) -> Result<Status> {
    match ask(interface, &Request::Status)? {
        Answer::Status(status) => Ok(status),
        _ => bail!(UNEXPECTED_ANSWER),
    }
}

/// What keeps joined machines from the networks behind this host. Nothing is said if the host cannot be asked.
pub(crate) async fn obstacles(status: &Status) -> Vec<Obstacle> {
    let pools = status.pools.iter().map(|pool| pool.prefix).collect();
    let gateway = Gateway { pools, networks: status.routes.clone() };
    host::obstacles(&status.interface, &gateway, status.nat).await.unwrap_or_default()
}

/// The state for people. `rates` has the bytes per second from each peer and to it.
fn page(status: &Status, rates: &HashMap<PublicKey, (u64, u64)>, obstacles: &[Obstacle]) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "  {key}: {value}").expect("writing to a String cannot fail");
    };
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
        let name = waiting.name.as_deref().unwrap_or("a machine without a name");
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
    let peers = if status.peers.is_empty() { String::new() } else { format!("\n{}", peer_table(&status.peers, rates)) };
    format!("interface: {}\n{text}{peers}", status.interface)
}

/// A table with one line for each peer.
pub(crate) fn peer_table(peers: &[PeerView], rates: &HashMap<PublicKey, (u64, u64)>) -> String {
    let now = now();
    let row = |peer: &PeerView| {
        let addresses: Vec<_> = peer.addresses.iter().map(ToString::to_string).collect();
        let heard = match peer.last_handshake {
            Some(at) => ago(now, Duration::from_secs(at)),
            None => "never".to_owned(),
        };
        let traffic = match rates.get(&peer.public_key) {
            Some((rx, tx)) => format!("{}/s in, {}/s out", bytes(*rx), bytes(*tx)),
            None => format!("{} in, {} out", bytes(peer.rx_bytes), bytes(peer.tx_bytes)),
        };
        let mut state = peer.state.to_string();
        if peer.ephemeral {
            state.push_str(", ephemeral");
        }
        let came_by = match &peer.tag {
            Some(tag) => format!("{} ({tag})", peer.origin),
            None => peer.origin.to_string(),
        };
        let name = peer.name.clone().unwrap_or_else(|| peer.public_key.to_string());
        vec![name, addresses.join(", "), state, came_by, heard, traffic]
    };
    table(
        &["NAME", "ADDRESSES", "STATE", "JOINED BY", "LAST HANDSHAKE", "TRAFFIC"],
        &peers.iter().map(row).collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let rates = HashMap::from([(PublicKey([2; 32]), (1_536, 0))]);
        assert_eq!(
            page(&status, &rates, &[Obstacle::ForwardingOff { v6: false }]),
            "interface: rg0\n  public key: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n  reached at: 192.0.2.1:51820\n  \
             pool: 10.150.0.0/24 (1 of 253 leased; this machine is 10.150.0.1)\n  \
             route: 192.168.50.0/24\n  problem: this host forwards no IPv4 packets, so joined machines do not get beyond \
             it: sysctl -w net.ipv4.ip_forward=1, or --nat\n  isolated: peers cannot reach each other\n  \
             window: open for a code, with approval: 1 minute, 1 second left, 4 guesses\n  \
             waits for approval: 12345678 a machine without a name, at 192.0.2.9:1\n  \
             invites: 1 can be used; `rustguard invite ls`\n  since the start: 3 admitted, 2 refused\n\n\
             NAME    ADDRESSES   STATE               JOINED BY    LAST HANDSHAKE  TRAFFIC\n\
             laptop  10.150.0.2  pending, ephemeral  window (ci)  never           1.50 KiB/s in, 0 B/s out\n"
        );
        (status.endpoint, status.window) = (None, None);
        status.waiting.clear();
        status.peers.clear();
        status.counters.clear();
        let text = page(&status, &rates, &[]);
        assert!(text.contains("listening port: 51820") && text.contains("window: closed"));
        assert!(!text.contains("since") && !text.contains("NAME"));
    }
}
