//! The usual set-up: two tunnels with a router between them.
//!
//! ```text
//!    a  10.1.0.2 ── 10.1.0.1  router  10.2.0.1 ── 10.2.0.2  b
//!       fd01::2  ── fd01::1           fd02::1  ── fd02::2
//!    inside: 10.9.0.1, fd09::1                   inside: 10.9.0.2, fd09::2
//! ```
//!
//! Side `a` has the endpoint of `b` and starts the handshake. `b` learns the endpoint of `a`.
use crate::{Conf, Lab, Node, PeerConf, Program, Tunnel};
use anyhow::Result;

/// The addresses of `a` inside the tunnel.
pub const INSIDE_A: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The addresses of `b` inside the tunnel.
pub const INSIDE_B: [&str; 2] = ["10.9.0.2", "fd09::2"];

/// The IP version of the network under the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Two nodes, the router between them, and for each side a configuration that can be changed before the start.
pub struct Pair {
    /// The side that initiates.
    pub a: Node,
    /// The side that responds.
    pub b: Node,
    /// The router between them. Scenarios drop or count packets on it.
    pub router: Node,
    /// The configuration of `a`.
    pub conf_a: Conf,
    /// The configuration of `b`.
    pub conf_b: Conf,
}

impl Pair {
    /// Builds the nodes and the network, and starts nothing.
    pub fn new(lab: &Lab, outside: Outside) -> Result<Self> {
        Self::named(lab, outside, "")
    }

    /// One of several pairs in a scenario: `end` is appended to the nodes' names.
    pub fn named(lab: &Lab, outside: Outside, end: &str) -> Result<Self> {
        let node = |name: &str| lab.node(&format!("{name}{end}"));
        let (a, b, router) = (node("a")?, node("b")?, node("router")?);
        lab.link((&a, "eth0"), (&router, "to-a"))?;
        lab.link((&b, "eth0"), (&router, "to-b"))?;
        router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        for (node, interface, net) in [(&a, "to-a", 1), (&b, "to-b", 2)] {
            router.sh(&format!(
                "ip addr add 10.{net}.0.1/24 dev {interface}; ip addr add fd0{net}::1/64 dev {interface} nodad"
            ))?;
            node.sh(&format!(
                "ip addr add 10.{net}.0.2/24 dev eth0; ip addr add fd0{net}::2/64 dev eth0 nodad
                 ip route add default via 10.{net}.0.1; ip -6 route add default via fd0{net}::1"
            ))?;
        }
        let (mut conf_a, mut conf_b) = (Conf::new("wga")?, Conf::new("wgb")?);
        conf_a.addresses = inside(INSIDE_A);
        conf_b.addresses = inside(INSIDE_B);
        conf_a.listen_port = Some(51_801);
        conf_b.listen_port = Some(51_802);
        let mut peer_b = PeerConf::new(&conf_b.keys.public, &INSIDE_B.join(", "));
        peer_b.endpoint = Some(match outside {
            Outside::V4 => "10.2.0.2:51802".to_owned(),
            Outside::V6 => "[fd02::2]:51802".to_owned(),
        });
        conf_b.peers.push(PeerConf::new(&conf_a.keys.public, &INSIDE_A.join(", ")));
        conf_a.peers.push(peer_b);
        Ok(Self { a, b, router, conf_a, conf_b })
    }

    /// Starts both sides.
    pub fn start(&self, lab: &Lab, initiator: Program, responder: Program) -> Result<(Tunnel, Tunnel)> {
        let b = Tunnel::start(lab, &self.b, responder, &self.conf_b)?;
        let a = Tunnel::start(lab, &self.a, initiator, &self.conf_a)?;
        Ok((a, b))
    }
}

fn inside(addresses: [&str; 2]) -> Vec<String> {
    addresses.iter().zip(["24", "64"]).map(|(address, length)| format!("{address}/{length}")).collect()
}
