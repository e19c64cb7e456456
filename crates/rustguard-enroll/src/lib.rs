//! Enrolment: how a machine joins a network with one command.
#![forbid(unsafe_code)]

pub mod lease;
pub mod ledger;
pub mod pool;
pub mod store;
