//! Transports that fail on demand: which errors a tunnel survives, and which errors end it.

use super::support::{LONG, Node, at, inner, key, next, packet, secret};
use rustguard_device::{Binder, Bound, CloseReason, Device, MemoryBinder, PeerUpdate};
use rustguard_tun::{
    Network, Received, Segments, Sent, Span, Transmit, TunQueue,
    memory::{self, MemoryHost, MemoryNet, MemoryTun},
    udp::UdpOptions,
};
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

/// Error numbers of Linux.
const EIO: i32 = 5;
const ENODEV: i32 = 19;

/// The error that every read returns, 0 for none, and the number of reads that have returned one.
#[derive(Clone, Default)]
struct Fault(Arc<(AtomicI32, AtomicUsize)>);

impl Fault {
    fn set(&self, error: i32) {
        self.0.0.store(error, Ordering::SeqCst);
    }

    fn meets(&self) -> bool {
        self.0.0.load(Ordering::SeqCst) != 0
    }

    fn meet(&self) -> io::Result<()> {
        match self.0.0.load(Ordering::SeqCst) {
            0 => Ok(()),
            error => {
                self.0.1.fetch_add(1, Ordering::SeqCst);
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    /// Waits until this many reads have returned the error.
    async fn until_met(&self, times: usize) {
        let met = async {
            while self.0.1.load(Ordering::SeqCst) < times {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, met).await.expect("reads go on");
    }
}

struct FaultyTun(MemoryTun, Fault);

impl TunQueue for FaultyTun {
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        self.1.meet()?;
        self.0.read(slab, at, mtu)
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        self.0.write(slab, packets)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn max_read(&self) -> usize {
        self.0.max_read()
    }
}

/// While it fails it is always readable, like a socket with an error.
struct FaultySocket(Box<dyn Network>, Fault, io::PipeReader);

impl Network for FaultySocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        // Datagrams that arrived before the error are delivered.
        self.0.recv(slab, out)?;
        self.1.meet()
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.0.send(slab, batch)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        let fails = self.1.meets();
        self.0.fds().chain(fails.then(|| self.2.as_fd())).nth(n)
    }

    fn recv_slab_len(&self) -> usize {
        self.0.recv_slab_len()
    }
}

struct FaultyBinder(MemoryBinder, Fault);

impl Binder for FaultyBinder {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let Bound { workers, control, port, .. } = self.0.bind(options, workers)?;
        let faulty = |socket| io::pipe().map(|(hung_up, _)| FaultySocket(socket, self.1.clone(), hung_up));
        let workers = workers.into_iter().map(faulty).collect::<io::Result<Vec<_>>>()?;
        Ok(Bound::new(workers, control, port))
    }
}

/// Device 1, whose reads fail on demand, and its peer, device 2.
struct Lab {
    device: Device,
    host: MemoryHost,
    tun: Fault,
    socket: Fault,
    peer: Node,
}

impl Lab {
    fn new() -> Self {
        let net = MemoryNet::default();
        let builder = |other: u8| {
            let allowed = ipnet::Ipv4Net::from(inner(other));
            Device::builder().peer(PeerUpdate::new(key(other)).allowed_ip(allowed).endpoint(at(other)))
        };
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(LONG)).unwrap();
        let faults = (Fault::default(), Fault::default());
        let tun = FaultyTun(tun, faults.0.clone());
        let binder = FaultyBinder(MemoryBinder::new(net.clone(), at(1)), faults.1.clone());
        let device = builder(2).private_key(secret(1)).start_with(tun, binder).unwrap();
        Self { device, host, tun: faults.0, socket: faults.1, peer: Node::start(&net, 2, builder(1)) }
    }

    /// Sends a packet from device 1 to its peer, and one back.
    fn passes(&self, n: u8) {
        self.goes_out(n);
        self.comes_in(n);
    }

    fn goes_out(&self, n: u8) {
        self.host.send(&packet(1, 2, &[n])).unwrap();
        assert_eq!(self.peer.next(), packet(1, 2, &[n]));
    }

    fn comes_in(&self, n: u8) {
        self.peer.host.send(&packet(2, 1, &[n])).unwrap();
        assert_eq!(next(&self.host), packet(2, 1, &[n]));
    }
}

#[tokio::test]
async fn a_tun_that_cannot_be_read_for_a_while_stops_neither_the_tunnel_nor_what_comes_in() {
    let lab = Lab::new();
    lab.passes(1);
    lab.tun.set(EIO);
    lab.host.send(&packet(1, 2, &[2])).unwrap();
    lab.tun.until_met(3).await;
    // Meanwhile reads of the TUN pause and are tried again.
    for n in 3..50 {
        lab.comes_in(n);
    }
    lab.tun.set(0);
    assert_eq!(lab.peer.next(), packet(1, 2, &[2]), "the packet that could not be read before");
    lab.passes(50);
}

#[tokio::test]
async fn sockets_that_cannot_be_read_for_a_while_stop_neither_the_tunnel_nor_what_goes_out() {
    let lab = Lab::new();
    lab.passes(1);
    lab.socket.set(EIO);
    lab.peer.host.send(&packet(2, 1, &[2])).unwrap();
    lab.socket.until_met(3).await;
    for n in 3..50 {
        lab.goes_out(n);
    }
    lab.socket.set(0);
    assert_eq!(next(&lab.host), packet(2, 1, &[2]), "the packet that came with the error, or later");
    lab.passes(50);
}

#[tokio::test]
async fn an_interface_that_is_gone_ends_the_tunnel_at_the_first_read() {
    let lab = Lab::new();
    lab.passes(1);
    lab.tun.set(ENODEV);
    lab.host.send(&packet(1, 2, &[2])).unwrap();
    let closed = tokio::time::timeout(LONG, lab.device.closed()).await.expect("it ends");
    assert!(matches!(closed, CloseReason::Failed(_) | CloseReason::InterfaceDeleted), "{closed:?}");
    assert_eq!(lab.tun.0.1.load(Ordering::SeqCst), 1);
}
