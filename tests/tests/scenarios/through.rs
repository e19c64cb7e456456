//! Sessions through a forwarding peer: two machines cannot reach each other, and a relay between them cannot read their
//! traffic.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    HUB_A, HUB_B, HUB_C, Hub, Lab, Node, PeerConf, Program, Tunnel, Up, eventually, scenario_of_rustguard,
};
use serde_json::Value;
use std::{env, time::Duration};

const SOON: Duration = Duration::from_secs(20);

/// A scenario about a feature that only RustGuard has.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("sessions through a peer", body);
}

/// A hub whose ends have each other as peers: `a` through `b`, and `c` without an endpoint.
fn ends_know_each_other(lab: &Lab) -> Result<Hub> {
    let mut hub = Hub::new(lab)?;
    hub.conf_b.lines.push("Forward = on".to_owned());
    let own = |addresses: [&str; 2]| addresses.map(|address| address.to_owned()).join(", ");
    for conf in [&mut hub.conf_a, &mut hub.conf_c] {
        conf.peers[0].allowed_ips = own(HUB_B);
    }
    let mut c = PeerConf::new(&hub.conf_c.keys.public, &own(HUB_C));
    c.endpoint = Some(format!("via-peer {}", hub.conf_b.keys.public));
    hub.conf_a.peers.push(c);
    hub.conf_c.peers.push(PeerConf::new(&hub.conf_a.keys.public, &own(HUB_A)));
    Ok(hub)
}

/// The entry of the interface's only peer behind the relay in `show --json`.
fn far_peer(node: &Node, interface: &str) -> Result<Value> {
    Ok(node.shown(interface)?["peers"][1].take())
}

/// Packets that `b`'s host received from the tunnel.
fn seen_by_the_host(hub: &Hub) -> Result<u64> {
    Ok(hub.b.run(&["cat", "/sys/class/net/wgb/statistics/rx_packets"])?.trim().parse()?)
}

fn forwarded(hub: &Hub) -> Result<u64> {
    hub.shown()?["forwarded"].as_u64().context("a number of forwarded datagrams")
}

fn start(lab: &Lab, hub: &Hub) -> Result<(Tunnel, Up, Tunnel)> {
    hub.start(lab, Program::Subject, &[])
}

#[test]
fn a_session_goes_both_ways_and_the_relay_reads_nothing() {
    ours(|lab| {
        let hub = ends_know_each_other(lab)?;
        // Only the tunnel connects the two.
        hub.a.does_not_reach("10.3.0.2")?;
        let _tunnels = start(lab, &hub)?;
        hub.a.reaches(HUB_C[0], 10)?;
        let seen = seen_by_the_host(&hub)?;
        for family in [0, 1] {
            hub.a.reaches(HUB_C[family], 3)?;
            hub.c.reaches(HUB_A[family], 3)?;
        }
        for (node, interface) in [(&hub.a, "wga"), (&hub.c, "wgc")] {
            let peer = far_peer(node, interface)?;
            ensure!(peer["through"] == hub.conf_b.keys.public.as_str(), "{interface}: {peer}");
            ensure!(peer["connection"]["state"] == "online" && peer["endpoint"].is_null(), "{interface}: {peer}");
        }
        let (host, relay) = (seen_by_the_host(&hub)?, hub.shown()?);
        ensure!(host == seen && relay["relayed"] == 0, "the relay has decrypted packets: {seen}, {host}, {relay}");
        // A handshake, and five echo requests with replies.
        ensure!(relay["forwarded"].as_u64() >= Some(12) && relay["dropped"] == serde_json::json!({}), "{relay}");
        Ok(())
    });
}

/// Sessions with the relay and sessions through it have separate handshakes; a restart of either machine loses some of
/// both.
#[test]
fn what_is_restarted_is_found_again_and_the_other_end_needs_no_help() {
    ours(|lab| {
        let mut hub = ends_know_each_other(lab)?;
        for conf in [&mut hub.conf_a, &mut hub.conf_c] {
            conf.peers[0].persistent_keepalive = Some(1);
        }
        let (a, b, c) = start(lab, &hub)?;
        hub.a.reaches(HUB_C[0], 10)?;
        // A killed relay tells nobody.
        drop(b);
        let _b = Up::start(lab, &hub.b, &hub.conf_b)?;
        eventually("the relay forwards again", 2 * SOON, || hub.a.reaches(HUB_C[0], 1).map(|()| true).or(Ok(false)))?;
        c.crash()?;
        let _c = Tunnel::start(lab, &hub.c, Program::Subject, &hub.conf_c)?;
        eventually("the far end has a session again", 2 * SOON, || {
            hub.a.reaches(HUB_C[0], 1).map(|()| true).or(Ok(false))
        })?;
        drop(a);
        Ok(())
    });
}

#[test]
fn both_layers_have_new_keys_in_time() {
    ours(|lab| {
        if env::var_os("RUSTGUARD_LONG").is_none() {
            lab.skip("takes minutes, `cargo suite --long` runs it");
            return Ok(());
        }
        let hub = ends_know_each_other(lab)?;
        let _tunnels = start(lab, &hub)?;
        hub.a.reaches(HUB_C[0], 10)?;
        let handshakes = || -> Result<[u64; 2]> {
            let peers = hub.a.shown("wga")?["peers"].take();
            let at = |n: usize| peers[n]["latest_handshake"].as_u64().context("a handshake");
            Ok([at(0)?, at(1)?])
        };
        let first = handshakes()?;
        eventually("both have a later handshake", Duration::from_secs(150), || {
            // Every answer arrives within a second.
            hub.a.reaches(HUB_C[0], 1)?;
            let now = handshakes()?;
            Ok(now[0] > first[0] && now[1] > first[1])
        })
    });
}

/// A stock peer cannot be the end of such a session, and the attempt does not harm it.
#[test]
fn a_stock_peer_behind_the_relay_is_unharmed() {
    ours(|lab| {
        let hub = ends_know_each_other(lab)?;
        let _b = Up::start(lab, &hub.b, &hub.conf_b)?;
        let _c = Tunnel::start(lab, &hub.c, Program::Reference, &hub.conf_c)?;
        hub.c.reaches(HUB_B[0], 10)?;
        let before = forwarded(&hub)?;
        let _a = Tunnel::start(lab, &hub.a, Program::Subject, &hub.conf_a)?;
        hub.a.does_not_reach(HUB_C[0])?;
        eventually("the attempt arrives there", SOON, || Ok(forwarded(&hub)? > before))?;
        hub.c.reaches(HUB_B[0], 3)?;
        hub.b.reaches(HUB_C[1], 3)?;
        Ok(())
    });
}

#[test]
fn who_does_not_forward_drops_and_counts_it() {
    ours(|lab| {
        let mut hub = ends_know_each_other(lab)?;
        hub.conf_b.lines.clear();
        let _tunnels = start(lab, &hub)?;
        hub.a.reaches(HUB_B[0], 10)?;
        hub.a.does_not_reach(HUB_C[0])?;
        let relay = hub.shown()?;
        ensure!(relay["dropped"]["forward_off"].as_u64() > Some(0) && relay["forwarded"].is_null(), "{relay}");
        // The relay does not report it. The end names what to check.
        eventually("the cause is named", SOON, || {
            let problem = far_peer(&hub.a, "wga")?["problem"].take();
            ensure!(problem.is_null() || problem["text"].to_string().contains("no `Forward = on`"), "{problem}");
            Ok(problem["kind"] == "no-answer-through")
        })?;
        let set = hub.b.end_of(hub.b.rustguard()?.args(["set", "wgb", "forward", "on"]))?;
        ensure!(set.success(), "{set}");
        eventually("it forwards", SOON, || hub.a.reaches(HUB_C[0], 1).map(|()| true).or(Ok(false)))?;
        ensure!(far_peer(&hub.a, "wga")?["problem"].is_null(), "{}", far_peer(&hub.a, "wga")?);
        Ok(())
    });
}
