//! Babel (RFC 8966) without I/O: a routing engine for tunnels, wire-compatible with every speaker of version 2.
//!
//! [`Babel`] is a [`RoutingEngine`](rustguard_core::routing::RoutingEngine). Actions of peers, WireGuard and the host
//! go in as events, and packets and routes come out as actions. The speaker supports the round trip extension (RFC
//! 9616) and IPv4 via IPv6 (RFC 9229). It ignores source-specific routes (RFC 9079), as RFC 8966 requires of speakers
//! that do not support them.
//!
//! Two nodes, each with the other as its only peer. The first announces a prefix; the second learns it:
//!
//! ```
//! use rustguard_babel::{
//!     Babel, Config, PublicKey,
//!     rustguard_core::{
//!         node::PeerId,
//!         routing::{Action, Event, PeerRoutes, Role, RoutingEngine},
//!         time::Instant,
//!     },
//! };
//! use std::time::Duration;
//!
//! const PEER: PeerId = PeerId(1);
//! let mut now = Instant::from_nanos(0);
//! let mut nodes = [1, 2].map(|byte| Babel::new(Config::new(PublicKey([byte; 32])), &mut rand::rng()));
//! let peer = PeerRoutes { allowed_ips: vec!["10.0.0.0/8".parse()?], role: Role::Router };
//! for node in &mut nodes {
//!     node.handle(Event::Peer { peer: PEER, config: &peer }, now, &mut Vec::new());
//! }
//! let prefix = "10.1.0.0/16".parse()?;
//! nodes[0].handle(Event::Announce { prefix, metric: 0 }, now, &mut Vec::new());
//!
//! let mut learned = None;
//! let mut inbox: [Vec<Vec<u8>>; 2] = Default::default();
//! while learned.is_none() && now < Instant::from_nanos(2_000_000_000) {
//!     for node in 0..2 {
//!         let mut actions = Vec::new();
//!         nodes[node].handle(Event::Time, now, &mut actions);
//!         for packet in std::mem::take(&mut inbox[node]) {
//!             nodes[node].handle(Event::Packet { peer: PEER, packet: &packet }, now, &mut actions);
//!         }
//!         for action in actions {
//!             match action {
//!                 // A tunnel would encrypt it and send it to the peer.
//!                 Action::Send { packet, .. } => inbox[1 - node].push(packet),
//!                 Action::Install { prefix, hops } if node == 1 => learned = Some((prefix, hops)),
//!                 _ => {}
//!             }
//!         }
//!     }
//!     now = now + Duration::from_millis(1);
//! }
//! let (learned, hops) = learned.expect("less than a second has passed");
//! assert_eq!((learned, hops.pick(0, |_| true)), (prefix, Some(PEER)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | [`wire`] | packets: the IPv6 and UDP around them, reading, writing |
//! | [`name`] | names of nodes |
//! | [`params`] | all constants |
//! | [`config`], [`report`] | the configuration and the reports of a speaker |
#![forbid(unsafe_code)]
mod client;
pub mod config;
mod filter;
mod jitter;
pub mod name;
mod names;
mod neighbour;
pub mod params;
pub mod report;
mod speaker;
mod table;
pub mod wire;

pub use config::{Config, Pin, Start};
pub use ipnet;
pub use name::Name;
pub use rustguard_core;
pub use rustguard_crypto::x25519::PublicKey;
pub use speaker::Babel;
pub use wire::types::{Announcement, RouterId, Seqno};

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
