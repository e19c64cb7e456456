//! Where a tunnel listens: `ListenAddress`, and several `ListenPort`s.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Conf, INSIDE_B, Lab, Outside, Pair, PeerConf, Program, Tunnel, eventually, paths, scenario_of_rustguard,
};
use std::time::Duration;

/// The second address of `b`.
const SECOND: &str = "10.2.0.9";

/// Two tunnels on one host have the same port, each at its own address. Each is reached at its address and answers from
/// it.
#[test]
fn two_tunnels_share_a_port_at_two_addresses() {
    scenario_of_rustguard("ListenAddress", |lab| {
        // The tested program is `b`, the second tunnel on its host.
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
        ensure!(shown.unfolded().contains(&format!("listening address: {SECOND}")), "{shown}");
        let json = pair.b.end_of(pair.b.rustguard()?.args(["show", "--json", "wgb"]))?;
        ensure!(json.stdout.contains("\"listen_addresses\""), "{json}");
        // Set down and up again, the tunnel listens at the same address.
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

/// A pair whose `b` has the ports 51802 and 51803.
fn with_two_ports(lab: &Lab) -> Result<Pair> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    pair.conf_b.listen_port = None;
    pair.conf_b.lines.push("ListenPort = 51802, 51803".to_owned());
    Ok(pair)
}

/// A second stock peer of `b`, on the host of `a`, with the port 51804. Inside, it is 10.9.1.1, and `b` is 10.9.1.2.
fn with_second_peer(pair: &mut Pair) -> Result<Conf> {
    let mut second = Conf::new("wgc")?;
    second.listen_port = Some(51_804);
    second.addresses = vec!["10.9.1.1/24".to_owned()];
    second.peers.push(PeerConf::new(&pair.conf_b.keys.public, "10.9.1.2/32"));
    pair.conf_b.addresses.push("10.9.1.2/24".to_owned());
    pair.conf_b.peers.push(PeerConf::new(&second.keys.public, "10.9.1.1/32"));
    Ok(second)
}

#[test]
fn each_stock_peer_is_answered_from_the_port_it_sends_to() {
    scenario_of_rustguard("several ListenPorts", |lab| {
        let mut pair = with_two_ports(lab)?;
        let mut second = with_second_peer(&mut pair)?;
        pair.conf_a.peers[0].endpoint = Some("10.2.0.2:51803".to_owned());
        second.peers[0].endpoint = Some("10.2.0.2:51802".to_owned());
        for (name, rule) in [
            ("a", "udp sport 51803 udp dport 51801"),
            ("c", "udp sport 51802 udp dport 51804"),
            ("wrong_a", "udp sport 51802 udp dport 51801"),
            ("wrong_c", "udp sport 51803 udp dport 51804"),
        ] {
            pair.b.count(name, "output", rule)?;
        }
        let (a, b) = pair.start(lab, Program::Reference, Program::Subject)?;
        let c = Tunnel::start(lab, &pair.a, Program::Reference, &second)?;
        let answered = |ports: [&str; 2]| {
            for (inside, tunnel, port) in [(INSIDE_B[0], &a, ports[0]), ("10.9.1.2", &c, ports[1])] {
                pair.a.reaches(inside, 10)?;
                let seen = &tunnel.dump()?.peers[0].endpoint;
                ensure!(*seen == format!("10.2.0.2:{port}"), "{seen}");
            }
            Ok(())
        };
        answered(["51803", "51802"])?;
        ensure!(pair.b.counted("a")? > 1 && pair.b.counted("c")? > 1, "no answers");
        ensure!(pair.b.counted("wrong_a")? + pair.b.counted("wrong_c")? == 0, "answers from another port");

        let shown = pair.b.end_of(pair.b.rustguard()?.args(["show", "wgb"]))?;
        ensure!(shown.stdout.contains("listening ports: 51802, 51803"), "{shown}");
        let json = pair.b.end_of(pair.b.rustguard()?.args(["show", "--json", "wgb"]))?;
        let json: serde_json::Value = serde_json::from_str(&json.stdout)?;
        let ports = json.pointer("/wgb/listen_ports").or_else(|| json.pointer("/0/listen_ports"));
        ensure!(ports == Some(&serde_json::json!([51_802, 51_803])), "{json}");
        ensure!(pair.b.run(&["wg", "show", "wgb", "listen-port"])?.trim() == "51802");

        // A new port replaces both, and the peers learn of it.
        ensure!(b.set("listen-port 51803").is_err(), "it is one of both");
        b.set("listen-port 51899")?;
        let sockets = pair.b.sh("ss -Huln")?;
        ensure!(
            sockets.contains(":51899 ") && !sockets.contains(":51802 ") && !sockets.contains(":51803 "),
            "{sockets}"
        );
        answered(["51899", "51899"])
    });
}

#[test]
fn stock_peers_are_spread_over_the_ports() {
    scenario_of_rustguard("several ListenPorts", |lab| {
        let mut pair = with_two_ports(lab)?;
        let second = with_second_peer(&mut pair)?;
        pair.conf_a.peers[0].endpoint = None;
        for (peer, port) in pair.conf_b.peers.iter_mut().zip([51_801, 51_804]) {
            peer.endpoint = Some(format!("10.1.0.2:{port}"));
        }
        let a = Tunnel::start(lab, &pair.a, Program::Reference, &pair.conf_a)?;
        let c = Tunnel::start(lab, &pair.a, Program::Reference, &second)?;
        let _b = Tunnel::start(lab, &pair.b, Program::Subject, &pair.conf_b)?;
        let mut ports = Vec::new();
        for (tunnel, inside) in [(&a, "10.9.0.1"), (&c, "10.9.1.1")] {
            pair.b.reaches(inside, 10)?;
            let seen = tunnel.dump()?.peers[0].endpoint.clone();
            ports.push(seen.rsplit(':').next().context("a port")?.to_owned());
        }
        ports.sort_unstable();
        ensure!(ports == ["51802", "51803"], "{ports:?}");
        Ok(())
    });
}

/// The flows of one peer: each path goes to a different port of the other side.
#[test]
fn two_paths_to_two_ports_carry_both() {
    scenario_of_rustguard("several ListenPorts", |lab| {
        let mut pair = with_two_ports(lab)?;
        pair.conf_a.peers[0].endpoint = Some("10.2.0.2:51802 weight 1, 10.2.0.2:51803 weight 1".to_owned());
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Subject)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        eventually("both paths work", Duration::from_secs(30), || {
            Ok(paths(&pair.a, "wga")?.iter().filter(|path| path["state"] == "up").count() == 2)
        })?;
        // Longer than probes and handshakes, so only data is counted.
        for port in ["51802", "51803"] {
            pair.b.count(&format!("to_{port}"), "input", &format!("udp dport {port} udp length > 900"))?;
        }
        let flows = format!(
            "d=$(printf %01000d 0); for n in $(seq 1 64); do echo $d > /dev/udp/{}/$((9000 + n)); done",
            INSIDE_B[0]
        );
        let counted = || -> Result<[u64; 2]> { Ok([pair.b.counted("to_51802")?, pair.b.counted("to_51803")?]) };
        // The kernel counts coalesced datagrams as one, and on a busy machine many are coalesced.
        eventually("flows arrive at both", Duration::from_secs(30), || {
            pair.a.run(&["bash", "-c", &flows])?;
            Ok(counted()?.iter().all(|count| *count >= 8))
        })
        .with_context(|| format!("{:?}", counted()))
    });
}
