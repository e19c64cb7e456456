//! The actions that a node requests, its reports, and the reasons why it drops a message.
use crate::{
    cookie::Screen,
    peer::PeerId,
    session::{Opener, Sealer},
    sync::Arc,
};
use alloc::vec::Vec;
use core::time::Duration;

/// Something the caller must do, in order. The list is complete for this version: a caller that leaves one out does not
/// speak WireGuard. A new action is therefore a breaking change.
#[derive(Debug)]
pub enum Action {
    /// Send a handshake message to the peer's endpoint, which the caller keeps.
    Send {
        /// The peer.
        peer: PeerId,
        /// The message.
        datagram: Vec<u8>,
        /// How often this handshake was tried before. From 1 on, the caller should resolve the endpoint's name again,
        /// and forget the source address that it used.
        attempt: u32,
    },
    /// Send a message (a cookie reply) back to the source of the datagram that was just handled.
    Reply {
        /// The message.
        datagram: Vec<u8>,
    },
    /// From now on, check the MACs of handshake messages with this, if that is done before
    /// [`Node::handle_judged`](super::Node::handle_judged); `None`: there is no private key.
    SetScreen(Option<Screen>),
    /// The datagram that was just handled is authentic: its source is now the peer's endpoint.
    Endpoint {
        /// The peer.
        peer: PeerId,
    },
    /// Packets with this opener's index belong to `peer` from now on.
    AddOpener {
        /// The peer.
        peer: PeerId,
        /// The receiving half.
        opener: Arc<Opener>,
        /// The sending half of a session that the peer has initiated, and that its first packet will confirm. A
        /// [`SetSealer`](Self::SetSealer) follows when [`Node::confirmed`](super::Node::confirmed) is called. If that
        /// call comes late, the answer to the packet must already be sealed with this: a peer that was restarted can
        /// no longer open packets of the session before.
        next: Option<Arc<Sealer>>,
    },
    /// Forget the opener with this index.
    RemoveOpener {
        /// Its index.
        index: u32,
    },
    /// Seal for `peer` with this from now on; `None`: nothing can be sealed, stage packets instead.
    SetSealer {
        /// The peer.
        peer: PeerId,
        /// The sending half.
        sealer: Option<Arc<Sealer>>,
    },
    /// Send the staged packets of `peer`; if there are none and `or_keepalive` is set, send a keepalive.
    Flush {
        /// The peer.
        peer: PeerId,
        /// Send a keepalive if nothing is staged: the first packet confirms the session.
        or_keepalive: bool,
    },
    /// Seal and send an empty packet; without a sealer, do nothing.
    Keepalive {
        /// The peer.
        peer: PeerId,
    },
    /// The handshake was given up: drop the staged packets.
    DropStaged {
        /// The peer.
        peer: PeerId,
    },
    /// Tell the application.
    Event(Event),
}

/// An event, reported when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A handshake completed.
    HandshakeComplete {
        /// The peer.
        peer: PeerId,
        /// The time from the first initiation of the attempt to its answer; `None`: the peer initiated.
        took: Option<Duration>,
    },
    /// There was no answer for 90 seconds (Rekey-Attempt-Time).
    HandshakeFailed {
        /// The peer.
        peer: PeerId,
    },
    /// Keys were erased after 3 × Reject-After-Time without a new handshake.
    SessionExpired {
        /// The peer.
        peer: PeerId,
    },
    /// The timestamps of the peer's initiations are older than one that it has used before, so its initiations are
    /// dropped as replays. This is reported when three initiations in a row advance in step with our clock, as the
    /// retries of a peer do. An attacker who has recorded such a row can replay it: do not report the event while the
    /// peer is heard.
    ClockBehind {
        /// The peer.
        peer: PeerId,
        /// How far its clock is behind its earlier value.
        by: Duration,
    },
}

impl Event {
    /// The peer that it is about.
    pub const fn peer(&self) -> PeerId {
        let (Self::HandshakeComplete { peer, .. }
        | Self::HandshakeFailed { peer }
        | Self::SessionExpired { peer }
        | Self::ClockBehind { peer, .. }) = self;
        *peer
    }
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Dropped {
    /// Not a handshake message of the right length and form.
    #[error("not a handshake message")]
    Malformed,
    /// No private key is set.
    #[error("no private key is set")]
    NoIdentity,
    /// The node is [stopped](super::Node::stop).
    #[error("the interface is down")]
    Stopped,
    /// MAC1 is wrong: the sender does not know our public key.
    #[error("MAC1 is wrong")]
    Mac1,
    /// Under load, answered with a cookie reply.
    #[error("under load: answered with a cookie")]
    CookieSent,
    /// Under load and over the limit even with a cookie.
    #[error("under load: too many messages from this source")]
    RateLimited,
    /// No handshake waits for this index.
    #[error("no handshake waits for this index")]
    UnknownIndex,
    /// Decryption of a field failed, or a Diffie-Hellman result was zero.
    #[error("authentication failed")]
    Forged,
    /// The initiator's static key belongs to no peer.
    #[error("the static key is no peer's")]
    UnknownPeer,
    /// The timestamp is not newer than the last one.
    #[error("the timestamp is not newer than the last")]
    Replayed,
    /// More than 50 initiations a second from one peer.
    #[error("more than 50 initiations a second")]
    Flood,
    /// An initiation to the second key, from a peer that had a handshake with the first key a moment ago.
    #[error("a handshake with the other key of this node was a moment ago")]
    OtherKey,
}

/// Why a peer was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddPeerError {
    /// It is our own public key.
    #[error("the peer has our own public key")]
    OwnKey,
    /// There is a peer with this key already.
    #[error("there is a peer with this public key already")]
    Exists(PeerId),
}
