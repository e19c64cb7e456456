//! Where a tunnel listens: `ListenAddress`.
use anyhow::ensure;
use rustguard_tests::{INSIDE_B, Outside, Pair, Program, Tunnel, scenario_of_rustguard};

/// The second address of `b`.
const SECOND: &str = "10.2.0.9";

/// Two tunnels on one host have the same port, each at an address of its own. Each is reached at its address, and answers from it.
#[test]
fn two_tunnels_share_a_port_at_two_addresses() {
    scenario_of_rustguard("ListenAddress", |lab| {
        // The one that is tested is `b`, and it is the second on its host.
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.b.sh(&format!("ip addr add {SECOND}/24 dev eth0"))?;
        let mut first = pair.conf_b.clone();
        first.interface = "first".to_owned();
        first.addresses = vec!["10.77.0.1/24".to_owned()];
        first.lines.push("ListenAddress = 10.2.0.2".to_owned());
        first.peers.clear();
        pair.conf_b.lines.push(format!("ListenAddress = {SECOND}"));
        pair.conf_a.peers[0].endpoint = Some(format!("{SECOND}:51802"));
        let _first = Tunnel::start(lab, &pair.b, Program::Subject, &first)?;
        let (a, _b) = pair.start(lab, Program::Reference, Program::Subject)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let seen = &a.dump()?.peers[0].endpoint;
        ensure!(*seen == format!("{SECOND}:51802"), "{seen}");

        let sockets = pair.b.sh("ss -Huln sport = :51802")?;
        ensure!(sockets.contains("10.2.0.2:51802") && sockets.contains("10.2.0.9:51802"), "{sockets}");
        ensure!(!sockets.contains("0.0.0.0:51802") && !sockets.contains('['), "{sockets}");
        let shown = pair.b.end_of(pair.b.rustguard()?.args(["show", "wgb"]))?;
        ensure!(shown.stdout.contains(&format!("listening address: {SECOND}")), "{shown}");
        let json = pair.b.end_of(pair.b.rustguard()?.args(["show", "--json", "wgb"]))?;
        ensure!(json.stdout.contains("\"listen_addresses\""), "{json}");
        // Set down and up again, it listens where it did.
        pair.b.sh("ip link set wgb down; ip link set wgb up")?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let sockets = pair.b.sh("ss -Huln sport = :51802")?;
        ensure!(sockets.contains("10.2.0.9:51802") && !sockets.contains("0.0.0.0:51802"), "{sockets}");
        Ok(())
    });
}

#[test]
fn an_address_that_the_host_does_not_have_is_named() {
    scenario_of_rustguard("ListenAddress", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_b.lines.push("ListenAddress = 192.0.2.7".to_owned());
        let file = lab.file("wgb.conf", &pair.conf_b.wg_quick())?;
        let ended = pair.b.end_of(pair.b.rustguard()?.arg("up").arg(&file))?;
        ended.refused(&["no interface of this host has the address 192.0.2.7", "ListenAddress"])
    });
}
