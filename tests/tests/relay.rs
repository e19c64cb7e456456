//! From peer to peer through `rustguard up`: past the host where its kernel would send the packet back into the interface, and
//! only there.
use anyhow::{Result, ensure};
use rustguard_tests::{HUB_B, HUB_C, Hub, Lab, Node, Program, Subject, eventually, scenario, subject};
use std::time::Duration;

/// This package's own maker of traffic.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
const SOON: Duration = Duration::from_secs(10);
/// How long the kernel's new mind may take to be followed.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Both IP versions.
const FAMILIES: [usize; 2] = [0, 1];

/// A hub whose middle is RustGuard: the reference relays nothing by itself.
fn hub(lab: &Lab, body: impl FnOnce(Hub) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("how rustguard relays: wireguard-go is the subject");
        return Ok(());
    }
    body(Hub::new(lab)?)
}

/// Counts the packets from `a` to `c` that `b`'s host sees, in both IP versions, as it meets them first.
fn watch_the_host(hub: &Hub) -> Result<()> {
    hub.b.count("host4", "prerouting", &format!("iifname wgb ip daddr {}", HUB_C[0]))?;
    hub.b.count("host6", "prerouting", &format!("iifname wgb ip6 daddr {}", HUB_C[1]))
}

/// The counter of [`watch_the_host`].
fn seen_by_the_host(hub: &Hub, family: usize) -> Result<u64> {
    hub.b.counted(["host4", "host6"][family])
}

/// Pings from `a` until `b` passes them on itself.
fn until_relayed(hub: &Hub, family: usize) -> Result<()> {
    eventually("the relay begins", SOON, || {
        let before = hub.relayed()?;
        // There and back.
        Ok(hub.a.reaches(HUB_C[family], 1).is_ok() && hub.relayed()? >= before + 2)
    })
}

/// A stream of echo requests for something to happen to, ten in 200 ms; nobody waits for the answers.
fn stream(hub: &Hub, family: usize) -> Result<rustguard_tests::Process> {
    hub.a.spawn("stream", hub.a.command("ping").args(["-n", "-q", "-i", "0.02", HUB_C[family]]))
}

/// The host gets the packets now.
fn host_has_it(hub: &Hub, family: usize, what: &str) -> Result<()> {
    let before = seen_by_the_host(hub, family)?;
    eventually(what, AT_ONCE, || Ok(seen_by_the_host(hub, family)? >= before + 5))?;
    let (relayed, before) = (hub.relayed()?, seen_by_the_host(hub, family)?);
    eventually("more of them", SOON, || Ok(seen_by_the_host(hub, family)? >= before + 5))?;
    ensure!(hub.relayed()? == relayed, "{what}: the relay goes on as well");
    Ok(())
}

/// The host no longer gets the packets, and they are passed on.
fn relay_has_it(hub: &Hub, family: usize, what: &str) -> Result<()> {
    eventually(what, AT_ONCE, || {
        let (seen, before) = (seen_by_the_host(hub, family)?, hub.relayed()?);
        eventually("the relay", AT_ONCE, || Ok(hub.relayed()? >= before + 5))?;
        // The answers of the far end alone are not enough.
        Ok(seen_by_the_host(hub, family)? == seen)
    })
}

fn relays(lab: &Lab, ends: Program) -> Result<()> {
    hub(lab, |hub| {
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, ends, &[])?;
        hub.b.count("forwarded", "forward", "iifname wgb oifname wgb")?;
        for family in FAMILIES {
            hub.a.reaches(HUB_C[family], 10)?;
            until_relayed(&hub, family)?;
            let (relayed, forwarded) = (hub.relayed()?, hub.b.counted("forwarded")?);
            ensure!(forwarded <= 20, "{forwarded} packets went through the host until then");
            let sent = hub.a.run(&["ping", "-n", "-q", "-i", "0.01", "-c", "100", "-W", "1", HUB_C[family]])?;
            ensure!(sent.contains(" 100 received"), "{sent}");
            let (relayed, forwarded) = (hub.relayed()? - relayed, hub.b.counted("forwarded")? - forwarded);
            // A change of any route asks the kernel anew.
            ensure!(relayed + forwarded >= 200 && forwarded <= 10, "{relayed} relayed, {forwarded} through the host");
            stream_of_bytes(&hub, family)?;
        }
        ensure!(hub.shown()?["dropped"].get("send_failed").is_none(), "dropped: {}", hub.shown()?["dropped"]);
        Ok(())
    })
}

/// 8 MiB of TCP from `a` to `c`, every byte as it was.
fn stream_of_bytes(hub: &Hub, family: usize) -> Result<()> {
    let before = hub.relayed()?;
    let mut receiver = hub.c.spawn("receive", hub.c.command(TRAFFIC).arg("receive"))?;
    receiver.until("it listens", SOON, || Ok(hub.c.run(&["ss", "-Hltn", "sport", "=", "7000"])?.contains("LISTEN")))?;
    hub.a.run(&[TRAFFIC, "send", HUB_C[family], &(8 << 20).to_string()])?;
    let ended = receiver.ended(SOON)?;
    ensure!(ended.success(), "{ended}");
    // 1,380 bytes a packet at most.
    ensure!(hub.relayed()? - before > 6_000, "the stream should have been relayed");
    Ok(())
}

#[test]
fn between_wireguard_go_and_wireguard_go() {
    scenario(|lab| relays(lab, Program::Reference));
}

#[test]
fn between_rustguard_and_rustguard() {
    scenario(|lab| relays(lab, Program::Subject));
}

/// `ping -t 1`: the middle shows itself, by its address inside the tunnel, also while it relays everything else.
#[test]
fn the_middle_is_a_hop_of_a_traceroute() {
    scenario(|lab| {
        hub(lab, |hub| {
            hub.forward(true)?;
            let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
            for (family, says) in FAMILIES.into_iter().zip(["Time to live exceeded", "Time exceeded"]) {
                until_relayed(&hub, family)?;
                let ended =
                    hub.a.end_of(hub.a.command("ping").args(["-n", "-c", "1", "-W", "2", "-t", "1", HUB_C[family]]))?;
                let from = format!("From {}", HUB_B[family]);
                ensure!(ended.stdout.contains(&from) && ended.stdout.contains(says), "{ended}");
                hub.a.run(&["ping", "-n", "-c", "1", "-W", "2", "-t", "2", HUB_C[family]])?;
            }
            Ok(())
        })
    });
}

/// Forwarding off from the start, switched on, and off again under traffic.
#[test]
fn the_forwarding_switch_is_obeyed() {
    scenario(|lab| {
        hub(lab, |hub| {
            let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
            watch_the_host(&hub)?;
            for (family, switch) in FAMILIES.into_iter().zip(["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"]) {
                for node in [&hub.a, &hub.c] {
                    node.reaches(HUB_B[family], 10)?;
                }
                let before = hub.relayed()?;
                hub.a.does_not_reach(HUB_C[family])?;
                ensure!(hub.relayed()? == before, "relayed, and should not be");
                let _stream = stream(&hub, family)?;
                hub.b.sh(&format!("sysctl -qw {switch}=1"))?;
                relay_has_it(&hub, family, "forwarding switched on")?;
                hub.b.sh(&format!("sysctl -qw {switch}=0"))?;
                host_has_it(&hub, family, "forwarding switched off")?;
                hub.a.does_not_reach(HUB_C[family])?;
            }
            Ok(())
        })
    });
}

#[test]
fn relay_off_gives_the_host_everything() {
    scenario(|lab| {
        hub(lab, |hub| {
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
        })
    });
}

/// What an administrator may do on the middle while packets are relayed: how to do it, how to undo it.
fn changed_under_traffic(lab: &Lab, changes: [(&str, &str); 2]) -> Result<()> {
    hub(lab, |hub| {
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        watch_the_host(&hub)?;
        hub.b.sh(
            "ip link add elsewhere type veth peer name nowhere; ip link set nowhere up; ip link set elsewhere up",
        )?;
        for (family, (done, undone)) in FAMILIES.into_iter().zip(changes) {
            until_relayed(&hub, family)?;
            let _stream = stream(&hub, family)?;
            relay_has_it(&hub, family, "before")?;
            // Twice: an answer of before must not be taken for one of now.
            for _ in 0..2 {
                hub.b.sh(done)?;
                host_has_it(&hub, family, done)?;
                hub.a.does_not_reach(HUB_C[family])?;
                hub.b.sh(undone)?;
                relay_has_it(&hub, family, undone)?;
                hub.a.reaches(HUB_C[family], 1)?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_more_specific_route_is_followed() {
    scenario(|lab| {
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
    scenario(|lab| {
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
    scenario(|lab| {
        changed_under_traffic(
            lab,
            [
                ("ip rule add iif wgb to 10.9.0.3 prohibit", "ip rule del iif wgb to 10.9.0.3 prohibit"),
                ("ip -6 rule add iif wgb to fd09::3 prohibit", "ip -6 rule del iif wgb to fd09::3 prohibit"),
            ],
        )
    });
}

/// A rule about one source leaves another, to the same destination, where it was.
#[test]
fn a_policy_rule_for_one_source_is_obeyed() {
    scenario(|lab| {
        hub(lab, |mut hub| {
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
        })
    });
}

/// Whether echo requests from this address of the node's are answered.
fn from_reaches(node: &Node, from: &str, to: &str, expected: bool) -> Result<()> {
    let answered = node.run(&["ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", from, to]).is_ok();
    ensure!(answered == expected, "from {from} to {to}: answered is {answered}");
    Ok(())
}

/// The far end has all addresses, by its allowed IPs, the middle's own among them: those stay where they are.
#[test]
fn addresses_of_the_middle_are_not_bounced_to_a_peer_that_has_everything() {
    scenario(|lab| {
        hub(lab, |mut hub| {
            hub.forward(true)?;
            hub.conf_a.peers[0].allowed_ips += ", 10.50.0.0/16, fd50::/48";
            hub.conf_b.peers[1].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
            hub.b.sh("ip link add lan type veth peer name nobody; ip link set nobody up; ip link set lan up
                      ip addr add 10.50.0.1/24 dev lan; ip addr add fd50::1/64 dev lan")?;
            hub.c.sh("ip link add lan type veth peer name nobody; ip link set nobody up; ip link set lan up
                      ip addr add 10.50.7.1/24 dev lan; ip addr add fd50:0:0:7::1/64 dev lan")?;
            let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
            hub.b.count("bounced", "forward", "iifname wgb")?;
            for family in FAMILIES {
                until_relayed(&hub, family)?;
                let before = (hub.relayed()?, hub.b.counted("bounced")?);
                for ours in [["10.50.0.1", "fd50::1"], HUB_B] {
                    hub.a.reaches(ours[family], 2)?;
                    hub.a.reaches(ours[family], 1)?;
                }
                ensure!((hub.relayed()?, hub.b.counted("bounced")?) == before, "the middle's own went elsewhere");
                let theirs = ["10.50.7.1", "fd50:0:0:7::1"][family];
                hub.a.reaches(theirs, 5)?;
                let relayed = hub.relayed()?;
                hub.a.reaches(theirs, 5)?;
                ensure!(hub.relayed()? > relayed, "what is behind the far end should be relayed");
            }
            Ok(())
        })
    });
}
