//! The log of a network, in a store that several servers share.
//!
//! The decisions of a network are a sequence of records. A server that wants to add one names the last record that it
//! knows, and the store appends only if that is still the last one. Of two servers that decide at the same time, one
//! appends, and the other one reads that record first and decides again. This comparison is the only fence: no server
//! is elected, and none has to fail over.
//!
//! | Module | Contents |
//! |---|---|
//! | [`log`] | [`Log`]: the operations that a store offers |
//! | [`network`] | [`NetworkLog`]: the same with records that are sealed, chained and counted |
//! | [`key`] | the key that seals them, which the store never sees |
//! | [`address`] | the address of a store, such as `etcd://10.0.0.1:2379/home` |
//! | `etcd`, `postgres` | the log in etcd and in PostgreSQL, each with the feature of that name |
//! | [`memory`] | the log in memory, for tests and simulations |
//! | [`conformance`] | the tests that every log must pass, also one of your own |
//!
//! The crate knows nothing of what the records say.
#![forbid(unsafe_code)]

pub mod address;
pub mod conformance;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod key;
pub mod log;
pub mod memory;
pub mod network;
#[cfg(all(feature = "etcd", feature = "postgres"))]
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod tls;

pub use error::LogError;
pub use log::Log;
pub use network::NetworkLog;
#[cfg(all(feature = "etcd", feature = "postgres"))]
pub use open::{open, open_later};

/// Runs the examples of README.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
