//! The names of a network's members: `laptop.rg0.internal`. Each member answers them from its own roster, only for
//! itself.
//!
//! | Module | Contents |
//! |---|---|
//! | [`zone`] | the names and addresses of one roster, without I/O |
//! | [`query`] | DNS messages: parsing queries and building answers, without I/O |
//! | [`server`] | both at port 53 of this machine's own addresses |
//!
//! The network's name is one label below `internal`, the domain that is reserved for private use (ICANN, resolution
//! 2024.07.29.06).
pub mod query;
pub mod server;
mod upstream;
pub mod zone;

/// The port of the DNS.
pub const PORT: u16 = 53;

/// A name, with its labels in wire format.
pub(crate) type WireName = domain::base::Name<Vec<u8>>;

pub use server::Server;
pub use upstream::Upstream;
pub use zone::Zone;
