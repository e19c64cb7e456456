#![doc = include_str!("../README.md")]

mod backlog;
mod names;
mod queues;
mod stack;
mod tcp;
mod udp;

pub use stack::{MAX_CONNECTIONS, MAX_FROM_ONE, Stack, StackError};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
