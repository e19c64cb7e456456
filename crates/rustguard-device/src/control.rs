//! Control: one thread that owns all protocol state, and publishes what the workers need.
//!
//! Everything arrives here as a message ([`run`]), is given to the [`Node`], and the node's actions are carried out
//! ([`apply`]). Nothing in this thread blocks: slow name resolution and stalled UAPI clients wait in tasks of their
//! own.
//!
//! | Part | State of its own | What control does with it |
//! |---|---|---|
//! | sockets and workers | [`sockets`] | [`update`] |
//! | peers: endpoints, names, sources | [`peer`] | [`update`], [`handshake`], [`transmit`] |
//! | names that are resolved | [`resolver`] | [`resolve`] |
//! | an initiation to several addresses, or repeated through a relay | [`happy_eyeballs`] | [`happy_eyeballs`] |
//! | several paths to a peer | [`peer::paths`] | [`paths`] |
//! | the longest packet that reaches a peer | in [`peer`] | [`path_mtu`] |
//! | parities that are offered and accepted | [`peer::fec`] | [`fec`] |
//! | lanes of sessions | [`peer::session_lanes`] | [`session_lanes`] |
//! | the way to a peer, our own address on it | [`peer::source`] | [`sources`], [`greetings`] |
//! | work that is scheduled for single peers | [`tasks`] | [`tasks`] |
//! | pings that wait for their answers | [`ping`] | [`ping`] |
//! | addresses at which this node may be reached | [`own_addresses`] | [`discovery`] |
//! | the search for direct ways to peers | [`discovery`] | [`discovery`], [`paths`] |
//! | the routing engine | [`engine::host`] | [`engine`] |
//! | ways through other peers | [`relays`] | [`update`], [`paths`], [`transmit`] |
//! | the rules for relaying | [`relay`] | [`run`] |
//! | whether peers are reachable, and why not | [`peer::link`] | [`connection`] |
//! | log lines that peers can repeat | [`peer_log`] | everywhere |

mod allowed;
mod apply;
mod candidate_routes;
mod channels;
mod command;
mod connection;
mod discovery;
mod engine;
mod fec;
mod greetings;
mod handshake;
mod happy_eyeballs;
mod own_addresses;
mod path_mtu;
mod paths;
mod peer;
mod peer_log;
mod ping;
mod relay;
mod relays;
mod resolve;
mod resolver;
mod round;
mod run;
mod session_lanes;
mod sockets;
mod sources;
mod status;
mod tasks;
mod timer;
mod transmit;
mod update;

use crate::{
    binder::Binder,
    error::StartError,
    event::Event,
    interface::Interface,
    kernel::{KernelRoutes, LearnedRoutes},
    settings::{Counters, Settings},
    shared::{Shared, listen_ports::ListenPorts, table::Table},
};
use allowed::Allowed;
use candidate_routes::CandidateRoutes;
use channels::channels;
pub(crate) use command::{Command, ControlEnd, DeviceEnd, channels as device_channels};
use connection::Watch;
use discovery::Searching;
use engine::host::EngineHost;
use greetings::Greetings;
use own_addresses::OwnAddresses;
use peer::Peer;
use peer_log::{Line, PeerLog, Topic};
use ping::Pings;
use relay::RelayPolicy;
use relays::Relays;
use resolver::Resolver;
pub(crate) use round::Doing;
use run::Wakers;
use rustguard_core::{
    node::{Action, Node, PeerId},
    paths::Search,
    time::Instant,
};
use rustguard_tun::TunQueue;
use sockets::Sockets;
use sources::Sources;
use std::{collections::HashMap, io, sync::Arc, thread::JoinHandle};
use tasks::Tasks;
use timer::{BootTimer, now};
use tokio::sync::broadcast;

/// All state of a running device.
struct Control {
    node: Node,
    /// Boxed, because a map has room for up to twice as many entries as it holds.
    peers: HashMap<PeerId, Box<Peer>>,
    /// The peers as in the workers' snapshot, or in the next one.
    published: Table,
    allowed: Allowed,
    /// Decides about routes; [`publish`](Self::publish) gives the workers a snapshot of the outcome.
    engine_host: EngineHost,
    /// Scheduled work for single peers.
    tasks: Tasks,
    /// The part of the search for direct ways that all peers share.
    search: Search,
    /// Pings that wait for their answers.
    pings: Pings,
    peer_log: PeerLog,
    shared: Arc<Shared>,
    sockets: Sockets,
    /// The node writes its actions here; empty between messages.
    actions: Vec<Action>,
    /// The buffer in which control seals packets.
    scratch: Vec<u8>,
    events: broadcast::Sender<Event>,
    resolver: Resolver,
    /// When the next peer is greeted; `None` if peers are not greeted.
    next_greeting: Option<Instant>,
    greeted_through_relays: u32,
    relay: RelayPolicy,
    /// Which peers are behind which.
    relays: Relays,
    /// Whether our own addresses still suit the routes to peers.
    sources: Sources,
    /// The peers that are to be told of a change of the network.
    greetings: Greetings,
    /// The addresses at which this node may be reached.
    own_addresses: OwnAddresses,
    searching: Searching,
    /// `None` over the embedder's own transports.
    candidate_routes: Option<CandidateRoutes>,
    /// Whether peers are reachable.
    watch: Watch,
    counters: Option<Counters>,
    /// The kernel's routes that the routing engine announces.
    redistributed: Option<KernelRoutes>,
}

/// Binds, applies the first configuration, starts the threads. All errors occur here, not later. `queues` are the TUN
/// queues of each worker.
pub(crate) fn spawn(
    mut settings: Settings,
    interface: Option<Interface>,
    device: ControlEnd,
    queues: Vec<Vec<Box<dyn TunQueue>>>,
    binder: Box<dyn Binder>,
) -> Result<JoinHandle<()>, StartError> {
    let (port, fwmark) = (settings.update.listen_port.take(), settings.update.fwmark.take());
    let addresses = std::mem::take(&mut settings.listen_addresses);
    let more_ports = std::mem::take(&mut settings.more_listen_ports);
    let (mut sockets, networks) =
        Sockets::bind(binder, port.unwrap_or(0), more_ports, fwmark.unwrap_or(0), addresses, queues.len())?;
    let name = interface.as_ref().map_or("device", |interface| &interface.name).to_owned();
    let (senders, inbox) = channels();
    let shared = Arc::new(Shared {
        source_check: settings.source_check,
        filter: settings.filter.take(),
        policy: Arc::clone(&settings.policy),
        is_engine_packet: settings.engine.as_ref().and_then(|engine| engine.claims()),
        foreign: settings.foreign.take(),
        own_protocol: settings.own_protocol.take(),
        ..Shared::new(
            settings.mtu,
            ListenPorts::new(sockets.port(), &sockets.other_ports()),
            senders.to_control,
            senders.handshakes,
        )
    });

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let timer = BootTimer::new()?;
    sockets.start_workers(&name, &shared, queues, networks)?;
    let learned = learned_routes(&mut settings, interface.as_ref())?;
    let engine_host = EngineHost::new(settings.engine.take(), settings.state_sink.take(), learned);
    let redistributed = match &interface {
        Some(interface) if engine_host.shares_prefixes && !settings.redistribute.is_empty() => {
            let which = std::mem::take(&mut settings.redistribute);
            Some(KernelRoutes::start(interface.index, which, senders.kernel_routes).map_err(io::Error::other)?)
        }
        _ => None,
    };
    let mut control = Control {
        node: Node::new(now().instant, &mut rand::rng()),
        peers: HashMap::new(),
        published: Table::default(),
        allowed: Allowed::new(engine_host.shares_prefixes, engine_host.meaning),
        engine_host,
        tasks: Tasks::default(),
        search: Search::new(rand::random()),
        pings: Pings::default(),
        peer_log: PeerLog::default(),
        shared,
        sockets,
        actions: Vec::new(),
        scratch: Vec::new(),
        events: device.events.clone(),
        resolver: Resolver::new(settings.resolution_retries, senders.resolved),
        next_greeting: settings.greet.then(|| now().instant),
        greeted_through_relays: 0,
        relay: RelayPolicy::new(&settings, interface.as_ref(), senders.relay),
        relays: Relays::default(),
        sources: Sources::new(interface.is_some(), senders.sources),
        greetings: Greetings::default(),
        searching: Searching::default(),
        candidate_routes: interface.as_ref().map(|it| CandidateRoutes::new(it.index, senders.candidates)),
        own_addresses: OwnAddresses::new(interface.as_ref(), senders.own_addresses),
        watch: Watch::new(interface.is_some(), senders.routes_to),
        counters: settings.counters,
        redistributed,
    };
    control.tell_mark();
    if interface.is_some() {
        // Nothing is sent before the interface is up: the answers need its set-up.
        control.node.stop(&mut control.actions);
    }
    // Port and mark were taken out: they are bound already.
    control.update(settings.update)?;
    drop(entered);

    Ok(std::thread::Builder::new().name(format!("rg-{name}-ctl")).spawn(move || {
        let closed = device.closed.clone();
        let reason = runtime.block_on(async {
            let reason = control.run(Wakers::new(device, inbox, timer, interface.as_ref()).await).await;
            control.engine_leave();
            reason
        });
        // The worker has ended and the interface is gone before anybody hears that the device is closed.
        drop(control);
        drop(runtime);
        let _ = closed.send(Some(reason));
    })?)
}

/// Copies the routes that an embedder's engine learns into the kernel's tables, if the settings ask for it.
fn learned_routes(settings: &mut Settings, interface: Option<&Interface>) -> io::Result<Option<LearnedRoutes>> {
    match (interface, settings.tables.take()) {
        (Some(interface), Some(tables)) if settings.engine.is_some() => {
            LearnedRoutes::start(interface.index, tables).map(Some).map_err(io::Error::other)
        }
        _ => Ok(None),
    }
}

impl Control {
    /// Logs a line that a peer can repeat.
    fn tell(&mut self, peer: PeerId, topic: Topic, line: Line) {
        if let Some(line) = self.peer_log.tell(peer, topic, line, now().instant) {
            line.write();
        }
    }

    fn emit(&self, event: Event) {
        tracing::debug!(?event);
        // An error means that nobody listens, which is fine.
        let _ = self.events.send(event);
    }
}
