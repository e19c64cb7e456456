//! Datagrams that a peer, the relay, forwards: whole WireGuard messages that are sealed for another node.
//!
//! A session needs some way for its datagrams. One way leads through a peer of both ends. Each message of the session,
//! including handshakes, is then the text of a transport message in the session with that peer. The relay opens this
//! outer layer, reads the destination, and seals the message for the next hop. It cannot open the inner layer. It can
//! only do what any router on the way can do: drop, delay, reorder and repeat.
//!
//! ```text
//! byte
//!  0     5
//!  1     "RG", then the version, 1
//!  4     how many relays may still forward it
//!  5     3 zeros
//!  8     the name of the member that it is for
//! 16     the name of the member that it is from
//! 24     a WireGuard message
//! ```
//!
//! It is a [control message](crate::control_message). There is no padding, because the message inside has its own.
//!
//! # Decisions of a relay
//! [`decide`] is a pure function. A relay forwards between its own peers only, and only messages whose named source is
//! the peer that sent them. A router (of a routing engine) may forward for others, so that relays can be chained; loops
//! end with the hop limit. For each received message, at most one of the same length is sent, and there is never an
//! answer: no member can make others send more than it sends itself.

use crate::{
    bytes::{field, put},
    control_message::{self, Kind},
    peer::PeerId,
    wire::DATA_MIN_LEN,
};
use rustguard_crypto::{hash, x25519::PublicKey};

/// Bytes before the message.
pub const HEADER_LEN: usize = 24;
/// How many relays may follow one another. A header that allows more counts as one that allows this many.
pub const MOST_RELAYS: u8 = 8;

const LABEL: &[u8] = b"RustGuard forward v1 name";
/// The shortest message of WireGuard.
const SHORTEST: usize = HEADER_LEN + DATA_MIN_LEN;

/// The name by which relays know a member: the first 8 bytes of a hash of its public key.
///
/// An attacker who makes keys until two have the same name (2³² tries) gains nothing: the later of two peers has no
/// name as long as the first one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name([u8; 8]);

impl Name {
    /// The name of the member with this public key.
    pub fn of(key: &PublicKey) -> Self {
        Self(*field(&hash::hash(&[LABEL, &key.0]), 0))
    }

    /// The bytes, as in a header.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// The header before a forwarded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many relays may still forward it.
    pub relays: u8,
    /// The destination.
    pub to: Name,
    /// The source.
    pub from: Name,
}

impl Header {
    /// For a message from one member to another, through at most [`MOST_RELAYS`] relays.
    pub const fn new(to: Name, from: Name) -> Self {
        Self { relays: MOST_RELAYS, to, from }
    }

    /// Reads the header of a text. `None` for texts of other kinds or versions, and for texts that are too short to
    /// have a message.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let header = text.first_chunk::<HEADER_LEN>().filter(|_| text.len() >= SHORTEST)?;
        let well_formed = Kind::of(header) == Some(Kind::Forwarded) && header[5..8] == [0; 3];
        well_formed.then(|| Self { relays: header[4], to: Name(*field(header, 8)), from: Name(*field(header, 16)) })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        control_message::Header::new(Kind::Forwarded).put(&mut header);
        header[4] = self.relays;
        put(&mut header, 8, &self.to.0);
        put(&mut header, 16, &self.from.0);
        header
    }
}

/// The peer in whose session a text came.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The peer.
    pub peer: PeerId,
    /// It is a router of a routing engine, and may forward for others.
    pub router: bool,
}

/// A relay's knowledge of its peers.
pub trait Members {
    /// Whether this is a name of this node. It has two while it changes its key.
    fn is_own(&self, name: &Name) -> bool;
    /// The peer with this name.
    fn peer(&self, name: &Name) -> Option<PeerId>;
    /// Whether this node forwards.
    fn forwards(&self) -> bool;
    /// The next peer on the way to this one: itself, or a router. `None` if there is no way.
    fn next(&self, to: PeerId) -> Option<PeerId>;
}

/// How to treat a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The message behind the header is for this node.
    Own {
        /// The original sender, according to the peer that forwarded it.
        from: PeerId,
    },
    /// The text is forwarded with this header.
    Next {
        /// The peer to which it is forwarded.
        to: PeerId,
        /// The header.
        header: Header,
    },
}

/// Why a text is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another version, a text that is too short, or bytes that have to be zero.
    #[error("not a forwarded message of this version")]
    Malformed,
    /// This node does not forward.
    #[error("forwarding is off")]
    Off,
    /// The sender is neither the one that the header names nor a router, or the header names no peer as the source.
    #[error("the sender may not send for this name")]
    Sender,
    /// The destination is no peer.
    #[error("for nobody who is a peer")]
    Unknown,
    /// Too many relays have forwarded it already.
    #[error("forwarded too often")]
    Relays,
    /// There is no way to the destination, or only back to the sender.
    #[error("no way to the peer")]
    NoWay,
}

/// Decides about the text of a transport message from `sender`.
///
/// # Errors
/// Why it is dropped.
pub fn decide(text: &[u8], sender: &Sender, members: &impl Members) -> Result<Step, Refused> {
    let header = Header::parse(text).ok_or(Refused::Malformed)?;
    let own = members.is_own(&header.to);
    if !own && !members.forwards() {
        return Err(Refused::Off);
    }
    let from = members.peer(&header.from).ok_or(Refused::Sender)?;
    if own {
        // Any peer may forward to this node: the session inside authenticates the message. But no peer is its own
        // relay.
        return if from == sender.peer { Err(Refused::Sender) } else { Ok(Step::Own { from }) };
    }
    if from != sender.peer && !sender.router {
        return Err(Refused::Sender);
    }
    let to = members.peer(&header.to).ok_or(Refused::Unknown)?;
    let relays = header.relays.min(MOST_RELAYS).checked_sub(1).ok_or(Refused::Relays)?;
    if to == from || to == sender.peer {
        return Err(Refused::NoWay);
    }
    let next = members.next(to).filter(|next| *next != sender.peer && *next != from).ok_or(Refused::NoWay)?;
    Ok(Step::Next { to: next, header: Header { relays, ..header } })
}

#[cfg(test)]
mod tests;
