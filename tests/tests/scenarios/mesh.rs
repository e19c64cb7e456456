//! Meshes of real daemons: routers that speak Babel in lines, rings and diamonds, and their reactions to bad input.
//! Stock routers are in `mesh_stock.rs`, clients that do not speak Babel in `mesh_clients.rs`.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Gaps, Lab, Mesh, Node, Program, Tunnel, Up, eventually, meshed, until_installed};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_line_is_one_network() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let [a, b, c] = mesh.all(["a", "b", "c"])?;
        let before = mesh.traces()?;
        b.node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")?;
        let forwarded = b.node.forwarded()?;
        let started = Instant::now();
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        println!("from the start of the first until all reach all: {:?}", started.elapsed());

        for address in &c.inside {
            let relayed = b.relayed()?;
            a.node.run(&["ping", "-n", "-q", "-i", "0.01", "-c", "20", "-W", "1", address])?;
            let relayed = b.relayed()? - relayed;
            ensure!(relayed >= 40, "{relayed} packets relayed of 20 there and 20 back");
        }
        ensure!(b.node.forwarded()? == forwarded, "the host of b has forwarded packets");
        for prefix in c.own() {
            let route = a.installed(&prefix)?;
            ensure!(route.contains("dev wga proto babel"), "{prefix}: {route}");
        }

        let left = Instant::now();
        ups.pop().expect("c is up").down()?;
        for prefix in c.own() {
            a.until_lost(&prefix)?;
        }
        println!("from SIGTERM of c until a has no route to it: {:?}", left.elapsed());
        mesh.ends_without_traces(ups, &before)
    });
}

#[test]
fn a_killed_router_comes_back() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        // Twice: the second run continues with the numbers of the first.
        for _ in 0..2 {
            let killed = Instant::now();
            ups[1].process()?.stop("KILL")?;
            for prefix in c.own() {
                a.until_lost(&prefix)?;
            }
            println!("from SIGKILL of b until a has no route to c: {:?}", killed.elapsed());
            let started = Instant::now();
            ups[1] = b.start(lab)?;
            mesh.converged()?;
            println!("from the new start of b until all reach all: {:?}", started.elapsed());
        }
        Ok(())
    });
}

/// Nodes that are not peers learn each other's names. The local name of a peer takes precedence over the name that it
/// announces.
#[test]
fn names_are_known_beyond_the_next_hop() {
    meshed(|lab| {
        let mut mesh = Mesh::line(lab)?;
        for (router, name) in [("a", "first"), ("b", "off"), ("c", "third-one")] {
            mesh.get_mut(router)?.conf.lines.push(format!("NodeName = {name}"));
        }
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, c) = (mesh.get("a")?, mesh.get("c")?);
        for (router, prefix, name) in [("a", c.own(), "third-one"), ("c", a.own(), "first"), ("b", c.own(), "c")] {
            let router = mesh.get(router)?;
            eventually("the origin has its name", SOON, || Ok(router.route(&prefix[0])?["origin_name"] == name))?;
        }
        let asked = |arguments: &[&str]| -> Result<String> {
            let ended = a.node.end_of(a.node.rustguard()?.args(arguments))?;
            ensure!(ended.success(), "{ended}");
            Ok(ended.stdout)
        };
        let routes = asked(&["routes", "wga"])?;
        ensure!(routes.contains("third-one ("), "{routes}");
        let trace = asked(&["trace", "-i", "wga", "--json", &c.inside[0]])?;
        ensure!(trace.contains("\"origin_name\": \"third-one\""), "{trace}");
        let map = asked(&["map", "-i", "wga", "--format", "dot"])?;
        ensure!(map.contains("third-one"), "{map}");
        Ok(())
    });
}

/// A backup of the state is restored: its sequence numbers are older than those that the others have heard.
#[test]
fn an_old_state_put_back_is_believed() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, c) = (mesh.get("a")?, mesh.get("c")?);
        let state = Path::new("/var/lib/rustguard/wgc/routing");
        let backup = fs::read(state)?;
        let origin = || -> Result<_> { Ok(a.route(&c.own()[0])?["origin"].clone()) };
        let before = origin()?;
        // Each start uses numbers beyond those that the previous run stored.
        for _ in 0..2 {
            ups.pop().expect("c is up").down()?;
            a.until_lost(&c.own()[0])?;
            ups.push(c.start(lab)?);
            mesh.converged()?;
        }
        ensure!(fs::read(state)? != backup, "nothing newer was kept");
        ensure!(origin()? == before, "c goes on as who it was");

        ups.pop().expect("c is up").down()?;
        a.until_lost(&c.own()[0])?;
        fs::write(state, &backup)?;
        let started = Instant::now();
        ups.push(c.start(lab)?);
        // If c did not answer the others' requests, they would forget the newer numbers only after six minutes.
        mesh.converged()?;
        println!("from the start of c with the old state until all reach all: {:?}", started.elapsed());
        ensure!(origin()? != before, "c is believed as who it was, with numbers that are older");
        Ok(())
    });
}

#[test]
fn a_traceroute_shows_who_relays() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        b.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        for (family, says) in ["Time to live exceeded", "Time exceeded"].into_iter().enumerate() {
            let ping = |hops| {
                let mut command = a.node.command("ping");
                a.node.end_of(command.args(["-n", "-c", "1", "-W", "2", "-t", hops, &c.inside[family]]))
            };
            let ended = ping("1")?;
            let from = format!("From {}", b.inside[family]);
            ensure!(ended.stdout.contains(&from) && ended.stdout.contains(says), "{ended}");
            let ended = ping("2")?;
            ensure!(ended.success(), "two hops should do: {ended}");
        }
        Ok(())
    });
}

/// The kernel removes routes when the interface goes down; they return when it is up again.
#[test]
fn routes_come_back_with_the_interface() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, c) = (mesh.get("a")?, mesh.get("c")?);
        a.node.sh("ip link set wga down; ip link set wga up; ip addr replace fd77::1/128 dev wga nodad")?;
        for prefix in c.own() {
            until_installed(&a.node, &prefix)?;
        }
        mesh.converged()
    });
}

/// Five in a ring: when one link is lost, the path in the other direction remains.
#[test]
fn a_ring_goes_the_other_way_round() {
    meshed(|lab| {
        let mesh = Mesh::ring(lab)?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        let prefix = &b.own()[0];
        a.until_via(prefix, &["b"])?;
        let cut = Instant::now();
        a.node.run(&["ip", "link", "set", "to-b", "down"])?;
        a.until_via(prefix, &["e"])?;
        println!("from the cut until a goes the other way round: {:?}", cut.elapsed());
        a.node.reaches(&b.inside[0], 3)?;
        let mended = Instant::now();
        a.node.run(&["ip", "link", "set", "to-b", "up"])?;
        a.until_via(prefix, &["b"])?;
        println!("from the link's return until a uses it: {:?}", mended.elapsed());
        mesh.converged()
    });
}

/// The event that affects one of the two routers in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    LosesAllOfOneLink,
    HearsNothingOfOneLink,
}

/// Traffic from one end of a diamond to the other continues, whatever happens to the middle router that carries it.
fn goes_on(lab: &Lab, fate: Fate) -> Result<()> {
    let mesh = Mesh::diamond(lab)?;
    let (a, d) = (mesh.get("a")?, mesh.get("d")?);
    let mut ups = mesh.start(lab)?;
    mesh.converged()?;
    for name in ["b", "c"] {
        mesh.get(name)?.node.count("requests", "input", "iifname to-a meta length > 1000")?;
    }
    let mut traffic = Gaps::start(&a.node, "traffic", &d.inside[0])?;
    // Round trips decide which of the two carries the traffic, and a busy machine changes them. Take the one whose
    // counter has risen since the last look.
    let (mut before, mut carrier) = ([u64::MAX; 2], "");
    eventually("one of the two carries the traffic", SOON, || {
        let now = [mesh.get("b")?.node.counted("requests")?, mesh.get("c")?.node.counted("requests")?];
        let more = [now[0] > before[0], now[1] > before[1]];
        before = now;
        carrier = if more[0] { "b" } else { "c" };
        Ok(more[0] != more[1])
    })?;
    let other = if carrier == "b" { "c" } else { "b" };
    let node = &mesh.get(carrier)?.node;
    match fate {
        Fate::Killed => {
            let place = mesh.routers().iter().position(|router| router.name == carrier).unwrap_or_default();
            ups[place].process()?.signal("KILL")?;
        }
        Fate::LosesAllOfOneLink => {
            node.drop("input", "iifname to-a")?;
            node.drop("output", "oifname to-a")?;
        }
        Fate::HearsNothingOfOneLink => node.drop("input", "iifname to-a")?,
    }
    a.until_via(&d.own()[0], &[other])?;
    traffic.goes_on(20)?;
    println!("{fate:?}: the longest gap is {:?}", traffic.longest());
    ensure!(!traffic.longest().is_zero(), "nothing was lost: {carrier} does not carry the traffic");
    Ok(())
}

#[test]
fn a_diamond_survives_the_death_of_who_relays() {
    meshed(|lab| goes_on(lab, Fate::Killed));
}

#[test]
fn a_diamond_survives_a_lost_link() {
    meshed(|lab| goes_on(lab, Fate::LosesAllOfOneLink));
}

#[test]
fn a_diamond_survives_a_link_that_is_lost_one_way() {
    meshed(|lab| goes_on(lab, Fate::HearsNothingOfOneLink));
}

/// A router may use as source only the prefixes that it announced within its allowed IPs.
#[test]
fn sources_are_those_that_were_announced() {
    meshed(|lab| {
        let mut mesh = Mesh::line(lab)?;
        mesh.get_mut("c")?.conf.lines.push("Announce = 10.77.9.0/24, 10.99.0.0/24".to_owned());
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        a.until_routed("10.77.9.0/24")?;
        eventually("b refuses what is not for c to carry", SOON, || Ok(b.refused("outside_allowed_ips")? > 0))?;
        ensure!(b.route("10.99.0.0/24")?.is_null() && a.route("10.99.0.0/24")?.is_null(), "b has learned it");
        let told = b.node.end_of(b.node.rustguard()?.args(["neighbours", "wgb"]))?;
        ensure!(told.stdout.contains("outside_allowed_ips"), "{told}");

        c.node.sh("for source in 10.77.9.1 10.77.0.66 10.99.0.1; do ip addr add $source/32 dev wgc; done")?;
        c.node.run(&["ping", "-n", "-c", "1", "-W", "2", "-I", "10.77.9.1", &a.inside[0]])?;
        // One source is allowed but not announced, the other announced but not allowed.
        for (source, reason) in [("10.77.0.66", "source_not_announced"), ("10.99.0.1", "source_not_allowed")] {
            for to in [&b.inside[0], &a.inside[0]] {
                let before = b.dropped(reason)?;
                let ping = ["ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", source, to];
                ensure!(c.node.run(&ping).is_err(), "{to} answers to {source}");
                let dropped = b.dropped(reason)? - before;
                ensure!(dropped == 3, "{dropped} packets from {source} to {to} were counted");
            }
        }
        Ok(())
    });
}

/// Packets to one of the host's own addresses stay local as soon as the host has the address: they are not forwarded to
/// the router that announces it.
#[test]
fn a_new_address_is_the_hosts() {
    meshed(|lab| {
        let mut mesh = Mesh::line(lab)?;
        mesh.get_mut("c")?.conf.lines.push("Announce = 10.77.9.0/24".to_owned());
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        a.until_routed("10.77.9.0/24")?;
        a.node.does_not_reach("10.77.9.9")?;
        b.node.run(&["ip", "addr", "add", "10.77.9.9/32", "dev", "lo"])?;
        a.node.reaches("10.77.9.9", 10)
    });
}

/// Expects status 1 with these words, and no change on the node.
fn refused(node: &Node, arguments: &[&str], words: &[&str]) -> Result<()> {
    let before = node.traces()?;
    node.end_of(node.rustguard()?.args(arguments))?.refused(words)?;
    ensure!(before == node.traces()?, "{arguments:?} has left something behind");
    Ok(())
}

#[test]
fn bad_input_is_explained() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        let text = a.conf.wg_quick();
        let without_key: String =
            text.lines().filter(|line| !line.starts_with("PrivateKey")).map(|line| format!("{line}\n")).collect();
        let file = lab.file("wga.conf", &without_key)?.display().to_string();
        refused(&a.node, &["up", &file], &["PrivateKey"])?;

        let file = lab.file("wga.conf", &text)?.display().to_string();
        a.node.sh("install -d -m 700 /var/lib/rustguard /var/lib/rustguard/wga /var/lib/rustguard/wga/routing")?;
        refused(&a.node, &["up", &file], &["/var/lib/rustguard/wga/routing"])?;
        fs::remove_dir(Path::new("/var/lib/rustguard/wga/routing"))?;
        // An invalid state file does not stop the start.
        fs::write("/var/lib/rustguard/wga/routing", "nonsense, and longer than any state")?;
        let up = a.start(lab)?;
        ensure!(a.route(&a.own()[0])?["local"] == true, "it does not announce itself");
        up.down()?;

        for verb in ["routes", "neighbours"] {
            refused(&a.node, &[verb, "wga"], &["wga", "not up"])?;
            refused(&a.node, &[verb, "../wga"], &["../wga"])?;
        }
        let mut conf = Conf::new("wgs")?;
        conf.addresses = vec!["10.7.0.1/24".to_owned()];
        let _stock = Tunnel::start(lab, &b.node, Program::Reference, &conf)?;
        refused(&b.node, &["routes", "wgs"], &["wgs", "not an interface of RustGuard"])?;
        let mut conf = Conf::new("wgt")?;
        conf.addresses = vec!["10.8.0.1/24".to_owned()];
        let _static = Up::start(lab, &b.node, &conf)?;
        for arguments in [&["routes", "wgt"][..], &["neighbours", "wgt"], &["routes", "wgt", "--json"]] {
            refused(&b.node, arguments, &["wgt", "AllowedIPs", "Routing = babel"])?;
        }
        Ok(())
    });
}

#[test]
fn without_root_it_is_explained() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let a = mesh.get("a")?;
        let _up = a.start(lab)?;
        let program = a.node.rustguard()?;
        for verb in ["routes", "neighbours"] {
            let mut command = a.node.command("setpriv");
            command.args(["--reuid", "65534", "--clear-groups", "--inh-caps", "-all"]);
            a.node.end_of(command.args(program.get_args().last()).args([verb, "wga"]))?.refused(&["wga", "root"])?;
        }
        Ok(())
    });
}

/// Each tunnel has its own addresses, port and peers, and both are announced to their own neighbours only.
#[test]
fn two_tunnels_on_one_host() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let b = mesh.get("b")?;
        let mut second = Conf::new("wgb2")?;
        second.listen_port = Some(51_821);
        second.addresses = vec!["10.78.0.2/32".to_owned()];
        second.lines = vec!["Routing = babel".to_owned()];
        let mut ups = mesh.start(lab)?;
        let up = Up::start(lab, &b.node, &second)?;
        mesh.converged()?;
        let told = b.node.end_of(b.node.rustguard()?.args(["routes", "wgb2"]))?;
        ensure!(told.stdout.contains("10.78.0.2/32") && !told.stdout.contains("10.77."), "{told}");
        up.down()?;
        for prefix in mesh.get("c")?.own() {
            ensure!(b.installed(&prefix)?.contains("dev wgb "), "the other tunnel took the routes of the first along");
        }
        ups.remove(1).down()
    });
}
