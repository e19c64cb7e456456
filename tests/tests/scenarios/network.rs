//! The network that `serve` makes of joined machines: the state that its server stores, and what it sends to members.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    Network, eventually, files_in, joined, network, scenario, served_log, spawn_until_ready, unfolded,
};
use serde_json::Value;
use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(15);
/// The server's folder.
const STATE: &str = "/var/lib/rustguard/rgs";

fn roster(network: &Network) -> Result<u64> {
    let status = network.status()?;
    status["network"]["roster"].as_u64().with_context(|| format!("a roster: {status}"))
}

/// Waits for a roster after `number`. Returns its number.
fn newer(network: &Network, number: u64) -> Result<u64> {
    eventually("a newer roster", SOON, || Ok(roster(network)? > number))?;
    roster(network)
}

/// The server of an older version had a star. It becomes a network when it starts, and its machines need not join
/// again.
#[test]
fn a_star_becomes_a_network_and_nobody_has_to_join_again() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--star"])?;
            let machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            ensure!(network.status()?["network"].is_null(), "a star has no network");
            network.try_ask(&["invite", "new", "--server"])?.refused(&["star"])?;
            for name in ["network-key", "pair-secret", "roster"] {
                ensure!(!Path::new(STATE).join(name).exists(), "{name} of a star");
            }
            served.stop()?;
            // The setting is stored, and older programs can read the file.
            let served = network.serve(lab, &[])?;
            ensure!(network.status()?["network"].is_null(), "still a star");
            served.stop()?;
            let kept: Value = serde_json::from_slice(&fs::read(format!("{STATE}/settings.json"))?)?;
            ensure!(kept["settings"].get("star").is_none() && kept["network"]["star"] == true, "{kept}");

            let served = network.serve(lab, &["--star=off", "--name", "home"])?;
            network.reaches_server(1)?;
            let first = newer(network, 0)?;
            let status = network.status()?;
            let told = &status["network"];
            ensure!(told["name"] == "home" && told["members"] == 1 && told["clients"] == 1, "{told}");
            ensure!(status["peers"][0]["member"] == false, "{status}");
            let key = told["key"].as_str().context("a key")?.to_owned();
            for name in ["network-key", "pair-secret", "roster"] {
                let mode = fs::metadata(format!("{STATE}/{name}"))?.permissions().mode() & 0o777;
                ensure!(mode == 0o600, "{name} has the mode {mode:o}");
            }
            served.crash()?;
            let served = network.serve(lab, &[])?;
            network.reaches_server(1)?;
            let told = &network.status()?["network"];
            ensure!(told["key"] == key && told["roster"].as_u64() >= Some(first), "after a crash: {told}");
            drop(machine);
            served.stop()
        })
    });
}

/// Each change results in a new roster, with unique names.
#[test]
fn changes_are_in_the_next_roster() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let mut last = newer(network, 0)?;
            let mut grows = |what: &str, command: &[&str]| -> Result<Value> {
                network.ask(command).with_context(|| what.to_owned())?;
                last = newer(network, last).with_context(|| what.to_owned())?;
                network.status()
            };
            let status = grows("a peer", &["peer", "add", "Phone_1", "--conf", "-"])?;
            ensure!(status["peers"][0]["label"] == "phone-1", "{status}");
            grows("another", &["peer", "add", "Phone-1", "--conf", "-"])?;
            let listed = network.ask(&["peer", "ls"])?;
            ensure!(listed.contains("phone-1 ") && listed.contains("phone-1-2 "), "{listed}");
            // Commands accept the names of the network.
            grows("a name", &["peer", "rename", "phone-1-2", "tablet"])?;
            let status = grows("one less", &["peer", "rm", "tablet"])?;
            ensure!(
                status["network"]["clients"] == 1 && status["peers"].as_array().is_some_and(|it| it.len() == 1),
                "{status}"
            );

            let file = format!("{STATE}/settings.json");
            let mut kept: Value = serde_json::from_slice(&fs::read(&file)?)?;
            kept["settings"]["dns"] = serde_json::json!(["192.0.2.53"]);
            kept["network"] = serde_json::json!({ "mtu": 1280 });
            fs::write(&file, serde_json::to_vec(&kept)?)?;
            let reloaded = network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?;
            for said in ["dns none → 192.0.2.53", "mtu automatic → 1280", "members take it over"] {
                ensure!(reloaded.unfolded().contains(said), "{said}: {reloaded}");
            }
            newer(network, last)?;
            let shown = unfolded(&network.ask(&["status"])?);
            ensure!(shown.contains("network: rgs, with the key") && shown.contains("1 member and 1 client"), "{shown}");
            served.stop()
        })
    });
}

/// Two machines that give the same name get two names in the network. The machines are told, and the names are
/// permanent and unique.
#[test]
fn machines_that_want_one_name() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &[])?;
            let mut machines = Vec::new();
            for (n, name) in [(1, "laptop"), (2, "laptop-2")] {
                let (server, token) = (format!("10.{n}.0.1"), network.invite(&[])?);
                machines.push(network.join(lab, n, &[&server, "--token", &token, "--name", "laptop"])?);
                let said = format!("as {name};");
                eventually("the machine is told its name", SOON, || {
                    Ok(machines[usize::from(n) - 1].log().contains(&said))
                })?;
            }
            network.ask(&["peer", "add", "desk", "--conf", "-"])?;
            let addresses = [network.addresses(1)?, network.addresses(2)?].map(|all| all[0].clone());
            let rename = |peer: &str, name: &str| network.try_ask(&["peer", "rename", peer, name]);
            let two = rename("laptop", "notebook")?;
            two.refused(&["2 peers are called laptop", &addresses[0], &addresses[1]])?;
            rename("desk", "laptop")?.refused(&["laptop", "choose another name", "rename that peer"])?;
            // The second machine itself still asks for `laptop`.
            for taken in ["laptop-2", "Laptop-2"] {
                rename("desk", taken)?.refused(&[&addresses[1], taken, "choose another name", "rename that peer"])?;
            }
            let labels = || -> Result<Vec<String>> {
                let status = network.status()?;
                let peers = status["peers"].as_array().context("peers")?;
                Ok(peers.iter().filter_map(|peer| peer["label"].as_str()).map(str::to_owned).collect())
            };
            let own = ["laptop", "laptop-2", "desk"];
            eventually("the next roster", SOON, || Ok(labels()? == own))?;
            // Neither a restart of the server nor the end of the other machine changes the name.
            served.stop()?;
            let served = network.serve(lab, &[])?;
            ensure!(labels()? == own, "after a restart: {:?}", labels()?);
            network.ask(&["peer", "rm", &addresses[0]])?;
            eventually("one less", SOON, || Ok(labels()? == ["laptop-2", "desk"]))?;
            ensure!(rename("desk", "laptop-3")?.success(), "the name is free");
            ensure!(rename("laptop-2", "notebook")?.success(), "it has a name that only it has");
            eventually("the machine is told", SOON, || {
                Ok(machines[1].log().contains("this machine is called notebook in the network"))
            })?;
            ensure!(rename("laptop-3", "laptop-2")?.success(), "the name is free again");
            served.stop()
        })
    });
}

/// A hundred machines with one name join at once: all become members with their own names, and an earlier member knows
/// all of them. `many_changes_make_few_rosters` of the issuer tests that this takes few rosters.
#[test]
fn a_hundred_machines_join_at_once() {
    const MACHINES: usize = 100;
    scenario(|lab| {
        network(lab, 2, |network| {
            let mut served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1"])?;
            let [member, machine] = &network.machines[..] else { unreachable!("two machines") };
            let _before = network.join(lab, 1, &served.join_arguments())?;
            let token = network.invite(&["--uses", "100"])?;
            let (first, cost) = (newer(network, 0)?, served.process().cost()?);
            let began = Instant::now();
            let joining = (1..=MACHINES).map(|n| {
                let mut command = machine.rustguard()?;
                command.args(["join", "10.2.0.1", "--token", &token, "--no-up", "--name", "ubuntu"]);
                machine.spawn(&format!("join{n}"), command.args(["-i", &format!("one{n}")]))
            });
            for mut process in joining.collect::<Result<Vec<_>>>()? {
                let ended = joined(&mut process)?;
                ensure!(ended.success(), "{ended}");
            }
            let took = began.elapsed();
            let mut names = HashSet::new();
            eventually("all are members", SOON, || {
                let status = network.status()?;
                let peers = status["peers"].as_array().context("peers")?;
                names = peers.iter().filter_map(|peer| peer["label"].as_str()).map(str::to_owned).collect();
                // Including the server.
                Ok(names.len() == MACHINES + 1 && status["network"]["members"] == MACHINES + 2)
            })?;
            let wanted = (2..=MACHINES).map(|n| format!("ubuntu-{n}")).chain(["ubuntu".to_owned()]);
            ensure!(wanted.into_iter().all(|name| names.contains(&name)), "{names:?}");
            let (last, after) = (roster(network)?, served.process().cost()?);
            println!(
                "{MACHINES} machines joined in {took:?}; for the server {} rosters, {} ms of a core, {} kB more",
                last - first,
                (after.1 - cost.1) * 10,
                after.0.saturating_sub(cost.0)
            );
            eventually("a member knows all", SOON, || {
                let status = member.end_of(member.rustguard()?.args(["status", "rg1", "--json"]))?;
                let status: Value = serde_json::from_str(&status.stdout)?;
                Ok(status["network"]["list"].as_array().is_some_and(|list| list.len() == MACHINES + 2))
            })?;
            served.stop()
        })
    });
}

/// Without the network's key, no member would accept another roster, so a damaged key is refused. A damaged roster is
/// made again.
#[test]
fn a_damaged_key_is_refused_and_a_damaged_roster_is_made_anew() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            newer(network, 0)?;
            served.stop()?;
            let run = || network.server.end_of(network.server.rustguard()?.args(["serve", "-i", "rgs"]));
            for name in ["network-key", "pair-secret"] {
                let path = format!("{STATE}/{name}");
                let whole = fs::read(&path)?;
                fs::write(&path, "nonsense\n")?;
                run()?.refused(&[&path, "damaged", "backup"])?;
                ensure!(fs::read(&path)? == b"nonsense\n", "{name} was replaced");
                fs::remove_file(&path)?;
                run()?.refused(&[&path, "it is gone", "backup"])?;
                fs::write(&path, &whole)?;
                run()?.refused(&[&path, "chmod 600"])?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            }
            fs::write(format!("{STATE}/roster"), "nonsense")?;
            let served = network.serve(lab, &[])?;
            ensure!(served_log(lab)?.contains("a new roster is made"), "{}", served_log(lab)?);
            newer(network, 0)?;
            served.stop()
        })
    });
}

/// With a full disk, nothing is announced that could not be stored, and the cause is shown until there is space.
#[test]
fn a_full_disk() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let (all, filler) = (Path::new("/var/lib/rustguard"), Path::new("/var/lib/rustguard/full"));
            fs::create_dir_all(all)?;
            // Mounted in this process: a command on a node has its own mount namespace.
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=256k,mode=755", "tmpfs"]).arg(all);
            ensure!(mount.status()?.success(), "no tmpfs");
            let fill = || match fs::write(filler, vec![0; 1 << 20]) {
                Err(full) if full.kind() == io::ErrorKind::StorageFull => Ok(()),
                other => anyhow::bail!("the disk is not full: {other:?}"),
            };
            fill()?;
            let run = || network.server.end_of(network.server.rustguard()?.args(["serve", "-i", "rgs"]));
            run()?.refused(&["No space left"])?;
            fs::remove_file(filler)?;
            let served = network.serve(lab, &["--pool", "10.60.0.0/24"])?;
            network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            let last = newer(network, 1)?;
            let file = format!("{STATE}/settings.json");
            let mut kept: Value = serde_json::from_slice(&fs::read(&file)?)?;
            kept["network"] = serde_json::json!({ "name": "home" });
            fs::write(&file, serde_json::to_vec(&kept)?)?;
            fill()?;
            let reloaded = network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?;
            reloaded.refused(&["the other machines are not told", "No space left"])?;
            network.try_ask(&["peer", "rm", "phone"])?.refused(&["No space left"])?;
            eventually("the cause is shown", SOON, || Ok(network.status()?["network"]["problem"].is_string()))?;
            ensure!(roster(network)? == last, "a roster that is not kept");
            ensure!(unfolded(&network.ask(&["status"])?).contains("members are not told"), "status says nothing");
            fs::remove_file(filler)?;
            newer(network, last)?;
            ensure!(network.status()?["network"]["problem"].is_null(), "still a problem");
            served.stop()
        })
    });
}

/// The server's machine is lost: another machine at another address becomes the server with a copy of its folder.
/// Machines know the server by its DNS name, which is changed.
#[test]
fn a_server_goes_on_at_another_place_with_a_copy_of_its_folder() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let moved = Network { server: lab.node("other")?, machines: network.machines.clone() };
            lab.link((&moved.server, "to1"), (&network.machines[0], "uplink2"))?;
            for (node, link, last) in [(&moved.server, "to1", 1), (&network.machines[0], "uplink2", 2)] {
                node.sh(&format!("ip addr add 10.99.0.{last}/24 dev {link}"))?;
            }
            let served = network.serve(lab, &["--endpoint", "vpn.lab"])?;
            let machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let before = network.status()?["network"].take();
            let backup = lab.path("backup").display().to_string();
            network.server.run(&["cp", "-a", STATE, &backup])?;
            served.crash()?;
            // All traces of the old server are removed.
            network.server.sh(&format!("rm -r {STATE}; rm -rf /run/rustguard/rgs* /run/wireguard/rgs*"))?;
            network.server.sh("ip link del to1")?;

            network.server.run(&["cp", "-a", &backup, STATE])?;
            let hosts = fs::read_to_string("/etc/hosts")?;
            fs::write("/etc/hosts", hosts.replace("10.1.0.1 vpn.lab", "10.99.0.1 vpn.lab"))?;
            let served = moved.serve(lab, &[])?;
            eventually("the machine finds the server", 4 * SOON, || {
                moved.reaches_server(1).map(|()| true).or(Ok(false))
            })?;
            let after = moved.status()?["network"].take();
            ensure!(after["key"] == before["key"] && after["members"] == before["members"], "{before}, then {after}");
            ensure!(after["roster"].as_u64() >= before["roster"].as_u64(), "{before}, then {after}");
            drop(machine);
            served.stop()
        })
    });
}

/// A copy of the folder that is older than the network does not contain a machine that joined later. The machine is not
/// removed without a command.
#[test]
fn a_copy_that_is_older_than_the_network_puts_nobody_out_unasked() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            let one = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let backup = lab.path("backup").display().to_string();
            network.server.run(&["cp", "-a", STATE, &backup])?;
            let two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            let inside = network.addresses(2)?;
            network.machines[0].reaches(&inside[0], 10)?;
            served.crash()?;
            network.server.sh(&format!("rm -r {STATE}; cp -a {backup} {STATE}"))?;

            let served = network.serve(lab, &[])?;
            let problem = || anyhow::Ok(network.status()?["network"]["problem"].as_str().map(str::to_owned));
            eventually("it hears of a newer list", 4 * SOON, || {
                let _ = network.reaches_server(1);
                Ok(problem()?.is_some_and(|text| text.contains("does not have") && text.contains("--restored")))
            })?;
            let peers = network.machines[0].shown("rg1")?["peers"].to_string();
            ensure!(peers.contains(&inside[0]), "the other machine is in no list any more: {peers}");
            let reload = |arguments: &[&str]| network.server.end_of(network.server.rustguard()?.args(arguments));
            let ended = reload(&["reload", "rgs", "--restored"])?;
            ensure!(ended.success(), "{ended}");
            eventually("it goes on without the machine", SOON, || {
                Ok(problem()?.is_none() && network.status()?["network"]["members"] == 2)
            })?;
            reload(&["reload", "rgs", "--restored"])?.refused(&["no member has a list that is newer"])?;
            drop((one, two));
            served.stop()
        })
    });
}

/// The folder of a server contains the server's secrets, but no private key of a machine.
#[test]
fn a_stolen_folder_has_no_private_key_of_a_machine() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &[])?;
            let one = network.join(lab, 1, &served.join_arguments())?;
            let two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            network.reaches_server(1)?;
            network.reaches_server(2)?;
            let kept = files_in(Path::new(STATE))?.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
            let has = |needle: &[u8]| kept.iter().any(|file| file.windows(needle.len()).any(|part| part == needle));
            for n in 1..=2 {
                let node = &network.machines[n - 1];
                let base64 = node.run(&["wg", "show", &format!("rg{n}"), "private-key"])?;
                let raw = network.server.end_of(
                    network
                        .server
                        .command("sh")
                        .args(["-c", &format!("echo {} | base64 -d | od -An -v -tx1", base64.trim())]),
                )?;
                let raw: Result<Vec<_>, _> =
                    raw.stdout.split_whitespace().map(|byte| u8::from_str_radix(byte, 16)).collect();
                let raw = raw?;
                ensure!(raw.len() == 32 && !has(&raw) && !has(base64.trim().as_bytes()), "the key of machine {n}");
                let preshared = network.server.run(&["wg", "show", "rgs", "preshared-keys"])?;
                ensure!(preshared.lines().count() == 2, "both are peers: {preshared}");
            }
            drop((one, two));
            served.stop()
        })
    });
}

/// The entry for the peer with this address in `show` of machine `n`.
fn shown(network: &Network, n: usize, address: &str) -> Result<Option<Value>> {
    let shown = network.machines[n - 1].shown(&format!("rg{n}"))?;
    let own = format!("{address}/32");
    let has = |peer: &&Value| peer["allowed_ips"].as_array().is_some_and(|ips| ips.iter().any(|ip| *ip == *own));
    Ok(shown["peers"].as_array().context("peers")?.iter().find(has).cloned())
}

/// With only `serve` and `join`: members reach each other through the server, which cannot decrypt their traffic; all
/// learn of changes, and streams survive them; members continue when the server is killed.
#[test]
fn members_reach_each_other_sealed_and_go_on_without_the_server() {
    scenario(|lab| {
        network(lab, 3, |network| {
            // The machines can reach each other directly.
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &[])?;
            let mut tunnels = vec![network.join(lab, 1, &served.join_arguments())?];
            let address = |n: u8| network.addresses(n)?.first().cloned().context("an address");
            let one = &network.machines[0];
            for n in 2..=3 {
                let (at, token) = (format!("10.{n}.0.1:51820"), network.invite(&[])?);
                let joining = Instant::now();
                tunnels.push(network.join(lab, n, &[&at, "--token", &token])?);
                network.machines[usize::from(n) - 1].reaches(&address(1)?, 10)?;
                println!("machine {n} reaches the first {:?} after `rustguard join`", joining.elapsed());
            }
            let (second, third) = (address(2)?, address(3)?);
            eventually("all have the last roster", SOON, || {
                let status = network.status()?;
                let has = |peer: &Value| peer["roster"] == status["network"]["roster"] && peer["member"] == true;
                Ok(status["peers"].as_array().is_some_and(|peers| peers.len() == 3 && peers.iter().all(has)))
            })?;
            ensure!(network.status()?["network"]["members"] == 4, "{}", network.status()?);
            one.reaches(&second, 10)?;
            one.reaches(&third, 10)?;
            let server = network.server.shown("rgs")?;
            ensure!(server["relayed"] == 0, "the server has decrypted what members say: {server}");
            ensure!(server["forwarded"].as_u64() > Some(0), "{server}");

            let mut pinging = one.keeps_pinging(&second)?;
            network.ask(&["peer", "rename", &second, "desk"])?;
            eventually("the new name", SOON, || {
                Ok(shown(network, 1, &second)?.is_some_and(|peer| peer["name"] == "desk"))
            })?;
            let removing = Instant::now();
            network.ask(&["peer", "rm", &third])?;
            eventually("the third is nobody's peer", SOON, || {
                Ok(shown(network, 1, &third)?.is_none() && shown(network, 2, &third)?.is_none())
            })?;
            println!("a machine is out everywhere {:?} after `rustguard peer rm`", removing.elapsed());
            eventually("its user is told", SOON, || {
                Ok(tunnels[2].log().contains("no member of the network any more"))
            })?;
            eventually("the server knows it no longer", SOON, || {
                Ok(network.server.run(&["wg", "show", "rgs", "peers"])?.lines().count() == 2)
            })?;
            one.does_not_reach(&third)?;
            pinging.lost_at_most(0)?;

            // A network that members have joined cannot become a star.
            eventually("a direct way", SOON, || {
                // Members look for a direct path only when there is traffic.
                one.reaches(&second, 1)?;
                Ok(shown(network, 1, &second)?.is_some_and(|peer| peer["way"] == "direct"))
            })?;
            // After a crash, a server that starts again calls the members that it knew.
            let kept =
                || Ok::<Value, anyhow::Error>(serde_json::from_slice(&fs::read(format!("{STATE}/endpoints.json"))?)?);
            eventually("the server has stored where members are", SOON, || {
                Ok(kept().is_ok_and(|kept| kept.as_object().is_some_and(|kept| kept.len() >= 2)))
            })?;
            served.crash()?;
            one.reaches(&second, 10)?;
            let run = |options: &[&str]| {
                network.server.end_of(network.server.rustguard()?.args(["serve", "-i", "rgs"]).args(options))
            };
            for option in ["--star", "--isolate"] {
                run(&[option])?.refused(&["joined a network", "--star=off"])?;
            }
            // The server is back, and all learn of the changed MTU.
            let served = network.serve(lab, &["--mtu", "1300"])?;
            eventually("the MTU", SOON, || Ok(one.run(&["ip", "link", "show", "rg1"])?.contains("mtu 1300")))?;
            one.reaches(&second, 10)?;
            drop(tunnels);
            served.stop()
        })
    });
}

/// The server and all machines crash, and the server never returns: the machines find each other at their last
/// addresses, and by name.
#[test]
fn every_machine_restarts_and_there_is_no_server_any_more() {
    scenario(|lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &["--name", "home"])?;
            let mut tunnels = vec![network.join(lab, 1, &served.join_arguments())?];
            for n in 2..=3 {
                let (at, token) = (format!("10.{n}.0.1:51820"), network.invite(&[])?);
                tunnels.push(network.join(lab, n, &[&at, "--token", &token])?);
            }
            let addresses = (1..=3).map(|n| network.addresses(n)?.first().cloned().context("an address"));
            let addresses = addresses.collect::<Result<Vec<_>>>()?;
            network.ask(&["peer", "rename", &addresses[1], "desk"])?;
            for (n, other) in [(1, 2), (2, 3), (3, 1)] {
                eventually("a direct way", SOON, || {
                    network.machines[n - 1].reaches(&addresses[other - 1], 10)?;
                    Ok(shown(network, n, &addresses[other - 1])?.is_some_and(|peer| peer["way"] == "direct"))
                })?;
            }
            let known = |n: u8| fs::read_to_string(format!("/var/lib/rustguard/rg{n}/member-addresses"));
            eventually("each knows where the others are", SOON, || {
                Ok((1..=3).all(|n| known(n).is_ok_and(|text| text.lines().count() == 3)))
            })?;
            let roster = |n: u8| fs::read(format!("/var/lib/rustguard/rg{n}/roster"));
            eventually("each has the new name on disk", SOON, || {
                Ok((1..=3).all(|n| roster(n).is_ok_and(|roster| roster.windows(4).any(|word| word == b"desk"))))
            })?;
            served.crash()?;
            for mut tunnel in tunnels {
                tunnel.stop("KILL")?;
            }
            let started = Instant::now();
            let _tunnels = (1..=3).map(|n| network.up(lab, n)).collect::<Result<Vec<_>>>()?;
            for (n, other) in [(1, 2), (2, 3), (3, 1)] {
                network.machines[n - 1].reaches(&addresses[other - 1], 20)?;
            }
            println!("all reach each other {:?} after they have begun to start", started.elapsed());
            let one = &network.machines[0];
            one.name_servers(&[&addresses[0]])?;
            eventually("the name", SOON, || Ok(one.resolved("desk.home.internal")?.contains(&addresses[1])))
        })
    });
}

/// A machine in two networks: each has its own interface, members and names, and neither disturbs the other.
#[test]
fn a_machine_is_in_two_networks() {
    scenario(|lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &["--name", "home", "--pool", "10.150.0.0/24"])?;
            let _home = network.join(lab, 1, &served.join_arguments())?;
            let _desk = network.join(lab, 2, &["10.2.0.1", "--token", &network.invite(&[])?, "--name", "desk"])?;
            let [both, _, office] = &network.machines[..] else { unreachable!("three machines") };

            // The third machine is the server of another network.
            let mut serve = office.rustguard()?;
            serve.args(["serve", "-i", "rgo", "--name", "office", "--pool", "10.160.0.0/24"]);
            let _office = spawn_until_ready(lab, office, "office", &mut serve)?;
            let invite =
                office.end_of(office.rustguard()?.args(["invite", "new", "--another", "--json", "-i", "rgo"]))?;
            let invite: Value = serde_json::from_str(&invite.stdout)?;
            let mut join = both.rustguard()?;
            let token = invite["token"].as_str().context("a token")?;
            join.args(["join", "10.3.0.2", "--token", token, "--name", "both", "-i", "rgw"]);
            let mut work = spawn_until_ready(lab, both, "rgw", &mut join)?;

            both.reaches("10.160.0.1", 10)?;
            both.reaches("10.150.0.3", 10)?;
            // Each resolver answers for the names of its own network.
            let knows = |server: &str, name: &str| -> Result<Vec<String>> {
                both.name_servers(&[server])?;
                both.resolved(name)
            };
            eventually(
                "names of the first",
                SOON,
                || Ok(knows("10.150.0.2", "desk.home.internal")? == ["10.150.0.3"]),
            )?;
            eventually("names of the other", SOON, || {
                Ok(knows("10.160.0.2", "both.office.internal")? == ["10.160.0.2"])
            })?;
            ensure!(knows("10.160.0.2", "desk.home.internal")?.is_empty(), "a name of the other network");
            // The end of one does not end the other.
            work.stop("TERM")?;
            both.reaches("10.150.0.3", 10)?;
            both.does_not_reach("10.160.0.1")?;
            ensure!(knows("10.150.0.2", "desk.home.internal")? == ["10.150.0.3"], "the names of the first");
            served.stop()
        })
    });
}

/// A machine that leaves is removed everywhere, and keeps no state. Without a server it also leaves, and prints what
/// remains to be done.
#[test]
fn a_machine_leaves_and_keeps_nothing() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &[])?;
            let one = network.join(lab, 1, &served.join_arguments())?;
            let mut two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            let leave = |n: usize, arguments: &[&str]| {
                let node = &network.machines[n - 1];
                node.end_of(node.rustguard()?.arg("leave").args(arguments))
            };
            let first = network.addresses(1)?.first().cloned().context("an address")?;
            let second = network.addresses(2)?.first().cloned().context("an address")?;
            network.machines[0].reaches(&second, 10)?;
            let ping = |word: &str| {
                let node = &network.machines[0];
                node.end_of(node.rustguard()?.args(["ping", word, "-i", "rg1", "-c", "1"]))
            };
            let name = shown(network, 1, &second)?.context("the second")?["name"].take();
            let name = name.as_str().context("a name")?;
            for word in [&second, &format!("{name}.rgs.internal"), &name.to_ascii_uppercase()] {
                let answered = ping(word)?;
                ensure!(answered.success() && answered.stdout.starts_with(&format!("{name}: ")), "{answered}");
            }
            ping(&first)?.says(&["it is this machine"])?;
            ping("192.0.2.1")?.says(&["addresses"])?;

            // In this scenario, all machines share the same folders.
            leave(2, &[])?.refused(&["several networks", "rg1, rg2"])?;
            leave(2, &["rgs"])?.refused(&["cannot leave"])?;
            leave(2, &["rg7"])?.refused(&["joined no network as rg7"])?;
            ensure!(network.status()?["network"]["members"] == 3, "{}", network.status()?);

            let left = leave(2, &["rg2"])?;
            ensure!(left.success() && left.stdout.contains("has left rgs"), "{left}");
            ensure!(!left.stdout.contains("peer rm"), "the server was there: {left}");
            ensure!(two.ended(SOON)?.success(), "the tunnel ends as by `down`");
            let gone = |name: &str| !Path::new(name).exists();
            ensure!(gone("/etc/rustguard/rg2.conf") && gone("/var/lib/rustguard/rg2"), "something is left");
            eventually("it is nobody's peer", SOON, || {
                let status = network.status()?;
                Ok(status["peers"].as_array().is_some_and(|peers| peers.len() == 1)
                    && shown(network, 1, &second)?.is_none())
            })?;
            let removed = network.audited("removed", 1)?;
            ensure!(removed["reason"] == "left", "{removed}");
            leave(2, &["rg2"])?.refused(&["joined no network as rg2"])?;

            // A removed member cannot tell the server that it leaves.
            let token = network.invite(&[])?;
            let _two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &token, "--name", "tablet"])?;
            network.ask(&["peer", "rm", "tablet"])?;
            let node = &network.machines[1];
            eventually("it knows that it was removed", SOON, || {
                Ok(node.end_of(node.rustguard()?.args(["status", "rg2"]))?.stdout.contains("was removed"))
            })?;
            let left = leave(2, &["rg2"])?;
            ensure!(left.success() && !left.stdout.contains("peer rm"), "it is removed already: {left}");

            let label = network.status()?["peers"][0]["label"].take();
            let command = format!("`rustguard peer rm {}`", label.as_str().context("a name")?);
            served.crash()?;
            let left = leave(1, &[])?;
            ensure!(left.success() && left.stdout.contains(&command), "nobody has heard it: {left}");
            ensure!(gone("/etc/rustguard/rg1.conf") && gone("/var/lib/rustguard/rg1"), "something is left");
            drop(one);
            Ok(())
        })
    });
}
