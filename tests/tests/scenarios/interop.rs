//! RustGuard and wireguard-go, in both roles, controlled by stock `wg`.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    INSIDE_A, INSIDE_B, Lab, Outside, Pair, Program, Tunnel, both_roles, eventually, preshared_key, scenario,
};
use std::time::{Duration, Instant};

both_roles! {
    /// IPv4 outside, both versions inside, both directions, and every byte of a TCP stream.
    over_ipv4 => carries_over_ipv4;
    /// IPv6 outside.
    over_ipv6 => carries_over_ipv6;
    /// Nothing passes when the preshared keys differ; everything passes when they are equal.
    psk => preshared_keys;
    /// The initiator's address changes under traffic.
    roaming_of_the_initiator => initiator_roams;
    /// The responder's address changes under traffic.
    roaming_of_the_responder => responder_roams;
    /// The initiator crashes and starts again: the responder takes the new session.
    restart_of_the_initiator => initiator_restarts;
    /// The initiator restarts repeatedly, and each time the first answer is in the new session.
    first_answer_after_a_restart => initiator_restarts_often;
    /// The responder crashes and starts again: the initiator notices, and makes a new session.
    restart_of_the_responder => responder_restarts;
    /// A tenth of all packets is lost: the handshake is repeated until it succeeds, and the stream arrives complete.
    loss => lossy_network;
    /// Persistent keepalive starts a session and keeps it alive; when it is off, nothing is sent.
    persistent_keepalive => keepalives_without_traffic;
    /// Received data without a reply inside the tunnel causes one keepalive after ten seconds.
    passive_keepalive => keepalive_in_answer_to_data;
    /// Traffic beyond Rekey-After-Time. Takes 140 s, and runs with RUSTGUARD_LONG=1 only.
    rekey_after_time => rekeys_under_traffic;
}

/// The UDP length of an empty transport message in nftables: 8 bytes of UDP, 16 of header, 16 of tag.
const KEEPALIVE: &str = "udp length 40";
const SOON: Duration = Duration::from_secs(10);

fn carries_over_ipv4(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    carries(lab, Outside::V4, initiator, responder)
}

fn carries_over_ipv6(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    carries(lab, Outside::V6, initiator, responder)
}

fn carries(lab: &Lab, outside: Outside, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, outside)?;
    let (a, b) = pair.start(lab, initiator, responder)?;
    for address in INSIDE_B {
        pair.a.reaches(address, 10)?;
    }
    for address in INSIDE_A {
        pair.b.reaches(address, 3)?;
    }
    let (seen_by_a, seen_by_b) = (a.dump()?, b.dump()?);
    let (peer_b, peer_a) = (seen_by_a.peer(&pair.conf_b.keys.public)?, seen_by_b.peer(&pair.conf_a.keys.public)?);
    for peer in [peer_a, peer_b] {
        ensure!(peer.latest_handshake > 0 && peer.rx > 0 && peer.tx > 0, "no handshake, or nothing counted: {peer:?}");
    }
    let learned = match outside {
        Outside::V4 => "10.1.0.2:51801",
        Outside::V6 => "[fd01::2]:51801",
    };
    ensure!(peer_a.endpoint == learned, "b should have learned {learned}: {peer_a:?}");
    // The responder received an initiation (148) and the pings; it sent a response (92).
    ensure!(peer_a.rx >= 148 + 3 * 128 && peer_a.tx >= 92 + 3 * 128, "rx and tx the wrong way round? {peer_a:?}");
    stream(&pair, &[])?;
    stream(&pair, &["--reverse"])
}

/// 16 MiB of TCP from `a` to `b`.
fn stream(pair: &Pair, options: &[&str]) -> Result<()> {
    let mut server = pair.b.iperf3()?;
    let mut arguments = vec!["iperf3", "-c", INSIDE_B[0], "-n", "16M", "--connect-timeout", "5000"];
    arguments.extend(options);
    pair.a.run(&arguments)?;
    ensure!(server.ended(SOON)?.success(), "iperf3's server failed");
    Ok(())
}

fn preshared_keys(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    let key = preshared_key()?;
    pair.conf_a.peers[0].preshared_key = Some(key.clone());
    pair.conf_b.peers[0].preshared_key = Some(preshared_key()?);
    let (a, b) = pair.start(lab, initiator, responder)?;
    pair.a.does_not_reach(INSIDE_B[0])?;
    ensure!(a.dump()?.peers[0].latest_handshake == 0, "a handshake with different preshared keys");
    let file = lab.file("psk", &key)?;
    b.set(&format!("peer {} preshared-key {}", pair.conf_a.keys.public, file.display()))?;
    pair.a.reaches(INSIDE_B[0], 15)?;
    let shown = b.dump()?;
    ensure!(shown.peers[0].preshared_key == key, "wg shows another preshared key");

    // A change at run time applies to the next handshake; the current session continues.
    let handshake = a.dump()?.peers[0].latest_handshake;
    let other = lab.file("other-psk", &preshared_key()?)?;
    a.set(&format!("peer {} preshared-key {}", pair.conf_b.keys.public, other.display()))?;
    pair.a.reaches(INSIDE_B[0], 1)?;
    ensure!(a.dump()?.peers[0].latest_handshake == handshake, "the session should have gone on");
    Ok(())
}

fn initiator_roams(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (a, b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    let mut traffic = pair.a.keeps_pinging(INSIDE_B[0])?;
    pair.a.sh("ip addr add 10.1.0.3/24 dev eth0
               ip addr del 10.1.0.2/24 dev eth0
               ip route replace default via 10.1.0.1")?;
    traffic.lost_at_most(5)?;
    let moved = &b.dump()?.peers[0];
    ensure!(moved.endpoint == "10.1.0.3:51801", "b should answer the new address: {moved:?}");
    // And across IP versions: data from an IPv6 address of the same machine.
    let before = b.dump()?.peers[0].rx;
    a.set(&format!("peer {} endpoint [fd02::2]:51802", pair.conf_b.keys.public))?;
    pair.a.reaches(INSIDE_B[0], 5)?;
    let moved = &b.dump()?.peers[0];
    ensure!(moved.endpoint == "[fd01::2]:51801" && moved.rx > before, "b should answer over IPv6: {moved:?}");
    Ok(())
}

fn responder_roams(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (a, _b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    let handshake = a.dump()?.peers[0].latest_handshake;
    // The moved side must send first, because nobody else knows its address. Its sticky source address no longer
    // exists.
    let mut traffic = pair.b.keeps_pinging(INSIDE_A[0])?;
    pair.b.sh("ip addr add 10.2.0.3/24 dev eth0
               ip addr del 10.2.0.2/24 dev eth0
               ip route replace default via 10.2.0.1")?;
    traffic.lost_at_most(5)?;
    let moved = &a.dump()?.peers[0];
    ensure!(moved.endpoint == "10.2.0.3:51802", "a should answer the new address: {moved:?}");
    // wireguard-go may repeat its first handshake after five seconds, answered or not.
    ensure!(initiator == Program::Reference || moved.latest_handshake == handshake, "moving needs no handshake");
    pair.a.reaches(INSIDE_B[1], 2)
}

fn initiator_restarts(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (a, b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    a.crash()?;
    let _a = Tunnel::start(lab, &pair.a, initiator, &pair.conf_a)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    pair.b.reaches(INSIDE_A[1], 2)?;
    ensure!(b.dump()?.peers.len() == 1, "the responder should have one peer still");
    Ok(())
}

fn initiator_restarts_often(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (mut a, _b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    for n in 0..10 {
        a.crash()?;
        a = Tunnel::start(lab, &pair.a, initiator, &pair.conf_a)?;
        pair.a.reaches(INSIDE_B[0], 1).with_context(|| format!("restart {n}"))?;
    }
    Ok(())
}

fn responder_restarts(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (_a, b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    b.crash()?;
    let _b = Tunnel::start(lab, &pair.b, responder, &pair.conf_b)?;
    // The initiator gives up its session after Keepalive-Timeout + Rekey-Timeout, which is 15 s of silence.
    let started = Instant::now();
    pair.a.reaches(INSIDE_B[0], 30)?;
    let took = started.elapsed();
    ensure!(took < Duration::from_secs(22), "a new session after {took:?}, expected about 15 s");
    Ok(())
}

fn lossy_network(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    pair.router.drop("forward", "udp dport { 51801, 51802 } numgen random mod 100 < 10")?;
    let (_a, _b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 30)?;
    let mut server = pair.b.iperf3()?;
    pair.a.run(&["iperf3", "-c", INSIDE_B[0], "-n", "256K", "--connect-timeout", "15000"])?;
    ensure!(server.ended(Duration::from_secs(20))?.success(), "iperf3's server failed");
    Ok(())
}

fn keepalives_without_traffic(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    pair.conf_a.peers[0].persistent_keepalive = Some(1);
    let (a, b) = pair.start(lab, initiator, responder)?;
    eventually("a handshake that no packet asked for", SOON, || Ok(b.dump()?.peers[0].latest_handshake > 0))?;
    let before = b.dump()?.peers[0].rx;
    eventually("three keepalives of 32 bytes", SOON, || Ok(b.dump()?.peers[0].rx >= before + 3 * 32))?;
    ensure!(a.dump()?.peers[0].persistent_keepalive == "1", "wg should show the interval");
    a.set(&format!("peer {} persistent-keepalive off", pair.conf_b.keys.public))?;
    pair.router.count("after", "forward", &format!("udp dport 51802 {KEEPALIVE}"))?;
    std::thread::sleep(Duration::from_millis(2_500));
    let after = pair.router.counted("after")?;
    // One keepalive may belong to a handshake: wireguard-go repeats an initiation that was answered before it set its
    // timer.
    ensure!(after <= 1, "{after} keepalives in 2.5 s after they were switched off");
    ensure!(a.dump()?.peers[0].persistent_keepalive == "off", "wg should show that it is off");
    Ok(())
}

fn keepalive_in_answer_to_data(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (_a, b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    // The reply to the ping was data for `a`: from now on nothing inside is answered.
    pair.b.drop("input", "iifname wgb")?;
    pair.router.count("keepalives", "forward", &format!("udp sport 51802 {KEEPALIVE}"))?;
    for _ in 0..2 {
        let handshake = b.dump()?.peers[0].latest_handshake;
        let started = Instant::now();
        ensure!(pair.a.run(&["ping", "-n", "-c", "1", "-W", "1", INSIDE_B[0]]).is_err(), "nothing should answer");
        let answered =
            eventually("one keepalive", Duration::from_secs(14), || Ok(pair.router.counted("keepalives")? > 0));
        if b.dump()?.peers[0].latest_handshake != handshake {
            // wireguard-go may repeat its first handshake after five seconds, answered or not; that also answers the
            // data.
            continue;
        }
        answered?;
        let took = started.elapsed();
        ensure!(took > Duration::from_secs(9), "after {took:?}, expected 10 s");
        return Ok(());
    }
    anyhow::bail!("a handshake came in between twice")
}

fn rekeys_under_traffic(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    if std::env::var_os("RUSTGUARD_LONG").is_none() {
        lab.skip("takes minutes, `cargo suite --long` runs it");
        return Ok(());
    }
    let pair = Pair::new(lab, Outside::V4)?;
    let (a, _b) = pair.start(lab, initiator, responder)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    let first = a.dump()?.peers[0].latest_handshake;
    let text = pair.a.run(&["ping", "-n", "-q", "-i", "0.1", "-c", "1350", "-W", "1", INSIDE_B[0]])?;
    ensure!(text.contains(" 1350 received") || text.contains(" 1349 received"), "packets lost over a rekey: {text}");
    let second = a.dump()?.peers[0].latest_handshake;
    ensure!((120..=131).contains(&(second - first)), "a new session after {} s, expected 120", second - first);
    Ok(())
}

/// A peer removed and added again at run time: a new session at once, nothing left of the old one.
#[test]
fn peer_removed_and_added() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let (a, b) = pair.start(lab, Program::Subject, Program::Reference)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        a.set(&format!("peer {} remove", pair.conf_b.keys.public))?;
        ensure!(a.dump()?.peers.is_empty(), "removed");
        pair.a.does_not_reach(INSIDE_B[0])?;
        pair.b.does_not_reach(INSIDE_A[0])?;
        let received = b.dump()?.peers[0].rx;
        a.set(&format!(
            "peer {} allowed-ips 10.9.0.2/32,fd09::2/128 endpoint 10.2.0.2:51802",
            pair.conf_b.keys.public
        ))?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        pair.b.reaches(INSIDE_A[1], 2)?;
        ensure!(b.dump()?.peers[0].rx > received + 148, "by a new initiation");
        Ok(())
    });
}
