//! Control: one thread that owns all protocol state, and publishes what the workers need.
//!
//! Everything arrives here as a message, is given to the [`Node`], and the node's actions are carried out
//! ([`apply`]). Nothing in this thread blocks: a name that resolves slowly or a UAPI client that stalls costs a task.

mod allowed;
mod apply;
mod engine;
mod paths;
mod peer;
mod peer_log;
mod relay;
mod resolve;
mod round;
mod sources;
mod timer;
mod update;

use crate::{
    binder::{Binder, Bound},
    config::{Update, UpdateError},
    drops::DropReason,
    error::{CloseReason, StartError},
    event::Event,
    foreign::Datagram,
    handshakes::{HANDSHAKE_QUEUE, HandshakeDatagram, HandshakeInbox, HandshakeQueues},
    interface::Interface,
    kernel::{ForwardRules, HostEvent, KernelRoutes, LearnedRoutes, Monitor, local_addresses},
    relay::{Relay, RelayRule},
    secrets::Secrets,
    settings::{Counters, Settings},
    shared::{
        Shared,
        table::Table,
        to_control::{self, Capacity, FromWorkers, Notice, ROUTE_QUEUE},
    },
    status::{RoutingStatus, Status},
    worker::WorkerHandle,
};
use allowed::Allowed;
use engine::EngineHost;
use ipnet::IpNet;
use paths::peer_paths::Schedule;
use peer::Peer;
use peer_log::{Line, PeerLog, Topic};
use relay::{RelayGate, RouteAnswer, RouteCache};
use resolve::Resolved;
use round::{Kind, Round};
use rustguard_core::{
    activity::Activity,
    node::{Action, Dropped, Node, PeerId},
    time::{Instant, Now},
};
use rustguard_tun::{TunQueue, clock, udp::UdpOptions};
use sources::{SourceAnswers, Sources};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::IpAddr,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use timer::{BootTimer, SuspendDetector};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// Answers of the resolver that may wait: it waits itself where there are more.
const RESOLVED_QUEUE: usize = 1024;

/// Between the first initiations to peers that are greeted: a tenth of the time goes into them.
const GREETING_PAUSE: Duration = Duration::from_millis(1);

/// What a [`Device`](crate::Device) asks of control.
pub(crate) enum Command {
    Update(Update, oneshot::Sender<Result<(), UpdateError>>),
    Status(oneshot::Sender<Status>),
    /// The status with the secrets of the same moment.
    StatusWithSecrets(oneshot::Sender<(Status, Secrets)>),
    Routing(oneshot::Sender<RoutingStatus>),
    HandshakeNow,
    Send(Datagram),
    Shutdown,
}

/// What control is started with.
pub(crate) struct Start {
    pub(crate) settings: Settings,
    pub(crate) interface: Option<Interface>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) closed: watch::Sender<Option<CloseReason>>,
    pub(crate) stop: Arc<Notify>,
}

/// All state of a running device.
struct Control<B: Binder> {
    node: Node,
    peers: HashMap<PeerId, Peer>,
    /// The peers as the workers have them, or will with the next snapshot.
    published: Table,
    allowed: Allowed,
    /// Who decides about routes; [`publish`](Self::publish) gives the workers a snapshot of the outcome.
    engine_host: EngineHost,
    /// When the paths of peers that have several are due.
    path_schedule: Schedule,
    /// What peers can repeat, for the log.
    peer_log: PeerLog,
    /// What is relayed follows the host's addresses.
    follows_addresses: bool,
    shared: Arc<Shared>,
    binder: B,
    /// The sockets of all workers: what control has to say leaves by the first.
    networks: Vec<B::Control>,
    workers: Vec<WorkerHandle<B::Network>>,
    port: u16,
    fwmark: u32,
    /// The interface was set down, and has not been set up since.
    stopped: bool,
    /// Where the node leaves its actions; empty between messages.
    actions: Vec<Action>,
    /// Where control seals.
    scratch: Vec<u8>,
    events: broadcast::Sender<Event>,
    resolved: mpsc::Sender<Resolved>,
    resolution_retries: Option<u32>,
    /// When the next peer is greeted, where that is done.
    next_greeting: Option<Instant>,
    relay_rule: RelayRule,
    /// Whether netfilter lets anything be relayed.
    gate: RelayGate,
    /// Whether our own addresses still suit the routes to peers.
    sources: Sources,
    route_cache: RouteCache,
    counters: Option<Counters>,
    /// Where the host's addresses are sent when they have been listed.
    addresses: mpsc::Sender<Vec<IpAddr>>,
    /// What of the kernel's routes is announced.
    redistributed: Option<KernelRoutes>,
}

/// Binds, applies the first configuration, starts the threads. What can fail, fails here and not later.
/// `queues` are the TUN queues of each worker.
pub(crate) fn spawn<T: TunQueue, B: Binder>(
    start: Start,
    queues: Vec<Vec<T>>,
    mut binder: B,
) -> Result<JoinHandle<()>, StartError> {
    let settings = start.settings;
    let options = UdpOptions {
        port: settings.update.listen_port.unwrap_or(0),
        fwmark: settings.update.fwmark.unwrap_or(0),
        ..UdpOptions::default()
    };
    let bound = binder.bind(&options, queues.len()).map_err(|cause| UpdateError::Port { port: options.port, cause })?;
    let name = start.interface.as_ref().map_or("device", |interface| &interface.name).to_owned();

    let (handshakes, handshakes_in) = HandshakeQueues::new(HANDSHAKE_QUEUE);
    let (to_control, from_workers) = to_control::channels(&Capacity::default());
    let (resolved, resolved_in) = mpsc::channel(RESOLVED_QUEUE);
    let (route_answers, route_answers_in) = mpsc::channel(ROUTE_QUEUE);
    let shared = Arc::new(Shared {
        source_check: settings.source_check,
        filter: settings.filter,
        is_engine_packet: settings.engine.as_ref().and_then(|engine| engine.claims()),
        foreign: settings.foreign,
        ..Shared::new(settings.mtu, bound.port, to_control, handshakes)
    });

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let timer = BootTimer::new()?;
    let Bound { workers: networks, control, port } = bound;
    let workers = queues.into_iter().zip(networks).enumerate().map(|(n, (queues, network))| {
        let name = if n == 0 { format!("rg-{name}") } else { format!("rg-{name}-{n}") };
        WorkerHandle::start(name, Arc::clone(&shared), queues, network)
    });
    let workers = workers.collect::<io::Result<_>>()?;
    let kernel = match (&start.interface, settings.tables) {
        (Some(interface), Some(tables)) if settings.engine.is_some() => {
            Some(LearnedRoutes::start(interface.index, tables).map_err(io::Error::other)?)
        }
        _ => None,
    };
    let engine_host = EngineHost::new(settings.engine, settings.state_sink, kernel);
    let follows_addresses = settings.relay == Relay::ByEngine;
    let (rules, rules_in) = mpsc::channel(1);
    let (source_answers, source_answers_in) = mpsc::channel(1);
    let gate = match &start.interface {
        Some(interface) if !settings.relay_unfiltered => RelayGate::new(&settings.relay, interface, rules),
        _ => RelayGate::unguarded(),
    };
    let (addresses, addresses_in) = mpsc::channel(1);
    let (kernel_routes, kernel_routes_in) = mpsc::channel(1);
    let redistributed = match &start.interface {
        Some(interface) if engine_host.shares_prefixes && !settings.redistribute.is_empty() => {
            Some(KernelRoutes::start(interface.index, settings.redistribute, kernel_routes).map_err(io::Error::other)?)
        }
        _ => None,
    };
    let mut control = Control {
        node: Node::new(now().instant, &mut rand::rng()),
        peers: HashMap::new(),
        published: Table::default(),
        allowed: Allowed::new(engine_host.shares_prefixes),
        engine_host,
        path_schedule: Schedule::new(),
        peer_log: PeerLog::default(),
        follows_addresses,
        shared,
        binder,
        networks: control,
        workers,
        port,
        fwmark: options.fwmark,
        stopped: false,
        actions: Vec::new(),
        scratch: Vec::new(),
        events: start.events,
        resolved,
        resolution_retries: settings.resolution_retries,
        next_greeting: settings.greet.then(|| now().instant),
        relay_rule: settings.relay.into(),
        gate,
        sources: Sources::new(start.interface.is_some(), source_answers),
        counters: settings.counters,
        addresses,
        redistributed,
        route_cache: RouteCache::new(start.interface.as_ref().map(|interface| interface.index), route_answers),
    };
    // Port and mark are bound already.
    control.tell_mark();
    control.update(Update { listen_port: None, fwmark: None, ..settings.update })?;
    drop(entered);

    let inbox = Inbox {
        commands: start.commands,
        stop: start.stop,
        handshakes: handshakes_in,
        from_workers,
        resolved: resolved_in,
        addresses: addresses_in,
        kernel_routes: kernel_routes_in,
        route_answers: route_answers_in,
        rules: rules_in,
        source_answers: source_answers_in,
        timer,
        interface: start.interface,
    };
    let closed = start.closed;
    Ok(std::thread::Builder::new().name(format!("rg-{name}-ctl")).spawn(move || {
        let reason = runtime.block_on(async {
            let reason = control.run(inbox).await;
            control.engine_leave();
            reason
        });
        // The worker has ended and the interface is gone before anybody hears that the device is closed.
        drop(control);
        drop(runtime);
        let _ = closed.send(Some(reason));
    })?)
}

/// Everything that can wake control.
struct Inbox {
    commands: mpsc::Receiver<Command>,
    stop: Arc<Notify>,
    handshakes: HandshakeInbox,
    from_workers: FromWorkers,
    addresses: mpsc::Receiver<Vec<IpAddr>>,
    kernel_routes: mpsc::Receiver<BTreeSet<IpNet>>,
    resolved: mpsc::Receiver<Resolved>,
    route_answers: mpsc::Receiver<RouteAnswer>,
    rules: mpsc::Receiver<ForwardRules>,
    source_answers: mpsc::Receiver<SourceAnswers>,
    timer: BootTimer,
    /// Whose MTU is followed.
    interface: Option<Interface>,
}

impl<B: Binder> Control<B> {
    /// Runs until the device is to end, and says why.
    async fn run(&mut self, mut inbox: Inbox) -> CloseReason {
        let mut suspend = SuspendDetector::new();
        let mut monitor = monitor(inbox.interface.as_ref()).await;
        if let Some(mtu) = monitor.as_ref().and_then(Monitor::mtu) {
            self.host_event(HostEvent::LinkMtu(mtu));
        }
        // It may have been set up before anybody listened.
        self.engine_host.link_up();
        self.network_changed();
        let mut round = Round::new();
        loop {
            let deadlines =
                [self.node.deadline(), self.engine_host.deadline(), self.paths_deadline(), self.peer_log.deadline()];
            let deadline = deadlines.into_iter().flatten().min();
            inbox.timer.set(deadline);
            // In this order, and each kind so often in a round: see `round.rs`.
            let kind = tokio::select! {
                biased;
                () = inbox.stop.notified() => return CloseReason::Shutdown,
                // What an administrator forbids does not wait for what others send.
                Some(rules) = inbox.rules.recv(), if round.has(Kind::Host) => {
                    self.rules_are(rules);
                    Kind::Host
                }
                Some(notice) = inbox.from_workers.notices.recv(), if round.has(Kind::Notice) => {
                    if let Some(reason) = self.notice(notice) {
                        return reason;
                    }
                    Kind::Notice
                }
                // Before the timer: an answer that waits here is not late.
                Some((peer, from, probe)) = inbox.from_workers.probes.recv(), if round.has(Kind::Probe) => {
                    self.probe(peer, &from, &probe);
                    Kind::Probe
                }
                () = inbox.timer.expired(), if round.has(Kind::Time) => {
                    self.node.tick(now(), &mut rand::rng(), &mut self.actions);
                    self.engine_tick();
                    self.paths_tick();
                    while let Some(line) = self.peer_log.next(now().instant) {
                        line.write();
                    }
                    Kind::Time
                }
                // Before the engine's packets: nobody who speaks a routing protocol keeps others from a session.
                Some(datagram) = inbox.handshakes.recv(), if round.has(Kind::Handshake) => {
                    self.handshake(&datagram);
                    Kind::Handshake
                }
                // After the messages: an answer among them may be what is requested.
                Some(peer) = inbox.from_workers.handshake_requests.recv(), if round.has(Kind::HandshakeRequest) => {
                    self.handshake_requested(peer);
                    Kind::HandshakeRequest
                }
                Some(command) = inbox.commands.recv(), if round.has(Kind::Command) => {
                    match command {
                        Command::Update(update, answer) => { let _ = answer.send(self.update(update)); }
                        Command::Status(answer) => { let _ = answer.send(self.status()); }
                        Command::StatusWithSecrets(answer) => { let _ = answer.send((self.status(), self.secrets())); }
                        Command::Routing(answer) => { let _ = answer.send(self.routing_status()); }
                        Command::HandshakeNow => self.handshake_now(),
                        Command::Send(Datagram { endpoint, bytes }) => { self.transmit(endpoint, 0, &bytes); }
                        Command::Shutdown => return CloseReason::Shutdown,
                    }
                    Kind::Command
                }
                Some((peer, packet)) = inbox.from_workers.engine.recv(), if round.has(Kind::Engine) => {
                    self.engine_packet(peer, &packet);
                    Kind::Engine
                }
                Some(addresses) = inbox.addresses.recv(), if round.has(Kind::Host) => {
                    self.local_addresses(addresses);
                    Kind::Host
                }
                Some(routes) = inbox.kernel_routes.recv(), if round.has(Kind::Host) => {
                    self.redistribute(routes);
                    Kind::Host
                }
                Some(resolved) = inbox.resolved.recv(), if round.has(Kind::Host) => {
                    self.resolved(resolved);
                    Kind::Host
                }
                Some(event) = next_event(&mut monitor), if round.has(Kind::Host) => {
                    if let Some(reason) = self.host_event(event) {
                        return reason;
                    }
                    Kind::Host
                }
                Some(answers) = inbox.source_answers.recv(), if round.has(Kind::Host) => {
                    self.sources_answered(answers);
                    Kind::Host
                }
                () = self.route_cache.changed(), if round.has(Kind::Host) => {
                    self.routes_changed();
                    Kind::Host
                }
                Some(answer) = inbox.route_answers.recv(), if round.has(Kind::Route) => {
                    self.route_answered(&answer);
                    Kind::Route
                }
                Some(question) = inbox.from_workers.routes.recv(), if round.has(Kind::Route) => {
                    self.ask_route(question);
                    Kind::Route
                }
                // Nothing else waits, or all that wait have had their turns.
                () = std::future::ready(()), if round.is_spent() => {
                    round = Round::new();
                    continue;
                }
            };
            round.took(kind);
            self.apply(None);
            if suspend.resumed() {
                tracing::info!("the machine was asleep: starting handshakes");
                self.handshake_now();
                self.apply(None);
            }
        }
    }

    /// A handshake message or cookie reply from the network.
    fn handshake(&mut self, datagram: &HandshakeDatagram) {
        let bytes = &datagram.bytes[..datagram.len];
        let (from, rng, out) = (datagram.from.remote, &mut rand::rng(), &mut self.actions);
        let handled = match datagram.standing {
            Some(standing) => self.node.handle_judged(from, bytes, standing, now(), rng, out),
            None => self.node.handle(from, bytes, now(), rng, out),
        };
        if let Err(dropped) = handled {
            tracing::debug!(from = %datagram.from.remote, "handshake message refused: {dropped:?}");
            let reason = match dropped {
                Dropped::CookieSent | Dropped::RateLimited => DropReason::UnderLoad,
                _ => DropReason::HandshakeRefused,
            };
            self.shared.drops.count(reason, 1);
        }
        self.apply(Some(datagram));
    }

    /// What a worker saw. Returns a reason when the device must end.
    fn notice(&mut self, notice: Notice) -> Option<CloseReason> {
        match notice {
            Notice::Confirmed(index) => self.node.confirmed(index, now(), &mut self.actions),
            Notice::Activity(peer) => {
                self.node.activity(peer, now().instant);
                self.wake_paths(peer);
            }
            Notice::Roamed(peer) => {
                // Cleared before the endpoint is read: what moves it afterwards is told again.
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.roamed.store(false, std::sync::atomic::Ordering::Release);
                }
                self.moved(peer);
                self.source_learned(peer);
                let at = self.peers.get(&peer).and_then(|entry| entry.shared.endpoint.load().as_deref().copied());
                if let Some(at) = at {
                    self.path_heard(peer, &at);
                }
            }
            Notice::SourceNew(peer) => {
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.source_heard();
                }
                self.source_learned(peer);
            }
            Notice::WorkerEnded(Ok(())) => return Some(CloseReason::Shutdown),
            Notice::WorkerEnded(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                return Some(CloseReason::InterfaceDeleted);
            }
            Notice::WorkerEnded(Err(error)) => return Some(CloseReason::Failed(error.to_string())),
        }
        None
    }

    /// What became of the interface. Returns a reason when the device must end.
    fn host_event(&mut self, event: HostEvent) -> Option<CloseReason> {
        match event {
            HostEvent::LinkMtu(mtu) => self.shared.mtu.store(mtu, std::sync::atomic::Ordering::Relaxed),
            HostEvent::LinkDeleted => return Some(CloseReason::InterfaceDeleted),
            HostEvent::NetworkChanged => {
                self.network_changed();
                self.find_interfaces();
                self.look_at_sources();
                self.engine_host.network_changed();
            }
            HostEvent::LinkUp => {
                self.resume();
                self.engine_host.link_up();
            }
            HostEvent::LinkDown => self.stop(),
        }
        None
    }

    /// Asks the kernel for the host's addresses and routes, where they matter.
    fn network_changed(&self) {
        if let Some(routes) = &self.redistributed {
            routes.look_again();
        }
        if self.follows_addresses {
            let answer = self.addresses.clone();
            tokio::spawn(async move {
                match local_addresses().await {
                    // Control is gone only while the device shuts down.
                    Ok(addresses) => drop(answer.send(addresses).await),
                    Err(error) => tracing::warn!("what is relayed does not follow the host's addresses: {error}"),
                }
            });
        }
    }

    /// A worker wants a handshake with this peer.
    fn handshake_requested(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        // Cleared first: a wish that comes while this one is looked at is told again.
        entry.shared.handshake_wanted.store(false, std::sync::atomic::Ordering::Release);
        self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
    }

    /// The peer's endpoint is there: what was waiting for it begins.
    fn start(&mut self, peer: PeerId) {
        let now = now();
        self.node.start(peer, now, &mut rand::rng(), &mut self.actions);
        if let Some(next) = &mut self.next_greeting {
            let at = (*next).max(now.instant);
            *next = at + GREETING_PAUSE;
            self.node.greet(peer, at);
        }
    }

    /// New handshakes with everybody whose place is known.
    fn handshake_now(&mut self) {
        for (&peer, entry) in &self.peers {
            if entry.shared.endpoint.load().is_some() {
                self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions);
            }
        }
    }

    /// Logs what a peer can repeat.
    fn tell(&mut self, peer: PeerId, topic: Topic, line: Line) {
        if let Some(line) = self.peer_log.tell(peer, topic, line, now().instant) {
            line.write();
        }
    }

    fn emit(&self, event: Event) {
        tracing::debug!(?event);
        // Nobody listens: fine.
        let _ = self.events.send(event);
    }
}

/// Follows the interface, if there is one.
async fn monitor(interface: Option<&Interface>) -> Option<Monitor> {
    match Monitor::new(interface?.index).await {
        Ok(monitor) => Some(monitor),
        Err(error) => {
            tracing::warn!("changes of the MTU will not be noticed: {error}");
            None
        }
    }
}

/// The next event; never, without a monitor or after its end.
async fn next_event(monitor: &mut Option<Monitor>) -> Option<HostEvent> {
    let event = match monitor {
        Some(monitor) => monitor.next().await,
        None => std::future::pending().await,
    };
    if event.is_none() {
        *monitor = None;
    }
    event
}

/// Adds handshake messages to the byte counters, which `wg` shows together with the data.
fn count_received(activity: &Activity, bytes: usize) {
    activity.rx_bytes.fetch_add(bytes as u64, portable_atomic::Ordering::Relaxed);
}

/// Both clocks.
fn now() -> Now {
    Now { instant: Instant::from_nanos(clock::boottime_nanos()), unix: clock::unix() }
}
