//! A machine as a member of a network: its tunnel follows the roster. The tests act as the server, so they can send any
//! roster.
use anyhow::{Context as _, Result, ensure};
use rustguard_device::{crypto::hash::hash, key};
use rustguard_tests::{
    Gaps, Issuer, Keypair, Lab, Members, NameService, Node, eventually, members, network, network_of,
    scenario_of_rustguard,
};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(20);

/// A scenario about a feature that only RustGuard has.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("membership", body);
}

/// The number of packets that the host has received from the tunnel.
fn seen_by_the_host(node: &Node) -> Result<u64> {
    Ok(node.run(&["cat", "/sys/class/net/rgs/statistics/rx_packets"])?.trim().parse()?)
}

#[test]
fn members_reach_each_other_sealed_as_soon_as_they_are_up() {
    ours(|lab| {
        members(lab, 3, |network| {
            let _issued = network.issued()?;
            let _one = network.up(lab, 1, &[])?;
            let _two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            ensure!(seen_by_the_host(&network.network.server)? == 0, "the server has decrypted a packet");
            let peer = network.shown(1, 2)?.context("a peer")?;
            ensure!(peer["name"] == "m2", "{peer}");
            let preshared = network.node(1).run(&["wg", "show", "rg1", "preshared-keys"])?;
            ensure!(preshared.lines().count() == 3 && !preshared.contains("(none)"), "{preshared}");
            // The third has never been up: it is a peer without a session.
            let idle = network.shown(1, 3)?.context("a peer")?;
            ensure!(idle["connection"]["state"] == "never connected", "{idle}");
            // This is no fault, and `status` does not report one.
            let page = network.node(1).end_of(network.node(1).rustguard()?.args(["status", "rg1"]))?.stdout;
            let line = |name: &str| page.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
            ensure!(line("m3").contains("idle") && line("m2").contains("online"), "{page}");
            ensure!(page.contains("this machine: m1, 10.150.0.11") && line("m1").is_empty(), "{page}");
            // One route for all members.
            let routes = network.node(1).run(&["ip", "-4", "route", "show", "dev", "rg1"])?;
            ensure!(routes.trim() == "10.150.0.0/24 scope link", "{routes}");
            Ok(())
        })
    });
}

/// Names, prefixes and the MTU change while the tunnel runs, within the limits of the file. Refused changes are logged
/// once and shown in `status`.
#[test]
fn a_roster_changes_what_the_file_permits_and_nothing_else() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, _) = network.issued()?;
            let node = network.node(1);
            node.sh("ip addr add 192.168.7.1/24 dev uplink")?;
            let mut one = network.up(lab, 1, &["Accept = routes, 192.168.7.128/25"])?;
            let pid = one.process().id();
            let mut settings = Issuer::settings()?;
            settings.mtu = Some(1300);
            settings.name_servers = vec!["10.150.0.1".parse()?];
            let mut members = network.roster(&issuer)?;
            let offered =
                ["172.20.0.0/16", "0.0.0.0/0", "128.0.0.0/2", "10.1.0.0/24", "192.168.7.0/25", "192.168.7.128/25"];
            let offered = offered.into_iter().map(str::parse).collect::<Result<Vec<_>, _>>()?;
            members[2] = members[2].clone().with_name("office".parse()?).with_prefixes(offered.clone());
            issuer.issue(2, settings.clone(), members.clone())?;
            network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == "office"))?;
            let peer = network.shown(1, 2)?.context("a peer")?;
            let mut taken: Vec<_> =
                peer["allowed_ips"].as_array().context("a list")?.iter().filter_map(Value::as_str).collect();
            taken.sort_unstable();
            ensure!(taken == ["10.150.0.12/32", "172.20.0.0/16", "192.168.7.128/25"], "{taken:?}");
            eventually("the MTU", SOON, || Ok(node.run(&["ip", "link", "show", "rg1"])?.contains("mtu 1300")))?;
            let routes = node.run(&["ip", "route", "show", "dev", "rg1"])?;
            ensure!(
                routes.contains("172.20.0.0/16") && !routes.contains("default") && !routes.contains("128.0.0.0"),
                "{routes}"
            );
            let status = node.end_of(node.rustguard()?.args(["status", "rg1", "--json"]))?;
            let status: Value = serde_json::from_str(&status.stdout)?;
            let refused = status["network"]["refused"].as_array().context("refusals")?.len();
            ensure!(refused == 5 && status["network"]["number"] == 2, "four prefixes and DNS for everything: {status}");
            let list = status["network"]["list"].as_array().context("members")?;
            let office = list.iter().find(|listed| listed["name"] == "office").context("office")?;
            ensure!(list.len() == 3 && office["role"] == "member", "{list:?}");
            ensure!(office["prefixes"].as_array().is_some_and(|all| all.len() == offered.len()), "{office}");
            ensure!(one.process().log().matches("not taken").count() == 5, "{}", one.process().log());
            // The same settings again are not logged again.
            issuer.issue(3, settings, members)?;
            eventually("the third roster", SOON, || {
                let status = node.end_of(node.rustguard()?.args(["status", "rg1", "--json"]))?;
                Ok(serde_json::from_str::<Value>(&status.stdout)?["network"]["number"] == 3)
            })?;
            ensure!(one.process().log().matches("not taken").count() == 5, "{}", one.process().log());
            ensure!(one.process().id() == pid, "nothing was restarted");
            Ok(())
        })
    });
}

/// A removed member disappears from all machines, stops using the network, and does no harm. It can join again.
#[test]
fn a_removed_member_is_out_and_can_come_back() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, all) = network.issued()?;
            let mut one = network.up(lab, 1, &[])?;
            let _two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            issuer.issue(2, Issuer::settings()?, vec![all[0].clone(), all[2].clone()])?;
            network.until_shown(2, 1, "the first is no peer of the second", |peer| peer.is_none())?;
            eventually("the first has no peers", SOON, || {
                Ok(network.node(1).shown("rg1")?["peers"].as_array().is_some_and(Vec::is_empty))
            })?;
            network.node(1).does_not_reach("10.150.0.12")?;
            ensure!(one.process().log().contains("no member of the network any more"), "{}", one.process().log());
            let status = network.node(1).end_of(network.node(1).rustguard()?.args(["status", "rg1"]))?;
            ensure!(status.stdout.contains("removed"), "{status}");
            // Admitted again: the server of the file is asked, although the roster on disk does not contain this
            // machine.
            drop(one);
            issuer.issue(3, Issuer::settings()?, all)?;
            let _one = network.up(lab, 1, &[])?;
            network.node(1).reaches("10.150.0.12", 3)
        })
    });
}

/// A member's state is on disk: after a crash of all, the remaining members find each other at their last addresses.
#[test]
fn a_reboot_without_the_server_brings_everything_back() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, _) = network.issued()?;
            let tunnels = [network.up(lab, 1, &[])?, network.up(lab, 2, &[])?];
            network.node(1).reaches("10.150.0.12", 1)?;
            {
                let _traffic = Gaps::start(network.node(1), "traffic", "10.150.0.12")?;
                for (n, other) in [(1, 2), (2, 1)] {
                    let direct = |peer: Option<&Value>| peer.is_some_and(|peer| peer["way"] == "direct");
                    network.until_shown(n, other, "a direct way", direct)?;
                }
            }
            let known = |n: u8| fs::read_to_string(format!("/var/lib/rustguard/rg{n}/member-addresses"));
            eventually("both addresses are on disk", SOON, || {
                Ok((1..=2).all(|n| known(n).is_ok_and(|text| text.lines().count() == 2)))
            })?;
            for tunnel in tunnels {
                tunnel.crash()?;
            }
            issuer.stop()?;
            let _tunnels = [network.up(lab, 1, &[])?, network.up(lab, 2, &[])?];
            network.node(1).reaches("10.150.0.12", 5)
        })
    });
}

/// The preshared key that machine `n` has for `other`.
fn key_of_pair(network: &Members<'_>, n: usize, other: usize) -> Result<String> {
    let shown = network.node(n).run(&["wg", "show", &format!("rg{n}"), "preshared-keys"])?;
    let theirs = &network.joined[other - 1].keys.public;
    let line = shown.lines().find(|line| line.starts_with(theirs)).with_context(|| shown.clone())?;
    Ok(line.split_whitespace().next_back().context("a key")?.to_owned())
}

/// A new pair secret gives all pairs new keys. A member that was away gets them when it returns.
#[test]
fn another_secret_of_pairs_changes_the_keys_of_all_pairs() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, _) = network.issued()?;
            let _one = network.up(lab, 1, &[])?;
            let two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            let first = key_of_pair(network, 1, 2)?;
            issuer.issue_with(10, 2, Issuer::settings()?, network.roster(&issuer)?)?;
            eventually("both have the same other key", SOON, || {
                let (one, two) = (key_of_pair(network, 1, 2)?, key_of_pair(network, 2, 1)?);
                Ok(one == two && one != first)
            })?;
            network.node(1).reaches("10.150.0.12", 1)?;
            drop(two);
            issuer.issue_with(11, 3, Issuer::settings()?, network.roster(&issuer)?)?;
            let second = key_of_pair(network, 2, 1).unwrap_or_default();
            let _two = network.up(lab, 2, &[])?;
            eventually("the one that was away has the third", SOON, || {
                let (one, two) = (key_of_pair(network, 1, 2)?, key_of_pair(network, 2, 1)?);
                Ok(one == two && one != first && one != second)
            })?;
            network.node(2).reaches("10.150.0.11", 10)
        })
    });
}

/// A member with a wrong pair key, as from a restored state folder, requests the key again.
#[test]
fn a_key_that_does_not_fit_is_asked_for_again() {
    ours(|lab| {
        members(lab, 2, |network| {
            let _issued = network.issued()?;
            let one = network.up(lab, 1, &[])?;
            let _two = network.up(lab, 2, &[])?;
            network.node(1).reaches("10.150.0.12", 1)?;
            let path = "/var/lib/rustguard/rg1/pair-keys";
            eventually("the key is on disk", SOON, || Ok(fs::read(path).is_ok_and(|text| text.len() >= 44 + 80 + 32)))?;
            drop(one);
            let text = fs::read(path)?;
            let theirs = *key::from_base64(&network.joined[1].keys.public)?;
            let at = text.windows(32).position(|part| part == theirs).context("the pair")? + 32 + 16;
            let mut body = text[..text.len() - 32].to_vec();
            body[at] ^= 1;
            let sum = hash(&[&body]);
            body.extend_from_slice(&sum);
            fs::write(path, body)?;
            let _one = network.up(lab, 1, &[])?;
            network.node(1).reaches("10.150.0.12", 30)
        })
    });
}

/// The file belongs to the user: saving, setting and reloading write nothing from the roster into it, and remove
/// nothing from the roster.
#[test]
fn reload_set_and_save_leave_the_roster_alone() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, _) = network.issued()?;
            let node = network.node(1);
            let _one = network.up(lab, 1, &["SaveConfig = true"])?;
            let of_roster = |peer: Option<&Value>| peer.is_some_and(|peer| peer["name"] == "m2");
            network.until_shown(1, 2, "the member", of_roster)?;
            let path = lab.path("rg1.conf");
            let before = fs::read_to_string(&path)?;
            for command in [&["reload", "rg1"][..], &["save", "rg1"], &["reload", "rg1", "--dry-run"]] {
                let ended = node.end_of(node.rustguard()?.args(command))?;
                ensure!(ended.success(), "{command:?}: {ended}");
                ensure!(of_roster(network.shown(1, 2)?.as_ref()), "{command:?}");
            }
            let saved = fs::read_to_string(&path)?;
            ensure!(saved.matches("[Peer]").count() == 1, "{saved}");
            ensure!(saved.replace("ListenPort", "").len() >= before.len(), "{saved}");
            // Saving has added a port. The first reload takes it over, and the next one finds no change.
            let ended = node.end_of(node.rustguard()?.args(["reload", "rg1"]))?;
            ensure!(ended.success(), "{ended}");
            let ended = node.end_of(node.rustguard()?.args(["reload", "rg1", "--dry-run", "--json"]))?;
            let changes: Value = serde_json::from_str(&ended.stdout)?;
            ensure!(changes["changes"].as_array().is_some_and(Vec::is_empty), "{ended}");
            // A peer that `wg set` adds survives the next roster.
            let other = Keypair::generate()?.public;
            node.run(&["wg", "set", "rg1", "peer", &other, "allowed-ips", "10.99.0.1/32"])?;
            let mut members = network.roster(&issuer)?;
            members[2] = members[2].clone().with_name("renamed".parse()?);
            issuer.issue(2, Issuer::settings()?, members)?;
            network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == "renamed"))?;
            ensure!(node.run(&["wg", "show", "rg1", "peers"])?.contains(&other), "the peer by hand");
            Ok(())
        })
    });
}

/// The member itself resolves the names of its network; a changed name takes effect at once.
#[test]
fn a_member_answers_for_the_names_of_its_network() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, mut roster) = network.issued()?;
            let _one = network.up(lab, 1, &[])?;
            let node = network.node(1);
            node.name_servers(&["10.150.0.11"])?;
            let domain = Issuer::settings()?.name;
            let name = |host: &str| format!("{host}.{domain}.internal");
            eventually("a name", SOON, || Ok(node.resolved(&name("m2"))? == ["10.150.0.12"]))?;
            ensure!(node.resolved("10.150.0.12")? == [name("m2")], "the name of an address");
            let other = roster.pop().context("a member")?.with_name("desk".parse()?);
            roster.push(other);
            issuer.issue(2, Issuer::settings()?, roster)?;
            eventually("the new name", SOON, || Ok(node.resolved(&name("desk"))? == ["10.150.0.12"]))?;
            ensure!(node.resolved(&name("m2"))?.is_empty(), "the old name");
            Ok(())
        })
    });
}

/// The host cannot use a name server for some domains only. The tunnel still follows its network.
#[test]
fn name_servers_that_the_host_cannot_take_are_told_and_stop_nothing() {
    ours(|lab| {
        members(lab, 2, |network| {
            let (issuer, mut roster) = network.issued()?;
            let node = network.node(1);
            let mut one = network.up(lab, 1, &[])?;
            let mut settings = Issuer::settings()?;
            settings.name_servers = vec!["10.150.0.53".parse()?];
            settings.domains = vec!["corp.example".into()];
            roster[2] = roster[2].clone().with_name("desk".parse()?);
            issuer.issue(2, settings.clone(), roster.clone())?;
            network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == "desk"))?;
            let refused = network_of(node, "rg1", 2)?["refused"].to_string();
            for part in ["10.150.0.53 for corp.example", "resolvconf", "the resolver for lab.internal at 10.150.0.11"] {
                ensure!(refused.contains(part), "{part}: {refused}");
            }
            // It also starts with such a roster.
            issuer.issue(3, settings, roster)?;
            network_of(node, "rg1", 3)?;
            ensure!(one.process().log().matches("not taken").count() == 1, "{}", one.process().log());
            one.crash()?;
            let _one = network.up(lab, 1, &[])?;
            let again = network_of(node, "rg1", 3)?["refused"].to_string();
            ensure!(again == refused, "after the start: {again}");
            Ok(())
        })
    });
}

/// systemd-resolved asks the member itself for the names of its network, and for the domains of the network's name
/// servers.
#[test]
fn resolved_is_told_to_ask_the_member_itself() {
    ours(|lab| {
        members(lab, 2, |network| {
            let node = network.node(1);
            let Some(resolved) = NameService::start(lab, node)? else { return Ok(()) };
            let (issuer, all) = network.issued()?;
            let mut one = network.up(lab, 1, &[])?;
            let own = ["SetLinkDNS 10.150.0.11", "SetLinkDomains ~lab.internal ~0.150.10.in-addr.arpa"];
            let told = resolved.told();
            ensure!(told == [own[0], own[1], "SetLinkDefaultRoute false"], "once `up` is ready: {told:?}");
            let ended = node.end_of(node.rustguard()?.args(["save", "rg1"]))?;
            let file = fs::read_to_string(lab.path("rg1.conf"))?;
            ensure!(ended.success() && !file.contains("DNS"), "the file is its user's: {file}{ended}");

            let mut settings = Issuer::settings()?;
            settings.name_servers = vec!["10.150.0.53".parse()?];
            settings.domains = vec!["corp.example".into()];
            issuer.issue(2, settings, all.clone())?;
            network_of(node, "rg1", 2)?;
            let told = resolved.told();
            ensure!(told.contains(&format!("{} ~corp.example", own[1])), "{told:?}");
            ensure!(
                told.contains(&own[0].to_owned()) && !told.contains(&"SetLinkDefaultRoute true".to_owned()),
                "{told:?}"
            );

            // A removed member asks no name server of the network.
            issuer.issue(3, Issuer::settings()?, vec![all[0].clone(), all[2].clone()])?;
            let mut told = Vec::new();
            eventually("the link is as it was", SOON, || {
                told.extend(resolved.told());
                Ok(told == ["RevertLink"])
            })
            .with_context(|| format!("{told:?}"))?;
            ensure!(!one.process().log().contains("not taken"), "{}", one.process().log());
            Ok(())
        })
    });
}

/// A failing resolver must not keep the tunnel from following its network.
#[test]
fn a_resolved_that_refuses_stops_nothing() {
    ours(|lab| {
        members(lab, 2, |network| {
            let node = network.node(1);
            let Some(resolved) = NameService::start(lab, node)? else { return Ok(()) };
            let (issuer, mut roster) = network.issued()?;
            let mut one = network.up(lab, 1, &[])?;
            ensure!(resolved.told().len() == 3, "it was told before");
            resolved.refuse();
            let mut settings = Issuer::settings()?;
            settings.name_servers = vec!["10.150.0.53".parse()?];
            settings.domains = vec!["corp.example".into()];
            for (number, name) in [(2, "desk"), (3, "table")] {
                roster[2] = roster[2].clone().with_name(name.parse()?);
                issuer.issue(number, settings.clone(), roster.clone())?;
                network.until_shown(1, 2, "the new name", |peer| peer.is_some_and(|peer| peer["name"] == name))?;
            }
            let refused = network_of(node, "rg1", 3)?["refused"].to_string();
            ensure!(refused.contains("systemd-resolved refused"), "{refused}");
            ensure!(one.process().log().matches("not taken").count() == 1, "{}", one.process().log());
            Ok(())
        })
    });
}

/// With the real server: a joined machine is reachable at once and end to end, and its file contains what the user
/// agreed to.
#[test]
fn joined_machines_reach_each_other_as_soon_as_join_returns() {
    ours(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--pool", "10.150.0.0/24"])?;
            let _one = network.join(lab, 1, &served.join_arguments())?;
            let token = network.invite(&[])?;
            let _two = network.join(
                lab,
                2,
                &["10.2.0.1", "--token", &token, "--accept-dns", "--accept-route", "192.168.7.0/24"],
            )?;
            let first = network.addresses(1)?[0].clone();
            let began = Instant::now();
            network.machines[1].reaches(&first, 1)?;
            println!("first ping of another member, with ping's own process: {:?}", began.elapsed());
            let host = &network.server;
            let seen = host.run(&["cat", "/sys/class/net/rgs/statistics/rx_packets"])?;
            ensure!(seen.trim() == "0", "the server has decrypted {seen} packets");
            let file = fs::read_to_string("/etc/rustguard/rg2.conf")?;
            ensure!(file.contains("Network = ") && file.contains("Accept = dns, routes, 192.168.7.0/24"), "{file}");
            ensure!(!file.contains("MTU") && !file.contains("DNS ="), "the network says these: {file}");
            ensure!(network.machines[1].run(&["ip", "link", "show", "rg2"])?.contains("mtu 1360"), "the MTU");
            served.stop()
        })
    });
}
