//! The settings of a device. [`Builder`](crate::Builder) fills them, and the control thread uses them.

use crate::{
    config::{SourceCheck, Update},
    filter::Filter,
    foreign::ForeignProtocol,
    kernel::{LearnedTables, Redistribute},
    policy::seat::Seat,
    relay::Relay,
    shared::own_protocol::OwnProtocol,
    status::Counter,
};
use rustguard_core::routing::RoutingEngine;
use std::{net::IpAddr, sync::Arc};

/// The default MTU in bytes, which is wg-quick's for an Ethernet underlay: 1,500 less IPv6 (40), UDP (8) and WireGuard
/// (32).
pub const DEFAULT_MTU: u32 = 1420;

/// An embedder's routing engine.
pub(crate) type Engine = Box<dyn RoutingEngine + Send>;
/// A function that stores the bytes that an engine needs after a restart.
pub(crate) type StateSink = Box<dyn FnMut(&[u8]) + Send>;
/// The embedder's own counters: see [`Builder::counters`](crate::Builder::counters).
pub(crate) type Counters = Box<dyn Fn() -> Vec<Counter> + Send>;

/// The settings that the control thread and the workers get once, at the start.
pub(crate) struct Settings {
    /// The first configuration.
    pub(crate) update: Update,
    /// The UDP ports beyond the first.
    pub(crate) more_listen_ports: Vec<u16>,
    /// Where the sockets listen; everywhere if there are none.
    pub(crate) listen_addresses: Vec<IpAddr>,
    /// The MTU in bytes.
    pub(crate) mtu: u32,
    /// How often a name that cannot be resolved is tried again; `None` means without limit.
    pub(crate) resolution_retries: Option<u32>,
    /// Whether to start a handshake with every peer that has an endpoint, even if there is nothing to send.
    pub(crate) greet: bool,
    pub(crate) relay: Relay,
    /// Whether to relay packets even if netfilter has rules for forwarded packets.
    pub(crate) relay_unfiltered: bool,
    /// `None` if the allowed IPs decide about routes.
    pub(crate) engine: Option<Engine>,
    pub(crate) state_sink: Option<StateSink>,
    /// The kernel's tables for the routes that the engine learns.
    pub(crate) tables: Option<LearnedTables>,
    /// The kernel's routes that the engine announces.
    pub(crate) redistribute: Vec<Redistribute>,
    pub(crate) source_check: SourceCheck,
    pub(crate) filter: Option<Filter>,
    pub(crate) policy: Arc<Seat>,
    /// Another protocol on the tunnel's port.
    pub(crate) foreign: Option<ForeignProtocol>,
    /// The embedder's own protocol inside the sessions.
    pub(crate) own_protocol: Option<OwnProtocol>,
    pub(crate) counters: Option<Counters>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            update: Update::default(),
            more_listen_ports: Vec::new(),
            listen_addresses: Vec::new(),
            mtu: DEFAULT_MTU,
            resolution_retries: None,
            greet: false,
            relay: Relay::default(),
            relay_unfiltered: false,
            engine: None,
            state_sink: None,
            tables: None,
            redistribute: Vec::new(),
            source_check: SourceCheck::default(),
            filter: None,
            policy: Arc::default(),
            foreign: None,
            own_protocol: None,
            counters: None,
        }
    }
}
