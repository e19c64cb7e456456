//! Two nodes with two links between them, for a tunnel with several paths.
//!
//! ```text
//!    a  10.1.0.1 ── one ── 10.1.0.2  b
//!       10.2.0.1 ── two ── 10.2.0.2
//!    inside: 10.9.0.1        inside: 10.9.0.2
//! ```
use crate::{Conf, INSIDE_A, INSIDE_B, Lab, Node, PeerConf, Program, Tunnel, eventually};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// The links, which are also the names of the interfaces on both nodes.
pub const LINKS: [&str; 2] = ["one", "two"];
/// Both endpoints of `b`.
pub const BOTH: &str = "10.1.0.2:51820, 10.2.0.2:51820";

/// Nodes, links, and configurations that can be changed before the start.
pub struct Twice {
    /// The node that has endpoints of `b` and starts the handshake.
    pub a: Node,
    /// The node without an endpoint of `a`.
    pub b: Node,
    /// The configuration of `a`, with the interface `wga`.
    pub conf_a: Conf,
    /// The configuration of `b`, with the interface `wgb`.
    pub conf_b: Conf,
}

/// The directions in which a link loses all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Both.
    Both,
    /// From `a` to `b`.
    There,
    /// From `b` to `a`.
    Back,
}

impl Twice {
    /// Builds the nodes and links. `endpoints` are the endpoints of `b` in the configuration of `a`.
    pub fn new(lab: &Lab, endpoints: &str) -> Result<Self> {
        let (a, b) = (lab.node("a")?, lab.node("b")?);
        for (net, link) in [(1, "one"), (2, "two")] {
            lab.link((&a, link), (&b, link))?;
            for (node, last) in [(&a, 1), (&b, 2)] {
                node.run(&["ip", "addr", "add", &format!("10.{net}.0.{last}/24"), "dev", link])?;
            }
        }
        let (mut conf_a, mut conf_b) = (Conf::new("wga")?, Conf::new("wgb")?);
        (conf_a.listen_port, conf_b.listen_port) = (Some(51_820), Some(51_820));
        conf_a.addresses = vec![format!("{}/24", INSIDE_A[0])];
        conf_b.addresses = vec![format!("{}/24", INSIDE_B[0])];
        let mut peer_b = PeerConf::new(&conf_b.keys.public, &format!("{}/32", INSIDE_B[0]));
        peer_b.endpoint = Some(endpoints.to_owned());
        conf_b.peers.push(PeerConf::new(&conf_a.keys.public, &format!("{}/32", INSIDE_A[0])));
        conf_a.peers.push(peer_b);
        Ok(Self { a, b, conf_a, conf_b })
    }

    /// Starts both nodes, `b` with the program `there`, and waits until packets pass.
    pub fn start(&self, lab: &Lab, there: Program) -> Result<(Tunnel, Tunnel)> {
        let b = Tunnel::start(lab, &self.b, there, &self.conf_b)?;
        let a = Tunnel::start(lab, &self.a, Program::Subject, &self.conf_a)?;
        self.a.reaches(INSIDE_B[0], 10)?;
        Ok((a, b))
    }

    /// The paths that `a` reports.
    pub fn paths(&self) -> Result<Vec<Value>> {
        paths(&self.a, "wga")
    }

    /// Waits until `is` returns true for the path of `a` over this link.
    pub fn until(&self, link: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let of = address(link);
        eventually(&format!("the path by link {link} {what}"), SOON, || {
            Ok(self
                .paths()?
                .iter()
                .any(|path| path["endpoint"].as_str().is_some_and(|at| at.starts_with(&of)) && is(path)))
        })
        .with_context(|| format!("{:?}", self.paths()))
    }

    /// Waits until both paths work.
    pub fn until_up(&self) -> Result<()> {
        for link in LINKS {
            self.until(link, "works", |path| path["state"] == "up")?;
        }
        Ok(())
    }

    /// Makes a link lose all packets in the given directions.
    pub fn cut(&self, link: &str, loss: Loss) -> Result<()> {
        if loss != Loss::Back {
            self.b.drop("input", &format!("iifname {link}"))?;
        }
        if loss != Loss::There {
            self.a.drop("input", &format!("iifname {link}"))?;
        }
        Ok(())
    }

    /// Ends the losses on all links.
    pub fn mend(&self) -> Result<()> {
        for node in [&self.a, &self.b] {
            node.sh("if nft list chain inet lab input 2> /dev/null; then nft flush chain inet lab input; fi")?;
        }
        Ok(())
    }

    /// Limits both links to this rate in each direction, with a queue of at most 20 ms. If the kernel has no tbf,
    /// reports that and returns false.
    pub fn limit(&self, lab: &Lab, mbits: u32) -> Result<bool> {
        for node in [&self.a, &self.b] {
            for link in LINKS {
                let limit = format!("tc qdisc replace dev {link} root tbf rate {mbits}mbit burst 32k latency 20ms");
                let ended = node.end_of(node.command("sh").args(["-c", &limit]))?;
                if ended.to_string().contains("qdisc kind is unknown") {
                    lab.skip("limited links: the kernel has no tbf (sch_tbf)");
                    return Ok(false);
                }
                ensure!(ended.success(), "{limit}: {ended}");
            }
        }
        Ok(true)
    }
}

/// The paths to its only peer that a node reports.
pub fn paths(node: &Node, interface: &str) -> Result<Vec<Value>> {
    let shown = node.end_of(node.rustguard()?.args(["show", interface, "--json"]))?;
    let shown: Value = serde_json::from_str(&shown.stdout).with_context(|| shown.to_string())?;
    Ok(shown.pointer("/0/peers/0/paths").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// The beginning of the endpoints of `b` on this link.
pub fn address(link: &str) -> String {
    if link == "one" { "10.1.0.2:".to_owned() } else { "10.2.0.2:".to_owned() }
}
