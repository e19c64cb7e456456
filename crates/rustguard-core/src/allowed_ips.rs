//! Allowed IPs: longest prefix match from address to peer (cryptokey routing).
//!
//! The trie is ts_bart's: 21 ns a look-up among 10,000 routes, `no_std`, and it can be cloned, which makes a snapshot.

use crate::node::PeerId;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::net::IpAddr;
use ipnet::IpNet;
use ts_bart::RoutingTable as _;

/// Who has which prefixes: the master copy, which can be changed.
#[derive(Default)]
pub struct AllowedIps {
    routes: Routes,
    /// The same the other way round.
    of: BTreeMap<PeerId, BTreeSet<IpNet>>,
}

/// The look-up alone; `Clone` makes a snapshot for the data plane.
#[derive(Clone, Default)]
pub struct Routes(ts_bart::Table<PeerId>);

impl Routes {
    /// The peer with the longest prefix that holds `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<PeerId> {
        self.0.lookup(address).copied()
    }
}

impl AllowedIps {
    /// Gives `net` (host bits are cut) to `peer`; returns who had exactly this prefix before.
    pub fn insert(&mut self, net: IpNet, peer: PeerId) -> Option<PeerId> {
        let net = net.trunc();
        let before = self.routes.0.insert(net, peer);
        if let Some(before) = before.filter(|&before| before != peer) {
            self.forget(net, before);
        }
        self.of.entry(peer).or_default().insert(net);
        before
    }

    /// Takes `net` away from `peer`; false when that peer did not have exactly it.
    pub fn remove(&mut self, net: IpNet, peer: PeerId) -> bool {
        let net = net.trunc();
        let had = self.forget(net, peer);
        if had {
            self.routes.0.remove(net);
        }
        had
    }

    /// Takes everything from `peer`.
    pub fn remove_peer(&mut self, peer: PeerId) {
        for net in self.of.remove(&peer).unwrap_or_default() {
            self.routes.0.remove(net);
        }
    }

    /// The peer with the longest prefix that holds `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<PeerId> {
        self.routes.lookup(address)
    }

    /// The prefixes of `peer`, ordered.
    pub fn of(&self, peer: PeerId) -> Vec<IpNet> {
        self.of.get(&peer).into_iter().flatten().copied().collect()
    }

    /// The look-up, to be cloned.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    fn forget(&mut self, net: IpNet, peer: PeerId) -> bool {
        let Some(nets) = self.of.get_mut(&peer) else { return false };
        let had = nets.remove(&net);
        if nets.is_empty() {
            self.of.remove(&peer);
        }
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn c02_the_more_specific_prefix_decides() {
        let mut table = AllowedIps::default();
        table.insert(net("10.0.0.0/8"), PeerId(1));
        table.insert(net("10.1.2.3/32"), PeerId(2));
        table.insert(net("::/0"), PeerId(3));
        assert_eq!(table.lookup(ip("10.1.2.3")), Some(PeerId(2)));
        assert_eq!(table.lookup(ip("10.1.2.4")), Some(PeerId(1)));
        assert_eq!(table.lookup(ip("11.0.0.1")), None);
        assert_eq!(table.lookup(ip("fd00::1")), Some(PeerId(3)));
    }

    #[test]
    fn a_prefix_belongs_to_the_last_who_was_given_it() {
        let mut table = AllowedIps::default();
        assert_eq!(table.insert(net("10.0.0.7/24"), PeerId(1)), None);
        assert_eq!(table.insert(net("10.0.0.9/24"), PeerId(2)), Some(PeerId(1)));
        assert!(table.of(PeerId(1)).is_empty());
        assert_eq!(table.of(PeerId(2)), [net("10.0.0.0/24")]);
        assert!(!table.remove(net("10.0.0.0/24"), PeerId(1)), "not the holder");
        assert!(table.remove(net("10.0.0.0/24"), PeerId(2)));
        assert_eq!(table.lookup(ip("10.0.0.1")), None);
    }

    #[test]
    fn a_snapshot_does_not_see_later_changes() {
        let mut table = AllowedIps::default();
        table.insert(net("0.0.0.0/0"), PeerId(1));
        let snapshot = table.routes().clone();
        table.remove_peer(PeerId(1));
        assert_eq!((snapshot.lookup(ip("1.1.1.1")), table.lookup(ip("1.1.1.1"))), (Some(PeerId(1)), None));
    }

    #[test]
    fn c29_a_hundred_thousand_prefixes() {
        let mut table = AllowedIps::default();
        for n in 0..100_000_u32 {
            table.insert(Ipv4Net::from(Ipv4Addr::from(n * 7)).into(), PeerId(n % 10_000));
        }
        assert_eq!(table.lookup(Ipv4Addr::from(7 * 54_321).into()), Some(PeerId(4_321)));
        assert_eq!(table.of(PeerId(5)).len(), 10);
        table.remove_peer(PeerId(5));
        assert_eq!(table.lookup(Ipv4Addr::from(7 * 5).into()), None);
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        // Few distinct bits, so that prefixes nest and collide.
        prop_oneof![
            (0..16_u32, 0..=32_u8).prop_map(|(n, len)| Ipv4Net::new(Ipv4Addr::from(n << 28 | n), len).unwrap().into()),
            (0..16_u128, 0..=128_u8)
                .prop_map(|(n, len)| Ipv6Net::new(Ipv6Addr::from(n << 124 | n), len).unwrap().into()),
        ]
    }

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn look_ups_agree_with_a_linear_scan(
            steps in proptest::collection::vec((any_net(), 0..4_u32, 0..4_u8), 1..60),
            probes in proptest::collection::vec(any_net(), 1..20),
        ) {
            let (mut table, mut model) = (AllowedIps::default(), BTreeMap::new());
            for (net, peer, action) in steps {
                match action {
                    0 => {
                        let had = model.get(&net.trunc()) == Some(&peer);
                        prop_assert_eq!(table.remove(net, PeerId(peer)), had);
                        if had { model.remove(&net.trunc()); }
                    }
                    1 => {
                        table.remove_peer(PeerId(peer));
                        model.retain(|_, &mut holder| holder != peer);
                    }
                    _ => {
                        prop_assert_eq!(table.insert(net, PeerId(peer)).map(|p| p.0), model.insert(net.trunc(), peer));
                    }
                }
            }
            for probe in probes {
                let expected = model.iter().filter(|(net, _)| net.contains(&probe.addr())).max_by_key(|(net, _)| net.prefix_len());
                prop_assert_eq!(table.lookup(probe.addr()).map(|p| p.0), expected.map(|(_, &peer)| peer));
            }
            for peer in 0..4 {
                let expected: Vec<_> = model.iter().filter(|&(_, &p)| p == peer).map(|(&net, _)| net).collect();
                prop_assert_eq!(table.of(PeerId(peer)), expected);
            }
        }
    }
}
