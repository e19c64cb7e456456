//! The head of an inner IP packet: as much as forwarding needs.
use core::net::IpAddr;

/// A checked view of an IPv4 or IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHead {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The packet's length by its own header, at most the bytes given (the rest is padding).
    pub len: usize,
}

impl IpHead {
    /// Reads the head of `packet`; `None` when it is not IP, is cut short or contradicts itself.
    pub fn parse(_packet: &[u8]) -> Option<Self> {
        todo!()
    }
}

/// The length `len` grows to before sealing: a multiple of 16, but never past `mtu` (paper §5.4.6).
pub fn padded_len(_len: usize, _mtu: usize) -> usize {
    todo!()
}
