//! A network with further servers, made by the command line: members use every server that they reach, and each server
//! may fail or be removed.
use anyhow::{Context as _, Result, ensure};
use rustguard_device::key;
use rustguard_tests::{Gaps, Lab, Network, Node, Process, Served, eventually, network, scenario_of_rustguard};
use serde_json::Value;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(30);
/// The pair secret on the further server, which is machine 1.
const PAIR_SECRET: &str = "/var/lib/rustguard/rg1/pair-secret";

/// The network behind a member, and the printer in it.
const OFFICE: &str = "192.168.7.0/24";
const PRINTER: &str = "192.168.7.1";

/// A server, a further server on machine 1, and members on the others. Outside the tunnel, the first server's node
/// routes between the machines, but members have no direct paths to each other.
struct Servers<'n> {
    network: &'n Network,
    /// The number of machines that are further servers.
    further: u8,
    running: Vec<Option<Process>>,
}

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("several servers", body);
}

fn servers(lab: &Lab, machines: u8, body: impl FnOnce(Served, Servers<'_>) -> Result<()>) -> Result<()> {
    further_servers(lab, 1, machines, body)
}

/// The same with this number of further servers, on the first machines.
fn further_servers(
    lab: &Lab,
    further: u8,
    machines: u8,
    body: impl FnOnce(Served, Servers<'_>) -> Result<()>,
) -> Result<()> {
    network(lab, machines, |network| {
        network.server.sh("sysctl -qw net.ipv4.ip_forward=1; nft add table inet lab; \
             nft 'add chain inet lab forward { type filter hook forward priority 0; }'")?;
        for (a, b) in
            (further + 1..=machines).flat_map(|a| (further + 1..=machines).map(move |b| (a, b))).filter(|(a, b)| a != b)
        {
            network.server.sh(&format!("nft add rule inet lab forward iifname to{a} oifname to{b} drop"))?;
        }
        let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
        let mut servers = Servers { network, further, running: Vec::new() };
        for n in 1..=machines {
            let started = servers.join(lab, n)?;
            servers.running.push(Some(started));
        }
        body(served, servers)
    })
}

impl Servers<'_> {
    fn join(&self, lab: &Lab, n: u8) -> Result<Process> {
        let is_server = n <= self.further;
        let token = self.network.invite(if is_server { &["--server"] } else { &[] })?;
        let (own, mut arguments) = (format!("10.{n}.0.2"), vec!["10.1.0.1", "--token", &*token]);
        if is_server {
            arguments.extend(["--endpoint", &*own]);
        }
        self.network.join(lab, n, &arguments)
    }

    /// The address of machine `n` inside.
    fn inside(&self, n: u8) -> Result<String> {
        self.network.addresses(n)?.into_iter().next().context("an address")
    }

    /// The peers of machine `n`.
    fn peers(&self, n: u8) -> Result<Vec<Value>> {
        let shown = self.network.machines[usize::from(n) - 1].shown(&format!("rg{n}"))?;
        Ok(shown["peers"].as_array().context("peers")?.clone())
    }

    /// Waits until machine `n` has sessions with so many servers.
    fn until_servers(&self, n: u8, count: usize) -> Result<()> {
        let mut last = Vec::new();
        eventually("sessions with the servers", SOON, || {
            last = self.peers(n)?;
            let has_session =
                |peer: &&Value| peer["persistent_keepalive"].is_number() && peer["connection"]["state"] == "online";
            Ok(last.iter().filter(has_session).count() == count)
        })
        .with_context(|| format!("{last:#?}"))
    }

    /// Waits until machine `n` has this number of pair keys on disk.
    fn until_stored(&self, n: u8, count: u64) -> Result<()> {
        // See `state.rs` of rustguard-network.
        let len = 44 + count * 80 + 32;
        let path = format!("/var/lib/rustguard/rg{n}/pair-keys");
        eventually(
            "the keys of pairs are on disk",
            SOON,
            || Ok(fs::metadata(&path).is_ok_and(|file| file.len() == len)),
        )
    }

    /// From now on, these machines cannot reach each other outside. 0 is the first server.
    fn cut(&self, pairs: &[(u8, u8)]) -> Result<()> {
        let node = &self.network.server;
        for hook in ["input", "output", "forward"] {
            node.sh(&format!("nft 'add chain inet lab cut_{hook} {{ type filter hook {hook} priority 1; }}'"))?;
        }
        for &(a, b) in pairs {
            let rules = match (a, b) {
                (0, b) => vec![
                    format!("cut_input iifname to{b} udp dport 51820"),
                    format!("cut_output oifname to{b} udp sport 51820"),
                ],
                (a, b) => vec![format!("cut_forward iifname {{ to{a}, to{b} }} oifname {{ to{a}, to{b} }}")],
            };
            rules.iter().try_for_each(|rule| node.sh(&format!("nft add rule inet lab '{rule}' drop")).map(drop))?;
        }
        Ok(())
    }

    /// Restores the links between the first server and others.
    fn mend_first(&self) -> Result<()> {
        self.network.server.sh("nft flush chain inet lab cut_input; nft flush chain inet lab cut_output").map(drop)
    }

    /// Restores all links.
    fn mend(&self) -> Result<()> {
        self.mend_first()?;
        self.network.server.sh("nft flush chain inet lab cut_forward").map(drop)
    }

    /// The node of a server or member, 0 for the first server.
    fn node(&self, n: u8) -> &Node {
        n.checked_sub(1).map_or(&self.network.server, |n| &self.network.machines[usize::from(n)])
    }

    /// Its address inside.
    fn address(&self, n: u8) -> Result<String> {
        match n {
            0 => self.network.server_addresses()?.into_iter().next().context("an address"),
            n => self.inside(n),
        }
    }

    /// A phone with stock WireGuard at the first server, which may also use the office's network, and its address
    /// inside.
    fn phone(&self, lab: &Lab) -> Result<(Node, String)> {
        let server = &self.network.server;
        let phone = lab.node("phone")?;
        lab.link((server, "phone"), (&phone, "uplink"))?;
        server.sh("ip addr add 10.9.0.1/24 dev phone")?;
        phone.sh("ip addr add 10.9.0.2/24 dev uplink; ip route add default via 10.9.0.1")?;
        let conf = self.network.ask(&["peer", "add", "phone", "--conf", "-"])?;
        let address = conf.lines().find_map(|line| line.strip_prefix("Address = ")?.split('/').next());
        let file = lab.file("stock.conf", &conf.replace("AllowedIPs = ", &format!("AllowedIPs = {OFFICE}, ")))?;
        phone.stock_client("up", &file)?;
        Ok((phone, address.context("an address")?.to_owned()))
    }

    /// Machine `n` gets a printer behind it. Waits until the first server knows that it announces the office's network.
    fn has_printer(&self, n: u8) -> Result<()> {
        let (node, interface) = (self.node(n), format!("rg{n}"));
        node.sh(&format!("ip addr add {PRINTER}/32 dev lo"))?;
        node.sh(&format!("sed -i '/^\\[Interface\\]/a Announce = {OFFICE}' /etc/rustguard/{interface}.conf"))?;
        let reloaded = node.end_of(node.rustguard()?.args(["reload", &interface]))?;
        ensure!(reloaded.success(), "{reloaded}");
        eventually("the server has heard of it", SOON, || {
            Ok(self.network.ask(&["peer", "ls", "--json"])?.contains(OFFICE))
        })
    }

    fn reaches(&self, from: u8, to: u8, tries: u32) -> Result<()> {
        self.network.machines[usize::from(from) - 1].reaches(&self.inside(to)?, tries)
    }

    fn traffic(&self, from: u8, to: u8) -> Result<Gaps> {
        Gaps::start(&self.network.machines[usize::from(from) - 1], "traffic", &self.inside(to)?)
    }

    /// Traffic from machine 2 to machine 3. From now on, machine 2 reaches only the further server, and machine 3 only
    /// the first one.
    fn apart(&self) -> Result<Gaps> {
        eventually("the secret of pairs is on disk", SOON, || Ok(Path::new(PAIR_SECRET).exists()))?;
        let mut traffic = self.traffic(2, 3)?;
        // One second after a session begins, servers probe the member.
        traffic.goes_on(60)?;
        for pair in [(1, 2), (0, 3)] {
            self.cut(&[pair])?;
            traffic.goes_on(40)?;
        }
        println!("before: the longest gap was {:?}", traffic.longest_since());
        Ok(traffic)
    }

    /// Changes the key of a server, 0 for the first, and waits until all others have replaced the old key.
    fn change_key(&self, server: usize, traffic: &mut Gaps) -> Result<()> {
        let machines = (1..).zip(&self.network.machines).map(|(n, node)| (node, format!("rg{n}")));
        let nodes: Vec<_> = [(&self.network.server, "rgs".to_owned())].into_iter().chain(machines).collect();
        let (node, interface) = &nodes[server];
        let own_key = || Ok::<_, anyhow::Error>(node.run(&["wg", "show", interface, "public-key"])?.trim().to_owned());
        let old = own_key()?;
        let rotated = node.end_of(node.rustguard()?.args(["key", "rotate", interface]))?;
        let new = own_key()?;
        ensure!(rotated.success() && rotated.stdout.contains(&new) && new != old, "{rotated}");
        eventually("all know the new key, and the old one no more", SOON, || {
            let others = nodes.iter().filter(|(_, name)| name != interface);
            let peers: Vec<_> =
                others.map(|(node, name)| node.run(&["wg", "show", name, "peers"])).collect::<Result<_>>()?;
            Ok(peers.iter().all(|peers| peers.contains(&new) && !peers.contains(&old)))
        })?;
        traffic.goes_on(40)?;
        println!("{interface}: the longest gap was {:?}", traffic.longest_since());
        Ok(())
    }

    /// Waits until these members have stored their pair key with the further server, under its current key.
    fn until_pairs_are_stored(&self, members: &[u8]) -> Result<()> {
        let key = self.network.machines[0].run(&["wg", "show", "rg1", "public-key"])?;
        let key = *key::from_base64(key.trim())?;
        members.iter().try_for_each(|n| {
            eventually("the key of the pair with the further server is on disk", SOON, || {
                let keys = fs::read(format!("/var/lib/rustguard/rg{n}/pair-keys"))?;
                Ok(keys.windows(key.len()).any(|part| part == key))
            })
        })
    }

    fn kill(&mut self, n: u8) -> Result<()> {
        let mut process = self.running[usize::from(n) - 1].take().context("it runs")?;
        process.stop("KILL").map(drop)
    }

    fn up(&mut self, lab: &Lab, n: u8) -> Result<()> {
        self.running[usize::from(n) - 1] = Some(self.network.up(lab, n)?);
        Ok(())
    }
}

/// Two members that reach each other only through servers lose traffic only for a moment when either server is killed.
#[test]
fn each_of_two_servers_may_die() {
    ours(|lab| {
        servers(lab, 3, |served, mut servers| {
            eventually("the secret of pairs is on disk", SOON, || Ok(Path::new(PAIR_SECRET).exists()))?;
            let mode = fs::metadata(PAIR_SECRET)?.permissions().mode() & 0o777;
            ensure!(mode == 0o600, "{mode:o}");
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let second = servers.inside(1)?;
            servers.network.machines[1].reaches(&second, 5)?;
            // One route for the pool, and none for single members.
            for (node, interface) in [(&servers.network.server, "rgs"), (&servers.network.machines[0], "rg1")] {
                let routes = node.run(&["ip", "-4", "route", "show", "dev", interface])?;
                ensure!(routes.lines().count() == 1 && routes.contains("/24"), "{interface}: {routes}");
            }
            let mut traffic = servers.traffic(2, 3)?;
            traffic.goes_on(20)?;
            println!("before: the longest gap was {:?}", traffic.longest_since());
            served.crash()?;
            traffic.goes_on(40)?;
            println!("the first server was killed: the longest gap was {:?}", traffic.longest_since());
            servers.network.machines[1].reaches(&second, 5)?;
            let served = servers.network.serve(lab, &[])?;
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            traffic.goes_on(20)?;
            println!("it runs again: the longest gap was {:?}", traffic.longest_since());
            servers.kill(1)?;
            traffic.goes_on(40)?;
            println!("the second server was killed: the longest gap was {:?}", traffic.longest_since());
            servers.up(lab, 1)?;
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            traffic.goes_on(20)?;
            served.stop()
        })
    });
}

/// Each of two members loses its link to a different server without notice, while both servers keep a session with both
/// members. Their traffic soon goes from server to server, and directly again when the links return.
#[test]
fn a_server_passes_on_by_another_what_its_member_does_not_get_any_more() {
    ours(|lab| {
        servers(lab, 3, |served, servers| {
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let mut traffic = servers.traffic(2, 3)?;
            // One second after a session begins, servers probe the member.
            traffic.goes_on(60)?;
            println!("before: the longest gap was {:?}", traffic.longest_since());
            servers.cut(&[(1, 2)])?;
            traffic.goes_on(40)?;
            println!("the further server lost one: the longest gap was {:?}", traffic.longest_since());
            servers.cut(&[(0, 3)])?;
            traffic.goes_on(60)?;
            println!("the first server lost the other: the longest gap was {:?}", traffic.longest_since());
            servers.mend_first()?;
            traffic.goes_on(40)?;
            println!("one link is back: the longest gap was {:?}", traffic.longest_since());
            served.stop()
        })
    });
}

/// A phone with stock WireGuard uses the first server: it reaches all others and the network behind a member, and they
/// reach it. Of two members with one server each, one reaches the network behind the other.
#[test]
fn a_phone_and_a_network_behind_a_member_are_reached_across_servers() {
    ours(|lab| {
        servers(lab, 3, |served, servers| {
            let (network, printer) = (servers.network, PRINTER);
            let [further, laptop, _] = &network.machines[..] else { unreachable!("three machines") };
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let (phone, address) = servers.phone(lab)?;
            for (n, node) in (1..).zip(&network.machines) {
                phone.reaches(&servers.inside(n)?, 10).with_context(|| format!("the phone to {n}"))?;
                node.reaches(&address, 10).with_context(|| format!("{n} to the phone"))?;
            }

            servers.has_printer(3)?;
            phone.does_not_reach(printer)?;
            network.ask(&["peer", "allow", &servers.inside(3)?, OFFICE])?;
            for (who, node) in [
                ("the laptop", laptop),
                ("the phone", &phone),
                ("the first server", &network.server),
                ("the further server", further),
            ] {
                node.reaches(printer, 30).with_context(|| who.to_owned())?;
            }

            // Now the laptop reaches only the further server, and the office only the first.
            servers.cut(&[(0, 2), (1, 3)])?;
            laptop.reaches(printer, 30)?;
            phone.reaches(printer, 10)?;
            servers.mend_first()?;
            laptop.reaches(&address, 60).context("the laptop to the phone, with its link to the first server again")?;

            served.crash()?;
            laptop.does_not_reach(&address)?;
            let served = network.serve(lab, &[])?;
            phone
                .reaches(&servers.inside(2)?, 60)
                .context("the phone to the laptop, after a crash of the first server")?;
            laptop.reaches(&address, 10)?;
            phone.reaches(printer, 30)?;
            served.stop()
        })
    });
}

/// The server that issues the rosters is lost: rebooted members find each other through the further server.
#[test]
fn without_the_first_server_rebooted_members_come_back_through_the_second() {
    ours(|lab| {
        servers(lab, 3, |served, mut servers| {
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            for n in [2, 3] {
                servers.until_stored(n, 2)?;
            }
            eventually("the secret of pairs is on disk", SOON, || Ok(Path::new(PAIR_SECRET).exists()))?;
            served.crash()?;
            for n in 1..=3 {
                servers.kill(n)?;
            }
            for n in 1..=3 {
                servers.up(lab, n)?;
            }
            let other = servers.inside(3)?;
            servers.network.machines[1].reaches(&other, 15)
        })
    });
}

/// A further server changes its key while one member reaches only that server, and the other only the first one: their
/// traffic continues from server to server, and works again after a reboot.
#[test]
fn a_further_server_changes_its_key_under_traffic() {
    ours(|lab| {
        servers(lab, 3, |served, mut servers| {
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let mut traffic = servers.apart()?;
            for _ in 0..2 {
                servers.change_key(1, &mut traffic)?;
            }
            servers.until_pairs_are_stored(&[2, 3])?;
            for n in 1..=3 {
                servers.kill(n)?;
            }
            for n in 1..=3 {
                servers.up(lab, n)?;
            }
            servers.reaches(2, 3, 30)?;
            servers.reaches(3, 2, 5)?;
            served.stop()
        })
    });
}

/// The first server changes its key. Members that reach it only through the further server learn the key too, and the
/// traffic through both servers continues, even if the further server changes its key directly afterwards.
#[test]
fn the_first_server_changes_its_key_beside_a_further_one() {
    ours(|lab| {
        servers(lab, 3, |served, mut servers| {
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let mut traffic = servers.apart()?;
            for server in [0, 1] {
                servers.change_key(server, &mut traffic)?;
            }
            servers.until_pairs_are_stored(&[2, 3])?;
            let network = servers.network;
            let key = network.server.run(&["wg", "show", "rgs", "public-key"])?;
            for n in 1..=3 {
                eventually("the file has the new key of the first server", SOON, || {
                    let text = fs::read_to_string(format!("/etc/rustguard/rg{n}.conf"))?;
                    Ok(text.contains(&format!("PublicKey = {}", key.trim())))
                })?;
            }
            // All restart, and member 3 has no path to the first server.
            served.crash()?;
            for n in 1..=3 {
                servers.kill(n)?;
            }
            let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            for n in 1..=3 {
                servers.up(lab, n)?;
            }
            servers.reaches(2, 3, 30)?;
            servers.reaches(3, 2, 5)?;
            served.stop()
        })
    });
}

/// A removed further server has no useful secrets any more: all pairs get new keys, and nobody calls it.
#[test]
fn a_server_that_is_removed_knows_no_pair_any_more() {
    ours(|lab| {
        servers(lab, 3, |served, servers| {
            for n in [2, 3] {
                servers.until_servers(n, 2)?;
            }
            let key = |from: u8, to: u8| -> Result<String> {
                let keys = servers.network.machines[usize::from(from) - 1].run(&[
                    "wg",
                    "show",
                    &format!("rg{from}"),
                    "preshared-keys",
                ])?;
                let address = servers.inside(to)?;
                let peer = servers
                    .peers(from)?
                    .into_iter()
                    .find(|peer| peer["allowed_ips"][0].as_str().is_some_and(|net| net.starts_with(&*address)))
                    .context("the peer")?;
                let own = peer["public_key"].as_str().context("a key")?;
                let line = keys.lines().find(|line| line.starts_with(own)).context("a line")?;
                Ok(line.split_whitespace().next_back().context("a key")?.to_owned())
            };
            servers.reaches(2, 3, 30)?;
            let before = key(2, 3)?;
            let status = servers.network.status()?;
            let peers = status["peers"].as_array().context("peers")?;
            let second = servers.inside(1)?;
            let of_second = |peer: &&Value| peer["addresses"].to_string().contains(&*second);
            let name = peers.iter().find(of_second).context("the second server")?["label"].clone();
            servers.network.ask(&["peer", "rm", name.as_str().context("a name")?])?;
            eventually("the keys of the pair are others", SOON, || {
                let (one, other) = (key(2, 3)?, key(3, 2)?);
                Ok(one == other && one != before)
            })?;
            for n in [2, 3] {
                servers.until_servers(n, 1)?;
            }
            eventually("the removed server forgets the secret", SOON, || Ok(!Path::new(PAIR_SECRET).exists()))?;
            let other = servers.inside(3)?;
            servers.network.machines[1].reaches(&other, 5)?;
            served.stop()
        })
    });
}

/// Three servers in a line, 0 – 1 – 2, and a member for each that reaches only this server: 3, 4 and 5. After a power
/// failure of all, members' traffic goes from server to server. Without the first server, the members of the others
/// continue, also after a reboot. When it returns, its member is reachable again.
#[test]
fn members_on_three_servers_in_a_line_reach_each_other() {
    ours(|lab| {
        further_servers(lab, 2, 5, |served, mut servers| {
            for n in 3..=5 {
                servers.until_servers(n, 3)?;
                servers.until_stored(n, 4)?;
            }
            eventually("both have the secret on disk", SOON, || {
                Ok((1..=2).all(|n| Path::new(&format!("/var/lib/rustguard/rg{n}/pair-secret")).exists()))
            })?;
            servers.cut(&[(0, 2), (0, 4), (0, 5), (1, 3), (1, 5), (2, 3), (2, 4)])?;
            served.crash()?;
            (1..=5).try_for_each(|n| servers.kill(n))?;
            let served = servers.network.serve(lab, &[])?;
            (1..=5).try_for_each(|n| servers.up(lab, n))?;
            for (from, to) in [(3, 4), (4, 5), (3, 5), (5, 3)] {
                servers.reaches(from, to, 30).with_context(|| format!("from {from} to {to}"))?;
            }
            let mut traffic = servers.traffic(4, 5)?;
            traffic.goes_on(20)?;
            served.crash()?;
            traffic.goes_on(40)?;
            println!("the first server was killed: the longest gap was {:?}", traffic.longest_since());
            for n in [4, 5] {
                servers.kill(n)?;
                servers.up(lab, n)?;
            }
            servers.reaches(5, 4, 30)?;
            let served = servers.network.serve(lab, &[])?;
            servers.reaches(3, 5, 60)?;
            served.stop()
        })
    });
}

/// SECURITY.md: no third machine can read the traffic between two, and they reach each other, whatever link is cut.
/// Servers 0, 1 and 2, a laptop (3), an office with a printer behind it (4), and a phone of the first server.
#[test]
fn no_third_machine_reads_what_two_say_whatever_is_cut() {
    ours(|lab| {
        further_servers(lab, 2, 4, |served, servers| {
            let (network, printer) = (servers.network, PRINTER);
            for n in [3, 4] {
                servers.until_servers(n, 3)?;
            }
            let (phone, of_phone) = servers.phone(lab)?;
            servers.has_printer(4)?;
            network.ask(&["peer", "allow", &servers.inside(4)?, OFFICE])?;
            phone.reaches(printer, 30)?;

            // With a netfilter rule, the host sees every packet that is forwarded decrypted.
            for (n, interface) in [(0, "rgs"), (1, "rg1"), (2, "rg2")] {
                let others =
                    if n == 0 { format!("ip saddr != {of_phone} ip daddr != {of_phone} ") } else { String::new() };
                servers.node(n).sh("sysctl -qw net.ipv4.ip_forward=1")?;
                servers.node(n).count("in_the_clear", "forward", &format!("iifname {interface} {others}"))?;
            }
            servers.node(0).count("of_the_phone", "forward", &format!("iifname rgs ip daddr {of_phone}"))?;
            let pairs = [(0, 1), (1, 2), (0, 3), (1, 3), (0, 4), (2, 4)];
            let alone = [
                // The laptop and the office have one server each, and not the same one.
                vec![(0, 3), (1, 3), (1, 4), (2, 4), (0, 2)],
                // The first server has a link to one other server only.
                vec![(0, 2), (0, 3), (0, 4)],
            ];
            for cut in pairs.map(|pair| vec![pair]).into_iter().chain(alone) {
                servers.cut(&cut)?;
                let mut pairs = Vec::new();
                for &(a, b) in &cut {
                    pairs.push((servers.node(a), servers.address(b)?));
                    pairs.push((servers.node(b), servers.address(a)?));
                    if a == 0 {
                        pairs.push((&phone, servers.address(b)?));
                        pairs.push((servers.node(b), of_phone.clone()));
                    }
                    if b == 4 {
                        pairs.push((servers.node(a), printer.to_owned()));
                        pairs.push((&phone, printer.to_owned()));
                    }
                }
                let reached = pairs.iter().try_for_each(|(from, to)| from.reaches(to, 30));
                for n in 0..=2 {
                    let seen = servers.node(n).counted("in_the_clear")?;
                    ensure!(seen == 0, "{cut:?} are cut: server {n} has passed on {seen} packets in the clear");
                }
                reached.with_context(|| format!("{cut:?} are cut"))?;
                servers.mend()?;
            }
            let of_phone = servers.node(0).counted("of_the_phone")?;
            ensure!(of_phone > 0, "what is passed on in the clear would have been counted");
            served.stop()
        })
    });
}
