//! An interface that is moved to another network namespace, as for a container that may only use the tunnel. The UDP
//! sockets stay where the tunnel was started.
//!
//! ```text
//!    container  wga        a  10.1.0.2 ── 10.1.0.1  router  10.2.0.1 ── 10.2.0.2  b
//! ```
use anyhow::{Result, ensure};
use rustguard_tests::{
    INSIDE_A, INSIDE_B, Lab, Node, Outside, Pair, Program, Tunnel, eventually, scenario_of_rustguard,
};
use std::time::Duration;

/// The program that sends and receives streams.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
/// A limit that is reached only if something hangs.
const LONG: Duration = Duration::from_secs(20);

/// Moves the interface of `a` into the namespace of `container`, and sets it up there.
fn moved(pair: &Pair, container: &Node) -> Result<()> {
    pair.a.sh("ip link set wga netns container")?;
    ensure!(pair.a.sh("ip link show wga").is_err(), "it is still there");
    ensure!(!container.sh("ip addr show wga")?.contains(INSIDE_A[0]), "the kernel removes addresses");
    set_up(container, "wga")
}

fn set_up(node: &Node, interface: &str) -> Result<()> {
    node.sh(&format!("ip addr add {}/24 dev {interface}; ip link set {interface} up", INSIDE_A[0]))?;
    Ok(())
}

fn start(lab: &Lab) -> Result<(Pair, Node, Tunnel, Tunnel)> {
    let pair = Pair::new(lab, Outside::V4)?;
    let container = lab.node("container")?;
    let (a, b) = pair.start(lab, Program::Subject, Program::Reference)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    Ok((pair, container, a, b))
}

#[test]
fn a_container_has_the_tunnel_and_nothing_else() {
    scenario_of_rustguard("an interface in another namespace", |lab| {
        let (pair, container, mut a, _b) = start(lab)?;
        moved(&pair, &container)?;
        container.reaches(INSIDE_B[0], 10)?;
        ensure!(container.sh("ping -n -c 1 -W 1 10.2.0.2").is_err(), "only the tunnel leads out of the container");
        let mut receiver = pair.b.spawn("receive", pair.b.command(TRAFFIC).arg("receive"))?;
        eventually("the receiver listens", LONG, || Ok(pair.b.sh("ss -Htln sport = :7000")?.contains("7000")))?;
        container.run(&[TRAFFIC, "send", INSIDE_B[0], &(2 << 20).to_string()])?;
        let received = receiver.ended(LONG)?;
        ensure!(received.success(), "{received}");

        let shown = pair.a.end_of(pair.a.rustguard()?.args(["show", "wga"]))?;
        ensure!(shown.success() && shown.stdout.contains("latest handshake"), "{shown}");
        // Its state is also followed in the other namespace.
        container.sh("ip link set wga down; ip link set wga up")?;
        container.reaches(INSIDE_B[0], 10)?;

        // The end of the tunnel removes the interface.
        let ended = a.process().stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        ensure!(container.sh("ip link show wga").is_err(), "the interface is left behind");
        Ok(())
    });
}

#[test]
fn an_interface_can_come_back() {
    scenario_of_rustguard("an interface in another namespace", |lab| {
        let (pair, container, _a, _b) = start(lab)?;
        moved(&pair, &container)?;
        container.reaches(INSIDE_B[0], 10)?;
        // The namespace of the laboratory's first process has no name for `ip netns`, so the interface moves to `a` by
        // its name.
        container.sh("ip link set wga netns a")?;
        set_up(&pair.a, "wga")?;
        pair.a.reaches(INSIDE_B[0], 10)
    });
}

/// A container that ends deletes the interface, and the tunnel ends as if a user had deleted it.
#[test]
fn a_deleted_interface_ends_the_tunnel_there_too() {
    scenario_of_rustguard("an interface in another namespace", |lab| {
        let (pair, container, mut a, _b) = start(lab)?;
        moved(&pair, &container)?;
        container.reaches(INSIDE_B[0], 10)?;
        container.sh("ip link del wga")?;
        let ended = a.process().ended(LONG)?;
        ensure!(ended.stderr.contains("deleted"), "{ended}");
        Ok(())
    });
}
