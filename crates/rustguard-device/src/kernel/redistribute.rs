//! Kernel routes that a routing engine announces: the routes of the main table that the configuration selects.

use super::{
    error::KernelError,
    netlink::Netlink,
    route_table::{Family, MAIN_TABLE, destination_of},
};
use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType};
use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::Instant,
};

/// The number of routes that a neighbour accepts by default (`rustguard_babel::MAX_ROUTES`). It would refuse any more.
const MAX_ROUTES: usize = 4_096;

/// The minimum pause between two reads of the table, however often it changes. Each read covers the whole table.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause is at least this many times the duration of the last read. Reading takes at most a tenth of the time, even
/// with a million routes.
const REST: u32 = 9;

/// A selection of the kernel's routes, to be announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redistribute {
    /// The default routes, of both families.
    Default,
    /// The routes within this prefix, including the prefix itself.
    Within(IpNet),
}

impl Redistribute {
    fn covers(self, net: IpNet) -> bool {
        match self {
            Self::Default => net.prefix_len() == 0,
            Self::Within(prefix) => prefix.contains(&net),
        }
    }
}

impl fmt::Display for Redistribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Within(net) => net.fmt(f),
        }
    }
}

/// Reads the main table after a change, in a separate task.
pub struct KernelRoutes {
    again: Arc<Notify>,
    task: JoinHandle<()>,
}

impl KernelRoutes {
    /// Starts the task. It sends to `found` the routes of `which` that do not lead into the interface with this index,
    /// each time they differ from before.
    pub fn start(
        index: u32,
        which: Vec<Redistribute>,
        found: mpsc::Sender<BTreeSet<IpNet>>,
    ) -> Result<Self, KernelError> {
        let netlink = Netlink::open()?;
        let again = Arc::new(Notify::new());
        let notified = Arc::clone(&again);
        let task = tokio::spawn(async move {
            let mut before = BTreeSet::new();
            loop {
                notified.notified().await;
                let started = Instant::now();
                let looked = look(&netlink, index, &which).await;
                let took = started.elapsed();
                match looked {
                    Ok(now) if now != before => {
                        before.clone_from(&now);
                        if found.send(now).await.is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!("what is announced does not follow the kernel's routes: {error}"),
                }
                tokio::time::sleep(PAUSE.max(took * REST)).await;
            }
        });
        Ok(Self { again, task })
    }

    /// Takes note that something has changed, or may have changed.
    pub fn look_again(&self) {
        self.again.notify_one();
    }
}

impl Drop for KernelRoutes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the whole table, because the kernel does not announce which IPv4 routes were lost when an interface went down.
async fn look(netlink: &Netlink, index: u32, which: &[Redistribute]) -> Result<BTreeSet<IpNet>, KernelError> {
    let mut found = BTreeSet::new();
    for family in Family::in_kernel() {
        let routes = netlink.dump_routes(family, Some(MAIN_TABLE), None).await?;
        found.extend(routes.iter().filter_map(|route| announced(route, index, which)));
    }
    if found.len() > MAX_ROUTES {
        tracing::warn!(
            "{} routes of the kernel are within `Redistribute`, and {MAX_ROUTES} of them are announced: name fewer prefixes, or \
             one that covers them under `Announce`",
            found.len()
        );
        found = found.into_iter().take(MAX_ROUTES).collect();
    }
    Ok(found)
}

/// The destination of the route, if it is to be announced.
fn announced(route: &RouteMessage, index: u32, which: &[Redistribute]) -> Option<IpNet> {
    let header = &route.header;
    let net = destination_of(route)?.trunc();
    let announced = header.kind == RouteType::Unicast
        // A route that this or another mesh has learned does not belong to this node. If it were announced, it would
        // return with a shorter path.
        && header.protocol != RouteProtocol::Babel
        // The route applies to some packets only, which an announcement cannot express.
        && header.source_prefix_length == 0
        && header.tos == 0
        // A cached path MTU or redirect.
        && !header.flags.contains(RouteFlags::Cloned)
        && !leads_to(route, index)
        && !is_martian(net)
        && which.iter().any(|which| which.covers(net));
    announced.then_some(net)
}

fn leads_to(route: &RouteMessage, index: u32) -> bool {
    route.attributes.iter().any(|attribute| match attribute {
        RouteAttribute::Oif(oif) => *oif == index,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == index),
        _ => false,
    })
}

/// Whether the prefix is link-local, multicast or loopback.
fn is_martian(net: IpNet) -> bool {
    net.prefix_len() > 0
        && match net.addr() {
            IpAddr::V4(address) => address.is_link_local() || address.is_multicast() || address.is_loopback(),
            IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast() || address.is_loopback(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtnetlink::packet_route::{
        AddressFamily,
        route::{RouteAddress, RouteNextHop},
    };

    const TUNNEL: u32 = 7;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn route(text: &str) -> RouteMessage {
        let net = net(text);
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        route.header.protocol = RouteProtocol::Boot;
        route.header.destination_prefix_length = net.prefix_len();
        let (family, address) = match net.addr() {
            IpAddr::V4(address) => (AddressFamily::Inet, RouteAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, RouteAddress::Inet6(address)),
        };
        route.header.address_family = family;
        // The kernel omits this attribute for default routes.
        route.attributes.extend((net.prefix_len() > 0).then_some(RouteAttribute::Destination(address)));
        route.attributes.push(RouteAttribute::Oif(3));
        route
    }

    fn is_announced(route: &RouteMessage, which: &[Redistribute]) -> bool {
        announced(route, TUNNEL, which).is_some()
    }

    #[test]
    fn only_what_is_named_is_announced() {
        let lan = [Redistribute::Within(net("192.168.0.0/16")), Redistribute::Within(net("fd01::/48"))];
        for (text, within) in [
            ("192.168.0.0/16", true),
            ("192.168.7.0/24", true),
            ("192.168.7.1/32", true),
            ("192.0.0.0/8", false),
            ("192.169.0.0/24", false),
            ("fd01::/64", true),
            ("fd02::/64", false),
            ("0.0.0.0/0", false),
            ("::/0", false),
        ] {
            assert_eq!(announced(&route(text), TUNNEL, &lan), within.then(|| net(text)), "{text}");
        }
        for (text, default) in [("0.0.0.0/0", true), ("::/0", true), ("0.0.0.0/1", false), ("fd01::/64", false)] {
            assert_eq!(is_announced(&route(text), &[Redistribute::Default]), default, "{text}");
        }
        let all = [Redistribute::Within(net("0.0.0.0/0"))];
        assert!(is_announced(&route("0.0.0.0/0"), &all) && !is_announced(&route("::/0"), &all));
        assert!(!is_announced(&route("192.168.7.0/24"), &[]));
    }

    #[test]
    fn what_is_not_this_hosts_or_not_for_everybody_is_not_announced() {
        let all = ["0.0.0.0/0", "::/0"].map(|text| Redistribute::Within(net(text)));
        let changed = |change: fn(&mut RouteMessage)| {
            let mut route = route("192.168.7.0/24");
            change(&mut route);
            is_announced(&route, &all)
        };
        assert!(changed(|_| {}));
        assert!(changed(|route| route.header.protocol = RouteProtocol::Dhcp));
        assert!(!changed(|route| route.header.protocol = RouteProtocol::Babel));
        assert!(!changed(|route| route.header.kind = RouteType::BlackHole));
        assert!(!changed(|route| route.header.source_prefix_length = 64));
        assert!(!changed(|route| route.header.tos = 16));
        assert!(!changed(|route| route.header.flags = RouteFlags::Cloned));
        assert!(!changed(|route| route.attributes[1] = RouteAttribute::Oif(TUNNEL)));
        let several = |last| {
            let mut route = route("192.168.7.0/24");
            let hops = [3, last].map(|index| {
                let mut hop = RouteNextHop::default();
                hop.interface_index = index;
                hop
            });
            route.attributes[1] = RouteAttribute::MultiPath(hops.to_vec());
            is_announced(&route, &all)
        };
        assert!(several(4) && !several(TUNNEL));
        for martian in ["169.254.0.0/16", "224.0.0.0/4", "127.0.0.0/8", "fe80::/64", "ff00::/8", "::1/128"] {
            assert!(!is_announced(&route(martian), &all), "{martian}");
        }
    }
}
