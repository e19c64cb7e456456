//! The networks of the demonstrations with NATs, each node in a network namespace of its own.
//!
//! ```text
//!    member  192.168.1.11 ── 192.168.1.1  router  198.51.100.2 ──┐             ┌── 198.51.100.1  relay or server
//!                                                                ├── internet ─┤
//!    member  192.168.1.11 ── 192.168.1.1  router  198.51.100.3 ──┘             └── 198.51.100.4  second server
//! ```
//!
//! The internet is a bridge. The networks behind the two routers have the same addresses, as in many homes.

use crate::netlink::links::Links;
use anyhow::{Context as _, Result, anyhow, bail};
use rustguard_tun::namespace;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs,
    io::Write as _,
    net::Ipv4Addr,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};
use tokio::runtime::Handle;

/// The addresses outside (RFC 5737): of the public nodes, and of the routers.
pub(super) const PUBLIC: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 4)];
pub(super) const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 2), Ipv4Addr::new(198, 51, 100, 3)];
/// The addresses behind either router.
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
pub(super) const MEMBER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 11);

/// An unsolicited packet from outside is dropped before connection tracking confirms it. Otherwise a packet from inside
/// to the same address would get another port, and hole punching through two such routers would fail.
const RULES: &str = "table ip demo {
    chain input { type filter hook input priority 0; iifname wan ct state new drop; }
    chain forward { type filter hook forward priority 0; iifname wan ct state new drop; }
    chain after { type nat hook postrouting priority 100; oifname wan masquerade; }
}
";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// All nodes of the demonstration.
pub(super) struct Underlay {
    pub(super) members: [Node; 2],
    /// The nodes with a public address.
    pub(super) public: Vec<Node>,
    routers: [Node; 2],
    /// The bridge exists as long as its namespace.
    _internet: Internet,
}

/// A bridge that connects nodes with public addresses.
pub(super) struct Internet(Node);

/// A network namespace.
pub(super) struct Node {
    pub(super) links: Links,
    namespace: OwnedFd,
}

impl Underlay {
    /// Creates the namespaces and connects them. Each of these addresses gets a public node.
    pub(super) async fn new(nft: &Path, addresses: &[Ipv4Addr]) -> Result<Self> {
        let (internet, public) = Internet::new(addresses).await?;
        let routers = [Node::new()?, Node::new()?];
        let members = [Node::new()?, Node::new()?];
        for ((router, member), (name, outside)) in
            routers.iter().zip(&members).zip(["router1", "router2"].into_iter().zip(OUTSIDE))
        {
            internet.connect(name, router, outside).await?;
            router.links.lay("lan", "eth0", &member.namespace).await?;
            router.links.address("lan", ROUTER, 24).await?;
            member.links.address("eth0", MEMBER, 24).await?;
            member.links.gateway(ROUTER).await?;
            router.translate(nft)?;
        }
        Ok(Self { members, public, routers, _internet: internet })
    }

    /// Loses all packets between the routers from now on. Others still reach both.
    pub(super) async fn block(&self) -> Result<()> {
        let [one, other] = &self.routers;
        one.links.lose("wan", OUTSIDE[1]).await?;
        other.links.lose("wan", OUTSIDE[0]).await
    }

    /// Ends [`Underlay::block`].
    pub(super) async fn unblock(&self) -> Result<()> {
        let [one, other] = &self.routers;
        one.links.find("wan", OUTSIDE[1]).await?;
        other.links.find("wan", OUTSIDE[0]).await
    }
}

impl Internet {
    /// Each of these addresses gets a node.
    pub(super) async fn new(addresses: &[Ipv4Addr]) -> Result<(Self, Vec<Node>)> {
        let internet = Self(Node::new()?);
        internet.0.links.bridge("internet").await.context("cannot create a bridge; the kernel needs CONFIG_BRIDGE")?;
        let mut nodes = Vec::new();
        for (&address, number) in addresses.iter().zip(1..) {
            let node = Node::new()?;
            internet.connect(&format!("public{number}"), &node, address).await?;
            nodes.push(node);
        }
        Ok((internet, nodes))
    }

    /// Connects the interface `wan` of a node.
    async fn connect(&self, name: &str, node: &Node, address: Ipv4Addr) -> Result<()> {
        let Self(internet) = self;
        internet.links.lay(name, "wan", &node.namespace).await?;
        internet.links.plug(name, "internet").await?;
        node.links.address("wan", address, 24).await
    }
}

impl Node {
    /// Needs a tokio runtime. Its threads may be in any namespace.
    fn new() -> Result<Self> {
        in_a_thread(|| {
            namespace::enter_network().context("cannot create a network namespace")?;
            Ok(Self { links: Links::here()?, namespace: namespace::current_network()? })
        })
    }

    /// The namespace.
    pub(super) fn namespace(&self) -> Result<OwnedFd> {
        Ok(self.namespace.try_clone()?)
    }

    /// Does this work in the namespace. Sockets, interfaces and threads that it creates stay there.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_a_thread(|| {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter a network namespace")?;
            work()
        })
    }

    /// Makes the node a router that translates addresses.
    fn translate(&self, nft: &Path) -> Result<()> {
        self.inside(|| {
            rules(nft)?;
            fs::write(FORWARDING, "1").with_context(|| {
                format!("cannot write {FORWARDING}; in a container, /proc/sys must not be read-only (--privileged)")
            })
        })
    }
}

/// Sets the rules of the calling thread's namespace.
fn rules(nft: &Path) -> Result<()> {
    let mut command = Command::new(nft);
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {}", nft.display()))?;
    // If nft does not read its input, its exit status and its words say why.
    let _ = child.stdin.take().context("nft has no standard input")?.write_all(RULES.as_bytes());
    let ended = child.wait_with_output()?;
    if !ended.status.success() {
        let words = String::from_utf8_lossy(&ended.stderr);
        let words = words.lines().next().map_or_else(|| ended.status.to_string(), str::to_owned);
        bail!("nft cannot set the rules of a router; the kernel needs nf_tables with masquerade: {words}");
    }
    Ok(())
}

/// Runs `work` in a new thread of this process, with the runtime of the calling thread.
fn in_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let runtime = Handle::current();
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let _runtime = runtime.enter();
            work()
        });
        thread.join()
    });
    done.map_err(|_| anyhow!("a thread of the demonstration panicked"))?
}
