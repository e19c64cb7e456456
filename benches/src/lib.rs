//! The library of the benchmarks in `benches/`, for those that are larger than one file: whole tunnels, enrolment,
//! networks, policies, routing, stores that servers share, paths through a relay, several paths to a peer, tunnels
//! without root, networks compared with other programs, and links that delay and lose.
#![forbid(unsafe_code)]

pub mod compare;
pub mod direct;
mod echoes;
pub mod enrol;
mod figures;
mod iperf3;
pub mod links;
pub mod network;
pub mod paths;
pub mod policy;
pub mod rootless;
pub mod routing;
pub mod stores;
pub mod tunnel;

use anyhow::Result;
pub use figures::Document;
use std::path::PathBuf;

/// The environment variable that gives the process inside the namespaces the path of RustGuard.
pub(crate) const RUSTGUARD: &str = "RUSTGUARD_BIN";

/// The path of RustGuard, as environment variable for the process inside the namespaces. The program is built if
/// necessary.
///
/// # Errors
/// If it does not build.
pub fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![(RUSTGUARD, rustguard_tests::rustguard()?)])
}
