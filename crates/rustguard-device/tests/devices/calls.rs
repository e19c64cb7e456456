//! The cost of a single packet: with a real TUN and real sockets, each of these calls is a system call.

use super::support::{LONG, Node, at, inner, key, next, packet, secret};
use rustguard_device::{Binder, Bound, Device, MemoryBinder, PeerUpdate};
use rustguard_tun::{
    Network, Received, Segments, Sent, Span, Transmit, TunQueue,
    memory::{self, MemoryNet, MemoryTun},
    udp::UdpOptions,
};
use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

/// The number of calls of each kind so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Calls {
    read: usize,
    write: usize,
    recv: usize,
    send: usize,
}

#[derive(Clone, Default)]
struct Counter(Arc<Mutex<Calls>>);

impl Counter {
    fn note(&self, count: impl FnOnce(&mut Calls)) {
        count(&mut self.0.lock().unwrap());
    }
}

struct CountingTun(MemoryTun, Counter);

impl TunQueue for CountingTun {
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        self.1.note(|calls| calls.read += 1);
        self.0.read(slab, at, mtu)
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        self.1.note(|calls| calls.write += 1);
        self.0.write(slab, packets)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn max_read(&self) -> usize {
        self.0.max_read()
    }
}

struct CountingSocket(Box<dyn Network>, Counter);

impl Network for CountingSocket {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.1.note(|calls| calls.recv += 1);
        self.0.recv(slab, out)
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        self.1.note(|calls| calls.send += 1);
        self.0.send(slab, batch)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.0.fd(n)
    }

    fn recv_slab_len(&self) -> usize {
        self.0.recv_slab_len()
    }
}

struct CountingBinder(MemoryBinder, Counter);

impl Binder for CountingBinder {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let Bound { workers, control, port, .. } = self.0.bind(options, workers)?;
        let workers = workers.into_iter().map(|socket| CountingSocket(socket, self.1.clone()));
        Ok(Bound::new(workers, control, port))
    }
}

#[tokio::test]
async fn a_packet_that_comes_singly_costs_one_call_in_and_one_out() {
    const COUNT: usize = 50;
    let (net, counter) = (MemoryNet::default(), Counter::default());
    let (tun, host) = memory::tun().unwrap();
    host.set_timeout(Some(LONG)).unwrap();
    let builder = |other: u8| {
        let allowed = ipnet::Ipv4Net::from(inner(other));
        Device::builder().peer(PeerUpdate::new(key(other)).allowed_ip(allowed).endpoint(at(other)))
    };
    let tun = CountingTun(tun, counter.clone());
    let binder = CountingBinder(MemoryBinder::new(net.clone(), at(1)), counter.clone());
    let _device = builder(2).private_key(secret(1)).start_with(tun, binder).unwrap();
    let peer = Node::start(&net, 2, builder(1));
    let pass = |n: usize| {
        let text = [n as u8];
        // Packets without a pause between them would be a stream.
        std::thread::sleep(Duration::from_millis(1));
        host.send(&packet(1, 2, &text)).unwrap();
        assert_eq!(peer.next(), packet(1, 2, &text));
        std::thread::sleep(Duration::from_millis(1));
        peer.host.send(&packet(2, 1, &text)).unwrap();
        assert_eq!(next(&host), packet(2, 1, &text));
    };
    pass(0);
    let before = *counter.0.lock().unwrap();
    (0..COUNT).for_each(pass);
    let Calls { read, write, recv, send } = *counter.0.lock().unwrap();
    let calls = [read - before.read, write - before.write, recv - before.recv, send - before.send];
    assert_eq!(calls, [COUNT; 4], "reads, writes, recvs, sends");
}
