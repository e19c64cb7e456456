//! Choosing next hops: the interface of routing engines, and three engines. [`StaticRoutes`] is the simplest.
//! [`Members`] is for prefixes that several peers have. [`Located`] adds another engine that says where these peers
//! are.
//!
//! An engine never sees data packets. Its input is events with the time, its output is actions, and
//! [`RoutingEngine::deadline`] says when the engine has to be called again. It has no clock, no socket and no global
//! state: the same events give the same actions.
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
/// An engine must not panic on any packet, and must bound what peers can make it remember.
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
    /// packet. The packets that it claims go to the engine and nowhere else. The method is called once; workers then
    /// call the function for every packet that could be one. `None`: the engine does not talk to peers.
    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        None
    }

    /// How this engine interprets allowed IPs.
    fn allowed_ips(&self) -> AllowedIpsMeaning {
        AllowedIpsMeaning::Limits
    }

    /// The host is about to stop. The engine may tell its peers, so that they need not wait for a timeout. No event
    /// follows.
    fn leave(&mut self, _now: Instant, _out: &mut Vec<Action>) {}

    /// The engine's state, for reports.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// How an engine interprets a peer's allowed IPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedIpsMeaning {
    /// The most that the peer may ever carry. The engine learns from other sources where a prefix is.
    Limits,
    /// The peer's addresses and the networks behind it, as in WireGuard. All permissions of the engine lie within them,
    /// so nothing else limits what the peer may send.
    Addresses,
}

/// The input of an engine.
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
    /// A peer was removed. The engine forgets it and undoes what it installed for it.
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
    /// WireGuard has news of a peer.
    Signal {
        /// The peer.
        peer: PeerId,
        /// The news.
        signal: Signal,
    },
    /// Announce this prefix as reachable through this host (its own addresses, or routes of another protocol).
    Announce {
        /// The prefix.
        prefix: IpNet,
        /// How far it is from this host, in the engine's metric; 0 for the host's own prefixes.
        metric: u16,
    },
    /// Stop announcing this prefix.
    Withdraw {
        /// The prefix, exactly as it was announced.
        prefix: IpNet,
    },
    /// These are the networks in which the peers have their addresses. They replace earlier ones: see [`Role::Server`].
    Pools {
        /// The prefixes.
        prefixes: &'a [IpNet],
    },
    /// Only time has passed.
    Time,
}

/// The configuration of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRoutes {
    /// The most that this peer may carry, in both directions. A static engine treats it as the peer's addresses.
    pub allowed_ips: Vec<IpNet>,
    /// Its role.
    pub role: Role,
}

/// The role of a peer in the routing protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It speaks the routing protocol.
    Router,
    /// It is a plain WireGuard peer, such as a phone: its allowed IPs are its addresses, and this node announces them
    /// on its behalf.
    Client,
    /// It is a member of a network: like a client, but every server that hears it is one of its servers.
    Member,
    /// It is a server of a network: it speaks the routing protocol, and its allowed IPs are its addresses and the
    /// networks behind it. It may claim to reach any address in a pool ([`Event::Pools`]). Members and other servers
    /// that cannot be reached directly are reached through it, each in its own session.
    Server,
    /// It is a server that has the same clients as this node: packets for a client follow it there, and may come from
    /// there. Of no other server is a claim to have a client believed.
    Gateway,
}

impl Role {
    /// Whether the peer speaks the routing protocol.
    pub const fn is_speaker(self) -> bool {
        matches!(self, Self::Router | Self::Server | Self::Gateway)
    }

    /// Whether the peer can also be reached through servers.
    pub const fn has_relays(self) -> bool {
        matches!(self, Self::Member | Self::Server | Self::Gateway)
    }

    /// Whether the peer is a server of a network.
    pub const fn is_server(self) -> bool {
        matches!(self, Self::Server | Self::Gateway)
    }
}

/// Information that WireGuard has about a peer without asking. Signals may be merged: one [`Signal::Heard`] or
/// [`Signal::Carried`] in 200 ms is enough. It is delayed by at most this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// An authenticated packet of any kind arrived.
    Heard {
        /// When data last arrived, if any did since the last signal. A keepalive shows that a session is alive; data
        /// shows that the peer sends its traffic to this node.
        data: Option<Instant>,
    },
    /// Data passed, in either direction.
    Carried,
    /// Data was sent some time ago (half a second is a good value), and nothing was heard since.
    Unanswered,
    /// A handshake is complete.
    HandshakeComplete,
    /// A handshake got no answer.
    HandshakeFailed,
    /// A round trip was measured: of a handshake, or of an answer to [`Action::Ask`].
    RoundTrip(Duration),
    /// Packets wait for a session with the peer.
    SessionWanted,
    /// From now on, datagrams to the peer go through another peer, or no longer do.
    Relayed(bool),
}

/// The output of an engine, in order.
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
    /// From now on, packets for this prefix take these next hops, unless a longer prefix matches. Replaces earlier next
    /// hops.
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
    /// From now on, sealed datagrams for peers with addresses in this prefix are forwarded to these next hops, unless
    /// such a peer is reached directly. If an engine never gives this action, the [installed](Self::Install) next hops
    /// are used for datagrams too.
    Locate {
        /// The prefix.
        prefix: IpNet,
        /// The peers that forward datagrams; `None`: no way is known any more.
        hops: Option<NextHops>,
    },
    /// From now on, the peer may present sources of this prefix.
    Permit {
        /// The peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
        /// Whether other peers with a longer prefix take precedence. Replaces the rule of an earlier permission.
        rule: SourceRule,
    },
    /// The permission for this peer and prefix ends.
    Forbid {
        /// The peer.
        peer: PeerId,
        /// The prefix.
        prefix: IpNet,
    },
    /// The peer became usable as a neighbour, or is no longer usable.
    Neighbour {
        /// The peer.
        peer: PeerId,
        /// The cost of the link to it in the engine's metric; `None`: unusable.
        cost: Option<u16>,
    },
    /// Whether a peer that does not speak the routing protocol is usable, because it answers. An unusable one is
    /// skipped if there is another next hop, even if there is a session with it. At first, every such peer is usable.
    Usable {
        /// Whether it is usable.
        peer: PeerId,
        /// Whether it can be used.
        usable: bool,
    },
    /// Start or stop reporting [signals](Signal) of this peer while there is traffic with it. An engine that
    /// [claims](RoutingEngine::claims) packets gets the signals of every peer without this. A peer without traffic
    /// costs nothing; for one with traffic, [`Signal::Unanswered`] comes within half a second, and again while more is
    /// sent.
    Watch {
        /// The peer.
        peer: PeerId,
        /// Whether its signals are reported.
        on: bool,
    },
    /// Ask the peer, inside the session with it, whether it is there. An answer is reported as [`Signal::RoundTrip`].
    /// Without a session a handshake begins, and its completion is reported as [`Signal::HandshakeComplete`].
    Ask {
        /// The peer.
        peer: PeerId,
    },
    /// Store these bytes so that they survive a restart, replacing earlier ones. They are passed to the engine's
    /// constructor.
    Keep {
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// When a permitted source is accepted from a peer. One of the peer's prefixes that cover the source must be
/// [`SourceRule::Any`], or be [`SourceRule::Longest`] while no other peer has a longer prefix (of either rule) that
/// covers the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRule {
    /// Cryptokey routing: the longest prefix decides which peer may use a source.
    Longest,
    /// For routers: traffic may come from every neighbour that announces a way back.
    Any,
}
