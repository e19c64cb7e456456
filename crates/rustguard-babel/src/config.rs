//! What a speaker is told at its start.
use crate::{name::Name, wire::types::RouterId};
use core::net::Ipv4Addr;
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;

/// Routes that one neighbour may have in the table, unless configured otherwise.
pub const MAX_ROUTES: usize = 4_096;

/// How a [`Babel`](crate::Babel) is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's key: its hash is the link-local address and the greater part of the router-id.
    pub key: PublicKey,
    /// An IPv4 address of the interface. With one, IPv4 prefixes are announced with it as the next hop, which every Babel
    /// speaker understands; without, they are v4-via-v6 (RFC 9229).
    pub address_v4: Option<Ipv4Addr>,
    /// Who may originate what. The longest one that covers a prefix counts.
    pub pins: Vec<Pin>,
    /// Routes that one neighbour may have in the table; what is beyond is refused and counted.
    pub max_routes: usize,
    /// Whether a sequence number is kept, and which.
    pub start: Start,
    /// What this node is called, for people to read.
    pub name: Option<Name>,
}

impl Config {
    /// The defaults for an interface with this key.
    pub fn new(key: PublicKey) -> Self {
        Self { key, address_v4: None, pins: Vec::new(), max_routes: MAX_ROUTES, start: Start::Random, name: None }
    }
}

/// How the numbers of an earlier run are continued. Routers remember the best that a router-id ever announced; a speaker
/// that starts again with old numbers is not believed for minutes. Whoever has no numbers therefore takes a new router-id of its
/// key (two of its eight bytes are drawn).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing can be kept.
    Random,
    /// The first run of this key that keeps something.
    First,
    /// The bytes of the last [`Action::Keep`](rustguard_core::routing::Action::Keep).
    Stored(Vec<u8>),
}

/// A prefix, and everything in it, has one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The prefix.
    pub prefix: IpNet,
    /// Its origin, see [`RouterId::of_key`]. Nodes that share that key are as good.
    pub origin: RouterId,
}
