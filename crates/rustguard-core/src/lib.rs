//! The WireGuard protocol without I/O: bytes, addresses, the time and randomness come in; bytes, actions and the next deadline come out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod activity;
pub mod allowed_ips;
mod cookie;
pub mod forwarding;
pub mod node;
pub mod noise;
pub mod packet;
mod peer;
pub mod session;
pub mod staging;
pub mod tai64n;
pub mod time;
pub mod timers;
pub mod wire;
