//! A home for the benchmarks in `benches/`, and those of them that are more than a file: whole tunnels, enrolment, and
//! routing.
#![forbid(unsafe_code)]

pub mod enrol;
mod figures;
pub mod routing;
pub mod tunnel;
