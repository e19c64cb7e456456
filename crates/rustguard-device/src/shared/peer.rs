//! The state of one peer that workers and control share: its sealer, its endpoint, its counters.

use crate::{
    drops::PeerDrops, fec, path_set::PathSet, session_lanes, shared::refused_source::RefusedSource, waiting::Waiting,
    way::Way,
};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustguard_core::{
    activity::Activity,
    allowed_ips::AllowedIps,
    forward::Name,
    limit::{Bucket, Rate},
    node::PeerId,
    routing::{PeerRoutes, Role},
    session::Sealer,
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::{Endpoint, LocalAddr};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The rate of one peer's probes to control. Eight failing paths that both ends probe cause 200 a second.
pub(crate) const PROBES: Rate = Rate { interval: Duration::from_millis(5), burst: 64 };
/// The time between two notices that lanes are wanted for a peer.
const LANES_WANTED: Duration = Duration::from_secs(1);
/// The rate of one peer's packets to the routing engine: see [`PeerShared::may_send_to_engine`]. A neighbour with 4,096
/// routes announces them in about seventy packets of full size, which count as 350, and does so twice when a link is
/// new. Each packet to the neighbour may cause an acknowledgment, which counts as one. We send it at most 800 packets a
/// second.
pub(crate) const ENGINE_PACKETS: Rate = Rate { interval: Duration::from_millis(1), burst: 1_024 };
/// Bytes that count as one packet in [`ENGINE_PACKETS`]: longer packets cost the engine more.
const ENGINE_UNIT: usize = 256;
/// A routing engine's packet may have this length with any MTU: the smallest path of IPv6 (RFC 8200 §5).
pub(crate) const ENGINE_PATH: usize = 1_280;

/// The shared state of one peer.
pub(crate) struct PeerShared {
    pub(crate) id: PeerId,
    /// The public key that the peer was added with.
    first_key: PublicKey,
    /// The new public key, if the peer has changed its key. Usually none.
    other_key: ArcSwapOption<(PublicKey, Name)>,
    /// The name of the first key towards relays.
    first_name: Name,
    /// The first address of its allowed IPs, by which a relay finds the next hop to the peer.
    pub(crate) own_address: ArcSwapOption<IpAddr>,
    /// The limits of the peer's routes and sources, on a device with a routing engine. Without an engine, the peer's
    /// allowed IPs are its routes.
    pub(crate) bounds: ArcSwapOption<Bounds>,
    /// Seals for the peer; `None` while there is no session. Replaced while [`waiting`](Self::waiting) is locked.
    pub(crate) sealer: ArcSwapOption<Sealer>,
    /// Packets that wait for a session. Locked by control, and by a worker without a usable sealer: see
    /// [`waiting`](crate::waiting).
    pub(crate) waiting: Mutex<Waiting>,
    /// The way in use. Only authenticated packets, configuration, name resolution and probes change it.
    pub(crate) way: ArcSwapOption<Way>,
    /// An endpoint is configured: its address may become known later.
    pub(crate) has_configured_endpoint: AtomicBool,
    /// Our former source address towards the peer. The kernel's route to the peer has left its interface. The address
    /// is not learned again from packets that the peer still sends there.
    pub(crate) abandoned_source: ArcSwapOption<LocalAddr>,
    /// The paths to the peer, if there are several.
    pub(crate) path_set: ArcSwapOption<PathSet>,
    /// The lanes that the peer has acknowledged.
    pub(crate) lanes: ArcSwapOption<session_lanes::InUse>,
    /// When control may be told again that lanes are wanted, in nanoseconds of [`Instant`].
    lanes_wanted: AtomicU64,
    /// The parities that are sent, if the peer has accepted them.
    pub(crate) outgoing_parities: ArcSwapOption<fec::Outgoing>,
    /// Counters of parities.
    pub(crate) parities: fec::Counts,
    /// Stamps for the timers.
    pub(crate) activity: Arc<Activity>,
    /// Our index in the last handshake message that control sent to the peer.
    pub(crate) handshake_index: AtomicU32,
    /// A request for a handshake is queued for control: one is enough. Control clears this before it handles the
    /// request.
    pub(crate) handshake_wanted: AtomicBool,
    /// The routing engine can use the peer as a next hop: as a neighbour, or as a client that answers.
    pub(crate) usable: AtomicBool,
    /// Received bytes of overhead: handshakes, probes and the routing engine's packets.
    pub(crate) overhead_rx: AtomicU64,
    /// Dropped packets of the peer and for the peer: see [`Shared::dropped`](super::Shared::dropped).
    pub(crate) drops: PeerDrops,
    /// The source of its packets that its allowed IPs do not permit.
    pub(crate) refused_source: RefusedSource,
    /// The budget for probes to control. Locked for a probe only.
    probes: Mutex<Bucket>,
    /// The budget for texts of the embedder's protocol.
    pub(crate) texts: Mutex<Bucket>,
    /// The budget for packets to the routing engine. Locked for such a packet only.
    engine_budget: Mutex<Bucket>,
    /// The notice that the peer sends to another address of ours is queued for control.
    pub(crate) source_new: AtomicBool,
    /// The notice of a new endpoint is queued for control: a peer that changes its address with every packet must not
    /// fill the queue.
    pub(crate) roamed: AtomicBool,
}

impl PeerShared {
    pub(crate) fn new(id: PeerId, public_key: PublicKey, activity: Arc<Activity>) -> Self {
        Self {
            id,
            first_key: public_key,
            other_key: ArcSwapOption::empty(),
            first_name: Name::of(&public_key),
            own_address: ArcSwapOption::empty(),
            bounds: ArcSwapOption::empty(),
            sealer: ArcSwapOption::empty(),
            waiting: Mutex::default(),
            way: ArcSwapOption::empty(),
            has_configured_endpoint: AtomicBool::new(false),
            abandoned_source: ArcSwapOption::empty(),
            path_set: ArcSwapOption::empty(),
            lanes: ArcSwapOption::empty(),
            lanes_wanted: AtomicU64::new(0),
            outgoing_parities: ArcSwapOption::empty(),
            parities: fec::Counts::default(),
            activity,
            handshake_index: AtomicU32::new(0),
            handshake_wanted: AtomicBool::new(false),
            usable: AtomicBool::new(true),
            overhead_rx: AtomicU64::new(0),
            drops: PeerDrops::default(),
            refused_source: RefusedSource::default(),
            probes: Mutex::default(),
            texts: Mutex::default(),
            engine_budget: Mutex::default(),
            source_new: AtomicBool::new(false),
            roamed: AtomicBool::new(false),
        }
    }

    /// Its public key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.other_key.load().as_deref().map_or(self.first_key, |(key, _)| *key)
    }

    /// Its name towards relays.
    pub(crate) fn name(&self) -> Name {
        self.other_key.load().as_deref().map_or(self.first_name, |(_, name)| *name)
    }

    /// Sets a new public key of the peer.
    pub(crate) fn set_public_key(&self, key: PublicKey) {
        self.other_key.store(Some(Arc::new((key, Name::of(&key)))));
    }

    /// The address in use; `None` if there is none, or if the way leads through a peer.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.way.load().as_deref().and_then(Way::endpoint).copied()
    }

    /// The relay in use.
    pub(crate) fn relayed_by(&self) -> Option<PeerId> {
        match self.way.load().as_deref() {
            Some(Way::Relayed(relay)) => Some(*relay),
            _ => None,
        }
    }

    /// The first packet of a session that the peer has initiated has arrived. From now on, answers are sealed in that
    /// session: a restarted peer has no other. Control is told later; it sets the same sealer and does the rest.
    pub(crate) fn confirmed(&self, index: u32) {
        let mut waiting = self.waiting.lock();
        // Waiting packets are older than any answer: control sends them first.
        if waiting.is_empty()
            && let Some((_, sealer)) = waiting.next.take_if(|(next, _)| *next == index)
        {
            self.sealer.store(Some(sealer));
        }
    }

    /// An authenticated data packet came by `from`. The known local port stays while the peer's address does not
    /// change: a peer with several paths may alternate between several of our ports. See
    /// [`handshake_at`](Self::handshake_at).
    pub(crate) fn seen_at(&self, from: &Way) -> LocationChange {
        let way = self.way.load();
        if way.as_deref() == Some(from) || self.path_set.load().as_deref().is_some_and(|paths| paths.expects(from)) {
            return LocationChange::None;
        }
        let Way::Direct(from) = from else {
            self.way.store(Some(Arc::new(*from)));
            return LocationChange::Endpoint;
        };
        let known = way.as_deref().and_then(Way::endpoint).copied();
        if known.is_some_and(|known| known.remote == from.remote && known.local.is_some_and(|local| local.bound)) {
            return LocationChange::None;
        }
        if known
            .is_some_and(|known| known.local_port != 0 && Endpoint { local_port: known.local_port, ..*from } == known)
        {
            return LocationChange::None;
        }
        let moved = known.is_none_or(|known| known.remote != from.remote);
        let abandoned = from.local.is_some() && self.abandoned_source.load().as_deref().copied() == from.local;
        let now = if abandoned { Endpoint { local: None, ..*from } } else { *from };
        if abandoned && !moved {
            return LocationChange::None;
        }
        self.way.store(Some(Arc::new(now.into())));
        if moved { LocationChange::Endpoint } else { LocationChange::Source }
    }

    /// An authenticated handshake message came by `from`: from now on we send from the port on which it arrived.
    pub(crate) fn handshake_at(&self, from: &Way) -> LocationChange {
        let change = self.seen_at(from);
        if let Way::Direct(from) = from {
            self.change_endpoint(|at| {
                let other = at.remote == from.remote && at.local_port != from.local_port;
                other.then_some(Endpoint { local_port: from.local_port, ..at })
            });
        }
        change
    }

    /// Changes the address in use, unless it has changed since it was read: the peer may move meanwhile.
    fn change_endpoint(&self, change: impl FnOnce(Endpoint) -> Option<Endpoint>) {
        let known = self.way.load();
        if let Some(Way::Direct(at)) = known.as_deref()
            && let Some(now) = change(*at)
        {
            self.way.compare_and_swap(&known, Some(Arc::new(now.into())));
        }
    }

    /// Control handles the notice of another address of ours. The next change causes another notice.
    pub(crate) fn source_heard(&self) {
        self.source_new.store(false, Ordering::Release);
    }

    /// Our address `local` is not used any more, unless the way has changed since `asked`.
    pub(crate) fn abandon_source(&self, asked: &Endpoint, local: LocalAddr) {
        self.abandoned_source.store(Some(Arc::new(local)));
        self.change_endpoint(|at| (at == *asked).then_some(Endpoint { local: None, ..at }));
    }

    /// Our address `local` is usable: it is learned again when the peer sends there.
    pub(crate) fn restore_source(&self, local: LocalAddr) {
        if self.abandoned_source.load().as_deref() == Some(&local) {
            self.abandoned_source.store(None);
        }
    }

    /// Whether to tell control that lanes are wanted: once a second.
    pub(crate) fn may_want_lanes(&self, now: Instant) -> bool {
        let due = self.lanes_wanted.load(Ordering::Relaxed);
        let next = (now + LANES_WANTED).as_nanos();
        now.as_nanos() >= due
            && self.lanes_wanted.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the budget permits another probe to control, which answers each one.
    pub(crate) fn may_probe(&self, now: Instant) -> bool {
        self.probes.lock().take(PROBES, now)
    }

    /// Whether the budget permits a packet of `len` bytes to the routing engine.
    pub(crate) fn may_send_to_engine(&self, len: usize, now: Instant) -> bool {
        let count = u32::try_from(len.div_ceil(ENGINE_UNIT).max(1)).unwrap_or(u32::MAX);
        self.engine_budget.lock().take_many(count, ENGINE_PACKETS, now)
    }

    /// Whether the peer is configured as one that does not speak the routing protocol.
    pub(crate) fn is_client(&self) -> bool {
        self.bounds.load().as_deref().is_some_and(|bounds| !bounds.role.is_speaker())
    }

    /// Whether the peer takes part in the routing protocol of an engine.
    pub(crate) fn is_router(&self) -> bool {
        self.bounds.load().as_deref().is_some_and(|bounds| bounds.role.is_speaker())
    }

    /// Forgets our address towards the peer, so that the kernel chooses one. A path that is bound to an interface stays
    /// bound.
    pub(crate) fn forget_source(&self) {
        self.change_endpoint(|at| at.local.is_some_and(|local| !local.bound).then_some(Endpoint { local: None, ..at }));
    }

    /// Forgets our address and our port towards the peer, because there are new sockets.
    pub(crate) fn forget_local(&self) {
        self.change_endpoint(|at| Some(Endpoint { local: at.local.filter(|local| local.bound), local_port: 0, ..at }));
    }
}

/// How a packet changes the known endpoint of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocationChange {
    /// No change.
    None,
    /// The peer has the same address, and sends to another address of ours.
    Source,
    /// The peer has another address or port.
    Endpoint,
}

/// The limits of a peer's routes and sources, which no routing engine can extend.
pub(crate) struct Bounds {
    allowed_ips: AllowedIps,
    pub(crate) role: Role,
}

impl Bounds {
    pub(crate) fn new(peer: PeerId, config: &PeerRoutes) -> Self {
        let mut allowed_ips = AllowedIps::default();
        for &net in &config.allowed_ips {
            allowed_ips.insert(net, peer);
        }
        Self { allowed_ips, role: config.role }
    }

    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.allowed_ips.lookup(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn endpoint(remote: &str, local: Option<&str>) -> Endpoint {
        Endpoint {
            remote: remote.parse().unwrap(),
            local: local.map(|ip| LocalAddr { ip: ip.parse().unwrap(), interface: 0, bound: false }),
            local_port: 0,
        }
    }

    #[test]
    fn a_handshake_chooses_our_port_and_data_does_not() {
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        let to = |local_port| Endpoint { local_port, ..endpoint("192.0.2.1:1", Some("192.0.2.9")) };
        let port = || peer.endpoint().unwrap().local_port;
        peer.way.store(Some(Arc::new(endpoint("192.0.2.1:1", None).into())));
        assert_eq!((peer.seen_at(&to(7).into()), port()), (LocationChange::Source, 7), "none was known");
        assert_eq!((peer.seen_at(&to(8).into()), port()), (LocationChange::None, 7), "another path of the same peer");
        assert_eq!((peer.handshake_at(&to(8).into()), port()), (LocationChange::None, 8));
        peer.forget_source();
        assert_eq!(peer.endpoint(), Some(Endpoint { local: None, ..to(8) }));
        let moved = Endpoint { remote: "192.0.2.2:1".parse().unwrap(), ..to(7) };
        assert_eq!((peer.seen_at(&moved.into()), port()), (LocationChange::Endpoint, 7));
        peer.forget_local();
        assert_eq!(peer.endpoint(), Some(Endpoint::new(moved.remote)));
    }

    #[test]
    fn a_peer_comes_through_a_relay_and_directly_again() {
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        let (relayed, at) = (Way::Relayed(PeerId(9)), endpoint("192.0.2.1:1", Some("192.0.2.9")));
        assert_eq!(peer.seen_at(&relayed), LocationChange::Endpoint);
        assert_eq!((peer.seen_at(&relayed), peer.endpoint()), (LocationChange::None, None));
        // None of these changes anything.
        peer.forget_source();
        peer.forget_local();
        assert_eq!(peer.relayed_by(), Some(PeerId(9)));
        assert_eq!(peer.handshake_at(&at.into()), LocationChange::Endpoint);
        assert_eq!((peer.endpoint(), peer.relayed_by()), (Some(at), None));
    }

    #[test]
    fn a_new_source_address_of_ours_is_kept_but_is_no_roaming() {
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        assert_eq!(peer.seen_at(&endpoint("192.0.2.1:1", None).into()), LocationChange::Endpoint);
        assert_eq!(peer.seen_at(&endpoint("192.0.2.1:1", Some("192.0.2.9")).into()), LocationChange::Source);
        assert_eq!(peer.seen_at(&endpoint("192.0.2.1:1", Some("192.0.2.9")).into()), LocationChange::None);
        assert_eq!(peer.endpoint(), Some(endpoint("192.0.2.1:1", Some("192.0.2.9"))));
        assert_eq!(peer.seen_at(&endpoint("192.0.2.2:1", Some("192.0.2.9")).into()), LocationChange::Endpoint);
        peer.forget_source();
        assert_eq!(peer.endpoint(), Some(endpoint("192.0.2.2:1", None)));
        // An endpoint that is bound to a requested interface stays bound.
        let local = LocalAddr { ip: "0.0.0.0".parse().unwrap(), interface: 7, bound: true };
        let bound = Endpoint { local: Some(local), ..endpoint("192.0.2.2:1", None) };
        peer.way.store(Some(Arc::new(bound.into())));
        assert_eq!(peer.seen_at(&endpoint("192.0.2.2:1", Some("192.0.2.9")).into()), LocationChange::None);
        peer.forget_source();
        assert_eq!(peer.endpoint(), Some(bound));
        assert_eq!(peer.seen_at(&endpoint("192.0.2.3:1", None).into()), LocationChange::Endpoint);
    }

    #[test]
    fn an_address_that_was_given_up_is_not_learned_again() {
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        let [old, other] = ["192.0.2.9", "192.0.2.10"].map(|local| endpoint("192.0.2.1:1", Some(local)));
        let known = || peer.endpoint().unwrap();
        assert_eq!(peer.seen_at(&old.into()), LocationChange::Endpoint);
        peer.abandon_source(&old, old.local.unwrap());
        assert_eq!(
            (known(), peer.seen_at(&old.into()), known().local),
            (endpoint("192.0.2.1:1", None), LocationChange::None, None)
        );
        // From another address, to the same address of ours.
        assert_eq!(peer.seen_at(&endpoint("192.0.2.2:1", Some("192.0.2.9")).into()), LocationChange::Endpoint);
        assert_eq!(known(), endpoint("192.0.2.2:1", None));
        assert_eq!((peer.seen_at(&other.into()), known()), (LocationChange::Endpoint, other));
        // The peer has moved since the kernel was asked.
        peer.abandon_source(&old, old.local.unwrap());
        assert_eq!(known(), other);
        peer.restore_source(old.local.unwrap());
        assert_eq!((peer.seen_at(&old.into()), known()), (LocationChange::Source, old));
    }

    #[test]
    fn a_peer_that_moves_while_its_source_is_forgotten_stays_where_it_moved() {
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        let moving = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let forgetting = scope.spawn(|| {
                while moving.load(Ordering::Relaxed) {
                    peer.forget_source();
                }
            });
            for n in 0..100_000_u32 {
                let at = endpoint(&format!("192.0.2.1:{}", 1 + n % 60_000), Some("192.0.2.9"));
                peer.seen_at(&at.into());
                // Time for the other thread between the two calls.
                std::hint::spin_loop();
                if peer.endpoint().map(|known| known.remote) != Some(at.remote) {
                    moving.store(false, Ordering::Relaxed);
                    panic!("move {n} was undone");
                }
            }
            moving.store(false, Ordering::Relaxed);
            forgetting.join().expect("it ends");
        });
    }
}
