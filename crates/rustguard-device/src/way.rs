//! How the datagrams of a peer's sessions travel: to an address, or through another peer.

use rustguard_core::{
    cookie::Origin,
    node::PeerId,
    paths::{Address, Locator, TransportAddress},
};
use rustguard_tun::{Endpoint, LocalAddr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// To an address.
    Direct(Endpoint),
    /// Through this peer, the relay, which forwards: see [`rustguard_core::forward`].
    Relayed(PeerId),
}

impl Way {
    /// The address; `None` for a way through a peer.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Direct(endpoint) => Some(endpoint),
            Self::Relayed(_) => None,
        }
    }

    /// The address, if UDP leads there; `None` for a way through a peer, and for a transport of the embedder's own.
    pub(crate) fn udp(&self) -> Option<&Endpoint> {
        self.endpoint().filter(|endpoint| TransportAddress::of(endpoint.remote).is_none())
    }

    /// The form of [`rustguard_core::paths`]. For a received datagram, this includes its interface. For a datagram to
    /// be sent, it includes an interface only if the way is bound to it.
    pub(crate) fn locator(&self) -> Locator {
        match self {
            Self::Relayed(relay) => Locator::Peer(*relay),
            Self::Direct(endpoint) => Locator::Address(Address {
                remote: endpoint.remote,
                local: endpoint.local.map(|local| local.ip),
                interface: endpoint.local.map_or(0, |local| local.interface),
            }),
        }
    }
}

impl From<Endpoint> for Way {
    fn from(endpoint: Endpoint) -> Self {
        Self::Direct(endpoint)
    }
}

impl From<Locator> for Way {
    fn from(locator: Locator) -> Self {
        match locator {
            Locator::Address(address) => Self::Direct(endpoint(address)),
            Locator::Peer(relay) => Self::Relayed(relay),
        }
    }
}

/// Converts an address to the form of the sockets.
pub(crate) fn endpoint(address: Address) -> Endpoint {
    let Address { remote, local, interface } = address;
    let local = match (local, interface) {
        (None, 0) => None,
        (None, interface) => {
            let any = if remote.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
            Some(LocalAddr { ip: any, interface, bound: true })
        }
        (Some(ip), interface) => Some(LocalAddr { ip, interface, bound: interface != 0 }),
    };
    Endpoint { local, ..Endpoint::new(remote) }
}

/// The sender of a handshake message, which gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// An address.
    Direct(Endpoint),
    /// A relay has forwarded it.
    Relayed {
        /// The relay.
        relay: PeerId,
        /// The original sender, as the relay claims.
        peer: PeerId,
    },
}

impl Sender {
    /// The way by which the message came.
    pub(crate) fn way(&self) -> Way {
        match *self {
            Self::Direct(endpoint) => Way::Direct(endpoint),
            Self::Relayed { relay, .. } => Way::Relayed(relay),
        }
    }

    /// The origin that a cookie proves, and to which rate limits apply.
    pub(crate) fn origin(&self) -> Origin {
        match *self {
            Self::Direct(endpoint) => Origin::Address(endpoint.remote),
            Self::Relayed { relay, peer } => Origin::Peer { relay, peer },
        }
    }
}

impl From<Endpoint> for Sender {
    fn from(endpoint: Endpoint) -> Self {
        Self::Direct(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_binds_and_a_locator_without_one_leaves_it_to_the_routes() {
        let remote = "192.0.2.1:1".parse().unwrap();
        let ip = "192.0.2.9".parse().unwrap();
        let local = Some(ip);
        assert_eq!(endpoint(Address { remote, local: None, interface: 0 }).local, None);
        let bound = endpoint(Address { remote, local: None, interface: 3 }).local.unwrap();
        assert_eq!(bound, LocalAddr { ip: Ipv4Addr::UNSPECIFIED.into(), interface: 3, bound: true });
        let sticky = endpoint(Address { remote, local, interface: 0 });
        assert_eq!(sticky.local, Some(LocalAddr { ip, interface: 0, bound: false }));
        assert_eq!(Way::from(sticky).locator(), Address { remote, local, interface: 0 }.into());
        assert_eq!(Way::from(Locator::Peer(PeerId(7))).locator(), Locator::Peer(PeerId(7)));
    }
}
