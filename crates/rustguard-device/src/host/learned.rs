//! Routes that a routing engine has learned, in the kernel's table: what the host sends to them goes into the tunnel.

use super::{
    HostError, guard,
    link::is_v6,
    netlink::{Netlink, already_gone, link_is_down},
    routes::MAIN_TABLE,
};
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        route::{RouteMessage, RouteProtocol},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tokio::{sync::mpsc, task::JoinHandle};

/// Metric of the routes: worse than those that an administrator, the kernel or DHCP makes by default (0 to 1,024), which
/// therefore are preferred, and are not replaced by ours.
const PRIORITY: u32 = 2_048;

/// Where the routes that a routing engine learns go: [`HostConfig::learned_tables`](super::HostConfig::learned_tables) says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedTables {
    pub(super) table: u32,
    pub(super) defaults: Defaults,
}

impl LearnedTables {
    /// The main table. Default routes are left out: nothing around them is set up.
    pub fn main() -> Self {
        Self { table: MAIN_TABLE, defaults: Defaults::LeftOut }
    }
}

/// What becomes of 0.0.0.0/0 and ::/0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Defaults {
    /// They would catch the tunnel's own packets, for nothing is prepared.
    LeftOut,
    /// They go where the others do: a table of the user's own.
    Together,
    /// They go into a table that policy rules choose.
    Apart(Apart),
}

/// A prepared table: see [`policy`](super::policy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Apart {
    pub(super) interface: String,
    /// Those that it is prepared for.
    pub(super) nets: Vec<IpNet>,
    /// The table, and the mark that does not go there.
    pub(super) mark: u32,
    /// Which the guard is for.
    pub(super) addresses: Vec<IpNet>,
}

/// Keeps the kernel's table as the engine's, from a task of its own: control does not wait for the kernel. The routes are marked
/// as Babel's (RTPROT_BABEL, 42) and go with the interface.
pub(crate) struct LearnedRoutes {
    changes: mpsc::UnboundedSender<Change>,
    task: JoinHandle<()>,
}

/// What the task is told.
enum Change {
    /// The prefix is to be there, or not.
    Wanted(IpNet, bool),
    /// The interface was set up: the kernel takes no routes before that, and has dropped all if it was down in between.
    LinkUp,
}

impl LearnedRoutes {
    /// For routes to the interface of that index.
    pub(crate) fn start(index: u32, tables: LearnedTables) -> Result<Self, HostError> {
        let mut kernel = Kernel { netlink: Netlink::open()?, index, tables, guarded: BTreeSet::new() };
        let (changes, mut changed) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut lot = Vec::new();
            let mut all = BTreeSet::new();
            // What comes while the kernel is busy is done at once, and what was changed twice in it, once.
            while changed.recv_many(&mut lot, 4_096).await > 0 {
                let mut latest = BTreeMap::new();
                for change in lot.drain(..) {
                    match change {
                        Change::Wanted(prefix, wanted) => {
                            // What never was there need not go.
                            let changes = if wanted {
                                all.insert(prefix);
                                true
                            } else {
                                all.remove(&prefix)
                            };
                            if changes {
                                latest.insert(prefix, wanted);
                            }
                        }
                        Change::LinkUp => latest.extend(all.iter().map(|&prefix| (prefix, true))),
                    }
                }
                for (prefix, wanted) in latest {
                    kernel.set(prefix, wanted).await;
                }
            }
        });
        Ok(Self { changes, task })
    }

    /// The prefix is to be there, or not. Bounded by what the engine remembers.
    pub(crate) fn set(&self, prefix: IpNet, wanted: bool) {
        // The task ends only with us.
        let _ = self.changes.send(Change::Wanted(prefix, wanted));
    }

    /// The interface was set up.
    pub(crate) fn link_up(&self) {
        let _ = self.changes.send(Change::LinkUp);
    }
}

impl Drop for LearnedRoutes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The kernel's side, in the task.
struct Kernel {
    netlink: Netlink,
    index: u32,
    tables: LearnedTables,
    /// The default routes that have a guard now.
    guarded: BTreeSet<IpNet>,
}

impl Kernel {
    async fn set(&mut self, prefix: IpNet, wanted: bool) {
        let table = match &self.tables.defaults {
            _ if prefix.prefix_len() > 0 => self.tables.table,
            Defaults::Together => self.tables.table,
            Defaults::Apart(apart) if apart.nets.contains(&prefix) => apart.mark,
            Defaults::Apart(_) | Defaults::LeftOut => {
                if wanted {
                    tracing::warn!(
                        "{prefix} was learned, and stays out of the kernel's table, where it would catch the tunnel's own \
                         packets: no peer had it in its AllowedIPs when the tunnel came up; take the tunnel down and up again"
                    );
                }
                return;
            }
        };
        let route = message(self.index, table, prefix);
        let done = if wanted {
            self.netlink.handle.route().add(route).replace().execute().await
        } else {
            self.netlink.handle.route().del(route).execute().await
        };
        match done {
            // Not yet: it is set again when the interface is up.
            Err(error) if wanted && link_is_down(&error) => return,
            Err(error) if wanted || !already_gone(&error) => {
                let what = if wanted { "installed" } else { "removed" };
                tracing::warn!("the route to {prefix} could not be {what}: {error}");
            }
            _ => {}
        }
        self.guard(prefix, wanted).await;
    }

    /// The guard is there for as long as the default route.
    async fn guard(&mut self, prefix: IpNet, wanted: bool) {
        let Defaults::Apart(apart) = &self.tables.defaults else { return };
        if prefix.prefix_len() > 0 || self.guarded.contains(&prefix) == wanted {
            return;
        }
        let done = if wanted {
            self.guarded.insert(prefix);
            guard::put_up(&apart.interface, &[prefix], apart.mark, &apart.addresses).await
        } else {
            self.guarded.remove(&prefix);
            guard::remove(&apart.interface, !is_v6(prefix), is_v6(prefix)).await
        };
        if let Err(error) = done {
            tracing::warn!("{error}");
        }
    }
}

fn message(index: u32, table: u32, prefix: IpNet) -> RouteMessage {
    match prefix {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.addr(), net.prefix_len())
            .output_interface(index)
            .table_id(table)
            .protocol(RouteProtocol::Babel)
            .priority(PRIORITY)
            .scope(rtnetlink::packet_route::route::RouteScope::Link)
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.addr(), net.prefix_len())
            .output_interface(index)
            .table_id(table)
            .protocol(RouteProtocol::Babel)
            .priority(PRIORITY)
            .build(),
    }
}

/// All addresses of this host.
pub(crate) async fn local_addresses() -> Result<Vec<IpAddr>, HostError> {
    let netlink = Netlink::open()?;
    let addresses: Vec<_> = netlink.handle.address().get().execute().try_collect().await.map_err(|source| {
        HostError::Netlink { action: "list addresses".into(), source: std::io::Error::other(source) }
    })?;
    let address = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) | AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    Ok(addresses.iter().flat_map(|message| message.attributes.iter().filter_map(address)).collect())
}
