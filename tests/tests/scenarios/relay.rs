//! From peer to peer: RustGuard relays a packet without the host only if the kernel would send it back into the same
//! interface, and never past netfilter rules, except in the mode `unfiltered`.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    HUB_B, HUB_C, Hub, Lab, Mesh, Node, Program, Tunnel, Up, eventually, meshed, network, scenario,
    scenario_of_rustguard,
};
use std::time::Duration;

/// This package's traffic generator.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
const SOON: Duration = Duration::from_secs(10);
/// The limit until a change in the kernel takes effect, including the programs that make and check it.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Both IP versions.
const FAMILIES: [usize; 2] = [0, 1];

/// A scenario about a hub with RustGuard in the middle: the reference relays nothing itself.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("how rustguard relays", body);
}

/// A hub that forwards, with all tunnels up, and wireguard-go at its ends.
fn forwarding(lab: &Lab) -> Result<(Hub, impl Sized + use<>)> {
    let hub = Hub::new(lab)?;
    hub.forward(true)?;
    let ups = hub.start(lab, Program::Reference, &[])?;
    Ok((hub, ups))
}

/// Packets that `b`'s host received from the tunnel. The interface counts them: a counting netfilter rule would end the
/// relay.
fn seen_by_the_host(hub: &Hub) -> Result<u64> {
    Ok(hub.b.run(&["cat", "/sys/class/net/wgb/statistics/rx_packets"])?.trim().parse()?)
}

/// Pings from `a` until `b` relays the packets itself.
fn until_relayed(hub: &Hub, family: usize) -> Result<()> {
    eventually("the relay begins", SOON, || {
        let before = hub.relayed()?;
        // There and back.
        Ok(hub.a.answers(HUB_C[family]) && hub.relayed()? >= before + 2)
    })
}

/// A stream of echo requests during which a test makes changes, ten in 200 ms; nobody waits for the answers.
fn stream(hub: &Hub, family: usize) -> Result<rustguard_tests::Process> {
    hub.a.spawn("stream", hub.a.command("ping").args(["-n", "-q", "-i", "0.02", HUB_C[family]]))
}

/// Waits until the host gets the packets.
fn host_has_it(hub: &Hub, what: &str) -> Result<()> {
    let before = seen_by_the_host(hub)?;
    eventually(what, AT_ONCE, || Ok(seen_by_the_host(hub)? >= before + 5))?;
    let (relayed, before) = (hub.relayed()?, seen_by_the_host(hub)?);
    eventually("more of them", SOON, || Ok(seen_by_the_host(hub)? >= before + 5))?;
    ensure!(hub.relayed()? == relayed, "{what}: the relay goes on as well");
    Ok(())
}

/// Waits until the host no longer gets the packets, and they are relayed.
fn relay_has_it(hub: &Hub, what: &str) -> Result<()> {
    eventually(what, AT_ONCE, || {
        let (seen, before) = (seen_by_the_host(hub)?, hub.relayed()?);
        eventually("the relay", AT_ONCE, || Ok(hub.relayed()? >= before + 5))?;
        // Relaying only the answers of the far end is not enough.
        Ok(seen_by_the_host(hub)? == seen)
    })
}

fn relays(lab: &Lab, ends: Program) -> Result<()> {
    let hub = Hub::new(lab)?;
    hub.forward(true)?;
    let (_a, _b, _c) = hub.start(lab, ends, &[])?;
    for family in FAMILIES {
        let before = hub.b.forwarded()?;
        hub.a.reaches(HUB_C[family], 10)?;
        until_relayed(&hub, family)?;
        let (relayed, forwarded) = (hub.relayed()?, hub.b.forwarded()? - before);
        ensure!(forwarded <= 20, "{forwarded} packets went through the host until then");
        let sent = hub.a.run(&["ping", "-n", "-q", "-i", "0.01", "-c", "100", "-W", "1", HUB_C[family]])?;
        // On a busy machine, the ends lose single packets.
        let received =
            sent.split(" received").next().and_then(|text| text.rsplit(' ').next()).context("ping counts")?;
        let received: u64 = received.parse()?;
        ensure!(received >= 90, "{sent}");
        let (relayed, forwarded) = (hub.relayed()? - relayed, hub.b.forwarded()? - before - forwarded);
        // After a change of any route, the kernel is asked again, and a few packets go through the host.
        ensure!(
            relayed + forwarded >= 2 * received && forwarded <= 10,
            "{relayed} relayed, {forwarded} through the host"
        );
        stream_of_bytes(&hub, family)?;
    }
    ensure!(hub.shown()?["dropped"].get("send_failed").is_none(), "dropped: {}", hub.shown()?["dropped"]);
    Ok(())
}

/// 8 MiB of TCP from `a` to `c`, with every byte unchanged.
fn stream_of_bytes(hub: &Hub, family: usize) -> Result<()> {
    let before = hub.relayed()?;
    let mut receiver = hub.c.spawn("receive", hub.c.command(TRAFFIC).arg("receive"))?;
    receiver.until("it listens", SOON, || Ok(hub.c.run(&["ss", "-Hltn", "sport", "=", "7000"])?.contains("LISTEN")))?;
    hub.a.run(&[TRAFFIC, "send", HUB_C[family], &(8 << 20).to_string()])?;
    let ended = receiver.ended(SOON)?;
    ensure!(ended.success(), "{ended}");
    // At most 1,380 bytes per packet.
    ensure!(hub.relayed()? - before > 6_000, "the stream should have been relayed");
    Ok(())
}

#[test]
fn between_wireguard_go_and_wireguard_go() {
    ours(|lab| relays(lab, Program::Reference));
}

#[test]
fn between_rustguard_and_rustguard() {
    ours(|lab| relays(lab, Program::Subject));
}

/// `ping -t 1`: the middle answers with its address inside the tunnel, also while it relays everything else.
#[test]
fn the_middle_is_a_hop_of_a_traceroute() {
    ours(|lab| {
        let (hub, _ups) = forwarding(lab)?;
        for (family, says) in FAMILIES.into_iter().zip(["Time to live exceeded", "Time exceeded"]) {
            until_relayed(&hub, family)?;
            let ended =
                hub.a.end_of(hub.a.command("ping").args(["-n", "-c", "1", "-W", "2", "-t", "1", HUB_C[family]]))?;
            let from = format!("From {}", HUB_B[family]);
            ensure!(ended.stdout.contains(&from) && ended.stdout.contains(says), "{ended}");
            hub.a.run(&["ping", "-n", "-c", "1", "-W", "2", "-t", "2", HUB_C[family]])?;
        }
        Ok(())
    });
}

/// Forwarding is off at the start, then switched on, and off again under traffic.
#[test]
fn the_forwarding_switch_is_obeyed() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        for (family, switch) in FAMILIES.into_iter().zip(["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"]) {
            for node in [&hub.a, &hub.c] {
                node.reaches(HUB_B[family], 10)?;
            }
            let before = hub.relayed()?;
            hub.a.does_not_reach(HUB_C[family])?;
            ensure!(hub.relayed()? == before, "relayed, and should not be");
            let _stream = stream(&hub, family)?;
            hub.b.sh(&format!("sysctl -qw {switch}=1"))?;
            relay_has_it(&hub, "forwarding switched on")?;
            hub.b.sh(&format!("sysctl -qw {switch}=0"))?;
            host_has_it(&hub, "forwarding switched off")?;
            hub.a.does_not_reach(HUB_C[family])?;
        }
        Ok(())
    });
}

#[test]
fn relay_off_gives_the_host_everything() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[("RUSTGUARD_RELAY", "off".into())])?;
        hub.b.count("forwarded", "forward", "iifname wgb oifname wgb")?;
        for family in FAMILIES {
            hub.a.reaches(HUB_C[family], 10)?;
            let before = hub.b.counted("forwarded")?;
            let sent = hub.a.run(&["ping", "-n", "-q", "-i", "0.01", "-c", "50", "-W", "1", HUB_C[family]])?;
            ensure!(sent.contains(" 50 received"), "{sent}");
            let forwarded = hub.b.counted("forwarded")? - before;
            ensure!(forwarded == 100, "{forwarded} of 100 packets through the host");
        }
        ensure!(hub.relayed()? == 0, "{} relayed", hub.relayed()?);
        Ok(())
    });
}

/// Changes by an administrator on the middle while packets are relayed: the command, and the one that undoes it.
fn changed_under_traffic(lab: &Lab, changes: [(&str, &str); 2]) -> Result<()> {
    let (hub, _ups) = forwarding(lab)?;
    hub.b.sh("ip link add elsewhere type veth peer name nowhere; ip link set nowhere up; ip link set elsewhere up")?;
    for (family, (done, undone)) in FAMILIES.into_iter().zip(changes) {
        until_relayed(&hub, family)?;
        let _stream = stream(&hub, family)?;
        relay_has_it(&hub, "before")?;
        // Twice: an earlier answer of the kernel must not be used after a change.
        for _ in 0..2 {
            hub.b.sh(done)?;
            host_has_it(&hub, done)?;
            hub.a.does_not_reach(HUB_C[family])?;
            hub.b.sh(undone)?;
            relay_has_it(&hub, undone)?;
            hub.a.reaches(HUB_C[family], 1)?;
        }
    }
    Ok(())
}

#[test]
fn a_more_specific_route_is_followed() {
    ours(|lab| {
        changed_under_traffic(
            lab,
            [
                ("ip route add 10.9.0.3/32 dev elsewhere", "ip route del 10.9.0.3/32 dev elsewhere"),
                ("ip -6 route add fd09::3/128 dev elsewhere", "ip -6 route del fd09::3/128 dev elsewhere"),
            ],
        )
    });
}

#[test]
fn a_blackhole_is_followed() {
    ours(|lab| {
        changed_under_traffic(
            lab,
            [
                ("ip route add blackhole 10.9.0.3/32", "ip route del blackhole 10.9.0.3/32"),
                ("ip -6 route add blackhole fd09::3/128", "ip -6 route del blackhole fd09::3/128"),
            ],
        )
    });
}

#[test]
fn a_policy_rule_is_obeyed() {
    ours(|lab| {
        changed_under_traffic(
            lab,
            [
                ("ip rule add iif wgb to 10.9.0.3 prohibit", "ip rule del iif wgb to 10.9.0.3 prohibit"),
                ("ip -6 rule add iif wgb to fd09::3 prohibit", "ip -6 rule del iif wgb to fd09::3 prohibit"),
            ],
        )
    });
}

/// A netfilter rule in the syntax of `nft` that drops packets between peers: family, hook and rule.
fn nft_drop(family: &str, hook: &str, rule: &str) -> String {
    format!(
        "nft add table {family} rules
         nft add chain {family} rules between '{{ type filter hook {hook} priority 0; }}'
         nft add rule {family} rules between '{rule} drop'"
    )
}

/// In every family and at every hook for forwarded packets, by a rule or by a chain's policy.
#[test]
fn rules_of_netfilter_are_obeyed() {
    let between = "iifname wgb oifname wgb";
    let changes = [
        [(nft_drop("inet", "forward", between), "inet"), (nft_drop("inet", "forward", between), "inet")],
        [(nft_drop("ip", "forward", between), "ip"), (nft_drop("ip6", "forward", between), "ip6")],
        [
            (nft_drop("inet", "prerouting", "ip daddr 10.9.0.3"), "inet"),
            (nft_drop("inet", "postrouting", "ip6 daddr fd09::3"), "inet"),
        ],
        [
            (
                "nft add table ip rules; nft add chain ip rules x '{ type filter hook forward priority 5; policy drop; }'"
                    .to_owned(),
                "ip",
            ),
            (
                "nft add table netdev rules
                 nft add chain netdev rules x '{ type filter hook ingress device wgb priority 5; }'
                 nft add rule netdev rules x 'ip6 daddr fd09::3 drop'"
                    .to_owned(),
                "netdev",
            ),
        ],
    ];
    ours(|lab| {
        let (hub, _ups) = forwarding(lab)?;
        for (family, (done, table)) in changes.iter().flat_map(|changes| FAMILIES.into_iter().zip(changes)) {
            until_relayed(&hub, family)?;
            let _stream = stream(&hub, family)?;
            relay_has_it(&hub, "before")?;
            for _ in 0..2 {
                hub.b.sh(done)?;
                host_has_it(&hub, done)?;
                hub.a.does_not_reach(HUB_C[family])?;
                hub.b.sh(&format!("nft delete table {table} rules"))?;
                relay_has_it(&hub, &format!("without the table {table} rules"))?;
            }
        }
        Ok(())
    });
}

/// Existing rules apply from the first packet, and `show` names them.
#[test]
fn rules_that_are_there_already_are_obeyed() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        hub.b.sh(&nft_drop("inet", "forward", "iifname wgb oifname wgb"))?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        for family in FAMILIES {
            hub.a.reaches(HUB_B[family], 10)?;
            hub.c.reaches(HUB_B[family], 10)?;
            hub.a.does_not_reach(HUB_C[family])?;
        }
        let shown = hub.shown()?;
        ensure!(shown["relayed"] == 0 && shown["relay"] == "rules", "{shown}");
        ensure!(shown["relay_rules"] == "the chain `between` in the table `inet rules` of nftables", "{shown}");
        let page = hub.b.end_of(hub.b.rustguard()?.args(["show", "wgb"]))?;
        ensure!(page.unfolded().contains("relay: by the host, because of the chain `between`"), "{page}");

        // A chain without rules, and one for address translation, do not prevent the relay.
        hub.b.sh("nft flush table inet rules; nft add table ip nat
                  nft add chain ip nat out '{ type nat hook postrouting priority 100; }'
                  nft add rule ip nat out 'oifname to-a masquerade'")?;
        until_relayed(&hub, 0)?;
        ensure!(hub.shown()?["relay"] == "on", "{}", hub.shown()?);
        hub.b.sh("nft add rule inet rules between 'counter accept'")?;
        hub.a.reaches(HUB_C[0], 5)?;
        eventually("the host has it", SOON, || Ok(hub.shown()?["relay"] == "rules"))
    });
}

/// The tables of legacy iptables are not nftables chains, and the kernel does not announce them.
#[test]
fn rules_of_legacy_iptables_are_obeyed() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        lab.needs("iptables-legacy", "iptables")?;
        if hub.b.run(&["iptables-legacy", "-L"]).is_err() {
            lab.skip("legacy iptables: the kernel has none");
            return Ok(());
        }
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        // Listing has created the table, and it stays: only a new namespace would be without it.
        hub.b.sh("iptables-legacy -A FORWARD -i wgb -o wgb -j DROP")?;
        for node in [&hub.a, &hub.c] {
            node.reaches(HUB_B[0], 10)?;
        }
        hub.a.does_not_reach(HUB_C[0])?;
        let shown = hub.shown()?;
        ensure!(shown["relay_rules"] == "the table `filter` of iptables-legacy", "{shown}");
        Ok(())
    });
}

/// The first rule of legacy iptables comes while packets are relayed.
#[test]
fn a_table_of_legacy_iptables_ends_the_relay() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        lab.needs("iptables-legacy", "iptables")?;
        if lab.node("trial")?.run(&["iptables-legacy", "-L"]).is_err() {
            lab.skip("legacy iptables: the kernel has none");
            return Ok(());
        }
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        until_relayed(&hub, 0)?;
        hub.b.sh("iptables-legacy -A FORWARD -i wgb -o wgb -j DROP")?;
        eventually("the relay ends", SOON, || Ok(hub.shown()?["relay"] == "rules"))?;
        hub.a.does_not_reach(HUB_C[0])
    });
}

/// Stock wg-quick, with RustGuard as its userspace implementation.
#[test]
fn rules_are_obeyed_under_wg_quick() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        hub.b.sh(&nft_drop("inet", "forward", "iifname wgb oifname wgb"))?;
        let file = lab.file("wgb.conf", &hub.conf_b.wg_quick())?;
        let up = hub.b.wg_quick("up", &file)?;
        ensure!(up.success(), "{up}");
        let (_a, _c) = (
            Tunnel::start(lab, &hub.a, Program::Reference, &hub.conf_a)?,
            Tunnel::start(lab, &hub.c, Program::Reference, &hub.conf_c)?,
        );
        for family in FAMILIES {
            hub.a.reaches(HUB_B[family], 10)?;
            hub.c.reaches(HUB_B[family], 10)?;
            hub.a.does_not_reach(HUB_C[family])?;
        }
        hub.b.sh("nft delete table inet rules")?;
        until_relayed(&hub, 0)?;
        hub.b.sh(&nft_drop("ip", "forward", "iifname wgb oifname wgb"))?;
        eventually("the relay ends", SOON, || Ok(hub.shown()?["relay"] == "rules"))?;
        hub.a.does_not_reach(HUB_C[0])?;
        let down = hub.b.wg_quick("down", &file)?;
        ensure!(down.success(), "{down}");
        Ok(())
    });
}

/// `unfiltered` relays past the rules at the administrator's request.
#[test]
fn unfiltered_relays_past_the_rules() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        hub.b.sh(&nft_drop("inet", "forward", "iifname wgb oifname wgb"))?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[("RUSTGUARD_RELAY", "unfiltered".into())])?;
        // Packets without an answer from the kernel yet go through the host, and are dropped there.
        until_relayed(&hub, 0)?;
        ensure!(hub.shown()?["relay"] == "on", "{}", hub.shown()?);
        Ok(())
    });
}

/// `serve`: rules before and while it runs, and the mode that ignores them.
#[test]
fn rules_are_obeyed_by_serve() {
    scenario(|lab| {
        network(lab, 2, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            let rule = nft_drop("inet", "forward", "iifname rgs oifname rgs");
            network.server.sh(&rule)?;
            let served = network.serve(lab, &["--star=on"])?;
            let machines: Vec<_> = (1..=2)
                .map(|n| network.join(lab, n, &[&format!("10.{n}.0.1"), "--token", &network.invite(&[])?]))
                .collect::<Result<_>>()?;
            let (one, two) = (&network.machines[0], network.addresses(2)?);
            let shown = |word: &str| {
                let command = &mut network.server.rustguard()?;
                let ended = network.server.end_of(command.args(["show", "rgs", "--json"]))?;
                Ok(serde_json::from_str::<serde_json::Value>(&ended.stdout)?[0]["relay"] == word)
            };
            let neither = || -> Result<()> {
                for n in [1, 2] {
                    network.reaches_server(n)?;
                }
                two.iter().try_for_each(|address| one.does_not_reach(address))
            };
            neither()?;
            ensure!(shown("rules")?, "nothing is relayed");
            network.server.sh("nft delete table inet rules")?;
            eventually("the relay begins", SOON, || shown("on"))?;
            for address in &two {
                one.reaches(address, 10)?;
            }
            network.server.sh(&rule)?;
            eventually("the relay ends", SOON, || shown("rules"))?;
            neither()?;
            served.stop()?;
            let served = network.serve(lab, &["--relay=unfiltered"])?;
            network.reaches_server(2)?;
            for address in &two {
                one.reaches(address, 20)?;
            }
            drop(machines);
            served.stop()
        })
    });
}

/// The same with Babel.
#[test]
fn rules_are_obeyed_in_a_mesh() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let [a, b, c] = mesh.all(["a", "b", "c"])?;
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        ensure!(b.relayed()? > 0, "nothing is relayed");
        b.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        let rule = nft_drop("inet", "forward", "iifname wgb oifname wgb");
        b.node.sh(&rule)?;
        eventually("the relay ends", SOON, || Ok(b.shown()?["relay"] == "rules"))?;
        for address in &c.inside {
            a.node.does_not_reach(address)?;
        }
        b.node.sh("nft delete table inet rules")?;
        eventually("the relay begins", SOON, || Ok(b.shown()?["relay"] == "on"))?;
        mesh.converged()?;

        ups.remove(1).down()?;
        b.node.sh(&rule)?;
        let _up = Up::start_with(lab, &b.node, &b.conf, &[("RUSTGUARD_RELAY", "unfiltered".into())])?;
        mesh.converged()
    });
}

/// A rule for one source must not use the cached decision for another source with the same destination.
#[test]
fn a_policy_rule_for_one_source_is_obeyed() {
    ours(|lab| {
        let mut hub = Hub::new(lab)?;
        hub.forward(true)?;
        let second = ["10.9.0.11", "fd09::11"];
        hub.conf_b.peers[0].allowed_ips += ", 10.9.0.11/32, fd09::11/128";
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        hub.a.sh("ip addr add 10.9.0.11/24 dev wga; ip addr add fd09::11/64 dev wga preferred_lft 0")?;
        for family in FAMILIES {
            until_relayed(&hub, family)?;
            let [flag, from] = [["-4", "-6"][family], second[family]];
            from_reaches(&hub.a, from, HUB_C[family], true)?;
            hub.b.run(&["ip", flag, "rule", "add", "from", from, "iif", "wgb", "prohibit"])?;
            until_relayed(&hub, family)?;
            from_reaches(&hub.a, from, HUB_C[family], false)?;
            until_relayed(&hub, family)?;
            from_reaches(&hub.a, from, HUB_C[family], false)?;
        }
        Ok(())
    });
}

/// Checks whether echo requests from this address of the node are answered.
fn from_reaches(node: &Node, from: &str, to: &str, expected: bool) -> Result<()> {
    let answered = node.run(&["ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", from, to]).is_ok();
    ensure!(answered == expected, "from {from} to {to}: answered is {answered}");
    Ok(())
}

/// The far end's allowed IPs cover all addresses, including the middle's own: packets to those stay at the middle.
#[test]
fn addresses_of_the_middle_are_not_bounced_to_a_peer_that_has_everything() {
    ours(|lab| {
        let mut hub = Hub::new(lab)?;
        hub.forward(true)?;
        hub.conf_a.peers[0].allowed_ips += ", 10.50.0.0/16, fd50::/48";
        hub.conf_b.peers[1].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
        hub.b.sh("ip link add lan type veth peer name nobody; ip link set nobody up; ip link set lan up
                  ip addr add 10.50.0.1/24 dev lan; ip addr add fd50::1/64 dev lan")?;
        hub.c.sh("ip link add lan type veth peer name nobody; ip link set nobody up; ip link set lan up
                  ip addr add 10.50.7.1/24 dev lan; ip addr add fd50:0:0:7::1/64 dev lan")?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        for family in FAMILIES {
            until_relayed(&hub, family)?;
            let before = (hub.relayed()?, hub.b.forwarded()?);
            for ours in [["10.50.0.1", "fd50::1"], HUB_B] {
                hub.a.reaches(ours[family], 2)?;
                hub.a.reaches(ours[family], 1)?;
            }
            ensure!((hub.relayed()?, hub.b.forwarded()?) == before, "the middle's own went elsewhere");
            let theirs = ["10.50.7.1", "fd50:0:0:7::1"][family];
            hub.a.reaches(theirs, 5)?;
            let relayed = hub.relayed()?;
            hub.a.reaches(theirs, 5)?;
            ensure!(hub.relayed()? > relayed, "what is behind the far end should be relayed");
        }
        Ok(())
    });
}
