//! Choosing next hops: a seat for any routing engine, and the simplest one, [`StaticRoutes`].
//!
//! An engine never sees data packets. Events come in with the time, actions go out, and [`RoutingEngine::deadline`] says
//! when it wants to be asked again. It has no clock, no socket and no global state: the same events give the same actions.
//!
//! ```
//! use rustguard_core::{node::PeerId, routing::{Action, Event, PeerRoutes, Role, RoutingEngine, StaticRoutes}, time::Instant};
//!
//! let mut engine = StaticRoutes::default();
//! let config = PeerRoutes { allowed_ips: vec!["10.1.0.0/16".parse()?], role: Role::Client };
//! let mut actions = Vec::new();
//! engine.handle(Event::Peer { peer: PeerId(7), config: &config }, Instant::from_nanos(0), &mut actions);
//! assert!(matches!(&actions[1], Action::Install { hops, .. } if hops.pick(0, |_| true) == Some(PeerId(7))));
//! # Ok::<(), ipnet::AddrParseError>(())
//! ```
mod fixed;
mod next_hops;
mod prefixes;
mod report;
mod table;

use crate::{peer::PeerId, time::Instant};
use alloc::vec::Vec;
use core::time::Duration;
pub use fixed::StaticRoutes;
use ipnet::IpNet;
pub use next_hops::{MAX_MEMBERS, MAX_WEIGHT, NextHop, NextHops};
pub use report::{Announcement, Neighbour, OriginName, RefusedCount, Report, Route};
pub use table::{RouteTable, Routes, Target};

/// Decides who gets the packets for which prefix, and which sources a peer may present.
///
/// An engine must not panic on a packet, whatever is in it, and must bound what peers can make it remember.
pub trait RoutingEngine {
    /// Takes note of what happened and says what to do about it, in order. `now` is not earlier than at the last call;
    /// if it is after all, the engine treats it as the same moment.
    fn handle(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>);

    /// When [`Event::Time`] is due at the latest, unless something else happens first. `None`: the engine waits for nothing.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Which of the packets (an IP packet, from its version field on) that come out of the tunnel are the engine's own:
    /// these are handed to it and to nobody else. Asked once; workers then call the function for every packet that could
    /// be one. `None`: the engine does not talk to peers.
    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        None
    }

    /// The host is about to go away: last words, for others not to have to wait for silence. No event follows.
    fn leave(&mut self, _now: Instant, _out: &mut Vec<Action>) {}

    /// What there is to tell people.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// What an engine is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer was added, or its configuration changed.
    Peer {
        /// Which.
        peer: PeerId,
        /// What it may carry, and what it is.
        config: &'a PeerRoutes,
    },
    /// A peer is gone. The engine forgets it and undoes what it installed for it.
    PeerRemoved {
        /// Which.
        peer: PeerId,
    },
    /// A packet that the engine claims, authenticated as this peer's.
    Packet {
        /// Whose.
        peer: PeerId,
        /// The whole IP packet.
        packet: &'a [u8],
    },
    /// WireGuard noticed something about a peer.
    Signal {
        /// About whom.
        peer: PeerId,
        /// What.
        signal: Signal,
    },
    /// Announce this prefix as reachable through this host (its own addresses, or routes of another protocol).
    Announce {
        /// The prefix.
        prefix: IpNet,
        /// How far it is from this host, in the engine's metric; 0 for the host's own.
        metric: u16,
    },
    /// Stop announcing this prefix.
    Withdraw {
        /// The prefix, exactly as it was announced.
        prefix: IpNet,
    },
    /// Nothing but that time has passed.
    Time,
}

/// What the configuration says about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRoutes {
    /// The upper bound of what this peer may carry, both ways. A static engine takes it for where things are.
    pub allowed_ips: Vec<IpNet>,
    /// What the peer is.
    pub role: Role,
}

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It speaks the routing protocol.
    Router,
    /// A plain WireGuard peer (a phone): its allowed IPs are where it is, and this node announces them for it.
    Client,
}

/// What WireGuard knows about a peer without asking. Signals may be merged: one [`Signal::Heard`] or
/// [`Signal::Carried`] in 200 ms says enough, and comes so late at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// An authenticated packet came, of any kind.
    Heard {
        /// When data last came, if any did since the last signal. A keepalive says that a session is alive; data says that
        /// the peer chose this node to send it to.
        data: Option<Instant>,
    },
    /// Data passed, in either direction.
    Carried,
    /// Data was sent some time ago (half a second is good), and nothing was heard since.
    Unanswered,
    /// A handshake is complete.
    HandshakeComplete,
    /// A handshake got no answer.
    HandshakeFailed,
    /// A round trip was measured, of a handshake for example.
    RoundTrip(Duration),
}

/// What an engine wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this IP packet to the peer, through the tunnel.
    Send {
        /// To whom.
        peer: PeerId,
        /// The whole IP packet.
        packet: Vec<u8>,
    },
    /// Packets for this prefix, unless a longer one matches, take these next hops from now on, instead of any before.
    Install {
        /// The prefix.
        prefix: IpNet,
        /// Who gets them; [unreachable](NextHops::UNREACHABLE) means nobody, also when a shorter prefix is known.
        hops: NextHops,
    },
    /// Nothing is installed for this prefix any more.
    Remove {
        /// The prefix.
        prefix: IpNet,
    },
    /// The peer may present sources of this prefix from now on.
    Permit {
        /// Which peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
        /// Whether others with a longer prefix take precedence. Replaces the rule of an earlier permission.
        rule: SourceRule,
    },
    /// The permission for this peer and prefix ends.
    Forbid {
        /// Which peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
    },
    /// The peer became usable as a neighbour, or ceased to be.
    Neighbour {
        /// Which peer.
        peer: PeerId,
        /// The cost of the link to it in the engine's metric; `None`: unusable.
        cost: Option<u16>,
    },
    /// Keep these bytes where a restart finds them, instead of any kept before; the engine's constructor takes them back.
    Keep {
        /// What to keep.
        bytes: Vec<u8>,
    },
}

/// When a permitted source is accepted from a peer: if one of its prefixes that cover the source is [`SourceRule::Any`],
/// or is [`SourceRule::Longest`] and no other peer has a longer prefix (of either rule) that covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRule {
    /// Cryptokey routing: the longest prefix decides whose source it is.
    Longest,
    /// A router's: traffic may come by every neighbour that announces a way back.
    Any,
}
