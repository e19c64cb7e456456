//! The allowed IPs as they were configured.

use ipnet::{IpNet, Ipv4Net};
use rustguard_core::{allowed_ips::AllowedIps, node::PeerId, routing::AllowedIpsMeaning};
use std::{collections::BTreeSet, net::IpAddr};

/// The allowed IPs of each peer.
pub(super) enum Allowed {
    /// As in WireGuard: a prefix belongs to the peer that was given it last.
    Exclusive(AllowedIps),
    /// Several peers may have a prefix, and an engine decides about routes.
    Shared {
        /// One set for all: most peers have one prefix or two.
        nets: BTreeSet<(PeerId, IpNet)>,
        /// Their meaning to the engine.
        meaning: AllowedIpsMeaning,
    },
}

impl Allowed {
    pub(super) fn new(shared: bool, meaning: AllowedIpsMeaning) -> Self {
        match shared {
            true => Self::Shared { nets: BTreeSet::new(), meaning },
            false => Self::Exclusive(AllowedIps::default()),
        }
    }

    /// Gives `net` to `peer`; returns the peer that has lost it.
    pub(super) fn insert(&mut self, net: IpNet, peer: PeerId) -> Option<PeerId> {
        match self {
            Self::Exclusive(table) => table.insert(net, peer).filter(|&before| before != peer),
            Self::Shared { nets, .. } => {
                nets.insert((peer, net.trunc()));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, net: IpNet, peer: PeerId) {
        match self {
            Self::Exclusive(table) => {
                table.remove(net, peer);
            }
            Self::Shared { nets, .. } => {
                nets.remove(&(peer, net.trunc()));
            }
        }
    }

    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        match self {
            Self::Exclusive(table) => table.remove_peer(peer),
            Self::Shared { nets, .. } => {
                for net in of(nets, peer).collect::<Vec<_>>() {
                    nets.remove(&(peer, net));
                }
            }
        }
    }

    /// Whether packets to this address go to a peer by a route other than a default route, which would make the whole
    /// Internet a part of the tunnel. Limits are no routes.
    pub(super) fn leads_into_tunnel(&self, address: IpAddr) -> bool {
        match self {
            Self::Exclusive(table) => {
                table.lookup(address).is_some_and(|peer| self.routes_of(peer).iter().any(|net| net.contains(&address)))
            }
            Self::Shared { meaning: AllowedIpsMeaning::Addresses, nets } => {
                nets.iter().any(|(_, net)| net.prefix_len() > 0 && net.contains(&address))
            }
            Self::Shared { .. } => false,
        }
    }

    /// The peer's prefixes that are routes, without default routes.
    pub(super) fn routes_of(&self, peer: PeerId) -> Vec<IpNet> {
        match self {
            Self::Shared { meaning: AllowedIpsMeaning::Limits, .. } => Vec::new(),
            _ => self.of(peer).into_iter().filter(|net| net.prefix_len() > 0).collect(),
        }
    }

    pub(super) fn of(&self, peer: PeerId) -> Vec<IpNet> {
        match self {
            Self::Exclusive(table) => table.of(peer),
            Self::Shared { nets, .. } => of(nets, peer).collect(),
        }
    }
}

fn of(nets: &BTreeSet<(PeerId, IpNet)>, peer: PeerId) -> impl Iterator<Item = IpNet> {
    let from = (peer, IpNet::V4(Ipv4Net::default()));
    nets.range(from..).take_while(move |(other, _)| *other == peer).map(|(_, net)| *net)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    /// Allowed IPs of either kind, and the peer that has lost a prefix.
    fn fill(shared: bool) -> (Allowed, Option<PeerId>) {
        let mut allowed = Allowed::new(shared, AllowedIpsMeaning::Limits);
        assert_eq!(allowed.insert(net("10.0.0.1/8"), A), None);
        assert_eq!(allowed.insert(net("10.0.0.0/8"), A), None, "from itself");
        assert_eq!(allowed.insert(net("10.1.0.0/16"), A), None);
        let lost = allowed.insert(net("10.0.0.0/8"), B);
        allowed.insert(net("10.2.0.0/16"), B);
        (allowed, lost)
    }

    #[test]
    fn a_prefix_belongs_to_who_was_given_it_last() {
        let (mut allowed, lost) = fill(false);
        assert_eq!(lost, Some(A));
        assert_eq!(
            (allowed.of(A), allowed.of(B)),
            (vec![net("10.1.0.0/16")], vec![net("10.0.0.0/8"), net("10.2.0.0/16")])
        );
        allowed.remove(net("10.0.0.0/8"), A);
        assert_eq!(allowed.of(B).len(), 2, "that was not A's");
        allowed.remove(net("10.0.0.9/8"), B);
        assert_eq!(allowed.of(B), [net("10.2.0.0/16")]);
        allowed.remove_peer(B);
        assert!(allowed.of(B).is_empty() && allowed.of(A).len() == 1);
    }

    #[test]
    fn a_default_route_does_not_make_the_internet_a_part_of_the_tunnel() {
        for (shared, meaning, routes) in [
            (false, AllowedIpsMeaning::Addresses, true),
            (true, AllowedIpsMeaning::Addresses, true),
            (true, AllowedIpsMeaning::Limits, false),
        ] {
            let mut allowed = Allowed::new(shared, meaning);
            allowed.insert(net("0.0.0.0/0"), A);
            allowed.insert(net("10.9.0.0/24"), A);
            allowed.insert(net("192.168.1.0/24"), B);
            let inside = |ip: &str| allowed.leads_into_tunnel(ip.parse().unwrap());
            assert_eq!((inside("10.9.0.7"), inside("192.168.1.5")), (routes, routes));
            assert!(!inside("192.0.2.1") && !inside("2001:db8::1"));
            assert_eq!(allowed.routes_of(A).len(), usize::from(routes));
        }
    }

    #[test]
    fn bounds_are_each_peers_own() {
        let (mut allowed, lost) = fill(true);
        assert_eq!(lost, None);
        assert_eq!(allowed.of(A), [net("10.0.0.0/8"), net("10.1.0.0/16")]);
        assert_eq!(allowed.of(B), [net("10.0.0.0/8"), net("10.2.0.0/16")]);
        allowed.remove(net("10.0.0.9/8"), B);
        assert_eq!((allowed.of(A).len(), allowed.of(B)), (2, vec![net("10.2.0.0/16")]));
        allowed.remove_peer(A);
        assert!(allowed.of(A).is_empty() && allowed.of(B).len() == 1);
    }
}
