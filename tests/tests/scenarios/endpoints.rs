//! Endpoints that have names, and addresses that are valid on one link only.
use anyhow::{Result, ensure};
use rustguard_tests::{INSIDE_B, Lab, Outside, Pair, Program, Tunnel, eventually, scenario_of_rustguard};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("names of endpoints", body);
}

/// Counts the initiations that the router forwards to each address of `b`: 148 bytes, and 8 of UDP.
fn count_initiations(pair: &Pair) -> Result<()> {
    pair.router.count("four", "forward", "ip daddr 10.2.0.2 udp length 156")?;
    pair.router.count("six", "forward", "ip6 daddr fd02::2 udp length 156")
}

/// A name has an IPv4 and an IPv6 address, one of which does not work. The first initiation reaches the other one,
/// without a retry.
fn one_address_is_lost(lab: &Lab, lost: &str, other: &str, wins: &str) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    lab.host("fd02::2", "vpn.test")?;
    lab.host("10.2.0.2", "vpn.test")?;
    pair.conf_a.peers[0].endpoint = Some("vpn.test:51802".to_owned());
    count_initiations(&pair)?;
    pair.router.drop("forward", lost)?;
    let (a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    let endpoint = a.dump()?.peers[0].endpoint.clone();
    let (four, six) = (pair.router.counted("four")?, pair.router.counted("six")?);
    ensure!(endpoint == wins && four <= 1 && six <= 1, "{endpoint}: {four} and {six} initiations");
    // The other address remains a candidate: now it works, and the first does not.
    pair.router.sh("nft flush chain inet lab forward")?;
    pair.router.drop("forward", other)?;
    pair.a.reaches(INSIDE_B[0], 60)
}

#[test]
fn ipv6_wins_with_the_first_initiation_where_ipv4_is_lost() {
    ours(|lab| one_address_is_lost(lab, "ip protocol udp", "ip6 nexthdr udp", "[fd02::2]:51802"));
}

#[test]
fn ipv4_wins_with_the_first_initiation_where_ipv6_is_lost() {
    ours(|lab| one_address_is_lost(lab, "ip6 nexthdr udp", "ip protocol udp", "10.2.0.2:51802"));
}

#[test]
fn each_of_several_addresses_of_one_family_is_tried() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        for address in ["10.2.0.77", "10.2.0.78", "10.2.0.2"] {
            lab.host(address, "vpn.test")?;
        }
        pair.conf_a.peers[0].endpoint = Some("vpn.test:51802".to_owned());
        count_initiations(&pair)?;
        let (_a, _b) = pair.start(lab, Program::Subject, Program::Reference)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let initiations = pair.router.counted("four")?;
        ensure!(initiations == 1, "{initiations} initiations");
        Ok(())
    });
}

/// A link-local address. (wireguard-go answers without the interface, so its answer is lost.) Both `show` and `wg`
/// print the interface's name, whether the file has the name or the index.
fn link_local(lab: &Lab, by_name: bool) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V6)?;
    lab.link((&pair.a, "wan0"), (&pair.b, "wan0"))?;
    pair.b.sh("ip addr add fe80::b/64 dev wan0 nodad")?;
    let index = pair.a.sh("cat /sys/class/net/wan0/ifindex")?;
    let zone = if by_name { "wan0" } else { index.trim() };
    pair.conf_a.peers[0].endpoint = Some(format!("[fe80::b%{zone}]:51802"));
    let (a, _b) = pair.start(lab, Program::Subject, Program::Subject)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    let (stock, ours) = (a.dump()?.peers[0].endpoint.clone(), pair.a.shown("wga")?["peers"][0]["endpoint"].clone());
    ensure!(stock == "[fe80::b%wan0]:51802" && ours == stock, "{stock}, {ours}");
    Ok(())
}

#[test]
fn a_link_local_endpoint_keeps_its_interface_by_name() {
    ours(|lab| link_local(lab, true));
}

#[test]
fn a_link_local_endpoint_keeps_its_interface_by_index() {
    ours(|lab| link_local(lab, false));
}

fn unresolved(lab: &Lab, endpoint: &str, why: &str) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    pair.conf_a.peers[0].endpoint = Some(endpoint.to_owned());
    let _a = Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)?;
    eventually("the resolver has answered", SOON, || {
        Ok(pair.a.shown("wga")?["peers"][0]["unresolved"]["error"].is_string())
    })?;
    let peer = &pair.a.shown("wga")?["peers"][0];
    ensure!(peer["unresolved"]["name"] == endpoint && peer["problem"]["kind"] == "not-resolved", "{peer}");
    ensure!(peer["problem"]["text"].as_str().is_some_and(|text| text.contains(why)), "{peer}");
    let page = pair.a.end_of(pair.a.rustguard()?.args(["show", "wga"]))?.unfolded();
    ensure!(page.contains(&format!("endpoint: {endpoint}, not resolved")), "{page}");
    Ok(())
}

#[test]
fn a_name_without_an_address_is_said() {
    ours(|lab| unresolved(lab, "no-such-name.invalid:51802", "no-such-name.invalid"));
}

#[test]
fn an_interface_that_does_not_exist_is_said() {
    ours(|lab| unresolved(lab, "[fe80::b%nope]:51802", "there is no interface nope"));
}
