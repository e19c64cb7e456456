//! Members of a network, as real processes. The tests act as the server, so they can send any roster.
use crate::{
    Conf, Issuer, Joined, Keypair, Lab, Network, Node, PeerConf, Program, Tunnel, eventually, network, preshared_key,
};
use anyhow::{Context as _, Result};
use rustguard_network::roster::member::Member;
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// The server's node, and machines that have joined: `m1` has the address 10.150.0.11 inside, and so on.
pub struct Members<'n> {
    /// The nodes.
    pub network: &'n Network,
    /// The keys of the server.
    pub server: Keypair,
    /// The machines.
    pub joined: Vec<Joined>,
}

/// The server's node and so many machines, which reach each other only through that node.
pub fn members(lab: &Lab, machines: u8, body: impl FnOnce(&Members<'_>) -> Result<()>) -> Result<()> {
    network(lab, machines, |network| {
        network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
        let joined = (1..=machines).map(|n| {
            let (keys, preshared_key) = (Keypair::generate()?, preshared_key()?);
            Ok(Joined { keys, preshared_key, inside: format!("10.150.0.1{n}") })
        });
        let joined = joined.collect::<Result<_>>()?;
        body(&Members { network, server: Keypair::generate()?, joined })
    })
}

impl Members<'_> {
    /// Starts the server.
    pub fn start(&self) -> Result<Issuer> {
        let issuer = Issuer::start(&self.network.server, &self.server, &self.joined)?;
        self.network.server.sh("ip addr add 10.150.0.1/24 dev rgs; ip link set rgs up")?;
        Ok(issuer)
    }

    /// Starts the server, with roster 1: itself and all machines.
    pub fn issued(&self) -> Result<(Issuer, Vec<Member>)> {
        let issuer = self.start()?;
        let members = self.roster(&issuer)?;
        issuer.issue(1, Issuer::settings()?, members.clone())?;
        Ok((issuer, members))
    }

    /// Machine `n`.
    pub fn node(&self, n: usize) -> &Node {
        &self.network.machines[n - 1]
    }

    /// The file of machine `n`, as `join` writes it.
    pub fn conf(&self, n: usize, lines: &[&str]) -> Conf {
        let machine = &self.joined[n - 1];
        let mut server = PeerConf::new(&self.server.public, "10.150.0.0/24");
        server.preshared_key = Some(machine.preshared_key.clone());
        server.endpoint = Some(format!("10.{n}.0.1:51820"));
        server.persistent_keepalive = Some(25);
        let mut own = vec![format!("Network = {}", Issuer::network())];
        own.extend(lines.iter().map(ToString::to_string));
        Conf {
            interface: format!("rg{n}"),
            keys: machine.keys.clone(),
            listen_port: None,
            addresses: vec![format!("{}/32", machine.inside)],
            lines: own,
            peers: vec![server],
        }
    }

    /// Starts `rustguard up` on machine `n`, with these lines in `[Interface]`.
    pub fn up(&self, lab: &Lab, n: usize, lines: &[&str]) -> Result<Tunnel> {
        Tunnel::start(lab, self.node(n), Program::Subject, &self.conf(n, lines))
    }

    /// The server and all machines, with the names `m1` and so on.
    pub fn roster(&self, issuer: &Issuer) -> Result<Vec<Member>> {
        let machines = self.joined.iter().enumerate();
        let members = machines.map(|(n, joined)| Issuer::member(joined, &format!("m{}", n + 1)));
        std::iter::once(issuer.itself("10.1.0.1:51820")).chain(members).collect()
    }

    /// The entry for machine `other` in `show` of machine `n`; `None` if it is not a peer.
    pub fn shown(&self, n: usize, other: usize) -> Result<Option<Value>> {
        let shown = self.node(n).shown(&format!("rg{n}"))?;
        let key = self.joined[other - 1].keys.public.as_str();
        Ok(shown["peers"].as_array().context("peers")?.iter().find(|peer| peer["public_key"] == key).cloned())
    }

    /// Waits until `is` returns true for the entry of machine `other` in `show` of machine `n`.
    pub fn until_shown(&self, n: usize, other: usize, what: &str, is: impl Fn(Option<&Value>) -> bool) -> Result<()> {
        let mut last = None;
        eventually(what, SOON, || {
            last = self.shown(n, other)?;
            Ok(is(last.as_ref()))
        })
        .with_context(|| format!("{last:?}"))
    }
}

/// The network's entry in `status`, as soon as the tunnel follows the roster with this number.
pub fn network_of(node: &Node, interface: &str, number: u64) -> Result<Value> {
    let mut network = Value::Null;
    eventually("the roster", SOON, || {
        let status = node.end_of(node.rustguard()?.args(["status", interface, "--json"]))?;
        network = serde_json::from_str::<Value>(&status.stdout)?["network"].take();
        Ok(network["number"] == number)
    })?;
    Ok(network)
}
