//! Enrolment: how a machine joins a network with one command. The crate does no I/O: datagrams, commands, the time and randomness
//! come in, actions and the next deadline come out.
//!
//! | Module | What it does |
//! |---|---|
//! | [`server`], [`action`] | admits machines; what the device has to do about it |
//! | [`client`] | joining |
//! | [`token`] | invites, codes, passphrases |
//! | [`ledger`], [`lease`], [`pool`], [`store`] | the members, their addresses, and where they are kept |
//! | [`audit`] | the trail of it |
//! | [`wire`] | which datagrams are enrolment's; the nine messages |
//! | [`cpace`] | the password-authenticated key exchange |
//! | [`kem`] | which implementation of ML-KEM |
//!
//! `examples/enrol.rs` joins two machines by hand; `docs/enrolment.md` specifies the protocol.
#![forbid(unsafe_code)]

pub mod action;
mod approval;
pub mod audit;
pub mod client;
mod config;
pub mod cpace;
mod invite;
mod join_error;
pub mod kem;
pub mod lease;
pub mod ledger;
mod limits;
mod pake;
mod payload;
pub mod pool;
mod schedule;
pub mod server;
pub mod store;
pub mod token;
pub mod wire;
