//! Babel (RFC 8966) without I/O: a routing engine for tunnels, wire-compatible with every speaker of version 2.
//!
//! [`Babel`] is a [`RoutingEngine`](rustguard_core::routing::RoutingEngine): what peers, WireGuard and the host do goes in as
//! events, packets and routes come out as actions. The round trip extension (RFC 9616) and IPv4 via IPv6 (RFC 9229) are
//! spoken; source-specific routes (RFC 9079) are ignored as they must be by who does not speak them.
//!
//! | Module | What it does |
//! |---|---|
//! | [`wire`] | packets: the IPv6 and UDP around them, reading, writing |
//! | [`name`] | what nodes are called |
//! | [`params`] | all constants |
//! | [`config`], [`report`] | what goes into a speaker, and what it tells |
#![forbid(unsafe_code)]
mod client;
pub mod config;
mod filter;
mod jitter;
pub mod name;
mod neighbour;
pub mod params;
pub mod report;
mod speaker;
mod table;
pub mod wire;

pub use config::{Config, Pin, Start};
pub use name::Name;
pub use speaker::Babel;
pub use wire::types::RouterId;
