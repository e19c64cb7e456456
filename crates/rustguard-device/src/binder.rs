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
/// A device calls [`bind`](Self::bind) when it starts, when its port changes, and when its interface is set up again. The old
/// sockets are closed once the new ones are open.
pub trait Binder: Send + 'static {
    /// The socket by which a worker receives and sends.
    type Network: Network;
    /// The socket by which the control thread sends: handshakes, keepalives, probes, packets of a routing engine.
    type Control: Network;

    /// Binds sockets for this many workers, all to one port. Port 0 lets the system choose one.
    ///
    /// # Errors
    /// The port is taken, or the mark is not permitted.
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<Self::Network, Self::Control>>;

    /// Changes the firewall mark of one of the sockets that were bound.
    ///
    /// # Errors
    /// The mark is not permitted.
    fn set_fwmark(&self, network: &Self::Control, mark: u32) -> io::Result<()>;
}

/// The sockets that a [`Binder`] made.
#[non_exhaustive]
pub struct Bound<N, C> {
    /// One socket for each worker, which receives and sends with it.
    pub workers: Vec<N>,
    /// The same sockets for the control thread, in the same order. It sends by the first, and changes the mark of all.
    pub control: Vec<C>,
    /// The UDP port of all of them.
    pub port: u16,
}

impl<N, C> Bound<N, C> {
    /// As many sockets for control as there are for workers.
    pub fn new(workers: Vec<N>, control: Vec<C>, port: u16) -> Self {
        Self { workers, control, port }
    }
}

/// UDP over IPv4 and IPv6, by system calls.
pub struct UdpBinder {
    offload: bool,
}

impl UdpBinder {
    /// With `offload`, the kernel gets and gives runs of datagrams as far as it can (UDP_SEGMENT since Linux 4.18, UDP_GRO since
    /// Linux 5.0); without, each datagram is a system call of its own.
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
    type Network = Udp;
    type Control = Udp;

    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<Udp, Udp>> {
        self.bind_with(options.clone().lanes(true), workers)
    }

    fn set_fwmark(&self, network: &Udp, mark: u32) -> io::Result<()> {
        network.set_fwmark(mark)
    }
}

impl UdpBinder {
    fn bind_with(&self, options: UdpOptions, workers: usize) -> io::Result<Bound<Udp, Udp>> {
        let options = options.offload(self.offload);
        let workers = Udp::bind_queues(&options, workers)?;
        let control = workers.iter().map(Udp::try_clone).collect::<io::Result<_>>()?;
        let port = workers[0].port();
        Ok(Bound::new(workers, control, port))
    }
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
    type Network = UringUdp;
    type Control = Udp;

    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<UringUdp, Udp>> {
        // Its sends go by the sockets that it reads from. It has no lanes.
        let Bound { workers, control, port } = self.0.bind_with(options.clone(), workers)?;
        let workers = workers.into_iter().map(UringUdp::new).collect::<io::Result<_>>()?;
        Ok(Bound::new(workers, control, port))
    }

    fn set_fwmark(&self, network: &Udp, mark: u32) -> io::Result<()> {
        self.0.set_fwmark(network, mark)
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
    type Network = MemorySocket;
    type Control = MemorySocket;

    fn bind(&mut self, _options: &UdpOptions, workers: usize) -> io::Result<Bound<MemorySocket, MemorySocket>> {
        let socket = self.net.bind(self.address)?;
        let clones = || (0..workers).map(|_| socket.try_clone()).collect::<io::Result<_>>();
        Ok(Bound::new(clones()?, clones()?, self.address.port()))
    }

    fn set_fwmark(&self, _network: &MemorySocket, _mark: u32) -> io::Result<()> {
        Ok(())
    }
}
