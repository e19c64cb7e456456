//! ICMP errors to a host whose packets cannot be delivered, and the fate of packets that are too long for the path.
use anyhow::{Result, ensure};
use rustguard_tests::{
    HUB_A, HUB_B, Hub, INSIDE_A, INSIDE_B, Lab, Node, Outside, Pair, Program, Tunnel, eventually, scenario_of_rustguard,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// A scenario about behaviour of the kernel's WireGuard that RustGuard has and wireguard-go does not.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ICMP and fragments as the kernel has them", body);
}

/// One echo request to an unreachable address. Ping waits for a minute, so without an ICMP error, `timeout` ends it.
fn told(node: &Node, address: &str) -> Result<()> {
    let mut command = node.command("timeout");
    command.args(["20", "ping", "-n", "-c", "1", "-W", "60", address]);
    let ended = node.end_of(&mut command)?;
    let words = if address.contains(':') { "Address unreachable" } else { "Destination Host Unreachable" };
    ensure!(ended.stdout.contains(words), "{address}: {ended}");
    Ok(())
}

/// Checks that a connection fails at once.
fn no_route_to_host(node: &Node, address: &str) -> Result<()> {
    let script = format!("exec 3<>/dev/tcp/{address}/80");
    let ended = node.end_of(node.command("timeout").args(["20", "bash", "-c", &script]))?;
    ensure!(ended.stderr.contains("No route to host"), "{address}: {ended}");
    Ok(())
}

fn dropped(node: &Node, interface: &str, reason: &str) -> Result<u64> {
    Ok(node.shown(interface)?["dropped"][reason].as_u64().unwrap_or(0))
}

/// A host with strict settings: reverse-path filtering, and a firewall that only lets answers in.
fn strict(node: &Node) -> Result<()> {
    node.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
         nft add table inet strict
         nft add chain inet strict input '{ type filter hook input priority 0; policy drop; }'
         nft add rule inet strict input 'ct state established,related accept'
         nft add rule inet strict input 'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept'
         nft add rule inet strict input 'udp dport { 51801, 51802 } accept'")
        .map(drop)
}

#[test]
fn nobody_has_the_address() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        strict(&pair.a)?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
        for address in ["10.9.0.77", "fd09::77"] {
            told(&pair.a, address)?;
            no_route_to_host(&pair.a, address)?;
        }
        let before = dropped(&pair.a, "wga", "no_route")?;
        ensure!(before == 4, "two echo requests, two connections: {before}");
        // Multicast packets do not count as `no_route`.
        let _ = pair.a.run(&["ping", "-n", "-c", "3", "-i", "0.01", "-W", "1", "-I", "wga", "224.0.0.251"]);
        let _ = pair.a.run(&["ping", "-n", "-c", "3", "-i", "0.01", "-W", "1", "-I", "wga", "ff02::fb"]);
        ensure!(dropped(&pair.a, "wga", "no_route")? == before, "multicast counts");
        pair.a.reaches(INSIDE_B[0], 3)
    });
}

/// Packets of avahi, LLMNR, DHCP, NetBIOS and the kernel to every interface do not show as drops on either side.
/// `a` has its default routes through the tunnel, so its peer gets all of them, from addresses that are not allowed
/// IPs.
#[test]
fn a_healthy_tunnel_shows_no_drops() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        let chatter = "ip -6 addr add fe80::77/64 dev $1 nodad
             for to in 224.0.0.251 224.0.0.252 239.255.255.250; do ping -q -n -c 1 -W 0.1 -I $1 $to || true; done
             for to in 255.255.255.255 10.9.0.255; do ping -q -b -n -c 1 -W 0.1 -I $1 $to || true; done
             for to in ff02::fb ff02::1:3 ff02::2 ff02::16; do ping -q -n -c 1 -W 0.1 -I $1 $to%$1 || true; done";
        let chat = |node: &Node, interface: &str| node.run(&["sh", "-ec", chatter, "sh", interface]);
        for everything in [false, true] {
            if everything {
                pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
            }
            let (a, b) = pair.start(lab, Program::Subject, Program::Subject)?;
            pair.a.reaches(INSIDE_B[0], 10)?;
            chat(&pair.a, "wga")?;
            chat(&pair.b, "wgb")?;
            pair.a.reaches(INSIDE_B[1], 10)?;
            for (node, interface) in [(&pair.a, "wga"), (&pair.b, "wgb")] {
                let mut dropped = node.shown(interface)?["dropped"].clone();
                // `show` leaves out multicast.
                if let Some(reasons) = dropped.as_object_mut() {
                    reasons.remove("multicast");
                }
                ensure!(dropped == serde_json::json!({}), "{everything}: {interface}: {dropped}");
            }
            ensure!((dropped(&pair.b, "wgb", "multicast")? > 0) == everything, "it has a counter of its own");
            drop((a, b));
        }
        Ok(())
    });
}

/// `a` sends from an address that is not in the AllowedIPs of `b`, which `a` cannot know. `b` reports it until the
/// address is allowed.
#[test]
fn a_source_that_the_other_side_does_not_permit_is_named_there() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let (_a, b) = pair.start(lab, Program::Subject, Program::Subject)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        pair.a.sh("ip addr add 10.9.0.77/32 dev wga")?;
        let other = ["ping", "-n", "-c", "3", "-i", "0.05", "-W", "1", "-I", "10.9.0.77", INSIDE_B[0]];
        ensure!(pair.a.run(&other).is_err(), "a packet got through");
        let peer = &pair.b.shown("wgb")?["peers"][0];
        let text = peer["problem"]["text"].as_str().unwrap_or_default();
        ensure!(peer["problem"]["kind"] == "source-not-allowed" && text.contains("10.9.0.77"), "{peer}");
        ensure!(peer["dropped"]["source_not_allowed"] == 3, "{peer}");
        // A thread writes the log, so the line may come later.
        let warnings = |log: &str, of: &str| {
            let log = std::fs::read_to_string(lab.path(log))?;
            Ok::<_, anyhow::Error>(log.lines().filter(|line| line.contains("WARN") && line.contains(of)).count())
        };
        eventually("a warning", SOON, || Ok(warnings("wgb.log", "10.9.0.77")? == 1))?;
        b.set(&format!("peer {} allowed-ips {},10.9.0.77/32", pair.conf_a.keys.public, INSIDE_A.join(",")))?;
        ensure!(pair.b.shown("wgb")?["peers"][0]["problem"].is_null(), "the trouble is over");
        pair.b.sh("ip route add 10.9.0.77/32 dev wgb")?;
        pair.a.run(&other)?;
        // In the other direction, `a` reports an address that belongs to no peer.
        let _ = pair.a.run(&["ping", "-n", "-c", "1", "-W", "1", "10.9.0.99"]);
        eventually("a warning", SOON, || Ok(warnings("wga.log", "10.9.0.99")? == 1))
    });
}

#[test]
fn nobody_knows_where_the_peer_is() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V6)?;
        pair.conf_a.peers[0].persistent_keepalive = Some(1);
        strict(&pair.b)?;
        let _b = Tunnel::start(lab, &pair.b, Program::Subject, &pair.conf_b)?;
        for address in INSIDE_A {
            told(&pair.b, address)?;
            no_route_to_host(&pair.b, address)?;
        }
        ensure!(dropped(&pair.b, "wgb", "no_endpoint")? == 4);
        // The peer is reachable as soon as it has sent something.
        let _a = Tunnel::start(lab, &pair.a, Program::Reference, &pair.conf_a)?;
        INSIDE_A.iter().try_for_each(|address| pair.b.reaches(address, 10))
    });
}

/// A peer asks for an address that no peer has. The host in the middle forwards the packet, so the peer gets an ICMP
/// error.
#[test]
fn of_a_peer_by_way_of_a_host_that_forwards() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Reference, &[])?;
        hub.a.reaches(HUB_B[0], 10)?;
        for address in [HUB_A[0].replace(".0.1", ".0.77"), HUB_A[1].replace("::1", "::77")] {
            told(&hub.a, &address)?;
        }
        Ok(())
    });
}

/// The path has a smaller MTU than the tunnel assumes, and its router's ICMP errors are lost: routers must be able to
/// fragment, so datagrams are sent without DF.
#[test]
fn too_long_for_a_router_that_says_nothing() {
    ours(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        pair.router.sh("ip link set to-b mtu 1300")?;
        pair.b.sh("ip link set eth0 mtu 1300")?;
        pair.router.drop("output", "icmp type destination-unreachable")?;
        pair.router.count("unfragmentable", "forward", "udp sport 51801 ip frag-off & 0x4000 != 0")?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
        for address in INSIDE_B {
            pair.a.reaches(address, 10)?;
            pair.a.run(&["ping", "-n", "-c", "3", "-i", "0.05", "-W", "5", "-s", "1372", address])?;
        }
        ensure!(pair.router.counted("unfragmentable")? == 0, "datagrams with DF");
        Ok(())
    });
}
