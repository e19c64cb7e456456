//! Several servers on one store.
mod database;

use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ended, Lab, Network, Process, Served, eventually, network, scenario_of_rustguard};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);
const TRIES: u32 = 60;
const STORE: &str = "etcd://10.1.0.1/home?tls=off";
/// The store key of the first server.
const STORE_KEY: &str = "/var/lib/rustguard/rgs/store-key";
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

/// etcd and two servers on it.
fn two_servers(lab: &Lab, network: &Network) -> Result<(Process, Served, Process)> {
    network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
    let store = etcd(lab, network)?;
    let first = network.serve(lab, &["--store", STORE, "--endpoint", "10.1.0.1", "--name", "home"])?;
    let second = ["--store", STORE, "--store-key", STORE_KEY, "--endpoint", "10.1.0.2"];
    let second = network.serve_on(lab, SECOND, &second)?;
    Ok((store, first, second))
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
            ensure!(fs::metadata(STORE_KEY)?.mode() & 0o777 == 0o600, "others can read the store key");
            let mut no_key = network.machines[0].rustguard()?;
            network.machines[0]
                .end_of(no_key.args(["serve", "-i", "rg1", "--store", STORE]))?
                .refused(&["has a network", "--store-key FILE"])?;
            let arguments = ["--store", STORE, "--store-key", STORE_KEY, "--endpoint", "10.1.0.2"];
            let _second = network.serve_on(lab, SECOND, &arguments)?;

            // The invite has the endpoints of both, and the second joining machine is not told any.
            let mut token = String::new();
            eventually("the first server knows where the second is", SOON, || {
                token = network.invite(&["--uses", "3"])?;
                // In base32, an invite with one endpoint of 14 bytes has 139 characters.
                Ok(token.len() > 139)
            })?;
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
            // The audit log of each has the decisions of both, and says which server the others are of.
            let audit = |interface: &str| fs::read_to_string(format!("/var/lib/rustguard/{interface}/audit.jsonl"));
            let has = |text: &str, event: &str, by_other: bool| {
                let of_event = |line: &&str| line.contains(&format!("\"event\":\"{event}\""));
                text.lines().filter(of_event).any(|line| line.contains("\"server\":") == by_other)
            };
            let (first_log, second_log) = (audit("rgs")?, audit("rg1")?);
            ensure!(has(&first_log, "invite-made", false) && has(&second_log, "invite-made", true), "{second_log}");
            ensure!(has(&first_log, "renamed", true) && has(&second_log, "renamed", false), "{first_log}");

            // The first server is lost.
            network.server.sh(
                "nft add table inet lab; nft 'add chain inet lab input { type filter hook input priority 0; }'; \
                 nft add rule inet lab input udp dport 51820 drop",
            )?;
            first.crash()?;
            let began = Instant::now();
            let _four = network.join(lab, 4, &["--token", &token, "--name", "four"])?;
            println!("the tunnel of the next machine was up {:?} after the first server's death", began.elapsed());
            let four = inside(4)?;
            network.machines[3].reaches(&two, TRIES)?;
            network.machines[1].reaches(&four, TRIES)?;
            network.machines[1].reaches(&three, TRIES)?;

            // It comes back, and has what was decided meanwhile.
            network.server.sh("nft flush chain inet lab input")?;
            let _first = network.serve(lab, &["--metrics", "127.0.0.1:9586"])?;
            let available = || -> Result<_> {
                let page = network.server.run(&["curl", "-sf", "http://127.0.0.1:9586/metrics"])?;
                let line =
                    page.lines().find(|line| line.starts_with("rustguard_store_available")).context("no metric")?;
                Ok(line.rsplit_once(' ').is_some_and(|(_, value)| value == "1"))
            };
            eventually("the metric says that the store is there", SOON, available)?;
            ensure!(labels(&network.status()?)?.contains(&"four".to_owned()), "{:?}", labels(&network.status()?)?);
            let own = network.server_addresses()?.into_iter().next().context("an address")?;
            // Also machines that joined by its key at the other server.
            for machine in [1, 2, 3] {
                network.machines[machine].reaches(&own, TRIES)?;
            }

            // The store hangs in the middle of a decision. Nothing else is decided until it is known what became of it.
            let invites = || -> Result<usize> {
                let text = network.ask(&["invite", "ls", "--json"])?;
                Ok(serde_json::from_str::<Value>(&text)?.as_array().context("a list of invites")?.len())
            };
            let before = invites()?;
            etcd_process.signal("STOP")?;
            network
                .try_ask(&["invite", "new", "--another"])?
                .refused(&["not known whether this was stored", "look again then"])?;
            network.status()?;
            network.try_ask(&["invite", "new", "--another"])?.refused(&["etcd://10.1.0.1:2379/home"])?;
            network.try_ask(&["peer", "rename", &two, "chair"])?.refused(&["etcd://10.1.0.1:2379/home"])?;
            etcd_process.signal("CONT")?;
            eventually("the server decides again", SOON, || Ok(network.status()?["store"]["since"].is_null()))?;
            let ended = network.try_ask(&["invite", "new", "--another"])?;
            ensure!(ended.success(), "{ended}");
            // The one in doubt may have arrived.
            ensure!((before + 1..=before + 2).contains(&invites()?), "{before} and {}", invites()?);
            ensure!(labels(&network.status()?)?.contains(&"desk".to_owned()), "{:?}", labels(&network.status()?)?);

            // Without the store, what runs goes on, and decisions are refused in words.
            etcd_process.stop("KILL")?;
            eventually("the server notices", SOON, || Ok(network.status()?["store"]["since"].is_u64()))?;
            network.try_ask(&["invite", "new", "--another"])?.refused(&["etcd://10.1.0.1:2379/home"])?;
            // All pages of a second are the same one.
            eventually("the metric says so", SOON, || Ok(!available()?))?;
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

/// A phone goes on at the other server, settings and a policy are those of both, and a server that was removed ends.
#[test]
fn phones_settings_and_removals_are_those_of_all_servers() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 3, |network| {
            let (_etcd, first, mut second) = two_servers(lab, network)?;
            let token = network.invite(&[])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            let two = network.addresses(2)?.into_iter().next().context("an address")?;

            // A phone, whose file names the key of the first server, at the second.
            let conf = network.ask(&["peer", "add", "tablet", "--conf", "-"])?;
            let conf = conf.replace("10.1.0.1:51820", "10.1.0.2:51820");
            let address = conf.lines().find_map(|line| line.strip_prefix("Address = ")).context("an address")?;
            let tablet = address.split(['/', ',']).next().context("an address")?.to_owned();
            let file = lab.file("phone.conf", &conf)?;
            let mut phone = network.machines[2].rustguard()?;
            let _phone = network.machines[2].spawn("phone", phone.arg("up").arg(&file))?;
            network.machines[2].reaches(&two, TRIES)?;
            network.machines[1].reaches(&tablet, TRIES)?;
            first.crash()?;
            network.machines[2].reaches(&two, TRIES)?;
            network.machines[1].reaches(&tablet, TRIES)?;
            let _first = network.serve(lab, &[])?;

            // Settings and policy.
            let settings = "/var/lib/rustguard/rgs/settings.json";
            let text = fs::read_to_string(settings)?.replace("\"dns\": []", "\"dns\": [\n \"10.1.0.53\"]");
            fs::write(settings, text)?;
            fs::write("/etc/rustguard/rgs.policy", "allow * -> *\n")?;
            let mut reload = network.server.rustguard()?;
            let ended = network.server.end_of(reload.args(["reload", "rgs"]))?;
            ensure!(ended.success(), "{ended}");
            eventually("the second server has the settings and the policy", SOON, || {
                let settings = fs::read_to_string("/var/lib/rustguard/rg1/settings.json")?;
                let policy = fs::read_to_string("/var/lib/rustguard/rg1/policy").unwrap_or_default();
                Ok(settings.contains("10.1.0.53")
                    && policy == "allow * -> *\n"
                    && second_status(network)?["network"]["policy"]["rules"] == 1)
            })?;

            let backup = lab.path("second.backup");
            let path = backup.to_str().context("a path")?;
            let ended = on_second(network, &["serve", "backup", path])?;
            ensure!(ended.success(), "{ended}");
            // The second server is removed, and says so.
            let own = second_status(network)?["public_key"].as_str().context("a key")?.to_owned();
            network.ask(&["peer", "rm", &own])?;
            second.ended(SOON)?.refused(&["this server was removed from the network"])?;
            let again = network.machines[0].rustguard()?.args(["serve", "-i", "rg1"]).output();
            ensure!(String::from_utf8_lossy(&again?.stderr).contains("was removed"), "it starts again");
            network.machines[1].reaches(&network.server_addresses()?[0], TRIES)?;

            // With a backup of the second server, one machine serves by itself. It has the key that phones know.
            let mut alone = network.machines[2].rustguard()?;
            let ended = network.machines[2].end_of(alone.args(["serve", "restore", path, "-i", "rg8"]))?;
            ensure!(ended.success(), "{ended}");
            let mut alone = network.machines[2].rustguard()?;
            let alone = alone.args(["serve", "-i", "rg8", "--port", "51888"]);
            let mut alone = network.machines[2].spawn("alone", alone)?;
            let mut restored = Value::Null;
            alone.until("the restored server runs", SOON, || {
                let mut status = network.machines[2].rustguard()?;
                let status = network.machines[2].end_of(status.args(["status", "--json", "-i", "rg8"]))?;
                restored = serde_json::from_str(&status.stdout).unwrap_or_default();
                // Before its socket is there, the interface answers alone.
                Ok(status.success() && restored["network"].is_object())
            })?;
            ensure!(restored["public_key"] == network.status()?["public_key"], "{restored}");
            ensure!(labels(&restored)? == ["tablet", "two"], "{restored}");
            Ok(())
        })
    });
}

/// The file of a phone names an address that several machines have, or that moves: the phone goes on at the server that
/// has it, and gets its answers from there.
#[test]
fn a_phone_follows_an_address_that_moves() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 3, |network| {
            let (_etcd, first, _second) = two_servers(lab, network)?;
            let token = network.invite(&[])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            let two = network.addresses(2)?.into_iter().next().context("an address")?;

            network.server.sh("ip addr add 10.9.9.9/32 dev lo")?;
            let conf = network.ask(&["peer", "add", "tablet", "--endpoint", "10.9.9.9", "--conf", "-"])?;
            ensure!(conf.contains("Endpoint = 10.9.9.9:51820\n"), "{conf}");
            let address = conf.lines().find_map(|line| line.strip_prefix("Address = ")).context("an address")?;
            let tablet = address.split(['/', ',']).next().context("an address")?.to_owned();
            let file = lab.file("phone.conf", &conf)?;
            let phone_node = &network.machines[2];
            let _phone = phone_node.spawn("phone", phone_node.rustguard()?.arg("up").arg(&file))?;
            phone_node.reaches(&two, TRIES)?;
            network.machines[1].reaches(&tablet, TRIES)?;
            let at = |status: &Value| {
                let peers = status["peers"].as_array().cloned().unwrap_or_default();
                let phone = peers.into_iter().find(|peer| peer["name"] == "tablet").unwrap_or_default();
                phone["last_handshake"].is_u64()
            };
            ensure!(at(&network.status()?) && !at(&second_status(network)?), "the phone is at the second server");

            first.crash()?;
            network.server.sh("ip addr del 10.9.9.9/32 dev lo; ip route add 10.9.9.9 dev to1")?;
            network.machines[0].sh("ip addr add 10.9.9.9/32 dev lo")?;
            phone_node.reaches(&two, TRIES)?;
            network.machines[1].reaches(&tablet, TRIES)?;
            ensure!(at(&second_status(network)?), "the phone is elsewhere");
            Ok(())
        })
    });
}

/// Of four servers, a member keeps sessions with the three quickest, and takes the fourth when one of them dies.
#[test]
fn a_member_keeps_sessions_with_three_servers() {
    scenario_of_rustguard("servers on one store", |lab| {
        lab.needs("wg", "wireguard-tools")?;
        network(lab, 4, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let _etcd = etcd(lab, network)?;
            let first = network.serve(lab, &["--store", STORE, "--endpoint", "10.1.0.1"])?;
            let mut others = Vec::new();
            for n in 1..=3 {
                let endpoint = format!("10.{n}.0.2");
                let arguments = ["--store", STORE, "--store-key", STORE_KEY, "--endpoint", &endpoint];
                others.push(network.serve_on(lab, n, &arguments)?);
            }
            let token = network.invite(&[])?;
            let _member = network.join(lab, 4, &["10.1.0.1", "--token", &token, "--name", "four"])?;
            let member = &network.machines[3];
            // The keys of the servers that it keeps sessions with, and of those that rest.
            let keys = || -> Result<(Vec<String>, Vec<String>)> {
                let text = member.run(&["wg", "show", "rg4", "persistent-keepalive"])?;
                let keys = text.lines().filter_map(|line| line.split_once('\t'));
                let (kept, resting): (Vec<_>, Vec<_>) = keys.partition(|(_, interval)| *interval != "off");
                let key = |(key, _): (&str, &str)| key.to_owned();
                Ok((kept.into_iter().map(key).collect(), resting.into_iter().map(key).collect()))
            };
            eventually("one of four rests", SOON, || {
                let (kept, resting) = keys()?;
                Ok((kept.len(), resting.len()) == (3, 1))
            })?;
            // The fourth one reaches it all the same.
            let four = network.addresses(4)?.into_iter().next().context("an address")?;
            let nodes = [&network.server, &network.machines[0], &network.machines[1], &network.machines[2]];
            for node in nodes {
                node.reaches(&four, TRIES)?;
            }
            // Another server dies. It is not the one that rests.
            let (kept, resting) = keys()?;
            let mut own = Vec::new();
            for (node, n) in nodes.into_iter().zip(["rgs", "rg1", "rg2", "rg3"]) {
                own.push(node.run(&["wg", "show", n, "public-key"])?.trim().to_owned());
            }
            let dies = own.iter().position(|key| kept.contains(key)).context("a server that it keeps")?;
            match dies {
                0 => first.crash()?,
                _ => drop(others.remove(dies - 1).stop("KILL")?),
            }
            eventually("it takes the one that rested", SOON, || Ok(keys()?.0.contains(&resting[0])))?;
            ensure!(keys()?.0.contains(&own[dies]), "the dead one is not tried any more");
            Ok(())
        })
    });
}

/// A server gets another key while packets go through it, and has it after a restart. The key that phones know stays.
#[test]
fn a_server_changes_its_key() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 2, |network| {
            let (_etcd, first, mut second) = two_servers(lab, network)?;
            let rotate = |node: &rustguard_tests::Node, interface: &str| {
                node.end_of(node.rustguard()?.args(["key", "rotate", interface, "--yes"]))
            };
            rotate(&network.server, "rgs")?.refused(&["phones and invites know", "peer rm"])?;
            let token = network.invite(&[])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            let status = second_status(network)?;
            let address = status["pools"][0]["address"].as_str().context("an address")?.to_owned();
            let before = status["public_key"].clone();
            network.machines[1].reaches(&address, TRIES)?;
            network.server.reaches(&address, TRIES)?;

            let mut pings = network.machines[1].keeps_pinging(&address)?;
            let folder = std::path::Path::new("/var/lib/rustguard/rg1");
            let old = lab.path("old-key");
            fs::copy(folder.join("key"), &old)?;
            let ended = rotate(&network.machines[0], "rg1")?;
            ensure!(ended.success(), "{ended}");
            let now = second_status(network)?["public_key"].clone();
            ensure!(now != before && ended.stdout.contains(now.as_str().context("a key")?), "{ended}");
            eventually("the member knows the new key", SOON, || {
                let peers = network.machines[1].run(&["wg", "show", "rg2", "peers"])?;
                Ok(peers.contains(now.as_str().unwrap_or_default())
                    && !peers.contains(before.as_str().unwrap_or_default()))
            })?;
            network.server.reaches(&address, TRIES)?;
            network.machines[1].reaches(&address, TRIES)?;
            pings.lost_at_most(5)?;

            // It starts with it, also if it died when the log had the next key and the file did not. The member reaches
            // it in a new session.
            ensure!(second.stop("TERM")?.success(), "{}", second.log());
            ensure!(!folder.join("key-next").exists(), "the next key is still there");
            fs::rename(folder.join("key"), folder.join("key-next"))?;
            fs::copy(old, folder.join("key"))?;
            first.crash()?;
            let _second = network.serve_on(lab, SECOND, &[])?;
            ensure!(second_status(network)?["public_key"] == now, "another key after a restart");
            network.machines[1].reaches(&address, TRIES)
        })
    });
}

/// A store that was restored from an older backup is refused, until the administrator goes on with it. Members then
/// take lists that are newer than all they have.
#[test]
fn a_store_that_was_set_back_is_accepted_by_the_administrator_alone() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 2, |network| {
            let (mut store, first, mut second) = two_servers(lab, network)?;
            let token = network.invite(&[])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            let two = network.addresses(2)?.into_iter().next().context("an address")?;
            let settled = || -> Result<bool> {
                let status = network.status()?;
                Ok(labels(&status)?.contains(&"two".to_owned()) && status["network"]["lagging"] == Value::Array(vec![]))
            };
            eventually("the member has the list", SOON, settled)?;
            let backup = |from: &str, to: &str| {
                let (from, to) = (lab.path(from), lab.path(to));
                network.server.sh(&format!("rm -rf {1}; cp -r {0} {1}", from.display(), to.display()))
            };
            store.stop("TERM")?;
            backup("etcd", "old")?;
            let mut store = etcd(lab, network)?;
            let renamed = || Ok(network.try_ask(&["peer", "rename", &two, "desk"])?.success());
            eventually("the server decides again", SOON, renamed)?;
            eventually("both have the name", SOON, || {
                let has = |status: &Value| Ok::<_, anyhow::Error>(labels(status)?.contains(&"desk".to_owned()));
                Ok(has(&network.status()?)?
                    && has(&second_status(network)?)?
                    && network.status()?["network"]["lagging"] == Value::Array(vec![]))
            })?;
            let before = network.status()?["network"]["roster"].as_u64().context("a number")?;

            store.stop("TERM")?;
            backup("old", "etcd")?;
            let _store = etcd(lab, network)?;
            let words = ["older backup", "--accept-older-store"];
            eventually("the server notices", SOON, || {
                Ok(network.status()?["store"]["problem"].as_str().is_some_and(|problem| problem.contains(words[0])))
            })?;
            network.try_ask(&["invite", "new", "--another"])?.refused(&words)?;
            network.machines[1].reaches(&network.server_addresses()?[0], TRIES)?;
            first.stop()?;
            let mut serve = network.server.rustguard()?;
            network.server.end_of(serve.args(["serve", "-i", "rgs"]))?.refused(&words)?;
            let _first = network.serve(lab, &["--accept-older-store"])?;
            let status = network.status()?;
            ensure!(labels(&status)?.contains(&"two".to_owned()), "{status}");
            second.stop("TERM")?;
            let _second = network.serve_on(lab, SECOND, &["--accept-older-store"])?;
            network.ask(&["peer", "rename", &two, "chair"])?;
            eventually("all have the new name", SOON, || {
                let status = network.status()?;
                let has = |status: &Value| Ok::<_, anyhow::Error>(labels(status)?.contains(&"chair".to_owned()));
                let is_told = status["network"]["lagging"] == Value::Array(vec![]);
                Ok(has(&status)? && has(&second_status(network)?)? && is_told)
            })?;
            let after = network.status()?["network"]["roster"].as_u64().context("a number")?;
            ensure!(after > before, "members would not take list {after} after {before}");
            eventually("the member uses it", SOON, || {
                Ok(fs::read_to_string("/run/rustguard/rg2.network")?.contains("chair"))
            })?;
            network.machines[1].reaches(&network.server_addresses()?[0], TRIES)
        })
    });
}

/// A network that was served by one machine is put into a store: its machines go on. Bad input changes nothing.
#[test]
fn a_network_is_put_into_an_empty_store() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            let token = network.invite(&["--uses", "2"])?;
            let _one = network.join(lab, 1, &["10.1.0.1", "--token", &token, "--name", "one"])?;
            network.reaches_server(1)?;
            let before = network.status()?;
            served.stop()?;

            let serve = |arguments: &[&str]| {
                let mut command = network.server.rustguard()?;
                network.server.end_of(command.args(["serve", "-i", "rgs"]).args(arguments))
            };
            serve(&["--store", "redis://10.1.0.1"])?.refused(&["begins with etcd:// or postgres://"])?;
            serve(&["--store", "etcd://me:secret@10.1.0.1/home"])?
                .refused(&["contains a password", "password-file"])?;
            let at = ["--store", STORE];
            serve(&[&at[..], &["--store-key", "/nowhere"]].concat())?.refused(&["/nowhere", "No such file"])?;
            serve(&[&at[..], &["--store-key", "/etc/hostname"]].concat())?
                .refused(&["/etc/hostname", "no store key"])?;
            serve(&at)?.refused(&["etcd://10.1.0.1:2379/home", "does not answer"])?;
            let _etcd = etcd(lab, network)?;
            serve(&at)?.refused(&["is empty", "machines: 1", "--adopt"])?;
            serve(&["--store", STORE, "--adopt", "--isolate", "--star"])?.refused(&["a star has one server"])?;

            let served = network.serve(lab, &["--store", STORE, "--adopt"])?;
            network.reaches_server(1)?;
            let after = network.status()?;
            let own = |status: &Value| {
                (status["public_key"].clone(), status["endpoint"].clone(), status["pools"][0]["address"].clone())
            };
            ensure!(own(&before) == own(&after), "{after} was {before}");
            ensure!(labels(&after)? == ["one"], "{after}");
            let roster = |status: &Value| status["network"]["roster"].as_u64().unwrap_or_default();
            ensure!(roster(&after) > roster(&before), "the list has no greater number: {after}");
            // The same invite, and a restart without options.
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            served.stop()?;
            let _served = network.serve(lab, &[])?;
            network.reaches_server(1)?;
            network.machines[1].reaches(&network.addresses(1)?[0], TRIES)?;

            // The line that it prints makes another server.
            let log = fs::read_to_string(lab.path("serve.log"))?;
            let line = log.lines().find_map(|line| line.trim().strip_prefix("ssh HOST ")).context("no line")?;
            let line = line.replace("HOST", "10.2.0.2").replace("serve -d", "serve -d -i rg8");
            let line = line.replace("rustguard serve", &format!("{} serve", rustguard_tests::rustguard()?.display()));
            network.machines[1].sh(&format!("sh -c {line}"))?;
            let mut ls = network.machines[1].rustguard()?;
            let ended = network.machines[1].end_of(ls.args(["status", "--json", "-i", "rg8"]))?;
            ensure!(labels(&serde_json::from_str(&ended.stdout)?)?.contains(&"two".to_owned()), "{ended}");
            let mut nothing = network.machines[1].rustguard()?;
            nothing.args(["serve", "-i", "rg7", "--port", "51777", "--store", STORE, "--store-key", "-"]);
            network.machines[1].end_of(&mut nothing)?.refused(&["the store key on standard input", "no store key"])?;
            let mut down = network.machines[1].rustguard()?;
            let ended = network.machines[1].end_of(down.args(["down", "rg8"]))?;
            ensure!(ended.success(), "{ended}");

            // Another network, and another key.
            let mut other = network.machines[0].rustguard()?;
            let other = other.args(["serve", "-i", "rg9", "--store", STORE, "--store-key"]);
            fs::write("/etc/rustguard/key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")?;
            network.machines[0]
                .end_of(other.arg("/etc/rustguard/key"))?
                .refused(&["was not made with this store key"])?;
            Ok(())
        })
    });
}
