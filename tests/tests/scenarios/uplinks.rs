//! A host with two uplinks: when the route to a peer moves from one to the other, the tunnel's source address moves
//! with it.
//!
//! ```text
//!    a  10.1.0.2 one ── 10.1.0.1  router  10.3.0.1 ── 10.3.0.2  b
//!       10.2.0.2 two ── 10.2.0.1
//! ```
//!
//! The router has a strict reverse-path filter: it drops packets whose source address belongs to the other link.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Lab, Node, PeerConf, Program, Tunnel, eventually, scenario};
use std::time::Duration;

/// Less than WireGuard's timers take to notice that nothing comes back, and less than a passive keepalive takes.
const AT_ONCE: Duration = Duration::from_secs(8);
/// Less than WireGuard's timers take to find out that nothing comes back.
const SOON: Duration = Duration::from_secs(10);
/// The addresses inside the tunnel of `a` and of `b`.
const INSIDE: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// The uplinks of `a`.
const LINKS: [&str; 2] = ["one", "two"];

struct Uplinks {
    a: Node,
    router: Node,
    b: Node,
    conf_a: Conf,
    conf_b: Conf,
    v6: bool,
}

impl Uplinks {
    /// The default route of `a` uses the first uplink.
    fn new(lab: &Lab, v6: bool) -> Result<Self> {
        let (a, router, b) = (lab.node("a")?, lab.node("router")?, lab.node("b")?);
        router
            .sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.default.rp_filter=1")?;
        a.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")?;
        for (net, node, interface) in [(1, &a, "one"), (2, &a, "two"), (3, &b, "uplink")] {
            lab.link((node, interface), (&router, &format!("net{net}")))?;
            for (node, interface, last) in [(node, interface, 2), (&router, &*format!("net{net}"), 1)] {
                node.sh(&format!(
                    "ip addr add 10.{net}.0.{last}/24 dev {interface}; ip addr add fd0{net}::{last}/64 dev {interface}"
                ))?;
            }
        }
        // IPv6 has no reverse-path filter in the kernel.
        for (net, other) in [(1, 2), (2, 1)] {
            router.drop("prerouting", &format!("iifname net{net} ip6 saddr fd0{other}::2"))?;
        }
        b.sh("ip route add default via 10.3.0.1; ip -6 route add default via fd03::1")?;
        let (mut conf_a, mut conf_b) = (Conf::new("wga")?, Conf::new("wgb")?);
        for (conf, inside) in [(&mut conf_a, INSIDE[0]), (&mut conf_b, INSIDE[1])] {
            conf.listen_port = Some(51_820);
            conf.addresses = vec![format!("{inside}/24")];
        }
        let this = |conf: &Conf, inside| PeerConf::new(&conf.keys.public, &format!("{inside}/32"));
        let (mut peer_a, mut peer_b) = (this(&conf_a, INSIDE[0]), this(&conf_b, INSIDE[1]));
        peer_a.endpoint = Some(if v6 { "[fd01::2]:51820" } else { "10.1.0.2:51820" }.to_owned());
        peer_b.endpoint = Some(if v6 { "[fd03::2]:51820" } else { "10.3.0.2:51820" }.to_owned());
        conf_a.peers.push(peer_b);
        conf_b.peers.push(peer_a);
        let this = Self { a, router, b, conf_a, conf_b, v6 };
        this.leave_by("one")?;
        Ok(this)
    }

    /// Moves the default route of `a`.
    fn leave_by(&self, link: &str) -> Result<()> {
        let net = if link == "one" { 1 } else { 2 };
        self.a.sh(&if self.v6 {
            format!("ip -6 route replace default via fd0{net}::1 dev {link}")
        } else {
            format!("ip route replace default via 10.{net}.0.1 dev {link}")
        })?;
        Ok(())
    }

    fn start(&self, lab: &Lab, there: Program) -> Result<(Tunnel, Tunnel)> {
        let b = Tunnel::start(lab, &self.b, there, &self.conf_b)?;
        Ok((Tunnel::start(lab, &self.a, Program::Subject, &self.conf_a)?, b))
    }

    /// The endpoint that `b` has for `a`.
    fn seen(&self, b: &Tunnel) -> Result<String> {
        Ok(b.dump()?.peers[0].endpoint.clone())
    }
}

/// Moves the route there and back, twice. `who` sends, and the other end answers.
fn follows(lab: &Lab, v6: bool, who: usize) -> Result<()> {
    let uplinks = Uplinks::new(lab, v6)?;
    let (_a, b) = uplinks.start(lab, Program::Reference)?;
    let (sender, to) = [(&uplinks.a, INSIDE[1]), (&uplinks.b, INSIDE[0])][who];
    sender.reaches(to, 10)?;
    for link in ["two", "one", "two", "one"] {
        uplinks.leave_by(link)?;
        eventually(&format!("packets get through by {link}"), SOON, || Ok(sender.answers(to)))?;
        let net = 1 + LINKS.iter().position(|other| *other == link).unwrap_or(0);
        let here = if v6 { format!("[fd0{net}::2]:51820") } else { format!("10.{net}.0.2:51820") };
        ensure!(uplinks.seen(&b)? == here, "{} instead of {here}", uplinks.seen(&b)?);
    }
    Ok(())
}

#[test]
fn the_source_follows_the_route_of_who_sends() {
    scenario(|lab| follows(lab, false, 0));
}

#[test]
fn the_source_follows_the_route_of_who_answers() {
    scenario(|lab| follows(lab, false, 1));
}

#[test]
fn the_source_follows_the_route_over_ipv6() {
    scenario(|lab| follows(lab, true, 1));
}

/// Only a policy rule changes, and it matches the mark of the tunnel's packets.
#[test]
fn the_source_follows_a_rule() {
    scenario(|lab| {
        let uplinks = Uplinks::new(lab, false)?;
        let (a, b) = uplinks.start(lab, Program::Reference)?;
        a.set("fwmark 7")?;
        uplinks.a.sh("ip route add default via 10.2.0.1 dev two table 7")?;
        uplinks.b.reaches(INSIDE[0], 10)?;
        uplinks.a.sh("ip rule add fwmark 7 lookup 7")?;
        eventually("packets get through", SOON, || Ok(uplinks.b.answers(INSIDE[0])))?;
        ensure!(uplinks.seen(&b)? == "10.2.0.2:51820", "{}", uplinks.seen(&b)?);
        uplinks.a.sh("ip rule del fwmark 7 lookup 7")?;
        eventually("packets get through again", SOON, || Ok(uplinks.b.answers(INSIDE[0])))?;
        ensure!(uplinks.seen(&b)? == "10.1.0.2:51820", "{}", uplinks.seen(&b)?);
        Ok(())
    });
}

/// An endpoint that is bound to an interface stays there.
#[test]
fn a_pinned_interface_stays() {
    scenario(|lab| {
        let mut uplinks = Uplinks::new(lab, false)?;
        uplinks.conf_a.peers[0].endpoint = Some("10.3.0.2:51820 via one".to_owned());
        if rustguard_tests::subject() == rustguard_tests::Subject::WireguardGo {
            lab.skip("endpoints by an interface: wireguard-go is the subject");
            return Ok(());
        }
        uplinks.a.sh("ip route add default via 10.1.0.1 dev one metric 100")?;
        let (_a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        uplinks.leave_by("two")?;
        for _ in 0..3 {
            uplinks.a.reaches(INSIDE[1], 3)?;
            ensure!(uplinks.seen(&b)? == "10.1.0.2:51820", "{}", uplinks.seen(&b)?);
        }
        Ok(())
    });
}

/// The answers to a peer always leave by another link than its packets use, as NAT may require. They keep the source
/// address that the peer knows, whatever else changes.
#[test]
fn an_address_that_the_route_never_led_by_stays() {
    scenario(|lab| {
        if rustguard_tests::subject() == rustguard_tests::Subject::WireguardGo {
            lab.skip("wireguard-go forgets it for a packet");
            return Ok(());
        }
        let mut uplinks = Uplinks::new(lab, false)?;
        uplinks.router.sh("for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $each; done")?;
        uplinks.conf_a.peers[0].endpoint = None;
        uplinks.leave_by("two")?;
        let (_a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.b.reaches(INSIDE[0], 10)?;
        for _ in 0..3 {
            uplinks.a.sh("ip route add 192.0.2.0/24 via 10.1.0.1; ip route del 192.0.2.0/24 via 10.1.0.1")?;
            uplinks.b.reaches(INSIDE[0], 1)?;
            ensure!(uplinks.seen(&b)? == "10.1.0.2:51820", "{}", uplinks.seen(&b)?);
        }
        Ok(())
    });
}

/// The router counts the initiations of `a`. They have 148 bytes in UDP.
fn count_initiations(uplinks: &Uplinks) -> Result<()> {
    uplinks.router.count("initiations", "prerouting", "iifname { net1, net2 } udp dport 51820 udp length 156")
}

/// Checks that the router has seen this number of initiations from `a`, or each of them once more: on a busy machine,
/// the first after a change may still have the address of before, and is repeated after a second.
fn has_initiated(uplinks: &Uplinks, times: u64) -> Result<()> {
    eventually(&format!("{times} initiations"), AT_ONCE, || Ok(uplinks.router.counted("initiations")? >= times))?;
    let seen = uplinks.router.counted("initiations")?;
    ensure!((times..=2 * times).contains(&seen), "{seen} initiations instead of {times}");
    Ok(())
}

/// No packets are sent: only the change of the network makes `a` start a handshake.
fn is_told(lab: &Lab, v6: bool) -> Result<()> {
    if !lab.is_about_rustguard("what peers hear of a changed network") {
        return Ok(());
    }
    let uplinks = Uplinks::new(lab, v6)?;
    let (_a, b) = uplinks.start(lab, Program::Reference)?;
    uplinks.a.reaches(INSIDE[1], 10)?;
    count_initiations(&uplinks)?;
    for (times, (link, net)) in [("two", 2), ("one", 1)].into_iter().enumerate() {
        uplinks.leave_by(link)?;
        let here = if v6 { format!("[fd0{net}::2]:51820") } else { format!("10.{net}.0.2:51820") };
        eventually(&format!("the peer has {here}"), AT_ONCE, || Ok(uplinks.seen(&b)? == here))?;
        has_initiated(&uplinks, times as u64 + 1)?;
    }
    Ok(())
}

#[test]
fn an_idle_peer_is_told_at_once_that_the_route_has_moved() {
    scenario(|lab| is_told(lab, false));
}

#[test]
fn an_idle_peer_is_told_at_once_that_the_route_has_moved_over_ipv6() {
    scenario(|lab| is_told(lab, true));
}

/// As with a laptop that is unplugged before it has found a wireless network.
#[test]
fn one_who_sends_gets_answers_again_when_an_uplink_has_gone_and_another_has_come() {
    scenario(|lab| {
        if !lab.is_about_rustguard("what peers hear of a changed network") {
            return Ok(());
        }
        let uplinks = Uplinks::new(lab, false)?;
        uplinks.a.sh("ip link set two down")?;
        let (_a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.b.reaches(INSIDE[0], 10)?;
        // Only `b` sends, and nothing reaches `a` that it could answer.
        let mut ping = uplinks.b.keeps_pinging(INSIDE[0])?;
        uplinks.a.sh("ip link set one down")?;
        uplinks.a.sh("ip link set two up; ip addr show dev two | grep -q 10.2.0.2")?;
        uplinks.a.sh("ip route add default via 10.2.0.1 dev two")?;
        ping.lost_at_most(15)?;
        ensure!(uplinks.seen(&b)? == "10.2.0.2:51820", "{}", uplinks.seen(&b)?);
        Ok(())
    });
}

/// The new network has IPv6 only, and the peer's name has an address of each version.
#[test]
fn a_name_whose_address_has_no_route_any_more_is_resolved_again() {
    scenario(|lab| {
        if !lab.is_about_rustguard("names after a change of the network") {
            return Ok(());
        }
        let mut uplinks = Uplinks::new(lab, false)?;
        lab.host("10.3.0.2", "b.example")?;
        lab.host("fd03::2", "b.example")?;
        uplinks.conf_a.peers[0].endpoint = Some("b.example:51820".to_owned());
        uplinks.conf_b.peers[0].endpoint = None;
        let (a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        ensure!(uplinks.seen(&b)? == "10.1.0.2:51820", "{}", uplinks.seen(&b)?);
        uplinks.a.sh("ip -6 route add default via fd01::1 dev one; ip route del default")?;
        eventually("the other address is used", AT_ONCE, || Ok(a.dump()?.peers[0].endpoint == "[fd03::2]:51820"))?;
        eventually("the peer is told", AT_ONCE, || Ok(uplinks.seen(&b)? == "[fd01::2]:51820"))
    });
}

#[test]
fn an_idle_peer_is_told_of_another_address_on_the_same_link() {
    scenario(|lab| {
        if !lab.is_about_rustguard("what peers hear of a changed network") {
            return Ok(());
        }
        let uplinks = Uplinks::new(lab, false)?;
        let (_a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        uplinks.a.sh("ip addr add 10.1.0.3/24 dev one; ip addr del 10.1.0.2/24 dev one")?;
        eventually("the peer has the new address", AT_ONCE, || Ok(uplinks.seen(&b)? == "10.1.0.3:51820"))
    });
}

/// The cable may be in another network now that uses the same addresses.
#[test]
fn an_idle_peer_is_greeted_when_the_link_is_back() {
    scenario(|lab| {
        if !lab.is_about_rustguard("what peers hear of a changed network") {
            return Ok(());
        }
        let uplinks = Uplinks::new(lab, false)?;
        let (_a, _b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        count_initiations(&uplinks)?;
        uplinks.router.sh("ip link set net1 down")?;
        eventually("no carrier", SOON, || Ok(uplinks.a.sh("ip link show one")?.contains("NO-CARRIER")))?;
        uplinks.router.sh("ip link set net1 up")?;
        has_initiated(&uplinks, 1)
    });
}

/// Address changes by containers, a renewed lease and the tunnel itself.
#[test]
fn addresses_and_links_that_lead_to_no_peer_cost_no_handshake() {
    scenario(|lab| {
        if !lab.is_about_rustguard("what peers hear of a changed network") {
            return Ok(());
        }
        let uplinks = Uplinks::new(lab, false)?;
        let (_a, b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        count_initiations(&uplinks)?;
        uplinks.a.sh("for n in $(seq 100); do
                 ip link add ve$n type veth peer name ce$n
                 ip addr add 172.17.$n.1/24 dev ve$n; ip link set ve$n up; ip link set ce$n up
                 ip addr add 10.9.7.$n/32 dev wga
             done
             ip addr replace 10.1.0.2/24 dev one valid_lft 3600 preferred_lft 3600
             for n in $(seq 100); do ip link del ve$n; done")?;
        // The next relevant change causes the first handshake.
        uplinks.leave_by("two")?;
        eventually("the peer has the new address", AT_ONCE, || Ok(uplinks.seen(&b)? == "10.2.0.2:51820"))?;
        has_initiated(&uplinks, 1)
    });
}

#[test]
fn a_peer_that_had_a_session_is_greeted_when_the_interface_is_set_up_again() {
    scenario(|lab| {
        if !lab.is_about_rustguard("an interface that is set up again") {
            return Ok(());
        }
        let uplinks = Uplinks::new(lab, false)?;
        let (_a, _b) = uplinks.start(lab, Program::Reference)?;
        uplinks.a.reaches(INSIDE[1], 10)?;
        count_initiations(&uplinks)?;
        uplinks.a.sh("ip link set wga down; ip link set wga up")?;
        has_initiated(&uplinks, 1)
    });
}
