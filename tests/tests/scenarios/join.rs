//! `rustguard join` as users see it: tokens, codes, approval, and the resulting tunnels of the machines. The server's
//! side is in `serve.rs`. The protocol's own tests cover limits for guesses, replays and low-order points; these tests
//! cover the program's reaction.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Node, eventually, files_in, joined, network, scenario, served_log, unfolded};
use serde_json::Value;
use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio, time::Duration};

const SOON: Duration = Duration::from_secs(15);
/// For a join that must fail without an answer: time for several tries.
const IMPATIENT: [&str; 2] = ["--timeout", "4"];

/// No options, and the printed line pasted unchanged: addresses, traffic, and a tunnel like any other.
#[test]
fn with_no_options_at_all() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let before = network.machines[0].traces()?;
            let served = network.serve(lab, &[])?;
            ensure!(served.join[1] == "10.1.0.1:51820", "where the server is: {:?}", served.join);
            let mut machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let [v4, v6] = &*network.addresses(1)? else { anyhow::bail!("two addresses") };
            ensure!(v4.starts_with("10.") && v4.ends_with(".2") && v6.starts_with("fd"), "{v4} {v6}");
            for address in [v4, v6] {
                network.server.reaches(address, 3)?;
            }
            let shown = network.status()?;
            ensure!(shown["peers"][0]["state"] == "active" && shown["peers"][0]["name"] != "", "{shown}");
            ensure!(shown["counters"][0][0] == "admitted" && shown["counters"][0][1] == 1, "{shown}");
            let admitted = network.audited("admitted", 1)?;
            ensure!(admitted["addresses"][0] == *v4 && admitted["source"].is_string(), "{admitted}");
            network.audited("confirmed", 1)?;
            // To stock `wg` and to `show`, the tunnel looks like any other.
            let psk = wg(&network.server, "rgs", "preshared-keys")?;
            ensure!(!psk.contains("(none)"), "a preshared key: {psk}");
            ensure!(
                network.server.run(&["wg", "show", "rgs", "allowed-ips"])?.contains(&format!("{v4}/32")),
                "allowed IPs"
            );
            let shown = network.server.end_of(network.server.rustguard()?.args(["show", "rgs"]))?;
            ensure!(shown.stdout.contains("enrolment: 1 admitted"), "{shown}");
            // No secret of the token is stored or logged.
            let token = served.join.last().context("a token")?;
            for file in files_in(Path::new("/var/lib/rustguard"))?.iter().chain(&files_in(Path::new("/etc/rustguard"))?)
            {
                let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
                ensure!(!text.contains(token.as_str()), "the token is in {}", file.display());
                let mode = fs::metadata(file)?.permissions().mode() & 0o077;
                ensure!(mode == 0, "{} is open to others", file.display());
            }
            ensure!(machine.stop("TERM")?.success(), "the machine's end");
            served.stop()?;
            ensure!(before == network.machines[0].traces()?, "something was left behind");
            Ok(())
        })
    });
}

fn wg(node: &Node, interface: &str, field: &str) -> Result<String> {
    node.run(&["wg", "show", interface, field])
}

/// All sources of a token, and of the server's address.
#[test]
fn tokens_by_file_standard_input_and_environment() {
    scenario(|lab| {
        network(lab, 4, |network| {
            let served = network.serve(lab, &["--endpoint", "vpn.lab"])?;
            ensure!(served.join[1] == "vpn.lab:51820", "{:?}", served.join);
            let file = lab.file("token", &format!("{}\n", network.invite(&[])?))?;
            let _one = network.join(lab, 1, &["vpn.lab", "--token-file", &file.display().to_string()])?;

            let token = network.invite(&[])?;
            let mut two = network.join_command(2, &["[fd02::1]:51820", "--token", "-", "--no-up"])?;
            let mut child = two.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            child.stdin.take().context("a pipe")?.write_all(format!("  {token}  \n").as_bytes())?;
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let _two = network.up(lab, 2)?;

            // The invite contains the server's address, which is reached by the default route.
            let token = network.invite(&["--endpoint", "10.3.0.1"])?;
            let mut three = network.join_command(3, &["--no-up"])?;
            let ended = network.machines[2].end_of(three.env("RUSTGUARD_TOKEN", token))?;
            ensure!(ended.success() && !ended.stderr.contains("command line"), "{ended}");
            let _three = network.up(lab, 3)?;

            // A passphrase works in every later window too. Bystanders can see it, while an invite can be used only
            // once.
            let passphrase = ["10.4.0.1", "--token", "correct horse battery", "--timeout", "1s"];
            let refused = network.try_join(4, &passphrase)?;
            ensure!(!refused.success() && refused.stderr.contains("a passphrase on the command line"), "{refused}");
            let four = network.try_join(4, &["10.4.0.1", "--token", &network.invite(&[])?])?;
            ensure!(four.success() && !four.stderr.contains("command line"), "{four}");
            let _four = network.up(lab, 4)?;
            for n in 1..=4 {
                network.reaches_server(n)?;
            }
            served.stop()
        })
    });
}

/// A code works while the window is open, for any number of machines, and not before or after.
#[test]
fn a_window_for_codes() {
    scenario(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &[])?;
            ensure!(served_log(lab)?.contains("closed"), "it starts closed, and says so");
            let refused = network.try_ask(&["close"])?;
            refused.refused(&["no window is open"])?;
            let code = network.open(&["60"])?;
            ensure!(code.len() == 9 && code.as_bytes()[4] == b'-', "{code}");
            let window = &network.status()?["window"];
            ensure!(window["secret"] == "code" && window["seconds_left"].as_u64() > Some(50), "{window}");
            let _one = network.join(lab, 1, &["10.1.0.1", "--token", &code])?;
            let lower = code.to_lowercase().replace('-', "");
            let _two = network.join(lab, 2, &["10.2.0.1", "--token", &lower])?;
            network.reaches_server(1)?;
            network.reaches_server(2)?;
            network.ask(&["close"])?;
            ensure!(network.status()?["window"].is_null(), "still open");
            let arguments = [&["10.3.0.1", "--token", &code], &IMPATIENT[..]].concat();
            network.try_join(3, &arguments)?.refused(&["4 s"])?;
            network.audited("admitted", 2)?;
            network.audited("window-closed", 1)?;
            served.stop()
        })
    });
}

/// Five wrong guesses close the window, and the log says why.
#[test]
fn guessing_closes_the_window() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs", "--open", "120"]).env("RUSTGUARD_TOKEN", "correct horse");
            let served = network.serve_by(lab, &mut command)?;
            ensure!(!served_log(lab)?.contains("one window of 2,000"), "thirteen characters are enough");
            ensure!(served_log(lab)?.contains("--token PASSPHRASE"), "how to join: {}", served_log(lab)?);
            for guess in 1..=5 {
                let token = format!("wrong horse {guess}");
                let arguments = [&["10.1.0.1", "--token", &token], &IMPATIENT[..]].concat();
                network.try_join(1, &arguments)?.refused(&[])?;
            }
            eventually("the window closes", SOON, || Ok(network.status()?["window"].is_null()))?;
            let closed = network.audited("window-closed", 1)?;
            ensure!(closed["reason"] == "attempts", "{closed}");
            let arguments = [&["10.1.0.1", "--token", "correct horse"], &IMPATIENT[..]].concat();
            network.try_join(1, &arguments)?.refused(&["4 s"])?;
            // After the administrator has opened it again, the passphrase works.
            network.ask(&["open", "60"])?;
            let _machine = network.join(lab, 1, &["10.1.0.1", "--token", "correct horse"])?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}

/// `open --approve`: both sides show the same eight digits, and one of two is admitted.
#[test]
fn approval() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &[])?;
            let code = network.open(&["--approve"])?;
            let spawn = |n: u8, name: &str| {
                let server = format!("10.{n}.0.1");
                let mut command = network.join_command(n, &[&server, "--token", &code, "--no-up", "--name", name])?;
                network.machines[usize::from(n) - 1].spawn(name, &mut command)
            };
            let (mut one, two) = (spawn(1, "good")?, spawn(2, "evil")?);
            let waiting = || anyhow::Ok(network.status()?["waiting"].as_array().cloned().unwrap_or_default());
            eventually("both wait", SOON, || Ok(waiting()?.len() == 2))?;
            ensure!(!Path::new("/etc/rustguard/rg1.conf").exists(), "admitted without approval");
            let waiting: Vec<Value> = waiting()?;
            let good = waiting.iter().find(|waiting| waiting["name"] == "good").context("the good one waits")?;
            let digits = good["code"].as_str().context("a code")?;
            eventually("it shows its digits", SOON, || Ok(one.log().contains(digits)))?;
            ensure!(!two.log().contains(digits), "both show the same digits");
            network.try_ask(&["approve", "12x"])?.refused(&["eight digits"])?;
            // Older programs show only these last six digits.
            network.try_ask(&["approve", &digits[2..]])?.refused(&["last six", "rustguard status"])?;
            let approved: Value = serde_json::from_str(&network.ask(&["approve", digits, "--json"])?)?;
            ensure!(approved["answer"] == "approved" && approved["name"] == "good", "who was approved: {approved}");
            ensure!(joined(&mut one)?.success(), "{}", one.log());
            ensure!(!Path::new("/etc/rustguard/rg2.conf").exists(), "admitted without approval");
            let _machine = network.up(lab, 1)?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}

/// Invites that are used, expired or revoked get no answer. Mistyped or invented ones are reported before anything is
/// sent.
#[test]
fn invites_that_do_not_work() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            network.machines[0].count("sent", "output", "udp dport 51820")?;
            let good = network.invite(&[])?;
            let mut mistyped = good.clone().into_bytes();
            let middle = mistyped.len() / 2;
            mistyped[middle] = if mistyped[middle] == b'a' { b'b' } else { b'a' };
            let mistyped = String::from_utf8(mistyped)?;
            for (token, word) in [
                (mistyped.as_str(), "mistyped"),
                (&good[..good.len() - 3], "paste it again"),
                ("rg1-", "damaged"),
                ("ABCD-EFG0", "mistyped"),
                ("x", "passphrase"),
                (" ", "empty"),
            ] {
                network.try_join(1, &["10.1.0.1", "--token", token])?.refused(&[word])?;
            }
            ensure!(network.machines[0].counted("sent")? == 0, "something was sent for a token that cannot be right");

            let (expiring, revoked) = (network.invite(&["--expires", "3s"])?, network.invite(&[])?);
            let list = network.ask(&["invite", "ls"])?;
            ensure!(list.matches("usable").count() == 4, "{list}");
            let json: Value = serde_json::from_str(&network.ask(&["invite", "ls", "--json"])?)?;
            let id = json[3]["id"].as_str().context("an id")?;
            network.ask(&["invite", "revoke", &id[..8]])?;
            network.try_ask(&["invite", "revoke", "zz"])?.refused(&["no invite zz"])?;
            eventually("it expires", SOON, || Ok(network.ask(&["invite", "ls"])?.contains("expired")))?;
            let mut machine = network.join(lab, 1, &["10.1.0.1", "--token", &good])?;
            machine.stop("TERM")?;
            // A new key, as if the first had been lost.
            fs::remove_file("/var/lib/rustguard/rg1/key")?;
            for (token, reason) in [(&good, "used-token"), (&expiring, "expired-token"), (&revoked, "revoked-token")] {
                let arguments = [&["10.1.0.1", "--token", token], &IMPATIENT[..]].concat();
                let ended = network.try_join(1, &arguments)?;
                ended.refused(&["4 s"])?;
                ensure!(ended.stderr.contains("does not answer"), "what may be wrong: {ended}");
                let audit = network.audit()?;
                ensure!(audit.iter().any(|line| line["reason"] == reason), "{reason} is not in {audit:?}");
            }
            served.stop()?;
            // The machine has retried several times: the server logs the counted refusals when it stops.
            let audit = network.audit()?;
            let told = audit.iter().filter(|line| line["reason"] == "revoked-token");
            let told: u64 = told.map(|line| line["count"].as_u64().unwrap_or(1)).sum();
            ensure!(told > 1, "one refusal of several is told: {audit:?}");
            Ok(())
        })
    });
}

/// The same machine with the same invite gets the same lease, because its key is the same.
#[test]
fn joining_again_gives_the_same_lease() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let token = network.invite(&[])?;
            let mut machine = network.join(lab, 1, &["10.1.0.1", "--token", &token])?;
            network.reaches_server(1)?;
            let before = network.addresses(1)?;
            machine.stop("TERM")?;
            fs::remove_file("/etc/rustguard/rg1.conf")?;
            let _machine = network.join(lab, 1, &["10.1.0.1", "--token", &token])?;
            network.reaches_server(1)?;
            ensure!(network.addresses(1)? == before, "another lease");
            ensure!(network.status()?["peers"].as_array().map(Vec::len) == Some(1), "one peer");
            network.audited("rejoined", 1)?;
            served.stop()
        })
    });
}

/// Only a member that joins its own network again may keep its tunnel up (`backup/adoption.rs`).
#[test]
fn a_tunnel_that_is_up_and_no_member_is_in_the_way() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--star"])?;
            let token = network.invite(&[])?;
            let _machine = network.join(lab, 1, &["10.1.0.1", "--token", &token])?;
            network.try_join(1, &["10.1.0.1", "--token", &token])?.refused(&["rg1 is up"])?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}

/// Two machines ask for the last address: one gets it, and both the other machine and the administrator are told.
#[test]
fn the_last_address() {
    scenario(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &["--pool", "10.99.0.0/30"])?;
            let tokens = [network.invite(&[])?, network.invite(&[])?];
            let mut joining = Vec::new();
            for (n, token) in (1..=2).zip(&tokens) {
                let server = format!("10.{n}.0.1");
                let mut command = network.join_command(n, &[&server, "--token", token, "--no-up"])?;
                joining.push(network.machines[usize::from(n) - 1].spawn(&format!("join{n}"), &mut command)?);
            }
            let ended = [joined(&mut joining[0])?, joined(&mut joining[1])?];
            let [winner, loser] = if ended[0].success() { [1, 2] } else { [2, 1] };
            ensure!(ended[winner - 1].success(), "{}", ended[winner - 1]);
            ended[loser - 1].refused(&["no free address"])?;
            let added = network.try_ask(&["peer", "add", "third", "--conf", "-"])?;
            added.refused(&["no address is left in 10.99.0.0/30"])?;
            let _machine = network.up(lab, u8::try_from(winner)?)?;
            network.machines[winner - 1].reaches("10.99.0.1", 10)?;
            served.stop()
        })
    });
}

/// If no address is left, the machine is told so, and the administrator is told the remedy. The address of a removed
/// machine goes to the next one, with the invite that failed before.
#[test]
fn no_address_is_left() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--pool", "10.99.0.0/30", "--endpoint", "10.1.0.1"])?;
            let _first = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let address = network.addresses(1)?;
            let token = network.invite(&[])?;
            let arguments = ["10.2.0.1", "--token", &*token];
            network.try_join(2, &arguments)?.refused(&["no free address", "enlarge the pool", "remove peers"])?;
            ensure!(!Path::new("/etc/rustguard/rg2.conf").exists(), "a file without an address");
            let log = served_log(lab)?;
            ensure!(log.contains("pool exhausted: remove peers (`rustguard peer rm`)"), "{log}");
            let status = unfolded(&network.ask(&["status"])?);
            ensure!(status.contains("1 of 1 leased") && status.contains("full: remove peers"), "{status}");
            ensure!(network.audited("refused", 1)?["reason"] == "pool-exhausted", "{:?}", network.audit()?);
            network.ask(&["peer", "rm", &address[0]])?;
            let _second = network.join(lab, 2, &arguments)?;
            network.reaches_server(2)?;
            ensure!(network.addresses(2)? == address, "{:?}", network.addresses(2)?);
            served.stop()
        })
    });
}

/// A machine that starts to join before the server runs waits for it.
#[test]
fn the_server_comes_later() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let token = network.invite(&[])?;
            served.stop()?;
            let mut command = network.join_command(1, &["10.1.0.1", "--token", &token, "--no-up"])?;
            let mut joining = network.machines[0].spawn("joining", &mut command)?;
            let waits = |joining: &mut rustguard_tests::Process| Ok(joining.log().contains("does not answer"));
            eventually("it says that nobody answers", SOON, || waits(&mut joining))?;
            let served = network.serve(lab, &[])?;
            ensure!(joined(&mut joining)?.success(), "{}", joining.log());
            let _machine = network.up(lab, 1)?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}

/// A configuration that the user wrote is not overwritten.
#[test]
fn a_configuration_of_the_users_own_stays() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let token = network.invite(&[])?;
            for folder in ["/etc/wireguard", "/etc/rustguard"] {
                fs::create_dir_all(folder)?;
                let path = format!("{folder}/rg1.conf");
                fs::write(&path, "[Interface]\n")?;
                network.try_join(1, &["10.1.0.1", "--token", &token])?.refused(&[&path])?;
                ensure!(fs::read_to_string(&path)? == "[Interface]\n", "written over");
                fs::remove_file(&path)?;
            }
            ensure!(network.status()?["peers"].as_array().is_some_and(Vec::is_empty), "a lease for nothing");
            served.stop()
        })
    });
}

/// Ctrl-C while waiting: a message, status 1, and no files left.
#[test]
fn interrupted_while_joining() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &[])?;
            let token = network.invite(&[])?;
            served.stop()?;
            let before = network.machines[0].traces()?;
            let mut command = network.join_command(1, &["10.1.0.1", "--token", &token])?;
            let mut joining = network.machines[0].spawn("joining", &mut command)?;
            eventually("it waits", SOON, || Ok(joining.log().contains("does not answer")))?;
            joining.stop("INT")?.refused(&["SIGINT"])?;
            ensure!(before == network.machines[0].traces()?, "something was left");
            Ok(())
        })
    });
}

/// The settings that the server of a star announces reach the configuration of a joining machine. `--defaults` resets
/// them.
#[test]
fn what_joined_machines_are_told() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let mut options = vec!["--star=on", "--route", "192.168.50.0/24", "--lease", "30d"];
            options.extend(["--dns", "10.150.0.1", "--search", "lab.example"]);
            let served = network.serve(lab, &options)?;
            let token = network.invite(&["--tag", "ci"])?;
            let ended = network.try_join(1, &["10.1.0.1", "--token", &token, "--name", "box", "--accept-dns"])?;
            ensure!(ended.success(), "{ended}");
            let conf = fs::read_to_string("/etc/rustguard/rg1.conf")?;
            ensure!(conf.contains("DNS = 10.150.0.1, lab.example") && conf.contains("192.168.50.0/24"), "{conf}");
            let peer = &network.status()?["peers"][0];
            ensure!(peer["name"] == "box" && peer["tags"][0] == "ci" && peer["expires"].is_u64(), "{peer}");
            served.stop()?;
            let served = network.serve(lab, &["--defaults"])?;
            let added = network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            ensure!(!added.contains("DNS") && !added.contains("192.168.50"), "{added}");
            served.stop()
        })
    });
}

/// A machine does not follow the server of a star in everything: default routes and DNS need consent, and a route that
/// covers the server's address or a network of the machine is left out.
#[test]
fn what_a_server_may_not_change() {
    scenario(|lab| {
        network(lab, 1, |network| {
            network.machines[0].sh("ip addr add 192.168.50.7/24 dev uplink")?;
            let routes = ["10.1.0.0/24", "0.0.0.0/0", "::/0", "192.168.0.0/16", "192.168.60.0/24"];
            let mut options = vec!["--star=on", "--pool", "10.150.0.0/24", "--pool", "fd15::/64"];
            options.extend(["--dns", "10.150.0.1", "--search", "lab.example"]);
            routes.iter().for_each(|route| options.extend(["--route", route]));
            let served = network.serve(lab, &options)?;
            let token = network.invite(&[])?;
            let conf = || Ok::<_, anyhow::Error>(fs::read_to_string("/etc/rustguard/rg1.conf")?);
            let routes = || {
                let conf = conf()?;
                let line = conf.lines().find_map(|line| line.strip_prefix("AllowedIPs = ")).context("allowed IPs")?;
                Ok::<_, anyhow::Error>(line.split(", ").skip(2).collect::<Vec<_>>().join(" "))
            };
            let said = |ended: &rustguard_tests::Ended, words: &[&str]| {
                ensure!(ended.success(), "{ended}");
                for word in words {
                    ensure!(ended.stderr.contains(word), "{word} is not in {ended}");
                }
                Ok(())
            };
            // No terminal, so the user cannot be asked.
            let ended = network.try_join(1, &["10.1.0.1", "--token", &token])?;
            let left_out = [
                "route 10.1.0.0/24 is left out: the server itself is at 10.1.0.1",
                "route 0.0.0.0/0 is left out",
                "route ::/0 is left out",
                "--accept-default-route",
                "route 192.168.0.0/16 is left out: it overlaps 192.168.50.0/24",
                "--accept-route 192.168.0.0/16",
                "DNS (10.150.0.1, lab.example) is left out: --accept-dns",
            ];
            said(&ended, &left_out)?;
            ensure!(routes()? == "192.168.60.0/24", "{}", conf()?);
            ensure!(!conf()?.contains("DNS"), "{}", conf()?);
            let mut machine = network.up(lab, 1)?;
            network.reaches_server(1)?;
            machine.stop("TERM")?;

            // Everything that a user can consent to.
            let all = [
                "10.1.0.1",
                "--token",
                &token,
                "--accept-default-route",
                "--accept-dns",
                "--accept-route",
                "192.168.0.0/16",
                "--accept-route",
                "198.51.100.0/24",
            ];
            let ended = network.try_join(1, &all)?;
            said(&ended, &[left_out[0]])?;
            said(&ended, &["--accept-route 198.51.100.0/24 changes nothing"])?;
            ensure!(!ended.stderr.contains("--accept-route 192.168.0.0/16"), "{ended}");
            ensure!(routes()? == "0.0.0.0/0 ::/0 192.168.0.0/16 192.168.60.0/24", "{}", conf()?);
            ensure!(conf()?.contains("DNS = 10.150.0.1, lab.example\n"), "{}", conf()?);

            // On a terminal, the user is asked: yes to the first question, no to the second.
            let command = network.join_command(1, &["10.1.0.1", "--token", &token, "--no-up"])?;
            let words: Vec<_> = command.get_args().skip(3).map(|word| word.to_string_lossy()).collect();
            let mut command = network.machines[0].command("script");
            command.args(["-qec", &format!("{} {}", words[0], words[1..].join(" ")), "/dev/null"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            child.stdin.take().context("a pipe")?.write_all(b"y\nn\n")?;
            let output = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success() && text.contains("Send all of this machine's traffic"), "{text}");
            ensure!(text.contains("Let the name servers"), "{text}");
            ensure!(routes()? == "0.0.0.0/0 ::/0 192.168.60.0/24" && !conf()?.contains("DNS"), "{}", conf()?);

            // The offered address is in one of the machine's own networks: consent is not possible.
            fs::remove_file("/etc/rustguard/rg1.conf")?;
            network.machines[0].sh("ip addr add 10.150.0.9/24 dev uplink")?;
            let ended = network.try_join(1, &["10.1.0.1", "--token", &token])?;
            ended.refused(&[
                "10.150.0.2",
                "10.150.0.0/24 is a network that it is connected to",
                "nothing was written",
            ])?;
            ensure!(!Path::new("/etc/rustguard/rg1.conf").exists(), "written all the same");
            served.stop()
        })
    });
}

/// A short passphrase is accepted, and the odds of guessing it are printed.
#[test]
fn a_short_passphrase_comes_with_its_odds() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs", "--open", "120"]).env("RUSTGUARD_TOKEN", "mysecret");
            let served = network.serve_by(lab, &mut command)?;
            let log = served_log(lab)?;
            ensure!(log.contains("fewer than 10 characters") && log.contains("one window of 2,000"), "{log}");
            ensure!(log.contains("If the passphrase is one of") && log.contains("Choose a longer passphrase"), "{log}");
            let _machine = network.join(lab, 1, &["10.1.0.1", "--token", "mysecret"])?;
            network.reaches_server(1)?;
            served.stop()
        })
    });
}
