//! Several servers on one store.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ended, Lab, Network, Process, eventually, network, scenario_of_rustguard};
use serde_json::Value;
use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const TRIES: u32 = 60;
const STORE: &str = "etcd://10.1.0.1/home?tls=off";
/// The second server is machine 1.
const SECOND: u8 = 1;

/// Starts etcd on the server's node, with its files in the lab's folder.
fn etcd(lab: &Lab, network: &Network) -> Result<Process> {
    lab.needs("etcd", "etcd-server")?;
    let mut command = network.server.command("etcd");
    command.args(["--listen-client-urls", "http://0.0.0.0:2379", "--advertise-client-urls", "http://10.1.0.1:2379"]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"]);
    command.arg("--data-dir").arg(lab.path("etcd"));
    let mut process = network.server.spawn("etcd", &mut command)?;
    process.until("etcd listens", SOON, || Ok(network.server.sh("ss -Hltn 'sport = :2379'")?.contains("2379")))?;
    Ok(process)
}

/// `rustguard ARGUMENTS -i rg1` on the second server.
fn on_second(network: &Network, arguments: &[&str]) -> Result<Ended> {
    let node = &network.machines[usize::from(SECOND) - 1];
    node.end_of(node.rustguard()?.args(arguments).args(["-i", "rg1"]))
}

fn second_status(network: &Network) -> Result<Value> {
    let ended = on_second(network, &["status", "--json"])?;
    ensure!(ended.success(), "{ended}");
    Ok(serde_json::from_str(&ended.stdout)?)
}

/// The labels of the machines in a status.
fn labels(status: &Value) -> Result<Vec<String>> {
    let peers = status["peers"].as_array().context("peers")?;
    let mut labels: Vec<_> = peers.iter().filter_map(|peer| Some(peer["label"].as_str()?.to_owned())).collect();
    labels.sort();
    Ok(labels)
}

/// Two equal servers: each admits and renames, what one decides the other has, and when one is lost the other goes on.
/// Without the store everything goes on that needs no decision.
#[test]
fn two_servers_are_equal_and_each_goes_on_without_the_other() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 4, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let mut etcd_process = etcd(lab, network)?;
            let first = network.serve(lab, &["--store", STORE, "--endpoint", "10.1.0.1", "--name", "home"])?;
            let key = "/var/lib/rustguard/rgs/store-key";
            ensure!(fs::metadata(key)?.mode() & 0o777 == 0o600, "others can read the store key");
            let no_key = network.machines[0].rustguard()?;
            let mut no_key = no_key;
            network.machines[0]
                .end_of(no_key.args(["serve", "-i", "rg1", "--store", STORE]))?
                .refused(&["has a network", "--store-key FILE"])?;
            let arguments = ["--store", STORE, "--store-key", key, "--endpoint", "10.1.0.2"];
            let _second = network.serve_on(lab, SECOND, &arguments)?;

            let token = network.invite(&["--uses", "3"])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            // By the other server, with the same invite.
            let _three = network.join(lab, 3, &["10.1.0.2", "--token", &token, "--name", "three"])?;
            let inside = |n: u8| network.addresses(n)?.into_iter().next().context("an address");
            let [two, three] = [inside(2)?, inside(3)?];
            network.machines[1].reaches(&three, TRIES)?;
            let mut both = (Vec::new(), Vec::new());
            eventually("both servers have both machines", SOON, || {
                both = (labels(&network.status()?)?, labels(&second_status(network)?)?);
                let has =
                    |labels: &[String]| ["two", "three"].iter().all(|name| labels.iter().any(|label| label == name));
                Ok(has(&both.0) && has(&both.1))
            })
            .with_context(|| format!("{both:?}"))?;
            // What the second decides, the first has.
            let ended = on_second(network, &["peer", "rename", &two, "desk"])?;
            ensure!(ended.success(), "{ended}");
            eventually("the first server has the name", SOON, || {
                Ok(labels(&network.status()?)?.contains(&"desk".to_owned()))
            })?;
            let rosters = || -> Result<_> {
                Ok((
                    network.status()?["network"]["roster"].clone(),
                    second_status(network)?["network"]["roster"].clone(),
                ))
            };
            eventually("both have the same list", SOON, || rosters().map(|(a, b)| a == b))?;

            // The first server is lost.
            network.server.sh(
                "nft add table inet lab; nft 'add chain inet lab input { type filter hook input priority 0; }'; \
                 nft add rule inet lab input udp dport 51820 drop",
            )?;
            first.crash()?;
            let _four = network.join(lab, 4, &["10.1.0.2", "--token", &token, "--name", "four"])?;
            let four = inside(4)?;
            network.machines[3].reaches(&two, TRIES)?;
            network.machines[1].reaches(&four, TRIES)?;
            network.machines[1].reaches(&three, TRIES)?;
            let refused = network.try_join(4, &["10.1.0.2", "--token", &token]);
            drop(refused);

            // It comes back, and has what was decided meanwhile.
            network.server.sh("nft flush chain inet lab input")?;
            let _first = network.serve(lab, &[])?;
            ensure!(labels(&network.status()?)?.contains(&"four".to_owned()), "{:?}", labels(&network.status()?)?);
            let own = network.server_addresses()?.into_iter().next().context("an address")?;
            network.machines[1].reaches(&own, TRIES)?;

            // Without the store, what runs goes on, and decisions are refused in words.
            etcd_process.stop("KILL")?;
            eventually("the server notices", SOON, || Ok(network.status()?["store"]["since"].is_u64()))?;
            network.try_ask(&["invite", "new", "--another"])?.refused(&["etcd://10.1.0.1:2379/home"])?;
            let status = network.ask(&["status"])?;
            ensure!(status.contains("does not answer") || status.contains("nothing can be decided"), "{status}");
            network.machines[1].reaches(&three, TRIES)?;
            let _etcd = etcd(lab, network)?;
            eventually("the server decides again", SOON, || {
                Ok(network.try_ask(&["invite", "new", "--another"])?.success())
            })?;
            eventually("and says so", SOON, || Ok(network.status()?["store"]["since"].is_null()))
        })
    });
}
