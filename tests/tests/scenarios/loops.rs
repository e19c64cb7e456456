//! Routes that lead the tunnel's own datagrams back into the tunnel: each returning datagram is dropped and counted.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    HUB_A, HUB_C, Hub, INSIDE_B, Lab, Mesh, Node, Outside, Pair, Program, eventually, meshed, network, scenario,
    scenario_of_rustguard,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// The limit for datagrams that the tunnel sends into itself. An endless loop exceeds it within a millisecond or two.
const FEW: u64 = 300;

/// A scenario about RustGuard only: wireguard-go would loop for ever.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("loops through the tunnel", body);
}

/// The packets dropped because they were the tunnel's own.
fn looped(node: &Node, interface: &str) -> Result<u64> {
    let ended = node.end_of(node.rustguard()?.args(["show", interface, "--json"]))?;
    let shown: serde_json::Value = serde_json::from_str(&ended.stdout).with_context(|| ended.to_string())?;
    Ok(shown[0]["dropped"]["routing_loop"].as_u64().unwrap_or(0))
}

/// Counts the packets from this port that the node sends into the interface.
fn watch(node: &Node, interface: &str, port: u16) -> Result<()> {
    node.count("looping", "output", &format!("oifname {interface} udp sport {port}"))
}

/// Echo requests of several lengths. The datagrams of the longest are fragmented on their way into the TUN.
fn pings(node: &Node, address: &str) {
    for size in ["8", "1000", "1372"] {
        let _ = node.run(&["ping", "-n", "-c", "3", "-i", "0.02", "-W", "1", "-s", size, address]);
    }
}

fn few(node: &Node) -> Result<()> {
    let into_itself = node.counted("looping")?;
    ensure!(into_itself <= FEW, "{into_itself} datagrams of the tunnel's own went into it");
    Ok(())
}

#[test]
fn by_a_static_route_over_ipv4() {
    ours(|lab| static_route(lab, Outside::V4, "10.2.0.2/32"));
}

#[test]
fn by_a_static_route_over_ipv6() {
    ours(|lab| static_route(lab, Outside::V6, "fd02::2/128"));
}

fn static_route(lab: &Lab, outside: Outside, to: &str) -> Result<()> {
    let pair = Pair::new(lab, outside)?;
    let (mut a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    ensure!(looped(&pair.a, "wga")? == 0);
    watch(&pair.a, "wga", 51_801)?;
    a.set(&format!("peer {} allowed-ips {},{to}", pair.conf_b.keys.public, INSIDE_B.join(",")))?;
    pair.a.run(&["ip", "route", "add", to, "dev", "wga"])?;
    pings(&pair.a, INSIDE_B[0]);
    few(&pair.a)?;
    ensure!(looped(&pair.a, "wga")? >= 9, "each of nine packets came back once: {}", looped(&pair.a, "wga")?);
    let ip = to.split_once('/').context("a prefix")?.0;
    let log = a.process().log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("leads it back into the tunnel")).collect();
    ensure!(lines.len() == 1 && lines[0].contains(ip), "one line, with the endpoint: {lines:?}");
    // Without the route, the tunnel works as before.
    pair.a.run(&["ip", "route", "del", to, "dev", "wga"])?;
    pair.a.reaches(INSIDE_B[0], 3)
}

/// The allowed IPs of the file cover the endpoint from the start: either the program does not add this route, or the
/// handshakes loop and `show` counts them.
#[test]
fn by_the_allowed_ips_of_the_file() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips += ", 10.2.0.0/24";
        watch(&pair.a, "wga", 51_801)?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
        pings(&pair.a, INSIDE_B[0]);
        few(&pair.a)?;
        let routed = pair.a.run(&["ip", "route", "get", "10.2.0.2"])?.contains("wga");
        ensure!(!routed || looped(&pair.a, "wga")? > 0, "the route is there, and nobody hears of it");
        Ok(())
    });
}

/// The endpoint of each of two peers is routed through the other peer.
#[test]
fn by_way_of_each_other() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        for end in [HUB_A, HUB_C] {
            hub.b.reaches(end[0], 10)?;
        }
        watch(&hub.b, "wgb", 51_802)?;
        for (conf, end, other) in [(&hub.conf_a, HUB_A, "10.3.0.2/32"), (&hub.conf_c, HUB_C, "10.1.0.2/32")] {
            let allowed = format!("{},{other}", end.join(","));
            hub.b.run(&["wg", "set", "wgb", "peer", &conf.keys.public, "allowed-ips", &allowed])?;
            hub.b.run(&["ip", "route", "add", other, "dev", "wgb"])?;
        }
        for end in [HUB_A, HUB_C] {
            pings(&hub.b, end[0]);
        }
        few(&hub.b)?;
        ensure!(looped(&hub.b, "wgb")? > 0, "they came back");
        Ok(())
    });
}

/// A neighbour announces the address of its own endpoint.
#[test]
fn by_a_learned_route() {
    meshed(|lab| {
        let mut mesh = Mesh::new(lab, &["a", "b"], &[["a", "b"]])?;
        mesh.get_mut("a")?.peer_mut("b")?.allowed_ips += ", 10.1.0.0/24";
        mesh.get_mut("b")?.conf.lines.push("Announce = 10.1.0.2/32".to_owned());
        let a = mesh.get("a")?;
        watch(&a.node, "wga", 51_820)?;
        let _running = mesh.start(lab)?;
        eventually("the announcement was heard", SOON, || Ok(!a.route("10.1.0.2/32")?.is_null()))?;
        for _ in 0..3 {
            pings(&a.node, "10.77.0.2");
        }
        few(&a.node)
    });
}

/// A server pushes a route that covers its own address.
#[test]
fn by_a_pushed_route() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--route", "10.1.0.0/24"])?;
            // The machine joins from a network without a more specific route to the server.
            let ended = network.try_join(2, &served.join_arguments())?;
            if !ended.success() {
                // The machine refused the route when it joined.
                return ended.says(&["10.1.0"]);
            }
            network.machines[1].count("looping", "output", "oifname rg2 meta l4proto udp")?;
            let _up = network.up(lab, 2)?;
            for address in network.server_addresses()? {
                pings(&network.machines[1], &address);
            }
            few(&network.machines[1])
        })
    });
}
