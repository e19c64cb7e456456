//! The ports of lanes, and the program that gives the datagrams of a lane to its worker.
//!
//! If several sockets share a port, the kernel chooses one by a hash of both addresses and ports. Then a flow in a lane
//! would change its worker again and again: datagrams of worker 0 may arrive at worker 1 of the other host, whose
//! answers arrive at another worker here, and so on. So a program on the port reads the number of the lane from the
//! datagram. For lane 0, handshakes and everything else, the kernel uses its hash.

use super::{
    MAX_LANES, UdpOptions,
    bind::{Claim, Pair, bind, bind_pair},
};
use crate::{Lane, sys};
use std::io;

/// The send-only port of a worker.
pub(super) struct LanePort {
    pub(super) pair: Pair,
    number: u8,
    workers: u8,
}

impl LanePort {
    pub(super) fn lane(&self) -> Lane {
        Lane { number: self.number, port: self.pair.port, workers: self.workers }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { pair: self.pair.try_clone()?, ..*self })
    }
}

/// Binds a lane port for each worker, and attaches the program to the ports at which the workers listen. `first` are
/// the sockets of the first worker. The kernel numbers the sockets of a port in the order in which they were bound.
/// Sockets of single senders do not change this order, because they are bound later and closed earlier.
///
/// # Errors
/// The kernel's errors. Then there are no lanes.
pub(super) fn lane_ports(first: &[Pair], workers: usize, options: &UdpOptions) -> io::Result<Vec<LanePort>> {
    let workers = u8::try_from(workers).map_err(io::Error::other)?;
    first.iter().flat_map(Pair::iter).try_for_each(|socket| sys::steer(socket, &program(workers)))?;
    let lanes = (1..=workers).take(MAX_LANES);
    lanes
        .map(|number| {
            let pair = bind_pair(0, |domain, port| bind(domain, port, options, Claim::SendOnly))?;
            Ok(LanePort { pair, number, workers })
        })
        .collect()
}

/// Chooses the socket of lane `n`: number `(n - 1) % workers`. The program sees the datagram without its UDP header.
fn program(workers: u8) -> [libc::sock_filter; 11] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_MOD, BPF_RET,
        BPF_SUB, BPF_W,
    };
    /// A transport message, with its counter in bytes 8 to 15, lowest byte first (whitepaper, section 5.4.6).
    const DATA: u32 = 4;
    const HEADER: u32 = 16;
    let step = |code: u32, k: u32| sock_filter(code, 0, 0, k);
    // Jumps `then` steps further if the condition holds, and `otherwise` steps if not.
    let jump = |code: u32, k: u32, then: u8, otherwise: u8| sock_filter(BPF_JMP | code | BPF_K, then, otherwise, k);
    [
        step(BPF_LD | BPF_W | BPF_LEN, 0),
        jump(BPF_JGE, HEADER, 0, 8),
        step(BPF_LD | BPF_B | BPF_ABS, 0),
        jump(BPF_JEQ, DATA, 0, 6),
        step(BPF_LD | BPF_B | BPF_ABS, HEADER - 1),
        jump(BPF_JGT, MAX_LANES as u32, 4, 0),
        jump(BPF_JEQ, 0, 3, 0),
        step(BPF_ALU | BPF_SUB | BPF_K, 1),
        step(BPF_ALU | BPF_MOD | BPF_K, u32::from(workers)),
        step(BPF_RET | BPF_A, 0),
        // No socket has this number, so the kernel uses its hash (`reuseport_select_sock`).
        step(BPF_RET | BPF_K, u32::MAX),
    ]
}

fn sock_filter(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    // All codes of classic BPF have 16 bits.
    libc::sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests;
