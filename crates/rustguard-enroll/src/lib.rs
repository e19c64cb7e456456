//! Enrolment: a machine joins a network with one command. The crate does no I/O. Its inputs are datagrams, commands,
//! the time and randomness. Its outputs are actions and the next deadline.
//!
//! | Module | Contents |
//! |---|---|
//! | [`server`], [`action`] | the server, which admits machines; the tasks for its embedder |
//! | [`client`] | the joining machine |
//! | [`token`] | invites, codes, passphrases |
//! | [`ledger`], [`lease`], [`pool`], [`store`] | the members, their addresses and their storage |
//! | [`audit`] | the audit trail |
//! | [`wire`] | recognition of enrolment's datagrams; the nine messages |
//! | [`cpace`] | the password-authenticated key exchange |
//! | [`kem`] | the implementations of ML-KEM |
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
mod usable;
pub mod wire;
