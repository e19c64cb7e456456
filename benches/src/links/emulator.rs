//! A link between two nodes that delays, loses and reorders packets, without netem, which many kernels lack.
//!
//! ```text
//!    a  10.1.0.1 wire ── a thread of this process ── wire 10.1.0.2  b
//! ```
//!
//! Each end is a TUN interface in the node. The thread reads what one node sends, and writes it to the other when it is
//! due. The kernel segments super-packets before it gives them to the interface, as for a network card without
//! offloads, unless they are to cross the link as a whole. In that case each packet has the kernel's virtio-net header.
//!
//! Before Linux 6.11, the kernel refuses UDP_SEGMENT for such an interface, and programs send each datagram by itself.

use super::{
    direction::{Counts, Direction},
    profile::Impairment,
};
use anyhow::{Context as _, Result};
use rustguard_tests::Node;
use rustguard_tun::{
    TunQueue as _,
    tun::{Tun, TunOptions},
    wait::{Waiter, Waker},
};
use rustix::{
    io::{Errno, read, write},
    thread::{gettid, set_current_timer_slack},
};
use std::{
    io,
    net::Ipv4Addr,
    num::NonZeroU64,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The addresses of the nodes on the link.
pub(super) const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2)];
const INTERFACE: &str = "wire";
const MTU: usize = 1_500;
/// The virtio-net header before a packet (`struct virtio_net_hdr`).
const HEADER: usize = 10;
/// The maximum of packets in transit in one direction: 100 ms of 2.4 Gbit/s, or of 80 Gbit/s in super-packets of 64
/// KiB.
const ROOM: usize = 20_000;
const ROOM_FOR_SUPER_PACKETS: usize = 2_000;
/// The maximum of packets that are read from one end before the other end is read.
const BATCH: usize = 64;
/// The interval at which the thread looks while packets are in transit. A timer for each packet would take a core.
const QUANTUM: Duration = Duration::from_micros(50);

/// A link. It ends when it is dropped.
pub(super) struct Emulator {
    shared: Arc<Mutex<Shared>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    real_time: bool,
}

struct Shared {
    directions: [Direction<Packet>; 2],
    is_cut: bool,
    ended: bool,
    /// Packets that the other end refused.
    refused: u64,
}

/// A packet, in a buffer that may be longer.
struct Packet {
    buffer: Box<[u8]>,
    len: usize,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crossed {
    /// From `a`, and from `b`.
    pub(super) directions: [Counts; 2],
    /// Packets that the kernel of the other end refused.
    pub(super) refused: u64,
}

impl Emulator {
    /// Connects two nodes by a link without delay and loss. With `super_packets`, a super-packet crosses the link, or
    /// is lost, as a whole.
    pub(super) fn new(nodes: [&Node; 2], super_packets: bool) -> Result<Self> {
        let mut ends = Vec::new();
        for (node, address) in nodes.into_iter().zip(OUTSIDE) {
            let options = TunOptions::new(INTERFACE).mtu(MTU as u32).offload(super_packets);
            let tun = node.inside(|| Ok(Tun::create(&options)?))?;
            node.sh(&format!(
                "sysctl -qw net.ipv6.conf.{INTERFACE}.disable_ipv6=1
                 ip link set {INTERFACE} txqueuelen {ROOM} up
                 ip addr add {address}/24 dev {INTERFACE}"
            ))?;
            ends.push(tun);
        }
        let [a, b] = <[Tun; 2]>::try_from(ends).ok().context("two ends")?;
        let room = if super_packets { ROOM_FOR_SUPER_PACKETS } else { ROOM };
        let shared = Arc::new(Mutex::new(Shared {
            directions: [Direction::new(room), Direction::new(room)],
            is_cut: false,
            ended: false,
            refused: 0,
        }));
        let ((waiter, waker), (tell, told)) = (Waiter::new()?, mpsc::channel());
        let theirs = Arc::clone(&shared);
        let len = if super_packets { HEADER + usize::from(u16::MAX) } else { MTU };
        let thread = thread::Builder::new().name("link".to_owned()).spawn(move || {
            // With the default timer slack, a sleep of one quantum would take two.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            let _ = tell.send(gettid());
            // The interfaces fail only when the namespaces end, and then the process ends too.
            let _ = carry([a, b], waiter, &theirs, len);
        })?;
        // Real-time priority, because a wire does not wait for a processor. In a user namespace, the kernel refuses it.
        let id = told.recv()?.as_raw_nonzero().to_string();
        let real_time = Command::new("chrt").args(["--rr", "--pid", "1", &id]).output()?.status.success();
        Ok(Self { shared, waker, thread: Some(thread), real_time })
    }

    /// From now on, treats packets in this way. Each direction has its own random numbers from `seed`.
    pub(super) fn set(&self, impairment: Impairment, seed: u64) {
        for (n, direction) in self.lock().directions.iter_mut().enumerate() {
            direction.set(impairment, seed.wrapping_mul(2).wrapping_add(n as u64));
        }
    }

    /// Begins or ends the loss of all packets.
    pub(super) fn cut(&self, cut: bool) {
        self.lock().is_cut = cut;
    }

    /// Whether the emulator runs with real-time priority.
    pub(super) fn has_real_time(&self) -> bool {
        self.real_time
    }

    /// The counters so far.
    pub(super) fn crossed(&self) -> Crossed {
        let shared = self.lock();
        let directions = [&shared.directions[0], &shared.directions[1]].map(Direction::counts);
        Crossed { directions, refused: shared.refused }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.lock().ended = true;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries packets from each end to the other. `len` is the length of the longest packet, with its header if there is
/// one.
fn carry(ends: [Tun; 2], mut waiter: Waiter, shared: &Mutex<Shared>, len: usize) -> io::Result<()> {
    let (begun, mut spare) = (Instant::now(), Vec::new());
    loop {
        let (mut got, mut busy) = (false, false);
        {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.ended {
                return Ok(());
            }
            for from in [0, 1] {
                let read = shared.take(&ends[from], from, begun, &mut spare, len)?;
                got |= read == BATCH;
                // On average, a packet is read and written half a quantum late each, so `now` is one quantum ahead.
                let now = begun.elapsed() + QUANTUM;
                shared.give(&ends[1 - from], from, now, &mut spare)?;
                busy |= shared.directions[from].is_busy();
            }
        }
        if busy {
            waiter.wait([], Some(QUANTUM))?;
        } else if !got {
            waiter.wait(ends.iter().map(Tun::fd), None)?;
        }
    }
}

impl Shared {
    /// Reads what one end has sent. Returns the number of packets.
    fn take(
        &mut self,
        end: &Tun,
        from: usize,
        begun: Instant,
        spare: &mut Vec<Box<[u8]>>,
        len: usize,
    ) -> io::Result<usize> {
        for n in 0..BATCH {
            let mut buffer = spare.pop().unwrap_or_else(|| vec![0; len].into());
            let len = match read(end.fd(), &mut *buffer) {
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => {
                    spare.push(buffer);
                    return Ok(n);
                }
                Err(error) => return Err(error.into()),
            };
            if self.is_cut {
                self.directions[from].count_cut();
                spare.push(buffer);
            } else if let Some(lost) = self.directions[from].send(begun.elapsed(), Packet { buffer, len }) {
                spare.push(lost.buffer);
            }
        }
        Ok(BATCH)
    }

    /// Writes the due packets to the other end.
    fn give(&mut self, end: &Tun, from: usize, now: Duration, spare: &mut Vec<Box<[u8]>>) -> io::Result<()> {
        while let Some(packet) = self.directions[from].arrived(now) {
            match write(end.fd(), &packet.buffer[..packet.len]) {
                Ok(_) => {}
                // The interface was deleted.
                Err(Errno::BADFD) => return Err(Errno::BADFD.into()),
                Err(_) => self.refused += 1,
            }
            spare.push(packet.buffer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_tests::eventually;
    use std::net::{IpAddr, SocketAddr, UdpSocket};

    const PATIENCE: Duration = Duration::from_secs(30);
    const BATCHES: u16 = 20;
    /// Fewer datagrams than a socket holds.
    const DATAGRAMS: u16 = 50;

    fn send(from: &UdpSocket, to: SocketAddr, numbers: impl Iterator<Item = u16>) {
        for number in numbers {
            from.send_to(&number.to_be_bytes(), to).unwrap();
        }
    }

    #[test]
    fn what_is_not_lost_arrives_and_overtakes() {
        rustguard_tests::scenario(|lab| {
            let (a, b) = (lab.node("a")?, lab.node("b")?);
            let link = Emulator::new([&a, &b], false)?;
            let to = SocketAddr::new(IpAddr::V4(OUTSIDE[1]), 7);
            let (here, there) = (a.udp((OUTSIDE[0], 0))?, b.udp(to)?);
            let jitter = Duration::from_millis(3);
            link.set(Impairment { delay: Duration::ZERO, jitter, loss: 0.3 }, 1);
            let mut arrived: Vec<u16> = Vec::new();
            for batch in 0..BATCHES {
                send(&here, to, batch * DATAGRAMS..(batch + 1) * DATAGRAMS);
                let sent = u64::from(batch + 1) * u64::from(DATAGRAMS);
                eventually("all are sent", PATIENCE, || Ok(link.crossed().directions[0].sent == sent))?;
                while arrived.len() as u64 + link.crossed().directions[0].lost < sent {
                    let mut number = [0; 2];
                    there.recv(&mut number)?;
                    arrived.push(u16::from_be_bytes(number));
                }
            }
            // Five standard deviations on both sides of 300 of 1,000.
            let Counts { lost, crowded_out, .. } = link.crossed().directions[0];
            assert!((228..=372).contains(&lost), "{lost} are lost");
            assert_eq!(crowded_out, 0);
            assert!(!arrived.is_sorted(), "none has overtaken another");
            arrived.sort_unstable();
            arrived.dedup();
            assert_eq!(arrived.len() as u64, u64::from(BATCHES * DATAGRAMS) - lost, "none arrives twice");
            assert_eq!(link.crossed().directions[1], Counts::default(), "the other direction has nothing of it");
            Ok(())
        });
    }

    #[test]
    fn a_link_that_is_cut_carries_nothing_until_it_is_whole() {
        rustguard_tests::scenario(|lab| {
            let (a, b) = (lab.node("a")?, lab.node("b")?);
            let link = Emulator::new([&a, &b], true)?;
            let to = SocketAddr::new(IpAddr::V4(OUTSIDE[0]), 7);
            let (there, here) = (a.udp(to)?, b.udp((OUTSIDE[1], 0))?);
            link.cut(true);
            send(&here, to, 0..10);
            eventually("all are gone", PATIENCE, || Ok(link.crossed().directions[1].cut == 10))?;
            link.cut(false);
            send(&here, to, 10..11);
            let mut number = [0; 2];
            there.recv(&mut number)?;
            assert_eq!(u16::from_be_bytes(number), 10);
            assert_eq!(link.crossed().directions[1], Counts { sent: 1, cut: 10, ..Counts::default() });
            Ok(())
        });
    }
}
