//! Two members of a small internet that reach each other through relays.
//!
//! ```text
//!    a  inside 10.9.0.1 ── router ──┐          ┌── relay1  inside 10.9.1.1
//!                                   ├── core ──┤
//!    b  inside 10.9.0.2 ── router ──┘          └── relay2  inside 10.9.1.2
//! ```
//!
//! All are peers of each other, except that relays are not peers of relays. The members know the addresses of the
//! relays, which learn the members' addresses. The members do not know each other's addresses, and do not look for them
//! unless [`Relayed::look_for_direct_ways`] was called.
use crate::{
    Conf, Gaps, Host, INSIDE_A, INSIDE_B, Internet, Ip, Lab, Nat, Node, PeerConf, Program, Site, Streams, Tunnel,
    eventually,
};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{net::SocketAddr, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const PORT: u16 = 51_820;
/// The line that prevents members from looking for direct paths.
const RELAYED_ONLY: &str = "Direct = off";

/// All addresses inside, which relays may forward for each other.
const MESH: &str = "10.9.0.0/16";

/// Members, relays, and the network between them.
pub struct Relayed {
    /// The network.
    pub internet: Internet,
    /// The sites of `a` and `b`, called `home` and `office`; one site if both members are at the same site.
    pub sites: Vec<Site>,
    /// The members `a` and `b`.
    pub members: [Speaker; 2],
    /// The hosts and configurations of the relays `relay1` and so on.
    pub relays: Vec<(Host, Speaker)>,
}

/// A node and the configuration of its tunnel.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// The name in the configurations of the others.
    pub name: String,
    /// The node.
    pub node: Node,
    /// The configuration, with the interface `wgNAME`. The first peer of a member is the other member; the relays
    /// follow.
    pub conf: Conf,
    /// The address inside.
    pub inside: String,
}

/// The running tunnels.
pub struct Running {
    /// The tunnels of the members.
    pub members: [Tunnel; 2],
    /// The tunnels of the running relays.
    pub relays: Vec<Option<Tunnel>>,
}

impl Relayed {
    /// Members at two sites, and so many relays. Starts nothing.
    pub fn new(lab: &Lab, sites: [(Nat, Ip); 2], relays: u8) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let hosts = Self::hosts(lab, &mut internet, relays)?;
        let mut made = Vec::new();
        for (name, (nat, ip)) in ["home", "office"].into_iter().zip(sites) {
            made.push(internet.site(lab, name, nat, ip, 1)?);
        }
        let members = [made[0].members[0].clone(), made[1].members[0].clone()];
        let over_v6 = sites.map(|(_, ip)| ip == Ip::V6);
        Self::with(internet, made, members, over_v6, hosts)
    }

    /// Both members at one site.
    pub fn at_one_site(lab: &Lab, nat: Nat, relays: u8) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let hosts = Self::hosts(lab, &mut internet, relays)?;
        let site = internet.site(lab, "home", nat, Ip::V4, 2)?;
        let members = [site.members[0].clone(), site.members[1].clone()];
        Self::with(internet, vec![site], members, [false; 2], hosts)
    }

    /// The hosts and configurations of so many relays `relay1` and so on, without peers.
    pub fn hosts(lab: &Lab, internet: &mut Internet, relays: u8) -> Result<Vec<(Host, Speaker)>> {
        let mut hosts = Vec::new();
        for n in 1..=relays {
            let name = format!("relay{n}");
            let host = internet.host(lab, &name, Ip::Both)?;
            let mut relay = Speaker::new(&name, host.node.clone(), &format!("10.9.1.{n}"), PORT)?;
            relay.conf.lines = vec!["Forward = on".to_owned()];
            hosts.push((host, relay));
        }
        Ok(hosts)
    }

    fn with(
        internet: Internet,
        sites: Vec<Site>,
        nodes: [Node; 2],
        over_v6: [bool; 2],
        hosts: Vec<(Host, Speaker)>,
    ) -> Result<Self> {
        let [node_a, node_b] = nodes;
        let mut relays = hosts;
        let mut members =
            [Speaker::new("a", node_a, INSIDE_A[0], PORT - 2)?, Speaker::new("b", node_b, INSIDE_B[0], PORT - 1)?];
        let ways: Vec<String> = relays.iter().map(|(_, relay)| format!("via-peer {}", relay.name)).collect();
        let [a, b] = &mut members;
        let (peer_a, peer_b) = (a.peer(), b.peer());
        for (this, other) in [(a, peer_b), (b, peer_a)] {
            let mut peer = PeerConf { endpoint: Some(ways.join(", ")), ..other };
            peer.lines.push(RELAYED_ONLY.to_owned());
            this.conf.peers.push(peer);
        }
        for (member, v6) in members.iter_mut().zip(over_v6) {
            member.asks_relays(&mut relays, v6);
        }
        Ok(Self { internet, sites, members, relays })
    }

    /// Makes all relays routers that speak Babel, these pairs of relays (from 0 on) neighbours, and the members their
    /// clients.
    pub fn speak_babel(&mut self, links: &[[usize; 2]]) {
        let routers: Vec<_> = self.relays.iter().map(|(host, relay)| (host.at(PORT), relay.peer())).collect();
        for (n, (_, relay)) in self.relays.iter_mut().enumerate() {
            relay.conf.lines.push("Routing = babel".to_owned());
            for client in &mut relay.conf.peers {
                client.lines.push("Role = client".to_owned());
            }
            for other in links.iter().filter(|link| link.contains(&n)).map(|[a, b]| a + b - n) {
                let (at, mut router) = routers[other].clone();
                (router.allowed_ips, router.endpoint) = (MESH.to_owned(), Some(at.to_string()));
                router.lines.push("Role = router".to_owned());
                relay.conf.peers.push(router);
            }
        }
    }

    /// The members have sessions with these relays (from 0 on) only, and reach each other through them.
    pub fn have_sessions_with(&mut self, own: [&[usize]; 2]) {
        for (member, own) in self.members.iter_mut().zip(own) {
            let relays = member.conf.peers.split_off(1);
            let own = own.iter().map(|relay| (&self.relays[*relay].1.name, &relays[*relay]));
            let (ways, relays): (Vec<_>, Vec<_>) =
                own.map(|(name, relay)| (format!("via-peer {name}"), relay.clone())).unzip();
            member.conf.peers[0].endpoint = Some(ways.join(", "));
            member.conf.peers.extend(relays);
        }
    }

    /// Lets both members look for direct paths to each other.
    pub fn look_for_direct_ways(&mut self) {
        for member in &mut self.members {
            member.conf.peers[0].lines.retain(|line| line != RELAYED_ONLY);
        }
    }

    /// Whether members look for direct paths.
    pub fn looks_for_direct_ways(&self) -> bool {
        self.members.iter().any(|member| {
            member.conf.peers[0].lines.iter().all(|line| line != RELAYED_ONLY) && member.conf.peers.len() > 1
        })
    }

    /// Starts everything, and waits until `a` reaches `b`.
    pub fn start(&self, lab: &Lab) -> Result<Running> {
        let relays = self.relays.iter().map(|(_, relay)| relay.start(lab).map(Some)).collect::<Result<_>>()?;
        let [a, b] = &self.members;
        let running = Running { members: [a.start(lab)?, b.start(lab)?], relays };
        a.node.reaches(&b.inside, 20)?;
        Ok(running)
    }

    /// Waits until `a` sends to `b` through this relay (from 0 on), or directly if `None`.
    pub fn until_by(&self, relay: Option<usize>) -> Result<()> {
        self.until(0, &format!("is reached by relay {relay:?}"), |peer| {
            let through = peer["through"].as_str();
            through == relay.map(|relay| self.relays[relay].1.conf.keys.public.as_str())
        })
    }

    /// Waits until so many paths from `a` to `b` work, in use or in reserve.
    pub fn until_ways(&self, ways: usize) -> Result<()> {
        self.until_ways_of(0, ways)
    }

    /// Waits until so many paths from this member (0 or 1) to the other one work, in use or in reserve.
    pub fn until_ways_of(&self, member: usize, ways: usize) -> Result<()> {
        self.until(member, &format!("has {ways} ways"), |peer| {
            let paths = peer["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
            paths.iter().filter(|path| path["state"] == "up").count() == ways
        })
    }

    /// Waits until both members, which are at two sites, send directly to the other's present address.
    pub fn until_direct(&self) -> Result<()> {
        for (this, other) in [(0, 1), (1, 0)] {
            let (peer, site) = (&self.members[other], &self.sites[other]);
            let there = [site.reached_v4(1).into(), site.inside_v6(1).into()];
            let mut last = Value::Null;
            eventually(&format!("{} is reached directly at one of {there:?}", peer.name), SOON, || {
                last = self.members[this].shown_peer(peer)?;
                let endpoint = last["endpoint"].as_str().and_then(|endpoint| endpoint.parse::<SocketAddr>().ok());
                Ok(last["through"].is_null() && endpoint.is_some_and(|endpoint| there.contains(&endpoint.ip())))
            })
            .with_context(|| last.to_string())?;
        }
        Ok(())
    }

    /// The relay, from 0 on, through which `a` sends to `b`.
    pub fn used_relay(&self) -> Result<usize> {
        let [a, b] = &self.members;
        let peer = a.shown_peer(b)?;
        let mut keys = self.relays.iter().map(|(_, relay)| relay.conf.keys.public.as_str());
        keys.position(|key| peer["through"] == key).with_context(|| format!("a uses no relay: {peer}"))
    }

    /// Waits until `is` returns true for the other member's entry in `show` of this member (0 or 1).
    fn until(&self, member: usize, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let (this, other) = (&self.members[member], &self.members[1 - member]);
        let mut last = Value::Null;
        eventually(&format!("{} {what}", other.name), SOON, || {
            last = this.shown_peer(other)?;
            Ok(is(&last))
        })
        .with_context(|| last.to_string())
    }

    /// Four TCP streams from `a` to `b`.
    pub fn streams(&self) -> Result<Streams> {
        let [a, b] = &self.members;
        Streams::start(&a.node, &b.node, &b.inside)
    }

    /// Echo requests from `a` to `b`, twenty a second.
    pub fn traffic(&self) -> Result<Gaps> {
        Gaps::start(&self.members[0].node, "traffic", &self.members[1].inside)
    }
}

impl Speaker {
    /// A node without peers.
    pub fn new(name: &str, node: Node, inside: &str, port: u16) -> Result<Self> {
        let mut conf = Conf::new(&format!("wg{name}"))?;
        conf.addresses = vec![format!("{inside}/32")];
        conf.listen_port = Some(port);
        Ok(Self { name: name.to_owned(), node, conf, inside: inside.to_owned() })
    }

    /// This node as a peer of another, without an endpoint.
    pub fn peer(&self) -> PeerConf {
        let mut peer = PeerConf::new(&self.conf.keys.public, &format!("{}/32", self.inside));
        peer.lines = vec![format!("# Name = {}", self.name)];
        peer
    }

    /// Makes this node and the relays peers. The node has the addresses of the relays, which learn the node's address.
    pub fn asks_relays(&mut self, relays: &mut [(Host, Self)], over_v6: bool) {
        for (host, relay) in relays {
            let at = if over_v6 { host.at_v6(PORT) } else { host.at(PORT) };
            let mut peer = relay.peer();
            peer.endpoint = Some(at.to_string());
            // A relay can forward only to members with which it has a session.
            peer.persistent_keepalive = Some(25);
            self.conf.peers.push(peer);
            relay.conf.peers.push(self.peer());
        }
    }

    /// `rustguard up`.
    pub fn start(&self, lab: &Lab) -> Result<Tunnel> {
        Tunnel::start(lab, &self.node, Program::Subject, &self.conf)
    }

    /// The number of datagrams that it has forwarded.
    pub fn forwarded(&self) -> Result<u64> {
        Ok(self.node.shown(&self.conf.interface)?["forwarded"].as_u64().unwrap_or(0))
    }

    /// Waits until Babel has a next hop for this address.
    pub fn until_routed(&self, address: &str) -> Result<()> {
        eventually(&format!("{} has a route to {address}", self.name), SOON, || {
            let ended = self.node.end_of(self.node.rustguard()?.args(["routes", &self.conf.interface, "--json"]))?;
            let routes: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.to_string())?;
            let mut routes = routes.as_array().context("a list of routes")?.iter();
            let route = routes.find(|route| route["prefix"] == format!("{address}/32"));
            Ok(route.and_then(|route| route["next_hops"].as_array()).is_some_and(|hops| !hops.is_empty()))
        })
    }

    /// The peer's entry in `rustguard show … --json`.
    pub fn shown_peer(&self, peer: &Self) -> Result<Value> {
        let shown = self.node.shown(&self.conf.interface)?;
        let mut peers = shown["peers"].as_array().context("a list of peers")?.iter();
        let found = peers.find(|shown| shown["public_key"] == peer.conf.keys.public.as_str());
        found.cloned().with_context(|| format!("{} has no peer {}: {shown}", self.name, peer.name))
    }
}
