//! The roster: the signed list of a network's members, and how it comes to all of them. The crate does no I/O.
//!
//! | Module | Contents |
//! |---|---|
//! | [`key`] | the network's key, which signs |
//! | [`roster`], [`member`], [`settings`], [`label`] | what a roster says |
//! | [`plan`] | what it means for one member |
//! | [`exchange`], [`pair`] | how it comes to all members, and what pairs of them share |
//! | [`statement`] | what a member says about itself |
//! | [`server_state`] | what a standby has of the server that issues |
//!
//! `docs/roster.md` has the protocol byte by byte, `docs/guide/network.md` is for users.
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
