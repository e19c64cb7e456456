//! What must hold of the protocol: two tunnels over a simulated network, time and packets under control.
//!
//! Tests are named after what they show. A test that fails prints the seed that it failed with.
#![allow(clippy::print_stderr, reason = "the seed of a failed test has to be seen")]

mod adversary;
mod crowd;
mod evidence;
mod handshakes;
mod packets;
mod rotation;
mod sim;
mod timing;
