//! Three tunnels in a row. `a` and `c` have only the peer `b`. Both are peers on one interface of `b`.
//!
//! ```text
//!    a  10.1.0.2 ── 10.1.0.1  b  10.3.0.1 ── 10.3.0.2  c
//!       10.9.0.1            10.9.0.2            10.9.0.3
//!       fd09::1             fd09::2             fd09::3
//! ```
use crate::{Conf, Lab, Node, PeerConf, Program, Tunnel, Up};
use anyhow::{Context, Result};
use serde_json::Value;
use std::ffi::OsString;

/// The addresses of `a` inside the tunnel: IPv4, IPv6.
pub const HUB_A: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The addresses of `b`, the node in the middle.
pub const HUB_B: [&str; 2] = ["10.9.0.2", "fd09::2"];
/// The addresses of `c`.
pub const HUB_C: [&str; 2] = ["10.9.0.3", "fd09::3"];

/// Three nodes, each with a configuration that can be changed before the start.
pub struct Hub {
    /// One end.
    pub a: Node,
    /// The node in the middle. Forwarding is off at first.
    pub b: Node,
    /// The other end.
    pub c: Node,
    /// The configuration of `a`, with the interface `wga`.
    pub conf_a: Conf,
    /// The configuration of `b`, with the interface `wgb`.
    pub conf_b: Conf,
    /// The configuration of `c`, with the interface `wgc`.
    pub conf_c: Conf,
}

impl Hub {
    /// Builds the nodes and the network, and starts nothing.
    pub fn new(lab: &Lab) -> Result<Self> {
        let (a, b, c) = (lab.node("a")?, lab.node("b")?, lab.node("c")?);
        for (node, interface, net) in [(&a, "to-a", 1), (&c, "to-c", 3)] {
            lab.link((node, "eth0"), (&b, interface))?;
            b.sh(&format!("ip addr add 10.{net}.0.1/24 dev {interface}"))?;
            node.sh(&format!("ip addr add 10.{net}.0.2/24 dev eth0"))?;
        }
        // The kernel forwards packets back into the interface from which they came. It should not send redirects for
        // that.
        b.sh("sysctl -qw net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0")?;
        let (mut conf_a, mut conf_b, mut conf_c) = (Conf::new("wga")?, Conf::new("wgb")?, Conf::new("wgc")?);
        for (conf, inside, port) in
            [(&mut conf_a, HUB_A, 51_801), (&mut conf_b, HUB_B, 51_802), (&mut conf_c, HUB_C, 51_803)]
        {
            conf.addresses =
                inside.iter().zip([24, 64]).map(|(address, length)| format!("{address}/{length}")).collect();
            conf.listen_port = Some(port);
        }
        for (conf, inside, endpoint) in [(&mut conf_a, HUB_A, "10.1.0.1:51802"), (&mut conf_c, HUB_C, "10.3.0.1:51802")]
        {
            let mut peer = PeerConf::new(&conf_b.keys.public, "10.9.0.0/24, fd09::/64");
            peer.endpoint = Some(endpoint.to_owned());
            conf.peers.push(peer);
            let mut peer = PeerConf::new(&conf.keys.public, &inside.join(", "));
            peer.endpoint =
                Some(endpoint.replace(".0.1:51802", ".0.2:").to_owned() + &conf.listen_port.unwrap_or(0).to_string());
            conf_b.peers.push(peer);
        }
        Ok(Self { a, b, c, conf_a, conf_b, conf_c })
    }

    /// Switches forwarding of IPv4 and IPv6 on `b` on or off.
    pub fn forward(&self, on: bool) -> Result<()> {
        let on = u8::from(on);
        self.b.sh(&format!("sysctl -qw net.ipv4.ip_forward={on} net.ipv6.conf.all.forwarding={on}")).map(drop)
    }

    /// Starts all three: the node in the middle with `rustguard up` and environment variables, and the ends with
    /// `ends`.
    pub fn start(&self, lab: &Lab, ends: Program, environment: &[(&str, OsString)]) -> Result<(Tunnel, Up, Tunnel)> {
        let b = Up::start_with(lab, &self.b, &self.conf_b, environment)?;
        let a = Tunnel::start(lab, &self.a, ends, &self.conf_a)?;
        let c = Tunnel::start(lab, &self.c, ends, &self.conf_c)?;
        Ok((a, b, c))
    }

    /// The output of `rustguard show wgb --json`.
    pub fn shown(&self) -> Result<Value> {
        let ended = self.b.end_of(self.b.rustguard()?.args(["show", "wgb", "--json"]))?;
        let mut interfaces: Value =
            serde_json::from_str(&ended.stdout).with_context(|| format!("show --json: {ended}"))?;
        Ok(interfaces[0].take())
    }

    /// The number of packets that RustGuard on `b` relayed.
    pub fn relayed(&self) -> Result<u64> {
        self.shown()?["relayed"].as_u64().context("a number of relayed packets")
    }
}
