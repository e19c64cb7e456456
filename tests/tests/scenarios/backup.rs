//! `rustguard serve --backup` and `--restore`: the server on another machine, and restoring an older state over the
//! present one.
mod adoption;

use anyhow::{Context, Result, ensure};
use rustguard_tests::{Ended, Lab, Network, Served, eventually, network, program_for_everybody, scenario, served_log};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// A member may first have to find out that its session belongs to the previous server.
const SOON: Duration = Duration::from_secs(60);
const TRIES: u32 = 60;
const STATE: &str = "/var/lib/rustguard/rgs";

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of text")
}

/// A backup of the server, whether it runs or not.
fn back_up(lab: &Lab, network: &Network, name: &str) -> Result<PathBuf> {
    let path = lab.path(name);
    let said = network.ask(&["serve", "backup", text(&path)?])?;
    ensure!(said.contains("keep it as safe as the server"), "{said}");
    ensure!(fs::metadata(&path)?.mode() & 0o777 == 0o600, "a backup that others can read");
    Ok(path)
}

/// Machine `n` reaches the server, which may have been replaced a moment ago.
fn reaches_server(network: &Network, n: usize) -> Result<()> {
    network.server_addresses()?.iter().try_for_each(|address| network.machines[n - 1].reaches(address, TRIES))
}

/// The command succeeded and printed this.
fn printed(ended: &Ended, words: &str) -> Result<()> {
    ensure!(ended.success() && ended.stdout.contains(words), "should print {words:?}: {ended}");
    Ok(())
}

fn names(network: &Network) -> Result<Vec<String>> {
    let peers: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
    let peers = peers.as_array().context("peers")?.iter();
    let mut names: Vec<_> = peers.map(|peer| peer["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

fn roster(network: &Network) -> Result<u64> {
    network.status()?["network"]["roster"].as_u64().context("a number")
}

/// Another machine takes the server's addresses: the machines' links lead to it from now on.
fn another(lab: &Lab, network: Network) -> Result<Network> {
    let server = lab.node("fresh")?;
    for (n, machine) in (1..).zip(&network.machines) {
        network.server.sh(&format!("ip link del to{n}"))?;
        lab.link((&server, &format!("to{n}")), (machine, "uplink"))?;
        server.sh(&format!("ip addr add 10.{n}.0.1/24 dev to{n}; ip addr add fd0{n}::1/64 dev to{n} nodad"))?;
        machine.sh(&format!("ip addr add 10.{n}.0.2/24 dev uplink; ip addr add fd0{n}::2/64 dev uplink nodad"))?;
        machine.sh(&format!("ip route add default via 10.{n}.0.1; ip -6 route add default via fd0{n}::1"))?;
    }
    server.sh("ip route add default via 10.1.0.2 dev to1")?;
    Ok(Network { server, machines: network.machines })
}

/// A copy of the network's handles, for a test that replaces its server.
fn handles(network: &Network) -> Network {
    Network { server: network.server.clone(), machines: network.machines.clone() }
}

/// The server of a stock client and a member is backed up repeatedly while others join. Then it dies together with its
/// disk. Another machine at its address continues from the last backup: no machine needs a manual step, and others can
/// join.
#[test]
fn a_server_on_another_machine() {
    scenario(|lab| {
        network(lab, 4, |network| {
            let old = fs::read_to_string(fixture("wg0.conf"))?;
            let old = lab.file("wg0.conf", &old)?;
            let client = lab.file("stock.conf", &fs::read_to_string(fixture("client.conf"))?)?;
            let served = network.serve(lab, &["--endpoint", "10.1.0.1", "--import", text(&old)?])?;
            network.machines[0].stock_client("up", &client)?;
            network.machines[0].reaches("10.6.0.1", TRIES)?;
            let member = network.join(lab, 2, &served.join_arguments())?;
            reaches_server(network, 2)?;

            // Each backup is complete, whatever happens while it is made.
            let (stop, token) = (AtomicBool::new(false), network.invite(&[])?);
            let made = thread::scope(|scope| {
                let backups = scope.spawn(|| {
                    let mut made = Vec::new();
                    while !stop.load(Ordering::Relaxed) || made.len() < 2 {
                        made.push(back_up(lab, network, &format!("backup-{}", made.len()))?);
                    }
                    anyhow::Ok(made)
                });
                let joined = network.try_join(3, &["10.1.0.1", "--token", &token]);
                stop.store(true, Ordering::Relaxed);
                let made = backups.join().expect("the thread does not panic");
                ensure!(joined?.success(), "a machine joins while backups are made");
                made
            })?;
            // A lease without a handshake within a minute ends.
            let third = network.up(lab, 3)?;
            reaches_server(network, 3)?;
            for (n, path) in made.iter().enumerate().take(5) {
                let (copy, path) = (format!("c{n}"), text(path)?);
                let ended =
                    network.server.end_of(network.server.rustguard()?.args(["serve", "restore", "-i", &copy, path]))?;
                ensure!(ended.success() && ended.stdout.contains("signed until a member has told"), "{ended}");
            }
            let unused = network.invite(&[])?;
            let path = back_up(lab, network, "last")?;
            let (list, issued) = (names(network)?, roster(network)?);
            ensure!(list.len() == 4, "{list:?}");
            ensure!(network.audited("backed-up", made.len() + 1)?["uid"] == 0, "who made it");
            served.crash()?;

            // The disk is lost too.
            fs::remove_dir_all(STATE)?;
            let network = another(lab, handles(network))?;
            let said = network.ask(&["serve", "restore", text(&path)?])?;
            ensure!(said.contains("4 machines again") && said.contains("the server of before must not run"), "{said}");
            ensure!(said.contains("an invite") || said.contains("invites of the backup"), "{said}");
            let served = network.serve(lab, &[])?;
            network.machines[0].reaches("10.6.0.1", TRIES)?;
            reaches_server(&network, 2)?;
            ensure!(names(&network)? == list, "the same machines");
            // The member's list is the one of the backup, so the server may sign the next one.
            let signs = || anyhow::Ok(network.status()?["network"]["problem"].is_null());
            eventually("the member's word", SOON, signs)?;
            ensure!(roster(&network)? >= issued, "a number again");
            // An invite that may have been used since the backup is invalid.
            let late = network.try_join(4, &["10.1.0.1", "--token", &unused, "--timeout", "4"])?;
            ensure!(!late.success(), "an invite of the backup: {late}");
            let fresh = network.join(lab, 4, &["10.1.0.1", "--token", &network.invite(&[])?])?;
            reaches_server(&network, 4)?;
            network.machines[1].reaches(&network.addresses(4)?[0], TRIES)?;
            network.machines[0].reaches(&network.addresses(4)?[0], TRIES)?;
            drop((member, third, fresh));
            network.machines[0].stock_client("down", &client)?;
            served.stop()
        })
    });
}

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/rustguard-serve/tests/import/pivpn").join(file)
}

/// An older backup on another machine: members know a newer list, and the administrator decides. No roster number is
/// signed twice.
#[test]
fn an_older_backup_on_another_machine() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let member = network.join(lab, 1, &served.join_arguments())?;
            reaches_server(network, 1)?;
            let path = back_up(lab, network, "old")?;
            let late = network.join(lab, 2, &["10.1.0.1", "--token", &network.invite(&["--uses", "2"])?])?;
            reaches_server(network, 2)?;
            network.machines[0].reaches(&network.addresses(2)?[0], TRIES)?;
            let issued = roster(network)?;
            drop(late);
            served.crash()?;
            fs::remove_dir_all(STATE)?;
            let network = another(lab, handles(network))?;
            network.ask(&["serve", "restore", text(&path)?])?;
            let served = network.serve(lab, &[])?;
            reaches_server(&network, 1)?;
            let problem =
                || anyhow::Ok(network.status()?["network"]["problem"].as_str().unwrap_or_default().to_owned());
            eventually("the member's word", SOON, || Ok(problem()?.contains("that is an older copy")))?;
            ensure!(problem()?.contains("reload rgs --restored") && roster(&network)? < issued, "{}", problem()?);
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs", "--restored"]))?.says(&[])?;
            eventually("the next list", SOON, || Ok(problem()?.is_empty() && roster(&network)? > issued))?;
            drop(member);
            served.stop()
        })
    });
}

/// A restore over the present state, while the server runs.
#[test]
fn in_place_while_it_runs() {
    scenario(|lab| {
        network(lab, 3, |network| {
            let mut served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let process = served.process().id();
            let stays = network.join(lab, 1, &served.join_arguments())?;
            reaches_server(network, 1)?;
            let added = network.ask(&["peer", "add", "tablet", "--conf", "-"])?;
            ensure!(added.contains("PrivateKey"), "{added}");
            let path = back_up(lab, network, "old")?;
            let restore =
                |path: &Path, more: &[&str]| network.try_ask(&[&["serve", "restore", text(path)?], more].concat());

            // Restoring the same state changes nothing for anybody.
            printed(&restore(&path, &[])?, "runs with the backup: the key")?;
            reaches_server(network, 1)?;
            ensure!(
                served.process().id() == process && Path::new(&format!("{STATE}.before-restore")).exists(),
                "the state of before"
            );
            ensure!(
                fs::metadata(format!("{STATE}.before-restore"))?.mode() & 0o777 == 0o700,
                "keys for others to read"
            );

            let late = network.join(lab, 2, &["10.1.0.1", "--token", &network.invite(&[])?])?;
            reaches_server(network, 2)?;
            // The server pauses between two rosters.
            let clients = |count: u64| {
                let what = format!("a list of 3 members and {count} other machines");
                eventually(&what, SOON, || {
                    let list = &network.status()?["network"];
                    Ok(list["members"] == 3 && list["clients"] == count)
                })
            };
            clients(1)?;
            network.ask(&["peer", "rm", "tablet"])?;
            clients(0)?;
            let (issued, list) = (roster(network)?, names(network)?);

            // Files that are no backup, or a backup of another server, change nothing.
            let bytes = fs::read(&path)?;
            let damaged = lab.path("damaged");
            for (broken, words) in [
                (bytes[..bytes.len() - 7].to_vec(), "damaged"),
                (
                    bytes
                        .iter()
                        .enumerate()
                        .map(|(at, byte)| if at == bytes.len() / 2 { byte ^ 4 } else { *byte })
                        .collect(),
                    "damaged",
                ),
                (b"age-encryption.org/v1\n".to_vec(), "no backup"),
                ([&b"RGbackup\x09\0\0\0"[..], &bytes[12..]].concat(), "version 9"),
            ] {
                fs::write(&damaged, broken)?;
                restore(&damaged, &[])?.refused(&[words])?;
            }
            restore(Path::new("/var/lib"), &[])?.refused(&["cannot read"])?;
            restore(&path, &[])?.refused(&["tablet, removed since", "have to join again", "--yes"])?;
            ensure!(names(network)? == list && roster(network)? == issued, "a refused backup changes nothing");
            ensure!(!Path::new(&format!("{STATE}/restore")).exists(), "the file for the server stays");

            printed(&restore(&path, &["--yes"])?, "runs with the backup: the key")?;
            reaches_server(network, 1)?;
            ensure!(
                names(network)?.contains(&"tablet".to_owned()) && names(network)?.len() == 2,
                "{:?}",
                names(network)?
            );
            eventually("a newer list", SOON, || Ok(roster(network)? > issued))?;
            ensure!(network.status()?["network"]["problem"].is_null(), "{}", network.status()?);
            ensure!(network.audit()?.iter().any(|line| line["event"] == "removed"), "the log of before goes on");
            // The address of a removed machine is not given to another one at once.
            let taken = network.addresses(2)?[0].clone();
            let other = network.join(lab, 3, &["10.1.0.1", "--token", &network.invite(&[])?])?;
            ensure!(network.addresses(3)?[0] != taken, "{taken} was given away");
            ensure!(served.process().id() == process, "another process");
            drop((stays, late, other));
            served.stop()
        })
    });
}

/// If the server does not start with a backup, it continues with its previous state. A backup of another server is
/// refused.
#[test]
fn what_does_not_start_is_taken_back() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--endpoint", "10.1.0.1", "--port", "51900"])?;
            let path = back_up(lab, network, "other-port")?;
            served.stop()?;
            // The server runs on another port, and another program takes the port of the backup.
            let served = network.serve(lab, &["--port", "51901"])?;
            let blocks = network.server.udp("0.0.0.0:51900")?;
            let list = names(network)?;
            // A start without options uses the port of the backup. With `--port`, the server keeps its port.
            printed(&network.try_ask(&["serve", "restore", text(&path)?])?, "runs with the backup: the key")?;
            ensure!(network.status()?["port"] == 51901, "the command line counts");
            served.stop()?;
            let served = network.serve(lab, &["--port", "51902"])?;
            served.stop()?;
            let served = network.serve(lab, &[])?;
            let ended = network.try_ask(&["serve", "restore", text(&path)?])?;
            ended.refused(&["did not start with the backup"])?;
            ensure!(network.status()?["port"] == 51902 && names(network)? == list, "the state of before");
            ensure!(served_log(lab)?.contains("does not start with the backup"), "{}", served_log(lab)?);
            drop(blocks);

            // `restore` does not replace another server or the folder of a member.
            let other = network
                .server
                .end_of(network.server.rustguard()?.args(["serve", "-i", "rgo", "--detach", "--port", "51905"]))?;
            ensure!(other.success(), "{other}");
            let is_refused = || -> Result<()> {
                let mut command = network.server.rustguard()?;
                command.args(["serve", "restore", "-i", "rgo", "--yes"]).arg(&path);
                network.server.end_of(&mut command)?.refused(&["has another server, with the key"])?;
                Ok(())
            };
            is_refused()?;
            let down = network.server.end_of(network.server.rustguard()?.args(["down", "rgo"]))?;
            ensure!(down.success(), "{down}");
            is_refused()?;
            served.stop()
        })
    });
}

/// A full disk keeps the previous backup, and something that is not a file is not replaced. Neither attempt is recorded
/// as a backup.
#[test]
fn a_backup_that_cannot_be_written_changes_nothing() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            let first = back_up(lab, network, "first")?;
            network.audited("backed-up", 1)?;

            let disk = lab.path("disk");
            fs::create_dir(&disk)?;
            // Two pages: the previous backup takes one, another file the other.
            let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8k", "tmpfs"]).arg(&disk).status()?;
            ensure!(mounted.success(), "no small disk");
            let old = disk.join("backup");
            for path in [&old, &disk.join("other")] {
                fs::write(path, "what was here before")?;
            }
            let ended = network.try_ask(&["serve", "backup", text(&old)?])?;
            ended.refused(&[text(&old)?, "No space left", "is as it was"])?;
            ensure!(fs::read(&old)? == b"what was here before", "the backup of before is gone");
            ensure!(fs::read_dir(&disk)?.count() == 2, "half a backup is left");

            let asked = network.audit()?.len();
            let link = lab.path("link");
            std::os::unix::fs::symlink(&first, &link)?;
            network.try_ask(&["serve", "backup", text(&link)?])?.refused(&[
                "a symbolic link",
                text(&first)?,
                "remove the link",
            ])?;
            network.try_ask(&["serve", "backup", "/dev/null"])?.refused(&["/dev/null", "a device", "backup -"])?;
            ensure!(network.audit()?.len() == asked, "a backup that was refused is in the log");
            ensure!(fs::symlink_metadata(&link)?.is_symlink(), "the link was replaced");
            served.stop()
        })
    });
}

/// The policy belongs to the server's state: it moves to another machine, and it replaces a newer policy.
#[test]
fn the_policy_comes_along() {
    const POLICY: &str = "/etc/rustguard/rgs.policy";
    scenario(|lab| {
        network(lab, 1, |network| {
            let (one, two) = ("allow * -> * icmp\n", "allow * -> * icmp\nallow * -> * tcp/22\n");
            fs::create_dir_all("/etc/rustguard")?;
            fs::write(POLICY, one)?;
            let served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let rules = || Ok::<_, anyhow::Error>(network.status()?["network"]["policy"]["rules"].as_u64());
            // With a policy file that would stop the server from starting, no backup is made.
            fs::write(POLICY, "alow * -> *\n")?;
            let path = lab.path("with-policy");
            network.try_ask(&["serve", "backup", text(&path)?])?.refused(&["rgs.policy:1:1"])?;
            fs::write(POLICY, one)?;
            let path = back_up(lab, network, "with-policy")?;
            served.stop()?;
            fs::remove_dir_all(STATE)?;
            fs::remove_file(POLICY)?;
            let restore = || network.try_ask(&["serve", "restore", text(&path)?]);
            printed(&restore()?, &format!("the policy of the backup is in {POLICY}"))?;
            ensure!(fs::read_to_string(POLICY)? == one, "the same policy");
            let served = network.serve(lab, &[])?;
            ensure!(rules()? == Some(1), "{:?}", rules()?);

            // It replaces a newer policy while the server runs.
            fs::write(POLICY, two)?;
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?.says(&[])?;
            ensure!(rules()? == Some(2), "{:?}", rules()?);
            printed(&restore()?, "the one of before is in /etc/rustguard/rgs.policy.before-restore")?;
            ensure!(rules()? == Some(1), "{:?}", rules()?);
            ensure!(fs::read_to_string(format!("{POLICY}.before-restore"))? == two, "the policy of before");

            // A backup that is refused leaves the policy as it is.
            fs::write(POLICY, two)?;
            network.ask(&["peer", "add", "tablet", "--conf", "-"])?;
            restore()?.refused(&["tablet", "--yes"])?;
            ensure!(fs::read_to_string(POLICY)? == two, "a refused backup changes nothing");
            served.stop()?;
            restore()?.refused(&["tablet", "--yes"])?;
            ensure!(fs::read_to_string(POLICY)? == two, "a refused backup changes nothing");
            Ok(())
        })
    });
}

/// A backup through a pipe, and attempts by users who may control the server but must not have its keys.
#[test]
fn only_root_has_the_keys() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let copy = program_for_everybody(lab)?;
            let of_group = |arguments: &[&str]| {
                let mut command = network.server.command("setpriv");
                command.args(["--reuid", "65534", "--regid", "0", "--clear-groups"]).arg(&copy).args(arguments);
                network.server.end_of(&mut command)
            };
            if Command::new("setpriv").args(["--reuid", "65534", "true"]).status().is_ok_and(|status| status.success())
            {
                ensure!(of_group(&["peer", "ls", "-i", "rgs"])?.success(), "the group controls the server");
                of_group(&["serve", "backup", "-i", "rgs", "-"])?.refused(&["only root and the user of the server"])?;
            } else {
                lab.skip("the group of the control socket: this user namespace has only one user");
            }
            let piped = lab.path("piped");
            let shell = format!("{} serve -i rgs --backup - > {}", copy.display(), piped.display());
            network.server.sh(&shell)?;
            served.stop()?;
            // The backup of a stopped server is the same, except for its time.
            let path = back_up(lab, network, "stopped")?;
            let (stopped, running) = (fs::read(&path)?, fs::read(&piped)?);
            let others = stopped.iter().zip(&running).filter(|(a, b)| a != b).count();
            // The time, and the hash over all.
            ensure!(stopped.len() == running.len() && others <= 8 + 32, "the same state: {others} bytes differ");
            fs::remove_dir_all(STATE)?;
            network.server.sh(&format!("{} serve -i rgs --restore - < {}", copy.display(), piped.display()))?;
            let never = network.try_ask(&["serve", "backup", "/proc/none"])?;
            never.refused(&["/proc/none"])?;
            let none =
                network.server.end_of(network.server.rustguard()?.args(["serve", "backup", "-i", "rgx", "-"]))?;
            none.refused(&["nothing to back up"])?;
            let served: Served = network.serve(lab, &[])?;
            served.stop()
        })
    });
}
