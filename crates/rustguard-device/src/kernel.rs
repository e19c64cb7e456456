//! What follows the Linux kernel while a tunnel runs.
//!
//! | File | What it does |
//! |---|---|
//! | `monitor` | reports changes of the tunnel's interface and of the network around it |
//! | `learned_routes` | keeps the routes of a routing engine in the kernel's tables |
//! | `learned_default_route` | says where a learned default route goes, and puts its guard up and takes it down |
//! | `pending_routes` | route changes that the kernel has not been told yet |
//! | `peer_addresses` | the endpoints, which no learned route may lead into the tunnel |
//! | `redistribute` | finds the kernel's routes that a routing engine announces |
//! | `route_lookup` | asks the kernel how it would route a packet |
//! | `netfilter` | finds the rules that a forwarded packet would meet |
//! | `netlink`, `link`, `route_table`, `errno` | requests that several of these make |
//!
//! The public part has two uses. [`LearnedTables`] and [`Redistribute`] are settings of the [`Builder`](crate::Builder). The
//! requests ([`Netlink`]) and the [`Monitor`] are for programs that set the host up before the tunnel runs, as `rustguard-quick`
//! does.
//!
//! Without the feature `kernel`, a device only runs over transports of the embedder's own, and none of this is compiled.

#[cfg(not(feature = "kernel"))]
mod absent;
mod answers;
#[cfg(feature = "kernel")]
mod errno;
#[cfg(feature = "kernel")]
mod error;
#[cfg(feature = "kernel")]
mod learned_default_route;
#[cfg(feature = "kernel")]
mod learned_routes;
#[cfg(feature = "kernel")]
mod link;
#[cfg(feature = "kernel")]
mod monitor;
#[cfg(feature = "kernel")]
mod netfilter;
#[cfg(feature = "kernel")]
mod netlink;
#[cfg(feature = "kernel")]
mod peer_addresses;
#[cfg(feature = "kernel")]
mod pending_routes;
#[cfg(feature = "kernel")]
mod redistribute;
#[cfg(feature = "kernel")]
mod route_lookup;
#[cfg(feature = "kernel")]
mod route_table;

#[cfg(not(feature = "kernel"))]
pub(crate) use absent::{
    KernelRoutes, LearnedRoutes, LearnedTables, Monitor, Redistribute, RouteChanges, RouteLookup, RulesWatch,
    SourceLookup, local_addresses,
};
#[cfg(feature = "kernel")]
pub use answers::HostEvent;
#[cfg(not(feature = "kernel"))]
pub(crate) use answers::HostEvent;
pub(crate) use answers::{ForwardRules, Way};
#[cfg(feature = "kernel")]
pub use errno::{EEXIST, already_gone, errno};
#[cfg(feature = "kernel")]
pub use error::KernelError;
#[cfg(feature = "kernel")]
pub use learned_default_route::{DefaultRouteGuard, GuardFuture, LearnedTables};
#[cfg(feature = "kernel")]
pub use learned_routes::LearnedRoutes;
#[cfg(feature = "kernel")]
pub use link::Link;
#[cfg(feature = "kernel")]
pub(crate) use link::local_addresses;
#[cfg(feature = "kernel")]
pub use monitor::Monitor;
#[cfg(feature = "kernel")]
pub(crate) use netfilter::RulesWatch;
#[cfg(feature = "kernel")]
pub use netlink::Netlink;
#[cfg(feature = "kernel")]
pub use redistribute::{KernelRoutes, Redistribute};
#[cfg(feature = "kernel")]
pub(crate) use route_lookup::{RouteChanges, RouteLookup, SourceLookup};
#[cfg(feature = "kernel")]
pub use route_table::{Family, MAIN_TABLE, destination_of, table_of};
