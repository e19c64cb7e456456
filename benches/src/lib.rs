//! A home for the benchmarks in `benches/`, and those of them that are more than a file: whole tunnels, enrolment,
//! routing, and several paths to a peer.
#![forbid(unsafe_code)]

pub mod enrol;
mod figures;
pub mod paths;
pub mod routing;
pub mod tunnel;
