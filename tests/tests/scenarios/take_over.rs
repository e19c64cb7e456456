//! A standby keeps the server's state, and replaces the server when it is lost.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ended, Gaps, Lab, Network, Process, Served, eventually, network, scenario_of_rustguard};
use serde_json::Value;
use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const TRIES: u32 = 60;
/// The standby is machine 1.
const STANDBY: u8 = 1;
const KEPT: &str = "/var/lib/rustguard/rg1/server-state";

/// A server and a standby, and machines that reach each other only through these two, because the server's node is
/// their router.
fn standby(lab: &Lab, machines: u8, body: impl FnOnce(&Network, Served, Process) -> Result<()>) -> Result<()> {
    network(lab, machines, |network| {
        network.server.sh("sysctl -qw net.ipv4.ip_forward=1; nft add table inet lab; \
             nft 'add chain inet lab forward { type filter hook forward priority 0; }'")?;
        for (a, b) in (2..=machines).flat_map(|a| (2..=machines).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            network.server.sh(&format!("nft add rule inet lab forward iifname to{a} oifname to{b} drop"))?;
        }
        let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
        let token = network.invite(&["--standby"])?;
        let arguments = ["10.1.0.1", "--token", &token, "--endpoint", "10.1.0.2", "--standby"];
        let process = network.join(lab, STANDBY, &arguments)?;
        body(network, served, process)
    })
}

/// Joins as a member.
fn member(lab: &Lab, network: &Network, n: u8) -> Result<Process> {
    let token = network.invite(&[])?;
    network.join(lab, n, &["10.1.0.1", "--token", &token])
}

/// `rustguard ARGUMENTS -i rg1` on the standby.
fn on_standby(network: &Network, arguments: &[&str]) -> Result<Ended> {
    let node = &network.machines[usize::from(STANDBY) - 1];
    node.end_of(node.rustguard()?.args(arguments).args(["-i", "rg1"]))
}

fn until_current(network: &Network) -> Result<()> {
    let mut last = Value::Null;
    eventually("the standby has the present state", SOON, || {
        last = network.status()?;
        let standbys = last["network"]["standbys"].as_array().context("standbys")?;
        Ok(standbys.iter().any(|standby| standby["current"] == true))
    })
    .with_context(|| last.to_string())
}

/// Members continue: those that are up and one that was off; invites of a phone and a newcomer remain valid.
/// Acknowledged changes are kept, and the previous server stops as soon as it hears that it was replaced.
#[test]
fn a_standby_takes_the_place_of_the_server() {
    scenario_of_rustguard("a standby", |lab| {
        standby(lab, 5, |network, served, mut kept| {
            let _two = member(lab, network, 2)?;
            let mut asleep = member(lab, network, 3)?;
            let inside = |n: u8| network.addresses(n)?.into_iter().next().context("an address");
            let [second, third] = [inside(2)?, inside(3)?];
            let server = network.server_addresses()?.into_iter().next().context("an address")?;
            network.machines[1].reaches(&third, TRIES)?;
            // Members have sessions with all servers.
            network.machines[1].reaches(&inside(STANDBY)?, TRIES)?;
            let unused = network.invite(&[])?;
            // The last change before the server is lost.
            network.ask(&["peer", "rename", &second, "desk"])?;
            until_current(network)?;
            asleep.stop("TERM")?;
            ensure!(fs::metadata(KEPT)?.mode() & 0o777 == 0o600, "others can read the keys");
            let status = on_standby(network, &["status"])?;
            ensure!(status.success() && status.stdout.contains("has the server's state of"), "{status}");

            on_standby(network, &["serve", "take-over"])?.refused(&["may still run", "--yes"])?;
            let mut traffic = Gaps::start(&network.machines[1], "traffic", &server)?;
            // A lost machine sends nothing, not even ICMP port unreachable.
            network.server.sh("nft 'add chain inet lab input { type filter hook input priority 0; }'; \
                 nft add rule inet lab input udp dport 51820 drop")?;
            served.crash()?;
            let ended = on_standby(network, &["serve", "take-over", "--dry-run", "--yes"])?;
            ensure!(ended.success() && ended.stdout.contains("nothing was changed"), "{ended}");
            let ended = on_standby(network, &["serve", "take-over", "--yes"])?;
            ensure!(ended.success() && ended.stdout.contains("rustguard serve --interface rg1"), "{ended}");
            ensure!(kept.stop("TERM").is_ok(), "the tunnel of the member has ended");
            ensure!(!Path::new("/etc/rustguard/rg1.conf").exists(), "it would come up as a member again");
            let _serving = network.serve_on(lab, STANDBY, &[])?;

            traffic.goes_on(5)?;
            println!("the server was gone for {:?}", traffic.longest());
            let status: Value = serde_json::from_str(&on_standby(network, &["status", "--json"])?.stdout)?;
            let peers = status["peers"].as_array().context("peers")?;
            let names: Vec<_> = peers.iter().filter_map(|peer| peer["label"].as_str()).collect();
            ensure!(names.contains(&"desk") && peers.len() == 2, "{names:?} of {status}");
            eventually("a list of the next term", SOON, || {
                let status: Value = serde_json::from_str(&on_standby(network, &["status", "--json"])?.stdout)?;
                Ok(status["network"]["roster"].as_u64().is_some_and(|number| number > 1 << 40))
            })?;
            // Member 3 only knows the standby as a further server, and its old place in the list no longer exists.
            let _three = network.up(lab, 3)?;
            network.machines[2].reaches(&server, TRIES)?;
            network.machines[2].reaches(&second, TRIES)?;
            // The invite contains the server's key, and an address that no longer exists.
            let _four = network.join(lab, 4, &["10.1.0.2", "--token", &unused])?;
            network.machines[3].reaches(&second, TRIES)?;
            let token: Value =
                serde_json::from_str(&on_standby(network, &["invite", "new", "--json", "--another"])?.stdout)?;
            let token = token["token"].as_str().context("a token")?;
            let _five = network.join(lab, 5, &["--token", token])?;
            network.machines[4].reaches(&second, TRIES)?;

            // The previous server returns.
            network.server.sh("nft flush chain inet lab input")?;
            traffic.longest_since();
            let mut command = network.server.rustguard()?;
            let mut back = network.server.spawn("back", command.args(["serve", "-i", "rgs"]))?;
            back.ended(SOON)?.refused(&["another machine has taken the place of this server"])?;
            let mut command = network.server.rustguard()?;
            network.server.end_of(command.args(["serve", "-i", "rgs"]))?.refused(&["another machine has taken"])?;
            traffic.goes_on(5)?;
            println!("the server of before was back, and stopped: the longest gap was {:?}", traffic.longest_since());
            network.machines[2].reaches(&second, TRIES)?;
            // It can become a standby of the new server once its old state is moved aside.
            network.server.sh("mv /var/lib/rustguard/rgs /var/lib/rustguard/rgs.before")?;
            let token: Value =
                serde_json::from_str(&on_standby(network, &["invite", "new", "--standby", "--json"])?.stdout)?;
            let token = token["token"].as_str().context("a token")?;
            let arguments = ["join", "--token", token, "--endpoint", "10.1.0.1", "--standby", "-i", "rgs"];
            let mut command = network.server.rustguard()?;
            let mut again = network.server.spawn("again", command.args(arguments))?;
            again.until("the new server has a standby", SOON, || {
                let status: Value = serde_json::from_str(&on_standby(network, &["status", "--json"])?.stdout)?;
                Ok(status["network"]["standbys"][0]["current"] == true)
            })
        })
    });
}

/// A standby needs both: `--standby` of the joining machine, and an invite for a standby.
#[test]
fn a_standby_needs_the_words_of_both() {
    scenario_of_rustguard("a standby", |lab| {
        network(lab, 2, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let _served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            let of_server = network.invite(&["--server"])?;
            let _one =
                network.join(lab, 1, &["10.1.0.1", "--token", &of_server, "--endpoint", "10.1.0.2", "--standby"])?;
            let of_standby = network.invite(&["--standby"])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &of_standby, "--endpoint", "10.2.0.2"])?;
            for n in [1, 2] {
                network.reaches_server(n)?;
            }
            // Each has had enough time to receive the state.
            network.machines[1].reaches(&network.addresses(1)?[0], TRIES)?;
            for n in [1, 2] {
                ensure!(!Path::new(&format!("/var/lib/rustguard/rg{n}/server-state")).exists(), "machine {n} has it");
            }
            on_standby(network, &["serve", "take-over"])?.refused(&["rg1 has nothing of the state", "--standby"])?;
            let status = on_standby(network, &["status"])?;
            ensure!(status.stdout.contains("has nothing of the server's state yet"), "{status}");
            let alone = network.try_join(1, &["10.1.0.1", "--token", &of_standby, "--standby"])?;
            ensure!(!alone.success() && alone.stderr.contains("--endpoint <HOST[:PORT]>"), "{alone}");
            Ok(())
        })
    });
}

/// A removed standby deletes the state.
#[test]
fn a_standby_that_is_removed_forgets_the_state() {
    scenario_of_rustguard("a standby", |lab| {
        standby(lab, 1, |network, _served, _kept| {
            until_current(network)?;
            ensure!(Path::new(KEPT).exists(), "it has no state");
            network.ask(&["peer", "rm", &network.addresses(STANDBY)?[0]])?;
            eventually("the state is gone", SOON, || Ok(!Path::new(KEPT).exists()))
        })
    });
}
