//! The paths of a peer that has several, for the workers: the places from which its packets are expected, and the path
//! of each flow.

use rustguard_core::{
    flow,
    packet::IpHead,
    paths::{Address, Choice, Flows, MAX_SHARES, Place, Share},
    time::Instant,
};
use rustguard_tun::{Endpoint, LocalAddr};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// The choice that [`Paths`](rustguard_core::paths::Paths) has made. It is replaced as a whole, but the table of flows
/// is kept.
pub(crate) struct PathSet {
    known: Vec<Place>,
    pinned: bool,
    shares: Vec<Share>,
    ends: [Option<Endpoint>; MAX_SHARES],
    flows: Arc<Flows>,
}

impl PathSet {
    /// Returns `None` if the peer has a single endpoint and moves when it is heard from another one.
    pub(crate) fn new(choice: &Choice, flows: &Arc<Flows>) -> Option<Self> {
        if choice.known.is_empty() && choice.spread.is_empty() && !choice.pinned {
            return None;
        }
        let mut ends = [None; MAX_SHARES];
        for (share, place) in &choice.spread {
            ends[usize::from(share.path)] = place.address().map(|at| endpoint(*at));
        }
        Some(Self {
            known: choice.known.clone(),
            pinned: choice.pinned,
            shares: choice.spread.iter().map(|(share, _)| *share).collect(),
            ends,
            flows: Arc::clone(flows),
        })
    }

    /// Whether a packet from this endpoint leaves the peer's endpoint unchanged.
    pub(crate) fn expects(&self, from: &Endpoint) -> bool {
        let from = place(from);
        self.pinned || self.known.iter().any(|known| known.covers(&from))
    }

    /// The endpoints that flows are spread over.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Endpoint> {
        self.ends.iter().flatten()
    }

    /// Whether flows are spread over paths.
    pub(crate) fn spreads(&self) -> bool {
        !self.shares.is_empty()
    }

    /// The endpoint for this packet, by its flow. Text that is not an IP packet belongs to flow 0.
    pub(crate) fn endpoint(&self, text: &[u8], now: Instant) -> Option<Endpoint> {
        let flow = IpHead::parse(text).map_or(0, |head| flow::hash(text, &head));
        self.ends[usize::from(self.flows.path(flow, &self.shares, now)?)]
    }
}

/// Converts an endpoint to the form of [`rustguard_core::paths`]. A received datagram has its interface. A datagram to
/// be sent has an interface only if it is bound to it.
pub(crate) fn place(endpoint: &Endpoint) -> Place {
    Place::Address(Address {
        remote: endpoint.remote,
        local: endpoint.local.map(|local| local.ip),
        interface: endpoint.local.map_or(0, |local| local.interface),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_binds_and_a_place_without_one_leaves_it_to_the_routes() {
        let remote = "192.0.2.1:1".parse().unwrap();
        let ip = "192.0.2.9".parse().unwrap();
        let local = Some(ip);
        assert_eq!(endpoint(Address { remote, local: None, interface: 0 }).local, None);
        let bound = endpoint(Address { remote, local: None, interface: 3 }).local.unwrap();
        assert_eq!(bound, LocalAddr { ip: Ipv4Addr::UNSPECIFIED.into(), interface: 3, bound: true });
        let sticky = endpoint(Address { remote, local, interface: 0 });
        assert_eq!(sticky.local, Some(LocalAddr { ip, interface: 0, bound: false }));
        assert_eq!(place(&sticky), Address { remote, local, interface: 0 }.into());
    }

    #[test]
    fn nothing_chosen_is_no_more_than_a_peer() {
        assert!(PathSet::new(&Choice::default(), &Arc::default()).is_none());
        let pinned = PathSet::new(&Choice { pinned: true, ..Choice::default() }, &Arc::default()).unwrap();
        assert!(pinned.expects(&endpoint(Address::new("[::1]:1".parse().unwrap()))));
        assert!(!pinned.spreads());
    }
}
