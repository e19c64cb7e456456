//! Properties of the protocol: two tunnels over a simulated network, with time and packets under control.
//!
//! Tests are named after the property that they show. A test that fails prints its seed.
#![allow(clippy::print_stderr, reason = "the seed of a failed test has to be seen")]

mod adversary;
mod crowd;
mod evidence;
mod handshakes;
mod packets;
mod rotation;
mod sim;
mod timing;
