//! Clients of a mesh: stock WireGuard peers that their gateways announce. The tests follow their traffic when they
//! change the gateway, when the gateway is lost, and when they are silent.
//! `crates/rustguard-babel/tests/mesh/clients.rs` does the same in simulated time with many more meshes.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Conf, Gaps, Lab, Mesh, Node, PeerConf, Program, Router, Tunnel, Up, eventually, meshed, until_installed,
};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// Two gateways and a distant router, all linked; a stock client that both gateways know.
struct Roaming {
    mesh: Mesh,
    client: Node,
    tunnel: Tunnel,
    /// The public key of the client.
    key: String,
    ups: Vec<Up>,
}

/// The client's address inside.
const CLIENT: &str = "10.77.0.50";
const CLIENT_PREFIX: &str = "10.77.0.50/32";
/// From this metric on, a client counts as silent: 0x7000, plus the cost of the route.
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
        Ok(Self { mesh, client, tunnel, key: conf.keys.public, ups })
    }

    /// From now on, the client uses the other gateway.
    fn roam(&self, from: &str, to: &str, endpoint: &str) -> Result<()> {
        let [from, to] = [from, to].map(|name| self.mesh.get(name).map(|router| &router.conf.keys.public));
        self.tunnel.set(&format!("peer {} remove", from?))?;
        self.tunnel.set(&format!("peer {} endpoint {endpoint}:51820 allowed-ips 10.77.0.0/16", to?))
    }

    /// The metric of the client's route, seen from this router.
    fn metric(&self, router: &str) -> Result<u64> {
        Ok(self.mesh.get(router)?.route(CLIENT_PREFIX)?["metric"].as_u64().unwrap_or(u64::from(u16::MAX)))
    }
}

/// Waits until traffic for the client leaves the mesh at that gateway. The neighbour in between is not checked: round
/// trips decide it, and a busy machine changes them.
fn until_from(router: &Router, gateway: &str) -> Result<()> {
    let what = format!("{CLIENT_PREFIX} is reached by {gateway}");
    eventually(&what, SOON, || Ok(router.route(CLIENT_PREFIX)?["origin_name"] == gateway))
        .with_context(|| router.route(CLIENT_PREFIX).map(|route| route.to_string()).unwrap_or_default())
}

#[test]
fn traffic_follows_a_client_to_another_gateway() {
    meshed(|lab| {
        let mut roaming = Roaming::new(lab)?;
        let mesh = &roaming.mesh;
        let far = mesh.get("far")?;
        far.until_routed(CLIENT_PREFIX)?;
        ensure!(roaming.metric("far")? >= HELD, "never heard of, it should be a last resort");
        // The gateway learned the route to its own client before its interface was up.
        until_installed(&mesh.get("g1")?.node, CLIENT_PREFIX)?;
        roaming.client.reaches(&far.inside[0], 10)?;
        until_from(far, "g1")?;
        eventually("it is no last resort", SOON, || Ok(roaming.metric("far")? < HELD))?;
        let mut traffic = Gaps::start(&far.node, "traffic", CLIENT)?;

        let started = Instant::now();
        roaming.roam("g1", "g2", "10.102.0.1")?;
        roaming.client.reaches(&far.inside[0], 10)?;
        println!("the client was answered {:?} after it changed its gateway", started.elapsed());
        until_from(far, "g2")?;
        traffic.goes_on(20)?;
        println!("towards the client, the longest gap is {:?}", traffic.longest());

        // No gateway hears the client now: the previous gateway remains the last resort, and the prefix is not
        // retracted.
        roaming.client.run(&["ip", "link", "set", "wgp", "down"])?;
        roaming.ups.pop().expect("g2 is up").down()?;
        until_from(far, "g1")?;
        eventually("it is a last resort", SOON, || {
            Ok(roaming.metric("far")? >= HELD && roaming.metric("far")? < 0xffff)
        })?;

        roaming.client.run(&["ip", "link", "set", "wgp", "up"])?;
        roaming.client.run(&["ip", "route", "replace", "10.77.0.0/16", "dev", "wgp"])?;
        roaming.roam("g2", "g1", "10.101.0.1")?;
        roaming.client.reaches(&far.inside[0], 10)?;
        far.node.reaches(CLIENT, 10)?;
        eventually("it is no last resort again", SOON, || Ok(roaming.metric("far")? < HELD))
    });
}

/// Both gateways are peers of the client all the time, and the client sends only what WireGuard requires: a handshake
/// to the new gateway, and later a keepalive to the old one.
#[test]
fn a_keepalive_does_not_bring_a_client_back() {
    meshed(|lab| {
        let roaming = Roaming::new(lab)?;
        let (far, g1, g2) = (roaming.mesh.get("far")?, roaming.mesh.get("g1")?, roaming.mesh.get("g2")?);
        roaming.client.reaches(&far.inside[0], 10)?;
        until_from(far, "g1")?;
        eventually("it is no last resort", SOON, || Ok(roaming.metric("far")? < HELD))?;
        roaming.client.run(&["sysctl", "-qw", "net.ipv4.icmp_echo_ignore_all=1"])?;
        roaming.client.count("arrived", "input", "iifname wgp")?;
        let mut ping = far.node.command("ping");
        let _traffic = far.node.spawn("traffic", ping.args(["-n", "-i", "0.05", CLIENT]))?;
        let more = |count: u64| -> Result<()> {
            let wanted = roaming.client.counted("arrived")? + count;
            eventually("the client gets packets", SOON, || Ok(roaming.client.counted("arrived")? >= wanted))
        };
        more(10)?;

        let endpoint = "endpoint 10.102.0.1:51820 persistent-keepalive 25 allowed-ips 10.77.0.0/16";
        roaming.tunnel.set(&format!("peer {} {endpoint}", g2.conf.keys.public))?;
        until_from(far, "g2")?;
        more(10)?;
        // The bytes that the client's previous gateway has received from it, and sent to it.
        let transfer = || -> Result<[u64; 2]> {
            let text = g1.node.run(&["wg", "show", "wgg1", "transfer"])?;
            let line = text.lines().find(|line| line.starts_with(&roaming.key)).context("the client")?;
            let mut bytes = line.split_whitespace().skip(1).map(str::parse);
            Ok([bytes.next().context("received")??, bytes.next().context("sent")??])
        };
        // A router without processor time for a second loses its neighbours, and packets then go through the other
        // gateway.
        let losses = || -> usize { roaming.ups.iter().map(|up| up.log().matches("cost: None").count()).sum() };
        for attempt in 1.. {
            let (before, losses_before) = (transfer()?, losses());
            // The old gateway may send its last keepalive without this change: setting the interval again causes
            // another one.
            for seconds in [0, 25] {
                roaming.tunnel.set(&format!("peer {} persistent-keepalive {seconds}", g1.conf.keys.public))?;
            }
            eventually("the gateway that it left gets a keepalive", SOON, || Ok(transfer()?[0] > before[0]))?;
            // Two seconds of packets; the gateway would notice within 0.2 s.
            more(40)?;
            let sent = transfer()?[1] - before[1];
            // Less than two packets, and enough for a handshake.
            if sent < 250 {
                break;
            }
            let excused = losses() > losses_before && attempt < 5;
            ensure!(excused, "the keepalive took the client back: {sent} bytes were sent by way of the old gateway");
            println!("attempt {attempt}: {sent} bytes by way of the old gateway, after routers had lost each other");
            until_from(far, "g2")?;
        }
        Ok(())
    });
}

/// Both gateways have the client as a peer and hear it: anycast. Each gateway sends to it directly. A distant router
/// uses one of them, and the other when that gateway is killed.
#[test]
fn a_client_of_two_gateways_survives_the_loss_of_one() {
    meshed(|lab| {
        let mut roaming = Roaming::new(lab)?;
        // Both are peers of the client. It sends its traffic to the first; the second hears its keepalives.
        let [g1, g2] = ["g1", "g2"].map(|name| roaming.mesh.get(name));
        let (g1, g2) = (g1?, g2?);
        let keys = [g1, g2].map(|gateway| gateway.conf.keys.public.clone());
        roaming.tunnel.set(&format!("peer {} persistent-keepalive 1", keys[0]))?;
        roaming.tunnel.set(&format!(
            "peer {} endpoint 10.102.0.1:51820 allowed-ips {}/32 persistent-keepalive 1",
            keys[1], g2.inside[0]
        ))?;
        let far = roaming.mesh.get("far")?;
        for gateway in [g1, g2] {
            roaming.client.reaches(&gateway.inside[0], 10)?;
            gateway.until_via(CLIENT_PREFIX, &["client"])?;
        }
        eventually("it is no last resort", SOON, || Ok(roaming.metric("far")? < HELD))?;
        // The client must accept packets from the gateway in use. Round trips decide which one that is: they settle
        // after the start, and a busy machine changes them, even while the stream begins.
        let (mut taken, mut traffic) = (0, None);
        eventually("the client accepts what comes from the gateway that is used", SOON, || {
            taken = usize::from(far.route(CLIENT_PREFIX)?["origin_name"] != "g1");
            roaming.tunnel.set(&format!("peer {} allowed-ips 10.77.0.0/16", keys[taken]))?;
            traffic = Gaps::start_within(&far.node, "traffic", CLIENT, Duration::from_secs(3)).ok();
            Ok(traffic.is_some())
        })?;
        let mut traffic = traffic.context("a stream of echo requests")?;
        let other = 1 - taken;

        let killed = Instant::now();
        // The start order was: far, g1, g2.
        roaming.ups[1 + taken].process()?.stop("KILL")?;
        until_from(far, ["g1", "g2"][other])?;
        println!("{:?} after its gateway was killed, the client is reached by the other", killed.elapsed());
        roaming.tunnel.set(&format!("peer {} allowed-ips 10.77.0.0/16", keys[other]))?;
        traffic.goes_on(20)?;
        println!("towards the client, the longest gap is {:?}", traffic.longest());
        ensure!(traffic.longest() < Duration::from_secs(5), "a gap of {:?}", traffic.longest());
        ensure!(roaming.metric("far")? < HELD, "it is a last resort, and it is heard");

        // After its restart, the gateway hears the client by itself.
        roaming.ups[1 + taken] = roaming.mesh.get(["g1", "g2"][taken])?.start(lab)?;
        let back = roaming.mesh.get(["g1", "g2"][taken])?;
        back.until_via(CLIENT_PREFIX, &["client"])?;
        eventually("both hear it", SOON, || {
            Ok([g1, g2]
                .into_iter()
                .all(|gateway| gateway.route(CLIENT_PREFIX).is_ok_and(|route| route["metric"].as_u64() < Some(HELD))))
        })
    });
}

/// Two gateways with one private key behind one address: the network moves the client from one to the other without
/// telling the client. The second gateway cannot decrypt packets of the first one's session, and WireGuard does not
/// answer unknown senders. The client starts a handshake when it has heard nothing for 15 s (Keepalive-Timeout and
/// Rekey-Timeout).
#[test]
fn gateways_with_one_key_behind_one_address() {
    meshed(|lab| {
        // No router can have both as peers, because they have the same key.
        let mut mesh = Mesh::new(lab, &["g1", "m1", "m2", "g2"], &[["g1", "m1"], ["m1", "m2"], ["m2", "g2"]])?;
        let keys = mesh.get("g1")?.conf.keys.clone();
        mesh.get_mut("m2")?.peer_mut("g2")?.public_key = keys.public.clone();
        mesh.get_mut("g2")?.conf.keys = keys.clone();
        let (client, network) = (lab.node("client")?, lab.node("network")?);
        lab.link((&client, "uplink"), (&network, "to-client"))?;
        client.sh("ip addr add 10.100.0.2/24 dev uplink; ip route add default via 10.100.0.1")?;
        network.sh("ip addr add 10.100.0.1/24 dev to-client; sysctl -qw net.ipv4.ip_forward=1")?;
        let mut conf = Conf::new("wgp")?;
        conf.addresses = vec![format!("{CLIENT}/32")];
        for (net, name) in [(101, "g1"), (102, "g2")] {
            let gateway = mesh.get_mut(name)?;
            lab.link((&network, &format!("to-{name}")), (&gateway.node, "to-clients"))?;
            network.run(&["ip", "addr", "add", &format!("10.{net}.0.2/24"), "dev", &format!("to-{name}")])?;
            gateway.node.sh(&format!(
                "ip addr add 10.{net}.0.1/24 dev to-clients; ip route add default via 10.{net}.0.2
                 ip addr add {ANYCAST}/32 dev lo"
            ))?;
            gateway.add_client("client", &conf.keys, CLIENT_PREFIX);
        }
        network.run(&["ip", "route", "add", ANYCAST, "via", "10.101.0.1"])?;
        let mut peer = PeerConf::new(&keys.public, "10.77.0.0/16");
        peer.endpoint = Some(format!("{ANYCAST}:51820"));
        conf.peers.push(peer);

        let _ups = mesh.start(lab)?;
        // Each has its own router-id, also in the view of the other.
        mesh.converged()?;
        let _tunnel = Tunnel::start(lab, &client, Program::Reference, &conf)?;
        let far = mesh.get("m1")?;
        client.reaches(&far.inside[0], 10)?;
        until_from(far, "g1")?;

        let mut traffic = Gaps::start(&client, "traffic", &far.inside[0])?;
        let moved = Instant::now();
        network.run(&["ip", "route", "replace", ANYCAST, "via", "10.102.0.1"])?;
        traffic.goes_on(20)?;
        // Both ends have heard nothing for the same time. Usually the client starts the handshake first and reaches the
        // other gateway. If the first gateway does, its second initiation leaves from its own address, and it keeps the
        // client.
        let kept = || -> Result<bool> { Ok(client.run(&["wg", "show", "wgp", "endpoints"])?.contains("10.101.0.1:")) };
        let via = |name: &str| -> Result<bool> { Ok(far.route(CLIENT_PREFIX)?["next_hops"][0] == name) };
        eventually("the others know where the client is", SOON, || via(if kept()? { "g1" } else { "m2" }))?;
        println!(
            "{:?} after the network took it to the other gateway, the others know; kept: {}",
            moved.elapsed(),
            kept()?
        );
        println!("from the client, the longest gap is {:?}", traffic.longest());
        ensure!(traffic.longest() < Duration::from_secs(30), "a gap of {:?}", traffic.longest());
        mesh.converged()
    });
}

/// The address that both gateways have.
const ANYCAST: &str = "10.250.0.1";

/// Takes three minutes; runs with RUSTGUARD_LONG=1 only.
#[test]
fn a_silent_client_is_reached_as_the_last_resort() {
    meshed(|lab| {
        if std::env::var_os("RUSTGUARD_LONG").is_none() {
            lab.skip("takes minutes, `cargo suite --long` runs it");
            return Ok(());
        }
        let roaming = Roaming::new(lab)?;
        let far = roaming.mesh.get("far")?;
        roaming.client.reaches(&far.inside[0], 10)?;
        eventually("it is heard", SOON, || Ok(roaming.metric("far")? < HELD))?;
        until_from(far, "g1")?;
        eventually("g1 holds it for lost", Duration::from_secs(220), || Ok(roaming.metric("far")? >= HELD))?;
        far.node.reaches(CLIENT, 10)?;
        eventually("it is there again", SOON, || Ok(roaming.metric("far")? < HELD))
    });
}

/// Babel packets of a client are ignored.
#[test]
fn clients_are_no_routers() {
    meshed(|lab| {
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
        eventually("c talks, and b does not listen", SOON, || Ok(b.dropped("engine_not_a_router")? >= 10))?;
        ensure!(b.neighbour("c").is_err(), "b has it as a neighbour");
        let counted = b.route("10.77.9.0/24")?;
        ensure!(counted.is_null() && a.route("10.77.9.0/24")?.is_null(), "b believes it: {counted}");
        Ok(())
    });
}
