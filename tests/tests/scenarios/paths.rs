//! Several endpoints of one peer: the tunnel uses the working ones, all that have a weight, and survives the loss of
//! any.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    BOTH, Ended, Gaps, INSIDE_A, INSIDE_B, Keypair, LINKS, Lab, Loss, Node, Program, Tunnel, Twice, address,
    eventually, paths, scenario_of_rustguard, until_installed,
};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn other(link: &str) -> &'static str {
    if link == "one" { "two" } else { "one" }
}

/// Counts packets of more than 1,000 bytes that come in by each link, as `large-LINK`.
fn count(node: &Node) -> Result<()> {
    for link in LINKS {
        node.count(&format!("large-{link}"), "input", &format!("iifname {link} meta length > 1000"))?;
    }
    Ok(())
}

/// A scenario about a feature that only RustGuard has.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("several endpoints", body);
}

fn takes_over(lab: &Lab, loss: Loss) -> Result<()> {
    let network = Twice::new(lab, BOTH)?;
    let _tunnels = network.start(lab, Program::Subject)?;
    network.until_up()?;
    let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
    for round in 0..2 {
        let link = if network.paths()?[0]["active"] == true { "one" } else { "two" };
        network.cut(link, loss)?;
        network.until(link, "does not answer", |path| path["state"] == "down")?;
        network.until(other(link), "is in use", |path| path["active"] == true)?;
        traffic.goes_on(20)?;
        println!("{loss:?}, round {round}: the longest gap so far is {:?}", traffic.longest());
        network.mend()?;
        network.until_up()?;
    }
    ensure!(!traffic.longest().is_zero(), "nothing was lost: the link was not in use");
    // The other end does not keep lost paths either.
    ensure!(paths(&network.b, "wgb")?.len() == 2, "{:?}", paths(&network.b, "wgb")?);
    Ok(())
}

#[test]
fn a_lost_link_is_left() {
    ours(|lab| takes_over(lab, Loss::Both));
}

#[test]
fn a_link_that_is_lost_on_the_way_there_is_left() {
    ours(|lab| takes_over(lab, Loss::There));
}

#[test]
fn a_link_that_is_lost_on_the_way_back_is_left() {
    ours(|lab| takes_over(lab, Loss::Back));
}

/// Four TCP streams: each link carries some, in both directions. When a link is lost, its streams continue on the
/// other.
#[test]
fn flows_are_spread_over_links_with_weights() {
    ours(|lab| {
        lab.needs("iperf3", "iperf3")?;
        let network = Twice::new(lab, "10.1.0.2:51820 weight 1, 10.2.0.2:51820 weight 1")?;
        let _tunnels = network.start(lab, Program::Subject)?;
        for link in ["one", "two"] {
            network.until(link, "takes flows", |path| path["weight"] == 1)?;
        }
        if !network.limit(lab, 50)? {
            return Ok(());
        }
        for (direction, to) in [("", &network.b), ("-R", &network.a)] {
            count(to)?;
            let _server = network.b.iperf3()?;
            let ended = network.a.sh(&format!("iperf3 -c {} -P 4 -t 2 -J {direction}", INSIDE_B[0]))?;
            let report: Value = serde_json::from_str(&ended)?;
            let total = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3's sum")?;
            let by = [to.counted("large-one")?, to.counted("large-two")?];
            println!("{direction} {:.0} Mbit/s, by link {by:?} packets", total / 1e6);
            // The scheduler decides how fast each of the four streams is.
            let least = (by[0] + by[1]) / 10;
            ensure!(by.iter().all(|&by| by > least), "a link is nearly empty: {by:?}");
            to.sh("nft delete table inet lab")?;
        }
        // A link is lost while streams run: the streams of the other link continue, and those of the lost link move
        // there.
        let _server = network.b.iperf3()?;
        let run = network
            .a
            .spawn("streams", network.a.command("iperf3").args(["-c", INSIDE_B[0], "-P", "4", "-t", "8", "-J"]));
        let mut run = run?;
        network.a.reaches(INSIDE_B[0], 5)?;
        network.cut("two", Loss::Both)?;
        network.until("two", "does not answer", |path| path["state"] == "down")?;
        // The link works again, and gets its share of the streams that continued without it.
        network.mend()?;
        network.until("two", "takes flows", |path| path["weight"] == 1)?;
        count(&network.b)?;
        eventually("streams go by the link that is good again", Duration::from_secs(4), || {
            Ok(network.b.counted("large-two")? > 200)
        })?;
        let ended = run.ended(SOON)?;
        let report: Value = serde_json::from_str(&ended.stdout).or_else(|_| serde_json::from_str(&run.log()))?;
        let streams = report["end"]["streams"].as_array().context("iperf3's streams")?;
        for stream in streams {
            ensure!(stream["receiver"]["bytes"].as_u64() > Some(100_000), "a stream has stalled: {stream}");
        }
        ensure!(streams.len() == 4);
        Ok(())
    });
}

/// The first endpoint never works: it must not delay anything.
#[test]
fn a_dead_endpoint_holds_nobody_up() {
    ours(|lab| {
        let network = Twice::new(lab, BOTH)?;
        network.cut("one", Loss::Both)?;
        let _tunnels = network.start(lab, Program::Subject)?;
        network.until("two", "is in use", |path| path["active"] == true && path["state"] == "up")?;
        let log = std::fs::read_to_string(lab.path("wga.log"))?;
        let initiations = log.matches("handshake complete").count();
        ensure!(initiations == 1, "{initiations} handshakes");
        network.mend()?;
        network.until_up()
    });
}

/// wireguard-go does not answer probes: its endpoints are tried by handshakes.
#[test]
fn a_stock_peer_is_found_by_its_other_endpoint() {
    ours(|lab| {
        let network = Twice::new(lab, BOTH)?;
        let (_a, b) = network.start(lab, Program::Reference)?;
        let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
        let at = |link: &str| -> Result<bool> {
            let shown = network.a.run(&["wg", "show", "wga", "endpoints"])?;
            Ok(shown.contains(&address(link)))
        };
        for round in 0..2 {
            let link = if at("one")? { "one" } else { "two" };
            network.cut(link, Loss::Both)?;
            eventually("the stock peer is reached by the other link", SOON, || at(other(link)))?;
            traffic.goes_on(20)?;
            println!("round {round}: the longest gap so far is {:?}", traffic.longest());
            network.mend()?;
        }
        // Its own `wg show` has our new address: its endpoint has moved with us.
        let back = b.dump()?.peer(&network.conf_a.keys.public)?.endpoint.clone();
        ensure!(back.ends_with(":51820"), "{back}");
        Ok(())
    });
}

/// Each end knows both endpoints of the other, one of them by name.
#[test]
fn both_ends_may_know_several() {
    ours(|lab| {
        let mut network = Twice::new(lab, "b-by-one:51820, 10.2.0.2:51820")?;
        lab.host("10.1.0.2", "b-by-one")?;
        network.conf_b.peers[0].endpoint = Some("10.1.0.1:51820, 10.2.0.1:51820".to_owned());
        let _tunnels = network.start(lab, Program::Subject)?;
        network.until_up()?;
        let mut traffic = Gaps::start(&network.b, "traffic", INSIDE_A[0])?;
        network.cut("one", Loss::Both)?;
        network.until("two", "is in use", |path| path["active"] == true)?;
        traffic.goes_on(20)?;
        network.mend()?;
        network.until_up()
    });
}

/// A name has two addresses: when one is lost, the other is used.
#[test]
fn a_name_has_another_address() {
    ours(|lab| {
        let network = Twice::new(lab, "b-by-both:51820, 10.1.0.77:51820")?;
        lab.host("10.1.0.2", "b-by-both")?;
        lab.host("10.2.0.2", "b-by-both")?;
        let _tunnels = network.start(lab, Program::Subject)?;
        let named = || -> Result<Value> { Ok(network.paths()?.swap_remove(0)) };
        eventually("the name's first address works", SOON, || Ok(named()?["state"] == "up"))?;
        let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
        let at = named()?["endpoint"].as_str().unwrap_or_default().to_owned();
        let link = if at.starts_with(&address("one")) { "one" } else { "two" };
        network.cut(link, Loss::Both)?;
        network.until(other(link), "works", |path| path["state"] == "up" && path["active"] == true)?;
        traffic.goes_on(20)
    });
}

/// One address of the peer, and two interfaces to reach it: `via`.
#[test]
fn two_uplinks_to_one_address() {
    ours(|lab| {
        // b is reached only at 10.3.0.2, behind a router; a has two links to the router, and default routes by both.
        let mut network = Twice::new(lab, "10.3.0.2:51820 via one weight 1, 10.3.0.2:51820 via two weight 1")?;
        let router = &network.b;
        let b = lab.node("far")?;
        lab.link((&b, "eth0"), (router, "to-far"))?;
        router.sh("sysctl -qw net.ipv4.ip_forward=1; ip addr add 10.3.0.1/24 dev to-far")?;
        b.sh("ip addr add 10.3.0.2/24 dev eth0; ip route add default via 10.3.0.1")?;
        network.a.sh("ip route add default via 10.1.0.2 metric 100; ip route add default via 10.2.0.2 metric 200")?;
        network.conf_b.interface = "wgfar".to_owned();
        let _b = Tunnel::start(lab, &b, Program::Subject, &network.conf_b)?;
        let _a = Tunnel::start(lab, &network.a, Program::Subject, &network.conf_a)?;
        network.a.reaches(INSIDE_B[0], 10)?;
        eventually("both paths work", SOON, || {
            Ok(network.paths()?.iter().filter(|path| path["state"] == "up" && path["weight"] == 1).count() == 2)
        })
        .with_context(|| format!("{:?}", network.paths()))?;
        for (name, rule) in
            [("one", "iifname one"), ("two", "iifname two"), ("back-one", "oifname one"), ("back-two", "oifname two")]
        {
            router.count(name, "forward", &format!("{rule} meta length > 1000"))?;
        }
        // Sends flows of one datagram each until both links have carried some in both directions.
        let mut port = 7_000;
        eventually("both links carry their part, both ways", SOON, || {
            for (node, to) in [(&network.a, INSIDE_B[0]), (&b, INSIDE_A[0])] {
                for _ in 0..4 {
                    port += 1;
                    node.run(&["bash", "-c", &format!("head -c 1200 /dev/zero > /dev/udp/{to}/{port}")])?;
                }
            }
            let counters = ["one", "two", "back-one", "back-two"];
            let by = counters.iter().map(|name| router.counted(name)).collect::<Result<Vec<_>>>()?;
            Ok(by.iter().all(|&by| by >= 2))
        })?;
        network.a.sh("ip link set one down")?;
        network.a.reaches(INSIDE_B[0], 10)?;
        // Unplugged and plugged in again: a new interface with the same name counts as the same.
        network.a.sh("ip link set one up; ip route replace default via 10.1.0.2 metric 100")?;
        eventually("both paths work again", SOON, || {
            Ok(network.paths()?.iter().filter(|path| path["state"] == "up").count() == 2)
        })
    });
}

/// For Babel, a peer is one neighbour, however many paths lead to it: a lost path is replaced before Babel notices.
#[test]
fn a_routing_protocol_does_not_notice() {
    ours(|lab| {
        let mut network = Twice::new(lab, BOTH)?;
        for conf in [&mut network.conf_a, &mut network.conf_b] {
            conf.lines.push("Routing = babel".to_owned());
            conf.addresses = conf.addresses.iter().map(|address| address.replace("/24", "/32")).collect();
            conf.peers[0].allowed_ips = "10.9.0.0/16".to_owned();
        }
        let _b = Tunnel::start(lab, &network.b, Program::Subject, &network.conf_b)?;
        let _a = Tunnel::start(lab, &network.a, Program::Subject, &network.conf_a)?;
        until_installed(&network.a, &format!("{}/32", INSIDE_B[0]))?;
        network.a.reaches(INSIDE_B[0], 10)?;
        network.until_up()?;
        let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
        for _ in 0..2 {
            let link = if network.paths()?[0]["active"] == true { "one" } else { "two" };
            network.cut(link, Loss::Both)?;
            network.until(link, "does not answer", |path| path["state"] == "down")?;
            traffic.goes_on(20)?;
            network.mend()?;
            network.until_up()?;
        }
        println!("the longest gap is {:?}", traffic.longest());
        for log in ["wga.log", "wgb.log"] {
            let log = std::fs::read_to_string(lab.path(log))?;
            ensure!(log.contains("is a neighbour"), "there is no Babel: {log}");
            ensure!(!log.contains("is no neighbour any more"), "{log}");
        }
        // The two do not keep each other active: Hellos are not traffic for which paths are probed.
        drop(traffic);
        network.a.count("probes", "output", "udp dport 51820 udp length 72")?;
        let pass = |seconds: u32| network.a.run(&["ping", "-q", "-i", "1", "-c", &seconds.to_string(), "10.1.0.2"]);
        pass(4)?;
        let before = network.a.counted("probes")?;
        pass(6)?;
        let probes = network.a.counted("probes")? - before;
        ensure!(probes <= 8, "{probes} probes in five seconds without traffic");
        Ok(())
    });
}

/// `wg set … endpoint` replaces all endpoints of a peer by one, as for any peer.
#[test]
fn wg_puts_one_endpoint_in_place_of_several() {
    ours(|lab| {
        let network = Twice::new(lab, BOTH)?;
        let (a, _b) = network.start(lab, Program::Subject)?;
        network.until_up()?;
        a.set(&format!("peer {} endpoint 10.2.0.2:51820", network.conf_b.keys.public))?;
        ensure!(network.paths()?.is_empty(), "{:?}", network.paths()?);
        network.cut("one", Loss::Both)?;
        network.a.reaches(INSIDE_B[0], 10)?;
        let dump = a.dump()?;
        let endpoint = &dump.peer(&network.conf_b.keys.public)?.endpoint;
        ensure!(endpoint == "10.2.0.2:51820", "{endpoint}");
        Ok(())
    });
}

/// A pinned endpoint changes neither to another endpoint nor by roaming.
#[test]
fn pinned_stays() {
    ours(|lab| {
        let network = Twice::new(lab, "10.2.0.2:51820 pinned")?;
        let (a, b) = network.start(lab, Program::Subject)?;
        // b sends from another address: a accepts its packets, and changes nothing else.
        b.set(&format!("peer {} endpoint 10.1.0.1:51820", network.conf_a.keys.public))?;
        network.b.sh(&format!("ping -n -c 1 -W 1 {} || true", INSIDE_A[0]))?;
        network.a.reaches(INSIDE_B[0], 5)?;
        let dump = a.dump()?;
        let endpoint = &dump.peer(&network.conf_b.keys.public)?.endpoint;
        ensure!(endpoint == "10.2.0.2:51820", "{endpoint}");
        Ok(())
    });
}

#[test]
fn the_configuration_is_checked() {
    ours(|lab| {
        let node = lab.node("a")?;
        let check = |endpoints: &str| -> Result<Ended> {
            let keys = Keypair::generate()?;
            let other = Keypair::generate()?;
            let text = format!(
                "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nEndpoint = {endpoints}\n",
                keys.private, other.public
            );
            let file = lab.file("c.conf", &text)?;
            node.end_of(node.rustguard()?.arg("check").arg(file))
        };
        ensure!(check(BOTH)?.success());
        ensure!(check("a.example:1 weight 2, [2001:db8::1]:2 via eth1 weight 1, 10.1.1.1:3")?.success());
        for (endpoints, says) in [
            ("10.1.0.2:51820, 10.1.0.2:51820", "given twice"),
            ("10.1.0.2:51820, , 10.2.0.2:51820", "Endpoint"),
            ("10.1.0.2:51820 10.2.0.2:51820", "comma"),
            ("10.1.0.2:51820 weight 0", "1 to 255"),
            ("10.1.0.2:51820 via", "via INTERFACE"),
            ("10.1.0.2:51820 via an-interface-too-long", "interface"),
            ("a:1, b:1, c:1, d:1, e:1, f:1, g:1, h:1", "at most 7"),
        ] {
            let ended = check(endpoints)?;
            ensure!(!ended.success() && format!("{ended}").contains(says), "{endpoints}: {ended}");
        }
        Ok(())
    });
}
