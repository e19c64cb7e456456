//! How a device gets its sockets, at the start and whenever its port changes.

use rustguard_tun::{
    Network,
    memory::{MemoryNet, MemorySocket},
    udp::{Udp, UdpOptions},
    uring::UringUdp,
};
use std::{io, net::SocketAddr};

/// Makes the sockets of a device.
pub trait Binder: Send + 'static {
    /// What a worker receives with and sends with.
    type Network: Network;
    /// What control sends with.
    type Control: Network;

    /// Binds, for as many workers as the device has queues. Port 0 lets the system choose.
    ///
    /// # Errors
    /// Where the port is taken, or the mark not permitted.
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<Self::Network, Self::Control>>;

    /// Changes the firewall mark of what was bound.
    ///
    /// # Errors
    /// Where the mark is not permitted.
    fn set_fwmark(&self, network: &Self::Control, mark: u32) -> io::Result<()>;
}

/// Sockets: each worker receives and sends with its own; control only sends.
pub struct Bound<N, C> {
    /// One for each worker.
    pub workers: Vec<N>,
    /// As many, the same sockets: control sends by the first, and changes the mark of all.
    pub control: Vec<C>,
    /// The port that was bound.
    pub port: u16,
}

/// UDP over IPv4 and IPv6.
pub struct UdpBinder {
    /// Exchange runs of datagrams with the kernel, as far as it is able to (UDP_SEGMENT, UDP_GRO).
    pub offload: bool,
}

impl Default for UdpBinder {
    fn default() -> Self {
        Self { offload: true }
    }
}

impl Binder for UdpBinder {
    type Network = Udp;
    type Control = Udp;

    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<Udp, Udp>> {
        let options = UdpOptions { offload: self.offload, ..options.clone() };
        let workers = Udp::bind_queues(&options, workers)?;
        let control = workers.iter().map(Udp::try_clone).collect::<io::Result<_>>()?;
        Ok(Bound { control, port: workers[0].port(), workers })
    }

    fn set_fwmark(&self, network: &Udp, mark: u32) -> io::Result<()> {
        network.set_fwmark(mark)
    }
}

/// The same, with io_uring between the workers and the kernel.
#[derive(Default)]
pub struct UringBinder(pub UdpBinder);

impl Binder for UringBinder {
    type Network = UringUdp;
    type Control = Udp;

    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound<UringUdp, Udp>> {
        let Bound { workers, control, port } = self.0.bind(options, workers)?;
        let workers = workers.into_iter().map(UringUdp::new).collect::<io::Result<_>>()?;
        Ok(Bound { workers, control, port })
    }

    fn set_fwmark(&self, network: &Udp, mark: u32) -> io::Result<()> {
        self.0.set_fwmark(network, mark)
    }
}

/// A socket of a [`MemoryNet`]: its address is fixed, ports and marks mean nothing there.
pub struct MemoryBinder {
    /// The network.
    pub net: MemoryNet,
    /// The address.
    pub address: SocketAddr,
}

impl Binder for MemoryBinder {
    type Network = MemorySocket;
    type Control = MemorySocket;

    fn bind(&mut self, _options: &UdpOptions, workers: usize) -> io::Result<Bound<MemorySocket, MemorySocket>> {
        let socket = self.net.bind(self.address)?;
        let clones = || (0..workers).map(|_| socket.try_clone()).collect::<io::Result<_>>();
        Ok(Bound { workers: clones()?, control: clones()?, port: self.address.port() })
    }

    fn set_fwmark(&self, _network: &MemorySocket, _mark: u32) -> io::Result<()> {
        Ok(())
    }
}
