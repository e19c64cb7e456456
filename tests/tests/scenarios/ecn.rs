//! Explicit congestion notification (RFC 6040) and DSCP, seen from outside by the counters of nftables.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    HUB_C, Hub, INSIDE_A, INSIDE_B, Lab, Node, Outside, Pair, Program, both_roles, eventually, scenario_of_rustguard,
};
use std::{ffi::OsString, time::Duration};

const SOON: Duration = Duration::from_secs(20);
const CODEPOINTS: [&str; 4] = ["not-ect", "ect1", "ect0", "ce"];
/// The variants of the data path, as environment variables.
const VARIANTS: [&[(&str, &str)]; 3] = [&[], &[("RUSTGUARD_OFFLOAD", "off")], &[("RUSTGUARD_IO", "uring")]];

/// A scenario about a feature that RustGuard has and wireguard-go does not.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("congestion notification", body);
}

/// Counts packets by ECN codepoint at this hook, as `NAME0` to `NAME3`.
fn count(node: &Node, name: &str, hook: &str, matching: &str, family: &str) -> Result<()> {
    CODEPOINTS.iter().enumerate().try_for_each(|(n, codepoint)| {
        node.count(&format!("{name}{n}"), hook, &format!("{matching} {family} ecn {codepoint}"))
    })
}

fn counted(node: &Node, name: &str) -> Result<[u64; 4]> {
    let mut counts = [0; 4];
    for (n, count) in counts.iter_mut().enumerate() {
        *count = node.counted(&format!("{name}{n}"))?;
    }
    Ok(counts)
}

/// An answered echo request with this DS field, which the answer repeats.
fn ping(node: &Node, address: &str, ds: &str) -> Result<()> {
    node.run(&["ping", "-n", "-c", "1", "-W", "2", "-Q", ds, address]).map(drop)
}

fn start(lab: &Lab, outside: Outside, variant: &[(&str, &str)]) -> Result<(Pair, [rustguard_tests::Up; 2])> {
    let pair = Pair::new(lab, outside)?;
    let environment: Vec<(&str, OsString)> = variant.iter().map(|&(name, value)| (name, value.into())).collect();
    let b = rustguard_tests::Up::start_with(lab, &pair.b, &pair.conf_b, &environment)?;
    let a = rustguard_tests::Up::start_with(lab, &pair.a, &pair.conf_a, &environment)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    Ok((pair, [a, b]))
}

fn out_and_in(lab: &Lab, outside: Outside, variant: &[(&str, &str)]) -> Result<()> {
    let (pair, _running) = start(lab, outside, variant)?;
    let family = if outside == Outside::V4 { "ip" } else { "ip6" };
    // The outer packets have no DSCP, whatever the inner packets have.
    count(&pair.router, "outer", "forward", "udp dport 51802 udp length > 100", family)?;
    pair.router.count("dscp", "forward", &format!("udp dport 51802 udp length > 100 {family} dscp != 0"))?;
    for inside in INSIDE_B {
        for ds in ["0xb8", "0xb9", "0xba", "0xbb"] {
            ping(&pair.a, inside, ds)?;
        }
    }
    ensure!(counted(&pair.router, "outer")? == [2; 4], "outside: {:?}", counted(&pair.router, "outer")?);
    ensure!(pair.router.counted("dscp")? == 0, "the DSCP of the inside shows outside");

    // A congested router first marks all ECN-capable packets, and then all packets.
    for (mark, expected) in [("ecn != not-ect", [1, 0, 0, 3]), ("ecn != ce", [1, 0, 0, 3])] {
        pair.router.sh(&format!(
            "nft add table inet congested
             nft add chain inet congested forward '{{ type filter hook forward priority 10; }}'
             nft flush chain inet congested forward
             nft add rule inet congested forward 'udp dport 51802 {family} {mark} {family} ecn set ce'"
        ))?;
        for (inside, inner) in INSIDE_B.into_iter().zip(["ip", "ip6"]) {
            pair.b.sh("nft delete table inet lab 2>/dev/null || true")?;
            count(&pair.b, "inner", "input", "iifname wgb meta l4proto { icmp, icmpv6 }", inner)?;
            for ds in ["0x00", "0x01", "0x02", "0x03"] {
                // An answer shows that the header's checksum is correct.
                ping(&pair.a, inside, ds)?;
            }
            ensure!(counted(&pair.b, "inner")? == expected, "{mark}, {inner}: {:?}", counted(&pair.b, "inner")?);
        }
    }
    Ok(())
}

#[test]
fn over_ipv4() {
    ours(|lab| out_and_in(lab, Outside::V4, VARIANTS[0]));
}

#[test]
fn over_ipv6() {
    ours(|lab| out_and_in(lab, Outside::V6, VARIANTS[0]));
}

#[test]
fn without_offload() {
    ours(|lab| out_and_in(lab, Outside::V4, VARIANTS[1]));
}

#[test]
fn by_io_uring() {
    ours(|lab| out_and_in(lab, Outside::V6, VARIANTS[2]));
}

/// wireguard-go neither sends nor understands codepoints: marks must not break anything, and handshakes have the DSCP
/// that the kernel gives them.
fn beside_the_reference(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    if !lab.is_about_rustguard("congestion notification") {
        return Ok(());
    }
    let pair = Pair::new(lab, Outside::V4)?;
    let port = if initiator == Program::Subject { 51_801 } else { 51_802 };
    // Type 1 is 148 bytes long, type 2 is 92; UDP's own header is 8.
    pair.router.count("calls", "forward", &format!("udp sport {port} udp length {{ 156, 100 }} ip dscp af41"))?;
    pair.router.sh("nft add table inet congested
         nft add chain inet congested forward '{ type filter hook forward priority 10; }'
         nft add rule inet congested forward 'meta l4proto udp ip ecn set ce'")?;
    let (_a, _b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    ensure!(pair.router.counted("calls")? > 0, "a handshake message without its DSCP");
    for (from, addresses) in [(&pair.a, INSIDE_B), (&pair.b, INSIDE_A)] {
        for address in addresses {
            for ds in ["0x00", "0x01", "0x02", "0x03"] {
                ping(from, address, ds)?;
            }
        }
    }
    Ok(())
}

both_roles! {
    with_wireguard_go => beside_the_reference;
}

/// A mark on the way to the hub is still set at the far end.
#[test]
fn between_peers() {
    ours(|lab| {
        let hub = Hub::new(lab)?;
        hub.forward(true)?;
        let (_a, _b, _c) = hub.start(lab, Program::Subject, &[])?;
        hub.c.reaches(rustguard_tests::HUB_B[0], 10)?;
        eventually("relayed in the tunnel", SOON, || {
            let before = hub.relayed()?;
            hub.a.reaches(HUB_C[0], 10)?;
            Ok(hub.relayed()? > before)
        })?;
        hub.b.sh("nft add table inet congested
             nft add chain inet congested prerouting '{ type filter hook prerouting priority 0; }'
             nft add rule inet congested prerouting 'iifname to-a udp dport 51802 ip ecn ect0 ip ecn set ce'")?;
        count(&hub.c, "outer", "input", "udp dport 51803", "ip")?;
        count(&hub.c, "inner", "input", "iifname wgc icmp type echo-request", "ip")?;
        ping(&hub.a, HUB_C[0], "0x02")?;
        ensure!(counted(&hub.c, "inner")? == [0, 0, 0, 1], "inside: {:?}", counted(&hub.c, "inner")?);
        ensure!(counted(&hub.c, "outer")?[3] == 1, "outside: {:?}", counted(&hub.c, "outer")?);
        Ok(())
    });
}

/// A TCP stream in which every twentieth datagram is marked, so super-packets are split at the marks: inner packets are
/// marked exactly where the outer ones were.
fn stream(lab: &Lab, variant: &[(&str, &str)]) -> Result<()> {
    let (pair, _running) = start(lab, Outside::V4, variant)?;
    for node in [&pair.a, &pair.b] {
        node.sh("sysctl -qw net.ipv4.tcp_ecn=1")?;
    }
    pair.router.sh("nft add table inet congested
         nft add chain inet congested forward '{ type filter hook forward priority 10; }'
         nft add rule inet congested forward 'udp dport 51802 ip ecn ect0 numgen inc mod 20 == 0 ip ecn set ce'")?;
    pair.router.count("marked", "postrouting", "udp dport 51802 ip ecn ce")?;
    count(&pair.b, "inner", "input", "iifname wgb tcp dport 5001", "ip")?;
    let mut server = pair.b.spawn("sink", pair.b.command("iperf3").args(["-s", "-1", "-p", "5001"]))?;
    server.until("a listener", SOON, || Ok(!pair.b.run(&["ss", "-Hltn", "sport", "=", "5001"])?.is_empty()))?;
    pair.a.run(&["iperf3", "-c", INSIDE_B[0], "-p", "5001", "-n", "20M"])?;
    let (marked, inner) = (pair.router.counted("marked")?, counted(&pair.b, "inner")?);
    ensure!(marked > 0 && inner[3] > 0, "marked {marked} outside, {inner:?} inside");
    ensure!(inner[2] > 0, "all is marked: {inner:?}");
    let delivered = pair.a.run(&["nstat", "-asz", "TcpExtTCPDeliveredCE"])?;
    let delivered: f64 = delivered.split_whitespace().nth_back(1).context("a counter")?.parse()?;
    ensure!(delivered > 0.0, "the sender heard of no congestion");
    Ok(())
}

#[test]
fn of_a_stream_with_offload() {
    ours(|lab| stream(lab, VARIANTS[0]));
}

#[test]
fn of_a_stream_without() {
    ours(|lab| stream(lab, VARIANTS[1]));
}
