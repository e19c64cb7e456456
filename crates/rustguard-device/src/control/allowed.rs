//! The allowed IPs as they were configured.

use ipnet::IpNet;
use rustguard_core::{allowed_ips::AllowedIps, node::PeerId};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Which peer has which allowed IPs.
pub(super) enum Allowed {
    /// As in WireGuard: a prefix belongs to the peer that was given it last.
    Exclusive(AllowedIps),
    /// Limits of what each peer may carry, for an engine that decides about routes.
    Shared(BTreeMap<PeerId, BTreeSet<IpNet>>),
}

impl Allowed {
    pub(super) fn new(shared: bool) -> Self {
        if shared { Self::Shared(BTreeMap::new()) } else { Self::Exclusive(AllowedIps::default()) }
    }

    /// Gives `net` to `peer`; returns the peer that has lost it.
    pub(super) fn insert(&mut self, net: IpNet, peer: PeerId) -> Option<PeerId> {
        match self {
            Self::Exclusive(table) => table.insert(net, peer).filter(|&before| before != peer),
            Self::Shared(nets) => {
                nets.entry(peer).or_default().insert(net.trunc());
                None
            }
        }
    }

    pub(super) fn remove(&mut self, net: IpNet, peer: PeerId) {
        match self {
            Self::Exclusive(table) => {
                table.remove(net, peer);
            }
            Self::Shared(nets) => {
                if let Some(nets) = nets.get_mut(&peer) {
                    nets.remove(&net.trunc());
                }
            }
        }
    }

    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        match self {
            Self::Exclusive(table) => table.remove_peer(peer),
            Self::Shared(nets) => {
                nets.remove(&peer);
            }
        }
    }

    /// Whether packets to this address go to a peer, by a route of their own: a default route does not make the whole Internet a part of
    /// the tunnel. Bounds are no routes.
    pub(super) fn leads_into_tunnel(&self, address: IpAddr) -> bool {
        match self {
            Self::Exclusive(table) => {
                table.lookup(address).is_some_and(|peer| self.routes_of(peer).iter().any(|net| net.contains(&address)))
            }
            Self::Shared(_) => false,
        }
    }

    /// The peer's prefixes that are routes, without default routes.
    pub(super) fn routes_of(&self, peer: PeerId) -> Vec<IpNet> {
        match self {
            Self::Exclusive(table) => table.of(peer).into_iter().filter(|net| net.prefix_len() > 0).collect(),
            Self::Shared(_) => Vec::new(),
        }
    }

    pub(super) fn of(&self, peer: PeerId) -> Vec<IpNet> {
        match self {
            Self::Exclusive(table) => table.of(peer),
            Self::Shared(nets) => nets.get(&peer).into_iter().flatten().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    /// What both kinds have in common, and who has lost what.
    fn fill(shared: bool) -> (Allowed, Option<PeerId>) {
        let mut allowed = Allowed::new(shared);
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
        let mut allowed = Allowed::new(false);
        allowed.insert(net("0.0.0.0/0"), A);
        allowed.insert(net("10.9.0.0/24"), A);
        allowed.insert(net("192.168.1.0/24"), B);
        let inside = |ip: &str| allowed.leads_into_tunnel(ip.parse().unwrap());
        assert!(inside("10.9.0.7") && inside("192.168.1.5"));
        assert!(!inside("192.0.2.1") && !inside("2001:db8::1"));
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
