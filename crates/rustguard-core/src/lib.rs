//! The WireGuard protocol without I/O: bytes, addresses, the time and randomness come in; bytes, actions and the next deadline come out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod activity;
pub mod allowed_ips;
pub mod forwarding;
pub mod node;
pub mod packet;
pub mod session;
pub mod staging;
pub mod time;
pub mod wire;
