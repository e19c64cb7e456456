//! The library of the benchmarks in `benches/`. It has the code of those that are larger than one file: whole tunnels,
//! enrolment, networks, routing, ways through a relay, several paths to a peer, and networks beside those of other programs.
#![forbid(unsafe_code)]

pub mod compare;
pub mod direct;
pub mod enrol;
mod figures;
pub mod network;
pub mod paths;
pub mod routing;
pub mod tunnel;
