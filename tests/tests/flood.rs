//! Floods: one peer, or a stranger, sends as fast as possible. The others, including machines that join, must still get
//! through. Times are printed and not judged.
//!
//! A debug build handles a twentieth of the kernel's packet rate, and loses nearly all of a flood together with the
//! other traffic. `.ci/run flood` and `cargo suite --profile release flood::` build a program with an optimised data
//! path.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    Conf, Flood, HUB_A, HUB_B, HUB_C, Hub, Keypair, Lab, Network, Node, PeerConf, Process, Program, Subject, Tunnel,
    eventually, garbage, scenario, stranger, subject,
};
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// This package's traffic generator.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
/// The payload size of a flood's datagrams. In the tunnel, each is one packet.
const LEN: usize = 1_200;
/// Longer than a handshake and then fifty echo requests take.
const FLOOD: Duration = Duration::from_secs(5);
/// Longer than [`FLOOD`], with time for a join.
const LONG_FLOOD: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(15);

/// Skips a scenario unless RUSTGUARD_FLOOD is set: it needs an otherwise idle machine.
fn if_asked_for(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if std::env::var_os("RUSTGUARD_FLOOD").is_none() {
        lab.skip("it takes the whole machine, `.ci/run flood` runs it");
        return Ok(());
    }
    body(lab)
}

/// Prevents two floods at once, which would starve each other. Each test holds it until its end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A failed test must not make the next one fail.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Skips a scenario that needs RustGuard's own counters when another program is tested.
fn ours(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if lab.is_about_rustguard("what `rustguard show` counts") { body(lab) } else { Ok(()) }
}

/// Starts a flood of datagrams whose first byte is not a WireGuard message type, and waits until it has reached
/// `counter` on `there`.
fn flood(from: &Node, name: &str, to: &str, port: u16, there: &Node, counter: &str) -> Result<Process> {
    let flood = Flood::new(SocketAddr::new(to.parse()?, port), FLOOD, vec![0xff; LEN]);
    flood_with(from, name, &flood, there, counter)
}

/// Starts a flood, and waits until it has reached `counter` on `there`.
fn flood_with(from: &Node, name: &str, flood: &Flood, there: &Node, counter: &str) -> Result<Process> {
    let before = there.counted(counter)?;
    let mut flood = from.spawn(name, from.command(TRAFFIC).arg("flood").args(flood.to_string().split(' ')))?;
    flood.until("the flood arrives", SOON, || Ok(there.counted(counter)? >= before + 1_000))?;
    Ok(flood)
}

/// Starts fifty echo requests in 1.5 seconds.
fn pings(from: &Node, name: &str, to: &str) -> Result<Process> {
    from.spawn(name, from.command("ping").args(["-n", "-c", "50", "-i", "0.03", "-W", "1", to]))
}

/// Nearly all of fifty.
const ALL: usize = 45;
/// Enough of fifty to show that the tunnel works.
const SOME: usize = 10;

/// Checks that at least `least` of fifty were answered; prints how many, and their median time.
fn answered(ping: &mut Process, least: usize, what: &str) -> Result<()> {
    let ended = ping.ended(SOON)?;
    let text = &ended.stderr;
    let times = text.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    println!("\n{what}: {} of 50 answered, median {:?} ms", times.len(), times.get(times.len() / 2));
    ensure!(times.len() >= least, "{what}: starves; {ended}");
    Ok(())
}

/// Waits for the end of the flood, and checks that it succeeded.
fn flooded(flood: &mut Process) -> Result<()> {
    let ended = flood.ended(SOON)?;
    ensure!(ended.success(), "{ended}");
    println!("\n{}", ended.stderr.trim());
    Ok(())
}

/// Only a newcomer has a route to this address, so packets of others on its node do not enter its tunnel.
const OTHER: &str = "10.9.9.9";

/// Another peer, on the node of `c`: an interface `wgd` whose only peer is `conf`, at `endpoint`, with the address
/// [`OTHER`].
fn newcomer(conf: &mut Conf, endpoint: &str) -> Result<Conf> {
    let mut newcomer = Conf::new("wgd")?;
    newcomer.addresses = vec!["10.9.0.4/32".to_owned()];
    conf.addresses.push(format!("{OTHER}/32"));
    let mut peer = PeerConf::new(&conf.keys.public, &format!("{OTHER}/32"));
    peer.endpoint = Some(endpoint.to_owned());
    newcomer.peers.push(peer);
    conf.peers.push(PeerConf::new(&newcomer.keys.public, "10.9.0.4/32"));
    Ok(newcomer)
}

/// Starts a tunnel without a session, and expects an answer through it within so many seconds.
fn arrives(lab: &Lab, node: &Node, conf: &Conf, seconds: u32) -> Result<()> {
    let _tunnel = Tunnel::start(lab, node, Program::Reference, conf)?;
    // One echo request a second, until one is answered.
    let deadline = seconds.to_string();
    node.run(&["ping", "-n", "-q", "-c", "1", "-w", &deadline, "-I", "10.9.0.4", OTHER])
        .context("the newcomer's handshake, or its first packet, starves")?;
    Ok(())
}

/// A floods B through its tunnel, while C and A ping each other through the same interface of B and a new peer appears.
#[test]
fn a_peer_that_floods_ends_nobodys_session() {
    let _alone = alone();
    // No ping has to be answered. The newcomer has until after the flood: a lost handshake message is sent again after
    // five seconds.
    scenario(|lab| if_asked_for(lab, |lab| flooding(lab, [0, 0], 15)));
}

/// The same, but all other peers must be served during the flood.
#[test]
fn a_peer_that_floods_starves_no_other() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| flooding(lab, [0, ALL], 3)));
}

/// The same, but everybody must be served during the flood, including the flooding peer.
#[test]
fn a_peer_that_floods_starves_nobody() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| flooding(lab, [ALL, ALL], 3)));
}

/// The minimum of answered echo requests: to and from the flooding peer, and between the others.
fn flooding(lab: &Lab, [flooding, others]: [usize; 2], seconds: u32) -> Result<()> {
    let mut hub = Hub::new(lab)?;
    hub.forward(true)?;
    let newcomer = newcomer(&mut hub.conf_b, "10.3.0.1:51802")?;
    let (a, b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.a.reaches(HUB_C[0], 10)?;
    let handshake = a.dump()?.peers[0].latest_handshake;
    // Dropped before the host answers, because the answers would be a second flood.
    hub.b.count("flood", "input", "udp dport 9")?;
    hub.b.drop("input", "udp dport 9")?;
    let mut flood = flood(&hub.a, "flood", HUB_B[0], 9, &hub.b, "flood")?;
    let mut there = pings(&hub.c, "c-a", HUB_A[0])?;
    let mut back = pings(&hub.a, "a-c", HUB_C[0])?;
    let mut other = pings(&hub.c, "c-b", HUB_B[0])?;
    let mut others_back = pings(&hub.b, "b-c", HUB_C[0])?;
    arrives(lab, &hub.c, &newcomer, seconds)?;
    answered(&mut there, flooding, "C pings A, who floods B through the tunnel")?;
    answered(&mut back, flooding, "A pings C while it floods B through the tunnel")?;
    answered(&mut other, others, "C pings B, whom A floods through the tunnel")?;
    answered(&mut others_back, others, "B pings C while A floods B through the tunnel")?;
    flooded(&mut flood)?;
    println!("{} arrived, with those that came as one", hub.b.counted("flood")?);
    hub.a.reaches(HUB_B[0], 5)?;
    hub.c.reaches(HUB_A[0], 5)?;
    ensure!(a.dump()?.peers[0].latest_handshake == handshake, "the flooding peer's session should have stayed");
    ensure!(b.dump()?.peers.iter().all(|peer| peer.latest_handshake > 0), "all three have a session");
    Ok(())
}

/// A floods, through B, a peer of B that never answers, so B queues these packets for a session that never comes. A new
/// peer's handshake, and B's own first packet to C, must not wait behind them.
#[test]
fn a_flood_to_a_silent_peer_keeps_no_session_waiting() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| ours(lab, flooding_the_silent)));
}

fn flooding_the_silent(lab: &Lab) -> Result<()> {
    let mut hub = Hub::new(lab)?;
    hub.forward(true)?;
    let newcomer = newcomer(&mut hub.conf_b, "10.3.0.1:51802")?;
    let mut silent = PeerConf::new(&Keypair::generate()?.public, "10.9.0.66/32");
    silent.endpoint = Some("10.3.0.2:9".to_owned());
    hub.conf_b.peers.push(silent);
    hub.c.drop("input", "udp dport 9")?;
    let (_a, b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.a.reaches(HUB_B[0], 10)?;
    hub.b.count("arrived", "input", "udp dport 51802")?;
    // A rate that the socket can take, so that packets are lost in the queue for the session and not before it.
    let to = SocketAddr::from(([10, 9, 0, 66], 9));
    let flood = Flood { rate: Some(50_000), ..Flood::new(to, LONG_FLOOD, vec![0xff; LEN]) };
    let mut flood = flood_with(&hub.a, "flood", &flood, &hub.b, "arrived")?;
    arrives(lab, &hub.c, &newcomer, 8)?;
    hub.b.run(&["ping", "-n", "-q", "-c", "1", "-W", "3", HUB_C[0]]).context("the first packet to C starves")?;
    let in_time = flood.log().is_empty();
    flooded(&mut flood)?;
    ensure!(in_time, "the flood was over too early to say anything");
    let dropped = hub.shown()?["dropped"].clone();
    println!("{dropped}");
    ensure!(dropped["staging_full"].as_u64() > Some(100_000), "{dropped}: the flood was none");
    drop(b);
    Ok(())
}

/// B sends to A some twenty times faster than the link to A carries, and the link's queue is larger than a socket's
/// default buffer. C, behind another link, must not notice, and the link's queue must decide what is dropped.
#[test]
fn a_saturated_link_holds_up_nobody_behind_another() {
    let _alone = alone();
    // The rate is low enough for any build.
    scenario(|lab| ours(lab, saturating));
}

fn saturating(lab: &Lab) -> Result<()> {
    let hub = Hub::new(lab)?;
    let (_a, _b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.b.reaches(HUB_A[0], 10)?;
    hub.b.reaches(HUB_C[0], 10)?;
    hub.b.sh("tc qdisc add dev to-a root tbf rate 10mbit burst 64kb limit 20mb")?;
    hub.a.drop("input", "udp dport 9")?;
    // Limited, so that the queue of B's interface does not overflow.
    let to = SocketAddr::new(HUB_A[0].parse()?, 9);
    let flood = Flood { rate: Some(25_000), ..Flood::new(to, FLOOD, vec![0xff; LEN]) };
    let mut flood = hub.b.spawn("flood", hub.b.command(TRAFFIC).arg("flood").args(flood.to_string().split(' ')))?;
    let overflows = || Ok(!hub.b.sh("tc -s qdisc show dev to-a")?.contains("dropped 0,"));
    flood.until("the queue of the link to A overflows", SOON, overflows)?;
    let mut ping = pings(&hub.b, "b-c", HUB_C[0])?;
    answered(&mut ping, ALL, "B pings C while its link to A is saturated")?;
    flooded(&mut flood)?;
    let dropped = hub.shown()?["dropped"].clone();
    println!("{dropped}, {}", hub.b.sh("tc -s qdisc show dev to-a")?);
    ensure!(dropped["send_failed"].is_null(), "{dropped}: the socket's buffer was full before the link's queue");
    Ok(())
}

/// A is flooded from both sides: by B through its tunnel, and on its port with garbage from a stranger.
#[test]
fn a_peer_that_is_flooded_stays_in_reach() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, flooded_from_both_sides));
}

fn flooded_from_both_sides(lab: &Lab) -> Result<()> {
    let mut hub = Hub::new(lab)?;
    hub.forward(true)?;
    // The newcomer has a direct tunnel to A.
    hub.a.sh("ip route add 10.3.0.0/24 via 10.1.0.1")?;
    hub.c.sh("ip route add 10.1.0.0/24 via 10.3.0.1")?;
    let newcomer = newcomer(&mut hub.conf_a, "10.1.0.2:51801")?;
    let (a, _b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.c.reaches(HUB_A[0], 10)?;
    hub.a.count("flood", "input", "udp dport 9")?;
    hub.a.drop("input", "udp dport 9")?;
    hub.a.count("garbage", "input", "udp dport 51801 udp sport != 51802")?;
    let mut inside = flood(&hub.b, "flood", HUB_A[0], 9, &hub.a, "flood")?;
    let mut outside = flood(&hub.b, "garbage", "10.1.0.2", 51_801, &hub.a, "garbage")?;
    let mut ping = pings(&hub.c, "c-a", HUB_A[0])?;
    let arrived = arrives(lab, &hub.c, &newcomer, 15);
    let answered = answered(&mut ping, SOME, "C pings A, who is flooded");
    flooded(&mut inside)?;
    flooded(&mut outside)?;
    // The kernel's drop counters, in case something starves.
    println!("{} and {} arrived", hub.a.counted("flood")?, hub.a.counted("garbage")?);
    println!("{}", hub.a.sh("nstat -as UdpRcvbufErrors UdpInDatagrams; ip -s link show wga")?);
    arrived?;
    answered?;
    ensure!(a.dump()?.peers.iter().all(|peer| peer.latest_handshake > 0), "both have a session");
    Ok(())
}

/// The leases of `rustguard serve -i rgs`.
const LEASES: &str = "/var/lib/rustguard/rgs/leases";
/// Source addresses of one machine for its flood.
const SOURCES: ([u8; 4], u32) = ([10, 3, 1, 0], 250);

/// Datagrams with enrolment's type and length and a wrong MAC1: the sender does not even know the server's key.
#[test]
fn garbage_keeps_nobody_from_joining() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| joins_in_a_flood(lab, garbage, None)));
}

/// The same with a valid MAC1: the sender knows the server's public key and has no invite.
#[test]
fn strangers_keep_nobody_from_joining() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| joins_in_a_flood(lab, stranger, None)));
}

/// The same from so many addresses that together they exhaust the server's allowance for messages without a cookie.
#[test]
fn a_network_of_strangers_keeps_nobody_from_joining() {
    let _alone = alone();
    scenario(|lab| if_asked_for(lab, |lab| joins_in_a_flood(lab, stranger, Some(SOURCES))));
}

/// Machine 3 floods the server. Machine 1 joined before and keeps its tunnel; machine 2 joins during the flood.
fn joins_in_a_flood(lab: &Lab, datagram: fn(&str) -> Result<Vec<u8>>, sources: Option<([u8; 4], u32)>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("enrolment is RustGuard's own: wireguard-go is the subject");
        return Ok(());
    }
    let network = Network::new(lab, 3)?;
    let served = network.serve(lab, &["--pool", "10.150.0.0/24"])?;
    let _one = network.join(lab, 1, &["10.1.0.1", "--token", &network.invite(&[])?])?;
    eventually("the first lease is confirmed", SOON, || Ok(network.status()?["peers"][0]["state"] == "active"))?;
    let token = network.invite(&[])?;
    let (durable, audit) = (leases()?, network.audit()?.len());

    let (server, flooder) = (&network.server, &network.machines[2]);
    server.count("flood", "input", "iifname to3 udp dport 51820")?;
    let mut flood = Flood::new(SocketAddr::from(([10, 3, 0, 1], 51_820)), LONG_FLOOD, datagram(&token)?);
    if let Some((first, count)) = sources {
        flooder.sh("ip route add local 10.3.1.0/24 dev lo")?;
        server.sh("ip route add 10.3.1.0/24 via 10.3.0.2")?;
        flood.sources = Some((first.into(), count));
    }
    let mut flood = flood_with(flooder, "flood", &flood, server, "flood")?;
    let mut ping = pings(&network.machines[0], "ping", "10.150.0.1")?;
    let answered = answered(&mut ping, ALL, "a machine that had joined pings the server");
    let unchanged = leases()? == durable;
    let started = Instant::now();
    let joined = network.join(lab, 2, &["10.2.0.1", "--token", &token, "--timeout", "15"]);
    let took = started.elapsed();
    let in_time = flood.log().is_empty();
    flooded(&mut flood)?;
    // Drop counters of the kernel and of the queue, in case something starves.
    println!("{} arrived; joined after {took:?}", server.counted("flood")?);
    println!("{}", server.sh("nstat -as UdpRcvbufErrors UdpInDatagrams")?);
    let show = server.end_of(server.rustguard()?.args(["show", "rgs", "--json"]))?;
    println!("{}", show.stdout);
    let _two = joined?;
    answered?;
    ensure!(in_time, "the flood was over before the machine had joined, after {took:?}");
    network.machines[1].reaches("10.150.0.1", 10)?;

    ensure!(unchanged, "the flood has changed what is durable");
    // The second machine is there, and the log has only some lines about refusals.
    let peers = network.status()?["peers"].as_array().map(Vec::len);
    ensure!(peers == Some(2), "{peers:?} peers");
    let lines = network.audit()?.split_off(audit);
    let (refused, others): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["event"] == "refused");
    ensure!(refused.len() <= 3, "{refused:?}");
    ensure!(others.iter().map(|line| &line["event"]).eq(["admitted", "confirmed"]), "{others:?}");
    served.stop()
}

/// The files of the leases, with their contents.
fn leases() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let files = fs::read_dir(LEASES)?.map(|entry| {
        let path = entry?.path();
        let bytes = fs::read(&path)?;
        Ok((path, bytes))
    });
    files.collect()
}
