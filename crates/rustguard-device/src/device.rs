//! The handle on a running device, and how one is started.

use crate::{
    binder::{Binder, UdpBinder, UringBinder},
    config::{Change, PeerUpdate, SourceCheck, Update, UpdateError},
    control::{self, Command, Engine, Keep},
    event::Event,
    filter::{self, Filter},
    host::{LearnedTables, Redistribute},
    other::OtherProtocol,
    shared::Relaying,
    status::{RoutingStatus, Status},
    worker::LANES,
};
use ipnet::IpNet;
use rustguard_core::routing::RoutingEngine;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_tun::{
    Endpoint, TunQueue,
    tun::{Tun, TunError, TunOptions},
    uring::UringTun,
};
use std::{io, net::IpAddr, num::NonZeroUsize, sync::Arc, thread::JoinHandle};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// Configuration updates and questions that may wait for control.
const COMMAND_QUEUE: usize = 64;
/// Events a slow listener may lag behind before it loses the oldest.
const EVENT_QUEUE: usize = 1024;
/// wg-quick's MTU for an Ethernet underlay: 1,500 less IPv6 (40), UDP (8) and WireGuard (32).
pub const DEFAULT_MTU: u32 = 1420;

/// A running tunnel. Dropping it stops the threads, closes the sockets and erases every key.
///
/// The methods are futures that any executor can run; the device itself runs on threads of its own.
pub struct Device {
    handle: DeviceHandle,
    events: broadcast::Sender<Event>,
    closed: watch::Receiver<Option<CloseReason>>,
    stop: Arc<Notify>,
    interface: Option<Interface>,
    control: Option<JoinHandle<()>>,
}

/// The kernel interface of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
}

/// Why a device ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Device::shutdown`], or the handle was dropped.
    #[error("the device was shut down")]
    Shutdown,
    /// Somebody deleted the interface.
    #[error("the interface was deleted")]
    InterfaceDeleted,
    /// A system call failed in a way that cannot be mended.
    #[error("{0}")]
    Failed(String),
}

/// Why a device did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The interface could not be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The first configuration was refused: port, mark, …
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The kernel has no io_uring for us.
    #[error(transparent)]
    Uring(io::Error),
    /// No thread, no eventfd, no memory.
    #[error("cannot start the device's threads: {0}")]
    System(#[from] io::Error),
}

/// What a device starts with. More can be changed later with [`Device::update`].
#[derive(Default)]
pub struct Builder {
    update: Update,
    mtu: Option<u32>,
    resolution_retries: Option<u32>,
    greet: bool,
    queues: Option<NonZeroUsize>,
    offload: Offload,
    io: Io,
    relay: Relay,
    relay_unfiltered: bool,
    engine: Option<Engine>,
    keep: Option<Keep>,
    tables: Option<LearnedTables>,
    redistribute: Vec<Redistribute>,
    source_check: SourceCheck,
    filter: Option<Filter>,
    datagrams: Option<OtherProtocol>,
    counters: Option<Counters>,
}

/// Counters of the embedder's own: see [`Builder::counters`].
pub(crate) type Counters = Box<dyn Fn() -> Vec<(&'static str, u64)> + Send>;

/// A datagram of another protocol on the tunnel's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where it came from, and by which of our addresses, or where it is to go. An answer goes to where the question came from,
    /// from the address that was asked.
    pub endpoint: Endpoint,
    /// What is in it.
    pub bytes: Box<[u8]>,
}

/// How workers talk to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// A system call for each batch, and ppoll where there is nothing to do.
    #[default]
    Poll,
    /// io_uring: reads that go on by themselves, and whole batches of writes at once. Linux 6.7 or newer.
    Uring,
}

/// What becomes of a packet that one peer sends to another.
///
/// Relayed packets are sealed again where they lie, several times as fast as the host would forward them. The host never sees
/// them: its netfilter, its counters and its packet sockets only know of those that it forwards itself. Therefore nothing is
/// relayed, in any of these modes, while netfilter has rules that forwarded packets would meet, unless
/// [`Builder::relay_unfiltered`] says so; [`Status::relaying`](crate::Status::relaying) tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// It is relayed where the kernel, asked for this source and destination, would route it back into the interface:
    /// forwarding is on (`net.ipv4.ip_forward`, `net.ipv6.conf.all.forwarding`), and no route, rule or local address says
    /// otherwise. Rules that choose by port, protocol, mark or type of service are not asked about: they do not hold. Over
    /// transports of the embedder's own, nothing is relayed.
    #[default]
    Auto,
    /// The host gets everything.
    Off,
    /// It is relayed wherever the allowed IPs give the destination to a peer.
    Always {
        /// The host's own addresses, which are never relayed even if they lie within a peer's allowed IPs.
        local: Vec<IpAddr>,
    },
    /// It is relayed wherever the routing engine sends it to a peer, except for what is addressed to one of the host's own
    /// addresses, which are followed as they change. Over transports of the embedder's own, as [`Always`](Self::Always) without
    /// any.
    Routed,
    /// It is dropped: peers reach the host and what lies behind it, but not each other.
    Isolate,
}

impl From<Relay> for Relaying {
    fn from(relay: Relay) -> Self {
        match relay {
            Relay::Auto => Self::AsRouted,
            Relay::Off => Self::Never,
            Relay::Isolate => Self::Isolated,
            // Until the addresses have been listed, the host gets everything.
            Relay::Routed => Self::Never,
            Relay::Always { local } => Self::Always { local: Arc::new(local.into_iter().collect()) },
        }
    }
}

/// Whether whole runs of packets are exchanged with the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// As far as the kernel is able to.
    #[default]
    On,
    /// Every packet is a system call: for kernels that get it wrong, and to measure what it brings.
    Off,
}

/// The queues of each worker.
fn by_worker<T>(lanes: Vec<T>) -> Vec<Vec<T>> {
    let mut lanes = lanes.into_iter().peekable();
    let mut workers = Vec::new();
    while lanes.peek().is_some() {
        workers.push(lanes.by_ref().take(LANES).collect());
    }
    workers
}

/// As many queues as there are pairs of cores, at most 8: a worker moves what its peers send and what goes to them, and
/// leaves a core for those who make and take the packets.
pub fn default_queues() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((cores / 2).clamp(1, 8)).expect("it is clamped")
}

impl Device {
    /// Begins a device.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Changes the configuration of the running device.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        self.handle.update(update).await
    }

    /// The state now; `None` once the device has ended.
    pub async fn status(&self) -> Option<Status> {
        self.handle.status().await
    }

    /// As [`DeviceHandle::handshake_now`].
    pub async fn handshake_now(&self) {
        self.handle.handshake_now().await;
    }

    /// What happens from now on. A listener that lags 1,024 events behind loses the oldest.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Waits until the device has ended, and says why.
    pub async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.clone();
        let reason = closed.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or(CloseReason::Shutdown)
    }

    /// The kernel interface; `None` over a transport of the embedder's own.
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// A second way to ask and configure, which does not keep the device alive (the UAPI server has one).
    pub fn handle(&self) -> DeviceHandle {
        self.handle.clone()
    }

    /// Stops everything and waits for it: afterwards the interface, the sockets and the keys are gone.
    pub async fn shutdown(mut self) {
        let _ = self.handle.commands.send(Command::Shutdown).await;
        self.closed().await;
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            // A panic there was printed by the panic hook.
            let _ = control.join();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.control.is_some() {
            // Never blocks, and cannot be lost to a full queue.
            self.stop.notify_one();
            self.join();
        }
    }
}

/// Asks and configures a device without keeping it alive.
#[derive(Clone)]
pub struct DeviceHandle {
    commands: mpsc::Sender<Command>,
}

impl DeviceHandle {
    /// As [`Device::update`].
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Update(update, answer)).await.map_err(|_| UpdateError::Closed)?;
        answered.await.map_err(|_| UpdateError::Closed)?
    }

    /// Starts a handshake with every peer whose endpoint is known: the network has changed under the tunnel.
    pub async fn handshake_now(&self) {
        let _ = self.commands.send(Command::HandshakeNow).await;
    }

    /// Sends a datagram of another protocol from the tunnel's port: see [`Builder::datagrams`]. Like any datagram, it may be
    /// lost.
    pub async fn send(&self, datagram: Datagram) {
        // A device that has ended sends nothing any more.
        let _ = self.commands.send(Command::Send(datagram)).await;
    }

    /// What the routing engine tells; `None` once the device has ended.
    pub async fn routing(&self) -> Option<RoutingStatus> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Routing(answer)).await.ok()?;
        answered.await.ok()
    }

    /// As [`Device::status`].
    pub async fn status(&self) -> Option<Status> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Status(answer)).await.ok()?;
        answered.await.ok()
    }
}

impl Builder {
    /// The private key. Without one nothing is sent or answered.
    #[must_use]
    pub fn private_key(mut self, key: StaticSecret) -> Self {
        self.update.private_key = Change::Set(key);
        self
    }

    /// The UDP port; 0, the default, lets the system choose.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.update.listen_port = Some(port);
        self
    }

    /// The firewall mark on everything sent.
    #[must_use]
    pub fn fwmark(mut self, mark: u32) -> Self {
        self.update.fwmark = Some(mark);
        self
    }

    /// Adds a peer.
    #[must_use]
    pub fn peer(mut self, peer: PeerUpdate) -> Self {
        self.update.peers.push(peer);
        self
    }

    /// The MTU in bytes; by default 1,420.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// How often a name that cannot be resolved is tried again, with growing pauses up to 30 s; by default without end.
    #[must_use]
    pub fn resolution_retries(mut self, retries: u32) -> Self {
        self.resolution_retries = Some(retries);
        self
    }

    /// Whether a handshake begins with each peer as soon as it has an endpoint, though there is nothing to send; by default not.
    /// Peers that still seal for the sessions of a program that has crashed then find out at once, and not after 15 seconds. With
    /// many peers, a thousand begin each second.
    #[must_use]
    pub fn greet(mut self, greet: bool) -> Self {
        self.greet = greet;
        self
    }

    /// How many queues the interface has, each with sockets and a thread of its own; by default [`default_queues`]. All
    /// packets of one peer come in by one queue, and those of a flow go out by one: they stay in order.
    #[must_use]
    pub fn queues(mut self, queues: NonZeroUsize) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Whether whole runs of packets are exchanged with the kernel (TUN and UDP segmentation offload); by default they are,
    /// as far as the kernel is able to.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// How workers talk to the kernel; by default [`Io::Poll`]: ARCHITECTURE.md has the figures.
    #[must_use]
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// What becomes of a packet that one peer sends to another; by default [`Relay::Auto`].
    #[must_use]
    pub fn relay(mut self, relay: Relay) -> Self {
        self.relay = relay;
        self
    }

    /// Relays also while netfilter has rules for what the host forwards: base chains of nftables at prerouting, forward or
    /// postrouting, or tables of legacy iptables. Relayed packets pass none of them. Over transports of the embedder's own there
    /// is no such host, and this is always so.
    #[must_use]
    pub fn relay_unfiltered(mut self) -> Self {
        self.relay_unfiltered = true;
        self
    }

    /// Lets `engine` decide about routes. Allowed IPs are then bounds of what a peer may carry, and may overlap; without an
    /// engine they are where things are, as in WireGuard ([`StaticRoutes`](crate::routing::StaticRoutes)).
    #[must_use]
    pub fn routing(mut self, engine: impl RoutingEngine + Send + 'static) -> Self {
        self.engine = Some(Box::new(engine));
        self
    }

    /// What becomes of the bytes that the engine wants to find again after a restart. Called on the control thread.
    #[must_use]
    pub fn routing_state(mut self, keep: impl FnMut(&[u8]) + Send + 'static) -> Self {
        self.keep = Some(Box::new(keep));
        self
    }

    /// The kernel's tables into which the engine's routes go; by default they are for the workers alone, and the host's own
    /// packets need routes of other making.
    #[must_use]
    pub fn routing_tables(mut self, tables: LearnedTables) -> Self {
        self.tables = Some(tables);
        self
    }

    /// What becomes of a router's packets with sources that it has not announced; by default they are dropped.
    #[must_use]
    pub fn source_check(mut self, mode: SourceCheck) -> Self {
        self.source_check = mode;
        self
    }

    /// Lets `filter` have the last word about packets: see [`filter`](crate::filter). Workers call it for each, several of them at
    /// a time: it has to be quick, and must neither block nor allocate if the data path is not to. A panic in it ends the device.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&filter::Packet<'_>) -> filter::Verdict + Send + Sync + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// The prefixes that the engine announces as this host's own.
    #[must_use]
    pub fn announce(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.update.announce.get_or_insert_default().extend(prefixes);
        self
    }

    /// The routes of the kernel's main table that the engine announces too, for as long as they are there. Left out are those that
    /// lead into the tunnel, that a mesh has learned (`proto babel`), and link-local and multicast ones. Over transports of the
    /// embedder's own there are none.
    #[must_use]
    pub fn redistribute(mut self, which: impl IntoIterator<Item = Redistribute>) -> Self {
        self.redistribute.extend(which);
        self
    }

    /// Lets another protocol share the tunnel's port: what is no WireGuard message, and `recognises` says is the protocol's own,
    /// is queued here; [`DeviceHandle::send`] answers. `recognises` runs on the data path, for every such datagram of
    /// anybody's: it has to be quick, and cheap in doubt. Stock peers drop what they do not know in silence.
    ///
    /// The receiver has at most `queued` datagrams waiting; more are dropped and counted. Half of the places is left to sources
    /// that send little, so that a flood from elsewhere does not keep them out.
    #[must_use]
    pub fn datagrams(mut self, recognises: fn(&[u8]) -> bool, queued: usize) -> (Self, mpsc::Receiver<Datagram>) {
        let (queue, receiver) = mpsc::channel(queued);
        self.datagrams = Some(OtherProtocol::new(recognises, queue));
        (self, receiver)
    }

    /// Counters of the embedder's own, which are shown with the device's: [`Status::counters`], `show`. Names are of
    /// lower-case letters and `_`. Asked for with each status, from the control thread: it must not block.
    #[must_use]
    pub fn counters(mut self, counters: impl Fn() -> Vec<(&'static str, u64)> + Send + 'static) -> Self {
        self.counters = Some(Box::new(counters));
        self
    }

    /// Starts on a new kernel interface with this name (it is left down and without addresses:
    /// see [`host`](crate::host)) and UDP sockets.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self, interface: &str) -> Result<Device, StartError> {
        let mtu = self.mtu.unwrap_or(DEFAULT_MTU);
        let workers = self.queues.unwrap_or_else(default_queues).get();
        let offload = self.offload == Offload::On;
        let options = TunOptions { name: interface.to_owned(), mtu: Some(mtu), offload };
        let lanes = Tun::create_queues(&options, workers * LANES)?;
        let interface = Interface { name: lanes[0].name().to_owned(), index: lanes[0].index() };
        match self.io {
            Io::Poll => self.launch(by_worker(lanes), UdpBinder::new(offload), Some(interface)),
            Io::Uring => {
                let lanes = lanes.into_iter().map(UringTun::new).collect::<io::Result<_>>();
                let lanes = by_worker(lanes.map_err(StartError::Uring)?);
                self.launch(lanes, UringBinder::new(offload), Some(interface))
            }
        }
    }

    /// Starts over transports of the embedder's own: packets in memory, a userspace stack, another kind of network.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with<T: TunQueue, B: Binder>(self, tun: T, binder: B) -> Result<Device, StartError> {
        self.launch(vec![vec![tun]], binder, None)
    }

    fn launch<T: TunQueue, B: Binder>(
        self,
        queues: Vec<Vec<T>>,
        binder: B,
        interface: Option<Interface>,
    ) -> Result<Device, StartError> {
        // Without an interface there are no routes that could say so.
        let relay = match self.relay {
            Relay::Auto if interface.is_none() => Relay::Off,
            Relay::Routed if interface.is_none() => Relay::Always { local: Vec::new() },
            relay => relay,
        };
        let (commands, commands_in) = mpsc::channel(COMMAND_QUEUE);
        let (events, _) = broadcast::channel(EVENT_QUEUE);
        let (closed_out, closed) = watch::channel(None);
        let stop = Arc::new(Notify::new());
        let start = control::Start {
            update: self.update,
            mtu: self.mtu.unwrap_or(DEFAULT_MTU),
            resolution_retries: self.resolution_retries,
            greet: self.greet,
            relay,
            relay_unfiltered: self.relay_unfiltered,
            engine: self.engine,
            keep: self.keep,
            tables: self.tables,
            redistribute: self.redistribute,
            source_check: self.source_check,
            filter: self.filter,
            datagrams: self.datagrams,
            counters: self.counters,
            interface: interface.clone(),
            commands: commands_in,
            events: events.clone(),
            closed: closed_out,
            stop: Arc::clone(&stop),
        };
        let control = control::spawn(start, queues, binder)?;
        Ok(Device { handle: DeviceHandle { commands }, events, closed, stop, interface, control: Some(control) })
    }
}

#[cfg(test)]
mod tests;
