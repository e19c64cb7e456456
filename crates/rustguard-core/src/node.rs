//! All protocol state of one interface: the static key, the peers, handshakes, keypairs, timers and cookies.
//!
//! A `Node` never touches data packets. Whoever moves them (the workers of `rustguard-device`, or [`Tunnel`](crate::tunnel)
//! in one thread) carries out its [`Action`]s and reports what it saw: [`Node::handshake_wanted`], [`Node::confirmed`],
//! [`Node::activity`].
use crate::{
    activity::Activity,
    session::{Opener, Sealer},
    time::{Instant, Now},
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{net::SocketAddr, time::Duration};
use rand_core::CryptoRng;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};

/// Names a peer for as long as it exists; never reused within a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Something the caller must do, in order.
pub enum Action {
    /// Send a handshake message to the peer's endpoint (the caller keeps endpoints), with a fresh source address decision if `retry`.
    Send {
        /// To whom.
        peer: PeerId,
        /// The message.
        datagram: Vec<u8>,
        /// How often this handshake was tried before; from the second on the caller should resolve the endpoint's name again
        /// and forget a sticky source.
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

/// Why a peer was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddPeerError {
    /// It is our own public key.
    OwnKey,
    /// There is a peer with this key already.
    Exists(PeerId),
}

/// See the module.
pub struct Node(());

impl Node {
    /// A node without private key or peers. The RNG keys the hash tables and the cookie secret.
    pub fn new(_now: Instant, _rng: &mut impl CryptoRng) -> Self {
        todo!()
    }
    /// Sets or removes the static key. A peer that has this public key is removed and returned; sessions stay, handshakes under way end.
    pub fn set_private_key(&mut self, _key: Option<StaticSecret>, _out: &mut Vec<Action>) -> Option<PeerId> {
        todo!()
    }
    /// The static public key.
    pub fn public_key(&self) -> Option<PublicKey> {
        todo!()
    }
    /// The private key, for UAPI `get` and SaveConfig.
    pub fn private_key(&self) -> Option<&StaticSecret> {
        todo!()
    }
    /// Adds a peer.
    pub fn add_peer(&mut self, _config: PeerConfig, _now: Now) -> Result<PeerId, AddPeerError> {
        todo!()
    }
    /// Removes a peer with its sessions and handshakes.
    pub fn remove_peer(&mut self, _peer: PeerId, _out: &mut Vec<Action>) -> bool {
        todo!()
    }
    /// Finds a peer by key.
    pub fn peer_by_key(&self, _key: &PublicKey) -> Option<PeerId> {
        todo!()
    }
    /// All peers, in the order they were added.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        core::iter::empty()
    }
    /// The peer's present configuration.
    pub fn peer_config(&self, _peer: PeerId) -> Option<&PeerConfig> {
        todo!()
    }
    /// A new preshared key takes effect at the next handshake; the live session stays.
    pub fn set_preshared_key(&mut self, _peer: PeerId, _key: [u8; 32]) {
        todo!()
    }
    /// Changes the persistent keepalive; turning it on sends one at once.
    pub fn set_persistent_keepalive(
        &mut self,
        _peer: PeerId,
        _interval: Option<Duration>,
        _now: Now,
        _rng: &mut impl CryptoRng,
        _out: &mut Vec<Action>,
    ) {
        todo!()
    }
    /// The counters and stamps that the data plane writes for this peer.
    pub fn activity_of(&self, _peer: PeerId) -> Option<Arc<Activity>> {
        todo!()
    }
    /// Wall-clock time of the last completed handshake (since the Unix epoch).
    pub fn last_handshake(&self, _peer: PeerId) -> Option<Duration> {
        todo!()
    }
    /// Handles a handshake message or cookie reply from `from`. Only authentic ones change anything.
    pub fn handle(
        &mut self,
        _from: SocketAddr,
        _datagram: &[u8],
        _now: Now,
        _rng: &mut impl CryptoRng,
        _out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        todo!()
    }
    /// The data plane has something for `peer` and no usable sealer, or its sealer said that a rekey is due.
    pub fn handshake_wanted(&mut self, _peer: PeerId, _now: Now, _rng: &mut impl CryptoRng, _out: &mut Vec<Action>) {
        todo!()
    }
    /// As [`handshake_wanted`](Self::handshake_wanted), at once and whatever was tried before: the machine woke up, a link or an endpoint changed, somebody asks.
    pub fn handshake_now(&mut self, _peer: PeerId, _now: Now, _rng: &mut impl CryptoRng, _out: &mut Vec<Action>) {
        todo!()
    }
    /// The first data of the session with this local index was authenticated.
    pub fn confirmed(&mut self, _index: u32, _now: Now, _out: &mut Vec<Action>) {
        todo!()
    }
    /// An [`Activity`] stamp returned true.
    pub fn activity(&mut self, _peer: PeerId, _now: Instant) {
        todo!()
    }
    /// The peer's link became usable (an endpoint was configured or the interface came up): persistent keepalive starts.
    pub fn start(&mut self, _peer: PeerId, _now: Now, _rng: &mut impl CryptoRng, _out: &mut Vec<Action>) {
        todo!()
    }
    /// When [`tick`](Self::tick) wants to be called, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// Runs the timers that are due.
    pub fn tick(&mut self, _now: Now, _rng: &mut impl CryptoRng, _out: &mut Vec<Action>) {
        todo!()
    }
}
