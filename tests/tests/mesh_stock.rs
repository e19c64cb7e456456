//! Stock routers as neighbours: babeld and BIRD, behind a stock WireGuard.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Lab, Mesh, Node, PeerConf, Program, Tunnel, Up, meshed, scenario, until_installed};
use std::time::Instant;

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
