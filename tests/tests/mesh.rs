//! Meshes of real daemons: routers that speak Babel, with each other, with babeld and BIRD, and for clients that do not.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Gaps, Lab, Mesh, Node, PeerConf, Program, Subject, Tunnel, Up, eventually, scenario, subject, until_installed,
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(30);

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

/// The kernel drops routes with the interface's state; they come back with it.
#[test]
fn routes_come_back_with_the_interface() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let _ups = mesh.start(lab)?;
            mesh.converged()?;
            let (a, c) = (mesh.get("a")?, mesh.get("c")?);
            a.node.sh("ip link set wga down; ip link set wga up; ip addr replace fd77::1/128 dev wga nodad")?;
            for prefix in c.own() {
                until_installed(&a.node, &prefix)?;
            }
            mesh.converged()
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
            if !lab.has("babeld", "babeld")? {
                return Ok(());
            }
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
            if !lab.has("bird", "bird2")? {
                return Ok(());
            }
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

/// Two gateways and somebody far, all linked; a stock client that both gateways know.
struct Roaming {
    mesh: Mesh,
    client: Node,
    tunnel: Tunnel,
    ups: Vec<Up>,
}

/// The client inside.
const CLIENT: &str = "10.77.0.50";
const CLIENT_PREFIX: &str = "10.77.0.50/32";
/// The metric from which on a client counts as silent: 0x7000, and what the way there adds.
const HELD: u64 = 0x7000;

impl Roaming {
    fn new(lab: &Lab) -> Result<Self> {
        let mut mesh = Mesh::new(lab, &["far", "g1", "g2"], &[["far", "g1"], ["far", "g2"], ["g1", "g2"]])?;
        let client = lab.node("client")?;
        let mut conf = Conf::new("wgp")?;
        conf.addresses = vec![format!("{CLIENT}/32")];
        for (net, gateway) in [(101, "g1"), (102, "g2")] {
            lab.link((&client, &format!("to-{gateway}")), (&mesh.get(gateway)?.node, "to-client"))?;
            client.run(&["ip", "addr", "add", &format!("10.{net}.0.2/24"), "dev", &format!("to-{gateway}")])?;
            let gateway = mesh.get_mut(gateway)?;
            gateway.node.run(&["ip", "addr", "add", &format!("10.{net}.0.1/24"), "dev", "to-client"])?;
            gateway.add_client("client", &conf.keys, CLIENT_PREFIX);
        }
        let mut peer = PeerConf::new(&mesh.get("g1")?.conf.keys.public, "10.77.0.0/16");
        peer.endpoint = Some("10.101.0.1:51820".to_owned());
        conf.peers.push(peer);
        let ups = mesh.start(lab)?;
        mesh.converged()?;
        let tunnel = Tunnel::start(lab, &client, Program::Reference, &conf)?;
        Ok(Self { mesh, client, tunnel, ups })
    }

    /// The client talks to another gateway from now on.
    fn roam(&self, from: &str, to: &str, endpoint: &str) -> Result<()> {
        let [from, to] = [from, to].map(|name| self.mesh.get(name).map(|router| &router.conf.keys.public));
        self.tunnel.set(&format!("peer {} remove", from?))?;
        self.tunnel.set(&format!("peer {} endpoint {endpoint}:51820 allowed-ips 10.77.0.0/16", to?))
    }

    /// How far the client is from there, through the mesh.
    fn metric(&self, router: &str) -> Result<u64> {
        Ok(self.mesh.get(router)?.route(CLIENT_PREFIX)?["metric"].as_u64().unwrap_or(u64::from(u16::MAX)))
    }
}

#[test]
fn traffic_follows_a_client_to_another_gateway() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mut roaming = Roaming::new(lab)?;
            let mesh = &roaming.mesh;
            let far = mesh.get("far")?;
            far.until_routed(CLIENT_PREFIX)?;
            ensure!(roaming.metric("far")? >= HELD, "never heard of, it should be a last resort");
            // Learned before the interface was up, where it is the gateway's own client.
            until_installed(&mesh.get("g1")?.node, CLIENT_PREFIX)?;
            roaming.client.reaches(&far.inside[0], 10)?;
            far.until_via(CLIENT_PREFIX, &["g1"])?;
            eventually("it is no last resort", SOON, || Ok(roaming.metric("far")? < HELD))?;
            let mut traffic = Gaps::start(&far.node, "traffic", CLIENT)?;

            let started = Instant::now();
            roaming.roam("g1", "g2", "10.102.0.1")?;
            roaming.client.reaches(&far.inside[0], 10)?;
            println!("the client was answered {:?} after it changed its gateway", started.elapsed());
            far.until_via(CLIENT_PREFIX, &["g2"])?;
            traffic.goes_on(20)?;
            println!("towards the client, the longest gap is {:?}", traffic.longest());

            // Nobody hears it any more: the one that did before is what is left, and nobody is told that it is nowhere.
            roaming.client.run(&["ip", "link", "set", "wgp", "down"])?;
            roaming.ups.pop().expect("g2 is up").down()?;
            far.until_via(CLIENT_PREFIX, &["g1"])?;
            eventually("it is a last resort", SOON, || {
                Ok(roaming.metric("far")? >= HELD && roaming.metric("far")? < 0xffff)
            })?;

            roaming.client.run(&["ip", "link", "set", "wgp", "up"])?;
            roaming.client.run(&["ip", "route", "replace", "10.77.0.0/16", "dev", "wgp"])?;
            roaming.roam("g2", "g1", "10.101.0.1")?;
            roaming.client.reaches(&far.inside[0], 10)?;
            far.node.reaches(CLIENT, 10)?;
            eventually("it is no last resort again", SOON, || Ok(roaming.metric("far")? < HELD))
        })
    });
}

/// What is in the air of three minutes; with RUSTGUARD_LONG=1 only.
#[test]
fn a_silent_client_is_reached_as_the_last_resort() {
    scenario(|lab| {
        if std::env::var_os("RUSTGUARD_LONG").is_none() {
            lab.skip("a client that is silent for three minutes: takes 190 s, set RUSTGUARD_LONG=1");
            return Ok(());
        }
        meshed(lab, |lab| {
            let roaming = Roaming::new(lab)?;
            let far = roaming.mesh.get("far")?;
            roaming.client.reaches(&far.inside[0], 10)?;
            eventually("it is heard", SOON, || Ok(roaming.metric("far")? < HELD))?;
            far.until_via(CLIENT_PREFIX, &["g1"])?;
            eventually("g1 holds it for lost", Duration::from_secs(220), || Ok(roaming.metric("far")? >= HELD))?;
            far.node.reaches(CLIENT, 10)?;
            eventually("it is there again", SOON, || Ok(roaming.metric("far")? < HELD))
        })
    });
}

/// A router may send from what it announced within its allowed IPs, and from nothing else.
#[test]
fn sources_are_those_that_were_announced() {
    scenario(|lab| {
        meshed(lab, |lab| {
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
            // In the bounds, but not announced; announced, but out of bounds.
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
        })
    });
}

/// A client that speaks Babel is not listened to.
#[test]
fn clients_are_no_routers() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mut mesh = Mesh::line(lab)?;
            let own = mesh.get("c")?.own().join(", ");
            mesh.get_mut("c")?.conf.lines.push("Announce = 10.77.9.0/24".to_owned());
            let c = mesh.get_mut("b")?.peer_mut("c")?;
            c.allowed_ips = own;
            c.lines[1] = "Role = client".to_owned();
            let _ups = mesh.start(lab)?;
            let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
            for prefix in c.own() {
                a.until_routed(&prefix)?;
            }
            eventually("c talks, and b does not listen", SOON, || Ok(b.refused("not_a_router")? >= 10))?;
            ensure!(b.neighbour("c").is_err(), "b has it as a neighbour");
            let counted = b.route("10.77.9.0/24")?;
            ensure!(counted.is_null() && a.route("10.77.9.0/24")?.is_null(), "b believes it: {counted}");
            Ok(())
        })
    });
}

/// Status 1 and words, and nothing changed.
fn refused(node: &Node, arguments: &[&str], words: &[&str]) -> Result<()> {
    let before = node.traces()?;
    node.end_of(node.rustguard()?.args(arguments))?.refused(words)?;
    ensure!(before == node.traces()?, "{arguments:?} has left something behind");
    Ok(())
}

#[test]
fn bad_input_is_explained() {
    scenario(|lab| {
        meshed(lab, |lab| {
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
            // What is no state is no reason to stay down.
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
            refused(&b.node, &["routes", "wgs"], &["wgs", "not RustGuard's"])?;
            let mut conf = Conf::new("wgt")?;
            conf.addresses = vec!["10.8.0.1/24".to_owned()];
            let _static = Up::start(lab, &b.node, &conf)?;
            for arguments in [&["routes", "wgt"][..], &["neighbours", "wgt"], &["routes", "wgt", "--json"]] {
                refused(&b.node, arguments, &["wgt", "AllowedIPs", "Routing = babel"])?;
            }
            Ok(())
        })
    });
}

#[test]
fn without_root_it_is_explained() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let a = mesh.get("a")?;
            let _up = a.start(lab)?;
            let program = a.node.rustguard()?;
            for verb in ["routes", "neighbours"] {
                let mut command = a.node.command("setpriv");
                command.args(["--reuid", "65534", "--clear-groups", "--inh-caps", "-all"]);
                a.node
                    .end_of(command.args(program.get_args().last()).args([verb, "wga"]))?
                    .refused(&["wga", "root"])?;
            }
            Ok(())
        })
    });
}

/// Each has its own addresses, port and peers, and both are announced to the right neighbours only.
#[test]
fn two_tunnels_on_one_host() {
    scenario(|lab| {
        meshed(lab, |lab| {
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
                ensure!(
                    b.installed(&prefix)?.contains("dev wgb "),
                    "the other tunnel took the routes of the first along"
                );
            }
            ups.remove(1).down()
        })
    });
}
