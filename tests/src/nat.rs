//! A small internet: hosts with public addresses, and sites behind routers that use NAT or filter.
//!
//! ```text
//!    member  192.168.1.11 ── 192.168.1.1  router  198.51.100.2 ──┐
//!                                                                ├── core ── 198.51.100.1  relay
//!    member  192.168.1.11 ── 192.168.1.1  router  198.51.100.3 ──┘
//! ```
//!
//! Each host or site at the core gets the next number `n`. A host has 198.51.100.n and 2001:db8::n. A site's router has
//! these addresses. The site's members have 192.168.1.11, 192.168.1.12 and so on behind a router with NAT, at every
//! site the same, as in many homes; otherwise 198.18.n.11 and so on. Over IPv6, without NAT, they have 2001:db8:n::11
//! and so on.
//!
//! Except for [`Nat::Plain`], routers behave as home routers do: they drop an unsolicited packet from outside before
//! connection tracking stores it. If it were stored, a later packet of the member to the same address would get another
//! port.
use crate::{Lab, Node};
use anyhow::{Context as _, Result, ensure};
use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// The IPv4 address of the core, on each of its links. Over IPv6, gateways have fe80::1.
const CORE: &str = "198.51.100.254";
/// The IPv4 address of a router, on the links of its members.
const LAN: &str = "192.168.1.1";

/// The IP versions of a host or site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
    /// Both.
    Both,
}

impl Ip {
    fn v4(self) -> bool {
        self != Self::V6
    }

    fn v6(self) -> bool {
        self != Self::V4
    }
}

/// The IPv4 behaviour of a site's router, in the terms of RFC 4787: the *mapping* is the address and port that a member
/// has outside, the *filtering* decides which packets from outside reach it. Over IPv6 there is no translation, and all
/// but [`Nat::None`] and [`Nat::Plain`] filter by address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nat {
    /// No translation, no filter.
    None,
    /// No translation. Only packets from an address and port to which a member has sent come in.
    Firewall,
    /// `masquerade`, which keeps the port: the mapping does not depend on the endpoint; the filtering is by address and
    /// port.
    PortKept,
    /// `masquerade` and no other rule: the same, but the router treats an unsolicited packet as one for itself. It
    /// refuses the packet and keeps the connection: for 30 seconds, the member's packets to that address have another
    /// port.
    Plain,
    /// `masquerade random,persistent`: another port for each endpoint.
    Random,
    /// `masquerade fully-random`: another port for each endpoint.
    FullyRandom,
    /// Two public addresses. The port is kept, but the last bit of the endpoint's address decides which public address
    /// a member has.
    PerDestination,
    /// Keeps the port, and lets in packets from anybody: mapping and filtering do not depend on the endpoint.
    FullCone,
    /// Like [`Nat::PortKept`], but drops all UDP except to hosts that [`Site::admit`] names.
    UdpBlocked,
}

impl Nat {
    fn translates(self) -> bool {
        !matches!(self, Self::None | Self::Firewall)
    }
}

/// The core, to which everything is connected.
pub struct Internet {
    core: Node,
    /// The last number of a host or site.
    last: u8,
    /// The sites and hosts with a delay. The position selects the routing table of each.
    delayed: Vec<String>,
}

/// A host with public addresses at its interface `eth0`.
#[derive(Clone, Debug)]
pub struct Host {
    /// The node.
    pub node: Node,
    /// Its IPv4 address. Unusable without IPv4.
    pub v4: Ipv4Addr,
    /// Its IPv6 address. Unusable without IPv6.
    pub v6: Ipv6Addr,
    name: String,
    ip: Ip,
}

/// A router and the members behind it. Each member has an interface `eth0` on a link of its own to the router.
pub struct Site {
    /// The router. Its interface `wan` is connected to the core, `lan1` to the first member, and so on.
    pub router: Node,
    /// The members.
    pub members: Vec<Node>,
    name: String,
    nat: Nat,
    ip: Ip,
    n: u8,
}

impl Internet {
    /// A core without anything connected to it.
    pub fn new(lab: &Lab) -> Result<Self> {
        let core = lab.node("core")?;
        forwards(&core)?;
        core.sh("nft -f - <<'RULES'
table inet lab {
    set blocked { type iface_index . iface_index; }
    set unplugged { type ifname; }
    chain forward {
        type filter hook forward priority 0
        fib saddr oif . oif @blocked drop
        iifname @unplugged drop
        oifname @unplugged drop
    }
}
RULES")?;
        Ok(Self { core, last: 0, delayed: Vec::new() })
    }

    /// Connects a host.
    pub fn host(&mut self, lab: &Lab, name: &str, ip: Ip) -> Result<Host> {
        let n = self.number();
        let host = Host { node: lab.node(name)?, v4: public_v4(n), v6: public_v6(n), name: name.to_owned(), ip };
        self.connect(lab, name, (&host.node, "eth0"))?;
        self.put_host(&host, n)?;
        Ok(host)
    }

    /// Gives the host another address.
    pub fn move_host(&mut self, host: &mut Host) -> Result<()> {
        host.node.sh("ip addr flush dev eth0")?;
        self.lose_routes(&host.name)?;
        let n = self.number();
        (host.v4, host.v6) = (public_v4(n), public_v6(n));
        self.put_host(host, n)
    }

    /// Connects a site with this number of members, which are nodes called `NAME1` and so on. The router is called
    /// `NAME-router`.
    pub fn site(&mut self, lab: &Lab, name: &str, nat: Nat, ip: Ip, members: u8) -> Result<Site> {
        let router = lab.node(&format!("{name}-router"))?;
        forwards(&router)?;
        self.connect(lab, name, (&router, "wan"))?;
        let mut site = Site { router, members: Vec::new(), name: name.to_owned(), nat, ip, n: self.number() };
        for member in 1..=members {
            let (node, lan) = (lab.node(&format!("{name}{member}"))?, format!("lan{member}"));
            lab.link((&site.router, &lan), (&node, "eth0"))?;
            site.router.sh(&format!("ip addr add {LAN}/32 dev {lan}; ip addr add fe80::1/64 dev {lan} nodad"))?;
            site.members.push(node);
        }
        self.put(&site)?;
        Ok(site)
    }

    /// Gives the site another address. Its router forgets all connections of the old one.
    pub fn move_site(&mut self, site: &mut Site) -> Result<()> {
        site.router.sh("ip addr flush dev wan; nft flush ruleset")?;
        self.lose_routes(&site.name)?;
        for (node, lan) in site.members.iter().zip(1..) {
            site.router.sh(&format!("ip route flush dev lan{lan}; ip -6 route flush dev lan{lan} proto static"))?;
            node.sh("ip addr flush dev eth0")?;
        }
        site.n = self.number();
        self.put(site)?;
        site.forget()
    }

    /// From now on, drops all packets between two sites or hosts, given by name, without ICMP errors.
    pub fn block(&self, a: &str, b: &str) -> Result<()> {
        self.core.sh(&format!("nft add element inet lab blocked '{}'", pairs(a, b))).map(drop)
    }

    /// Ends [`Internet::block`].
    pub fn unblock(&self, a: &str, b: &str) -> Result<()> {
        self.core.sh(&format!("nft delete element inet lab blocked '{}'", pairs(a, b))).map(drop)
    }

    /// From now on, drops all packets from and to a site or host, given by name, without ICMP errors.
    pub fn unplug(&self, name: &str) -> Result<()> {
        self.core.sh(&format!("nft add element inet lab unplugged '{{ to-{name} }}'")).map(drop)
    }

    /// Ends [`Internet::unplug`].
    pub fn plug(&self, name: &str) -> Result<()> {
        self.core.sh(&format!("nft delete element inet lab unplugged '{{ to-{name} }}'")).map(drop)
    }

    /// Datagrams of more than so many bytes do not reach the site, and there is no ICMP error: they arrive in
    /// fragments, which the site's router drops.
    pub fn narrow(&self, site: &Site, mtu: u16) -> Result<()> {
        self.core.sh(&format!("ip link set to-{} mtu {mtu}", site.name))?;
        // Before connection tracking reassembles them.
        site.router
            .sh(&format!(
                "ip link set wan mtu {mtu}
                 nft add chain inet site fragments '{{ type filter hook prerouting priority -450; }}'
                 nft add rule inet site fragments iifname wan ip frag-off '&' 0x3fff != 0 drop"
            ))
            .map(drop)
    }

    /// From now on, delays all packets from a site or host, given by name, by this time.
    pub fn delay(&mut self, name: &str, delay: Duration) -> Result<()> {
        self.delayed.push(name.to_owned());
        crate::delay::delay(&self.core, &format!("to-{name}"), self.table(name)?, delay)
    }

    /// Suspends all delays, or resumes them. Without delays, links are as fast as the machine.
    pub fn suspend_delays(&self, suspended: bool) -> Result<()> {
        let verb = if suspended { "del" } else { "add" };
        for name in &self.delayed {
            let table = self.table(name)?;
            self.core.sh(&format!("for ip in 'ip' 'ip -6'; do $ip rule {verb} iif to-{name} lookup {table}; done"))?;
        }
        Ok(())
    }

    fn table(&self, delayed: &str) -> Result<u8> {
        let position = self.delayed.iter().position(|name| name == delayed).context("has no delay")?;
        Ok(101 + u8::try_from(position)?)
    }

    /// From now on, counts the bytes that one site or host sends to another.
    pub fn count(&self, from: &str, to: &str) -> Result<()> {
        self.core.count(&format!("{from}-{to}"), "forward", &format!("iifname to-{from} oifname to-{to}"))
    }

    /// The bytes that [`Internet::count`] has counted, IP headers included.
    pub fn counted(&self, from: &str, to: &str) -> Result<u64> {
        self.core.counted_bytes(&format!("{from}-{to}"))
    }

    fn number(&mut self) -> u8 {
        self.last += 1;
        assert!(self.last < 100, "the second addresses of sites begin at 101");
        self.last
    }

    /// Creates the link to the core, whose end is the gateway.
    fn connect(&self, lab: &Lab, name: &str, end: (&Node, &str)) -> Result<()> {
        let interface = format!("to-{name}");
        ensure!(interface.len() < 16, "{interface} is too long for an interface");
        lab.link((&self.core, &interface), end)?;
        self.core
            .sh(&format!("ip addr add {CORE}/32 dev {interface}; ip addr add fe80::1/64 dev {interface} nodad"))?;
        Ok(())
    }

    /// Adds the core's routes to number `n`, and to the prefixes behind it.
    fn route(&self, name: &str, n: u8, ip: Ip, behind: Option<Nat>) -> Result<()> {
        let (v4, v6) = (public_v4(n), public_v6(n));
        let mut script = String::new();
        if ip.v4() {
            writeln!(script, "ip route add {v4} dev to-{name}")?;
            match behind {
                Some(Nat::PerDestination) => writeln!(script, "ip route add {} dev to-{name}", second_v4(n))?,
                Some(nat) if !nat.translates() => {
                    writeln!(script, "ip route add 198.18.{n}.0/24 via {v4} dev to-{name} onlink")?;
                }
                _ => {}
            }
        }
        if ip.v6() {
            writeln!(script, "ip -6 route add {v6} dev to-{name} proto static")?;
            if behind.is_some() {
                writeln!(script, "ip -6 route add 2001:db8:{n:x}::/64 via {v6} dev to-{name} proto static onlink")?;
            }
        }
        self.core.sh(&script).map(drop)
    }

    /// Removes the core's routes to a site or host.
    fn lose_routes(&self, name: &str) -> Result<()> {
        self.core
            .sh(&format!("ip route flush dev to-{name} scope link; ip -6 route flush dev to-{name} proto static"))
            .map(drop)
    }

    /// Gives addresses and routes to a host.
    fn put_host(&self, host: &Host, n: u8) -> Result<()> {
        self.route(&host.name, n, host.ip, None)?;
        own(&host.node, "eth0", CORE, host.ip, host.v4, host.v6)
    }

    /// Gives addresses, routes and rules to a site.
    fn put(&self, site: &Site) -> Result<()> {
        self.route(&site.name, site.n, site.ip, Some(site.nat))?;
        own(&site.router, "wan", CORE, site.ip, public_v4(site.n), public_v6(site.n))?;
        if site.nat == Nat::PerDestination {
            site.router.sh(&format!("ip addr add {}/32 dev wan", second_v4(site.n)))?;
        }
        for (node, member) in site.members.iter().zip(1..) {
            let (v4, v6) = (site.inside_v4(member), site.inside_v6(member));
            if site.ip.v4() {
                site.router.sh(&format!("ip route add {v4} dev lan{member}"))?;
            }
            if site.ip.v6() {
                site.router.sh(&format!("ip -6 route add {v6} dev lan{member} proto static"))?;
            }
            own(node, "eth0", LAN, site.ip, v4, v6)?;
        }
        site.router.sh(&format!("nft -f - <<'RULES'\n{}RULES", site.rules()))?;
        Ok(())
    }
}

impl Host {
    /// Its IPv4 address with this port.
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.v4, port).into()
    }

    /// Its IPv6 address with this port.
    pub fn at_v6(&self, port: u16) -> SocketAddr {
        (self.v6, port).into()
    }
}

impl Site {
    /// The router's public IPv4 address. With NAT, it is also the members' public address.
    pub fn outside(&self) -> IpAddr {
        public_v4(self.n).into()
    }

    /// The second address of [`Nat::PerDestination`].
    pub fn outside_second(&self) -> IpAddr {
        second_v4(self.n).into()
    }

    /// The IPv4 address of a member's own interface. The first member is number 1.
    pub fn inside_v4(&self, member: u8) -> Ipv4Addr {
        let [a, b, c] = if self.nat.translates() { [192, 168, 1] } else { [198, 18, self.n] };
        Ipv4Addr::new(a, b, c, 10 + member)
    }

    /// The IPv4 address at which others see a member. The first member is number 1.
    pub fn reached_v4(&self, member: u8) -> Ipv4Addr {
        if self.nat.translates() { public_v4(self.n) } else { self.inside_v4(member) }
    }

    /// The IPv6 address of a member. The first member is number 1.
    pub fn inside_v6(&self, member: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.n.into(), 0, 0, 0, 0, 0x10 + u16::from(member))
    }

    /// The router forgets all connections and mappings, as after a restart.
    pub fn forget(&self) -> Result<()> {
        self.router.sh("nft flush map inet site members; conntrack -F 2> /dev/null").map(drop)
    }

    /// [`Nat::UdpBlocked`] lets UDP to and from this host through.
    pub fn admit(&self, host: &Host) -> Result<()> {
        self.router
            .sh(&format!(
                "nft add element inet site admitted '{{ {} }}'; nft add element inet site admitted6 '{{ {} }}'",
                host.v4, host.v6
            ))
            .map(drop)
    }

    /// Members can also reach each other by their public addresses. This requires NAT that keeps the port.
    pub fn hairpin(&self) -> Result<()> {
        ensure!(
            matches!(self.nat, Nat::PortKept | Nat::FullCone),
            "{:?} gives members no fixed port outside",
            self.nat
        );
        let outside = self.outside();
        self.router
            .sh(&format!(
                "nft add rule inet site before iifname 'lan*' ip daddr {outside} dnat ip to udp dport map @members
                 nft add rule inet site after iifname 'lan*' oifname 'lan*' ct status dnat snat ip to {outside}"
            ))
            .map(drop)
    }

    /// Members cannot reach each other by their own addresses, as in many guest networks.
    pub fn isolate(&self) -> Result<()> {
        self.router.sh("nft add rule inet site forward iifname 'lan*' oifname 'lan*' ct status ! dnat drop").map(drop)
    }

    fn rules(&self) -> String {
        let outside = self.outside();
        let translation = match self.nat {
            Nat::None | Nat::Firewall => String::new(),
            Nat::PortKept | Nat::Plain | Nat::UdpBlocked | Nat::FullCone => "masquerade".to_owned(),
            Nat::Random => "masquerade random,persistent".to_owned(),
            Nat::FullyRandom => "masquerade fully-random".to_owned(),
            Nat::PerDestination => format!(
                "snat ip to ip daddr & 0.0.0.1 map {{ 0.0.0.0 : {outside}, 0.0.0.1 : {} }}",
                self.outside_second()
            ),
        };
        let translation = if translation.is_empty() {
            translation
        } else {
            format!(
                "oifname wan meta nfproto ipv4 meta l4proto udp update @members {{ udp sport : ip saddr }}
        oifname wan meta nfproto ipv4 {translation}"
            )
        };
        let cone = if self.nat == Nat::FullCone {
            format!("iifname wan ip daddr {outside} dnat ip to udp dport map @members")
        } else {
            String::new()
        };
        let filter = if matches!(self.nat, Nat::None | Nat::Plain) {
            ""
        } else {
            "iifname wan meta l4proto udp ct state new ct status ! dnat drop"
        };
        let blocked = if self.nat == Nat::UdpBlocked {
            "oifname wan meta l4proto udp ip daddr != @admitted drop
        oifname wan meta l4proto udp ip6 daddr != @admitted6 drop"
        } else {
            ""
        };
        format!(
            "table inet site {{
    map members {{ type inet_service : ipv4_addr; flags dynamic; size 1024; }}
    set admitted {{ type ipv4_addr; }}
    set admitted6 {{ type ipv6_addr; }}
    chain before {{
        type nat hook prerouting priority dstnat
        {cone}
    }}
    chain input {{
        type filter hook input priority 0
        {filter}
    }}
    chain forward {{
        type filter hook forward priority 0
        {filter}
        {blocked}
    }}
    chain after {{
        type nat hook postrouting priority srcnat
        {translation}
    }}
}}
"
        )
    }
}

fn public_v4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, n)
}

fn second_v4(n: u8) -> Ipv4Addr {
    public_v4(100 + n)
}

fn public_v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into())
}

fn pairs(a: &str, b: &str) -> String {
    format!("{{ to-{a} . to-{b}, to-{b} . to-{a} }}")
}

fn forwards(node: &Node) -> Result<()> {
    node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").map(drop)
}

/// Gives an interface addresses, and adds default routes over it.
fn own(node: &Node, interface: &str, gateway: &str, ip: Ip, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<()> {
    if ip.v4() {
        node.sh(&format!(
            "ip addr add {v4}/32 dev {interface}; ip route replace default via {gateway} dev {interface} onlink"
        ))?;
    }
    if ip.v6() {
        node.sh(&format!(
            "ip addr add {v6}/128 dev {interface} nodad; ip -6 route replace default via fe80::1 dev {interface}"
        ))?;
    }
    Ok(())
}
