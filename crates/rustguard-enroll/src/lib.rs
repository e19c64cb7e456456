//! Enrolment: how a machine joins a network with one command.
#![forbid(unsafe_code)]

pub mod action;
pub mod audit;
pub mod client;
pub mod cpace;
mod invite;
mod kem;
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
