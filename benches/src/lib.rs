//! The library of the benchmarks in `benches/`. It has the code of those that are larger than one file: whole tunnels,
//! enrolment, routing, ways through a relay, and several paths to a peer.
#![forbid(unsafe_code)]

pub mod direct;
pub mod enrol;
mod figures;
pub mod paths;
pub mod routing;
pub mod tunnel;
