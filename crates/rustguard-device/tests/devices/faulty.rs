//! Transports that fail on demand: what a tunnel survives, and what ends it.

use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Binder, Bound, CloseReason, Device, MemoryBinder, PeerUpdate};
use rustguard_tun::{
    Network, Received, Segments, Sent, Span, Transmit, TunQueue,
    memory::{self, MemoryHost, MemoryNet, MemorySocket, MemoryTun},
    udp::UdpOptions,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);
/// Linux's numbers.
const EIO: i32 = 5;
const ENODEV: i32 = 19;

/// The error that every read meets, 0 for none, and how many have met one.
#[derive(Clone, Default)]
struct Fault(Arc<(AtomicI32, AtomicUsize)>);

impl Fault {
    fn set(&self, error: i32) {
        self.0.0.store(error, Ordering::SeqCst);
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

    /// Until so many reads have met it.
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

struct FaultySocket(MemorySocket, Fault);

impl Network for FaultySocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        // What came before the error is there.
        self.0.recv(slab, out)?;
        self.1.meet()
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.0.send(slab, batch)
    }

    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.fds()
    }

    fn recv_slab_len(&self) -> usize {
        self.0.recv_slab_len()
    }
}

struct FaultyBinder(MemoryBinder, Fault);

impl Binder for FaultyBinder {
    type Network = FaultySocket;
    type Control = MemorySocket;

    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<FaultySocket, MemorySocket>> {
        let Bound { workers, control, port, .. } = self.0.bind(options, workers)?;
        let workers = workers.into_iter().map(|socket| FaultySocket(socket, self.1.clone())).collect();
        Ok(Bound::new(workers, control, port))
    }

    fn set_fwmark(&self, _network: &MemorySocket, _mark: u32) -> io::Result<()> {
        Ok(())
    }
}

/// A device whose reads can be made to fail, and its peer; 10.0.0.1 and 10.0.0.2.
struct Lab {
    device: Device,
    host: MemoryHost,
    tun: Fault,
    socket: Fault,
    _peer: Device,
    their_host: MemoryHost,
}

impl Lab {
    fn new() -> Self {
        let net = MemoryNet::default();
        let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 51820));
        let builder = |n: u8| {
            let key = |n: u8| StaticSecret::from_bytes([n; 32]);
            let other = ipnet::IpNet::from(IpAddr::from([10, 0, 0, 3 - n]));
            let peer = PeerUpdate::new(key(3 - n).public_key()).allowed_ip(other).endpoint(at(3 - n));
            Device::builder().private_key(key(n)).peer(peer)
        };
        let (tun, host) = memory::tun().unwrap();
        let (their_tun, their_host) = memory::tun().unwrap();
        let faults = (Fault::default(), Fault::default());
        let binder = |n: u8| MemoryBinder::new(net.clone(), at(n));
        let tun = FaultyTun(tun, faults.0.clone());
        let device = builder(1).start_with(tun, FaultyBinder(binder(1), faults.1.clone())).unwrap();
        let peer = builder(2).start_with(their_tun, binder(2)).unwrap();
        for host in [&host, &their_host] {
            host.set_timeout(Some(LONG)).unwrap();
        }
        Self { device, host, tun: faults.0, socket: faults.1, _peer: peer, their_host }
    }

    /// A packet by the device to its peer, and one back.
    fn passes(&self, n: u8) {
        self.goes_out(n);
        self.comes_in(n);
    }

    fn goes_out(&self, n: u8) {
        self.host.send(&packet(1, 2, n)).unwrap();
        assert_eq!(next(&self.their_host), packet(1, 2, n));
    }

    fn comes_in(&self, n: u8) {
        self.their_host.send(&packet(2, 1, n)).unwrap();
        assert_eq!(next(&self.host), packet(2, 1, n));
    }
}

fn packet(from: u8, to: u8, n: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    packet.extend([n; 4]);
    packet
}

fn next(host: &MemoryHost) -> Vec<u8> {
    let mut buffer = [0; 100];
    let n = host.recv(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

#[tokio::test]
async fn a_tun_that_cannot_be_read_for_a_while_stops_neither_the_tunnel_nor_what_comes_in() {
    let lab = Lab::new();
    lab.passes(1);
    lab.tun.set(EIO);
    lab.host.send(&packet(1, 2, 2)).unwrap();
    lab.tun.until_met(3).await;
    // While reading pauses, also where it is tried again in between.
    for n in 3..50 {
        lab.comes_in(n);
    }
    lab.tun.set(0);
    assert_eq!(next(&lab.their_host), packet(1, 2, 2), "what could not be read before");
    lab.passes(50);
}

#[tokio::test]
async fn sockets_that_cannot_be_read_for_a_while_stop_neither_the_tunnel_nor_what_goes_out() {
    let lab = Lab::new();
    lab.passes(1);
    lab.socket.set(EIO);
    lab.their_host.send(&packet(2, 1, 2)).unwrap();
    lab.socket.until_met(3).await;
    for n in 3..50 {
        lab.goes_out(n);
    }
    lab.socket.set(0);
    assert_eq!(next(&lab.host), packet(2, 1, 2), "what came with the error, or later");
    lab.passes(50);
}

#[tokio::test]
async fn an_interface_that_is_gone_ends_the_tunnel_at_the_first_read() {
    let lab = Lab::new();
    lab.passes(1);
    lab.tun.set(ENODEV);
    lab.host.send(&packet(1, 2, 2)).unwrap();
    let closed = tokio::time::timeout(LONG, lab.device.closed()).await.expect("it ends");
    assert!(matches!(closed, CloseReason::Failed(_) | CloseReason::InterfaceDeleted), "{closed:?}");
    assert_eq!(lab.tun.0.1.load(Ordering::SeqCst), 1);
}
