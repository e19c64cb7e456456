//! Parities on a network that loses datagrams: lost packets are rebuilt, and a peer without this feature gets no
//! parities.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{INSIDE_B, Lab, Outside, Pair, Program, Up, eventually, scenario_of_rustguard};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// Only these data packets have this length: an echo request of 600 bytes with its headers, padded to 640, the 32 bytes
/// of a message, and a UDP header.
const DATA: &str = "udp length 680";

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("parities", body);
}

/// The entries in `show` for the only peer of `a`, and for the only peer of `b`.
fn shown(pair: &Pair) -> Result<[Value; 2]> {
    Ok([pair.a.shown("wga")?["peers"][0].clone(), pair.b.shown("wgb")?["peers"][0].clone()])
}

/// Sends `count` echo requests quickly. Returns how many had no answer.
fn lost(pair: &Pair, count: u64) -> Result<u64> {
    let count_word = count.to_string();
    let said = pair.a.sh(&format!("ping -n -q -c {count_word} -i 0.005 -W 2 -s 600 {} || true", INSIDE_B[0]))?;
    let received = said.split(" received").next().and_then(|said| said.rsplit(' ').next());
    let received: u64 = received.context("ping's words")?.parse().with_context(|| said.clone())?;
    Ok(count - received)
}

#[test]
fn lost_packets_arrive_and_an_end_can_be_switched_off() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        for conf in [&mut pair.conf_a, &mut pair.conf_b] {
            conf.peers[0].lines = vec!["Parity = 7".into()];
        }
        let _b = Up::start(lab, &pair.b, &pair.conf_b)?;
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        eventually("each end accepts parities", SOON, || {
            Ok(shown(&pair)?.iter().all(|peer| peer["parity"]["accepted"] == true))
        })?;
        // Every twentieth is lost, so never two of a group.
        pair.router.drop("forward", &format!("udp dport 51802 {DATA} numgen inc mod 20 == 0"))?;
        pair.router.count("passed", "postrouting", &format!("udp dport 51802 {DATA}"))?;
        pair.router.count("came", "prerouting", &format!("udp dport 51802 {DATA}"))?;
        let mut unanswered = 0;
        eventually("lost packets are made of parities", SOON, || {
            unanswered += lost(&pair, 140)?;
            Ok(shown(&pair)?[1]["parity"]["rebuilt"].as_u64() >= Some(10))
        })?;
        let [a, b] = shown(&pair)?;
        let dropped = pair.router.counted("came")? - pair.router.counted("passed")?;
        let rebuilt = b["parity"]["rebuilt"].as_u64().context("a number")?;
        ensure!(unanswered + rebuilt <= dropped, "{unanswered} unanswered, {rebuilt} made, {dropped} dropped");
        ensure!(a["parity"]["sent"].as_u64() >= Some(10), "{a}");
        let said = pair.b.end_of(pair.b.rustguard()?.args(["show", "wgb"]))?.stdout;
        ensure!(said.contains(&format!("{rebuilt} lost packets rebuilt")), "{said}");
        // One end switches parity off: the other end stops sending parities to it at once.
        let before = shown(&pair)?[0]["parity"]["sent"].clone();
        ensure!(before.as_u64() > Some(0), "{before}");
        let mut off = pair.a.rustguard()?;
        off.args(["set", "wga", "peer", &pair.conf_b.keys.public, "parity", "off"]);
        ensure!(pair.a.end_of(&mut off)?.success(), "set");
        let passed = pair.router.counted("came")?;
        lost(&pair, 70)?;
        let came = pair.router.counted("came")? - passed;
        ensure!(came == 70 && shown(&pair)?[0]["parity"].is_null(), "{came} datagrams for 70 packets");
        Ok(())
    });
}

#[test]
fn a_stock_peer_gets_offers_and_no_parity() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].lines = vec!["Parity = 7".into()];
        let _b = rustguard_tests::Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        pair.router.count("data", "forward", &format!("udp dport 51802 {DATA}"))?;
        // Only offers have this length: a text of 16 bytes, header, tag and UDP header.
        pair.router.count("short", "forward", "udp dport 51802 udp length 56")?;
        eventually("parities are offered", SOON, || {
            pair.a.reaches(INSIDE_B[0], 5)?;
            Ok(pair.router.counted("short")? > 1)
        })?;
        let before = pair.router.counted("data")?;
        ensure!(lost(&pair, 100)? == 0, "packets are lost");
        let data = pair.router.counted("data")? - before;
        ensure!(data == 100, "{data} datagrams for 100 packets");
        let peer = &pair.a.shown("wga")?["peers"][0]["parity"];
        ensure!(peer["accepted"] == false && peer["sent"] == 0, "{peer}");
        Ok(())
    });
}
