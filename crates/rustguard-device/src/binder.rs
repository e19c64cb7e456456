//! How a device gets its sockets: at the start, and whenever its port changes.

mod with_transport;

use rustguard_tun::{
    Network,
    memory::{MemoryNet, MemorySocket},
    udp::{Udp, UdpOptions},
    uring::UringUdp,
};
use std::{io, net::SocketAddr};
pub use with_transport::WithTransport;

/// Makes the sockets of a device.
///
/// A device calls [`bind`](Self::bind) when it starts, when its port changes, and when its interface is set up again.
/// The old sockets are closed once the new ones are open.
pub trait Binder: Send + 'static {
    /// Binds sockets for this many workers, all to one port. Port 0 lets the system choose one.
    ///
    /// # Errors
    /// The port is taken, or the mark is not permitted.
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound>;
}

/// The sockets that a [`Binder`] made.
#[non_exhaustive]
pub struct Bound {
    /// One socket for each worker, which receives and sends with it.
    pub workers: Vec<Box<dyn Network>>,
    /// The same sockets for the control thread, in the same order. It sends by the first, and changes the mark of all.
    pub control: Vec<Box<dyn Network>>,
    /// The UDP port of all of them.
    pub port: u16,
}

impl Bound {
    /// As many sockets for control as there are for workers.
    pub fn new(
        workers: impl IntoIterator<Item = impl Network>,
        control: impl IntoIterator<Item = impl Network>,
        port: u16,
    ) -> Self {
        Self { workers: boxed(workers), control: boxed(control), port }
    }
}

fn boxed(networks: impl IntoIterator<Item = impl Network>) -> Vec<Box<dyn Network>> {
    networks.into_iter().map(|network| Box::new(network) as _).collect()
}

/// UDP over IPv4 and IPv6, by system calls.
pub struct UdpBinder {
    offload: bool,
}

impl UdpBinder {
    /// With `offload`, runs of datagrams are exchanged with the kernel, as far as it supports them (UDP_SEGMENT since
    /// Linux 4.18, UDP_GRO since Linux 5.0). Without it, each datagram is a system call of its own.
    pub fn new(offload: bool) -> Self {
        Self { offload }
    }
}

/// With offload.
impl Default for UdpBinder {
    fn default() -> Self {
        Self { offload: true }
    }
}

impl Binder for UdpBinder {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let workers = self.queues(options.clone().lanes(true), workers)?;
        let (control, port) = (clones(&workers)?, workers[0].port());
        Ok(Bound::new(workers, control, port))
    }
}

impl UdpBinder {
    fn queues(&self, options: UdpOptions, workers: usize) -> io::Result<Vec<Udp>> {
        Udp::bind_queues(&options.offload(self.offload), workers)
    }
}

fn clones(workers: &[Udp]) -> io::Result<Vec<Udp>> {
    workers.iter().map(Udp::try_clone).collect()
}

/// UDP over IPv4 and IPv6, with io_uring between the workers and the kernel.
#[derive(Default)]
pub struct UringBinder(UdpBinder);

impl UringBinder {
    /// As [`UdpBinder::new`].
    pub fn new(offload: bool) -> Self {
        Self(UdpBinder::new(offload))
    }
}

impl Binder for UringBinder {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        // It sends by the sockets that it reads from. It has no lanes.
        let workers = self.0.queues(options.clone(), workers)?;
        let (control, port) = (clones(&workers)?, workers[0].port());
        let workers = workers.into_iter().map(UringUdp::new).collect::<io::Result<Vec<_>>>()?;
        Ok(Bound::new(workers, control, port))
    }
}

/// One socket of a network in memory. Its address is fixed; changes of the port and of the mark have no effect.
pub struct MemoryBinder {
    net: MemoryNet,
    address: SocketAddr,
}

impl MemoryBinder {
    /// A socket with this address in this network.
    pub fn new(net: MemoryNet, address: SocketAddr) -> Self {
        Self { net, address }
    }
}

impl Binder for MemoryBinder {
    fn bind(&mut self, _options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let socket = self.net.bind(self.address)?;
        let clones = || (0..workers).map(|_| socket.try_clone()).collect::<io::Result<Vec<MemorySocket>>>();
        Ok(Bound::new(clones()?, clones()?, self.address.port()))
    }
}
