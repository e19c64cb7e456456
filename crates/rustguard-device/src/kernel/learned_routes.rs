//! Routes that a routing engine has learned, in the kernel's table. They send packets of the host into the tunnel.
//!
//! **The tunnel's own packets are excluded.** A route that covers an endpoint, and that the kernel would choose for it,
//! would send the tunnel's datagrams into the tunnel. Such a route stays out while this is so. Only the kernel can
//! decide this, so it is asked (RTM_F_FIB_MATCH, with the mark): a longer route to the endpoint, or a rule for the
//! mark, makes the same route harmless. It is asked again when the endpoint or the network moves, and a route that has
//! become harmful is removed.
//!
//! **Routes of others stay.** Two meshes on one host may learn the same prefix. Their routes have the same metric and
//! differ by the interface. Each route is therefore appended (NLM_F_APPEND) and replaces nothing. When one is removed,
//! the other stays.
//!
//! **Wanted routes are restored.** A route that another program removes is added again: five times a minute at once,
//! then once a minute. So two programs that disagree do not keep a core busy.
//!
//! Default routes have a guard that is added and removed with them (see `learned_default_route`).

use super::{
    errno::{EEXIST, already_gone, errno, link_is_down},
    error::KernelError,
    learned_default_route::{Guarded, LearnedTables},
    netlink::Netlink,
    peer_addresses::PeerAddresses,
    pending_routes::{Lot, PendingRoutes},
    route_table::{destination_of, table_of},
};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use ipnet::IpNet;
use parking_lot::Mutex;
use rtnetlink::{
    MulticastGroup, RouteMessageBuilder,
    packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        route::{RouteAttribute, RouteFlags, RouteMessage, RouteProtocol},
    },
};
use rustguard_core::node::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// The minimum pause between two checks of endpoints.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause is at least this many times the duration of the last check.
const REST: u32 = 9;
/// The number of times that a route is restored at once within [`PATIENCE`]. After that it is restored once in that
/// time.
const RESTORES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
/// The minimum pause between two log lines about routes that stay out. A neighbour can announce and withdraw a route
/// all the time.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The metric of the routes. Administrators, the kernel and DHCP use 0 to 1,024 by default. Those routes are therefore
/// preferred, and ours do not replace them.
const PRIORITY: u32 = 2_048;

/// Keeps the kernel's table in step with the engine, in a separate task, so that control does not wait for the kernel.
/// The routes are marked as Babel's (RTPROT_BABEL, 42) and are deleted with the interface.
pub struct LearnedRoutes {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// State that control and the task share.
#[derive(Default)]
struct Shared {
    pending: PendingRoutes,
    peers: Mutex<PeerAddresses>,
    /// Notified when `peers` or the surrounding routes of the kernel change.
    changed: Notify,
    /// The reason for each prefix that is not in the kernel's table.
    notes: Mutex<BTreeMap<IpNet, String>>,
}

impl LearnedRoutes {
    /// Starts the task for routes to the interface with this index.
    pub fn start(index: u32, tables: LearnedTables) -> Result<Self, KernelError> {
        let netlink = Netlink::open()?;
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, _, messages) = rtnetlink::new_multicast_connection(&groups)
            .map_err(|source| KernelError::Netlink { action: "listen to changes of the routes".into(), source })?;
        let shared = Arc::<Shared>::default();
        let kernel = Kernel {
            netlink,
            index,
            tables,
            shared: Arc::clone(&shared),
            wanted: BTreeSet::new(),
            refused: BTreeSet::new(),
            guarded: Guarded::default(),
            restored: BTreeMap::new(),
            overdue: BTreeSet::new(),
            logged: None,
        };
        let messages = Box::pin(messages.map(|(message, _)| message));
        let task = tokio::spawn(async move {
            // The task ends when either future ends.
            tokio::select! {
                () = connection => {}
                () = kernel.follow(messages) => {}
            }
        });
        Ok(Self { shared, task })
    }

    /// Sets whether the prefix is wanted.
    pub fn set(&self, prefix: IpNet, wanted: bool) {
        self.shared.pending.want(prefix, wanted);
    }

    /// The interface was set up.
    pub fn link_up(&self) {
        self.shared.pending.link_up();
    }

    /// Sets a peer's endpoint addresses. No route may send packets for them into the tunnel.
    pub fn endpoints(&self, peer: PeerId, addresses: Vec<IpAddr>) {
        if self.shared.peers.lock().set(peer, addresses) {
            self.shared.changed.notify_one();
        }
    }

    /// Sets the mark of the tunnel's own packets.
    pub fn mark(&self, mark: u32) {
        self.shared.peers.lock().mark = mark;
        self.network_changed();
    }

    /// Takes note that the kernel's routes may have changed.
    pub fn network_changed(&self) {
        self.shared.peers.lock().all_changed = true;
        self.shared.changed.notify_one();
    }

    /// The wanted prefixes that are not in the table, with the reasons.
    pub fn notes(&self) -> BTreeMap<IpNet, String> {
        self.shared.notes.lock().clone()
    }
}

impl Drop for LearnedRoutes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Messages = Pin<Box<dyn Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Send>>;

/// The task's side, which talks to the kernel.
struct Kernel {
    netlink: Netlink,
    index: u32,
    tables: LearnedTables,
    shared: Arc<Shared>,
    /// The wanted prefixes, whether or not they are in the table.
    wanted: BTreeSet<IpNet>,
    /// Prefixes that stay out, because they would capture the tunnel's own packets.
    refused: BTreeSet<IpNet>,
    guarded: Guarded,
    /// How often each prefix was restored, and the start of that count.
    restored: BTreeMap<IpNet, (u32, Instant)>,
    /// Prefixes that are restored at the end of the minute.
    overdue: BTreeSet<IpNet>,
    /// The time of the last log line about a route that stays out.
    logged: Option<Instant>,
}

impl Kernel {
    async fn follow(mut self, mut messages: Messages) {
        let shared = Arc::clone(&self.shared);
        let (mut rested, mut look_at) = (Instant::now(), None);
        let mut restore_at = None;
        loop {
            tokio::select! {
                lot = shared.pending.take() => self.carry_out(lot).await,
                () = shared.changed.notified() => look_at = Some(Instant::now().max(rested)),
                () = until(look_at) => {
                    look_at = None;
                    let started = Instant::now();
                    self.look().await;
                    rested = Instant::now() + PAUSE.max(started.elapsed() * REST);
                }
                Some(message) = messages.next() => match message.payload {
                    NetlinkPayload::Overrun(_) => self.carry_out(Lot { link_up: true, ..Lot::default() }).await,
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(route)) => self.gone(&route, true).await,
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => self.gone(&route, false).await,
                    _ => {}
                },
                () = until(restore_at) => {
                    for prefix in std::mem::take(&mut self.overdue) {
                        self.put_back(prefix).await;
                    }
                    restore_at = None;
                }
            }
            if restore_at.is_none() && !self.overdue.is_empty() {
                restore_at = Some(Instant::now() + PATIENCE);
            }
        }
    }

    async fn carry_out(&mut self, lot: Lot) {
        let mut latest = BTreeMap::new();
        if lot.link_up {
            latest.extend(self.wanted.iter().map(|&prefix| (prefix, true)));
        }
        for (prefix, wanted) in lot.prefixes {
            let was_wanted = if wanted { !self.wanted.insert(prefix) } else { self.wanted.remove(&prefix) };
            // A route that was never there need not be removed.
            if wanted || was_wanted {
                latest.insert(prefix, wanted);
            }
        }
        for (prefix, wanted) in latest {
            self.set(prefix, wanted).await;
        }
    }

    async fn set(&mut self, prefix: IpNet, wanted: bool) {
        if self.tables.leaves_out(prefix) {
            return;
        }
        let Some(table) = self.tables.of(prefix) else {
            if wanted {
                self.note(
                    prefix,
                    "it would catch the tunnel's own packets, for no peer had it in its AllowedIPs when the tunnel came up: \
                     take the tunnel down and up again",
                );
            } else {
                self.forget(prefix);
            }
            return;
        };
        if !wanted {
            self.forget(prefix);
            self.remove(prefix, table).await;
            return;
        }
        if let Some(endpoint) = self.catches(prefix, table).await {
            self.refuse(prefix, endpoint);
            return;
        }
        if self.refused.remove(&prefix) {
            self.shared.notes.lock().remove(&prefix);
        }
        self.install(prefix, table).await;
    }

    async fn install(&mut self, prefix: IpNet, table: u32) {
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(message(self.index, table, prefix)));
        // `ip route add` uses NLM_F_EXCL, and `replace` would replace the route. Both are wrong here, because another
        // mesh may have the same prefix.
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND;
        match ask(self.netlink.handle_mut(), request).await {
            // The interface is down. The route is added again when the interface is up.
            Err(error) if link_is_down(&error) => return,
            Err(error) if errno(&error) == Some(EEXIST) => {}
            Err(error) => tracing::warn!("the route to {prefix} could not be installed: {error}"),
            Ok(()) => {}
        }
        self.guarded.added(&self.tables, prefix).await;
    }

    async fn remove(&mut self, prefix: IpNet, table: u32) {
        match self.netlink.handle().route().del(message(self.index, table, prefix)).execute().await {
            Err(error) if !already_gone(&error) => {
                tracing::warn!("the route to {prefix} could not be removed: {error}");
            }
            _ => {}
        }
        self.guarded.taken_away(&self.tables, prefix).await;
    }

    /// Forgets everything about a prefix that is no longer wanted.
    fn forget(&mut self, prefix: IpNet) {
        self.refused.remove(&prefix);
        self.restored.remove(&prefix);
        self.overdue.remove(&prefix);
        self.shared.notes.lock().remove(&prefix);
    }

    fn refuse(&mut self, prefix: IpNet, endpoint: IpAddr) {
        self.refused.insert(prefix);
        self.note(prefix, &format!("the way to the endpoint {endpoint} of a peer would lead into the tunnel"));
    }

    /// Records why a prefix is not in the kernel's table.
    fn note(&mut self, prefix: IpNet, why: &str) {
        let before = self.shared.notes.lock().insert(prefix, why.to_owned());
        let due = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_PAUSE);
        if before.is_none_or(|before| before != why) && due {
            self.logged = Some(Instant::now());
            tracing::warn!(
                "the learned route to {prefix} stays out of the kernel's table: {why} (`routes` has all of them)"
            );
        }
    }

    /// The first endpoint for which the kernel would choose this route. In the table of a learned route, another route
    /// takes precedence only if it is longer, or as long with a lower metric. A table that the kernel uses before, or
    /// selects by a rule, takes precedence over all of that table.
    async fn catches(&self, prefix: IpNet, table: u32) -> Option<IpAddr> {
        let (mark, endpoints) = {
            let peers = self.shared.peers.lock();
            (peers.mark, peers.within(prefix).collect::<Vec<_>>())
        };
        if self.tables.spares(prefix, mark) {
            return None;
        }
        for endpoint in endpoints {
            let caught = match self.choice(endpoint, mark).await {
                Some(choice) if choice.interface == Some(self.index) => true,
                Some(choice) if choice.table != table => false,
                Some(choice) => {
                    let length = prefix.prefix_len();
                    choice.length < length || choice.length == length && choice.metric > PRIORITY
                }
                // There is no route, and the tunnel would not provide one either.
                None => true,
            };
            if caught {
                return Some(endpoint);
            }
        }
        None
    }

    /// The route that the kernel chooses for the tunnel's packets to this address.
    async fn choice(&self, endpoint: IpAddr, mark: u32) -> Option<Choice> {
        let mut question = match endpoint {
            IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(address, 32).build(),
            IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).build(),
        };
        // As in `ip route get`, only the destination of the route is given.
        question.header = rtnetlink::packet_route::route::RouteHeader {
            address_family: question.header.address_family,
            destination_prefix_length: question.header.destination_prefix_length,
            // The answer must have the route itself and its table. Without the second flag, the answer for IPv4 always
            // names the main table.
            flags: RouteFlags::FibMatch | RouteFlags::LookupTable,
            ..Default::default()
        };
        question.attributes.retain(|attribute| matches!(attribute, RouteAttribute::Destination(_)));
        question.attributes.extend((mark != 0).then_some(RouteAttribute::Mark(mark)));
        let answers: Vec<RouteMessage> =
            self.netlink.handle().route().get(question).execute().try_collect().await.ok()?;
        let route = answers.first()?;
        let mut choice = Choice {
            interface: None,
            table: table_of(route),
            length: route.header.destination_prefix_length,
            metric: 0,
        };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => choice.interface = Some(*index),
                RouteAttribute::Priority(metric) => choice.metric = *metric,
                _ => {}
            }
        }
        Some(choice)
    }

    /// Endpoints, or the kernel's routes to them, have changed. Removes the routes that send the endpoints' packets
    /// into the tunnel, and adds those that no longer do.
    async fn look(&mut self) {
        let (mark, endpoints) = {
            let mut peers = self.shared.peers.lock();
            (peers.mark, peers.take_changed())
        };
        for (n, endpoint) in endpoints.into_iter().enumerate() {
            if n % 64 == 63 {
                // Control runs on the same thread.
                tokio::task::yield_now().await;
            }
            // The routes that cover the endpoint, the longest first: the kernel prefers the longest of ours.
            for length in (0..=if endpoint.is_ipv4() { 32 } else { 128 }).rev() {
                let Ok(prefix) = IpNet::new(endpoint, length).map(|net| net.trunc()) else { continue };
                if !self.wanted.contains(&prefix) || self.refused.contains(&prefix) || self.tables.spares(prefix, mark)
                {
                    continue;
                }
                let Some(table) = self.tables.of(prefix) else { continue };
                if self.choice(endpoint, mark).await.is_none_or(|choice| choice.interface != Some(self.index)) {
                    break;
                }
                self.refuse(prefix, endpoint);
                self.remove(prefix, table).await;
            }
        }
        let refused: Vec<IpNet> = self.refused.iter().copied().collect();
        for prefix in refused {
            self.set(prefix, true).await;
        }
    }

    /// A route was removed, or was added and may have replaced one of ours.
    async fn gone(&mut self, route: &RouteMessage, deleted: bool) {
        let Some(prefix) = destination_of(route).map(|net| net.trunc()) else { return };
        let ours = route.attributes.contains(&RouteAttribute::Oif(self.index));
        let same = route.attributes.contains(&RouteAttribute::Priority(PRIORITY));
        if !same
            || ours != deleted
            || !self.wanted.contains(&prefix)
            || self.refused.contains(&prefix)
            || self.tables.of(prefix) != Some(table_of(route))
        {
            return;
        }
        let (count, since) = self.restored.get(&prefix).copied().unwrap_or((0, Instant::now()));
        let (count, since) = if since.elapsed() < PATIENCE { (count, since) } else { (0, Instant::now()) };
        if count < RESTORES {
            // A route that was added beside ours removes nothing.
            if deleted {
                self.restored.insert(prefix, (count + 1, since));
            }
            self.put_back(prefix).await;
        } else if self.overdue.insert(prefix) {
            self.note(prefix, "another program takes it away again and again: it is put back once a minute");
        }
    }

    async fn put_back(&mut self, prefix: IpNet) {
        if self.wanted.contains(&prefix) && !self.refused.contains(&prefix) {
            self.shared.notes.lock().remove(&prefix);
            self.set(prefix, true).await;
        }
    }
}

/// The relevant parts of a route.
struct Choice {
    interface: Option<u32>,
    table: u32,
    length: u8,
    metric: u32,
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Sends a request and waits for the end of its answer.
async fn ask(
    handle: &mut rtnetlink::Handle,
    request: NetlinkMessage<RouteNetlinkMessage>,
) -> Result<(), rtnetlink::Error> {
    let mut answers = handle.request(request)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(rtnetlink::Error::NetlinkError(error));
        }
    }
    Ok(())
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
