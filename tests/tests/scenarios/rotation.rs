//! Members and servers change their keys while the network runs.
use anyhow::{Context as _, Result, bail, ensure};
use rustguard_tests::{Ended, Gaps, Network, Streams, eventually, network, scenario, served_log};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(20);

fn public_key(network: &Network, n: usize) -> Result<String> {
    Ok(network.machines[n - 1].run(&["wg", "show", &format!("rg{n}"), "public-key"])?.trim().to_owned())
}

fn peers(network: &Network, n: usize) -> Result<String> {
    network.machines[n - 1].run(&["wg", "show", &format!("rg{n}"), "peers"])
}

fn rotate(network: &Network, n: usize) -> Result<String> {
    let machine = &network.machines[n - 1];
    let ended = machine.end_of(machine.rustguard()?.args(["key", "rotate", &format!("rg{n}")]))?;
    ensure!(ended.success(), "{ended}");
    Ok(ended.stdout)
}

/// The private key in this file of machine `n`.
fn in_folder(n: usize, name: &str) -> Option<String> {
    fs::read_to_string(format!("/var/lib/rustguard/rg{n}/{name}")).ok().map(|text| text.trim().to_owned())
}

fn in_conf(n: usize) -> Result<String> {
    let text = fs::read_to_string(format!("/etc/rustguard/rg{n}.conf"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("PrivateKey = "));
    Ok(line.context("a private key")?.trim().to_owned())
}

/// The latest handshake of each peer of machine `n`.
fn handshakes(network: &Network, n: usize) -> Result<String> {
    network.machines[n - 1].run(&["wg", "show", &format!("rg{n}"), "latest-handshakes"])
}

#[test]
fn a_member_changes_its_key_under_four_streams_and_no_connection_notices() {
    scenario(|lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &[])?;
            let mut tunnels = vec![network.join(lab, 1, &served.join_arguments())?];
            for n in 2..=3 {
                let (at, token) = (format!("10.{n}.0.1:51820"), network.invite(&[])?);
                tunnels.push(network.join(lab, n, &[&at, "--token", &token])?);
            }
            let first = network.addresses(1)?.first().cloned().context("an address")?;
            let [one, two, three] = &network.machines[..] else { unreachable!("three machines") };
            two.reaches(&first, 10)?;
            three.reaches(&first, 10)?;
            let mut streams = Streams::start(two, one, &first)?;
            let mut gaps = Gaps::start(three, "gaps", &first)?;

            let stolen = [in_conf(1)?, in_folder(1, "key").context("a key")?];
            ensure!(stolen[0] == stolen[1], "one key in both");
            for round in 1..=2 {
                let (old, before) = (public_key(network, 1)?, gaps.longest_since());
                let said = rotate(network, 1)?;
                let new = public_key(network, 1)?;
                ensure!(new != old && said.contains(&new), "{said}");
                eventually("the others know the new key, and the old one no more", SOON, || {
                    let of_server = network.server.run(&["wg", "show", "rgs", "peers"])?;
                    let all = [peers(network, 2)?, peers(network, 3)?, of_server];
                    Ok(all.iter().all(|peers| peers.contains(&new) && !peers.contains(&old)))
                })?;
                streams.go_on()?;
                gaps.goes_on(20)?;
                println!("round {round}: the longest gap {:?}, before {before:?}", gaps.longest_since());
                ensure!(network.addresses(1)?[0] == first, "the address stays");
                ensure!(
                    in_conf(1)? == in_folder(1, "key").context("a key")?,
                    "the file and the folder have the new key"
                );
                ensure!(in_folder(1, "key-next").is_none() && in_folder(1, "key-before").is_some());
            }
            let log = tunnels[1].log();
            ensure!(log.contains("has another key in the network") && !log.contains("m1 is new"), "{log}");
            let status = network.status()?;
            ensure!(status["network"]["members"] == 4, "{status}");
            network.audited("key-rotated", 2)?;

            // The stolen key is useless now, because nobody accepts it.
            ensure!(in_conf(1)? != stolen[0]);
            drop(streams);
            // New sessions use the new key, also after a restart.
            tunnels[0].stop("TERM")?;
            tunnels[0] = network.up(lab, 1)?;
            two.reaches(&first, 20)?;
            three.reaches(&first, 20)?;
            network.reaches_server(1)?;
            ensure!(handshakes(network, 1)?.lines().count() == 3);

            // The network takes no key from a removed machine.
            let name = status["peers"].as_array().and_then(|peers| peers.first()).map(|peer| peer["label"].clone());
            ensure!(name.is_some(), "{status}");
            network.ask(&["peer", "rm", &first])?;
            eventually("it is told", SOON, || Ok(tunnels[0].log().contains("no member of the network any more")))?;
            let refused = one.end_of(one.rustguard()?.args(["key", "rotate", "rg1"]))?;
            refused.refused(&["no member"])?;
            drop(tunnels);
            served.stop()
        })
    });
}

/// Power failures during a key change: the machine returns with a key that the network knows, and continues the change.
#[test]
fn a_machine_that_dies_while_it_changes_its_key_comes_back() {
    scenario(|lab| {
        network(lab, 2, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &[])?;
            let mut one = network.join(lab, 1, &served.join_arguments())?;
            let _two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            let first = network.addresses(1)?.first().cloned().context("an address")?;
            let two = &network.machines[1];
            two.reaches(&first, 10)?;
            let old = public_key(network, 1)?;
            let kept = |name: &str| fs::read(format!("/var/lib/rustguard/rg1/{name}"));
            let (conf, key) = (fs::read("/etc/rustguard/rg1.conf")?, kept("key")?);

            // The server is unreachable: the next key is stored, and the current one stays in use.
            network.server.drop("input", "iifname to1 udp dport 51820")?;
            let said = rotate(network, 1)?;
            ensure!(said.contains("no server has taken it yet") && public_key(network, 1)? == old, "{said}");
            let next = kept("key-next")?;
            one.stop("KILL")?;
            network.server.sh("nft flush ruleset")?;
            one = network.up(lab, 1)?;
            eventually("the change goes on", SOON, || Ok(public_key(network, 1)? != old))?;
            two.reaches(&first, 20)?;
            eventually("the change is at its end", SOON, || Ok(in_folder(1, "key-next").is_none()))?;

            // The network has accepted the next key, and the machine has lost everything that it learned since.
            one.stop("KILL")?;
            fs::write("/etc/rustguard/rg1.conf", &conf)?;
            fs::remove_dir_all("/var/lib/rustguard/rg1")?;
            fs::DirBuilder::new().mode(0o700).create("/var/lib/rustguard/rg1")?;
            for (name, text) in [("key", &key), ("key-next", &next)] {
                let path = format!("/var/lib/rustguard/rg1/{name}");
                fs::write(&path, text)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            }
            one = network.up(lab, 1)?;
            eventually("it is known by the next key", SOON, || Ok(public_key(network, 1)? != old))?;
            two.reaches(&first, 20)?;
            let peers = network.status()?["peers"].as_array().map(Vec::len);
            ensure!(peers == Some(2), "no other machine has joined: {peers:?}");
            eventually("the file has the next key", SOON, || Ok(Some(in_conf(1)?) == in_folder(1, "key")))?;
            drop(one);
            served.stop()
        })
    });
}

/// A thief uses a copy of the state from before the change: the server and the members refuse it.
#[test]
fn a_stolen_key_ends_with_the_change() {
    scenario(|lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &[])?;
            let _one = network.join(lab, 1, &served.join_arguments())?;
            let _two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            let (first, second) = (network.addresses(1)?[0].clone(), network.addresses(2)?[0].clone());
            network.machines[1].reaches(&first, 10)?;
            // The thief has the third node, with the file and the folder of the first.
            fs::copy("/etc/rustguard/rg1.conf", "/etc/rustguard/rg3.conf")?;
            lab.node("files")?.sh("cp -a /var/lib/rustguard/rg1 /var/lib/rustguard/rg3")?;
            let said = rotate(network, 1)?;
            let own = said.split_whitespace().find(|word| word.ends_with('=')).context("a key")?;
            eventually("the new key is in use", SOON, || Ok(public_key(network, 1)? == own))?;
            let text = fs::read_to_string("/etc/rustguard/rg3.conf")?.replace("10.1.0.1", "10.3.0.1");
            fs::write("/etc/rustguard/rg3.conf", text)?;
            let _thief = network.up(lab, 3)?;
            let thief = &network.machines[2];
            for address in [&second, &network.server_addresses()?[0]] {
                thief.does_not_reach(address)?;
            }
            let shown = handshakes(network, 3)?;
            ensure!(shown.lines().all(|line| line.ends_with("\t0")), "somebody has answered: {shown}");
            let said = thief.end_of(thief.rustguard()?.args(["key", "rotate", "rg3"]))?;
            ensure!(!said.stdout.contains("from now on"), "{}", said.stdout);
            ensure!(public_key(network, 1)? == own, "the machine keeps its own");
            network.machines[1].reaches(&first, 10)?;
            served.stop()
        })
    });
}

/// The server's folder was stolen: its machines move to a new network with the settings of the old one, as in the
/// guide. The stolen state is useless there, even at the server's own address.
#[test]
fn a_new_network_takes_the_place_of_one_whose_server_folder_was_stolen() {
    scenario(|lab| {
        network(lab, 2, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &["--endpoint", "vpn.lab", "--name", "home"])?;
            let files = lab.node("files")?;
            let mut tunnels = vec![
                network.join(lab, 1, &served.join_arguments())?,
                network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?,
            ];
            let old = network.status()?["network"]["key"].clone();
            served.stop()?;
            files.sh("cd /var/lib/rustguard; mv rgs stolen; install -d -m 0700 rgs; cp stolen/settings.json rgs/")?;
            let served = network.serve(lab, &[])?;
            let status = network.status()?;
            ensure!(status["network"]["key"] != old && status["network"]["name"] == "home", "{status}");
            for n in 1..=2 {
                let machine = &network.machines[n - 1];
                let left = machine.end_of(machine.rustguard()?.args(["leave", &format!("rg{n}")]))?;
                ensure!(left.success() && left.stdout.contains("has left home"), "{left}");
                tunnels[n - 1].ended(SOON)?;
            }
            tunnels = vec![
                network.join(lab, 1, &served.join_arguments())?,
                network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?,
            ];
            let second = network.addresses(2)?[0].clone();
            let of_server = network.server_addresses()?[0].clone();
            network.machines[0].reaches(&second, 10)?;
            network.reaches_server(1)?;

            // The thief runs the server that machines reach at the old address.
            served.crash()?;
            files.sh("cd /var/lib/rustguard; mv rgs new; cp -a stolen rgs")?;
            for n in 1..=2 {
                tunnels[n - 1].stop("KILL")?;
                tunnels[n - 1] = network.up(lab, u8::try_from(n)?)?;
            }
            let thief = network.serve(lab, &[])?;
            ensure!(network.status()?["network"]["key"] == old, "it is the old network");
            eventually("a machine calls the server, which is not the one that it knows", SOON, || {
                Ok(served_log(lab)?.contains("is for another public key than ours"))
            })?;
            network.machines[0].does_not_reach(&of_server)?;
            thief.stop()?;

            files.sh("cd /var/lib/rustguard; rm -r rgs; mv new rgs")?;
            let served = network.serve(lab, &[])?;
            network.reaches_server(1)?;
            network.reaches_server(2)?;
            network.machines[0].reaches(&second, 10)?;
            served.stop()
        })
    });
}

/// The first server's answer to `key rotate`.
fn rotate_server(network: &Network, arguments: &[&str]) -> Result<Ended> {
    network.server.end_of(network.server.rustguard()?.args(["key", "rotate", "rgs"]).args(arguments))
}

fn server_key(network: &Network) -> Result<String> {
    Ok(network.server.run(&["wg", "show", "rgs", "public-key"])?.trim().to_owned())
}

fn invites(network: &Network) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&network.ask(&["invite", "ls", "--json"])?)?)
}

/// The latest expiry time of all invites.
fn latest_end(network: &Network) -> Result<u64> {
    invites(network)?.iter().filter_map(|invite| invite["expires"].as_u64()).max().context("no end")
}

/// The first server changes its key under traffic. Members follow, and those that know only the old key still work: an
/// older invite and a phone, also after a restart of the server.
#[test]
fn the_first_server_changes_its_key_and_answers_the_one_before() {
    scenario(|lab| {
        network(lab, 4, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &[])?;
            let _one = network.join(lab, 1, &served.join_arguments())?;
            let _two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &network.invite(&[])?])?;
            let of_server = network.server_addresses()?[0].clone();
            let [one, two, _, phone] = &network.machines[..] else { unreachable!("four machines") };
            let before = network.invite(&["--expires", "30d"])?;
            let conf = network.ask(&["peer", "add", "phone", "--conf", "-", "--endpoint", "10.4.0.1"])?;
            let file = lab.file("stock.conf", &conf)?;
            phone.stock_client("up", &file)?;
            for node in [one, two, phone] {
                node.reaches(&of_server, 10)?;
            }
            let mut streams = Streams::start(one, &network.server, &of_server)?;
            let mut gaps = Gaps::start(two, "gaps", &of_server)?;

            let (old, end) = (server_key(network)?, latest_end(network)?);
            rotate_server(network, &[])?.refused(&["nothing was changed", "phone", "--yes"])?;
            ensure!(server_key(network)? == old, "the key was changed without consent");
            let said = rotate_server(network, &["--yes"])?;
            let new = server_key(network)?;
            ensure!(said.success() && said.stdout.contains(&new) && said.stdout.contains("phone"), "{said}");
            ensure!(new != old && said.stdout.contains("these invites name the key before"), "{said}");
            ensure!(latest_end(network)? < end, "`invite ls` says that the invite ends with the key");
            eventually("members know the new key, and the old one no more", SOON, || {
                let all = [peers(network, 1)?, peers(network, 2)?];
                Ok(all.iter().all(|peers| peers.contains(&new) && !peers.contains(&old)))
            })?;
            for n in 1..=2 {
                eventually("the file has the new key", SOON, || {
                    let text = fs::read_to_string(format!("/etc/rustguard/rg{n}.conf"))?;
                    Ok(text.contains(&format!("PublicKey = {new}")) && !text.contains(&old))
                })?;
            }
            streams.go_on()?;
            gaps.goes_on(20)?;
            println!("the longest gap {:?}", gaps.longest_since());
            network.audited("key-rotated", 1)?;
            rotate_server(network, &["--yes"])?.refused(&["changed already"])?;

            // The older invite contains the old key, and so does the file made from it, until the first roster arrives.
            let _three = network.join(lab, 3, &["10.3.0.1:51820", "--token", &before])?;
            network.machines[2].reaches(&network.addresses(1)?[0], 1).context("the joiner to another member")?;
            network.reaches_server(3)?;
            eventually("the joiner knows the new key", SOON, || {
                Ok(fs::read_to_string("/etc/rustguard/rg3.conf")?.contains(&format!("PublicKey = {new}")))
            })?;

            // The phone knows only the old key, also for a new session.
            phone.stock_client("down", &file)?;
            phone.stock_client("up", &file)?;
            phone.reaches(&of_server, 20)?;
            drop(streams);
            served.crash()?;
            let served = network.serve(lab, &[])?;
            ensure!(server_key(network)? == new, "the new key is the one on the disk");
            for node in [one, two, phone] {
                node.reaches(&of_server, 30)?;
            }
            phone.stock_client("down", &file)?;
            phone.stock_client("up", &lab.file("stock.conf", &conf.replace(&old, &new))?)?;
            phone.reaches(&of_server, 20)?;
            phone.stock_client("down", &file)?;
            served.stop()
        })
    });
}

/// The previous key expires while the server is off: then invites with this key end, and so do sessions of peers that
/// know no other.
#[test]
fn the_key_of_the_first_server_from_before_ends_with_its_invites() {
    scenario(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &[])?;
            let _one = network.join(lab, 1, &served.join_arguments())?;
            let of_server = network.server_addresses()?[0].clone();
            let [one, two, phone] = &network.machines[..] else { unreachable!("three machines") };
            let conf = network.ask(&["peer", "add", "phone", "--conf", "-", "--endpoint", "10.3.0.1"])?;
            let file = lab.file("stock.conf", &conf)?;
            network.invite(&["--expires", "30d"])?;
            let old = server_key(network)?;
            let said = rotate_server(network, &["--yes"])?;
            ensure!(said.success(), "{said}");
            let new = server_key(network)?;
            let after = network.invite(&[])?;
            eventually("the file has the new key", SOON, || {
                Ok(fs::read_to_string("/etc/rustguard/rg1.conf")?.contains(&format!("PublicKey = {new}")))
            })?;
            served.crash()?;
            let path = "/var/lib/rustguard/rgs/server-key-before";
            let text = fs::read_to_string(path)?;
            let [key, _, serial] = text.split_whitespace().collect::<Vec<_>>()[..] else {
                bail!("{} words", text.len())
            };
            fs::write(path, format!("{key} 1 {serial}\n"))?;
            let served = network.serve(lab, &[])?;
            eventually("the key before is gone", SOON, || Ok(!fs::exists(path)?))?;
            let revoked = invites(network)?.iter().filter(|invite| invite["state"] == "revoked").count();
            let usable = invites(network)?.iter().filter(|invite| invite["state"] == "usable").count();
            ensure!((revoked, usable) == (1, 1), "{revoked} revoked, {usable} usable");
            one.reaches(&of_server, 20)?;
            phone.stock_client("up", &file)?;
            phone.does_not_reach(&of_server)?;
            phone.stock_client("down", &file)?;
            phone.stock_client("up", &lab.file("stock.conf", &conf.replace(&old, &new))?)?;
            phone.reaches(&of_server, 20)?;
            phone.stock_client("down", &file)?;
            let _two = network.join(lab, 2, &["10.2.0.1:51820", "--token", &after])?;
            two.reaches(&of_server, 20)?;
            // The key can be changed again.
            let said = rotate_server(network, &["--yes"])?;
            ensure!(said.success() && server_key(network)? != new, "{said}");
            served.stop()
        })
    });
}

/// Each refusal names the state of the interface, and changes nothing.
#[test]
fn a_server_that_cannot_change_its_key_says_why() {
    scenario(|lab| {
        network(lab, 1, |network| {
            rotate_server(network, &[])?.refused(&["rgs is not up"])?;
            let served = network.serve(lab, &["--star"])?;
            let key = server_key(network)?;
            rotate_server(network, &["--yes"])?.refused(&["star"])?;
            ensure!(server_key(network)? == key, "the key has changed");
            served.crash()?;
            rotate_server(network, &[])?.refused(&["nobody serves rgs"])?;
            let path = "/var/lib/rustguard/rgs/server-key-before";
            fs::write(path, "half a li")?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            let ended = network.server.end_of(network.server.rustguard()?.args(["serve", "--interface", "rgs"]))?;
            ended.refused(&["server-key-before is damaged", "remove it"])
        })
    });
}
