//! The roster: the signed list of a network's members, and how it is distributed to all of them. The crate does no I/O.
//!
//! | Module | Contents |
//! |---|---|
//! | [`key`] | the network's key, which signs |
//! | [`roster`], [`member`], [`settings`], [`label`] | the contents of a roster |
//! | [`plan`] | what a roster means for one member |
//! | [`exchange`], [`pair`] | the distribution of rosters, and the secrets that pairs of members share |
//! | [`statement`] | what a member says about itself |
//! | [`server_state`] | a standby's copy of the issuing server's state |
//!
//! `docs/roster.md` describes the protocol byte by byte, `docs/guide/network.md` is for users.
#![forbid(unsafe_code)]

mod digest;
pub mod exchange;
mod fetch;
mod fields;
mod head;
pub mod key;
pub mod label;
pub mod member;
mod message;
pub mod pair;
pub mod plan;
mod reports;
mod requests;
pub mod roster;
pub mod server_state;
pub mod settings;
mod shards;
pub mod statement;
mod trust;

pub use head::{Version, next_term, shown_number};
