//! wg-quick for Rust programs: its [configuration files](conf), and the [set-up of the host](host) for a tunnel.
#![forbid(unsafe_code)]

pub mod conf;
pub mod host;
