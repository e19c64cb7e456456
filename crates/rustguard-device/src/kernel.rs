//! The parts of a device that watch or change the Linux kernel's network state while a tunnel runs.
//!
//! | File | Contents |
//! |---|---|
//! | `monitor` | reports changes of the tunnel's interface and of the network around it |
//! | `learned_routes` | keeps the routes of a routing engine in the kernel's tables |
//! | `learned_default_route` | chooses the table for a learned default route, and adds and removes its guard |
//! | `pending_routes` | route changes that are not yet sent to the kernel |
//! | `peer_addresses` | the peers' addresses; no learned route may send packets for them into the tunnel |
//! | `redistribute` | finds the kernel's routes that a routing engine announces |
//! | `route_lookup` | asks the kernel how it would route a packet |
//! | `netfilter` | finds the rules that apply to a forwarded packet |
//! | `netlink`, `link`, `route_table`, `errno` | requests that several of these files use |
//!
//! The public part has two uses. [`LearnedTables`] and [`Redistribute`] are settings of the
//! [`Builder`](crate::Builder). The requests ([`Netlink`]) and the [`Monitor`] are for programs that set the host up
//! before the tunnel runs, such as `rustguard-quick`.
//!
//! Without the feature `kernel`, a device only runs over the embedder's own transports, and none of this is compiled.

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
