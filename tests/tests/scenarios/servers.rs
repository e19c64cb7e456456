//! Several servers in different places, each of which may fail: relays that speak Babel with each other, and members
//! that have sessions with some of them.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ip, Lab, Nat, Relayed, eventually, scenario_of_rustguard};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// Handshakes and probes alone make fewer datagrams.
const SOME: u64 = 50;

fn servers<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ways through several peers", body);
}

/// Two members behind routers, and relays 1 – 2 – 3. `own` names the relays, from 0 on, with which each member has
/// sessions.
fn line(lab: &Lab, own: [&[usize]; 2]) -> Result<Relayed> {
    let mut relayed = Relayed::new(lab, [(Nat::FullyRandom, Ip::V4), (Nat::PortKept, Ip::V4)], 3)?;
    relayed.speak_babel(&[[0, 1], [1, 2]]);
    relayed.have_sessions_with(own);
    Ok(relayed)
}

/// Relays forward only sealed packets to each other, in both directions, and a cut line recovers by itself.
#[test]
fn a_line_of_servers_carries_what_is_sealed_and_heals() {
    servers(|lab| {
        let relayed = line(lab, [&[0], &[2]])?;
        let _running = relayed.start(lab)?;
        let [a, b] = &relayed.members;
        b.node.reaches(&a.inside, 5)?;
        let (mut traffic, mut streams) = (relayed.traffic()?, relayed.streams()?);
        traffic.goes_on(10)?;
        for (_, relay) in &relayed.relays {
            ensure!(relay.forwarded()? > SOME, "{} is not used", relay.name);
            let to_host = format!("cat /sys/class/net/{}/statistics/rx_packets", relay.conf.interface);
            ensure!(relay.node.sh(&to_host)?.trim() == "0", "the host of {} got packets", relay.name);
        }
        println!("whole: the longest gap was {:?}", traffic.longest_since());
        relayed.internet.block("relay2", "relay3")?;
        let (_, relay1) = &relayed.relays[0];
        eventually("the first server knows of the cut", SOON, || {
            let shown = relay1.node.shown(&relay1.conf.interface)?;
            Ok(shown["dropped"]["forward_no_way"].as_u64() > Some(SOME))
        })?;
        relayed.internet.unblock("relay2", "relay3")?;
        let healed = Instant::now();
        traffic.goes_on(1)?;
        println!("the line was whole again, and so were the members after {:?}", healed.elapsed());
        streams.go_on()
    });
}

/// A member that has sessions with two servers uses the one with the shortest round trip to the other end. It switches
/// when that server is killed, and back when it runs again.
#[test]
fn a_member_with_two_servers_changes_over() {
    servers(|lab| {
        let mut relayed = line(lab, [&[0, 2], &[1]])?;
        // Longer than a round trip on a busy machine.
        relayed.internet.delay("relay1", Duration::from_millis(100))?;
        let mut running = relayed.start(lab)?;
        let mut traffic = relayed.traffic()?;
        let mut streams = relayed.streams()?;
        relayed.until_by(Some(2))?;
        relayed.until_ways(2)?;
        traffic.goes_on(10)?;
        println!("before: the longest gap was {:?}", traffic.longest_since());
        running.relays[2].take().context("the relay runs")?.crash()?;
        relayed.until_by(Some(0))?;
        traffic.goes_on(10)?;
        println!("the nearer server was killed: the longest gap was {:?}", traffic.longest_since());
        streams.go_on()?;
        running.relays[2] = Some(relayed.relays[2].1.start(lab)?);
        relayed.until_by(Some(2))?;
        traffic.goes_on(10)?;
        println!("it runs again, and is used: the longest gap was {:?}", traffic.longest_since());
        relayed.internet.unplug("relay3")?;
        relayed.until_by(Some(0))?;
        traffic.goes_on(10)?;
        println!("it was cut off: the longest gap was {:?}", traffic.longest_since());
        streams.go_on()
    });
}

/// Each member has two servers, and no server is used by both. Any of them may fail.
#[test]
fn each_of_four_servers_may_die() {
    servers(|lab| {
        let mut relayed = Relayed::new(lab, [(Nat::FullyRandom, Ip::V4), (Nat::PortKept, Ip::V4)], 4)?;
        relayed.speak_babel(&[[0, 2], [0, 3], [1, 2], [1, 3]]);
        relayed.have_sessions_with([&[0, 1], &[2, 3]]);
        let mut running = relayed.start(lab)?;
        let mut traffic = relayed.traffic()?;
        let mut streams = relayed.streams()?;
        for n in 0..4 {
            for member in 0..2 {
                relayed.until_ways_of(member, 2)?;
            }
            traffic.goes_on(10)?;
            println!("before: the longest gap was {:?}", traffic.longest_since());
            running.relays[n].take().context("the relay runs")?.crash()?;
            traffic.goes_on(40)?;
            println!("server {n} was killed: the longest gap was {:?}", traffic.longest_since());
            streams.go_on()?;
            running.relays[n] = Some(relayed.relays[n].1.start(lab)?);
        }
        Ok(())
    });
}
