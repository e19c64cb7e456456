//! The parts of a device that watch or change the Linux kernel's network state while a tunnel runs.
//!
//! | File | Contents |
//! |---|---|
//! | `monitor` | reports changes of the tunnel's interface and of the network around it |
//! | `learned_routes` | keeps the routes of a routing engine in the kernel's tables |
//! | `learned_default_route` | chooses the table for a learned default route, and adds and removes its guard |
//! | `pending_routes` | route changes that are not yet sent to the kernel |
//! | `host_addresses` | the addresses at which a peer may reach this host |
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
//! Without the feature `kernel`, a device only runs over the embedder's own transports, and `kernel/absent.rs` is
//! compiled in the place of this module.

mod answers;
mod errno;
mod error;
mod host_addresses;
mod learned_default_route;
mod learned_routes;
mod link;
mod monitor;
mod netfilter;
mod netlink;
mod peer_addresses;
mod pending_routes;
mod redistribute;
mod route_lookup;
mod route_table;

#[cfg(test)]
pub(crate) use answers::HostAddress;
pub use answers::HostEvent;
pub(crate) use answers::{Egress, Exit, ForwardRules, HostAddresses};
pub use errno::{EEXIST, already_gone, errno};
pub use error::KernelError;
pub(crate) use host_addresses::host_addresses;
pub use learned_default_route::{DefaultRouteGuard, GuardFuture, LearnedTables};
pub use learned_routes::LearnedRoutes;
pub use link::Link;
pub(crate) use link::local_addresses;
pub use monitor::Monitor;
pub(crate) use netfilter::RulesWatch;
pub use netlink::Netlink;
pub use redistribute::{KernelRoutes, Redistribute};
pub(crate) use route_lookup::{RouteChanges, RouteLookup, SourceLookup};
pub use route_table::{Family, MAIN_TABLE, destination_of, table_of};
