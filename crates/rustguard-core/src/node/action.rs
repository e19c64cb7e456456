//! What a node wants done, what it reports, and why it drops a message.
use crate::{
    cookie::Screen,
    peer::PeerId,
    session::{Opener, Sealer},
    sync::Arc,
};
use alloc::vec::Vec;
use core::time::Duration;

/// Something the caller must do, in order. The list is complete for this version: a caller that leaves one out does not
/// speak WireGuard, so that a new action is a breaking change.
#[derive(Debug)]
pub enum Action {
    /// Send a handshake message to the peer's endpoint, which the caller keeps.
    Send {
        /// The peer.
        peer: PeerId,
        /// The message.
        datagram: Vec<u8>,
        /// How often this handshake was tried before. From 1 on the caller should resolve the endpoint's name again,
        /// and forget the source address that it used.
        attempt: u32,
    },
    /// Send a message back to where the datagram just handled came from (cookie reply).
    Reply {
        /// The message.
        datagram: Vec<u8>,
    },
    /// Judge the MACs of handshake messages with this from now on, where that is done before
    /// [`Node::handle_judged`](super::Node::handle_judged); `None`: there is no private key.
    SetScreen(Option<Screen>),
    /// The datagram just handled was authentic: its source is the peer's endpoint now.
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
        /// The sending half of a session that the peer has initiated, which its first packet confirms: a
        /// [`SetSealer`](Self::SetSealer) follows when [`Node::confirmed`](super::Node::confirmed) is called.
        /// Where that takes a while, what answers the packet has to be sealed with this already, since a peer
        /// that was restarted can no longer open what is sealed in the session before.
        next: Option<Arc<Sealer>>,
    },
    /// Forget the opener with this index.
    RemoveOpener {
        /// Its index.
        index: u32,
    },
    /// Seal for `peer` with this from now on; `None`: nothing can be sealed, stage instead.
    SetSealer {
        /// The peer.
        peer: PeerId,
        /// The sending half.
        sealer: Option<Arc<Sealer>>,
    },
    /// Send what is staged for `peer`; if nothing is and `or_keepalive`, a keepalive.
    Flush {
        /// The peer.
        peer: PeerId,
        /// Send a keepalive if nothing is staged: the first packet confirms the session.
        or_keepalive: bool,
    },
    /// Seal and send an empty packet; with no sealer do nothing.
    Keepalive {
        /// The peer.
        peer: PeerId,
    },
    /// The handshake was given up: drop what is staged.
    DropStaged {
        /// The peer.
        peer: PeerId,
    },
    /// Tell the application.
    Event(Event),
}

/// What happened, as it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A handshake completed.
    HandshakeComplete {
        /// The peer.
        peer: PeerId,
        /// From the first initiation of the attempt to its answer; `None` where the peer initiated.
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
    /// The peer initiates with timestamps that are older than one that it has used before, so that its initiations are
    /// taken for replays. It is reported where three initiations in a row advance in step with our clock, as those
    /// of a peer that tries again do. Somebody who has recorded such a row can replay it: do not report it while
    /// the peer is heard.
    ClockBehind {
        /// The peer.
        peer: PeerId,
        /// By how much its clock is behind what it was.
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
    /// The initiator's static key is no peer.
    #[error("the static key is no peer's")]
    UnknownPeer,
    /// The timestamp is not newer than the last one.
    #[error("the timestamp is not newer than the last")]
    Replayed,
    /// More than 50 initiations a second from one peer.
    #[error("more than 50 initiations a second")]
    Flood,
    /// An initiation to the second key, from a peer that had a handshake with the first a moment ago.
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
