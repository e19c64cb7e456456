//! Choosing next hops: the interface of routing engines, the simplest engine, [`StaticRoutes`], [`Members`], for
//! prefixes that several peers have, and [`Located`], in which another engine says where these peers are.
//!
//! An engine never sees data packets. Events come in with the time, actions go out, and [`RoutingEngine::deadline`]
//! says when the engine wants to be called again. It has no clock, no socket and no global state: the same events give
//! the same actions.
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
mod located;
mod members;
mod next_hops;
mod prefixes;
mod report;
mod table;

use crate::{peer::PeerId, time::Instant};
use alloc::vec::Vec;
use core::time::Duration;
pub use fixed::StaticRoutes;
use ipnet::IpNet;
pub use located::Located;
pub use members::Members;
pub use next_hops::{MAX_MEMBERS, MAX_WEIGHT, NextHop, NextHops};
pub use report::{Announcement, Neighbour, OriginName, RefusedCount, Report, Route};
pub use table::{RouteTable, Routes, Target};

/// Decides which peer gets the packets for a prefix, and which sources a peer may present.
///
/// An engine must not panic on a packet, whatever is in it, and must bound what peers can make it remember.
pub trait RoutingEngine {
    /// Handles an event and appends the actions to take, in order. `now` is not earlier than at the last call; an
    /// engine treats an earlier time as the same moment.
    fn handle(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>);

    /// When [`Event::Time`] is due at the latest, unless something else happens first. `None`: the engine waits for
    /// nothing.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// A function that recognises the engine's own packets among those that come out of the tunnel. It gets an IP
    /// packet. The packets that it claims go to the engine and nowhere else. The method is called once; workers
    /// then call the function for every packet that could be one. `None`: the engine does not talk to peers.
    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        None
    }

    /// What allowed IPs are to this engine.
    fn allowed_ips(&self) -> AllowedIpsMeaning {
        AllowedIpsMeaning::Limits
    }

    /// The host is about to stop. The engine may say goodbye, so that peers need not wait for a timeout. No event
    /// follows.
    fn leave(&mut self, _now: Instant, _out: &mut Vec<Action>) {}

    /// The engine's state, for reports.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// What a peer's allowed IPs are to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedIpsMeaning {
    /// The most that the peer may ever carry. The engine learns elsewhere where a prefix is.
    Limits,
    /// The peer's addresses and the networks behind it, as in WireGuard. What the engine permits lies in them, so
    /// nothing else limits what the peer may send.
    Addresses,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer was added, or its configuration changed.
    Peer {
        /// The peer.
        peer: PeerId,
        /// Its configuration.
        config: &'a PeerRoutes,
    },
    /// A peer is gone. The engine forgets it and undoes what it installed for it.
    PeerRemoved {
        /// The peer.
        peer: PeerId,
    },
    /// A packet that the engine claims, authenticated as this peer's.
    Packet {
        /// The peer.
        peer: PeerId,
        /// The whole IP packet.
        packet: &'a [u8],
    },
    /// WireGuard noticed something about a peer.
    Signal {
        /// The peer.
        peer: PeerId,
        /// What it noticed.
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
    /// These are the networks in which the peers have their addresses, in place of any before: see [`Role::Server`].
    Pools {
        /// The prefixes.
        prefixes: &'a [IpNet],
    },
    /// Only time has passed.
    Time,
}

/// What the configuration says about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRoutes {
    /// The most that this peer may carry, in both directions. A static engine takes it as the peer's addresses.
    pub allowed_ips: Vec<IpNet>,
    /// Its role.
    pub role: Role,
}

/// What a peer is to the routing protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It speaks the routing protocol.
    Router,
    /// It is a plain WireGuard peer, such as a phone: its allowed IPs are its addresses, and this node announces them
    /// for it.
    Client,
    /// It is a member of a network: as a client, and every server that hears it is one of its servers.
    Member,
    /// It is a server of a network: it speaks the routing protocol, and its allowed IPs are its addresses and the
    /// networks behind it. It may say of every address in a pool ([`Event::Pools`]) that it reaches it. Members and
    /// other servers are reached through it where they cannot be reached directly, each in its own session.
    Server,
}

impl Role {
    /// Whether the peer speaks the routing protocol.
    pub const fn is_speaker(self) -> bool {
        matches!(self, Self::Router | Self::Server)
    }

    /// Whether the peer is reached through servers too.
    pub const fn has_relays(self) -> bool {
        matches!(self, Self::Member | Self::Server)
    }
}

/// What WireGuard knows about a peer without asking. Signals may be merged: one [`Signal::Heard`] or
/// [`Signal::Carried`] in 200 ms says enough, and comes so late at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// An authenticated packet came, of any kind.
    Heard {
        /// When data last came, if any did since the last signal. A keepalive says that a session is alive; data says
        /// that the peer chose this node to send it to.
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
    /// A round trip was measured: of a handshake, or of an answer to [`Action::Ask`].
    RoundTrip(Duration),
    /// Packets wait for a session with the peer.
    SessionWanted,
    /// What is sent to the peer goes through another one from now on, or no longer.
    Relayed(bool),
}

/// What an engine wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Send this IP packet to the peer, through the tunnel.
    Send {
        /// The peer.
        peer: PeerId,
        /// The whole IP packet.
        packet: Vec<u8>,
    },
    /// Packets for this prefix, unless a longer one matches, take these next hops from now on, instead of any before.
    Install {
        /// The prefix.
        prefix: IpNet,
        /// The peers that get them; [unreachable](NextHops::UNREACHABLE): no peer does, even if a shorter prefix is
        /// known.
        hops: NextHops,
    },
    /// Nothing is installed for this prefix any more.
    Remove {
        /// The prefix.
        prefix: IpNet,
    },
    /// Sealed datagrams for the peers with addresses in this prefix are forwarded to these next hops from now on, where
    /// such a peer is not reached directly. Of an engine that never says so, what is [installed](Self::Install)
    /// holds for datagrams too.
    Locate {
        /// The prefix.
        prefix: IpNet,
        /// The peers that pass datagrams on; `None`: nothing is known any more.
        hops: Option<NextHops>,
    },
    /// The peer may present sources of this prefix from now on.
    Permit {
        /// The peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
        /// Whether others with a longer prefix take precedence. Replaces the rule of an earlier permission.
        rule: SourceRule,
    },
    /// The permission for this peer and prefix ends.
    Forbid {
        /// The peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
    },
    /// The peer became usable as a neighbour, or ceased to be.
    Neighbour {
        /// The peer.
        peer: PeerId,
        /// The cost of the link to it in the engine's metric; `None`: unusable.
        cost: Option<u16>,
    },
    /// Whether a peer that does not speak the routing protocol can be used: it answers. One that does not is passed
    /// over where there is another next hop, although there may be a session with it. At first, every such peer can
    /// be used.
    Usable {
        /// The peer.
        peer: PeerId,
        /// Whether it can be used.
        usable: bool,
    },
    /// Tell [signals](Signal) of this peer while there is traffic with it, or no longer. An engine that
    /// [claims](RoutingEngine::claims) packets is told those of every peer without this. A peer without traffic
    /// costs nothing; of one with traffic, [`Signal::Unanswered`] comes within half a second, and again while more
    /// is sent.
    Watch {
        /// The peer.
        peer: PeerId,
        /// Whether its signals are told.
        on: bool,
    },
    /// Ask the peer, inside the session with it, whether it is there. An answer is told as [`Signal::RoundTrip`].
    /// Without a session a handshake begins, and its end is told as [`Signal::HandshakeComplete`].
    Ask {
        /// The peer.
        peer: PeerId,
    },
    /// Store these bytes where a restart finds them, in place of any stored before. The engine's constructor takes them
    /// back.
    Keep {
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// When a permitted source is accepted from a peer: if one of its prefixes that cover the source is
/// [`SourceRule::Any`], or is [`SourceRule::Longest`] and no other peer has a longer prefix (of either rule) that
/// covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRule {
    /// Cryptokey routing: the longest prefix decides whose source it is.
    Longest,
    /// A router's: traffic may come by every neighbour that announces a way back.
    Any,
}
