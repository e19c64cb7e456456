//! The configuration of a speaker at its start.
use crate::{name::Name, wire::types::RouterId};
use core::net::Ipv4Addr;
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;

/// The default limit of routes from one neighbour in the table.
pub const MAX_ROUTES: usize = 4_096;

/// The configuration of a [`Babel`](crate::Babel).
///
/// ```
/// use rustguard_babel::{Config, Name, PublicKey, Start};
///
/// let config = Config::new(PublicKey([7; 32]))
///     .address_v4("10.1.0.7".parse().ok())
///     .name("gw-1".parse::<Name>().ok())
///     .start(Start::First);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) key: PublicKey,
    pub(crate) address_v4: Option<Ipv4Addr>,
    pub(crate) pins: Vec<Pin>,
    pub(crate) max_routes: usize,
    pub(crate) start: Start,
    pub(crate) name: Option<Name>,
}

impl Config {
    /// The defaults for an interface with this key. A hash of the key is the link-local address and most of the
    /// router-id.
    pub fn new(key: PublicKey) -> Self {
        Self { key, address_v4: None, pins: Vec::new(), max_routes: MAX_ROUTES, start: Start::Random, name: None }
    }

    /// An IPv4 address of the interface. With one, IPv4 prefixes are announced with it as the next hop, which every
    /// Babel speaker understands. Without one, they are announced as IPv4 via IPv6 (RFC 9229).
    #[must_use]
    pub fn address_v4(self, address_v4: Option<Ipv4Addr>) -> Self {
        Self { address_v4, ..self }
    }

    /// The pins: which node may originate a prefix. If several pins cover a prefix, those with the longest prefix
    /// count.
    #[must_use]
    pub fn pins(self, pins: impl IntoIterator<Item = Pin>) -> Self {
        Self { pins: pins.into_iter().collect(), ..self }
    }

    /// How many routes one neighbour may have in the table, [`MAX_ROUTES`] by default. Updates beyond that are refused
    /// and counted.
    #[must_use]
    pub fn max_routes(self, max_routes: usize) -> Self {
        Self { max_routes, ..self }
    }

    /// Whether sequence numbers are stored, and the last stored state. [`Start::Random`] by default.
    #[must_use]
    pub fn start(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// The name of this node, for people to read. By default it has none.
    #[must_use]
    pub fn name(self, name: Option<Name>) -> Self {
        Self { name, ..self }
    }
}

/// How the sequence numbers of an earlier run are continued.
///
/// Other routers remember the best announcement of each router-id. For minutes, they do not believe a speaker that
/// starts again with old numbers. A speaker without stored numbers therefore takes another router-id of its key: two of
/// the eight bytes are random.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// Nothing can be stored.
    Random,
    /// The first run of this key that stores its numbers.
    First,
    /// The bytes of the last [`Action::Keep`](rustguard_core::routing::Action::Keep).
    Stored(Vec<u8>),
}

/// A prefix, and everything in it, may only be originated by one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// The prefix.
    pub prefix: IpNet,
    /// Its origin, see [`RouterId::of_key`]. All nodes with the same key match.
    pub origin: RouterId,
}

impl Pin {
    /// Pins the prefix to the origin.
    pub const fn new(prefix: IpNet, origin: RouterId) -> Self {
        Self { prefix, origin }
    }
}
