//! A host with two uplinks: when the route to a peer moves from one to the other, the tunnel's own address moves with it.
//!
//! ```text
//!    a  10.1.0.2 one ── 10.1.0.1  router  10.3.0.1 ── 10.3.0.2  b
//!       10.2.0.2 two ── 10.2.0.1
//! ```
//!
//! The router drops what comes from an address by the wrong link: a strict reverse path filter.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Lab, Node, PeerConf, Program, Tunnel, eventually, scenario};
use std::time::Duration;

/// Less than WireGuard's timers take to find out that nothing comes back.
const SOON: Duration = Duration::from_secs(10);
/// Inside the tunnel: of `a`, of `b`.
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
    /// The default route of `a` is by the first.
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
        // IPv6 has no such filter of its own.
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

    /// Where `b` has `a`.
    fn seen(&self, b: &Tunnel) -> Result<String> {
        Ok(b.dump()?.peers[0].endpoint.clone())
    }
}

/// There and back, twice: `who` sends, the other end answers.
fn follows(lab: &Lab, v6: bool, who: usize) -> Result<()> {
    let uplinks = Uplinks::new(lab, v6)?;
    let (_a, b) = uplinks.start(lab, Program::Reference)?;
    let (sender, to) = [(&uplinks.a, INSIDE[1]), (&uplinks.b, INSIDE[0])][who];
    sender.reaches(to, 10)?;
    for link in ["two", "one", "two", "one"] {
        uplinks.leave_by(link)?;
        eventually(&format!("packets get through by {link}"), SOON, || Ok(sender.reaches(to, 1).is_ok()))?;
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

/// Only a policy rule changes, and it is about the mark of the tunnel's packets.
#[test]
fn the_source_follows_a_rule() {
    scenario(|lab| {
        let uplinks = Uplinks::new(lab, false)?;
        let (a, b) = uplinks.start(lab, Program::Reference)?;
        a.set("fwmark 7")?;
        uplinks.a.sh("ip route add default via 10.2.0.1 dev two table 7")?;
        uplinks.b.reaches(INSIDE[0], 10)?;
        uplinks.a.sh("ip rule add fwmark 7 lookup 7")?;
        eventually("packets get through", SOON, || Ok(uplinks.b.reaches(INSIDE[0], 1).is_ok()))?;
        ensure!(uplinks.seen(&b)? == "10.2.0.2:51820", "{}", uplinks.seen(&b)?);
        uplinks.a.sh("ip rule del fwmark 7 lookup 7")?;
        eventually("packets get through again", SOON, || Ok(uplinks.b.reaches(INSIDE[0], 1).is_ok()))?;
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

/// A peer that has always been answered by another link than it came in by, as one behind address translation may have to be,
/// is answered from the address that it knows, whatever else changes.
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
