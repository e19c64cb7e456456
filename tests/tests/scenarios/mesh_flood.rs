//! Floods of Babel packets by a router of the mesh and by a client: they must not delay anybody else. The rate is low
//! enough for any build. `crates/rustguard-babel/src/speaker/tests/work.rs` bounds the work of each packet as a count.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Conf, Gaps, HOSTILE_NET, HOSTILE_PREFIXES, Lab, Mesh, Node, PeerConf, Process, Program, Tunnel, Up, eventually,
    meshed,
};
use std::time::Duration;

/// This package's traffic generator.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
const SOON: Duration = Duration::from_secs(60);
/// Dozens of times the limit of one router per second: packets of 1,296 bytes.
const RATE: &str = "6000";
/// Longer than a newcomer takes; the flood is stopped after that.
const SECONDS: &str = "120";

/// The routers `a` – `b`. The flooder, behind a stock WireGuard, and a newcomer each have their own link to `b`.
struct Flooded {
    mesh: Mesh,
    _ups: Vec<Up>,
    flooder: Node,
    _tunnel: Tunnel,
    newcomer: Node,
    conf: Conf,
}

/// The newcomer's address inside.
const NEWCOMER: &str = "10.77.0.60";

impl Flooded {
    /// The flooder is a router or a client of `b`.
    fn new(lab: &Lab, role: &str) -> Result<Self> {
        let mut mesh = Mesh::new(lab, &["a", "b"], &[["a", "b"]])?;
        let mut stock = |name: &str, interface: &str, net: u8| -> Result<(Node, Conf)> {
            let node = lab.node(name)?;
            lab.link((&node, "eth0"), (&mesh.get("b")?.node, &format!("to-{name}")))?;
            node.run(&["ip", "addr", "add", &format!("10.{net}.0.2/24"), "dev", "eth0"])?;
            let b = mesh.get_mut("b")?;
            b.node.run(&["ip", "addr", "add", &format!("10.{net}.0.1/24"), "dev", &format!("to-{name}")])?;
            Ok((node, Conf::new(interface)?))
        };
        let (flooder, mut flooding) = stock("flooder", "wgf", 201)?;
        let (newcomer, mut conf) = stock("newcomer", "wgn", 202)?;
        flooding.addresses = vec!["10.66.255.1/32".to_owned(), "fe80::66/64".to_owned()];
        conf.addresses = vec![format!("{NEWCOMER}/32")];
        let b = mesh.get_mut("b")?;
        for (conf, net, inside) in
            [(&mut flooding, 201, "10.77.0.0/16, fe80::/64, ff02::1:6/128"), (&mut conf, 202, "10.77.0.0/16")]
        {
            let mut peer = PeerConf::new(&b.conf.keys.public, inside);
            peer.endpoint = Some(format!("10.{net}.0.1:51820"));
            conf.peers.push(peer);
        }
        b.add_router("flooder", &flooding.keys, HOSTILE_NET);
        b.peer_mut("flooder")?.lines[1] = format!("Role = {role}");
        b.add_client("newcomer", &conf.keys, &format!("{NEWCOMER}/32"));
        let ups = mesh.start(lab)?;
        mesh.converged()?;
        let tunnel = Tunnel::start(lab, &flooder, Program::Reference, &flooding)?;
        Ok(Self { mesh, _ups: ups, flooder, _tunnel: tunnel, newcomer, conf })
    }

    /// Starts to send what the arguments say.
    fn says(&self, what: &[&str]) -> Result<Process> {
        self.flooder.spawn(what[0], self.flooder.command(TRAFFIC).args(["babel", "wgf"]).args(what))
    }

    /// During a flood, a newcomer completes its first handshake and gets its first answer, and `a` loses nothing. The
    /// number of packets that `b` refused for `reason` proves the flood.
    fn whole(&self, lab: &Lab, reason: &str) -> Result<()> {
        let (a, b) = (self.mesh.get("a")?, self.mesh.get("b")?);
        let mut traffic = Gaps::start(&a.node, "traffic", &b.inside[0])?;
        let mut flood = self.says(&["flood", SECONDS, RATE])?;
        flood.until("the flood arrives", SOON, || Ok(b.dropped(reason)? >= 1_000))?;

        let _newcomer = Tunnel::start(lab, &self.newcomer, Program::Reference, &self.conf)?;
        self.newcomer
            .run(&["ping", "-n", "-q", "-c", "1", "-w", "10", &b.inside[0]])
            .context("the newcomer's handshake, or its first packet, starves")?;
        a.until_routed(&format!("{NEWCOMER}/32"))?;
        self.newcomer.reaches(&a.inside[0], 5)?;
        traffic.goes_on(20)?;
        ensure!(flood.log().is_empty(), "the flood was over too early to say anything");
        for (router, other) in [(a, b), (b, a)] {
            for prefix in other.own() {
                // A router without processor time for seconds may have missed its neighbour's Hellos; it must recover
                // during the flood.
                eventually(&format!("{} has {prefix} in the flood", router.name), SOON, || {
                    let route = router.route(&prefix)?;
                    Ok(route["next_hops"].as_array().is_some_and(|hops| !hops.is_empty()))
                })?;
            }
            ensure!(flood.log().is_empty(), "the flood was over before {} had its routes", router.name);
        }
        println!("{}; the longest gap between a and b is {:?}", b.shown()?["dropped"], traffic.longest());
        flood.stop("KILL")?;
        self.mesh.converged()
    }
}

/// A router of the mesh endlessly announces thousands of prefixes, retracts them, and starts again.
#[test]
fn a_router_that_floods_keeps_nobody_waiting() {
    meshed(|lab| {
        let flooded = Flooded::new(lab, "router")?;
        let b = flooded.mesh.get("b")?;
        let mut announcing = flooded.says(&["announce", "60"])?;
        announcing.until("b believes all of it", SOON, || {
            let neighbour = b.neighbour("flooder")?;
            Ok(neighbour["routes"].as_u64() >= Some(HOSTILE_PREFIXES as u64))
        })?;
        eventually("all of it is in the kernel", SOON, || {
            let routes = b.node.sh("ip route show root 10.66.0.0/16 | wc -l")?;
            Ok(routes.trim().parse::<usize>()? >= HOSTILE_PREFIXES)
        })?;
        announcing.stop("KILL")?;
        flooded.whole(lab, "engine_limit")
    });
}

/// A client sends the same: none of it reaches the engine.
#[test]
fn a_client_that_floods_keeps_nobody_waiting() {
    meshed(|lab| {
        let flooded = Flooded::new(lab, "client")?;
        flooded.whole(lab, "engine_not_a_router")?;
        let b = flooded.mesh.get("b")?;
        ensure!(b.neighbour("flooder").is_err(), "b has the client as a neighbour");
        ensure!(b.dropped("engine_limit")? == 0, "the client took part of a router's share");
        Ok(())
    });
}
