//! Routes that a routing engine has learned, in the kernel's table: what the host sends to them goes into the tunnel.

use super::{
    HostError,
    netlink::{Netlink, already_gone, link_is_down},
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
    /// For routes to the interface of that index, in this table.
    pub(crate) fn start(index: u32, table: u32) -> Result<Self, HostError> {
        let netlink = Netlink::open()?;
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
                            if wanted {
                                all.insert(prefix)
                            } else {
                                all.remove(&prefix)
                            };
                            latest.insert(prefix, wanted);
                        }
                        Change::LinkUp => latest.extend(all.iter().map(|&prefix| (prefix, true))),
                    }
                }
                for (prefix, wanted) in latest {
                    set(&netlink, index, table, prefix, wanted).await;
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

async fn set(netlink: &Netlink, index: u32, table: u32, prefix: IpNet, wanted: bool) {
    if prefix.prefix_len() == 0 && wanted {
        tracing::warn!(
            "{prefix} was learned, and stays out of the kernel's table: it would catch the tunnel's own packets"
        );
        return;
    }
    let route = message(index, table, prefix);
    let done = if wanted {
        netlink.handle.route().add(route).replace().execute().await
    } else {
        netlink.handle.route().del(route).execute().await
    };
    match done {
        // Not yet: it is set again when the interface is up.
        Err(error) if wanted && link_is_down(&error) => {}
        Err(error) if wanted || !already_gone(&error) => {
            let what = if wanted { "installed" } else { "removed" };
            tracing::warn!("the route to {prefix} could not be {what}: {error}");
        }
        _ => {}
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
