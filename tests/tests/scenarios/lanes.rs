//! Lanes of a session: if both ends have several queues, each queue uses its own port where that works. Everything must
//! also work where it does not.
use anyhow::{Result, ensure};
use rustguard_tests::{
    INSIDE_A, INSIDE_B, Lab, Node, Outside, Pair, Program, Tunnel, Up, eventually, scenario_of_rustguard, transfer,
};
use std::{ffi::OsString, time::Duration};

/// This package's traffic generator.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
const SOON: Duration = Duration::from_secs(20);
/// Longer than detecting lost lanes and working ones again takes.
const LATER: Duration = Duration::from_secs(60);
/// Datagrams from another source port than the tunnel's, in each direction.
const BY_LANES: [&str; 2] = ["udp sport != 51802 udp dport 51801", "udp sport != 51801 udp dport 51802"];

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("lanes", body);
}

fn queues(count: &str) -> [(&'static str, OsString); 1] {
    [("RUSTGUARD_QUEUES", count.into())]
}

fn both_ways(pair: &Pair) -> Result<()> {
    transfer(TRAFFIC, &pair.a, &pair.b, INSIDE_B[0])?;
    transfer(TRAFFIC, &pair.b, &pair.a, INSIDE_A[0])
}

/// The lanes that each end uses.
fn lanes(pair: &Pair) -> Result<[u64; 2]> {
    let shown = [pair.a.shown("wga")?, pair.b.shown("wgb")?];
    Ok(shown.map(|interface| interface["peers"][0]["lanes"].as_u64().unwrap_or(0)))
}

/// Runs streams in both directions until so many lanes are used.
fn until_lanes(pair: &Pair, expected: [u64; 2]) -> Result<()> {
    let mut seen = [0; 2];
    let ended = eventually("lanes are used", LATER, || {
        both_ways(pair)?;
        seen = lanes(pair)?;
        Ok(seen == expected)
    });
    ended.map_err(|error| error.context(format!("{seen:?} in use, not {expected:?}")))
}

/// The UDP sockets of a node over IPv4.
fn sockets(node: &Node) -> Result<usize> {
    Ok(node.run(&["ss", "-4Hlun"])?.lines().count())
}

#[test]
fn two_ends_with_two_queues_use_them_and_begin_anew_when_one_moves() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let _b = Up::start_with(lab, &pair.b, &pair.conf_b, &queues("2"))?;
        let _a = Up::start_with(lab, &pair.a, &pair.conf_a, &queues("2"))?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        ensure!(lanes(&pair)? == [0, 0], "a ping needs none");
        ensure!(sockets(&pair.a)? == 4, "a port for all, and one for each lane: {}", sockets(&pair.a)?);
        until_lanes(&pair, [2, 2])?;
        for (name, what) in ["to-a", "to-b"].into_iter().zip(BY_LANES) {
            pair.router.count(name, "forward", &format!("{what} udp length > 1000"))?;
        }
        eventually("both ends send data in lanes", LATER, || {
            both_ways(&pair)?;
            Ok(pair.router.counted("to-a")? > 0 && pair.router.counted("to-b")? > 0)
        })?;
        for (node, interface, at) in [(&pair.a, "wga", "10.2.0.2:51802"), (&pair.b, "wgb", "10.1.0.2:51801")] {
            let endpoint = &node.shown(interface)?["peers"][0]["endpoint"];
            ensure!(endpoint == at, "a lane has moved the endpoint to {endpoint}");
        }
        let said = pair.a.end_of(pair.a.rustguard()?.args(["show", "wga"]))?.stdout;
        ensure!(said.contains("lanes: 2"), "{said}");

        until_lanes(&pair, [2, 2])?;
        pair.a.sh("wg set wga listen-port 51900")?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let moved = || Ok(pair.b.shown("wgb")?["peers"][0]["endpoint"] == "10.1.0.2:51900");
        eventually("b hears of the new port", SOON, moved)?;
        ensure!(lanes(&pair)? == [0, 0], "lanes that were acknowledged elsewhere: {:?}", lanes(&pair)?);
        until_lanes(&pair, [2, 2])?;
        ensure!(moved()?, "a lane has moved the endpoint");
        Ok(())
    });
}

/// A firewall between the ends passes only the tunnel's own port, in one direction or in both.
#[test]
fn where_lanes_do_not_arrive_everything_works_without() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        pair.router.count("tried", "prerouting", BY_LANES[1])?;
        pair.router.drop("forward", BY_LANES[1])?;
        let _b = Up::start_with(lab, &pair.b, &pair.conf_b, &queues("2"))?;
        let _a = Up::start_with(lab, &pair.a, &pair.conf_a, &queues("2"))?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        until_lanes(&pair, [0, 2])?;
        eventually("a has tried", LATER, || {
            both_ways(&pair)?;
            Ok(pair.router.counted("tried")? > 0)
        })?;
        // Now the other direction is blocked while lanes are in use: they are given up.
        pair.router.drop("forward", BY_LANES[0])?;
        eventually("lanes that arrive no more are not used", LATER, || {
            pair.a.reaches(INSIDE_B[0], 30)?;
            Ok(lanes(&pair)? == [0, 0])
        })?;
        both_ways(&pair)?;
        ensure!(lanes(&pair)? == [0, 0], "{:?}", lanes(&pair)?);
        Ok(())
    });
}

/// Starts `a`, which asks for lanes and gets none from the other end.
fn without(pair: &Pair, lab: &Lab, check: impl FnOnce() -> Result<()>) -> Result<()> {
    pair.router.count("in-lanes", "forward", BY_LANES[1])?;
    // Only the offer of lanes has this length: a text of 16 bytes, header, tag and UDP header.
    pair.router.count("asked", "forward", "udp dport 51802 udp length 56")?;
    let _a = Up::start_with(lab, &pair.a, &pair.conf_a, &queues("2"))?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    eventually("it was asked", LATER, || {
        both_ways(pair)?;
        Ok(pair.router.counted("asked")? > 0)
    })?;
    for _ in 0..5 {
        both_ways(pair)?;
    }
    let sent = pair.router.counted("in-lanes")?;
    ensure!(sent == 0, "{sent} datagrams in lanes");
    ensure!(pair.a.shown("wga")?["peers"][0]["lanes"].is_null(), "lanes are in use");
    check()
}

#[test]
fn a_stock_peer_gets_none() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        without(&pair, lab, || {
            let endpoint = b.dump()?.peers[0].endpoint.clone();
            ensure!(endpoint == "10.1.0.2:51801", "something has moved it: {endpoint:?}");
            Ok(())
        })
    });
}

#[test]
fn an_end_with_one_queue_gets_none_and_has_no_more_ports() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let _b = Up::start_with(lab, &pair.b, &pair.conf_b, &queues("1"))?;
        without(&pair, lab, || {
            ensure!(sockets(&pair.b)? == 1, "{} sockets", sockets(&pair.b)?);
            Ok(())
        })
    });
}
