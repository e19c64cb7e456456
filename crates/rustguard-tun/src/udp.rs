//! The UDP sockets of a tunnel: IPv4 and, where the host has it, IPv6, on the same port.
use crate::{Network, Received, Sent, Transmit};
use std::{io, os::fd::BorrowedFd};

/// What to bind.
#[derive(Clone, Debug, Default)]
pub struct UdpOptions {
    /// Port, 0 for a random one, the same for both families.
    pub port: u16,
    /// SO_MARK on everything sent; 0 for none.
    pub fwmark: u32,
}

/// Both sockets.
pub struct Udp(());

impl Udp {
    /// Binds both families; IPv6 is left out where the host has none.
    pub fn bind(_options: &UdpOptions) -> io::Result<Self> {
        todo!()
    }
    /// The port, chosen or given.
    pub fn port(&self) -> u16 {
        todo!()
    }
    /// Whether IPv6 is there.
    pub fn has_ipv6(&self) -> bool {
        todo!()
    }
    /// Changes SO_MARK.
    pub fn set_fwmark(&self, _mark: u32) -> io::Result<()> {
        todo!()
    }
    /// A second handle on the same sockets (control sends handshakes through one, the worker owns the other).
    pub fn try_clone(&self) -> io::Result<Self> {
        todo!()
    }
}

impl Network for Udp {
    fn recv(&mut self, _slab: &mut [u8], _out: &mut Vec<Received>) -> io::Result<()> {
        todo!()
    }
    fn send(&mut self, _slab: &[u8], _batch: &[Transmit]) -> Sent {
        todo!()
    }
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::empty()
    }
    fn recv_slab_len(&self) -> usize {
        todo!()
    }
}
