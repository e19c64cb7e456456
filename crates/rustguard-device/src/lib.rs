//! A running WireGuard tunnel, to embed in a program or to run as a daemon.
//!
#![cfg_attr(feature = "kernel", doc = "```no_run")]
#![cfg_attr(not(feature = "kernel"), doc = "```ignore")]
//! use rustguard_device::{Device, PeerUpdate};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let private = rustguard_crypto::x25519::StaticSecret::from_bytes([1; 32]);
//! # let public = rustguard_crypto::x25519::StaticSecret::from_bytes([2; 32]).public_key();
//! let device = Device::builder()
//!     .private_key(private)
//!     .listen_port(51820)
//!     .peer(PeerUpdate::new(public).name("laptop").allowed_ip("10.0.0.2/32".parse::<ipnet::IpNet>()?))
//!     .start("wg0")?;
//! let mut events = device.events();
//! println!("{:?}", events.recv().await?);
//! device.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! A device is a control thread that owns the protocol ([`rustguard_core::node::Node`]) and a worker that moves the
//! packets. [`Builder::routing`] takes a routing engine of one's own, [`Builder::filter`] a function with the last word about each
//! packet; `examples/` has one of each. There is no global state: two devices in one process are independent of each other.
#![forbid(unsafe_code)]

mod binder;
mod builder;
mod config;
mod control;
mod device;
mod drops;
mod error;
mod event;
mod fair;
pub mod filter;
mod foreign;
mod handshakes;
pub mod interface;
#[cfg(not(feature = "kernel"))]
mod kernel;
#[cfg(feature = "kernel")]
pub mod kernel;
pub mod key;
mod path_set;
mod relay;
mod secrets;
mod sessions;
mod settings;
mod sharded;
mod shared;
mod status;
pub mod uapi;
pub mod unix_socket;
mod waiting;
mod worker;

pub use binder::{Binder, Bound, MemoryBinder, UdpBinder, UringBinder};
pub use builder::{Builder, Io, Offload, default_queues};
pub use config::{AllowedIpChange, Change, EndpointSpec, PathSpec, PeerUpdate, SourceCheck, Update, UpdateError};
pub use device::{Device, DeviceHandle};
pub use drops::DropReason;
pub use error::{CloseReason, StartError};
pub use event::Event;
pub use foreign::Datagram;
pub use interface::Interface;
pub use key::PresharedKey;
pub use relay::Relay;
pub use rustguard_core::{
    host_port::{Host, HostPort, HostPortError},
    paths::{MAX_ENDPOINTS, PathPolicy, State as PathState},
    routing,
};
pub use secrets::Secrets;
pub use settings::DEFAULT_MTU;
pub use status::{
    AnnouncementStatus, Counter, DropCount, NeighbourStatus, OriginName, PathStatus, PeerLabel, PeerStatus,
    RelayStatus, RouteStatus, RouterId, RoutingStatus, Status,
};

/// Registers this process for `membarrier(2)`, which the tables of sessions need. To call it is optional.
///
/// Linux registers a process of one thread at once. In a process that has more threads it waits until every core has passed
/// through the scheduler (an RCU grace period, 3 to 20 ms). A program that calls this before its first thread starts
/// its first [`Device`] sooner by as much.
pub fn prepare() {
    drop(sessions::Sessions::default());
}
