//! Stock routers as neighbours: babeld and BIRD, behind a stock WireGuard.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Lab, Mesh, Node, PeerConf, Process, Program, Tunnel, Up, eventually, meshed, until_installed,
};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// A node with a stock WireGuard and a stock router, next to `b` of the mesh `a` – `b`.
struct Stock {
    mesh: Mesh,
    node: Node,
    _tunnel: Tunnel,
    _ups: Vec<Up>,
}

/// The networks behind the stock router, and its own addresses.
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
        // Stock routers get the names in unknown TLVs.
        mesh.get_mut("a")?.conf.lines.push("NodeName = first".to_owned());
        let b = mesh.get_mut("b")?;
        b.conf.lines.push("NodeName = second".to_owned());
        b.add_router("stock", &conf.keys, "10.77.0.0/16, 10.88.0.0/16, fd77::/16, fd88::/16");
        b.peer_mut("stock")?.endpoint = Some("10.200.0.2:51820".to_owned());

        let tunnel = Tunnel::start(lab, &node, Program::Reference, &conf)?;
        // The protocol provides the routes, not the allowed IPs.
        node.sh(
            "ip route del 10.0.0.0/8 dev wgs; ip -6 route del fd00::/8 dev wgs; ip -6 route del ff02::1:6/128 dev wgs",
        )?;
        let ups = mesh.start(lab)?;
        Ok(Self { mesh, node, _tunnel: tunnel, _ups: ups })
    }

    /// Both learn the other's networks, and packets pass from end to end.
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

    /// The stock router has stopped: its announcements disappear.
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
    meshed(|lab| {
        lab.needs("babeld", "babeld")?;
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
    });
}

/// Starts BIRD with additional options for the tunnel's interface.
fn bird(lab: &Lab, stock: &Stock, more: &str) -> Result<Process> {
    lab.needs("bird", "bird2")?;
    let conf = format!(
        r#"router id 10.77.0.99;
log stderr all;
protocol device {{}}
protocol direct {{ ipv4; ipv6; interface "lan", "wgs"; }}
protocol kernel {{ ipv4 {{ export where source = RTS_BABEL; }}; }}
protocol kernel {{ ipv6 {{ export where source = RTS_BABEL; }}; }}
protocol babel {{
ipv4 {{ export where source = RTS_DEVICE || source = RTS_BABEL; }};
ipv6 {{ export where source = RTS_DEVICE || source = RTS_BABEL; }};
interface "wgs" {{ type wired; next hop ipv4 10.77.0.99; {more} }};
}}
"#
    );
    let conf = lab.file("bird.conf", &conf)?;
    let mut command = stock.node.command("bird");
    command.arg("-f").arg("-c").arg(conf).arg("-s").arg(lab.path("bird.ctl"));
    stock.node.spawn("bird", &mut command)
}

#[test]
fn bird_is_a_neighbour() {
    meshed(|lab| {
        let stock = Stock::new(lab)?;
        let mut bird = bird(lab, &stock, "")?;
        stock.exchanges()?;
        bird.stop("TERM")?;
        stock.forgets()
    });
}

/// BIRD drops packets without a MAC, so the link works in one direction only, and the reason is shown.
#[test]
fn bird_with_macs_is_named() {
    meshed(|lab| {
        let stock = Stock::new(lab)?;
        let _bird = bird(lab, &stock, r#"authentication mac; password "a password";"#)?;
        let b = stock.mesh.get("b")?;
        eventually("BIRD's packets", SOON, || {
            Ok(b.neighbour("stock").is_ok_and(|neighbour| neighbour["wants_macs"] == true))
        })?;
        let neighbour = b.neighbour("stock")?;
        ensure!(neighbour["cost"].is_null() && neighbour["heard"] == true, "{neighbour}");
        let page = b.node.end_of(b.node.rustguard()?.args(["neighbours", "wgb"]))?;
        ensure!(page.stdout.contains("one way: wants MACs (RFC 8967)"), "{page}");
        Ok(())
    });
}

/// a – c – b – babeld: babeld and a both announce a default route. Each node uses the nearer one, and the other one if
/// that is lost. babeld ignores routes that were added by hand without a protocol (`proto boot`), unless told
/// otherwise.
#[test]
fn a_default_route_of_babelds() {
    meshed(|lab| {
        lab.needs("babeld", "babeld")?;
        let mut mesh = Mesh::new(lab, &["a", "b", "c"], &[["a", "c"], ["c", "b"]])?;
        for name in ["a", "b", "c"] {
            for peer in &mut mesh.get_mut(name)?.conf.peers {
                peer.allowed_ips = "0.0.0.0/0, ::/0".to_owned();
            }
        }
        let a = mesh.get_mut("a")?;
        a.conf.lines.push("Redistribute = default".to_owned());
        a.node.sh("ip link add wan type veth peer name nobody; ip link set nobody up; ip link set wan up
                   ip addr add 198.51.100.1/24 dev wan; ip route add default via 198.51.100.2
                   sysctl -qw net.ipv4.ip_forward=1")?;
        let node = lab.node("stock")?;
        lab.link((&node, "eth0"), (&mesh.get("b")?.node, "to-stock"))?;
        node.run(&["ip", "addr", "add", "10.200.0.2/24", "dev", "eth0"])?;
        mesh.get("b")?.node.run(&["ip", "addr", "add", "10.200.0.1/24", "dev", "to-stock"])?;
        node.sh("ip link add wan type veth peer name nobody; ip link set nobody up; ip link set wan up
                 ip addr add 203.0.113.1/24 dev wan; ip route add default via 203.0.113.2 proto static; sysctl -qw net.ipv4.ip_forward=1")?;
        let mut conf = Conf::new("wgs")?;
        conf.listen_port = Some(51_820);
        conf.addresses = vec!["10.77.0.99/32".to_owned(), "fe80::99/64".to_owned()];
        let mut peer = PeerConf::new(&mesh.get("b")?.conf.keys.public, "10.77.0.0/16, fe80::/64, ff02::1:6/128");
        peer.endpoint = Some("10.200.0.1:51820".to_owned());
        conf.peers.push(peer);
        let b = mesh.get_mut("b")?;
        b.conf.lines.push("Redistribute = default".to_owned());
        b.add_router("stock", &conf.keys, "0.0.0.0/0, ::/0");
        b.peer_mut("stock")?.endpoint = Some("10.200.0.2:51820".to_owned());
        let _tunnel = Tunnel::start(lab, &node, Program::Reference, &conf)?;
        node.sh("ip -6 route del ff02::1:6/128 dev wgs; ip route del 10.77.0.0/16 dev wgs")?;
        let file = lab.file(
            "babeld.conf",
            "interface wgs type tunnel\nredistribute ip 0.0.0.0/0 le 0\nredistribute ip 203.0.113.0/24\n",
        )?;
        let _ups = mesh.start(lab)?;
        let mut command = node.command("babeld");
        command.arg("-I").arg(lab.path("babeld.pid")).arg("-S").arg(lab.path("babeld.state")).arg("-c").arg(file);
        let mut babeld = node.spawn("babeld", &mut command)?;
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        let default = "0.0.0.0/0";
        b.until_routed("203.0.113.0/24")?;
        b.until_via(default, &["stock"])?;
        c.until_via(default, &["a"])?;
        for router in [b, c] {
            eventually(&format!("the kernel of {} has it", router.name), SOON, || {
                Ok(router.node.run(&["ip", "route", "show", "table", "51820"])?.starts_with("default dev wg"))
            })?;
        }
        ensure!(a.route(default)?["local"] == true, "{}", a.route(default)?);
        // When b gets its own default route, it announces it, whatever others announce, and `routes` says so.
        b.node.run(&["ip", "route", "add", "default", "via", "10.200.0.2"])?;
        eventually("b announces its own", SOON, || Ok(b.route(default)?["local"] == true))?;
        let told = b.node.end_of(b.node.rustguard()?.args(["routes", "wgb"]))?;
        ensure!(told.stdout.contains("is announced by this host") && told.stdout.contains("stock as well"), "{told}");
        b.node.run(&["ip", "route", "del", "default"])?;
        b.until_via(default, &["stock"])?;
        babeld.stop("TERM")?;
        b.until_via(default, &["c"])
    });
}
