//! Where a peer can be reached.
use super::transport_address::TransportAddress;
use crate::peer::PeerId;
use core::net::{IpAddr, SocketAddr};

/// Where a peer can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Locator {
    /// Directly, at an address.
    Address(Address),
    /// Through this peer, the relay: see [`forward`](crate::forward).
    Peer(PeerId),
}

/// An address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The peer's address.
    pub remote: SocketAddr,
    /// Our own address, if it must be a certain one.
    pub local: Option<IpAddr>,
    /// The index of the interface by which datagrams must leave; 0: the kernel's routes decide.
    pub interface: u32,
}

impl Locator {
    /// Whether a datagram came from this locator.
    pub fn covers(&self, from: &Self) -> bool {
        match (self, from) {
            (Self::Address(address), Self::Address(from)) => address.covers(from),
            (Self::Peer(relay), Self::Peer(from)) => relay == from,
            _ => false,
        }
    }

    /// The address; `None` for a relay.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::Peer(_) => None,
        }
    }

    /// The relay; `None` for an address.
    pub fn relay(&self) -> Option<PeerId> {
        match *self {
            Self::Address(_) => None,
            Self::Peer(relay) => Some(relay),
        }
    }

    /// Whether datagrams travel indirectly: through a peer, or by a transport of the embedder instead of UDP.
    pub fn is_indirect(&self) -> bool {
        self.address().is_none_or(|address| TransportAddress::of(address.remote).is_some())
    }
}

impl From<Address> for Locator {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

impl Address {
    /// This address. The kernel's routes decide from where datagrams leave.
    pub const fn new(remote: SocketAddr) -> Self {
        Self { remote, local: None, interface: 0 }
    }

    /// Whether a datagram came from this address. `from` has the datagram's source address, our address that it was
    /// sent to, and the interface by which it arrived.
    pub fn covers(&self, from: &Self) -> bool {
        self.remote == from.remote
            && self.local.is_none_or(|local| from.local.is_none_or(|from| from == local))
            && (self.interface == 0 || from.interface == 0 || self.interface == from.interface)
    }
}
