#![doc = include_str!("../README.md")]

mod backlog;
mod inner;
mod names;
mod queues;
mod stack;
mod tcp;
mod udp;

pub use inner::{MAX_CONNECTIONS, MAX_FROM_ONE};
pub use stack::{Stack, StackError};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
