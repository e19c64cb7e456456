//! Several routers that speak Babel, and the links between them.
//!
//! A mesh is given by the names of its routers and by pairs of names. The k-th router (from 1) has the addresses
//! 10.77.0.k and fd77::k inside the mesh, and an interface `wgNAME` on port 51820. The n-th link (from 1) is the
//! network 10.n.0.0/24 between the interfaces `to-OTHER`. The first router of the pair has 10.n.0.1 on it. Both ends of
//! a link are peers with the role router, and their allowed IPs are all addresses of the mesh.
use crate::{Conf, Keypair, Lab, Node, PeerConf, Process, Up, eventually, scenario_of_rustguard};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;

/// The limit for any change in a mesh. If a busy machine made a link look slow at first, its correct cost is announced
/// within 90 s, with the next full update.
const SOON: Duration = Duration::from_secs(120);
/// The prefixes of all addresses in the mesh.
const MESH: &str = "10.77.0.0/16, fd77::/16";

/// A scenario about routing by Babel, which only RustGuard has.
///
/// # Panics
/// Like [`scenario`](crate::scenario).
pub fn meshed<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("routing by Babel", body);
}

/// Routers and the links between them.
pub struct Mesh {
    routers: Vec<Router>,
}

/// A router of a mesh.
pub struct Router {
    /// The name of the router, also in the configurations of the others.
    pub name: String,
    /// The node of the router.
    pub node: Node,
    /// The configuration.
    pub conf: Conf,
    /// The addresses inside the mesh: IPv4, IPv6.
    pub inside: [String; 2],
}

impl Mesh {
    /// Builds the nodes and links, and starts nothing.
    pub fn new(lab: &Lab, names: &[&str], links: &[[&str; 2]]) -> Result<Self> {
        let mut routers = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let inside = [format!("10.77.0.{}", place + 1), format!("fd77::{}", place + 1)];
            let mut conf = Conf::new(&format!("wg{name}"))?;
            conf.listen_port = Some(51_820);
            conf.addresses = inside.iter().zip([32, 128]).map(|(address, len)| format!("{address}/{len}")).collect();
            conf.lines = vec!["Routing = babel".to_owned()];
            routers.push(Router { name: (*name).to_owned(), node: lab.node(name)?, conf, inside });
        }
        let mut mesh = Self { routers };
        for (n, &[a, b]) in links.iter().enumerate() {
            let net = n + 1;
            lab.link((&mesh.get(a)?.node, &format!("to-{b}")), (&mesh.get(b)?.node, &format!("to-{a}")))?;
            for (name, other, last) in [(a, b, 1), (b, a, 2)] {
                mesh.get(name)?.node.run(&[
                    "ip",
                    "addr",
                    "add",
                    &format!("10.{net}.0.{last}/24"),
                    "dev",
                    &format!("to-{other}"),
                ])?;
                let key = mesh.get(other)?.conf.keys.public.clone();
                let mut peer = router_peer(other, &key, MESH);
                peer.endpoint = Some(format!("10.{net}.0.{}:51820", 3 - last));
                mesh.get_mut(name)?.conf.peers.push(peer);
            }
        }
        Ok(mesh)
    }

    /// a – b – c.
    pub fn line(lab: &Lab) -> Result<Self> {
        Self::new(lab, &["a", "b", "c"], &[["a", "b"], ["b", "c"]])
    }

    /// a – b – d and a – c – d.
    pub fn diamond(lab: &Lab) -> Result<Self> {
        Self::new(lab, &["a", "b", "c", "d"], &[["a", "b"], ["a", "c"], ["b", "d"], ["c", "d"]])
    }

    /// a – b – c – d – e – a.
    pub fn ring(lab: &Lab) -> Result<Self> {
        Self::new(lab, &["a", "b", "c", "d", "e"], &[["a", "b"], ["b", "c"], ["c", "d"], ["d", "e"], ["e", "a"]])
    }

    /// The router with this name.
    pub fn get(&self, name: &str) -> Result<&Router> {
        self.routers.iter().find(|router| router.name == name).with_context(|| format!("no router {name}"))
    }

    /// The routers with these names.
    pub fn all<const N: usize>(&self, names: [&str; N]) -> Result<[&Router; N]> {
        let routers: Vec<&Router> = names.iter().map(|name| self.get(name)).collect::<Result<_>>()?;
        Ok(routers.try_into().unwrap_or_else(|_| unreachable!("there is one for each name")))
    }

    /// The state that tunnels could leave behind on each host, for [`Mesh::ends_without_traces`].
    pub fn traces(&self) -> Result<Vec<String>> {
        self.routers.iter().map(|router| router.node.traces()).collect()
    }

    /// Takes all tunnels down, the last one first. Checks that each host is as it was before.
    pub fn ends_without_traces(&self, ups: Vec<Up>, before: &[String]) -> Result<()> {
        for up in ups.into_iter().rev() {
            up.down()?;
        }
        for (router, before) in self.routers.iter().zip(before) {
            let after = router.node.traces()?;
            ensure!(*before == after, "{} has been changed. Before:\n{before}\nafter:\n{after}", router.name);
        }
        Ok(())
    }

    /// The router with this name, to change its configuration.
    pub fn get_mut(&mut self, name: &str) -> Result<&mut Router> {
        self.routers.iter_mut().find(|router| router.name == name).with_context(|| format!("no router {name}"))
    }

    /// All routers.
    pub fn routers(&self) -> &[Router] {
        &self.routers
    }

    /// Starts all routers in order.
    pub fn start(&self, lab: &Lab) -> Result<Vec<Up>> {
        self.routers.iter().map(|router| router.start(lab)).collect()
    }

    /// Waits until every router has a route to every other. Checks that they all reach each other, with both IP
    /// versions.
    pub fn converged(&self) -> Result<()> {
        for router in &self.routers {
            for other in self.routers.iter().filter(|other| other.name != router.name) {
                for prefix in other.own() {
                    router.until_routed(&prefix)?;
                }
            }
        }
        for router in &self.routers {
            for other in self.routers.iter().filter(|other| other.name != router.name) {
                for address in &other.inside {
                    router.node.reaches(address, 3)?;
                }
            }
        }
        Ok(())
    }
}

impl Router {
    /// Adds a peer that speaks Babel.
    pub fn add_router(&mut self, name: &str, keys: &Keypair, allowed_ips: &str) {
        self.conf.peers.push(router_peer(name, &keys.public, allowed_ips));
    }

    /// Adds a stock WireGuard peer.
    pub fn add_client(&mut self, name: &str, keys: &Keypair, allowed_ips: &str) {
        let mut peer = router_peer(name, &keys.public, allowed_ips);
        peer.lines = vec![format!("# Name = {name}"), "Role = client".to_owned()];
        self.conf.peers.push(peer);
    }

    /// The configuration of the peer with that name.
    pub fn peer_mut(&mut self, name: &str) -> Result<&mut PeerConf> {
        let line = format!("# Name = {name}");
        self.conf.peers.iter_mut().find(|peer| peer.lines.contains(&line)).with_context(|| format!("no peer {name}"))
    }

    /// `rustguard up`.
    pub fn start(&self, lab: &Lab) -> Result<Up> {
        Up::start(lab, &self.node, &self.conf)
    }

    /// The prefixes of its addresses, which the other routers learn.
    pub fn own(&self) -> [String; 2] {
        [format!("{}/32", self.inside[0]), format!("{}/128", self.inside[1])]
    }

    /// The route of one prefix in `rustguard routes … --json`, or null.
    pub fn route(&self, prefix: &str) -> Result<Value> {
        let routes = self.asked("routes")?;
        let mut routes = routes.as_array().context("a list of routes")?.iter();
        Ok(routes.find(|route| route["prefix"] == prefix).cloned().unwrap_or_default())
    }

    /// One neighbour in `rustguard neighbours … --json`.
    pub fn neighbour(&self, name: &str) -> Result<Value> {
        let all = self.asked("neighbours")?;
        let mut neighbours = all["neighbours"].as_array().context("a list of neighbours")?.iter();
        neighbours
            .find(|neighbour| neighbour["name"] == name)
            .cloned()
            .with_context(|| format!("no neighbour {name} in {all}"))
    }

    /// The number of refusals for this reason in `rustguard neighbours … --json`.
    pub fn refused(&self, reason: &str) -> Result<u64> {
        Ok(self.asked("neighbours")?["refused"][reason].as_u64().unwrap_or(0))
    }

    /// Waits until the prefix has a next hop.
    pub fn until_routed(&self, prefix: &str) -> Result<()> {
        eventually(&format!("{} has a route to {prefix}", self.name), SOON, || {
            Ok(self.route(prefix)?["next_hops"].as_array().is_some_and(|hops| !hops.is_empty()))
        })
    }

    /// Waits until the prefix has exactly these next hops, in any order.
    pub fn until_via(&self, prefix: &str, names: &[&str]) -> Result<()> {
        let mut last = Value::Null;
        eventually(&format!("{}: {prefix} via {names:?}", self.name), SOON, || {
            last = self.route(prefix)?;
            let hops = last["next_hops"].as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(hops.len() == names.len() && hops.iter().all(|hop| hop.as_str().is_some_and(|hop| names.contains(&hop))))
        })
        .with_context(|| format!("the last was {last}"))
    }

    /// Waits until there is no route to the prefix, in the kernel either.
    pub fn until_lost(&self, prefix: &str) -> Result<()> {
        eventually(&format!("{} has no route to {prefix} any more", self.name), SOON, || {
            let route = self.route(prefix)?;
            Ok(route["metric"].is_null() && self.installed(prefix)?.is_empty())
        })
    }

    /// The kernel's route for exactly this prefix in the format of `ip`. Empty if there is none.
    pub fn installed(&self, prefix: &str) -> Result<String> {
        installed(&self.node, prefix)
    }

    /// The output of `rustguard show … --json`.
    pub fn shown(&self) -> Result<Value> {
        let mut interfaces = self.asked("show")?;
        Ok(interfaces[0].take())
    }

    /// The number of packets that RustGuard relayed.
    pub fn relayed(&self) -> Result<u64> {
        self.shown()?["relayed"].as_u64().context("a number of relayed packets")
    }

    /// The number of packets that the tunnel has dropped for this reason.
    pub fn dropped(&self, reason: &str) -> Result<u64> {
        Ok(self.shown()?["dropped"][reason].as_u64().unwrap_or(0))
    }

    fn asked(&self, verb: &str) -> Result<Value> {
        let ended = self.node.end_of(self.node.rustguard()?.args([verb, &self.conf.interface, "--json"]))?;
        ensure!(ended.success(), "{verb}: {ended}");
        serde_json::from_str(&ended.stdout).with_context(|| format!("{verb} --json: {ended}"))
    }
}

/// A peer that speaks Babel, without an endpoint.
fn router_peer(name: &str, key: &str, allowed_ips: &str) -> PeerConf {
    let mut peer = PeerConf::new(key, allowed_ips);
    peer.lines = vec![format!("# Name = {name}"), "Role = router".to_owned()];
    peer
}

/// Waits until a node's kernel has a route for exactly this prefix.
pub fn until_installed(node: &Node, prefix: &str) -> Result<()> {
    eventually(&format!("the kernel has a route to {prefix}"), SOON, || Ok(!installed(node, prefix)?.is_empty()))
}

fn installed(node: &Node, prefix: &str) -> Result<String> {
    let family = if prefix.contains(':') { "-6" } else { "-4" };
    node.run(&["ip", "-d", family, "route", "show", "exact", prefix])
}

/// A stream of twenty echo requests per second, to measure gaps in it.
pub struct Gaps {
    ping: Process,
    /// The answers that [`Gaps::longest_since`] has seen.
    seen: usize,
}

impl Gaps {
    /// The time from one echo request to the next.
    const EVERY: Duration = Duration::from_millis(50);

    /// Starts the stream, and waits until ten requests are answered.
    pub fn start(node: &Node, name: &str, address: &str) -> Result<Self> {
        Self::start_within(node, name, address, SOON)
    }

    /// Like [`Gaps::start`], but fails if ten requests are not answered within `limit`.
    pub fn start_within(node: &Node, name: &str, address: &str, limit: Duration) -> Result<Self> {
        let mut command = node.command("ping");
        // The sequence numbers of an earlier stream would fill the gaps of this one.
        node.clear_log(name)?;
        let ping = node.spawn(name, command.args(["-n", "-i", "0.05", "-W", "1", "-s", "1000", address]))?;
        let mut gaps = Self { ping, seen: 0 };
        gaps.goes_on_within(10, limit)?;
        Ok(gaps)
    }

    /// Waits until this many more requests are answered.
    pub fn goes_on(&mut self, more: usize) -> Result<()> {
        self.goes_on_within(more, SOON)
    }

    fn goes_on_within(&mut self, more: usize, limit: Duration) -> Result<()> {
        let log = self.ping.log();
        let wanted = answered(&log).count() + more;
        let ping = &mut self.ping;
        eventually("echo requests are answered", limit, || Ok(answered(&ping.log()).count() >= wanted))
            .with_context(|| self.ping.log())
    }

    /// The longest time without an answer, from the missing sequence numbers. Zero if none is missing.
    pub fn longest(&self) -> Duration {
        Self::gap(&mut answered(&self.ping.log()).collect::<Vec<_>>())
    }

    /// The longest time without an answer since the last call.
    pub fn longest_since(&mut self) -> Duration {
        let mut all: Vec<u32> = answered(&self.ping.log()).collect();
        let since = std::mem::replace(&mut self.seen, all.len()).saturating_sub(1);
        Self::gap(&mut all[since..])
    }

    fn gap(seen: &mut [u32]) -> Duration {
        seen.sort_unstable();
        let longest = seen.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(1)).max().unwrap_or(0);
        Self::EVERY * longest
    }
}

/// The sequence numbers of the answered echo requests.
fn answered(log: &str) -> impl Iterator<Item = u32> {
    log.lines().filter(|line| line.contains("bytes from")).filter_map(|line| {
        let (_, rest) = line.split_once("icmp_seq=")?;
        rest.split(' ').next()?.parse().ok()
    })
}
