//! Control's loop: the messages that wake it, their order, and what control does with them.

use super::{
    Control,
    candidate_routes::{CandidateRoutes, Checked},
    channels::Inbox,
    command::{Command, ControlEnd},
    connection::RouteTo,
    own_addresses::Found,
    peer::source::SourceAnswers,
    relay::{RelayPolicy, route_cache::RouteAnswer},
    resolver::Resolved,
    round::{Kind, Round},
    timer::{BootTimer, SuspendDetector, now},
};
use crate::{
    error::CloseReason,
    foreign::Datagram,
    handshakes::HandshakeDatagram,
    interface::Interface,
    kernel::{ForwardRules, HostEvent, Monitor},
    shared::to_control::{Notice, ProbeMessage, RouteQuestion},
    way::Way,
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    sync::atomic::Ordering::{Relaxed, Release},
};

/// Everything that can wake control.
pub(super) struct Wakers {
    device: ControlEnd,
    inbox: Inbox,
    timer: BootTimer,
    /// Changes of the interface and of the network.
    monitor: Option<Monitor>,
}

/// A message that wakes control.
enum Message {
    Stop,
    /// Netfilter's rules for forwarded packets.
    Rules(ForwardRules),
    Notice(Notice),
    Probe(PeerId, Way, ProbeMessage),
    Time,
    Handshake(HandshakeDatagram),
    HandshakeRequest(PeerId),
    Command(Command),
    EnginePacket(PeerId, Box<[u8]>),
    /// The host's addresses.
    Addresses(Vec<IpAddr>),
    /// The prefixes of the kernel's routes that are announced.
    KernelRoutes(BTreeSet<IpNet>),
    Resolved(Resolved),
    Host(HostEvent),
    Sources(SourceAnswers),
    /// The kernel's route to a peer that does not answer.
    RouteTo(RouteTo),
    /// A peer's candidates, after a look at the kernel's routes.
    Candidates(Checked),
    /// The addresses at which this node may be reached.
    OwnAddresses(Found),
    /// Routes may have changed since the kernel was asked about them.
    RoutesChanged,
    RouteAnswer(RouteAnswer),
    RouteQuestion(RouteQuestion),
}

impl Wakers {
    pub(super) async fn new(device: ControlEnd, inbox: Inbox, timer: BootTimer, interface: Option<&Interface>) -> Self {
        Self { device, inbox, timer, monitor: monitor(interface).await }
    }

    /// The next message. This uses up one turn of its kind in the round.
    ///
    /// The order below holds within a round: see [`round`](super::round).
    async fn next(&mut self, round: &mut Round, relay: &mut RelayPolicy) -> Message {
        let Self { device, inbox, timer, monitor } = self;
        device.doing.set(None);
        loop {
            let (kind, message) = tokio::select! {
                biased;
                () = device.stop.notified() => return Message::Stop,
                // An administrator's new rule does not wait behind packets from the network.
                Some(rules) = inbox.rules.recv(), if round.has(Kind::Host) => (Kind::Host, Message::Rules(rules)),
                Some(notice) = inbox.from_workers.notices.recv(), if round.has(Kind::Notice) => {
                    (Kind::Notice, Message::Notice(notice))
                }
                // Before the timer: otherwise an answer that waits here would count as late.
                Some((peer, from, probe)) = inbox.from_workers.probes.recv(), if round.has(Kind::Probe) => {
                    (Kind::Probe, Message::Probe(peer, from, probe))
                }
                () = timer.expired(), if round.has(Kind::Time) => (Kind::Time, Message::Time),
                // Before the engine's packets: a router that sends many must not keep others from a session.
                Some(datagram) = inbox.handshakes.recv(), if round.has(Kind::Handshake) => {
                    (Kind::Handshake, Message::Handshake(datagram))
                }
                // After the messages: an answer among them may make a request unnecessary.
                Some(peer) = inbox.from_workers.handshake_requests.recv(), if round.has(Kind::HandshakeRequest) => {
                    (Kind::HandshakeRequest, Message::HandshakeRequest(peer))
                }
                Some(command) = device.commands.recv(), if round.has(Kind::Command) => {
                    (Kind::Command, Message::Command(command))
                }
                Some((peer, packet)) = inbox.from_workers.engine.recv(), if round.has(Kind::Engine) => {
                    (Kind::Engine, Message::EnginePacket(peer, packet))
                }
                Some(addresses) = inbox.addresses.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::Addresses(addresses))
                }
                Some(routes) = inbox.kernel_routes.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::KernelRoutes(routes))
                }
                Some(resolved) = inbox.resolved.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::Resolved(resolved))
                }
                Some(event) = next_event(monitor), if round.has(Kind::Host) => (Kind::Host, Message::Host(event)),
                Some(answers) = inbox.sources.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::Sources(answers))
                }
                Some(answer) = inbox.routes_to.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::RouteTo(answer))
                }
                Some(checked) = inbox.candidates.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::Candidates(checked))
                }
                Some(found) = inbox.own_addresses.recv(), if round.has(Kind::Host) => {
                    (Kind::Host, Message::OwnAddresses(found))
                }
                () = relay.wait_for_route_change(), if round.has(Kind::Host) => (Kind::Host, Message::RoutesChanged),
                Some(answer) = inbox.route_answers.recv(), if round.has(Kind::Route) => {
                    (Kind::Route, Message::RouteAnswer(answer))
                }
                Some(question) = inbox.from_workers.routes.recv(), if round.has(Kind::Route) => {
                    (Kind::Route, Message::RouteQuestion(question))
                }
                // No other message waits, or all kinds that wait have had their turns.
                () = std::future::ready(()), if round.is_spent() => {
                    *round = Round::new();
                    continue;
                }
            };
            round.took(kind);
            device.doing.set(Some(kind));
            return message;
        }
    }
}

impl Control {
    /// Runs until the device is to end, and says why.
    pub(super) async fn run(&mut self, mut wakers: Wakers) -> CloseReason {
        let mut suspend = SuspendDetector::new();
        if let Some(mtu) = wakers.monitor.as_ref().and_then(Monitor::mtu) {
            self.host_event(HostEvent::LinkMtu(mtu));
        }
        // The interface may have been set up before the monitor listened.
        if wakers.monitor.as_ref().is_none_or(Monitor::is_up) {
            self.resume();
        }
        self.engine_host.link_up();
        self.network_changed();
        let mut round = Round::new();
        loop {
            let deadlines = [
                self.node.deadline(),
                self.engine_host.deadline(),
                self.tasks.deadline(),
                self.pings.deadline(),
                self.peer_log.deadline(),
                self.greetings_deadline(),
                self.watch.deadline(),
            ];
            wakers.timer.set(deadlines.into_iter().flatten().min());
            let message = wakers.next(&mut round, &mut self.relay).await;
            if let Some(reason) = self.handle(message) {
                return reason;
            }
            self.apply(None);
            if let Some(slept) = suspend.resumed() {
                tracing::info!("the machine was asleep for {} s: starting handshakes", slept.as_secs());
                let slept = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
                self.greet_in_use(Instant::from_nanos(now().instant.as_nanos().saturating_sub(slept)));
            }
        }
    }

    /// Returns a reason when the device must end.
    fn handle(&mut self, message: Message) -> Option<CloseReason> {
        match message {
            Message::Stop => return Some(CloseReason::Shutdown),
            Message::Rules(rules) => {
                if self.relay.set_netfilter_rules(rules, &self.shared) {
                    self.publish();
                }
            }
            Message::Notice(notice) => return self.notice(notice),
            Message::Probe(peer, from, ProbeMessage::Path(probe)) => self.probe(peer, &from, &probe),
            Message::Probe(peer, from, ProbeMessage::PathMtu(message)) => self.path_mtu_message(peer, from, message),
            Message::Probe(peer, _, ProbeMessage::Candidates(message)) => self.candidates_heard(peer, message),
            Message::Probe(peer, _, ProbeMessage::Parity(message)) => self.parity_message(peer, message),
            Message::Probe(peer, _, ProbeMessage::Lanes(message)) => self.lanes_message(peer, message),
            Message::Time => self.tick(),
            Message::Handshake(datagram) => self.handshake(&datagram),
            Message::HandshakeRequest(peer) => self.handshake_requested(peer),
            Message::Command(command) => return self.command(command),
            Message::EnginePacket(peer, packet) => self.engine_packet(peer, &packet),
            Message::Addresses(addresses) => {
                if self.relay.set_addresses(addresses) {
                    self.publish();
                }
            }
            Message::KernelRoutes(routes) => self.redistribute(routes),
            Message::Resolved(resolved) => self.resolved(resolved),
            Message::Host(event) => return self.host_event(event),
            Message::Sources(answers) => self.sources_answered(answers),
            Message::RouteTo(answer) => self.route_answered(answer),
            Message::Candidates((peer, message)) => {
                self.peer_candidates(peer, &message);
                self.candidate_routes.iter_mut().for_each(CandidateRoutes::hand_over);
            }
            Message::OwnAddresses(found) => self.own_addresses_found(found),
            Message::RoutesChanged => self.relay.routes_changed(&self.shared),
            Message::RouteAnswer(answer) => self.relay.answered(&answer, &self.shared),
            Message::RouteQuestion(question) => self.relay.ask(question, &self.shared),
        }
        None
    }

    fn command(&mut self, command: Command) -> Option<CloseReason> {
        // The caller may no longer wait for the answer.
        match command {
            Command::Update(update, answer) => drop(answer.send(self.update(*update))),
            Command::Status(answer) => drop(answer.send(self.status())),
            Command::Peer(key, answer) => {
                let peer = self.node.peer_by_key(&key);
                drop(answer.send(peer.and_then(|peer| self.peer_status(peer))));
            }
            Command::IsUp(answer) => drop(answer.send(!self.sockets.are_closed())),
            Command::StatusWithSecrets(answer) => drop(answer.send((self.status(), self.secrets()))),
            Command::Routing(answer) => drop(answer.send(self.routing_status())),
            Command::Ping(peer, timeout, answer) => self.ping(&peer, timeout, answer),
            Command::HandshakeNow => self.handshake_now(),
            Command::NetworkChanged => self.changed_by_embedder(),
            Command::Send(Datagram { endpoint, bytes }) => {
                self.transmit(endpoint, 0, &bytes);
            }
            Command::Say(text) => self.say(&text),
            Command::Shutdown => return Some(CloseReason::Shutdown),
        }
        None
    }

    /// Something is due.
    fn tick(&mut self) {
        self.greetings_tick();
        self.node.tick(now(), &mut rand::rng(), &mut self.actions);
        self.engine_tick();
        self.carry_out_tasks();
        self.pings.expire(now().instant);
        self.links_tick();
        while let Some(line) = self.peer_log.next(now().instant) {
            line.write();
        }
    }

    /// Traffic with the peer begins again after the node had nothing more to do for it. A worker reports data, and
    /// control itself the routing engine's packets; the first report counts.
    pub(super) fn active(&mut self, peer: PeerId) {
        self.node.activity(peer, now().instant);
        self.wake_paths(peer);
        self.path_mtu_traffic(peer);
        self.engine_traffic(peer);
    }

    /// Handles a worker's notice. Returns a reason when the device must end.
    fn notice(&mut self, notice: Notice) -> Option<CloseReason> {
        match notice {
            Notice::Confirmed(index) => self.node.confirmed(index, now(), &mut self.actions),
            Notice::Activity(peer) => self.active(peer),
            Notice::Roamed(peer) => {
                // Cleared before the endpoint is read, so that a later move is reported again.
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.roamed.store(false, Release);
                }
                self.moved(peer);
                self.source_learned(peer);
                if let Some(at) = self.peers.get(&peer).and_then(|entry| entry.way()) {
                    self.path_heard(peer, &at);
                }
            }
            Notice::SourceNew(peer) => {
                if let Some(entry) = self.peers.get(&peer) {
                    entry.shared.source_heard();
                }
                self.source_learned(peer);
            }
            Notice::LanesWanted(peer) => self.lanes_wanted(peer),
            Notice::SourceRefused(peer) => self.source_refused(peer),
            Notice::WorkerEnded(Ok(())) => return Some(CloseReason::Shutdown),
            Notice::WorkerEnded(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                return Some(CloseReason::InterfaceDeleted);
            }
            Notice::WorkerEnded(Err(error)) => return Some(CloseReason::Failed(error.to_string())),
        }
        None
    }

    /// The interface or the network has changed. Returns a reason when the device must end.
    fn host_event(&mut self, event: HostEvent) -> Option<CloseReason> {
        match event {
            HostEvent::LinkMtu(mtu) => self.shared.mtu.store(mtu, Relaxed),
            HostEvent::LinkNetwork(network, present) => self.shared.set_network(network, present),
            HostEvent::LinkMoved => tracing::info!(
                "the interface was moved to another network namespace: the UDP sockets stay in this one; addresses and routes \
                 are gone, and have to be set there"
            ),
            HostEvent::LinkDeleted => return Some(CloseReason::InterfaceDeleted),
            HostEvent::NetworkChanged => {
                self.network_changed();
                self.find_interfaces();
                self.look_at_sources();
                self.look_at_own_addresses();
                self.path_mtus_changed();
                self.engine_host.network_changed();
            }
            HostEvent::LinkRegained(interface) => self.link_regained(interface),
            HostEvent::LinkUp => {
                self.resume();
                self.engine_host.link_up();
            }
            HostEvent::LinkDown => self.stop(),
        }
        None
    }

    /// The embedder says that the network under the tunnel has changed.
    fn changed_by_embedder(&mut self) {
        if !self.sources.with_routes() {
            // Nothing else tells which of our addresses are still right.
            for entry in self.peers.values() {
                entry.shared.forget_source();
            }
        }
        self.greet_in_use(now().instant);
        self.host_event(HostEvent::NetworkChanged);
    }

    /// Asks the kernel for the host's addresses and routes, where they matter.
    fn network_changed(&self) {
        if let Some(routes) = &self.redistributed {
            routes.look_again();
        }
        self.relay.list_addresses();
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

/// The next event. Without a monitor, or after its end, this never returns.
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
