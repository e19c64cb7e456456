//! The settings of `rustguard serve`, its pools, its invites, and the networks behind it.
use anyhow::{Context, ensure};
use rustguard_tests::{Conf, Up, files_in, network, scenario, served_log, unfolded};
use serde_json::Value;
use std::{collections::HashSet, fs, path::Path};

/// For a join that must fail without an answer: time for several tries.
const IMPATIENT: [&str; 2] = ["--timeout", "4"];
/// The server's folder.
const STATE: &str = "/var/lib/rustguard/rgs";

/// Refused: a second server, a damaged state, a pool that does not contain all leases, and nonsense on the command
/// line.
#[test]
fn what_a_server_refuses() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let run = |arguments: &[&str]| {
                network.server.end_of(network.server.rustguard()?.args(["serve", "-i", "rgs"]).args(arguments))
            };
            let served = network.serve(lab, &["--pool", "10.60.0.0/24"])?;
            run(&[])?.refused(&["rgs is up already"])?;
            let _one =
                network.join(lab, 1, &["10.1.0.1", "--token", &network.invite(&["--address", "10.60.0.200"])?])?;
            ensure!(network.addresses(1)? == ["10.60.0.200"], "the address of the invite");
            served.stop()?;
            let ended = run(&["--pool", "10.60.0.0/25"])?;
            ended.refused(&["10.60.0.200"])?;
            run(&["--pool", "10.60.0.0/24", "--pool", "10.61.0.0/24"])?.refused(&["at most one pool"])?;
            run(&["--pool", "10.60.0.1/32"])?.refused(&["no address besides"])?;
            run(&["--token", "rg1-whatever"])?.refused(&[])?;
            for arguments in
                [&["--pool", "10.60.0.0/33"][..], &["--port", "0"], &["--open", "901"], &["--lease", "soon"]]
            {
                run(arguments)?.is_misuse()?;
            }
            network.try_ask(&["status"])?.refused(&["nobody serves rgs"])?;
            // The state is unchanged.
            let served = network.serve(lab, &[])?;
            ensure!(network.status()?["peers"][0]["addresses"][0] == "10.60.0.200", "the lease is gone");
            served.stop()?;

            let journal =
                files_in(Path::new(STATE))?.into_iter().find(|path| path.display().to_string().contains("journal"));
            let journal = journal.context("a journal")?;
            let mut bytes = fs::read(&journal)?;
            let early = bytes.len() / 4;
            bytes[early] ^= 1;
            fs::write(&journal, &bytes)?;
            run(&[])?.refused(&[&journal.display().to_string(), "backup"])?;
            ensure!(fs::read(&journal)? == bytes, "a damaged file was touched");
            bytes[early] ^= 1;
            fs::write(&journal, &bytes)?;
            let nobody = Some(65_534);
            if std::os::unix::fs::chown(STATE, nobody, None).is_ok() {
                run(&[])?.refused(&["belongs to user 65534", &format!("chown -R 0 {STATE}\n")])?;
                std::os::unix::fs::chown(STATE, Some(0), None)?;
            } else {
                lab.skip("a state folder of another user: this user namespace has only one");
            }
            fs::write(format!("{STATE}/key"), "nonsense")?;
            run(&[])?.refused(&["damaged"])?;
            Ok(())
        })
    });
}

/// Settings are stored only after the server has started with them. Others leave the state folder unchanged, and the
/// next start without options uses the last working settings.
#[test]
fn settings_that_do_not_work_are_not_kept() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let run = |arguments: &[&str]| {
                network.server.end_of(network.server.rustguard()?.args(["serve", "-i", "rgs"]).args(arguments))
            };
            let bad: [(&[&str], &[&str]); 8] = [
                (&["--pool", "10.60.0.1/32"], &["no address besides"]),
                (&["--pool", "10.1.0.0/24"], &["overlaps", "--pool"]),
                (&["--route", "127.0.0.0/8"], &["127.0.0.0/8", "leave it out"]),
                (&["--endpoint", "https://vpn.example.org"], &["`https://`", "HOST:PORT"]),
                (&["--endpoint", "udp://192.0.2.1:51820"], &["`udp://`"]),
                (&["--endpoint", "vpn.example.org:99999"], &["`99999` is not a port"]),
                (&["--dns", "0.0.0.0"], &["0.0.0.0", "name server"]),
                (&["--dns", "10.60.0.1", "--search", "no domain"], &["\"no domain\"", "domain name"]),
            ];
            for (arguments, said) in bad {
                run(arguments)?.refused(said)?;
                ensure!(!Path::new(STATE).exists(), "{arguments:?} made a folder");
            }
            let served = network.serve(lab, &["--pool", "10.60.0.0/24", "--port", "4500", "--endpoint", "vpn.lab"])?;
            served.stop()?;
            let kept = |name: &str| fs::read(format!("{STATE}/{name}"));
            let (settings, key) = (kept("settings.json")?, kept("key")?);
            for (arguments, said) in bad {
                run(arguments)?.refused(said)?;
                ensure!(kept("settings.json")? == settings, "{arguments:?} were kept");
            }
            // The settings are valid, but the tunnel cannot start with them.
            let mut other = Conf::new("other")?;
            other.listen_port = Some(4600);
            let _other = Up::start(lab, &network.server, &other)?;
            run(&["--port", "4600", "--pool", "10.61.0.0/24"])?.refused(&["4600"])?;
            ensure!(kept("settings.json")? == settings && kept("key")? == key, "settings that did not start were kept");
            let served = network.serve(lab, &[])?;
            let status = network.status()?;
            ensure!(status["port"] == 4500 && status["endpoint"] == "vpn.lab:4500", "{status}");
            ensure!(status["pools"][0]["prefix"] == "10.60.0.0/24", "{status}");
            served.stop()
        })
    });
}

/// Machines elsewhere cannot use a private address of the server: the server warns wherever it gives out such an
/// address.
#[test]
fn a_private_endpoint_is_pointed_out() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let outside = "machines outside this network cannot reach it";
            let served = network.serve(lab, &["--route", "10.1.0.0/24"])?;
            let log = served_log(lab)?;
            ensure!(log.contains("10.1.0.1:51820") && log.contains(outside) && log.contains("--endpoint"), "{log}");
            ensure!(log.contains("leave out the route 10.1.0.0/24"), "{log}");
            ensure!(unfolded(&network.ask(&["status"])?).contains(outside), "status says nothing");
            let invite = network.try_ask(&["invite", "new", "--uses", "2"])?;
            ensure!(invite.success() && invite.stderr.contains(outside), "{invite}");
            ensure!(invite.stdout.lines().count() == 1, "the command alone is for scripts: {invite}");
            let peer = network.try_ask(&["peer", "add", "a", "--conf", "-", "--endpoint", "192.168.1.5"])?;
            ensure!(peer.success() && peer.stderr.contains(outside), "{peer}");
            ensure!(peer.stdout.contains("Endpoint = 192.168.1.5:51820"), "{peer}");
            for public in ["203.0.113.1:7", "vpn.lab"] {
                let invite = network.try_ask(&["invite", "new", "--another", "--endpoint", public])?;
                ensure!(invite.success() && !invite.stderr.contains(outside), "{public}: {invite}");
            }
            // An invalid endpoint adds no peer and makes no invite.
            for command in [&["invite", "new", "--uses", "4"][..], &["peer", "add", "b", "--conf", "-"]] {
                network.try_ask(&[command, &["--endpoint", "https://vpn.lab"]].concat())?.refused(&["`https://`"])?;
            }
            let peers = network.ask(&["peer", "ls"])?;
            let is_listed = |name: &str| peers.lines().any(|line| line.starts_with(name));
            ensure!(is_listed("a ") && !is_listed("b "), "a peer without a configuration was added: {peers}");
            served.stop()?;
            let served = network.serve(lab, &["--endpoint", "vpn.lab"])?;
            ensure!(!served_log(lab)?.contains(outside), "a name has another address elsewhere");
            served.stop()
        })
    });
}

/// Without --pool, the IPv4 pool is random, overlaps no network of the host, is printed, and stays the same.
#[test]
fn the_pool_is_random_and_stays() {
    scenario(|lab| {
        network(lab, 1, |network| {
            // Most of 10.0.0.0/8 is behind a router, and the pool must come from the rest.
            network.server.sh("ip route add 10.0.0.0/9 via 10.1.0.2; ip route add 10.192.0.0/10 via 10.1.0.2")?;
            let pool = || {
                Ok::<_, anyhow::Error>(network.status()?["pools"][0]["prefix"].as_str().unwrap_or_default().to_owned())
            };
            let mut pools = HashSet::new();
            for _ in 0..3 {
                let served = network.serve(lab, &[])?;
                let first = pool()?;
                let second_octet: u8 = first.split('.').nth(1).context("an octet")?.parse()?;
                ensure!(first.starts_with("10.") && (128..192).contains(&second_octet), "{first}");
                ensure!(
                    served_log(lab)?.contains(&format!("Machines get addresses from {first} and fd")),
                    "not printed"
                );
                served.stop()?;
                let served = network.serve(lab, &[])?;
                ensure!(pool()? == first, "another pool after a restart: {}", pool()?);
                served.stop()?;
                fs::remove_dir_all(STATE)?;
                pools.insert(first);
            }
            ensure!(pools.len() > 1, "three times the same: {pools:?}");
            Ok(())
        })
    });
}

/// One unused invite at a time: another start makes none, and a second equal invite needs an option.
#[test]
fn one_unused_invite_at_a_time() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let usable = || Ok::<_, anyhow::Error>(network.status()?["usable_invites"].as_u64());
            let new = |arguments: &[&str]| network.try_ask(&[&["invite", "new"], arguments].concat());
            let served = network.serve(lab, &[])?;
            let first = served.join.clone();
            served.stop()?;
            let served = network.serve(lab, &[])?;
            ensure!(served.join.is_empty(), "another invite: {:?}", served.join);
            let log = served_log(lab)?;
            ensure!(log.contains("has not been used yet"), "{log}");
            ensure!(log.contains("`rustguard invite new --replace --interface rgs`"), "{log}");
            ensure!(usable()? == Some(1), "{:?}", usable()?);
            new(&[])?.refused(&["has not been used yet", "--replace", "--another", "invite revoke"])?;
            new(&["--json"])?.refused(&["has not been used yet"])?;
            // An invite with another tag counts as different.
            ensure!(new(&["--tag", "ci"])?.success() && usable()? == Some(2), "by another tag");
            new(&["--tag", "ci"])?.refused(&["has not been used yet"])?;
            ensure!(new(&["--another"])?.success() && usable()? == Some(3), "asked for");
            // The token may be lost: `--replace` revokes equal invites.
            let replaced = new(&["--replace"])?;
            ensure!(replaced.success() && usable()? == Some(2), "{replaced}");
            let lost = [&first[1..], &IMPATIENT.map(str::to_owned)[..]].concat();
            let lost: Vec<_> = lost.iter().map(String::as_str).collect();
            network.try_join(1, &lost)?.refused(&["revoked"])?;
            // A used invite does not count.
            let line: Vec<_> = replaced.stdout.split_whitespace().skip(2).collect();
            let joined = network.try_join(1, &line)?;
            ensure!(joined.success(), "{joined}");
            ensure!(new(&[])?.success() && usable()? == Some(2), "after the first was used");
            // Output for scripts.
            let ten = network.ask(&["invite", "new", "--count", "10"])?;
            let tokens: HashSet<_> = ten.lines().filter_map(|line| line.split_whitespace().last()).collect();
            ensure!(tokens.len() == 10 && usable()? == Some(12), "{ten}");
            let three: Value = serde_json::from_str(&network.ask(&["invite", "new", "--count", "3", "--json"])?)?;
            ensure!(three.as_array().is_some_and(|three| three.len() == 3 && three[2]["token"].is_string()), "{three}");
            served.stop()
        })
    });
}

/// A full pool is reported with a remedy; the address of a removed machine is available at once.
#[test]
fn addresses_of_removed_machines_are_given_again_when_the_pool_is_full() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--pool", "10.60.0.0/29"])?;
            let add = |name: &str| network.try_ask(&["peer", "add", name, "--conf", "-"]);
            for name in ["a", "b", "c", "d", "e"] {
                ensure!(add(name)?.success(), "{name}");
            }
            add("f")?.refused(&["no address is left in 10.60.0.0/29", "peer rm", "--pool", "--lease"])?;
            let status = unfolded(&network.ask(&["status"])?);
            ensure!(status.contains("5 of 5 leased") && status.contains("full"), "{status}");
            network.ask(&["peer", "rm", "d"])?;
            network.ask(&["peer", "rm", "b"])?;
            // The order of the two depends on the second in which they were removed.
            let mut again = HashSet::new();
            for name in ["f", "g"] {
                let added = add(name)?;
                let address = added.stdout.lines().find_map(|line| line.strip_prefix("Address = "));
                again.insert(address.with_context(|| format!("{name}: {added}"))?.split('/').next().map(str::to_owned));
            }
            ensure!(again == ["10.60.0.3", "10.60.0.5"].map(|address| Some(address.to_owned())).into(), "{again:?}");
            add("h")?.refused(&["no address is left"])?;
            // A larger pool that contains it keeps all leases.
            served.stop()?;
            let served = network.serve(lab, &["--pool", "10.60.0.0/24"])?;
            let added = add("h")?;
            ensure!(added.success() && added.stdout.contains("Address = 10.60.0.7/"), "{added}");
            served.stop()
        })
    });
}

/// A network behind the server whose hosts have no route back: joined machines reach it with --nat only. The set-up for
/// it is undone at the end, or after a crash at the next start; earlier state stays.
#[test]
fn a_network_behind_the_server() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let (server, machine, behind) = (&network.server, &network.machines[0], lab.node("behind")?);
            lab.link((server, "lan"), (&behind, "eth0"))?;
            server.sh("ip addr add 192.168.50.1/24 dev lan; ip addr add fd50::1/64 dev lan nodad")?;
            behind.sh("ip addr add 192.168.50.7/24 dev eth0; ip addr add fd50::7/64 dev eth0 nodad")?;
            let state = || {
                server.sh(
                    "sysctl -a 2> /dev/null | grep -E 'net.ipv[46].(ip_forward|conf.(all|lan|to1).(forwarding|accept_ra)) '
                     nft list ruleset; ls /run/rustguard | grep -v '^rg1' || true",
                )
            };
            let before = state()?;
            ensure!(before.contains("net.ipv4.ip_forward = 0") && before.contains("lan.accept_ra = 1"), "{before}");

            let served = network.serve(
                lab,
                &[
                    "--pool",
                    "10.60.0.0/24",
                    "--pool",
                    "fd60::/64",
                    "--route",
                    "192.168.50.0/24",
                    "--route",
                    "fd50::/64",
                ],
            )?;
            let log = served_log(lab)?;
            for word in ["forwards no IPv4 packets", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "--nat"]
            {
                ensure!(log.contains(word), "{word}: {log}");
            }
            let status = unfolded(&network.ask(&["status"])?);
            ensure!(status.contains("problem: this host forwards no IPv4 packets"), "{status}");
            ensure!(status.contains("have a route to 10.60.0.0/24"), "{status}");
            let _machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            machine.does_not_reach("192.168.50.7")?;
            // With forwarding only, the answers do not return.
            server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            machine.does_not_reach("192.168.50.7")?;
            server.sh("sysctl -qw net.ipv4.ip_forward=0")?;
            served.stop()?;
            ensure!(state()? == before, "without --nat something was changed: {}", state()?);

            let served = network.serve(lab, &["--nat"])?;
            for address in ["192.168.50.7", "fd50::7"] {
                machine.reaches(address, 30)?;
            }
            let during = state()?;
            ensure!(during.contains("ip_forward = 1") && during.contains("lan.accept_ra = 2"), "{during}");
            let status = unfolded(&network.ask(&["status"])?);
            ensure!(
                !status.contains("problem") && !status.contains("note:") && status.contains("with an address of"),
                "{status}"
            );
            // Docker's rules drop forwarded packets, and an accept rule in another table would not change that.
            server.sh("nft add table ip filter; nft add chain ip filter DOCKER-USER
                 nft add chain ip filter FORWARD '{ type filter hook forward priority 0; policy drop; }'")?;
            let status = unfolded(&network.ask(&["status"])?);
            ensure!(status.contains("iptables -I DOCKER-USER -i rgs -j ACCEPT"), "{status}");
            server.sh("nft delete table ip filter")?;
            served.stop()?;
            ensure!(state()? == before, "left behind: {}", state()?);

            // --nat is stored, and the server now crashes.
            let served = network.serve(lab, &[])?;
            machine.reaches("192.168.50.7", 30)?;
            served.crash()?;
            ensure!(state()?.contains("ip_forward = 1"), "a crash cannot clean up: {}", state()?);
            let served = network.serve(lab, &["--nat=off"])?;
            let after = state()?;
            ensure!(after.contains("ip_forward = 0") && after.contains("lan.accept_ra = 1"), "{after}");
            ensure!(!after.contains("masquerade"), "{after}");
            machine.reaches("10.60.0.1", 30)?;
            machine.does_not_reach("192.168.50.7")?;
            served.stop()?;
            ensure!(state()? == before, "left behind after a crash: {}", state()?);

            // Forwarding that was already on stays on.
            server.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            let before = state()?;
            let served = network.serve(lab, &["--nat"])?;
            machine.reaches("192.168.50.7", 30)?;
            served.stop()?;
            ensure!(state()? == before, "forwarding that was on: {}", state()?);
            Ok(())
        })
    });
}
