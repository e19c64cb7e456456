//! Meshes of real daemons: routers that speak Babel, with each other, with babeld and BIRD, and for clients that do not.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Gaps, Lab, Mesh, Node, PeerConf, Program, Subject, Tunnel, Up, scenario, subject, until_installed,
};
use std::time::Instant;

/// A scenario about what only RustGuard has.
fn meshed(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("routing by Babel: wireguard-go is the subject");
        return Ok(());
    }
    body(lab)
}

#[test]
fn a_line_is_one_network() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let [a, b, c] = ["a", "b", "c"].map(|name| mesh.get(name));
            let (a, b, c) = (a?, b?, c?);
            let before: Vec<String> =
                mesh.routers().iter().map(|router| router.node.traces()).collect::<Result<_>>()?;
            b.node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")?;
            b.node.count("forwarded", "forward", "iifname wgb")?;
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
            ensure!(b.node.counted("forwarded")? == 0, "the host of b has forwarded packets");
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
            while let Some(up) = ups.pop() {
                up.down()?;
            }
            b.node.run(&["nft", "delete", "table", "inet", "lab"])?;
            for (router, before) in mesh.routers().iter().zip(before) {
                let after = router.node.traces()?;
                ensure!(before == after, "{} has been changed. Before:\n{before}\nafter:\n{after}", router.name);
            }
            Ok(())
        })
    });
}

#[test]
fn a_killed_router_comes_back() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let mut ups = mesh.start(lab)?;
            mesh.converged()?;
            let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
            // Twice: the second time there are numbers of a run that was continued.
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
        })
    });
}

#[test]
fn a_traceroute_shows_who_relays() {
    scenario(|lab| {
        meshed(lab, |lab| {
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
        })
    });
}

/// Five in a ring: the way round stays when one link is lost.
#[test]
fn a_ring_goes_the_other_way_round() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::ring(lab)?;
            let _ups = mesh.start(lab)?;
            mesh.converged()?;
            let (a, b) = (mesh.get("a")?, mesh.get("b")?);
            let prefix = &b.own()[0];
            a.until_via(prefix, &["b"])?;
            a.node.run(&["ip", "link", "set", "to-b", "down"])?;
            a.until_via(prefix, &["e"])?;
            a.node.reaches(&b.inside[0], 3)?;
            a.node.run(&["ip", "link", "set", "to-b", "up"])?;
            a.until_via(prefix, &["b"])?;
            mesh.converged()
        })
    });
}

/// What befalls one of the two in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    LosesAllOfOneLink,
    HearsNothingOfOneLink,
}

/// Traffic from one end of a diamond to the other goes on, whatever happens to the one in the middle that carries it.
fn goes_on(lab: &Lab, fate: Fate) -> Result<()> {
    meshed(lab, |lab| {
        let mesh = Mesh::diamond(lab)?;
        let (a, d) = (mesh.get("a")?, mesh.get("d")?);
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        for name in ["b", "c"] {
            mesh.get(name)?.node.count("requests", "input", "iifname to-a meta length > 1000")?;
        }
        a.until_via(&d.own()[0], &["b", "c"])?;
        let mut traffic = Gaps::start(&a.node, "traffic", &d.inside[0])?;
        let (carrier, other) = if mesh.get("b")?.node.counted("requests")? > 0 { ("b", "c") } else { ("c", "b") };
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
    })
}

#[test]
fn a_diamond_survives_the_death_of_who_relays() {
    scenario(|lab| goes_on(lab, Fate::Killed));
}

#[test]
fn a_diamond_survives_a_lost_link() {
    scenario(|lab| goes_on(lab, Fate::LosesAllOfOneLink));
}

#[test]
fn a_diamond_survives_a_link_that_is_lost_one_way() {
    scenario(|lab| goes_on(lab, Fate::HearsNothingOfOneLink));
}

/// A node with a stock WireGuard and a stock router, next to `b` of the mesh `a` – `b`.
struct Stock {
    mesh: Mesh,
    node: Node,
    _tunnel: Tunnel,
    _ups: Vec<Up>,
}

/// What the stock router has: a network behind it, and its own address.
const STOCK_NETS: [&str; 2] = ["10.88.0.0/24", "fd88::/64"];
const STOCK: [&str; 2] = ["10.88.0.1", "fd88::1"];

impl Stock {
    fn new(lab: &Lab) -> Result<Self> {
        let mut mesh = Mesh::new(lab, &["a", "b"], &[["a", "b"]])?;
        let node = lab.node("stock")?;
        lab.link((&node, "eth0"), (&mesh.get("b")?.node, "to-stock"))?;
        node.run(&["ip", "addr", "add", "10.200.0.2/24", "dev", "eth0"])?;
        mesh.get("b")?.node.run(&["ip", "addr", "add", "10.200.0.1/24", "dev", "to-stock"])?;
        node.sh("ip link add lan type veth peer name nobody; ip link set nobody up; ip link set lan up
                 ip addr add 10.88.0.1/24 dev lan; ip addr add fd88::1/64 dev lan")?;

        let mut conf = Conf::new("wgs")?;
        conf.listen_port = Some(51_820);
        conf.addresses = vec!["10.77.0.99/32".to_owned(), "fd77::99/128".to_owned(), "fe80::99/64".to_owned()];
        let mut peer =
            PeerConf::new(&mesh.get("b")?.conf.keys.public, "10.0.0.0/8, fd00::/8, fe80::/64, ff02::1:6/128");
        peer.endpoint = Some("10.200.0.1:51820".to_owned());
        conf.peers.push(peer);
        mesh.get_mut("a")?.peer_mut("b")?.allowed_ips = "10.0.0.0/8, fd00::/8".to_owned();
        let b = mesh.get_mut("b")?;
        b.add_router("stock", &conf.keys, "10.77.0.0/16, 10.88.0.0/16, fd77::/16, fd88::/16");
        b.peer_mut("stock")?.endpoint = Some("10.200.0.2:51820".to_owned());

        let tunnel = Tunnel::start(lab, &node, Program::Reference, &conf)?;
        // Where things are is for the protocol to say, not for the allowed IPs.
        node.sh(
            "ip route del 10.0.0.0/8 dev wgs; ip -6 route del fd00::/8 dev wgs; ip -6 route del ff02::1:6/128 dev wgs",
        )?;
        let ups = mesh.start(lab)?;
        Ok(Self { mesh, node, _tunnel: tunnel, _ups: ups })
    }

    /// Both learn what the other has, and packets pass from end to end.
    fn exchanges(&self) -> Result<()> {
        let started = Instant::now();
        let (a, b) = (self.mesh.get("a")?, self.mesh.get("b")?);
        for (family, prefix) in STOCK_NETS.into_iter().enumerate() {
            for router in [b, a] {
                router.until_routed(prefix)?;
                until_installed(&router.node, prefix)?;
            }
            until_installed(&self.node, &a.own()[family])?;
            println!("{prefix} and {} after {:?}", a.own()[family], started.elapsed());
            a.node.reaches(STOCK[family], 10)?;
            self.node.reaches(&a.inside[family], 10)?;
        }
        let neighbour = b.neighbour("stock")?;
        ensure!(neighbour["cost"].is_u64(), "{neighbour}");
        Ok(())
    }

    /// The stock router has ended: what it announced goes.
    fn forgets(&self) -> Result<()> {
        let started = Instant::now();
        for prefix in STOCK_NETS {
            self.mesh.get("a")?.until_lost(prefix)?;
        }
        println!("gone after {:?}", started.elapsed());
        Ok(())
    }
}

#[test]
fn babeld_is_a_neighbour() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let stock = Stock::new(lab)?;
            let conf = lab.file(
                "babeld.conf",
                "interface wgs type tunnel\nredistribute ip 10.88.0.0/24\nredistribute ip fd88::/64\n",
            )?;
            let mut command = stock.node.command("babeld");
            command.arg("-I").arg(lab.path("babeld.pid")).arg("-S").arg(lab.path("babeld.state")).arg("-c").arg(conf);
            let mut babeld = stock.node.spawn("babeld", &mut command)?;
            stock.exchanges()?;
            babeld.stop("TERM")?;
            stock.forgets()
        })
    });
}

#[test]
fn bird_is_a_neighbour() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let stock = Stock::new(lab)?;
            let conf = lab.file(
                "bird.conf",
                r#"router id 10.77.0.99;
log stderr all;
protocol device {}
protocol direct { ipv4; ipv6; interface "lan", "wgs"; }
protocol kernel { ipv4 { export where source = RTS_BABEL; }; }
protocol kernel { ipv6 { export where source = RTS_BABEL; }; }
protocol babel {
    ipv4 { export where source = RTS_DEVICE || source = RTS_BABEL; };
    ipv6 { export where source = RTS_DEVICE || source = RTS_BABEL; };
    interface "wgs" { type wired; next hop ipv4 10.77.0.99; };
}
"#,
            )?;
            let mut command = stock.node.command("bird");
            command.arg("-f").arg("-c").arg(conf).arg("-s").arg(lab.path("bird.ctl"));
            let mut bird = stock.node.spawn("bird", &mut command)?;
            stock.exchanges()?;
            bird.stop("TERM")?;
            stock.forgets()
        })
    });
}
