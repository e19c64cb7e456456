//! All protocol state of one interface: the static key, the peers, handshakes, keypairs, timers and cookies.
//!
//! A `Node` never touches data packets. The code that moves them (the workers of `rustguard-device`, or
//! [`Tunnel`](crate::tunnel) in one thread) carries out the node's [`Action`]s in their order, and reports what it saw
//! with [`Node::handshake_wanted`], [`Node::confirmed`] and [`Node::activity`].
//!
//! `node/handshake.rs` handles messages, `node/retry.rs` begins and repeats handshakes, `node/schedule.rs` has the
//! other timers.
mod action;
mod handshake;
mod keypairs;
mod peer;
mod retry;
mod schedule;
mod timers;

use self::{
    keypairs::Keypair,
    peer::Peer,
    timers::{Timer, Timers},
};
pub use crate::peer::{PeerConfig, PeerId};
use crate::{
    activity::Activity,
    constants::REJECT_AFTER_TIME,
    cookie::{self, Checker, Origin, Screen, Standing},
    load::Load,
    noise,
    sync::Arc,
    time::{Instant, Now},
};
pub use action::{Action, AddPeerError, Dropped, Event};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    vec::Vec,
};
use core::{fmt, time::Duration};
pub use peer::Unconfirmed;
use rand_core::CryptoRng;
use retry::Attempt;
pub use retry::AttemptStatus;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use zeroize::{Zeroize, Zeroizing};

/// The maximum number of initiations in one [`Node::tick`]. Each of them costs about 80 µs.
const TICK_INITIATIONS: usize = 16;
/// The maximum number of timers that one [`Node::tick`] runs. Without an initiation, a timer costs about a microsecond.
const TICK_TIMERS: usize = 1_024;

/// The protocol state of an interface: see the [module](self).
pub struct Node {
    identity: Option<Identity>,
    /// The key by which some peers know this node, while the node changes its key.
    second: Option<Box<Second>>,
    /// There was another first key before: peers may have handshakes with that one.
    has_changed_key: bool,
    /// Boxed: peers are added in the order of their numbers, which leaves the nodes of the tree half empty.
    peers: BTreeMap<PeerId, Box<Peer>>,
    by_key: BTreeMap<PublicKey, PeerId>,
    /// Every index that a message to us may contain: of handshakes that wait for an answer, and of sessions.
    indices: BTreeMap<u32, PeerId>,
    next_peer: u32,
    timers: Timers,
    load: Load,
    cookie_secret: Arc<cookie::Secret>,
    /// The node is down: nothing is sent or answered.
    stopped: bool,
    /// The peers for which something was staged since the node stopped, and when first.
    wanted: BTreeMap<PeerId, Instant>,
}

/// How long something may stay staged while the node is stopped. The data plane may see the first packets before the
/// interface is reported as up; later, these packets are stale.
const WANTED: Duration = Duration::from_secs(5);
/// The time between the initiations to two peers that are greeted when the node resumes: no packet waits for them.
const RESUMING: Duration = Duration::from_millis(1);

/// The static key and the state derived from it.
struct Identity {
    secret: StaticSecret,
    checker: Arc<Checker>,
}

impl Identity {
    fn new(secret: StaticSecret) -> Self {
        let checker = Arc::new(Checker::new(&noise::WIREGUARD, &secret.public_key()));
        Self { secret, checker }
    }
}

/// A second static key.
struct Second {
    identity: Identity,
    /// The preshared keys of handshakes with this key, if they differ from those with the first key.
    preshared_keys: BTreeMap<PeerId, Zeroizing<[u8; 32]>>,
    /// When each peer was last heard in a handshake with the first key. A peer that knows the first key needs no
    /// session with this key at the same time: it would have two peers for this node, and packets of one would arrive
    /// in the session of the other.
    by_first: BTreeMap<PeerId, Instant>,
    /// Whether initiations are made with this key, in turn with the first.
    initiates: bool,
    /// The peers whose last handshake was made with this key, if it only answers.
    by_second: BTreeSet<PeerId>,
}

impl Node {
    /// A node without private key or peers. `rng` makes the cookie secret.
    pub fn new(now: Instant, rng: &mut impl CryptoRng) -> Self {
        Self {
            identity: None,
            second: None,
            has_changed_key: false,
            peers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            indices: BTreeMap::new(),
            next_peer: 0,
            timers: Timers::default(),
            load: Load::default(),
            cookie_secret: Arc::new(cookie::Secret::new(now, rng)),
            stopped: false,
            wanted: BTreeMap::new(),
        }
    }

    /// Sets or removes the static key. A peer that has this public key is removed and returned. Sessions stay.
    /// Handshakes under way end, and the next initiation of each is made with the new key.
    pub fn set_private_key(&mut self, key: Option<StaticSecret>, out: &mut Vec<Action>) -> Option<PeerId> {
        self.end_pending();
        self.peers.values_mut().for_each(|peer| peer.forget_static_static());
        self.has_changed_key |= self.identity.is_some();
        if let Some(second) = &mut self.second {
            second.by_first.clear();
        }
        self.identity = key.map(Identity::new);
        out.push(Action::SetScreen(self.screen()));
        let own = self.public_key().and_then(|key| self.peer_by_key(&key));
        own.inspect(|&own| {
            self.remove_peer(own, out);
        })
    }

    /// Sets or removes a second static key: while a node changes its key, some peers know it by this one and some by
    /// the first. Initiations to either key are answered, except initiations to the second within
    /// [`REKEY_TIMEOUT`](crate::constants::REKEY_TIMEOUT) of a handshake with the first. An attempt alternates between
    /// both keys, beginning with the first, if the second `initiates`. Otherwise other nodes may have the second key as
    /// well: a peer that one of them called would take its answers elsewhere. `preshared_keys` has the preshared keys
    /// of handshakes with the second key, if they are others. Sessions stay, handshakes under way end.
    pub fn set_second_private_key(
        &mut self,
        key: Option<StaticSecret>,
        initiates: bool,
        preshared_keys: impl IntoIterator<Item = (PublicKey, [u8; 32])>,
        out: &mut Vec<Action>,
    ) {
        self.end_pending();
        let known = |(key, psk): (PublicKey, [u8; 32])| Some((self.peer_by_key(&key)?, Zeroizing::new(psk)));
        let preshared_keys = preshared_keys.into_iter().filter_map(known).collect();
        let by_first = match self.second.take() {
            Some(second) => second.by_first,
            None if self.has_changed_key => BTreeMap::new(),
            None => {
                let peers = self.peers.iter().filter(|(_, peer)| peer.last_handshake.is_some());
                peers.filter_map(|(id, peer)| Some((*id, peer.handshake_sent?))).collect()
            }
        };
        self.second = key.map(|secret| {
            Box::new(Second {
                identity: Identity::new(secret),
                preshared_keys,
                by_first,
                initiates,
                by_second: BTreeSet::new(),
            })
        });
        out.push(Action::SetScreen(self.screen()));
    }

    /// Sets the preshared key of a peer's handshakes with the second static key. Without a second key, nothing happens.
    pub fn set_second_preshared_key(&mut self, peer: PeerId, key: [u8; 32]) {
        if let Some(second) = self.second.as_mut().filter(|_| self.peers.contains_key(&peer)) {
            second.preshared_keys.insert(peer, Zeroizing::new(key));
        }
    }

    /// Ends the handshakes that wait for an answer. Their attempts continue.
    fn end_pending(&mut self) {
        for peer in self.peers.values_mut() {
            if let Some(pending) = peer.pending.take() {
                self.indices.remove(&pending.index);
            }
        }
    }

    /// The static public key.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.private_key().map(StaticSecret::public_key)
    }

    /// The private key, for callers that store or show the configuration.
    pub fn private_key(&self) -> Option<&StaticSecret> {
        self.identity.as_ref().map(|identity| &identity.secret)
    }

    /// Adds a peer. Nothing is sent before [`start`](Self::start) or [`handshake_wanted`](Self::handshake_wanted).
    ///
    /// # Errors
    /// [`AddPeerError`], and nothing has changed.
    pub fn add_peer(&mut self, config: PeerConfig) -> Result<PeerId, AddPeerError> {
        if self.public_key() == Some(config.public_key) {
            return Err(AddPeerError::OwnKey);
        }
        if let Some(id) = self.peer_by_key(&config.public_key) {
            return Err(AddPeerError::Exists(id));
        }
        let id = PeerId(self.next_peer);
        self.next_peer = self.next_peer.checked_add(1).expect("nobody adds four billion peers");
        self.by_key.insert(config.public_key, id);
        self.peers.insert(id, Box::new(Peer::new(config)));
        Ok(id)
    }

    /// Gives a peer another static key: its sessions stay, and the next handshake is made with the new key. An owner of
    /// the old private key is no longer answered.
    ///
    /// # Errors
    /// [`AddPeerError`] if the key is our own or another peer's, and nothing has changed.
    pub fn set_peer_key(&mut self, peer: PeerId, key: PublicKey) -> Result<(), AddPeerError> {
        if self.public_key() == Some(key) {
            return Err(AddPeerError::OwnKey);
        }
        match self.peer_by_key(&key) {
            Some(other) if other != peer => return Err(AddPeerError::Exists(other)),
            _ => {}
        }
        let Some(state) = self.peers.get_mut(&peer) else { return Ok(()) };
        self.by_key.remove(&state.config.public_key);
        self.by_key.insert(key, peer);
        if let Some(pending) = state.pending.take() {
            self.indices.remove(&pending.index);
        }
        state.set_key(key);
        Ok(())
    }

    /// Removes a peer with its sessions and handshakes.
    pub fn remove_peer(&mut self, peer: PeerId, out: &mut Vec<Action>) -> bool {
        let Some(mut gone) = self.peers.remove(&peer) else { return false };
        self.by_key.remove(&gone.config.public_key);
        self.wanted.remove(&peer);
        self.timers.forget(peer, &mut gone.armed);
        if let Some(second) = &mut self.second {
            second.preshared_keys.remove(&peer);
            second.by_first.remove(&peer);
            second.by_second.remove(&peer);
        }
        if let Some(pending) = gone.pending.take() {
            self.indices.remove(&pending.index);
        }
        out.push(Action::SetSealer { peer, sealer: None });
        retire(&mut self.indices, gone.keypairs.take_all(), out);
        out.push(Action::DropStaged { peer });
        true
    }

    /// Finds a peer by key.
    pub fn peer_by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    /// All peers, in the order they were added.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.keys().copied()
    }

    /// The peer's present configuration.
    pub fn peer_config(&self, peer: PeerId) -> Option<&PeerConfig> {
        self.peers.get(&peer).map(|peer| &peer.config)
    }

    /// A new preshared key takes effect at the next handshake; the live session stays.
    pub fn set_preshared_key(&mut self, peer: PeerId, key: [u8; 32]) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.config.preshared_key.zeroize();
            peer.config.preshared_key = key;
        }
    }

    /// Changes the persistent keepalive; turning it on sends one at once.
    pub fn set_persistent_keepalive(
        &mut self,
        peer: PeerId,
        interval: Option<Duration>,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        let was_on = state.keepalive_interval().is_some();
        state.config.persistent_keepalive = interval;
        self.timers.disarm(peer, &mut state.armed, Timer::Keepalive);
        let Some(interval) = state.keepalive_interval().filter(|_| state.started) else { return };
        if was_on {
            let last = state.activity.last_traversal().unwrap_or(now.instant);
            self.timers.arm(peer, &mut state.armed, Timer::Keepalive, last + interval);
        } else {
            self.send_keepalive(peer, now, rng, out);
        }
    }

    /// The counters and stamps that the data plane writes for this peer.
    pub fn activity_of(&self, peer: PeerId) -> Option<Arc<Activity>> {
        self.peers.get(&peer).map(|peer| Arc::clone(&peer.activity))
    }

    /// When the last handshake completed, as the time since the Unix epoch.
    pub fn last_handshake(&self, peer: PeerId) -> Option<Duration> {
        self.peers.get(&peer)?.last_handshake
    }

    /// The handshake that this side is trying to get through; `None`: no initiation waits for an answer.
    pub fn attempt(&self, peer: PeerId) -> Option<AttemptStatus> {
        self.peers.get(&peer)?.attempt.as_ref().map(Attempt::status)
    }

    /// The initiations of the peer that we answered, if no packet has come in their sessions.
    pub fn unconfirmed(&self, peer: PeerId) -> Option<Unconfirmed> {
        self.peers.get(&peer)?.unconfirmed
    }

    /// The static public key in an initiation whose sender has the private key to it: for reports about initiations
    /// that were refused with [`Dropped::UnknownPeer`]. Anybody who knows our public key can make such a message with a
    /// key pair of its own, and can replay a recorded one. Costs two Diffie-Hellman operations.
    pub fn initiator(&self, datagram: &[u8]) -> Option<PublicKey> {
        self.initiator_of(datagram)
    }

    /// Handles a handshake message or cookie reply from `from`. Only authentic ones change anything.
    ///
    /// # Errors
    /// Why the message was dropped. With [`Dropped::CookieSent`] there is an action nevertheless.
    pub fn handle(
        &mut self,
        from: impl Into<Origin>,
        datagram: &[u8],
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        self.handle_message(from.into(), datagram, None, now, rng, out)
    }

    /// As [`handle`](Self::handle), for callers that have already checked the message with the [`Screen`] of
    /// [`Action::SetScreen`].
    ///
    /// # Errors
    /// As of [`handle`](Self::handle).
    pub fn handle_judged(
        &mut self,
        from: impl Into<Origin>,
        datagram: &[u8],
        standing: Standing,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        self.handle_message(from.into(), datagram, Some(standing), now, rng, out)
    }

    /// The check for the MACs of messages to this node; `None` without a private key.
    fn screen(&self) -> Option<Screen> {
        let Identity { checker, .. } = self.identity.as_ref()?;
        let second = self.second.as_ref().map(|second| Arc::clone(&second.identity.checker));
        Some(Screen { checker: Arc::clone(checker), second, secret: Arc::clone(&self.cookie_secret) })
    }

    /// The data plane has something for `peer` and no usable sealer, or its sealer said that a rekey is due.
    ///
    /// Does nothing while a handshake is under way. If there is a fresh session meanwhile, the staged packets are
    /// flushed. While the node is [stopped](Self::stop), they wait for [`resume`](Self::resume).
    pub fn handshake_wanted(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(state) = self.peers.get(&peer) else { return };
        if self.stopped {
            self.wanted.entry(peer).or_insert(now.instant);
        } else if state.usable_sealer(now.instant).is_some_and(|sealer| !sealer.aged(now.instant)) {
            out.push(Action::Flush { peer, or_keepalive: false });
        } else {
            self.begin_handshake(peer, now, rng, out);
        }
    }

    /// As [`handshake_wanted`](Self::handshake_wanted), but at once and regardless of earlier attempts: for when the
    /// machine woke up, or a link or an endpoint changed.
    pub fn handshake_now(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        self.restart_handshake(peer, now, rng, out);
    }

    /// As [`handshake_now`](Self::handshake_now), at the time `at`: [`tick`](Self::tick) spreads the handshakes of many
    /// peers. If a packet is to be sent earlier, the handshake begins then.
    pub fn handshake_at(&mut self, peer: PeerId, at: Instant) {
        self.restart_handshake_at(peer, at);
    }

    /// Whether anything authentic passed to or from the peer in the last Reject-After-Time (180 s) before `now`, or we
    /// try to reach it by a handshake or by persistent keepalive. A change of the network matters to these peers.
    pub fn is_in_use(&self, peer: PeerId, now: Instant) -> bool {
        self.peers.get(&peer).is_some_and(|peer| {
            let lately = |at| now.since(at) < REJECT_AFTER_TIME;
            peer.activity.last_traversal().is_some_and(lately)
                || peer.attempt.is_some()
                || peer.started && peer.keepalive_interval().is_some()
        })
    }

    /// Begins a handshake at the time `at` though there is nothing to send, unless there is a session or a handshake by
    /// then. A peer that still uses a session from before a restart of this node thus learns at once that the session
    /// has ended. The attempt ends after three initiations without an answer, without [`Event::HandshakeFailed`].
    pub fn greet(&mut self, peer: PeerId, at: Instant) {
        self.begin_greeting(peer, at);
    }

    /// The first data of the session with this local index was authenticated.
    pub fn confirmed(&mut self, index: u32, now: Now, out: &mut Vec<Action>) {
        self.confirm_session(index, now, out);
    }

    /// An [`Activity`] stamp returned true.
    pub fn activity(&mut self, peer: PeerId, now: Instant) {
        self.schedule_look(peer, now);
    }

    /// The peer's link became usable (an endpoint was configured or the interface came up): persistent keepalive
    /// starts.
    pub fn start(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.started = true;
        if state.keepalive_interval().is_some() {
            self.send_keepalive(peer, now, rng, out);
        }
    }

    /// The interface was set down: all sessions, handshakes and timers end, staged packets are dropped, and nothing is
    /// sent or answered before [`resume`](Self::resume).
    pub fn stop(&mut self, out: &mut Vec<Action>) {
        self.stopped = true;
        self.wanted.clear();
        for (&id, peer) in &mut self.peers {
            peer.resumes |= peer.attempt.is_some() || peer.keypairs.sealer().is_some();
            // The timer for the stamps stays: the data plane sets it off, and its run finds nothing.
            for timer in [Timer::Handshake, Timer::Keepalive, Timer::Erase] {
                self.timers.disarm(id, &mut peer.armed, timer);
            }
            peer.activity.settle_owed();
            peer.activity.settle_awaited();
            if let Some(pending) = peer.pending.take() {
                self.indices.remove(&pending.index);
            }
            peer.attempt = None;
            peer.handshake_sent = None;
            out.push(Action::SetSealer { peer: id, sealer: None });
            retire(&mut self.indices, peer.keypairs.take_all(), out);
            out.push(Action::DropStaged { peer: id });
        }
    }

    /// Whether it was [stopped](Self::stop) and not resumed.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The interface was set up again. A handshake begins with each peer that had a session or an attempt when the node
    /// was stopped, with each peer for which a handshake was [wanted](Self::handshake_wanted) within the last seconds,
    /// and with each started peer that has persistent keepalive. [`tick`](Self::tick) sends the initiations.
    pub fn resume(&mut self, now: Now, out: &mut Vec<Action>) {
        self.stopped = false;
        let mut wanted = core::mem::take(&mut self.wanted);
        let mut next = now.instant;
        for (&id, peer) in &mut self.peers {
            let resumes = core::mem::take(&mut peer.resumes);
            let since = wanted.remove(&id);
            let is_wanted = since.is_some_and(|since| now.instant.since(since) < WANTED);
            if since.is_some() && !is_wanted {
                out.push(Action::DropStaged { peer: id });
            }
            let mut at = now.instant;
            if is_wanted {
                peer.attempt = Some(Attempt::new(now.instant));
                if let Some(interval) = peer.keepalive_interval().filter(|_| peer.started) {
                    self.timers.arm(id, &mut peer.armed, Timer::Keepalive, now.instant + interval);
                }
            } else if peer.started
                && let Some(interval) = peer.keepalive_interval()
            {
                peer.attempt = Some(Attempt::new(now.instant));
                self.timers.arm(id, &mut peer.armed, Timer::Keepalive, now.instant + interval);
            } else if resumes {
                (at, next) = (next, next + RESUMING);
                peer.attempt = Some(Attempt::greeting(at));
            } else {
                continue;
            }
            self.timers.arm(id, &mut peer.armed, Timer::Handshake, at);
        }
    }

    /// When [`tick`](Self::tick) has to be called, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Runs the timers that are due: at most 1,024 of them, and none after 16 initiations. If some are left,
    /// [`deadline`](Self::deadline) is in the past. Thus thousands of handshakes that are due at once do not keep the
    /// caller from other work.
    pub fn tick(&mut self, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let mut initiations = 0;
        // Only as many as are due now: if time saturates, a timer that is set again would be due at once, forever.
        for _ in 0..self.timers.due(now.instant, TICK_TIMERS) {
            let Some((peer, timer)) = self.timers.first().filter(|_| initiations < TICK_INITIATIONS) else { break };
            let before = out.len();
            self.run_timer(peer, timer, now, rng, out);
            initiations += out[before..].iter().filter(|action| matches!(action, Action::Send { .. })).count();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("public_key", &self.public_key())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// Frees the indices of sessions that end.
fn retire(indices: &mut BTreeMap<u32, PeerId>, keypairs: impl IntoIterator<Item = Keypair>, out: &mut Vec<Action>) {
    for Keypair { index, .. } in keypairs {
        indices.remove(&index);
        out.push(Action::RemoveOpener { index });
    }
}

fn fresh_ephemeral(rng: &mut impl CryptoRng) -> StaticSecret {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *bytes);
    StaticSecret::from_bytes(*bytes)
}

/// Takes a random index that is not in use.
fn fresh_index(indices: &mut BTreeMap<u32, PeerId>, peer: PeerId, rng: &mut impl CryptoRng) -> u32 {
    loop {
        let index = rng.next_u32();
        if let Entry::Vacant(entry) = indices.entry(index) {
            entry.insert(peer);
            return index;
        }
    }
}
