//! The laboratory itself: each kind of router treats plain datagrams as its name says.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Host, Internet, Ip, Lab, Nat, Site, scenario};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

/// The port of the member's socket and of the hosts' sockets.
const PORT: u16 = 51_820;

/// A site with one member, and three hosts. Each has a socket.
struct Around {
    internet: Internet,
    site: Site,
    member: UdpSocket,
    hosts: Vec<(Host, UdpSocket)>,
}

impl Around {
    fn new(lab: &Lab, nat: Nat) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let mut hosts = Vec::new();
        for name in ["one", "two", "three"] {
            let host = internet.host(lab, name, Ip::Both)?;
            let socket = host.node.udp((Ipv6Addr::UNSPECIFIED, PORT))?;
            hosts.push((host, socket));
        }
        let site = internet.site(lab, "home", nat, Ip::Both, 1)?;
        let member = site.members[0].udp((Ipv6Addr::UNSPECIFIED, PORT))?;
        Ok(Self { internet, site, member, hosts })
    }

    /// The source that a host sees when the member sends to it.
    fn seen(&self, host: usize) -> Result<SocketAddr> {
        let (at, socket) = &self.hosts[host];
        send(&self.member, at.at(PORT), "to a host")?;
        received(socket, "to a host")
    }

    /// The member receives a host's datagram to this address.
    fn gets(&self, from: usize, to: SocketAddr) -> Result<()> {
        send(&self.hosts[from].1, to, "let in")?;
        received(&self.member, "let in").map(drop)
    }

    /// The member does not receive a host's datagram to this address: the next datagram that it receives comes from
    /// another host, sent later to the member's mapped address.
    fn does_not_get(&self, from: usize, to: SocketAddr) -> Result<()> {
        send(&self.hosts[from].1, to, "unasked")?;
        let known = self.seen(0)?;
        send(&self.hosts[0].1, known, "an answer")?;
        received(&self.member, "an answer").map(drop)
    }
}

fn send(socket: &UdpSocket, to: SocketAddr, text: &str) -> Result<()> {
    let to = match to.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
        IpAddr::V6(_) => to,
    };
    socket.send_to(text.as_bytes(), to).with_context(|| format!("send \"{text}\" to {to}"))?;
    Ok(())
}

/// The next datagram and its source.
fn any(socket: &UdpSocket) -> Result<(String, SocketAddr)> {
    let mut buffer = [0; 100];
    let (n, from) = socket.recv_from(&mut buffer).context("no datagram")?;
    Ok((String::from_utf8_lossy(&buffer[..n]).into_owned(), SocketAddr::new(from.ip().to_canonical(), from.port())))
}

/// The source of the next datagram, which has this text.
fn received(socket: &UdpSocket, text: &str) -> Result<SocketAddr> {
    let (got, from) = any(socket)?;
    ensure!(got == text, "\"{got}\" from {from} instead of \"{text}\"");
    Ok(from)
}

fn around(lab: &Lab, nat: Nat, body: impl FnOnce(&mut Around) -> Result<()>) -> Result<()> {
    lab.needs("conntrack", "conntrack")?;
    body(&mut Around::new(lab, nat)?)
}

#[test]
fn without_nat_anybody_reaches_a_member() {
    scenario(|lab| {
        around(lab, Nat::None, |around| {
            let own = (around.site.inside_v4(1), PORT).into();
            around.gets(1, own).context("IPv4")?;
            around.gets(2, (around.site.inside_v6(1), PORT).into()).context("IPv6")?;
            ensure!(around.seen(0)? == own);
            Ok(())
        })
    });
}

#[test]
fn a_firewall_lets_in_whom_a_member_has_asked() {
    scenario(|lab| {
        around(lab, Nat::Firewall, |around| {
            let own = (around.site.inside_v4(1), PORT).into();
            ensure!(around.seen(0)? == own, "no translation");
            around.does_not_get(1, own)?;
            around.seen(1)?;
            around.gets(1, own)?;
            around.site.forget()?;
            around.does_not_get(1, own).context("forgotten")?;
            Ok(())
        })
    });
}

#[test]
fn ipv6_is_filtered_and_not_translated() {
    scenario(|lab| {
        around(lab, Nat::PortKept, |around| {
            let own = (around.site.inside_v6(1), PORT).into();
            around.does_not_get(1, own)?;
            let (host, socket) = &around.hosts[1];
            send(&around.member, host.at_v6(PORT), "over IPv6")?;
            ensure!(received(socket, "over IPv6")? == own);
            around.gets(1, own)?;
            Ok(())
        })
    });
}

#[test]
fn masquerade_keeps_the_port_for_each_endpoint_and_filters_by_endpoint() {
    scenario(|lab| {
        around(lab, Nat::PortKept, |around| {
            let outside = SocketAddr::new(around.site.outside(), PORT);
            ensure!(around.seen(0)? == outside && around.seen(1)? == outside);
            around.gets(1, outside).context("it has been asked")?;
            around.does_not_get(2, outside).context("it has not been asked")?;
            // The unsolicited packet has left no state that would change the port towards its sender.
            ensure!(around.seen(2)? == outside);
            around.site.forget()?;
            around.does_not_get(1, outside).context("forgotten")?;
            ensure!(around.seen(1)? == outside, "the same port again");
            Ok(())
        })
    });
}

/// The first packet of the two decides: one from outside occupies the port, one from inside opens it.
#[test]
fn a_router_without_a_firewall_keeps_what_it_refuses() {
    scenario(|lab| {
        around(lab, Nat::Plain, |around| {
            let outside = SocketAddr::new(around.site.outside(), PORT);
            ensure!(around.seen(0)? == outside && around.seen(1)? == outside);
            around.gets(1, outside).context("it has been asked")?;
            around.does_not_get(2, outside).context("it has not been asked")?;
            let seen = around.seen(2)?;
            ensure!(seen.ip() == outside.ip() && seen.port() != PORT, "the port is taken: {seen}");
            around.site.forget()?;
            ensure!(around.seen(2)? == outside);
            around.gets(2, outside)
        })
    });
}

/// Each endpoint sees a different port, and after the router has forgotten its mappings, it chooses new ones.
fn another_port_for_each(around: &mut Around) -> Result<()> {
    let all = |around: &Around| (0..3).map(|host| around.seen(host)).collect::<Result<Vec<_>>>();
    let (before, again) = (all(around)?, all(around)?);
    ensure!(before == again, "while it remembers, it keeps its choice: {before:?}, {again:?}");
    around.site.forget()?;
    let after = all(around)?;
    // Six choices of 64,000 ports. The probability that all are equal is 1 : 10^24.
    let ports: BTreeSet<u16> = before.iter().chain(&after).map(SocketAddr::port).collect();
    ensure!(ports.len() > 2, "{ports:?}");
    ensure!(before.iter().chain(&after).all(|seen| seen.ip() == around.site.outside()));
    around.does_not_get(2, after[1]).context("the port for another host")?;
    around.gets(1, after[1])?;
    Ok(())
}

#[test]
fn masquerade_random_takes_another_port_for_each_endpoint() {
    scenario(|lab| around(lab, Nat::Random, another_port_for_each));
}

#[test]
fn masquerade_fully_random_takes_another_port_for_each_endpoint() {
    scenario(|lab| around(lab, Nat::FullyRandom, another_port_for_each));
}

#[test]
fn the_address_outside_can_depend_on_the_endpoint() {
    scenario(|lab| {
        around(lab, Nat::PerDestination, |around| {
            for host in 0..3 {
                let IpAddr::V4(to) = around.hosts[host].0.at(PORT).ip() else { unreachable!("`at` is for IPv4") };
                let odd = to.octets()[3] % 2 == 1;
                let outside = if odd { around.site.outside_second() } else { around.site.outside() };
                let seen = around.seen(host)?;
                ensure!(seen == SocketAddr::new(outside, PORT), "{to} sees {seen}");
                around.gets(host, seen)?;
            }
            Ok(())
        })
    });
}

#[test]
fn a_full_cone_lets_in_anybody() {
    scenario(|lab| {
        around(lab, Nat::FullCone, |around| {
            let outside = SocketAddr::new(around.site.outside(), PORT);
            around.does_not_get(1, outside).context("before the member has sent anything")?;
            ensure!(around.seen(0)? == outside);
            around.gets(1, outside)?;
            around.gets(2, outside)?;
            around.site.forget()?;
            send(&around.hosts[1].1, outside, "unasked")?;
            ensure!(around.seen(0)? == outside);
            send(&around.hosts[0].1, outside, "an answer")?;
            received(&around.member, "an answer").context("forgotten")?;
            Ok(())
        })
    });
}

#[test]
fn blocked_udp_reaches_admitted_hosts_only() {
    scenario(|lab| {
        around(lab, Nat::UdpBlocked, |around| {
            around.site.admit(&around.hosts[0].0)?;
            let (other, socket) = &around.hosts[1];
            send(&around.member, other.at(PORT), "stopped")?;
            send(&around.member, other.at_v6(PORT), "stopped")?;
            let outside = around.seen(0)?;
            send(&around.hosts[0].1, outside, "an answer")?;
            received(&around.member, "an answer")?;
            // The first datagram that this host receives is the one sent after it was admitted.
            around.site.admit(other)?;
            send(&around.member, other.at(PORT), "through")?;
            received(socket, "through")?;
            Ok(())
        })
    });
}

/// Two members reach each other at their own addresses, and at the outside ones with and without hairpin.
#[test]
fn two_members_behind_one_router() {
    scenario(|lab| {
        let mut internet = Internet::new(lab)?;
        let host = internet.host(lab, "one", Ip::V4)?;
        let site = internet.site(lab, "home", Nat::PortKept, Ip::V4, 2)?;
        let (at_host, a, b) = (
            host.node.udp((Ipv6Addr::UNSPECIFIED, PORT))?,
            site.members[0].udp((Ipv6Addr::UNSPECIFIED, PORT))?,
            site.members[1].udp((Ipv6Addr::UNSPECIFIED, PORT + 1))?,
        );
        let own: SocketAddr = (site.inside_v4(2), PORT + 1).into();
        send(&a, own, "in one LAN")?;
        ensure!(received(&b, "in one LAN")? == (site.inside_v4(1), PORT).into());
        site.isolate()?;
        send(&a, own, "stopped")?;
        // Both get a mapped port outside.
        let mut outside = Vec::new();
        for socket in [&a, &b] {
            send(socket, host.at(PORT), "to a host")?;
            outside.push(received(&at_host, "to a host")?);
        }
        let expected = [PORT, PORT + 1].map(|port| SocketAddr::new(site.outside(), port));
        ensure!(outside == expected, "{outside:?}");
        send(&a, outside[1], "stopped")?;
        site.hairpin()?;
        // A connection tracked before the rule would bypass the rule.
        site.router.run(&["conntrack", "-F"])?;
        send(&a, outside[1], "by hairpin")?;
        ensure!(received(&b, "by hairpin")? == outside[0], "the source is outside too");
        send(&b, outside[0], "back")?;
        ensure!(received(&a, "back")? == outside[1]);
        Ok(())
    });
}

/// Two members whose mapped addresses a host has seen.
struct Apart {
    host: Host,
    at_host: UdpSocket,
    ends: [(UdpSocket, SocketAddr); 2],
}

impl Apart {
    fn new(lab: &Lab, nats: [Nat; 2]) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let host = internet.host(lab, "one", Ip::V4)?;
        let at_host = host.node.udp((Ipv6Addr::UNSPECIFIED, PORT))?;
        let mut end = |name, nat| -> Result<_> {
            let site = internet.site(lab, name, nat, Ip::V4, 1)?;
            let socket = site.members[0].udp((Ipv6Addr::UNSPECIFIED, PORT))?;
            let seen = to_host(&socket, &host, &at_host)?;
            Ok((socket, seen))
        };
        let ends = [end("home", nats[0])?, end("office", nats[1])?];
        Ok(Self { host, at_host, ends })
    }

    /// The first member sends to the other's mapped address. From then on, its router lets the answer in.
    fn opens(&self) -> Result<()> {
        let [(a, _), (_, at_b)] = &self.ends;
        send(a, *at_b, "opens")?;
        // When the next datagram has arrived, the router has handled this one.
        to_host(a, &self.host, &self.at_host).map(drop)
    }

    /// The datagram that an end receives before one that certainly arrives, and its source.
    fn before_the_end(&self, end: usize) -> Result<Option<(String, SocketAddr)>> {
        let (socket, seen) = &self.ends[end];
        send(&self.at_host, *seen, "the end")?;
        let got = any(socket)?;
        if got.0 == "the end" {
            return Ok(None);
        }
        received(socket, "the end")?;
        Ok(Some(got))
    }
}

/// The source that the host sees of this member.
fn to_host(member: &UdpSocket, host: &Host, at_host: &UdpSocket) -> Result<SocketAddr> {
    send(member, host.at(PORT), "to a host")?;
    received(at_host, "to a host")
}

/// Both members send to the other's mapped address, and the first then answers to the source of the second's datagram.
fn punched(lab: &Lab, nats: [Nat; 2]) -> Result<()> {
    let apart = Apart::new(lab, nats)?;
    let [(a, at_a), (b, _)] = &apart.ends;
    apart.opens()?;
    let early = apart.before_the_end(1)?;
    ensure!(early.is_none(), "nobody has opened the way there: {early:?}");
    send(b, *at_a, "there")?;
    let from = received(a, "there")?;
    send(a, from, "back")?;
    received(b, "back").map(drop)
}

#[test]
fn two_routers_that_keep_ports_open_for_each_other() {
    scenario(|lab| punched(lab, [Nat::PortKept, Nat::PortKept]));
}

#[test]
fn a_router_with_random_ports_opens_for_a_full_cone_only() {
    scenario(|lab| punched(lab, [Nat::FullCone, Nat::FullyRandom]));
}

#[test]
fn a_router_with_random_ports_does_not_open_for_one_that_filters() {
    scenario(|lab| {
        let apart = Apart::new(lab, [Nat::PortKept, Nat::FullyRandom])?;
        let [(_, at_a), (b, _)] = &apart.ends;
        apart.opens()?;
        send(b, *at_a, "there")?;
        for end in [0, 1] {
            let got = apart.before_the_end(end)?;
            ensure!(got.is_none(), "{got:?}");
        }
        Ok(())
    });
}

#[test]
fn sites_move_and_links_fail() {
    scenario(|lab| {
        around(lab, Nat::FullCone, |around| {
            let before = around.seen(0)?;
            let Around { internet, site, .. } = around;
            internet.move_site(site)?;
            let after = around.seen(0)?;
            ensure!(
                after == SocketAddr::new(around.site.outside(), PORT) && after.ip() != before.ip(),
                "{before}, {after}"
            );
            around.gets(1, after).context("it works as before")?;
            around.does_not_get(2, before).context("nobody is at the old address")?;
            let (host, socket) = &around.hosts[2];
            let stopped = |from: IpAddr| -> Result<()> {
                send(&around.member, SocketAddr::new(from, PORT), "stopped")?;
                send(socket, after, "stopped")
            };
            around.internet.block("home", "three")?;
            stopped(host.v4.into())?;
            stopped(host.v6.into())?;
            around.internet.unblock("home", "three")?;
            around.internet.unplug("three")?;
            stopped(host.v4.into())?;
            around.internet.plug("three")?;
            around.seen(2)?;
            around.gets(2, after)?;
            Ok(())
        })
    });
}

#[test]
fn links_can_have_a_delay() {
    scenario(|lab| {
        around(lab, Nat::FullCone, |around| {
            let delay = Duration::from_millis(20);
            around.internet.delay("home", delay)?;
            around.internet.delay("three", delay)?;
            let sent = Instant::now();
            let outside = around.seen(2)?;
            send(&around.hosts[2].1, outside, "an answer")?;
            received(&around.member, "an answer")?;
            // A delayed packet is never early.
            ensure!(sent.elapsed() >= 2 * delay, "there and back in {:?}", sent.elapsed());
            // The block takes effect after the delay.
            around.internet.block("home", "three")?;
            let (three, at_three) = &around.hosts[2];
            send(&around.member, three.at(PORT), "stopped")?;
            send(at_three, outside, "stopped")?;
            // These are sent later and arrive elsewhere, so the blocked ones would have arrived by now.
            around.seen(0)?;
            send(at_three, around.hosts[0].0.at(PORT), "after it")?;
            received(&around.hosts[0].1, "after it")?;
            around.internet.unblock("home", "three")?;
            around.seen(2)?;
            send(at_three, outside, "an answer")?;
            received(&around.member, "an answer")?;
            // After a suspension, delays apply again.
            around.internet.suspend_delays(true)?;
            around.internet.count("home", "three")?;
            around.seen(2)?;
            ensure!(around.internet.counted("home", "three")? > 0, "what was not delayed is counted");
            around.internet.suspend_delays(false)?;
            let sent = Instant::now();
            around.seen(2)?;
            ensure!(sent.elapsed() >= delay, "there in {:?}", sent.elapsed());
            Ok(())
        })
    });
}
