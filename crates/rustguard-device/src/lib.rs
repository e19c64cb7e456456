//! A running WireGuard tunnel, to embed in a program or to run as a daemon.
//!
//! ```
//! use rustguard_device::{
//!     prelude::*,
//!     tun::memory::{self, MemoryNet},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let laptop: PublicKey = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=".parse()?;
//! let peer = PeerUpdate::new(laptop).name("laptop").allowed_ip("10.0.0.2/32".parse::<IpNet>()?);
//! let builder = Device::builder().private_key(StaticSecret::generate()?).peer(peer);
//!
//! // Packets and datagrams in memory need no root. `builder.start("wg0")` makes an interface of the kernel.
//! let (tun, _host) = memory::tun()?;
//! let device = builder.start_with(tun, MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse()?))?;
//!
//! let mut events = device.events();
//! device.update(Update::new().peer(PeerUpdate::remove(laptop))).await?;
//! assert!(matches!(events.recv().await?, Event::PeerRemoved { peer, .. } if peer == laptop));
//! device.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Builder`] starts a [`Device`]: on an interface of the kernel and UDP sockets, or over the program's own
//!   transports ([`Builder::start_with`], [`TunQueue`](tun::TunQueue), [`Binder`]), or with such a transport beside UDP
//!   ([`WithTransport`]). A network stack in the program sends and receives packets with [`AsyncMemoryHost`].
//! - [`Update`] changes a running device. [`Device::status`] shows its state, [`Device::events`] the events of its
//!   peers.
//! - [`uapi`] serves the control socket by which `wg` sees and sets the device.
//! - [`Builder::routing`] sets a routing engine, [`Builder::filter`] a function that decides about each packet, and
//!   [`Builder::policy`] rules for packets of peers.
//!
//! `examples/` has a program for each. A program needs no other crate of RustGuard: [`prelude`] has the usual names,
//! and crates whose types appear in signatures are re-exported as [`core`], [`crypto`], [`tun`] and [`ipnet`].
//!
//! A device runs on its own threads: a control thread that owns the protocol ([`core::node::Node`]), and workers that
//! move packets. Its methods are futures that any executor can run. There is no global state: several devices in one
//! process are independent of each other.
#![forbid(unsafe_code)]

mod async_memory_host;
mod binder;
mod builder;
mod config;
mod control;
mod device;
mod drops;
mod error;
mod event;
mod fair;
mod fec;
pub mod filter;
mod foreign;
mod handshakes;
pub mod interface;
#[cfg(not(feature = "kernel"))]
#[path = "kernel/absent.rs"]
mod kernel;
#[cfg(feature = "kernel")]
pub mod kernel;
pub mod key;
pub mod listener;
mod logged_counter;
mod path_set;
mod ping;
pub mod policy;
#[cfg(feature = "port-mapping")]
mod port_mapping;
pub mod prelude;
mod relay;
mod seal;
mod secrets;
mod session_lanes;
mod settings;
mod sharded;
mod shared;
mod status;
mod texts;
mod transport;
pub mod uapi;
pub mod unix_socket;
mod waiting;
mod way;
mod worker;

pub use async_memory_host::AsyncMemoryHost;
pub use binder::{Binder, Bound, MemoryBinder, UdpBinder, UringBinder, WithTransport};
pub use builder::{Builder, Io, Offload, default_queues};
pub use config::{
    AllowedIpChange, Change, EndpointSpec, MAX_PUBLIC_ENDPOINTS, PathSpec, PeerUpdate, SecondKey, SourceCheck, Update,
    UpdateError,
};
pub use device::{Device, DeviceHandle};
pub use drops::DropReason;
pub use error::{CloseReason, Closed, StartError};
pub use event::{Event, Events, EventsError};
pub use foreign::{Datagram, Datagrams};
pub use interface::Interface;
pub use ipnet;
pub use key::PresharedKey;
pub use ping::{PingError, Pong};
pub use relay::Relay;
pub use rustguard_core as core;
pub use rustguard_core::{
    host_port::{Host, HostPort, HostPortError},
    paths::{MAX_ENDPOINTS, PathPolicy, Relayed, State as PathState, TransportAddress},
    routing,
};
pub use rustguard_crypto as crypto;
pub use rustguard_tun as tun;
pub use secrets::Secrets;
pub use settings::DEFAULT_MTU;
pub use status::{
    AnnouncementStatus, Cause, Connection, Counter, DropCount, NeighbourStatus, OriginName, ParityStatus, PathMtu,
    PathStatus, PeerLabel, PeerStatus, PolicyStatus, Problem, Refusal, RelayStatus, Route, RouteStatus, RouterId,
    RoutingStatus, Status, UnresolvedEndpoint, Way,
};
pub use texts::{Text, Texts};
pub use transport::{Transport, TransportEnd};

/// Registers this process for `membarrier(2)`, which the tables of sessions need. The call is optional.
///
/// Linux registers a process with one thread at once. In a process with more threads it waits until every core has
/// passed through the scheduler (an RCU grace period, 3 to 20 ms). A program that calls this before it starts a thread
/// saves this time at the start of its first [`Device`].
pub fn prepare() {
    drop(shared::sessions::Sessions::default());
}
