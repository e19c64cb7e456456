//! A home for the benchmarks in `benches/`, and the one of them that is more than a file: whole tunnels.
#![forbid(unsafe_code)]

pub mod tunnel;
