//! Babel: a routing engine for tunnels.
#![forbid(unsafe_code)]
#![allow(dead_code)]
mod build;
pub mod ip;
pub mod parse;
pub mod tlv;
pub mod types;
