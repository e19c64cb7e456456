//! All protocol state of one interface: the static key, the peers, handshakes, keypairs, timers and cookies.
//!
//! A `Node` never touches data packets. Whoever moves them (the workers of `rustguard-device`, or
//! an embedder in one thread) carries out its [`Action`]s and reports what it saw:
//! [`Node::handshake_wanted`], [`Node::confirmed`], [`Node::activity`].

use crate::{
    activity::Activity,
    cookie::{CookieJar, Demand, Load, MacKeys, mac2},
    noise::{self, InitiationOpened, Keys, WIREGUARD},
    peer::{Outgoing, Peer, Slot},
    session::{Opener, Role, Sealer},
    time::{Instant, Now},
    timers::{
        ERASE_KEYS_AFTER, KEEPALIVE_TIMEOUT, NEW_HANDSHAKE_TIMEOUT, REKEY_ATTEMPT_TIME, REKEY_JITTER, REKEY_TIMEOUT,
    },
    wire::{CookieReply, Initiation, Kind, MAC_LEN, Response},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::{net::SocketAddr, time::Duration};
use hashbrown::HashMap;
use rand_core::CryptoRng;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Names a peer for as long as it exists; never reused within a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Something the caller must do, in order.
#[derive(Debug)]
pub enum Action {
    /// Send a handshake message to the peer's endpoint (the caller keeps endpoints).
    Send {
        /// To whom.
        peer: PeerId,
        /// The message.
        datagram: Vec<u8>,
        /// How often this handshake was tried before; from the second on the caller should resolve the endpoint's name
        /// again and forget a sticky source.
        attempt: u32,
    },
    /// Send a message back to where the datagram just handled came from (cookie reply).
    Reply {
        /// The message.
        datagram: Vec<u8>,
    },
    /// The datagram just handled was authentic: its source is the peer's endpoint now.
    Endpoint {
        /// Whose.
        peer: PeerId,
    },
    /// Packets with this opener's index belong to `peer` from now on.
    AddOpener {
        /// Whose.
        peer: PeerId,
        /// The receiving half.
        opener: Box<Opener>,
    },
    /// Forget the opener with this index.
    RemoveOpener {
        /// Its index.
        index: u32,
    },
    /// Seal for `peer` with this from now on; `None`: nothing can be sealed, stage instead.
    SetSealer {
        /// For whom.
        peer: PeerId,
        /// The sending half.
        sealer: Option<Arc<Sealer>>,
    },
    /// Send what is staged for `peer`; if nothing is and `or_keepalive`, a keepalive.
    Flush {
        /// For whom.
        peer: PeerId,
        /// Confirm the session even with nothing to send.
        or_keepalive: bool,
    },
    /// Seal and send an empty packet; with no sealer do nothing.
    Keepalive {
        /// For whom.
        peer: PeerId,
    },
    /// The handshake was given up: drop what is staged.
    DropStaged {
        /// For whom.
        peer: PeerId,
    },
    /// For the application.
    Event(Event),
}

/// What happened, as it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake completed.
    HandshakeComplete {
        /// With whom.
        peer: PeerId,
        /// From the first initiation of this attempt to its answer, where we initiated.
        took: Option<Duration>,
    },
    /// Ninety seconds without an answer.
    HandshakeFailed {
        /// With whom.
        peer: PeerId,
    },
    /// Keys were erased after 3 × Reject-After-Time without a new handshake.
    SessionExpired {
        /// With whom.
        peer: PeerId,
    },
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// Not a handshake message of the right length and form.
    Malformed,
    /// No private key is set.
    NoIdentity,
    /// MAC1 is wrong: the sender does not know our public key.
    Mac1,
    /// Under load, answered with a cookie reply.
    CookieSent,
    /// Under load and over the limit even with a cookie.
    RateLimited,
    /// No handshake waits for this index.
    UnknownIndex,
    /// Decryption of a field failed, or a Diffie-Hellman result was zero.
    Forged,
    /// The initiator's static key is no peer.
    UnknownPeer,
    /// The timestamp is not newer than the last one.
    Replayed,
    /// More than 50 initiations a second from one peer.
    Flood,
}

impl From<noise::Refused> for Dropped {
    fn from(_: noise::Refused) -> Self {
        Self::Forged
    }
}

/// A peer as the node needs to know it.
#[derive(Clone)]
pub struct PeerConfig {
    /// Its static public key.
    pub public_key: PublicKey,
    /// The preshared key; all zeros means none.
    pub preshared_key: [u8; 32],
    /// Persistent keepalive.
    pub persistent_keepalive: Option<Duration>,
}

impl Drop for PeerConfig {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.preshared_key);
    }
}

/// Why a peer was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddPeerError {
    /// It is our own public key.
    OwnKey,
    /// There is a peer with this key already.
    Exists(PeerId),
}

/// Our static key, and what follows from it.
struct Identity {
    secret: StaticSecret,
    public: PublicKey,
    macs: MacKeys,
}

/// See the module.
pub struct Node {
    identity: Option<Identity>,
    peers: BTreeMap<PeerId, Peer>,
    by_key: HashMap<[u8; 32], PeerId>,
    /// Sender indices of ours: handshakes under way and sessions. Random, so an outsider cannot choose them.
    indices: HashMap<u32, PeerId>,
    /// Peers by their next timer.
    queue: BTreeSet<(Instant, PeerId)>,
    next_id: u32,
    jar: CookieJar,
    load: Load,
}

impl Node {
    /// A node without private key or peers. The RNG makes the cookie secret.
    pub fn new(now: Instant, rng: &mut impl CryptoRng) -> Self {
        Self {
            identity: None,
            peers: BTreeMap::new(),
            by_key: HashMap::new(),
            indices: HashMap::new(),
            queue: BTreeSet::new(),
            next_id: 0,
            jar: CookieJar::new(now, rng),
            load: Load::default(),
        }
    }

    /// Sets or removes the static key. A peer that has this public key is removed and returned; sessions stay, handshakes
    /// under way end.
    pub fn set_private_key(&mut self, key: Option<StaticSecret>, out: &mut Vec<Action>) -> Option<PeerId> {
        self.identity = key.map(|secret| {
            let public = secret.public_key();
            Identity { macs: MacKeys::of(&public), public, secret }
        });
        let own = self.public_key().and_then(|public| self.peer_by_key(&public));
        if let Some(own) = own {
            self.remove_peer(own, out);
        }
        for peer in self.peers.values_mut() {
            peer.static_shared = self
                .identity
                .as_ref()
                .and_then(|identity| identity.secret.diffie_hellman(&peer.config.public_key).ok());
            // Cookies were for the old key.
            peer.cookie = None;
            peer.last_mac1 = None;
        }
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            self.abandon_handshake(id);
            self.enqueue(id);
        }
        own
    }

    /// The static public key.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.identity.as_ref().map(|identity| identity.public)
    }

    /// The private key, for UAPI `get` and SaveConfig.
    pub fn private_key(&self) -> Option<&StaticSecret> {
        self.identity.as_ref().map(|identity| &identity.secret)
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// See [`AddPeerError`].
    pub fn add_peer(&mut self, config: PeerConfig, now: Now) -> Result<PeerId, AddPeerError> {
        if self.public_key() == Some(config.public_key) {
            return Err(AddPeerError::OwnKey);
        }
        if let Some(peer) = self.peer_by_key(&config.public_key) {
            return Err(AddPeerError::Exists(peer));
        }
        let id = PeerId(self.next_id);
        self.next_id = self.next_id.checked_add(1).expect("four billion peers were added");
        let shared =
            self.identity.as_ref().and_then(|identity| identity.secret.diffie_hellman(&config.public_key).ok());
        self.by_key.insert(config.public_key.0, id);
        let mut peer = Peer::new(config, shared);
        peer.timers.persistent_keepalive = peer.config.persistent_keepalive.map(|interval| now.instant + interval);
        self.peers.insert(id, peer);
        self.enqueue(id);
        Ok(id)
    }

    /// Removes a peer with its sessions and handshakes.
    pub fn remove_peer(&mut self, id: PeerId, out: &mut Vec<Action>) -> bool {
        self.abandon_handshake(id);
        let Some(mut peer) = self.peers.remove(&id) else { return false };
        self.by_key.remove(&peer.config.public_key.0);
        if let Some(at) = peer.queued {
            self.queue.remove(&(at, id));
        }
        erase(&mut self.indices, id, &mut peer, out);
        out.push(Action::DropStaged { peer: id });
        true
    }

    /// Finds a peer by key.
    pub fn peer_by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(&key.0).copied()
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
            peer.config.preshared_key = key;
        }
    }

    /// Changes the persistent keepalive; turning it on sends one at once.
    pub fn set_persistent_keepalive(
        &mut self,
        id: PeerId,
        interval: Option<Duration>,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let turned_on = peer.config.persistent_keepalive.is_none() && interval.is_some();
        peer.config.persistent_keepalive = interval;
        peer.timers.persistent_keepalive = interval.map(|interval| now.instant + interval);
        self.enqueue(id);
        if turned_on {
            self.keepalive_or_handshake(id, now, rng, out);
        }
    }

    /// The counters and stamps that the data plane writes for this peer.
    pub fn activity_of(&self, peer: PeerId) -> Option<Arc<Activity>> {
        self.peers.get(&peer).map(|peer| Arc::clone(&peer.activity))
    }

    /// Wall-clock time of the last completed handshake (since the Unix epoch).
    pub fn last_handshake(&self, peer: PeerId) -> Option<Duration> {
        self.peers.get(&peer).and_then(|peer| peer.last_handshake)
    }

    /// Handles a handshake message or cookie reply from `from`. Only authentic ones change anything.
    ///
    /// # Errors
    /// Says why the message was dropped. Nobody else may be told.
    pub fn handle(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        match Kind::of(datagram) {
            Some(Kind::Initiation) => {
                let message = Initiation::parse(datagram).ok_or(Dropped::Malformed)?;
                self.admit(from, datagram, message.sender(), message.mac1(), message.mac2(), now, rng, out)?;
                self.initiation(&message, now, rng, out)
            }
            Some(Kind::Response) => {
                let message = Response::parse(datagram).ok_or(Dropped::Malformed)?;
                // No handshake waits: not worth a MAC, let alone a cookie.
                let index = u32::from_le_bytes(*message.receiver());
                let id = self.waiting(index).ok_or(Dropped::UnknownIndex)?;
                self.admit(from, datagram, message.sender(), message.mac1(), message.mac2(), now, rng, out)?;
                self.response(id, &message, now, out)
            }
            Some(Kind::CookieReply) => {
                let message = CookieReply::parse(datagram).ok_or(Dropped::Malformed)?;
                self.cookie_reply(&message, now)
            }
            Some(Kind::Data { .. }) | None => Err(Dropped::Malformed),
        }
    }

    /// The data plane has something for `peer` and no usable sealer, or its sealer said that a rekey is due.
    pub fn handshake_wanted(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Under way, about to begin, or done since the wish was uttered.
        if peer.handshake.is_some() || peer.timers.initiate.is_some() || peer.has_fresh_session(now.instant) {
            return;
        }
        match peer.last_initiation {
            Some(last) if now.instant.since(last) < REKEY_TIMEOUT => {
                peer.timers.initiate = Some(last + REKEY_TIMEOUT);
                self.enqueue(id);
            }
            _ => self.initiate(id, now.instant, 0, now, rng, out),
        }
    }

    /// As [`handshake_wanted`](Self::handshake_wanted), at once and whatever was tried before: the machine woke up, a link
    /// or an endpoint changed, somebody asks.
    pub fn handshake_now(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        self.abandon_handshake(id);
        self.initiate(id, now.instant, 0, now, rng, out);
    }

    /// The first data of the session with this local index was authenticated.
    pub fn confirmed(&mut self, index: u32, now: Now, out: &mut Vec<Action>) {
        let Some(&id) = self.indices.get(&index) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(fell_out) = peer.slots.confirm(index) else { return };
        let sealer = peer.slots.current.as_ref().map(|current| Arc::clone(&current.sealer));
        peer.last_handshake = Some(now.unix);
        out.push(Action::SetSealer { peer: id, sealer });
        if let Some(slot) = fell_out {
            self.indices.remove(&slot.index);
            out.push(Action::RemoveOpener { index: slot.index });
        }
        // The peer's handshake has given us a session: ours is not needed any more.
        self.abandon_handshake(id);
        self.enqueue(id);
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took: None }));
        out.push(Action::Flush { peer: id, or_keepalive: false });
    }

    /// An [`Activity`] stamp returned true.
    pub fn activity(&mut self, id: PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Whatever begins to wait before this look is not due before it.
        let look = now + KEEPALIVE_TIMEOUT;
        peer.timers.look = Some(peer.timers.look.map_or(look, |earlier| earlier.min(look)));
        self.enqueue(id);
    }

    /// The peer's link became usable (an endpoint was configured or the interface came up): with persistent keepalive, a
    /// session is wanted at once.
    pub fn start(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get(&id) else { return };
        if peer.handshake.is_some() {
            // Initiations went nowhere until now.
            self.handshake_now(id, now, rng, out);
        } else if peer.config.persistent_keepalive.is_some() {
            self.keepalive_or_handshake(id, now, rng, out);
        }
    }

    /// When [`tick`](Self::tick) wants to be called, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        while let Some(&(at, id)) = self.queue.first().filter(|&&(at, _)| at <= now.instant) {
            self.queue.remove(&(at, id));
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.queued = None;
                self.run_timers(id, now, rng, out);
                self.enqueue(id);
            }
        }
    }

    fn run_timers(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let mut due = |pick: fn(&mut crate::peer::Timers) -> &mut Option<Instant>| {
            let timers = &mut self.peers.get_mut(&id)?.timers;
            pick(timers).take_if(|at| *at <= now.instant)
        };
        let (erase_due, initiate, look, persistent) = (
            due(|timers| &mut timers.erase).is_some(),
            due(|timers| &mut timers.initiate).is_some(),
            due(|timers| &mut timers.look).is_some(),
            due(|timers| &mut timers.persistent_keepalive).is_some(),
        );
        if erase_due {
            self.expire(id, out);
        }
        if initiate {
            self.retry(id, now, rng, out);
        }
        if look {
            self.look(id, now, rng, out);
        }
        if persistent {
            self.persistent_keepalive(id, now, rng, out);
        }
    }

    /// Three times Reject-After-Time without a new session: nothing of the old ones remains.
    fn expire(&mut self, id: PeerId, out: &mut Vec<Action>) {
        self.abandon_handshake(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        erase(&mut self.indices, id, peer, out);
        out.push(Action::DropStaged { peer: id });
        out.push(Action::Event(Event::SessionExpired { peer: id }));
    }

    /// No answer in time: try again, or give up.
    fn retry(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(handshake) = &peer.handshake else { return self.initiate(id, now.instant, 0, now, rng, out) };
        let (started, attempt) = (handshake.started, handshake.attempt);
        if now.instant.since(started) < REKEY_ATTEMPT_TIME {
            return self.initiate(id, started, attempt + 1, now, rng, out);
        }
        peer.timers.erase.get_or_insert(now.instant + ERASE_KEYS_AFTER);
        self.abandon_handshake(id);
        out.push(Action::DropStaged { peer: id });
        out.push(Action::Event(Event::HandshakeFailed { peer: id }));
    }

    /// Reads what the data plane has stamped, and acts on what has waited long enough.
    fn look(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let look = peer.activity.look();
        let keepalive = look.received_unanswered.map(|since| since + KEEPALIVE_TIMEOUT);
        let handshake = look.sent_unanswered.map(|since| since + NEW_HANDSHAKE_TIMEOUT);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.instant);
        let later = [keepalive, handshake].into_iter().flatten().filter(|&at| at > now.instant).min();
        if let Some(at) = later {
            // What begins to wait meanwhile must be seen in time, too.
            peer.timers.look = Some(at.min(now.instant + KEEPALIVE_TIMEOUT));
            peer.activity.look_again();
        }
        if is_due(handshake) {
            peer.activity.forget_sent();
        }
        if is_due(keepalive) {
            out.push(Action::Keepalive { peer: id });
        }
        if is_due(handshake) {
            // A session that nobody answers may be dead on the other side, however young it is.
            let peer = self.peers.get_mut(&id).expect("found above");
            if peer.handshake.is_none() && peer.timers.initiate.is_none() {
                self.initiate(id, now.instant, 0, now, rng, out);
            }
        }
    }

    fn persistent_keepalive(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(interval) = peer.config.persistent_keepalive else { return };
        let due = peer.activity.last_traversal() + interval;
        if due > now.instant {
            peer.timers.persistent_keepalive = Some(due);
        } else {
            peer.timers.persistent_keepalive = Some(now.instant + interval);
            self.keepalive_or_handshake(id, now, rng, out);
        }
    }

    fn keepalive_or_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        if self.peers.get(&id).is_some_and(|peer| peer.can_seal(now.instant)) {
            out.push(Action::Keepalive { peer: id });
        } else {
            self.handshake_wanted(id, now, rng, out);
        }
    }

    /// Sends an initiation. `started` is when the first of this series went out.
    fn initiate(
        &mut self,
        id: PeerId,
        started: Instant,
        attempt: u32,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) {
        self.abandon_handshake(id);
        let index = fresh_index(&self.indices, rng);
        let (Some(identity), Some(peer)) = (&self.identity, self.peers.get_mut(&id)) else { return };
        let timestamp = peer.next_timestamp(now.unix);
        let Some(shared) = &peer.static_shared else { return };
        let public = &identity.public;
        let Ok((sent, mut message)) =
            noise::initiate(WIREGUARD, public, &peer.config.public_key, shared, ephemeral(rng), index, timestamp)
        else {
            return;
        };
        let mac1 = peer.macs.mac1(message.as_bytes());
        message.set(116, &mac1);
        if let Some(cookie) = peer.cookie(now.instant) {
            message.set(132, &mac2(cookie, message.as_bytes()));
        }
        peer.last_mac1 = Some((index, mac1));
        peer.last_initiation = Some(now.instant);
        peer.handshake = Some(Outgoing { sent, index, started, attempt });
        peer.timers.initiate = Some(now.instant + REKEY_TIMEOUT + jitter(rng));
        peer.activity.sent(now.instant);
        self.indices.insert(index, id);
        self.enqueue(id);
        out.push(Action::Send { peer: id, datagram: message.as_bytes().to_vec(), attempt });
    }

    /// Ends a handshake under way, and its retries.
    fn abandon_handshake(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.timers.initiate = None;
        if let Some(handshake) = peer.handshake.take() {
            self.indices.remove(&handshake.index);
        }
    }

    /// The peer whose initiation has this index.
    fn waiting(&self, index: u32) -> Option<PeerId> {
        let &id = self.indices.get(&index)?;
        let handshake = self.peers.get(&id)?.handshake.as_ref()?;
        (handshake.index == index).then_some(id)
    }

    /// MAC1, load, MAC2: what a message has to pass before it may cost a Diffie-Hellman.
    #[expect(clippy::too_many_arguments, reason = "the fields that initiation and response share")]
    fn admit(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        sender: &[u8; 4],
        mac1: &[u8; MAC_LEN],
        mac2: &[u8; MAC_LEN],
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let identity = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        if !identity.macs.verify_mac1(datagram, mac1) {
            return Err(Dropped::Mac1);
        }
        if self.load.count(from, now.instant) == Demand::Nothing {
            return Ok(());
        }
        if !self.jar.verify_mac2(from, datagram, mac2, now.instant, rng) {
            let reply = self.jar.reply(&identity.macs, from, sender, mac1, now.instant, rng);
            out.push(Action::Reply { datagram: reply.as_bytes().to_vec() });
            return Err(Dropped::CookieSent);
        }
        if self.load.admit_with_cookie(from) { Ok(()) } else { Err(Dropped::RateLimited) }
    }

    fn initiation(
        &mut self,
        message: &Initiation,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let identity = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let opened = InitiationOpened::open(WIREGUARD, &identity.secret, message)?;
        let &id = self.by_key.get(&opened.initiator().0).ok_or(Dropped::UnknownPeer)?;
        let index = fresh_index(&self.indices, rng);
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownPeer)?;
        let received = opened.authenticate(peer.static_shared.as_ref().ok_or(Dropped::Forged)?)?;
        if peer.newest_timestamp.is_some_and(|newest| received.timestamp() <= newest) {
            return Err(Dropped::Replayed);
        }
        if !peer.admit_initiation(now.instant) {
            return Err(Dropped::Flood);
        }
        peer.newest_timestamp = Some(received.timestamp());
        peer.activity.received(now.instant);
        out.push(Action::Endpoint { peer: id });

        let (keys, mut response) =
            received.respond(&peer.config.preshared_key, &ephemeral(rng), index, *message.sender())?;
        let mac1 = peer.macs.mac1(response.as_bytes());
        response.set(60, &mac1);
        if let Some(cookie) = peer.cookie(now.instant) {
            response.set(76, &mac2(cookie, response.as_bytes()));
        }
        peer.last_mac1 = Some((index, mac1));
        peer.activity.sent(now.instant);
        self.establish(id, &keys, index, u32::from_le_bytes(*message.sender()), Role::Responder, now, out);
        out.push(Action::Send { peer: id, datagram: response.as_bytes().to_vec(), attempt: 0 });
        Ok(())
    }

    fn response(&mut self, id: PeerId, message: &Response, now: Now, out: &mut Vec<Action>) -> Result<(), Dropped> {
        let identity = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownIndex)?;
        let handshake = peer.handshake.as_ref().ok_or(Dropped::UnknownIndex)?;
        let keys = handshake.sent.read_response(&identity.secret, &peer.config.preshared_key, message)?;
        let (index, took) = (handshake.index, now.instant.since(handshake.started));
        peer.handshake = None;
        peer.timers.initiate = None;
        peer.last_handshake = Some(now.unix);
        peer.activity.received(now.instant);
        out.push(Action::Endpoint { peer: id });
        self.establish(id, &keys, index, u32::from_le_bytes(*message.sender()), Role::Initiator, now, out);
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took: Some(took) }));
        // The first data tells the responder that its answer arrived; it may not send before.
        out.push(Action::Flush { peer: id, or_keepalive: true });
        Ok(())
    }

    /// Puts a new session into its slot.
    #[expect(clippy::too_many_arguments, reason = "what both ends of a handshake know")]
    fn establish(
        &mut self,
        id: PeerId,
        keys: &Keys,
        index: u32,
        receiver: u32,
        role: Role,
        now: Now,
        out: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let sealer = Arc::new(Sealer::new(&keys.send, receiver, role, now.instant));
        let opener = Box::new(Opener::new(&keys.receive, index, role, now.instant));
        self.indices.insert(index, id);
        out.push(Action::AddOpener { peer: id, opener });
        let fell_out = peer.slots.add(Slot { index, sealer: Arc::clone(&sealer), role });
        if role == Role::Initiator {
            out.push(Action::SetSealer { peer: id, sealer: Some(sealer) });
        }
        for slot in fell_out.into_iter().flatten() {
            self.indices.remove(&slot.index);
            out.push(Action::RemoveOpener { index: slot.index });
        }
        peer.timers.erase = Some(now.instant + ERASE_KEYS_AFTER);
        self.enqueue(id);
    }

    fn cookie_reply(&mut self, message: &CookieReply, now: Now) -> Result<(), Dropped> {
        let index = u32::from_le_bytes(*message.receiver());
        let id = self.indices.get(&index).ok_or(Dropped::UnknownIndex)?;
        let peer = self.peers.get_mut(id).ok_or(Dropped::UnknownIndex)?;
        let (_, mac1) = peer.last_mac1.filter(|&(sent, _)| sent == index).ok_or(Dropped::UnknownIndex)?;
        let cookie = peer.macs.open_reply(message, &mac1).ok_or(Dropped::Forged)?;
        // For the next message. Sending again at once would let anybody who sees one packet make us send two.
        peer.cookie = Some((Zeroizing::new(cookie), now.instant));
        peer.last_mac1 = None;
        Ok(())
    }

    /// Puts the peer where its next timer belongs.
    fn enqueue(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let next = peer.timers.next();
        if next == peer.queued {
            return;
        }
        if let Some(at) = peer.queued {
            self.queue.remove(&(at, id));
        }
        peer.queued = next;
        if let Some(at) = next {
            self.queue.insert((at, id));
        }
    }
}

/// Takes every session out of a peer.
fn erase(indices: &mut HashMap<u32, PeerId>, id: PeerId, peer: &mut Peer, out: &mut Vec<Action>) {
    out.push(Action::SetSealer { peer: id, sealer: None });
    for slot in peer.slots.clear() {
        indices.remove(&slot.index);
        out.push(Action::RemoveOpener { index: slot.index });
    }
}

/// A random index that nothing has.
fn fresh_index(indices: &HashMap<u32, PeerId>, rng: &mut impl CryptoRng) -> u32 {
    loop {
        let index = rng.next_u32();
        if !indices.contains_key(&index) {
            return index;
        }
    }
}

fn ephemeral(rng: &mut impl CryptoRng) -> StaticSecret {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *bytes);
    StaticSecret::from_bytes(*bytes)
}

fn jitter(rng: &mut impl CryptoRng) -> Duration {
    let limit = u32::try_from(REKEY_JITTER.as_millis()).expect("a third of a second") + 1;
    Duration::from_millis(u64::from(rng.next_u32() % limit))
}
