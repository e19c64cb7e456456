//! `rustguard serve` as users see it: restarts and crashes, which peers may reach each other, and removal. Joining is
//! in `join.rs`, settings are in `serve_settings.rs`.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Lab, Network, Node, eventually, files_in, network, program_for_everybody, scenario, served_log};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(15);
/// For a join that must fail without an answer: time for several tries.
const IMPATIENT: [&str; 2] = ["--timeout", "4"];
/// The server's folder.
const STATE: &str = "/var/lib/rustguard/rgs";

/// Both sides restart, one after a normal stop and one as after a crash: the tunnel returns without a token, with the
/// same addresses, keys and settings.
#[test]
fn restarts_need_no_token() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--pool", "192.168.77.0/24", "--port", "4500"])?;
            let mut machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let (key, addresses) = (network.status()?["public_key"].clone(), network.addresses(1)?);
            ensure!(addresses == ["192.168.77.2"], "{addresses:?}");

            machine.stop("KILL")?;
            let mut machine = network.up(lab, 1)?;
            network.reaches_server(1)?;

            served.stop()?;
            let endpoints = format!("{STATE}/endpoints.json");
            let served = network.serve(lab, &[])?;
            // The server calls its earlier peers: nobody has to send anything first.
            eventually(
                "the tunnel is back",
                SOON,
                || Ok(network.status()?["peers"][0]["rx_bytes"].as_u64() > Some(0)),
            )?;
            let status = network.status()?;
            ensure!(status["public_key"] == key && status["port"] == 4500, "{status}");
            network.reaches_server(1)?;

            // After a crash, the server has another address, and calls the peers whose endpoints were stored. The
            // machine is idle, and would only call the old address.
            ensure!(fs::read_to_string(&endpoints)?.contains("10.1.0.2:"), "what was stored is lost");
            served.crash()?;
            network.server.sh(
                "ip addr del 10.1.0.1/24 dev to1; ip addr add 10.1.0.9/24 dev to1; ip route replace default via 10.1.0.2",
            )?;
            let served = network.serve(lab, &[])?;
            eventually("the server calls from its new address", SOON, || {
                Ok(network.status()?["peers"][0]["rx_bytes"].as_u64() > Some(0))
            })?;
            network.machines[0].reaches("192.168.77.1", 30)?;
            ensure!(network.addresses(1)? == addresses, "other addresses");
            machine.stop("TERM")?;
            served.stop()
        })
    });
}

/// The peers of a star reach each other through the server although its host does not forward. With --isolate they do
/// not, although the host forwards.
#[test]
fn from_peer_to_peer_and_isolated() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--star=on"])?;
            ensure!(network.server.run(&["sysctl", "-n", "net.ipv4.ip_forward"])?.trim() == "0", "forwarding is on");
            let machines: Vec<_> = (1..=2)
                .map(|n| network.join(lab, n, &[&format!("10.{n}.0.1"), "--token", &network.invite(&[])?]))
                .collect::<Result<_>>()?;
            let (one, two) = (&network.machines[0], network.addresses(2)?);
            network.reaches_server(2)?;
            for address in &two {
                one.reaches(address, 10)?;
            }
            served.stop()?;
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            let served = network.serve(lab, &["--isolate"])?;
            network.reaches_server(1)?;
            network.reaches_server(2)?;
            for address in &two {
                one.does_not_reach(address)?;
            }
            ensure!(network.status()?["isolate"] == true, "isolated");
            served.stop()?;
            let served = network.serve(lab, &["--isolate=off"])?;
            network.reaches_server(2)?;
            one.reaches(&two[0], 20)?;
            drop(machines);
            served.stop()
        })
    });
}

/// A removed peer is out at once, and its key cannot return with the old invite; a new invite admits it.
#[test]
fn a_removed_peer_stays_out() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let old = network.invite(&["--uses", "5", "--tag", "staff"])?;
            let mut machine = network.join(lab, 1, &["10.1.0.1", "--token", &old, "--name", "laptop"])?;
            network.reaches_server(1)?;
            network.ask(&["peer", "rename", "laptop", "notebook"])?;
            network.try_ask(&["peer", "rm", "laptop"])?.refused(&["no peer laptop"])?;
            network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            network
                .try_ask(&["peer", "rename", "phone", "notebook"])?
                // The refusal comes from the ledger, or from the network if its roster already has the name.
                .refused(&["notebook", "choose another name, or remove or rename that peer"])?;
            network.ask(&["peer", "rename", "notebook", "notebook"])?;
            network.ask(&["peer", "rm", "phone"])?;
            let server = network.server_addresses()?;
            let listed = network.ask(&["peer", "ls"])?;
            ensure!(listed.contains("TAG") && listed.contains("staff"), "the invite it came by: {listed}");
            let said = network.ask(&["peer", "rm", "notebook"])?;
            ensure!(said.contains("it had joined by: invite") && said.contains("4 more times"), "{said}");
            network.machines[0].does_not_reach(&server[0])?;
            ensure!(network.ask(&["peer", "ls"])?.lines().count() == 1, "the list is empty");
            machine.stop("TERM")?;
            let arguments = [&["10.1.0.1", "--token", &old], &IMPATIENT[..]].concat();
            network.try_join(1, &arguments)?.refused(&["was removed from the network"])?;
            let refused = network.audited("refused", 1)?;
            ensure!(refused["reason"] == "removed-peer", "{refused}");
            let _machine = network.join(lab, 1, &["10.1.0.1", "--token", &network.invite(&[])?])?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}

/// A machine that makes a new key is kept out by --revoke: the invite is revoked together with the peer, or the window
/// is closed.
#[test]
fn a_removed_machine_stays_out_where_its_grant_is_revoked() {
    scenario(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &[])?;
            let token = network.invite(&["--uses", "5"])?;
            let stays = network.join(lab, 2, &["10.2.0.1", "--token", &token, "--name", "stays"])?;
            // A new key each time, as after `rm -r /var/lib/rustguard/rg1`.
            let joins = |n: u8, token: &str| {
                let folder = format!("/var/lib/rustguard/rg{n}");
                if Path::new(&folder).exists() {
                    fs::remove_dir_all(&folder)?;
                }
                let server = format!("10.{n}.0.1");
                let arguments = [&[&*server, "--token", token, "--name", "laptop"], &IMPATIENT[..]].concat();
                let ended = network.try_join(n, &arguments)?;
                Ok::<_, anyhow::Error>(ended.success())
            };
            ensure!(joins(1, &token)?, "by a good invite");
            let said = network.ask(&["peer", "rm", "laptop"])?;
            ensure!(said.contains("could come back with another key"), "{said}");
            ensure!(said.contains("1 other peer that joined in the same way stays"), "{said}");
            ensure!(joins(1, &token)?, "what `peer rm` warns of");
            let said = network.ask(&["peer", "rm", "laptop", "--revoke"])?;
            ensure!(said.contains("is revoked, so no machine can join with it"), "{said}");
            ensure!(!joins(1, &token)?, "it came back by a revoked invite");
            network.audited("invite-revoked", 1)?;
            network.reaches_server(2)?;

            let code = network.open(&["60"])?;
            ensure!(joins(1, &code)?, "by an open window");
            ensure!(network.ask(&["peer", "rm", "laptop"])?.contains("The window is open"), "what is left open");
            ensure!(joins(3, &code)?, "what `peer rm` warns of");
            let said = network.ask(&["peer", "rm", "laptop", "--revoke"])?;
            ensure!(!said.contains("The window is open") && network.status()?["window"].is_null(), "{said}");
            ensure!(!joins(1, &code)?, "it came back by a closed window");

            // A manually added peer has no invite to revoke; the key in its file is removed.
            let path = lab.path("stock.conf");
            network.ask(&["peer", "add", "phone", "--conf", &path.display().to_string()])?;
            let said = network.ask(&["peer", "rm", "phone", "--revoke"])?;
            ensure!(said.contains("it had joined by: administrator") && said.lines().count() == 1, "{said}");
            ensure!(!network.ask(&["peer", "ls"])?.contains("phone"), "still there");
            drop(stays);
            served.stop()
        })
    });
}

/// A stock WireGuard gets a configuration, and the server does not store its private key.
#[test]
fn stock_wireguard_by_configuration() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served =
                network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1", "--dns", "10.150.0.1"])?;
            let text = network.ask(&["peer", "add", "phone", "--conf", "-", "--address", "10.150.0.77"])?;
            ensure!(text.contains("Address = 10.150.0.77/") && text.contains("DNS = 10.150.0.1"), "{text}");
            let private = text.lines().find_map(|line| line.strip_prefix("PrivateKey = ")).context("a private key")?;
            for file in files_in(Path::new("/var/lib/rustguard"))? {
                let bytes = fs::read(&file)?;
                ensure!(!bytes.windows(private.len()).any(|w| w == private.as_bytes()), "{}", file.display());
            }
            // The client is wireguard-go and stock wg-quick.
            let stock: String =
                text.lines().filter(|line| !line.starts_with("DNS")).map(|line| format!("{line}\n")).collect();
            let file = lab.file("stock.conf", &stock)?;
            network.machines[0].stock_client("up", &file)?;
            network.reaches_server(1)?;
            let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
            ensure!(peers[0]["name"] == "phone" && peers[0]["state"] == "active", "{peers}");
            network.machines[0].stock_client("down", &file)?;

            network.try_ask(&["peer", "add", "phone", "--conf", "-"])?.refused(&["already"])?;
            let taken = network.try_ask(&["peer", "add", "other", "--conf", "-", "--address", "10.150.0.77"])?;
            taken.refused(&["10.150.0.77"])?;
            let outside = network.try_ask(&["peer", "add", "other", "--conf", "-", "--address", "10.9.0.1"])?;
            outside.refused(&["10.9.0.1"])?;
            network.try_ask(&["peer", "add", "-x-", "--conf", "-"]).map(|ended| ended.is_misuse())??;
            network.try_ask(&["peer", "add", "a b", "--conf", "-"])?.refused(&["is no name"])?;
            let path = lab.path("kept.conf");
            network.ask(&["peer", "add", "tablet", "--conf", &path.display().to_string()])?;
            ensure!(fs::metadata(&path)?.permissions().mode() & 0o077 == 0, "a private key for all to read");
            let again = network.try_ask(&["peer", "add", "tablet2", "--conf", &path.display().to_string()])?;
            again.refused(&["kept.conf"])?;
            let key = network.server.sh("wg genkey | wg pubkey")?;
            let text = network.ask(&["peer", "add", "box", "--public-key", key.trim()])?;
            ensure!(!text.contains("PrivateKey") && text.contains("[Peer]"), "{text}");

            // The same in JSON. The secrets are only in the configuration.
            let json = |arguments: &[&str]| anyhow::Ok(serde_json::from_str::<Value>(&network.ask(arguments)?)?);
            let path = lab.path("script.conf").display().to_string();
            let added = json(&["peer", "add", "script", "--conf", &path, "--json"])?;
            let public = network.server.sh(&format!("sed -n 's/^PrivateKey = //p' {path} | wg pubkey"))?;
            ensure!(added["public_key"] == public.trim() && added["answer"] == "added", "{added}");
            ensure!(added["addresses"][0].is_string() && added["config"].is_null(), "{added}");
            let removed = json(&["peer", "rm", "script", "--json"])?;
            ensure!(removed["answer"] == "removed" && removed["peer"] == "script", "{removed}");
            let added = json(&["peer", "add", "script", "--conf", "-", "--json"])?;
            ensure!(added["config"].as_str().is_some_and(|text| text.contains("PrivateKey = ")), "{added}");

            let qr = network.ask(&["peer", "add", "watch", "--qr"])?;
            ensure!(qr.contains('█') && qr.contains("scan"), "a QR code: {qr}");
            let qr = network.ask(&["invite", "new", "--qr", "--name", "guest", "--expires", "1h"])?;
            ensure!(qr.contains('█') && qr.contains("1 hour"), "a QR code: {qr}");
            let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
            let guest = peers.as_array().and_then(|peers| peers.iter().find(|peer| peer["name"] == "guest")).cloned();
            ensure!(guest.is_some_and(|guest| guest["state"] == "pending"), "a guest who may not come: {peers}");
            served.stop()
        })
    });
}

/// A network behind a stock WireGuard is reachable while the administrator's permission lasts, and not before or after.
#[test]
fn a_network_behind_a_stock_peer() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--star=on", "--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1"])?;
            let text = network.ask(&["peer", "add", "router", "--conf", "-"])?;
            let file = lab.file("stock.conf", &text)?;
            network.machines[0].stock_client("up", &file)?;
            network.reaches_server(1)?;
            network.machines[0].sh("ip addr add 192.168.77.1/32 dev lo")?;
            network.server.sh("ip route add 192.168.77.0/24 dev rgs")?;
            network.server.does_not_reach("192.168.77.1")?;
            let said = network.ask(&["peer", "allow", "router", "192.168.77.1/24", "10.150.0.0/16"])?;
            ensure!(said.contains("router: admitted prefixes: 10.150.0.0/16, 192.168.77.0/24"), "{said}");
            ensure!(said.contains("contains the pool 10.150.0.0/24"), "{said}");
            network.server.reaches("192.168.77.1", 20)?;
            let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
            ensure!(peers[0]["prefixes"][1] == "192.168.77.0/24" && peers[0]["member"] == false, "{peers}");
            for (bad, words) in [
                (&["10.150.0.7/32"][..], &["lies in the pool"][..]),
                (&["127.0.0.0/8"], &["loopback"]),
                (&["0.0.0.0/0"], &["--default-route"]),
            ] {
                network.try_ask(&[&["peer", "allow", "router"], bad].concat())?.refused(words)?;
            }
            // The server's own machine keeps its default route, and the log does not warn about it.
            network.ask(&[
                "peer",
                "allow",
                "router",
                "0.0.0.0/0",
                "128.0.0.0/1",
                "172.20.0.0/16",
                "--default-route",
            ])?;
            let routes = || network.server.run(&["ip", "-4", "route", "show", "dev", "rgs"]);
            eventually("the last route", SOON, || Ok(routes()?.contains("172.20.0.0/16")))?;
            ensure!(!routes()?.contains("128.0.0.0") && !routes()?.contains("default"), "{}", routes()?);
            ensure!(!served_log(lab)?.contains("stays out"), "{}", served_log(lab)?);
            network.ask(&["peer", "deny", "router", "0.0.0.0/0", "128.0.0.0/1", "172.20.0.0/16"])?;
            let other = network.ask(&["peer", "add", "other", "--conf", "-"])?;
            ensure!(other.contains("PrivateKey"), "{other}");
            let said = network.ask(&["peer", "allow", "other", "192.168.0.0/16", "10.150.0.0/16"])?;
            ensure!(said.contains("192.168.0.0/16 overlaps 192.168.77.0/24 of router"), "{said}");
            ensure!(said.contains("router has 10.150.0.0/16 as well"), "{said}");

            network
                .try_ask(&["peer", "deny", "router", "192.168.78.0/24"])?
                .refused(&["is not admitted for router"])?;
            let said = network.ask(&["peer", "deny", "router", "192.168.77.0/24", "10.150.0.0/16", "--json"])?;
            let said: Value = serde_json::from_str(&said)?;
            ensure!(said["answer"] == "peer-changed" && said["admitted"] == serde_json::json!([]), "{said}");
            network.server.does_not_reach("192.168.77.1")?;

            let said = network.ask(&["peer", "tag", "router", "lab", "site"])?;
            ensure!(said.contains("router: tags: lab, site"), "{said}");
            network.try_ask(&["peer", "tag", "router", "a b"])?.refused(&["cannot be a tag"])?;
            let said = network.ask(&["peer", "untag", "router", "lab"])?;
            ensure!(said.contains("router: tags: site"), "{said}");
            ensure!(network.ask(&["peer", "ls"])?.contains("site"), "the tag is listed");
            let allowed = network.audited("prefixes-allowed", 3)?;
            ensure!(allowed["prefixes"][0] == "192.168.0.0/16" && allowed["name"] == "other", "{allowed}");
            let invite =
                network.ask(&["invite", "new", "--tag", "a", "--tag", "b", "--allow", "192.168.5.0/24", "--json"])?;
            let invites: Value = serde_json::from_str(&network.ask(&["invite", "ls", "--json"])?)?;
            let last = invites.as_array().and_then(|all| all.last()).cloned().context(invite)?;
            ensure!(last["tags"][1] == "b" && last["prefixes"][0] == "192.168.5.0/24", "{last}");
            network.machines[0].stock_client("down", &file)?;
            served.stop()
        })
    });
}

/// Only root may use the control socket.
#[test]
fn nobody_else_controls_the_server() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let copy = program_for_everybody(lab)?;
            let as_nobody = || {
                let mut command = network.server.command("setpriv");
                command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
                command.args(["peer", "ls", "-i", "rgs"]);
                network.server.end_of(&mut command)
            };
            if Command::new("setpriv").args(["--reuid", "65534", "true"]).status().is_ok_and(|status| status.success())
            {
                as_nobody()?.refused(&["run as root"])?;
                // Also with a more permissive mode.
                fs::set_permissions("/run/rustguard/rgs.ctl", fs::Permissions::from_mode(0o666))?;
                as_nobody()?.refused(&["this user may not"])?;
            } else {
                lab.skip("another user at the control socket: this user namespace has only one");
            }
            served.stop()
        })
    });
}

/// In the background, and the output that appears there.
#[test]
fn detached() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs", "--detach", "--open", "60", "--token", "correct horse"]);
            let ended = network.server.end_of(&mut command)?;
            ensure!(ended.success() && ended.stdout.contains("rustguard join 10.1.0.1:51820 --token rg1-"), "{ended}");
            ensure!(
                ended.stdout.contains("PASSPHRASE") && network.status()?["window"]["secret"] == "passphrase",
                "{ended}"
            );
            let processes = network.server.sh("cat /proc/*/cmdline | tr '\\0' ' '")?;
            ensure!(!processes.contains("correct horse"), "the passphrase is among the arguments of a process");
            let mut command = network.join_command(1, &["10.1.0.1", "--token", "correct horse", "--detach"])?;
            let ended = network.machines[0].end_of(&mut command)?;
            ensure!(ended.success(), "{ended}");
            network.reaches_server(1)?;
            for (node, interface) in [(&network.machines[0], "rg1"), (&network.server, "rgs")] {
                let ended = node.end_of(node.rustguard()?.args(["down", interface]))?;
                ensure!(ended.success(), "{ended}");
            }
            Ok(())
        })
    });
}

/// A token in the environment stays in the program: neither the program's environment nor its children's contains it,
/// in the background or not. Hooks cannot see either that they run in the background.
#[test]
fn what_the_environment_brings_is_not_handed_on() {
    const SECRET: &str = "correct horse battery";
    scenario(|lab| {
        network(lab, 1, |network| {
            // The environment of all RustGuard processes of the scenario, two per tunnel.
            let environments = || {
                let mut found = Vec::new();
                for entry in fs::read_dir("/proc")? {
                    let folder = entry?.path();
                    let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
                    if name.trim() == "rustguard" {
                        found.push(String::from_utf8_lossy(&fs::read(folder.join("environ"))?).into_owned());
                    }
                }
                anyhow::Ok(found)
            };
            let check = |processes: usize| {
                let found = environments()?;
                ensure!(found.len() == processes, "{} processes: {found:?}", found.len());
                for environment in found {
                    ensure!(environment.contains("PATH="), "it can be read: {environment}");
                    ensure!(!environment.contains("correct"), "the passphrase is in {environment}");
                }
                anyhow::Ok(())
            };
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs"]).env("RUSTGUARD_TOKEN", SECRET);
            let served = network.serve_by(lab, &mut command)?;
            check(2)?;
            served.stop()?;
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs", "--detach"]).env("RUSTGUARD_TOKEN", SECRET);
            let ended = network.server.end_of(&mut command)?;
            ensure!(ended.success(), "{ended}");
            check(2)?;
            network.ask(&["open", "60"])?;
            let mut command = network.join_command(1, &["10.1.0.1", "--detach"])?;
            let ended = network.machines[0].end_of(command.env("RUSTGUARD_TOKEN", SECRET))?;
            ensure!(ended.success(), "the passphrase reached the server: {ended}");
            network.reaches_server(1)?;
            check(4)?;
            for (node, interface) in [(&network.machines[0], "rg1"), (&network.server, "rgs")] {
                let ended = node.end_of(node.rustguard()?.args(["down", interface]))?;
                ensure!(ended.success(), "{ended}");
            }

            let out = lab.path("hook.env");
            let key = network.server.sh("wg genkey")?;
            let text = format!("[Interface]\nPrivateKey = {}\nPostUp = env > {}\n", key.trim(), out.display());
            let file = lab.file("hooked.conf", &text)?;
            let node = &network.machines[0];
            let up = |arguments: &[&str]| {
                let mut command = node.rustguard()?;
                command.arg("up").args(arguments).arg(&file);
                anyhow::Ok(node.end_of(command.env("RUSTGUARD_TOKEN", SECRET))?)
            };
            let ended = up(&["--detach"])?;
            ensure!(ended.success(), "{ended}");
            let inherited = fs::read_to_string(&out)?;
            let leaked =
                ["RUSTGUARD_TOKEN", "RUSTGUARD_DETACHED", "correct"].iter().any(|word| inherited.contains(word));
            ensure!(inherited.contains("PATH=") && !leaked, "{inherited}");
            node.end_of(node.rustguard()?.args(["down", "hooked"]))?;
            // Anybody who may change the file can run commands as root.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            up(&[])?.refused(&["everybody on this machine may change", "chmod 600"])?;
            Ok(())
        })
    });
}

/// The server is killed at random moments while machines join: after every restart, each machine that was told that it
/// joined is in the list with its addresses, and no address is given twice. `RUSTGUARD_SEED` replays the moments, but
/// not the scheduling of the machines.
#[test]
fn killed_while_machines_join() {
    scenario(|lab| network(lab, 3, |network| killed_often(lab, network)));
}

fn killed_often(lab: &Lab, network: &Network) -> Result<()> {
    const KILLS: u32 = 24;
    /// On a busy machine, few join between two kills: killing continues until enough have joined, at most this many
    /// times.
    const MOST_KILLS: u32 = 120;
    const ENOUGH: usize = 10;
    let seed = std::env::var("RUSTGUARD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("RUSTGUARD_SEED={seed}");
    let served = network.serve(lab, &["--pool", "10.150.0.0/16"])?;
    let token = network.invite(&["--uses", "10000", "--expires", "1h"])?;
    served.stop()?;
    let (told, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let restarts = thread::scope(|scope| {
        let joining: Vec<_> = (1..=3)
            .map(|n| {
                scope.spawn({
                    let (told, stop, token) = (&told, &stop, &token);
                    move || while_not(stop, || join_as_new(network, n, token, told))
                })
            })
            .collect();
        let mut moments = Moments(seed);
        let restarts = (0..MOST_KILLS).try_for_each(|nth| {
            if nth >= KILLS && told.lock().expect("no thread has panicked").len() >= ENOUGH {
                return Ok(());
            }
            let served = network.serve(lab, &[])?;
            // Machines that were told before must be listed now, and those that are told from now on at the next start.
            check_told(network, &told)?;
            thread::sleep(moments.next());
            served.crash()
        });
        // In any case, the threads must end.
        let served = network.serve(lab, &[]);
        stop.store(true, Ordering::Relaxed);
        let joined =
            joining.into_iter().try_for_each(|thread| thread.join().expect("a machine's thread does not panic"));
        restarts.and(joined).and(served)
    });
    let served = restarts?;
    check_told(network, &told)?;
    let told = told.into_inner().expect("no thread has panicked");
    println!("{} machines joined while the server was killed {KILLS} times or more", told.len());
    ensure!(told.len() >= ENOUGH, "only {} machines joined: the kills met nobody", told.len());
    // Each lease used up the invite once: unanswered tries do not count.
    let (mut leases, mut left) = (0, None);
    let agrees = eventually("leases and uses agree", SOON, || {
        let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
        leases = peers.as_array().context("a list")?.len();
        let invites: Value = serde_json::from_str(&network.ask(&["invite", "ls", "--json"])?)?;
        left = invites.as_array().context("a list")?.iter().filter_map(|invite| invite["uses_left"].as_u64()).max();
        // Between the two queries, a lease may expire that was not confirmed within a minute.
        Ok(left == Some(10_000 - leases as u64))
    });
    agrees.with_context(|| format!("{leases} leases, {left:?} uses left"))?;
    served.stop()
}

/// A machine that was told that it has joined: the time, its key and its addresses.
struct Told {
    at: Instant,
    public_key: String,
    addresses: Vec<String>,
}

/// The machine joins under a new key, or under its last key if the last try had no answer.
fn join_as_new(network: &Network, n: u8, token: &str, told: &Mutex<Vec<Told>>) -> Result<()> {
    let key = format!("/var/lib/rustguard/rg{n}/key");
    let server = format!("10.{n}.0.1");
    let ended = network.try_join(n, &[&server, "--token", token, "--timeout", "2"])?;
    if !ended.success() {
        return ended.refused(&["2 s"]);
    }
    let at = Instant::now();
    let public_key = network.machines[usize::from(n) - 1].sh(&format!("wg pubkey < {key}"))?.trim().to_owned();
    let mut joined = told.lock().expect("no thread has panicked");
    joined.push(Told { at, public_key, addresses: network.addresses(n)? });
    fs::remove_file(&key)?;
    Ok(())
}

fn while_not(stop: &AtomicBool, mut body: impl FnMut() -> Result<()>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        body()?;
    }
    Ok(())
}

/// Checks that all of them are in the server's list with their addresses, and that all addresses in it are different.
fn check_told(network: &Network, told: &Mutex<Vec<Told>>) -> Result<()> {
    // None of them makes a handshake, and without one a lease is kept for sixty seconds.
    const KEPT: Duration = Duration::from_secs(45);
    let expected: Vec<(String, Vec<String>)> = {
        let told = told.lock().expect("no thread has panicked");
        let young = told.iter().filter(|told| told.at.elapsed() < KEPT);
        young.map(|told| (told.public_key.clone(), told.addresses.clone())).collect()
    };
    let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
    let (mut leases, mut given) = (HashMap::new(), HashSet::new());
    for peer in peers.as_array().context("a list")? {
        let addresses: Vec<_> = peer["addresses"].as_array().context("addresses")?.iter().map(as_text).collect();
        for address in &addresses {
            ensure!(given.insert(address.clone()), "{address} was given twice: {peers}");
        }
        leases.insert(as_text(&peer["public_key"]), addresses);
    }
    for (public_key, addresses) in expected {
        let lease = leases.get(&public_key);
        ensure!(lease == Some(&addresses), "{public_key} was told {addresses:?}, and the server knows {lease:?}");
    }
    Ok(())
}

fn as_text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Times from 0 to 600 ms (splitmix64, by Vigna): some before the first datagram, some after several joins.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_micros((mixed ^ mixed >> 31) % 600_000)
    }
}

/// `status --watch` and `show --watch` print repeatedly until they are ended.
#[test]
fn watched() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--pool", "10.77.0.0/24"])?;
            let mut command = network.server.rustguard()?;
            let mut watch = network.server.spawn("watch", command.args(["status", "--watch", "-i", "rgs"]))?;
            let mut command = network.server.rustguard()?;
            let mut show = network.server.spawn("show", command.args(["show", "--watch", "rgs"]))?;
            let shown = |watch: &rustguard_tests::Process, text| watch.log().matches(text).count();
            for watch in [&watch, &show] {
                eventually("the second page", SOON, || Ok(shown(watch, "interface: rgs") >= 2))?;
            }
            let _machine = network.join(lab, 1, &served.join_arguments())?;
            eventually("who has joined", SOON, || Ok(shown(&watch, "10.77.0.2") >= 2 && watch.log().contains("/s, ")))?;
            // Not by SIGINT: this process and its children may ignore it.
            watch.stop("TERM")?;
            eventually("the peer", SOON, || Ok(shown(&show, "allowed ips: 10.77.0.2/32") >= 2))?;
            show.stop("TERM")?;
            served.stop()
        })
    });
}

/// Machines without IPv6: no IPv6 pool is chosen, and machines without IPv6 leave out an existing one.
#[test]
fn without_ipv6() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let off = |node: &Node| {
                node.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1").map(drop)
            };
            off(&network.machines[0])?;
            let served = network.serve(lab, &["--pool", "10.66.0.0/24", "--pool", "fd66::/64"])?;
            let mut one = network.join(lab, 1, &["10.1.0.1", "--token", &network.invite(&[])?])?;
            ensure!(one.log().contains("IPv6 is disabled"), "{}", one.log());
            ensure!(one.log().contains("routes through the tunnel: 10.66.0.0/24\n"), "{}", one.log());
            ensure!(network.addresses(1)? == ["10.66.0.2"], "{:?}", network.addresses(1)?);
            network.machines[0].reaches("10.66.0.1", 10)?;
            served.stop()?;
            off(&network.server)?;
            let served = network.serve(lab, &[])?;
            ensure!(served_log(lab)?.contains("fd66::1/64 is left out"), "{}", served_log(lab)?);
            let _two = network.join(lab, 2, &["10.2.0.1", "--token", &network.invite(&[])?])?;
            network.machines[1].reaches("10.66.0.1", 10)?;
            network.machines[0].reaches("10.66.0.1", 30)?;
            one.stop("TERM")?;
            served.stop()?;
            fs::remove_dir_all(STATE)?;
            let served = network.serve(lab, &[])?;
            let [address] = &*network.server_addresses()? else { anyhow::bail!("an IPv6 pool for nobody") };
            ensure!(address.starts_with("10."), "{address}");
            served.stop()
        })
    });
}
