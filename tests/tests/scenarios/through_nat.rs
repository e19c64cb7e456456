//! Two members behind routers of every kind reach each other through relays that cannot read the packets.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Gaps, Ip, Lab, Nat, Relayed, eventually, scenario_of_rustguard};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// Handshakes and probes alone make fewer bytes.
const MUCH: u64 = 100_000;
/// Handshakes and probes alone make fewer datagrams.
const SOME: u64 = 50;

fn forwarding<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ways through a peer", body);
}

/// Packets and streams go in both directions, and the relay's host sees none of them.
fn reached(lab: &Lab, relayed: &Relayed) -> Result<()> {
    let _running = relayed.start(lab)?;
    relayed.until_by(Some(0))?;
    let [a, b] = &relayed.members;
    b.node.reaches(&a.inside, 5)?;
    relayed.streams()?;
    let (_, relay) = &relayed.relays[0];
    ensure!(relay.shown_peer(a)?["rx_bytes"].as_u64() > Some(MUCH), "{}", relay.shown_peer(a)?);
    let to_host = format!("cat /sys/class/net/{}/statistics/rx_packets", relay.conf.interface);
    ensure!(relay.node.sh(&to_host)?.trim() == "0", "the relay's host got packets");
    Ok(())
}

fn between(lab: &Lab, a: Nat, b: Nat) -> Result<()> {
    reached(lab, &Relayed::new(lab, [(a, Ip::V4), (b, Ip::V4)], 1)?)
}

#[test]
fn random_ports_at_both_ends() {
    forwarding(|lab| between(lab, Nat::FullyRandom, Nat::Random));
}

#[test]
fn an_address_that_depends_on_the_endpoint() {
    forwarding(|lab| between(lab, Nat::PerDestination, Nat::PortKept));
}

#[test]
fn a_firewall_that_lets_udp_out_to_the_relay_only() {
    forwarding(|lab| {
        let relayed = Relayed::new(lab, [(Nat::UdpBlocked, Ip::V4), (Nat::UdpBlocked, Ip::V4)], 1)?;
        for site in &relayed.sites {
            site.admit(&relayed.relays[0].0)?;
        }
        reached(lab, &relayed)
    });
}

#[test]
fn one_has_only_ipv6_and_the_other_only_ipv4() {
    forwarding(|lab| reached(lab, &Relayed::new(lab, [(Nat::Firewall, Ip::V6), (Nat::PortKept, Ip::V4)], 1)?));
}

#[test]
fn both_behind_one_router() {
    forwarding(|lab| {
        let relayed = Relayed::at_one_site(lab, Nat::PortKept, 1)?;
        relayed.sites[0].isolate()?;
        reached(lab, &relayed)
    });
}

/// Neither a router that forgets its mappings nor a new public address ends a session or a stream.
#[test]
fn routers_forget_and_sites_move() {
    forwarding(|lab| {
        lab.needs("conntrack", "conntrack")?;
        let mut relayed = Relayed::new(lab, [(Nat::FullyRandom, Ip::V4), (Nat::FullyRandom, Ip::V4)], 1)?;
        let running = relayed.start(lab)?;
        let mut traffic = relayed.traffic()?;
        // Both members send: a router that has forgotten a member lets nothing in before that member sends.
        let [a, b] = &relayed.members;
        let _back = Gaps::start(&b.node, "traffic-back", &a.inside)?;
        let mut streams = relayed.streams()?;
        let session =
            |running: &rustguard_tests::Running| anyhow::Ok(running.members[0].dump()?.peers[0].latest_handshake);
        let before = session(&running)?;
        traffic.goes_on(10)?;
        for site in &relayed.sites {
            site.forget()?;
        }
        traffic.goes_on(10)?;
        println!("both routers forgot: the longest gap so far is {:?}", traffic.longest());
        let Relayed { internet, sites, .. } = &mut relayed;
        let moves = Instant::now();
        for site in sites {
            internet.move_site(site)?;
        }
        let moved = moves.elapsed();
        traffic.goes_on(10)?;
        println!("both sites moved: the longest gap so far is {:?}", traffic.longest());
        streams.go_on()?;
        // After fifteen seconds of silence, WireGuard begins a new session.
        let long = moved > Duration::from_secs(10);
        ensure!(long || session(&running)? == before, "another session, {moved:?} after the sites began to move");
        Ok(())
    });
}

/// One relay ends, then the other is cut off without notice. Traffic of one continues through the other.
#[test]
fn the_other_relay_takes_over() {
    forwarding(|lab| {
        let relayed = Relayed::new(lab, [(Nat::FullyRandom, Ip::V4), (Nat::PortKept, Ip::V4)], 2)?;
        let mut running = relayed.start(lab)?;
        // Both paths must be known to work before one is lost.
        relayed.until_ways(2)?;
        let first = relayed.used_relay()?;
        let mut traffic = relayed.traffic()?;
        let mut streams = relayed.streams()?;
        traffic.goes_on(10)?;
        running.relays[first].take().context("the relay runs")?.crash()?;
        relayed.until_by(Some(1 - first))?;
        traffic.goes_on(10)?;
        println!("a relay was killed: the longest gap so far is {:?}", traffic.longest());
        streams.go_on()?;
        // The first relay restarts, and takes over when the other is silent.
        running.relays[first] = Some(relayed.relays[first].1.start(lab)?);
        relayed.until_ways(2)?;
        relayed.internet.unplug(&relayed.relays[1 - first].1.name)?;
        relayed.until_by(Some(first))?;
        traffic.goes_on(10)?;
        println!("the other was cut off: the longest gap so far is {:?}", traffic.longest());
        Ok(())
    });
}

/// `a` is a client of one relay and `b` of another. Babel routes between the relays: from one to the other, or by a
/// third one when the link between these two is lost.
#[test]
fn a_chain_of_relays_goes_round_a_lost_link() {
    forwarding(|lab| {
        let mut relayed = Relayed::new(lab, [(Nat::FullyRandom, Ip::V4), (Nat::FullyRandom, Ip::V4)], 3)?;
        relayed.speak_babel(&[[0, 1], [1, 2], [2, 0]]);
        relayed.have_sessions_with([&[0], &[1]]);
        let _relays = relayed.relays.iter().map(|(_, relay)| relay.start(lab)).collect::<Result<Vec<_>>>()?;
        let _members = relayed.members.iter().map(|member| member.start(lab)).collect::<Result<Vec<_>>>()?;
        let [a, b] = &relayed.members;
        let [(_, relay1), (_, relay2), (_, relay3)] = &relayed.relays[..] else { unreachable!("three relays") };
        // Before that, handshakes are lost, and five seconds pass between two of them.
        for (relay, member) in [(relay1, b), (relay2, a), (relay3, a), (relay3, b)] {
            relay.until_routed(&member.inside)?;
        }
        a.node.reaches(&b.inside, 20)?;
        let (mut traffic, mut streams) = (relayed.traffic()?, relayed.streams()?);
        for relay in [relay1, relay2] {
            ensure!(relay.forwarded()? > SOME, "{} is not used", relay.name);
        }
        let before = relay3.forwarded()?;
        relayed.internet.block("relay1", "relay2")?;
        eventually("the third relay is used", SOON, || Ok(relay3.forwarded()? > before + SOME))?;
        streams.go_on()?;
        traffic.goes_on(10)?;
        println!("a link in the middle was lost: the longest gap so far is {:?}", traffic.longest());
        Ok(())
    });
}

/// The direct address is used while it works, and the relay while it does not.
#[test]
fn the_direct_way_is_left_and_taken_again() {
    forwarding(|lab| {
        let mut relayed = Relayed::new(lab, [(Nat::PortKept, Ip::V4), (Nat::None, Ip::V4)], 1)?;
        let direct = format!("{}:51819, via-peer relay1", relayed.sites[1].inside_v4(1));
        relayed.members[0].conf.peers[0].endpoint = Some(direct);
        let _running = relayed.start(lab)?;
        let mut traffic = relayed.traffic()?;
        relayed.until_by(None)?;
        let mut streams = relayed.streams()?;
        for round in 0..2 {
            relayed.internet.block("home", "office")?;
            relayed.until_by(Some(0))?;
            traffic.goes_on(10)?;
            println!("round {round}, blocked: the longest gap so far is {:?}", traffic.longest());
            relayed.internet.unblock("home", "office")?;
            relayed.until_by(None)?;
            traffic.goes_on(10)?;
            println!("round {round}, open again: the longest gap so far is {:?}", traffic.longest());
        }
        streams.go_on()
    });
}
