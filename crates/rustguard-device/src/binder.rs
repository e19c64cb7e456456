//! How a device gets its sockets, at the start and whenever its port changes.

use rustguard_tun::{
    Network,
    memory::{MemoryNet, MemorySocket},
    udp::{Udp, UdpOptions},
};
use std::{io, net::SocketAddr};

/// Makes the sockets of a device.
pub trait Binder: Send + 'static {
    /// What it makes.
    type Network: Network;

    /// Binds. Port 0 lets the system choose.
    ///
    /// # Errors
    /// Where the port is taken, or the mark not permitted.
    fn bind(&mut self, options: &UdpOptions) -> io::Result<Bound<Self::Network>>;

    /// Changes the firewall mark of what was bound.
    ///
    /// # Errors
    /// Where the mark is not permitted.
    fn set_fwmark(&self, network: &Self::Network, mark: u32) -> io::Result<()>;
}

/// Sockets, twice: a worker receives and sends, control only sends.
pub struct Bound<N> {
    /// For the worker.
    pub worker: N,
    /// For control.
    pub control: N,
    /// The port that was bound.
    pub port: u16,
}

/// UDP over IPv4 and IPv6.
pub struct UdpBinder;

impl Binder for UdpBinder {
    type Network = Udp;

    fn bind(&mut self, options: &UdpOptions) -> io::Result<Bound<Udp>> {
        let worker = Udp::bind(options)?;
        Ok(Bound { control: worker.try_clone()?, port: worker.port(), worker })
    }

    fn set_fwmark(&self, network: &Udp, mark: u32) -> io::Result<()> {
        network.set_fwmark(mark)
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

    fn bind(&mut self, _options: &UdpOptions) -> io::Result<Bound<MemorySocket>> {
        let worker = self.net.bind(self.address)?;
        Ok(Bound { control: worker.try_clone()?, port: self.address.port(), worker })
    }

    fn set_fwmark(&self, _network: &MemorySocket, _mark: u32) -> io::Result<()> {
        Ok(())
    }
}
