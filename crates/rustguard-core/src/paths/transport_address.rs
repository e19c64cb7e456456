//! Addresses at a transport of the embedder, beside UDP.
use core::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// The first half of the addresses: 100::/64, the discard prefix (RFC 6666). No host has such an address: a datagram
/// that goes there by mistake reaches nobody.
const PREFIX: u64 = 0x0100_0000_0000_0000;
/// The port of all these addresses. It has no meaning, but parsers of endpoints refuse zero.
const PORT: u16 = 1;

/// An address of a peer at a transport of the embedder (TCP, WebSocket, …), which is a way to a peer beside UDP. The
/// embedder gives the number its meaning: a connection, a row of a table.
///
/// It is an address in 100::/64 (RFC 6666), so that all code for addresses works with it. It has a meaning on this host
/// only: peers are never told of it and do not probe it, and such an address from a peer is ignored.
///
/// Such a way counts as indirect, like a way through a peer: it is used if no address answers by UDP, or if UDP takes
/// more than 100 ms longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransportAddress(u64);

impl TransportAddress {
    /// The address with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The transport address that this address is; `None` for all others.
    pub const fn of(address: SocketAddr) -> Option<Self> {
        match address.ip() {
            IpAddr::V6(ip) if (ip.to_bits() >> 64) as u64 == PREFIX => Some(Self(ip.to_bits() as u64)),
            _ => None,
        }
    }
}

impl From<TransportAddress> for SocketAddr {
    fn from(TransportAddress(number): TransportAddress) -> Self {
        let ip = Ipv6Addr::from_bits(u128::from(PREFIX) << 64 | u128::from(number));
        Self::new(ip.into(), PORT)
    }
}

/// `transport 7`.
impl fmt::Display for TransportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_number_is_an_address_in_the_discard_prefix_and_no_other_address_is_one() {
        for number in [0, 7, u64::MAX] {
            let address = SocketAddr::from(TransportAddress::new(number));
            assert_eq!(TransportAddress::of(address).map(TransportAddress::number), Some(number));
        }
        assert_eq!(SocketAddr::from(TransportAddress::new(7)).to_string(), "[100::7]:1");
        for other in ["[100:0:0:1::7]:1", "[::100]:1", "[2001:db8::7]:1", "100.0.0.7:1"] {
            assert_eq!(TransportAddress::of(other.parse().unwrap()), None, "{other}");
        }
    }
}
