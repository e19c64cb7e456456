//! Networks that silently drop long datagrams: what is detected, what is reported, and the effect on peers without this
//! feature.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    INSIDE_A, INSIDE_B, Ip, Lab, Nat, Node, Outside, Pair, Program, Relayed, eventually, scenario_of_rustguard,
};
use serde_json::{Value, json};
use std::{fs, time::Duration};

/// The check begins two seconds after the first traffic, and a search takes up to ten seconds more.
const SOON: Duration = Duration::from_secs(60);

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("the probes of the path MTU", body);
}

/// The path from `a` to `b` has an MTU of 1,400 bytes behind the router. `b` knows the MTU of its link.
fn narrow(pair: &Pair) -> Result<()> {
    pair.router.sh("ip link set to-b mtu 1400")?;
    pair.b.sh("ip link set eth0 mtu 1400").map(drop)
}

/// Waits until `is` returns true for the only peer in `show`, and returns its entry.
fn until(node: &Node, interface: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    eventually(what, SOON, || {
        let inside = if interface == "wga" { INSIDE_B[0] } else { INSIDE_A[0] };
        node.reaches(inside, 5)?;
        last = node.shown(interface)?["peers"][0].clone();
        Ok(is(&last))
    })?;
    Ok(last)
}

fn found(peer: &Value) -> bool {
    peer["path_mtu"].is_object()
}

#[test]
fn a_black_hole_is_found_and_the_mtu_that_works_is_said() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V6)?;
        narrow(&pair)?;
        pair.router.drop("output", "icmpv6 type packet-too-big")?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Subject)?;
        let peer = until(&pair.a, "wga", "the black hole is found", found)?;
        ensure!(peer["path_mtu"] == json!({ "packet": 1320, "datagram": 1400, "limited": true }), "{peer}");
        ensure!(peer["problem"]["kind"] == "path-mtu", "{peer}");
        let log = fs::read_to_string(lab.path("wga.log"))?;
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN") && line.contains("bytes")).collect();
        ensure!(warnings.len() == 1 && warnings[0].contains("set MTU = 1320 in [Interface]"), "{warnings:?}");
        // The report is true, and the remedy works.
        let long = |bytes: &str| pair.a.run(&["ping", "-n", "-c", "1", "-W", "2", "-s", bytes, INSIDE_B[0]]);
        ensure!(long("1392").is_err(), "1,420 bytes arrive");
        pair.a.sh("ip link set wga mtu 1320")?;
        // Packets are padded up to the interface's MTU, so the program must first learn of the new MTU.
        eventually("1,320 bytes arrive", SOON, || Ok(long("1292").is_ok()))?;
        let peer = until(&pair.a, "wga", "the trouble is over", |peer| peer["problem"].is_null())?;
        ensure!(peer["path_mtu"]["limited"] == false, "{peer}");
        // The other direction never had a problem.
        let peer = until(&pair.b, "wgb", "the other direction is probed", found)?;
        ensure!(peer["path_mtu"]["limited"] == false && peer["problem"].is_null(), "{peer}");
        Ok(())
    });
}

/// Over IPv4, the router fragments datagrams.
fn probed_over_ipv4(lab: &Lab, fragments_are_dropped: bool) -> Result<Value> {
    let pair = Pair::new(lab, Outside::V4)?;
    narrow(&pair)?;
    if fragments_are_dropped {
        pair.b.drop("prerouting", "ip frag-off & 0x3fff != 0")?;
    }
    let (_a, _b) = pair.start(lab, Program::Subject, Program::Subject)?;
    until(&pair.a, "wga", "the path is probed", found)
}

#[test]
fn datagrams_that_are_taken_apart_are_no_trouble() {
    ours(|lab| {
        let peer = probed_over_ipv4(lab, false)?;
        let expected = json!({ "packet": 1420, "datagram": 1480, "limited": false });
        ensure!(peer["path_mtu"] == expected && peer["problem"].is_null(), "{peer}");
        Ok(())
    });
}

#[test]
fn a_firewall_that_drops_fragments_is_found() {
    ours(|lab| {
        let peer = probed_over_ipv4(lab, true)?;
        let expected = json!({ "packet": 1340, "datagram": 1400, "limited": true });
        ensure!(peer["path_mtu"] == expected && peer["problem"]["kind"] == "path-mtu", "{peer}");
        Ok(())
    });
}

/// Two layers of WireGuard, and the header between them, must fit.
#[test]
fn a_black_hole_is_found_below_a_way_through_a_peer() {
    ours(|lab| {
        let relayed = Relayed::new(lab, [(Nat::PortKept, Ip::V4), (Nat::PortKept, Ip::V4)], 1)?;
        relayed.internet.narrow(&relayed.sites[1], 1_400)?;
        let _running = relayed.start(lab)?;
        relayed.until_by(Some(0))?;
        let [a, b] = &relayed.members;
        let mut peer = Value::Null;
        eventually("the black hole is found", SOON, || {
            a.node.reaches(&b.inside, 5)?;
            peer = a.shown_peer(b)?;
            Ok(found(&peer))
        })
        .with_context(|| peer.to_string())?;
        let packet = 1_400 - 28 - 32 - 24 - 32;
        ensure!(peer["path_mtu"] == json!({ "packet": packet, "datagram": 1400, "limited": true }), "{peer}");
        ensure!(peer["problem"]["kind"] == "path-mtu", "{peer}");
        let arrives = |packet: u16| {
            a.node.run(&["ping", "-n", "-c", "1", "-W", "2", "-s", &(packet - 28).to_string(), &b.inside])
        };
        // Packets are padded to 16 bytes, as far as the MTU of the interface allows.
        arrives(packet / 16 * 16)?;
        ensure!(arrives(packet + 1).is_err(), "{} bytes arrive", packet + 1);
        Ok(())
    });
}

/// A stock peer drops the probes as invalid packets: it gets three short ones, and never a long one.
#[test]
fn a_stock_peer_is_left_alone() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V6)?;
        narrow(&pair)?;
        pair.router.drop("output", "icmpv6 type packet-too-big")?;
        // Only probes have this length: a text of 16 bytes, header, tag and UDP header.
        pair.router.count("probes", "forward", "udp length 56 ip6 saddr fd01::2")?;
        pair.router.count("long", "forward", "udp length > 600 ip6 saddr fd01::2")?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
        eventually("three short probes were sent", SOON, || {
            pair.a.reaches(INSIDE_B[0], 5)?;
            Ok(pair.router.counted("probes")? == 3)
        })?;
        // Traffic continues for longer than the interval between two probes.
        pair.a.run(&["ping", "-n", "-c", "30", "-i", "0.1", "-W", "2", INSIDE_B[0]])?;
        let (short, long) = (pair.router.counted("probes")?, pair.router.counted("long")?);
        ensure!((short, long) == (3, 0), "{short} short, {long} long");
        let peer = &pair.a.shown("wga")?["peers"][0];
        ensure!(!found(peer) && peer["problem"].is_null(), "{peer}");
        Ok(())
    });
}
