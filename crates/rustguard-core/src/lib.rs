//! The WireGuard protocol without I/O. The input is bytes, addresses, the time and randomness; the output is bytes,
//! actions and the next deadline.
//!
//! Start with [`tunnel`]: a whole interface in one thread, which seals and opens packets in the caller's buffers. Its
//! documentation has an example of two tunnels that talk to each other; `examples/tunnel.rs` does the same over UDP
//! sockets. Programs that spread the work over threads, or routers with their own tables, use the parts below:
//!
//! | Module | What it does |
//! |---|---|
//! | [`tunnel`] | a whole interface in one thread: the place to start |
//! | [`node`] | all protocol state of an interface: peers, handshakes, keypairs, timers |
//! | [`session`] | sealing and opening runs of packets, the replay window; shared between threads |
//! | [`lanes`] | a session on several cores: counters and a replay window for each |
//! | [`activity`] | the data path's information for the timers |
//! | [`noise`] | the handshake itself, under any labels |
//! | [`cookie`] | MAC1, MAC2, cookie replies |
//! | [`wire`] | the four messages |
//! | [`allowed_ips`] | which peer has which addresses |
//! | [`packet`], [`flow`], [`icmp`], [`ecn`] | headers of inner packets |
//! | [`dissect`] | inner packets as a filter sees them: flows, fragments, errors |
//! | [`control_message`] | the kinds of messages between RustGuards inside a session |
//! | [`paths`] | several endpoints of one peer: probing, choosing, spreading flows |
//! | [`forward`] | datagrams that a peer forwards but cannot read |
//! | [`path_mtu`] | the longest packet that reaches a peer, if long ones are lost |
//! | [`resequence`] | restores the order of packets after a link that reorders |
//! | [`routing`] | the interface of routing engines, their tables, and the static engine |
//! | [`agenda`] | a queue of deadlines |
//! | [`host_port`] | `HOST:PORT`, as people write it |
//! | [`limit`] | how many messages a source may cause |
//! | [`staging`] | packets that wait for a handshake |
//! | [`sync`] | shared ownership, also on targets without compare-and-swap |
//! | [`time`], [`constants`], [`tai64n`] | moments, the protocol's constants, timestamps |
//!
//! `examples/handshake.rs` does a handshake by hand.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

// The public interface of this crate uses their types.
pub use ipnet;
pub use rand_core;
pub use rustguard_crypto as crypto;

pub mod activity;
pub mod agenda;
pub mod allowed_ips;
mod bytes;
pub mod constants;
pub mod control_message;
pub mod cookie;
pub mod dissect;
pub mod ecn;
pub mod fec;
pub mod flow;
pub mod forward;
pub mod host_port;
pub mod icmp;
pub mod lanes;
pub mod limit;
mod load;
pub mod node;
pub mod noise;
pub mod packet;
pub mod path_mtu;
pub mod paths;
mod peer;
pub mod preshared_key;
pub mod resequence;
pub mod routing;
pub mod session;
pub mod staging;
pub mod sync;
pub mod tai64n;
pub mod time;
pub mod tunnel;
pub mod wire;
