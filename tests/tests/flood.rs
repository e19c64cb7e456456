//! Floods: one peer, or somebody who is none, takes all there is, and the others get through nevertheless. Times are printed
//! and not judged.
//!
//! A debug build moves a twentieth of what the kernel can throw at it, and loses nearly all of a flood together with what
//! comes beside it: these scenarios take `cargo test --release`.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Conf, HUB_A, HUB_B, HUB_C, Hub, Lab, Node, PeerConf, Process, Program, Tunnel, scenario};
use std::time::Duration;

/// This package's own maker of traffic.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
/// Bytes of a flood's datagrams: in the tunnel, one packet each.
const LEN: &str = "1200";
/// Seconds: longer than fifty echo requests, and a handshake before them, take.
const FLOOD: &str = "5";
const SOON: Duration = Duration::from_secs(15);

/// Leaves a scenario out where it would say nothing.
fn in_release(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if cfg!(debug_assertions) && std::env::var_os("RUSTGUARD_FLOOD").is_none() {
        lab.skip(
            "a flood: a debug build drowns in it; use --release, or a RUSTGUARD_BIN that is and RUSTGUARD_FLOOD=1",
        );
        return Ok(());
    }
    body(lab)
}

/// Starts a flood, and waits until it has reached `counter` on `there`.
fn flood(from: &Node, name: &str, to: &str, port: &str, there: &Node, counter: &str) -> Result<Process> {
    let before = there.counted(counter)?;
    let mut flood = from.spawn(name, from.command(TRAFFIC).args(["flood", to, port, LEN, FLOOD]))?;
    flood.until("the flood arrives", SOON, || Ok(there.counted(counter)? >= before + 1_000))?;
    Ok(flood)
}

/// Starts fifty echo requests in 1.5 seconds.
fn pings(from: &Node, name: &str, to: &str) -> Result<Process> {
    from.spawn(name, from.command("ping").args(["-n", "-c", "50", "-i", "0.03", "-W", "1", to]))
}

/// That nine of ten were answered; prints how many, and after what time.
fn answered(ping: &mut Process, what: &str) -> Result<()> {
    let ended = ping.ended(SOON)?;
    let text = &ended.stderr;
    let times = text.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).context("nothing was answered")?;
    println!("\n{what}: {} of 50 answered, median {median} ms", times.len());
    ensure!(times.len() >= 45, "{what}: starves; {ended}");
    Ok(())
}

/// That the flood was one, and is over.
fn flooded(flood: &mut Process) -> Result<()> {
    let ended = flood.ended(SOON)?;
    ensure!(ended.success(), "{ended}");
    println!("\n{}", ended.stderr.trim());
    Ok(())
}

/// Another peer, on the node of `c`: an interface `wgd` whose only peer is `conf`, at `endpoint`, with the address `other`.
fn newcomer(conf: &mut Conf, endpoint: &str, other: &str) -> Result<Conf> {
    let mut newcomer = Conf::new("wgd")?;
    newcomer.addresses = vec!["10.9.0.4/32".to_owned()];
    let mut peer = PeerConf::new(&conf.keys.public, &format!("{other}/32"));
    peer.endpoint = Some(endpoint.to_owned());
    newcomer.peers.push(peer);
    conf.peers.push(PeerConf::new(&newcomer.keys.public, "10.9.0.4/32"));
    Ok(newcomer)
}

/// A handshake from nothing, and an answer through its session.
fn arrives(lab: &Lab, node: &Node, conf: &Conf, other: &str) -> Result<()> {
    let _tunnel = Tunnel::start(lab, node, Program::Reference, conf)?;
    node.run(&["ping", "-n", "-q", "-c", "1", "-W", "3", "-I", "10.9.0.4", other])
        .context("the newcomer's handshake, or its first packet, starves")?;
    Ok(())
}

/// A floods the middle through its tunnel, while C and A ping each other through the same interface and a new peer appears.
#[test]
fn a_peer_that_floods_starves_nobody() {
    scenario(|lab| in_release(lab, flooding));
}

fn flooding(lab: &Lab) -> Result<()> {
    let mut hub = Hub::new(lab)?;
    hub.forward(true)?;
    let newcomer = newcomer(&mut hub.conf_b, "10.3.0.1:51802", HUB_B[0])?;
    let (a, b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.a.reaches(HUB_C[0], 10)?;
    let handshake = a.dump()?.peers[0].latest_handshake;
    // Taken off before an answer is made, which would be a flood of its own.
    hub.b.count("flood", "input", "udp dport 9")?;
    hub.b.drop("input", "udp dport 9")?;
    let mut flood = flood(&hub.a, "flood", HUB_B[0], "9", &hub.b, "flood")?;
    let mut there = pings(&hub.c, "c-a", HUB_A[0])?;
    let mut back = pings(&hub.a, "a-c", HUB_C[0])?;
    arrives(lab, &hub.c, &newcomer, HUB_B[0])?;
    answered(&mut there, "C pings A, who floods B through the tunnel")?;
    answered(&mut back, "A pings C while it floods B through the tunnel")?;
    flooded(&mut flood)?;
    println!("{} arrived, with those that came as one", hub.b.counted("flood")?);
    hub.a.reaches(HUB_B[0], 1)?;
    ensure!(a.dump()?.peers[0].latest_handshake == handshake, "the flooding peer's session should have stayed");
    ensure!(b.dump()?.peers.iter().all(|peer| peer.latest_handshake > 0), "all three have a session");
    Ok(())
}

/// A is flooded from both sides: through its tunnel by the middle, and on its port by somebody who sends garbage.
#[test]
fn a_peer_that_is_flooded_stays_in_reach() {
    scenario(|lab| in_release(lab, flooded_from_both_sides));
}

fn flooded_from_both_sides(lab: &Lab) -> Result<()> {
    let mut hub = Hub::new(lab)?;
    hub.forward(true)?;
    // The newcomer speaks to A itself.
    hub.a.sh("ip route add 10.3.0.0/24 via 10.1.0.1")?;
    hub.c.sh("ip route add 10.1.0.0/24 via 10.3.0.1")?;
    let newcomer = newcomer(&mut hub.conf_a, "10.1.0.2:51801", HUB_A[0])?;
    let (a, _b, _c) = hub.start(lab, Program::Subject, &[])?;
    hub.c.reaches(HUB_A[0], 10)?;
    hub.a.count("flood", "input", "udp dport 9")?;
    hub.a.drop("input", "udp dport 9")?;
    hub.a.count("garbage", "input", "udp dport 51801 udp sport != 51802")?;
    let mut inside = flood(&hub.b, "flood", HUB_A[0], "9", &hub.a, "flood")?;
    let mut outside = flood(&hub.b, "garbage", "10.1.0.2", "51801", &hub.a, "garbage")?;
    let mut ping = pings(&hub.c, "c-a", HUB_A[0])?;
    let arrived = arrives(lab, &hub.c, &newcomer, HUB_A[0]);
    let answered = answered(&mut ping, "C pings A, who is flooded");
    flooded(&mut inside)?;
    flooded(&mut outside)?;
    // What the kernel dropped, should somebody starve.
    println!("{} and {} arrived", hub.a.counted("flood")?, hub.a.counted("garbage")?);
    println!("{}", hub.a.sh("nstat -as UdpRcvbufErrors UdpInDatagrams; ip -s link show wga")?);
    arrived?;
    answered?;
    ensure!(a.dump()?.peers.iter().all(|peer| peer.latest_handshake > 0), "both have a session");
    Ok(())
}
