//! Members, servers and relays of a network that lie, clocks that are wrong, disks that are full, and kills. Each
//! victim is a real process; the test itself is the attacker.
use anyhow::{Context as _, Result, ensure};
use rustguard_device::crypto::{hash::hash, x25519::PublicKey};
use rustguard_network::roster::{
    key::NetworkSecret,
    member::{Member, Role},
    roster::{MAX_MEMBERS, Roster},
};
use rustguard_tests::{
    HostilePeer, Issuer, Lab, Members, Tunnel, eventually, members, network_of, scenario_of_rustguard,
    spawn_until_ready,
};
use serde_json::Value;
use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

const SOON: Duration = Duration::from_secs(20);
const DAY: u64 = 86_400;
/// The part number of a roster's head.
const HEAD: u16 = 65_535;

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("membership", body);
}

/// A text of the roster exchange: its kind, the number and digest of the roster that it refers to, and the rest.
fn text(kind: u8, number: u64, digest: [u8; 8], rest: &[u8]) -> Vec<u8> {
    [&[7, b'R', b'G', 1, kind, 0, 0, 0], &number.to_le_bytes()[..], &digest, rest].concat()
}

/// A request for a part, from its beginning.
fn get(roster: &Roster, part: u16) -> Vec<u8> {
    let version = roster.version();
    text(2, version.number, version.digest, &[&part.to_le_bytes()[..], &[0; 6]].concat())
}

/// Members that do not exist, with addresses from 10.128.0.0 on.
fn strangers(count: usize) -> Result<Vec<Member>> {
    let one = |n: usize| {
        let address = IpAddr::from((0x0a80_0000 + n as u32).to_be_bytes());
        Ok(Member::new(PublicKey(hash(&[&n.to_le_bytes()])), format!("s{n}").parse()?).with_addresses([address]))
    };
    (1..=count).map(one).collect()
}

/// The lines that a log has without `RUSTGUARD_LOG=debug`.
fn told(tunnel: &mut Tunnel) -> Vec<String> {
    let log = tunnel.process().log();
    log.lines().filter(|line| !line.contains("DEBUG")).map(str::to_owned).collect()
}

/// Machine `n`, controlled by the attacker: it has the machine's keys, and a session with machine `with` at its port.
fn hostile(network: &Members<'_>, n: usize, with: usize) -> Result<(HostilePeer, rustguard_core::node::PeerId)> {
    let [own, other] = [n, with].map(|n| &network.joined[n - 1]);
    let port = network.node(with).run(&["wg", "show", &format!("rg{with}"), "listen-port"])?.trim().parse()?;
    let mut peer = HostilePeer::new(network.node(n).udp(("0.0.0.0", 0))?, &own.keys.private)?;
    let at = SocketAddr::from(([10, with as u8, 0, 2], port));
    let id = peer.add_with(&other.keys.public, Some(at), Some(&Issuer::key_of_pair(own, other)?))?;
    peer.connect(id)?;
    Ok((peer, id))
}

/// The routes into the tunnel of machine `n`.
fn routes(network: &Members<'_>, n: usize) -> Result<Vec<String>> {
    let interface = format!("rg{n}");
    let shown =
        network.node(n).sh(&format!("ip -4 route show table all dev {interface}; ip -6 route show dev {interface}"))?;
    let lines = shown.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
    Ok(lines.filter(|line| !line.starts_with("local") && !line.starts_with("fe80")).collect())
}

/// Two members announce newer rosters: one forges them, the other sends an old one under new numbers. The others trust
/// only the network's key.
#[test]
fn members_forge_and_replay_rosters() {
    ours(|lab| {
        members(lab, 4, |network| {
            let (issuer, all) = network.issued()?;
            let mut one = network.up(lab, 1, &[])?;
            let _two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            let forged = {
                let members = all.iter().cloned().map(Arc::new);
                Roster::issue(&NetworkSecret::from_bytes(&[8; 32]), 1_000, 0, Issuer::settings()?, members)?
            };
            let old = Issuer::unissued(0, all.clone())?;
            let before = told(&mut one).len();
            for (n, what, roster) in [(3, "forged", &forged), (4, "old", &old)] {
                let (mut liar, victim) = hostile(network, n, 1)?;
                let (mut questions, digest) = (0, roster.version().digest);
                for number in 1_000..1_100 {
                    liar.send(victim, &text(1, number, digest, &[]))?;
                    while let Some((_, heard)) = liar.receive(Duration::from_millis(5))? {
                        if heard.starts_with(&[7, b'R', b'G', 1, 2]) {
                            // The head follows its length, and is the first part of the file.
                            let file = roster.to_bytes();
                            let head = &file[8..8 + u32::from_le_bytes(file[4..8].try_into()?) as usize];
                            let part = [&heard[24..32], &(head.len() as u32).to_le_bytes(), head].concat();
                            liar.send(victim, &text(3, number, digest, &part))?;
                            questions += 1;
                        }
                    }
                }
                println!("{what}: 100 lies, {questions} questions, {:?}", liar.traffic(victim));
                ensure!(questions > 0, "nobody has asked for the {what} one");
            }
            let lines = told(&mut one).len() - before;
            // The lines report handshakes and paths of the two, and nothing about their lies.
            ensure!(lines <= 8, "{lines} lines in the log: {}", one.process().log());
            network_of(network.node(1), "rg1", 1)?;
            // A genuine newer roster is still accepted.
            let mut members = all;
            members[2] = members[2].clone().with_name("desk".parse()?);
            issuer.issue(2, Issuer::settings()?, members)?;
            network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == "desk"))?;
            network.node(1).reaches("10.150.0.12", 3)
        })
    });
}

/// A removed member continues as before: it keeps its sessions, sends, and starts handshakes.
#[test]
fn a_removed_member_tries_on() {
    ours(|lab| {
        members(lab, 3, |network| {
            let (issuer, all) = network.issued()?;
            let mut one = network.up(lab, 1, &[])?;
            let _two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            network.until_shown(1, 3, "the third is a peer", |peer| peer.is_some())?;
            let node = network.node(1);
            node.count("delivered", "input", "iifname rg1 ip saddr 10.150.0.13")?;
            node.count("answered", "output", "oifname uplink ip daddr 10.3.0.2")?;
            let (mut removed, victim) = hostile(network, 3, 1)?;
            let mut packet =
                [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0][..], &[10, 150, 0, 13, 10, 150, 0, 11]].concat();
            let sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
            packet[10..12].copy_from_slice(&(!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes());
            packet.extend_from_slice(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
            eventually("its packets are delivered", SOON, || {
                removed.send(victim, &packet)?;
                removed.receive(Duration::from_millis(20))?;
                Ok(node.counted("delivered")? > 0)
            })?;
            issuer.issue(2, Issuer::settings()?, vec![all[0].clone(), all[1].clone(), all[2].clone()])?;
            network.until_shown(1, 3, "the third is no peer", |peer| peer.is_none())?;
            let before = (node.counted("delivered")?, node.counted("answered")?);
            let lines = told(&mut one).len();
            for n in 0..300_u64 {
                removed.send(victim, &packet)?;
                removed.send(victim, &text(1, 1_000 + n, [1; 8], &[]))?;
                // Handshakes of its own, with the pair key.
                let own = &network.joined[2];
                if n % 50 == 0 {
                    let (key, other) = (Issuer::key_of_pair(own, &network.joined[0])?, &network.joined[0].keys.public);
                    let port = node.run(&["wg", "show", "rg1", "listen-port"])?.trim().parse()?;
                    let mut again = HostilePeer::new(network.node(3).udp(("0.0.0.0", 0))?, &own.keys.private)?;
                    let id = again.add_with(other, Some(SocketAddr::from(([10, 1, 0, 2], port))), Some(&key))?;
                    again.call(id)?;
                    while again.receive(Duration::from_millis(50))?.is_some() {}
                    ensure!(!again.is_connected(id), "a session with a removed member");
                }
            }
            network.node(1).reaches("10.150.0.12", 3)?;
            let after = (node.counted("delivered")?, node.counted("answered")?);
            ensure!(after == before, "delivered to or answered by a member: {before:?}, {after:?}");
            let lines = told(&mut one).len() - lines;
            ensure!(lines <= 3, "{lines} lines: {}", one.process().log());
            Ok(())
        })
    });
}

/// The network's key is stolen: a roster's settings beyond the file's limits are not applied, logged once, and shown in
/// `status`.
#[test]
fn a_hostile_server_takes_nothing_that_the_file_does_not_give() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, all) = network.issued()?;
            let node = network.node(1);
            let mut one = network.up(lab, 1, &["Accept = routes", "PostUp = true"])?;
            let _two = network.up(lab, 2, &[])?;
            node.reaches("10.150.0.12", 1)?;
            let (before, dns) = (routes(network, 1)?, fs::read_to_string("/etc/resolv.conf")?);
            let default = node.run(&["ip", "route", "show", "default"])?;
            let mut settings = Issuer::settings()?;
            for pool in ["8.8.8.0/24", "0.0.0.0/0", "10.1.0.0/24", "169.254.0.0/16", "2001:db8::/32"] {
                settings.pools.push(pool.parse()?);
            }
            settings.mtu = Some(600);
            settings.name_servers = vec!["10.150.0.1".parse()?, "8.8.8.8".parse()?];
            let mut hostile = all;
            let prefixes =
                ["0.0.0.0/1", "128.0.0.0/1", "1.1.1.0/24", "10.1.0.0/16", "127.0.0.0/8", "169.254.169.254/32"];
            hostile[0] = hostile[0].clone().with_prefixes(prefixes.map(|prefix| prefix.parse().expect("a prefix")));
            let stranger = strangers(3)?;
            for (member, (name, address)) in
                stranger.into_iter().zip([("wpad", "9.9.9.9"), ("isatap", "10.1.0.1"), ("localhost", "127.0.0.1")])
            {
                hostile.push(member.with_name(name.parse()?).with_addresses([address.parse()?]));
            }
            issuer.issue(2, settings.clone(), hostile.clone())?;
            let said = network_of(node, "rg1", 2)?;
            ensure!(routes(network, 1)? == before, "{before:?} before, {:?} after", routes(network, 1)?);
            ensure!(node.run(&["ip", "route", "show", "default"])? == default, "the default route");
            ensure!(fs::read_to_string("/etc/resolv.conf")? == dns, "the name servers");
            ensure!(node.run(&["ip", "link", "show", "rg1"])?.contains("mtu 1360"), "the MTU");
            let allowed = node.run(&["wg", "show", "rg1", "allowed-ips"])?;
            let refused = said["refused"].to_string();
            for word in [
                "8.8.8.0/24",
                "0.0.0.0/0",
                "10.1.0.0/24",
                "169.254.0.0/16",
                "2001:db8::/32",
                "0.0.0.0/1",
                "128.0.0.0/1",
                "1.1.1.0/24",
                "10.1.0.0/16",
                "127.0.0.0/8",
                "169.254.169.254/32",
                "9.9.9.9/32",
                "10.1.0.1/32",
                "127.0.0.1/32",
            ] {
                ensure!(!allowed.split_whitespace().any(|net| net == word), "{word} goes to a peer: {allowed}");
                ensure!(refused.contains(word), "{word} is not told: {refused}");
            }
            for word in ["MTU 600", "every name"] {
                ensure!(refused.contains(word), "{word} is not told: {refused}");
            }
            node.name_servers(&["10.150.0.11"])?;
            let domain = settings.name.to_string();
            for name in ["wpad", "isatap", "localhost"] {
                ensure!(node.resolved(&format!("{name}.{domain}.internal"))?.is_empty(), "{name} is somebody's");
            }
            // The same refusals are not logged again.
            let lines = told(&mut one).len();
            for number in 3..10 {
                issuer.issue(number, settings.clone(), hostile.clone())?;
            }
            network_of(node, "rg1", 9)?;
            let more = told(&mut one).len() - lines;
            ensure!(more <= 2, "{more} more lines: {}", one.process().log());
            node.reaches("10.150.0.12", 3)
        })
    });
}

/// The maximum number of members, and more prefixes than a machine accepts: routes, log lines and bytes stay limited.
#[test]
fn a_huge_roster_costs_a_bounded_amount() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, mut all) = network.issued()?;
            let node = network.node(1);
            let mut one = network.up(lab, 1, &["Accept = routes"])?;
            let _two = network.up(lab, 2, &[])?;
            node.reaches("10.150.0.12", 1)?;
            let (before, began) = (one.process().cost()?, Instant::now());
            let lines = told(&mut one).len();
            let few = all.clone();
            // 12,800 prefixes.
            for (n, member) in strangers(200)?.into_iter().enumerate() {
                let prefix = |m: usize| format!("10.{}.{m}.0/24", 20 + n % 100 + m / 256).parse();
                let prefixes = (n / 100 * 64..).take(64).map(prefix).collect::<Result<Vec<_>, _>>()?;
                all.push(member.with_prefixes(prefixes));
            }
            // The others are clients without keys, because this test is about the roster.
            let server = all[0].public_key;
            let many = strangers(MAX_MEMBERS - 2 - 1)?.split_off(200);
            all.extend(many.into_iter().map(|member| member.with_role(Role::Client(server))));
            println!("{} members", all.len());
            issuer.issue(2, Issuer::settings()?, all.clone())?;
            let mut said = Value::Null;
            eventually("the roster is followed", Duration::from_secs(120), || {
                let status = node.end_of(node.rustguard()?.args(["status", "rg1", "--json"]))?;
                // On a busy machine, a member that takes over 16,384 others answers late, and `status` gives up before.
                if !status.success() {
                    return Ok(false);
                }
                said = serde_json::from_str::<Value>(&status.stdout)?["network"].take();
                Ok(said["number"] == 2 && said["without_key"] == 0)
            })?;
            let after = one.process().cost()?;
            let on_disk = fs::metadata("/var/lib/rustguard/rg1/roster")?.len();
            println!(
                "{:?}: {} kB of memory instead of {}, {:.1} s of a processor (debug build), {on_disk} bytes on disk",
                began.elapsed(),
                after.0,
                before.0,
                (after.1 - before.1) as f64 / 100.0
            );
            ensure!(after.0 < before.0 + 200_000, "{} kB", after.0);
            ensure!(on_disk < 16 << 20, "{on_disk} bytes on disk");
            let routes = routes(network, 1)?.len();
            ensure!(routes <= 4_096 + 10, "{routes} routes");
            ensure!(said["refused"].to_string().contains("at most 4096"), "{}", said["refused"]);
            let lines = told(&mut one).len() - lines;
            ensure!(lines < 100, "{lines} lines for one roster");
            node.reaches("10.150.0.12", 5)?;
            // After the next roster, all of it is removed.
            issuer.issue(3, Issuer::settings()?, few)?;
            eventually("nothing of it is left", Duration::from_secs(120), || Ok(self::routes(network, 1)?.len() < 10))?;
            node.reaches("10.150.0.12", 5)
        })
    });
}

/// A member uses a false source address to direct the server's answers to a victim.
#[test]
fn a_false_source_draws_little() {
    ours(|lab| {
        members(lab, 3, |network| {
            let issuer = network.start()?;
            let mut all = network.roster(&issuer)?;
            all.extend(strangers(1_000)?);
            let roster = Issuer::unissued(1, all.clone())?;
            issuer.issue_at(0, 1, Issuer::settings()?, all)?;
            let own = &network.joined[2];
            let node = network.node(3);
            node.sh("ip addr add 10.3.0.99/24 dev uplink")?;
            node.count("drawn", "input", "iifname uplink ip daddr 10.3.0.99 udp sport 51820")?;
            let mut spoofer = HostilePeer::new(node.udp(("10.3.0.2", 0))?, &own.keys.private)?;
            let server =
                spoofer.add_with(&network.server.public, Some("10.3.0.1:51820".parse()?), Some(&own.preshared_key))?;
            spoofer.connect(server)?;
            // At its own address, the member gets what it requests.
            eventually("an answer", SOON, || {
                spoofer.send(server, &get(&roster, HEAD))?;
                Ok(spoofer.receive(Duration::from_millis(100))?.is_some_and(|(_, text)| text.len() > 1_000))
            })?;
            let (elsewhere, began) = (node.udp(("10.3.0.99", 0))?, Instant::now());
            let mut sent = 0;
            for n in 0..20_000_u16 {
                let request = get(&roster, if n % 2 == 0 { HEAD } else { n % 64 });
                spoofer.send_by(&elsewhere, server, &request)?;
                sent += request.len() + 32 + 28;
                if n % 100 == 0 {
                    std::thread::yield_now();
                }
            }
            // Waits until the server has answered everything.
            let mut last = u64::MAX;
            eventually("the answers end", SOON, || {
                let drawn = node.counted_bytes("drawn")?;
                Ok(std::mem::replace(&mut last, drawn) == drawn)
            })?;
            let seconds = began.elapsed().as_secs() + 1;
            println!("{sent} bytes in {seconds} s draw {last} bytes to somebody else");
            // The server may have answered its queue before it noticed the new address.
            ensure!(last < (4_100 + 128 + 50 * seconds) * 1_200, "{last} bytes in {seconds} s");
            ensure!(last < sent as u64 * 3, "{last} bytes for {sent}");
            Ok(())
        })
    });
}

/// A member does not need a correct clock. Wrong clocks are reported.
#[test]
fn clocks_that_are_a_day_off() {
    ours(|lab| {
        members(lab, 2, |network| {
            let issuer = network.start()?;
            let all = network.roster(&issuer)?;
            let now = SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
            lab.needs("faketime", "faketime")?;
            issuer.issue_at(now + DAY, 1, Issuer::settings()?, all.clone())?;
            let _one = network.up(lab, 1, &[])?;
            let two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            let status = |words: &str| {
                let mut page = String::new();
                let shown = eventually("the age of the roster", SOON, || {
                    page = network.node(1).end_of(network.node(1).rustguard()?.args(["status", "rg1"]))?.unfolded();
                    Ok(page.contains(words))
                });
                shown.with_context(|| format!("{words}: {page}"))
            };
            status("from now: the clock of the server or of this machine is wrong")?;
            // The number counts, not the time: a roster from a server whose clock was set back is accepted.
            let mut renamed = all.clone();
            renamed[2] = renamed[2].clone().with_name("desk".parse()?);
            issuer.issue_at(now - DAY, 2, Issuer::settings()?, renamed.clone())?;
            network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == "desk"))?;
            // A relay that withholds newer rosters, or a network without a server, would look the same.
            status("the roster was not renewed for 1 day: no server is reached, or a relay withholds newer ones")?;
            issuer.issue_at(now, 3, Issuer::settings()?, all.clone())?;
            network_of(network.node(1), "rg1", 3)?;
            status("(roster 3, issued")?;
            // A machine whose clock is a day behind or ahead takes part. Its handshakes use timestamps of that clock.
            drop(two);
            let preload = network.node(2).run(&["faketime", "-f", "+1d", "printenv", "LD_PRELOAD"])?;
            for (number, clock) in [(4, "-1d"), (5, "+1d")] {
                let file = lab.file("rg2.conf", &network.conf(2, &[]).wg_quick())?;
                let mut command = network.node(2).rustguard()?;
                command.arg("up").arg(file).env("LD_PRELOAD", preload.trim()).env("FAKETIME", clock);
                command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                let mut two = spawn_until_ready(lab, network.node(2), "rg2", &mut command)?;
                issuer.issue_at(now, number, Issuer::settings()?, all.clone())?;
                network_of(network.node(2), "rg2", number)?;
                network.node(2).reaches("10.150.0.11", 30).with_context(|| format!("clock {clock}: {}", two.log()))?;
                two.stop("TERM")?;
            }
            // The clock that was ahead is corrected. Peers refuse this machine's handshakes for a day, so the other
            // side must begin one.
            let _two = network.up(lab, 2, &[])?;
            network.node(2).reaches("10.150.0.11", 30).context("the clock is right again")
        })
    });
}

/// A member's disk is full when it starts, while rosters arrive, and when it is killed. It continues, reports this
/// once, and loses nothing that was on disk.
#[test]
fn a_full_disk_of_a_member() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (all, filler) = (Path::new("/var/lib/rustguard"), Path::new("/var/lib/rustguard/full"));
            fs::create_dir_all(all)?;
            // Mounted in this process: a command on a node has its own mount namespace.
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=512k,mode=755", "tmpfs"]).arg(all);
            ensure!(mount.status()?.success(), "no tmpfs");
            let fill = || match fs::write(filler, vec![0; 1 << 20]) {
                Err(full) if full.kind() == ErrorKind::StorageFull => Ok(()),
                other => anyhow::bail!("the disk is not full: {other:?}"),
            };
            let (issuer, folder) = (network.start()?, Path::new("/var/lib/rustguard/rg1"));
            let members = network.roster(&issuer)?;
            let on_disk =
                || Ok::<_, anyhow::Error>(Roster::from_bytes(&fs::read(folder.join("roster"))?, &Issuer::network()));
            let number = |roster: Option<Roster>| roster.map(|roster| roster.version().number);
            issuer.issue(1, Issuer::settings()?, members.clone())?;
            fill()?;
            let mut one = network.up(lab, 1, &[])?;
            let two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 3)?;
            for number in 2..20 {
                issuer.issue(number, Issuer::settings()?, members.clone())?;
                network_of(network.node(1), "rg1", number)?;
            }
            let said = one.process().log();
            // Debug lines count the attempts; other lines report this once.
            let said_once =
                said.lines().filter(|line| line.contains("No space left") && !line.contains(" DEBUG ")).count() == 1;
            ensure!(said_once, "{said}");
            ensure!(!folder.join("roster").exists(), "a file on a full disk");
            fs::remove_file(filler)?;
            eventually("it is on disk", SOON, || Ok(folder.join("roster").exists() && number(on_disk()?) == Some(19)))?;
            eventually("that is said", SOON, || Ok(one.process().log().contains("on disk again")))?;
            eventually("the keys are", SOON, || Ok(fs::read(folder.join("pair-keys")).is_ok_and(|it| it.len() > 100)))?;
            // The disk is full again, and the member is killed: the stored files remain.
            fill()?;
            for number in 20..25 {
                issuer.issue(number, Issuer::settings()?, members.clone())?;
                network_of(network.node(1), "rg1", number)?;
            }
            one.crash()?;
            ensure!(number(on_disk()?) == Some(19), "the roster on disk is another one, or none");
            issuer.stop()?;
            let mut one = network.up(lab, 1, &[])?;
            network_of(network.node(1), "rg1", 19)?;
            ensure!(!one.process().log().contains("damaged"), "{}", one.process().log());
            let left: Vec<_> = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
            ensure!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
            drop(two);
            Ok(())
        })
    });
}

/// A member is killed repeatedly while it writes: each file is complete, and roster numbers never decrease.
#[test]
fn a_member_that_is_killed_while_it_writes() {
    ours(|lab| {
        members(lab, 2, |network| {
            let issuer = network.start()?;
            let all = network.roster(&issuer)?;
            let (mut number, mut newest) = (1, 0);
            issuer.issue(number, Issuer::settings()?, all.clone())?;
            let file = Path::new("/var/lib/rustguard/rg1/roster");
            for kill in 0..12_u32 {
                let mut one = network.up(lab, 1, &[])?;
                let log = one.process().log();
                ensure!(!log.contains("damaged"), "after {kill} kills: {log}");
                // Each roster has another pair secret, so keys are written too.
                for _ in 0..1 + kill {
                    number += 1;
                    issuer.issue_with(10 + (number % 100) as u8, number, Issuer::settings()?, all.clone())?;
                }
                let written = |text: std::io::Result<Vec<u8>>| {
                    let roster = Roster::from_bytes(&text.ok()?, &Issuer::network())?;
                    Some(roster.version().number)
                };
                // Some are killed at once, others as soon as a newer roster is on disk.
                if kill % 3 != 0 {
                    eventually("something is written", SOON, || {
                        Ok(written(fs::read(file)).is_some_and(|it| it > newest))
                    })?;
                }
                one.crash()?;
                let text = fs::read(file);
                if text.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) && newest == 0 {
                    continue;
                }
                let on_disk = written(text).context("a torn file")?;
                ensure!(on_disk >= newest, "{on_disk} after {newest}");
                newest = on_disk;
            }
            println!("12 kills, {number} rosters, {newest} on disk");
            let _one = network.up(lab, 1, &[])?;
            network_of(network.node(1), "rg1", number)?;
            Ok(())
        })
    });
}
