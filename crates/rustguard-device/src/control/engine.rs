//! The routing engine in its engine_host: what the device sees becomes events, what the engine decides reaches the workers' table, the
//! kernel's routes and the peers.

use super::{Control, Line, Topic, apply::Payload, now};
use crate::{
    binder::Binder,
    event::Event,
    kernel::LearnedRoutes,
    relay::RelayRule,
    settings::{Engine, StateSink},
    shared::peer::{Bounds, PeerShared},
    status::{
        AnnouncementStatus, Counter, NeighbourStatus, OriginName, PeerLabel, RouteStatus, RouterId, RoutingStatus,
    },
};
use ipnet::IpNet;
use portable_atomic::Ordering::Relaxed;
use rustguard_core::{
    node::PeerId,
    packet::padded_len,
    routing::{Action, Event as EngineEvent, PeerRoutes, Role, RouteTable, Signal, StaticRoutes, Target},
    time::Instant,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

/// An engine that talks to peers is told this often what WireGuard has seen of them. Ten times a second would cost a core's
/// thousandth for 200 peers; losing a peer is noticed by its silence, which takes longer.
const SAMPLE: Duration = Duration::from_millis(200);
/// Peers that are looked at together: less than a millisecond.
const SAMPLED: usize = 512;
/// Data without an answer for so long is worth telling.
const UNANSWERED: Duration = Duration::from_millis(500);
/// Bytes in one sample above which a link carries traffic: a keepalive and a handshake are less.
const TRAFFIC: u64 = 300;

/// The engine, and what has come of its actions.
pub(super) struct EngineHost {
    engine: Engine,
    /// More than one peer may carry a prefix: the engine decides, not who was given it last.
    pub(super) shares_prefixes: bool,
    actions: Vec<Action>,
    pub(super) table: RouteTable,
    roles: HashMap<PeerId, Role>,
    /// What the configuration has to announce.
    configured: BTreeSet<IpNet>,
    /// What is announced because the kernel has a route.
    redistributed: BTreeSet<IpNet>,
    /// Both.
    announced: BTreeSet<IpNet>,
    kernel: Option<LearnedRoutes>,
    state_sink: Option<StateSink>,
    /// The next look at the counters; `None` for an engine that does not care.
    next_sample: Option<Instant>,
    samples: HashMap<PeerId, Sample>,
    /// The peers whose counters are still to be looked at in this round, and when it began.
    round: Vec<PeerId>,
    round_began: Instant,
    /// The table has changed since the workers saw it.
    changed: bool,
    /// What the first of these changes took: it copies what the workers have.
    copied: Duration,
    /// When they may see it again.
    pace: Pace,
    /// What the engine has to say after that change: nobody may rely on a route that is not followed yet (RFC 8966 §3.7.3).
    after_change: Vec<(PeerId, Vec<u8>)>,
}

/// How often the workers get another table: at once after a rest, and then for a fifth of the time at most. A table takes the longer
/// to make the more is in it.
#[derive(Default)]
struct Pace {
    next: Instant,
}

impl Pace {
    /// Longest wait: with a table of 100,000 prefixes, which takes 2.7 ms.
    const LONGEST: Duration = Duration::from_millis(10);

    fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// There is another one, which took so long.
    fn made(&mut self, took: Duration, ended: Instant) {
        self.next = ended + (took * 4).min(Self::LONGEST);
    }
}

/// A peer's counters at the last look.
#[derive(Default)]
struct Sample {
    rx: u64,
    tx: u64,
    overhead_rx: u64,
    overhead_tx: u64,
    /// When data last came.
    data: Option<Instant>,
    /// Said once, until something is heard.
    unanswered: bool,
}

impl EngineHost {
    /// `engine` is the embedder's; without one, allowed IPs decide.
    pub(super) fn new(engine: Option<Engine>, state_sink: Option<StateSink>, kernel: Option<LearnedRoutes>) -> Self {
        let shares_prefixes = engine.is_some();
        let engine = engine.unwrap_or_else(|| Box::new(StaticRoutes::default()));
        let next_sample = engine.claims().map(|_| Instant::default());
        Self {
            engine,
            shares_prefixes,
            actions: Vec::new(),
            table: RouteTable::default(),
            roles: HashMap::new(),
            configured: BTreeSet::new(),
            redistributed: BTreeSet::new(),
            announced: BTreeSet::new(),
            kernel,
            state_sink,
            next_sample,
            samples: HashMap::new(),
            round: Vec::new(),
            round_began: Instant::default(),
            changed: false,
            copied: Duration::ZERO,
            pace: Pace::default(),
            after_change: Vec::new(),
        }
    }

    /// When the engine, the look at the counters, or another table for the workers is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let publish = self.changed.then_some(self.pace.next);
        [self.engine.deadline(), self.next_sample, publish].into_iter().flatten().min()
    }

    /// The interface takes routes now.
    pub(super) fn link_up(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.link_up();
        }
    }

    /// The kernel may route otherwise now.
    pub(super) fn network_changed(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.network_changed();
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut RouteTable)) {
        let first = (!std::mem::replace(&mut self.changed, true)).then(|| now().instant);
        change(&mut self.table);
        if let Some(started) = first {
            self.copied = now().instant.since(started);
        }
    }

    pub(super) fn set_role(&mut self, peer: PeerId, role: Role) {
        self.roles.insert(peer, role);
    }
}

impl<B: Binder> Control<B> {
    /// The time has come for the engine.
    pub(super) fn engine_tick(&mut self) {
        let instant = now().instant;
        if self.engine_host.next_sample.is_some_and(|at| at <= instant) {
            self.sample(instant);
        }
        if self.engine_host.engine.deadline().is_some_and(|at| at <= instant) {
            self.tell_engine(EngineEvent::Time);
        }
        self.publish_routes();
    }

    /// A packet between engines.
    pub(super) fn engine_packet(&mut self, peer: PeerId, packet: &[u8]) {
        self.tell_engine(EngineEvent::Packet { peer, packet });
        self.publish_routes();
    }

    /// A peer's allowed IPs or role are new.
    pub(super) fn engine_peer(&mut self, peer: PeerId) {
        let role = self.engine_host.roles.get(&peer).copied().unwrap_or(Role::Router);
        let config = PeerRoutes { allowed_ips: self.allowed.of(peer), role };
        if self.engine_host.shares_prefixes
            && let Some(entry) = self.peers.get(&peer)
        {
            entry.shared.bounds.store(Some(Arc::new(Bounds::new(peer, &config))));
        }
        self.tell_engine(EngineEvent::Peer { peer, config: &config });
    }

    /// A peer is gone.
    pub(super) fn engine_peer_removed(&mut self, peer: PeerId) {
        self.engine_host.roles.remove(&peer);
        self.engine_host.samples.remove(&peer);
        self.tell_engine(EngineEvent::PeerRemoved { peer });
    }

    /// What WireGuard itself noticed.
    pub(super) fn engine_signal(&mut self, peer: PeerId, signal: Signal) {
        if self.engine_host.next_sample.is_some() {
            self.tell_engine(EngineEvent::Signal { peer, signal });
        }
    }

    /// These prefixes, and no others, are this host's to announce.
    pub(super) fn announce(&mut self, prefixes: &[IpNet]) {
        self.engine_host.configured = prefixes.iter().map(IpNet::trunc).collect();
        self.announce_all();
    }

    /// The kernel has routes for these prefixes.
    pub(super) fn redistribute(&mut self, prefixes: BTreeSet<IpNet>) {
        self.engine_host.redistributed = prefixes;
        self.announce_all();
        self.publish_routes();
    }

    /// What is both configured and in the kernel's table stays until it is neither. All have the metric 0, as what babeld
    /// redistributes: the network is this node's, wherever the kernel has it from.
    fn announce_all(&mut self) {
        let wanted: BTreeSet<IpNet> =
            self.engine_host.configured.union(&self.engine_host.redistributed).copied().collect();
        let before = std::mem::replace(&mut self.engine_host.announced, wanted.clone());
        for &prefix in before.difference(&wanted) {
            self.engine_host.change(|table| table.remove(prefix));
            self.tell_engine(EngineEvent::Withdraw { prefix });
        }
        for &prefix in wanted.difference(&before) {
            self.engine_host.change(|table| table.install(prefix, Target::Host));
            if let Some(kernel) = &self.engine_host.kernel {
                // What was learned gives way, whatever the engine says about it from now on.
                kernel.set(prefix, false);
            }
            self.tell_engine(EngineEvent::Announce { prefix, metric: 0 });
        }
    }

    /// Where a peer is may be new: no learned route may lead the way there into the tunnel.
    pub(super) fn tell_endpoints(&self, peer: PeerId) {
        let Some(kernel) = &self.engine_host.kernel else { return };
        let mut addresses = Vec::new();
        if let Some(entry) = self.peers.get(&peer) {
            addresses.extend(entry.shared.endpoint.load().as_deref().map(|endpoint| endpoint.remote.ip()));
            let places = entry.paths.iter().flat_map(|several| several.paths.places());
            addresses.extend(places.map(|place| place.remote.ip()));
        }
        kernel.endpoints(peer, addresses);
    }

    /// The mark of the tunnel's own packets is another.
    pub(super) fn tell_mark(&self) {
        if let Some(kernel) = &self.engine_host.kernel {
            kernel.mark(self.fwmark);
        }
    }

    /// The engine's last words.
    pub(super) fn engine_leave(&mut self) {
        let mut actions = std::mem::take(&mut self.engine_host.actions);
        self.engine_host.engine.leave(now().instant, &mut actions);
        actions.into_iter().for_each(|action| self.carry_out(action));
        self.publish();
    }

    /// Lets the workers know, where there is news, and it is not too soon after the last.
    pub(super) fn publish_routes(&mut self) {
        if self.engine_host.changed && self.engine_host.pace.is_due(now().instant) {
            self.publish();
        }
    }

    /// The workers have the table as it is now; making it began at `started`.
    pub(super) fn engine_published(&mut self, started: Instant) {
        let (ended, copied) = (now().instant, std::mem::take(&mut self.engine_host.copied));
        self.engine_host.changed = false;
        self.engine_host.pace.made(copied + ended.since(started), ended);
        for (peer, packet) in std::mem::take(&mut self.engine_host.after_change) {
            self.send_for_engine(peer, &packet);
        }
    }

    fn tell_engine(&mut self, event: EngineEvent<'_>) {
        let mut actions = std::mem::take(&mut self.engine_host.actions);
        self.engine_host.engine.handle(event, now().instant, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(action);
        }
        self.engine_host.actions = actions;
    }

    fn carry_out(&mut self, action: Action) {
        let engine_host = &mut self.engine_host;
        match action {
            Action::Send { peer, packet } if engine_host.changed => engine_host.after_change.push((peer, packet)),
            Action::Send { peer, packet } => self.send_for_engine(peer, &packet),
            Action::Install { prefix, hops } => {
                // What is this host's own stays so, whatever others say.
                if engine_host.announced.contains(&prefix) {
                    return;
                }
                engine_host.change(|table| table.install(prefix, hops.into()));
                if let Some(kernel) = &engine_host.kernel {
                    kernel.set(prefix, true);
                }
            }
            Action::Remove { prefix } => {
                if engine_host.announced.contains(&prefix) {
                    return;
                }
                engine_host.change(|table| table.remove(prefix));
                if let Some(kernel) = &engine_host.kernel {
                    kernel.set(prefix, false);
                }
            }
            Action::Permit { peer, prefix, rule } => {
                engine_host.change(|table| table.permit(peer, prefix, rule));
            }
            Action::Forbid { peer, prefix } => {
                engine_host.change(|table| table.forbid(peer, prefix));
            }
            Action::Neighbour { peer, cost } => {
                let Some(entry) = self.peers.get(&peer) else { return };
                // Read by the workers at once: no snapshot has to be made for a peer to be passed over.
                entry.shared.usable.store(cost.is_some(), Relaxed);
                if let Some(config) = self.node.peer_config(peer) {
                    let (key, name) = (config.public_key, entry.label(&config.public_key));
                    let line = match cost {
                        Some(cost) => Line::new(name, format_args!("is a neighbour, cost {cost}")),
                        None => Line::new(name, format_args!("is no neighbour any more")),
                    };
                    self.tell(peer, Topic::Neighbour, line);
                    self.emit(Event::Neighbour { peer: key, cost });
                }
            }
            Action::Keep { bytes } => {
                if let Some(sink) = &mut engine_host.state_sink {
                    sink(&bytes);
                }
            }
        }
    }

    /// Seals a packet of the engine's. Without a session there is none to seal it for: what an engine says is said again.
    fn send_for_engine(&mut self, peer: PeerId, packet: &[u8]) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(sealer) = entry.shared.sealer.load_full() else {
            if entry.shared.endpoint.load().is_some() {
                self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
            }
            return;
        };
        let mtu = self.shared.mtu.load(Relaxed) as usize;
        let mut padded = packet.to_vec();
        padded.resize(padded_len(packet.len(), mtu), 0);
        self.seal_and_send(peer, &sealer, &padded, Payload::Engine);
    }

    /// Tells the engine what the counters of some peers say. With thousands of them, others' work comes in between.
    fn sample(&mut self, now: Instant) {
        if self.engine_host.round.is_empty() {
            self.engine_host.round.extend(self.peers.keys());
            self.engine_host.round_began = now;
        }
        let rest = self.engine_host.round.len().saturating_sub(SAMPLED);
        for peer in self.engine_host.round.split_off(rest) {
            let Some(entry) = self.peers.get(&peer) else { continue };
            let signals = self.engine_host.samples.entry(peer).or_default().look(&entry.shared, entry.overhead_tx, now);
            for signal in signals.into_iter().flatten() {
                self.tell_engine(EngineEvent::Signal { peer, signal });
            }
        }
        self.engine_host.next_sample =
            Some(if rest > 0 { now } else { now.max(self.engine_host.round_began + SAMPLE) });
    }

    /// The host's addresses have changed: what is for them stays here.
    pub(super) fn local_addresses(&mut self, local: Vec<std::net::IpAddr>) {
        if self.follows_addresses {
            self.relay_rule = RelayRule::Always { local: Arc::new(local.into_iter().collect()) };
            self.publish();
        }
    }

    /// The engine's report, with keys and names in place of its numbers for peers.
    pub(super) fn routing_status(&self) -> RoutingStatus {
        let report = self.engine_host.engine.report();
        let neighbours = report.neighbours.into_iter().filter_map(|neighbour| {
            let entry = self.peers.get(&neighbour.peer)?;
            Some(NeighbourStatus {
                peer: self.label(neighbour.peer)?,
                endpoint: entry.shared.endpoint.load().as_deref().map(|endpoint| endpoint.remote),
                heard: neighbour.heard,
                cost: neighbour.cost,
                round_trip: neighbour.round_trip,
                routes: neighbour.routes,
            })
        });
        let mut notes = self.engine_host.kernel.as_ref().map(LearnedRoutes::notes).unwrap_or_default();
        let routes = report.routes.into_iter().map(|route| {
            let announcements = route.learned.into_iter().filter_map(|(peer, metric, feasible)| {
                Some(AnnouncementStatus { from: self.label(peer)?, metric, feasible })
            });
            RouteStatus {
                kernel: notes.remove(&route.prefix),
                prefix: route.prefix,
                local: route.local,
                metric: route.metric,
                origin: route.origin.map(RouterId::from_bytes),
                next_hops: route.hops.members().iter().filter_map(|hop| self.label(hop.peer)).collect(),
                backup: route.hops.backup().and_then(|peer| self.label(peer)),
                announcements: announcements.collect(),
            }
        });
        let names = report.names.into_iter();
        RoutingStatus {
            router_id: report.router_id.map(RouterId::from_bytes),
            neighbours: neighbours.collect(),
            routes: routes.collect(),
            names: names.map(|(origin, name)| OriginName { origin: RouterId::from_bytes(origin), name }).collect(),
            refused: report.refused.into_iter().map(|(name, value)| Counter::new(name, value)).collect(),
        }
    }

    fn label(&self, peer: PeerId) -> Option<PeerLabel> {
        let entry = self.peers.get(&peer)?;
        Some(PeerLabel { public_key: entry.shared.public_key, name: entry.name.clone() })
    }
}

impl Sample {
    /// What has happened since the last look. The engine's own packets are no traffic, and nor are probes: a link would be busy
    /// with the question whether it is.
    fn look(&mut self, shared: &PeerShared, overhead_tx: u64, now: Instant) -> [Option<Signal>; 3] {
        let rx = shared.activity.rx_bytes.load(Relaxed);
        let tx = shared.activity.tx_bytes.load(Relaxed);
        let overhead_rx = shared.overhead_rx.load(Relaxed);
        let heard = rx != self.rx;
        let data = shared.activity.data_received_at().filter(|&at| self.data != Some(at));
        let data = data.filter(|_| rx - self.rx > overhead_rx - self.overhead_rx);
        self.data = shared.activity.data_received_at();
        let all = (rx - self.rx) + (tx - self.tx);
        let talk = (overhead_rx - self.overhead_rx) + (overhead_tx - self.overhead_tx);
        let carried = all.saturating_sub(talk) >= TRAFFIC;
        let since = shared.activity.unanswered_since();
        let unanswered = !heard && since.is_some_and(|since| now.since(since) >= UNANSWERED);
        let told = std::mem::replace(&mut self.unanswered, unanswered);
        (self.rx, self.tx, self.overhead_rx, self.overhead_tx) = (rx, tx, overhead_rx, overhead_tx);
        [
            heard.then_some(Signal::Heard { data }),
            carried.then_some(Signal::Carried),
            (unanswered && !told).then_some(Signal::Unanswered),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;

    const NOTHING: [Option<Signal>; 3] = [None, None, None];

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    fn peer() -> PeerShared {
        PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default())
    }

    #[test]
    fn what_an_engine_sends_and_gets_is_no_traffic() {
        let (shared, mut sample, mut overhead_tx) = (peer(), Sample::default(), 0);
        assert_eq!(sample.look(&shared, overhead_tx, at(0)), NOTHING);
        for ms in [1, 2] {
            let _ = shared.activity.data_received(at(ms), 4_000);
            shared.overhead_rx.fetch_add(4_000, Relaxed);
            let _ = shared.activity.data_sent(at(ms), 5_000);
            overhead_tx += 5_000;
            let _ = shared.activity.data_received(at(ms), TRAFFIC - 1);
            assert_eq!(
                sample.look(&shared, overhead_tx, at(ms)),
                [Some(Signal::Heard { data: Some(at(ms)) }), None, None],
                "both ways, and less than counts"
            );
        }
        let _ = shared.activity.data_sent(at(3), TRAFFIC);
        assert_eq!(sample.look(&shared, overhead_tx, at(3)), [None, Some(Signal::Carried), None]);
        assert_eq!(sample.look(&shared, overhead_tx, at(3)), NOTHING, "once");
    }

    #[test]
    fn a_change_is_shown_at_once_and_a_storm_in_a_fifth_of_the_time() {
        let mut pace = Pace::default();
        let (mut now, mut tables) = (at(0), 0);
        assert!(pace.is_due(now), "the first");
        while now < at(1_000) {
            if pace.is_due(now) {
                now = now + Duration::from_millis(2);
                pace.made(Duration::from_millis(2), now);
                tables += 1;
            } else {
                now = now + Duration::from_micros(100);
            }
        }
        assert_eq!(tables, 100, "2 ms each, 8 ms apart");
        pace.made(Duration::from_secs(1), at(2_000));
        assert!(!pace.is_due(at(2_000)) && pace.is_due(at(2_000) + Pace::LONGEST));
    }

    #[test]
    fn data_without_an_answer_is_told_once() {
        let (shared, mut sample) = (peer(), Sample::default());
        let unanswered = [None, None, Some(Signal::Unanswered)];
        let _ = shared.activity.data_sent(at(0), 100);
        assert_eq!(sample.look(&shared, 0, at(499)), NOTHING);
        assert_eq!(sample.look(&shared, 0, at(500)), unanswered);
        assert_eq!(sample.look(&shared, 0, at(900)), NOTHING, "known already");
        shared.activity.keepalive_received(at(1_000), 32);
        let _ = shared.activity.data_sent(at(1_001), 100);
        // This look came late; something was heard since the last one.
        assert_eq!(sample.look(&shared, 0, at(1_600)), [Some(Signal::Heard { data: None }), None, None], "no data");
        assert_eq!(sample.look(&shared, 0, at(1_800)), unanswered, "again");
    }
}
