//! Allowed IPs: longest prefix match from address to peer (cryptokey routing).
use crate::{peer::PeerId, sync::Arc};
use alloc::{collections::BTreeSet, vec::Vec};
use core::{fmt, net::IpAddr};
use ipnet::{IpNet, Ipv4Net};
use ts_bart::{RoutingTable, Table};

/// The table. Lookups are cheap; `Clone` makes a snapshot.
///
/// A snapshot costs two counters. The first change after a snapshot copies the table, further changes are made in
/// place: a burst of changes between two snapshots costs one copy.
#[derive(Clone, Default)]
pub struct AllowedIps {
    routes: Arc<Table<PeerId>>,
    /// The same entries by peer: for reports, and for the removal of a peer. One set for all peers: most have one or
    /// two prefixes.
    prefixes: Arc<BTreeSet<(PeerId, IpNet)>>,
}

impl AllowedIps {
    /// Gives `net` (host bits are cleared) to `peer`. Returns the peer that had exactly this prefix before.
    pub fn insert(&mut self, net: IpNet, peer: PeerId) -> Option<PeerId> {
        let net = net.trunc();
        let before = Arc::make_mut(&mut self.routes).insert(net, peer);
        let prefixes = Arc::make_mut(&mut self.prefixes);
        if let Some(before) = before.filter(|&before| before != peer) {
            prefixes.remove(&(before, net));
        }
        prefixes.insert((peer, net));
        before
    }

    /// Takes `net` away from `peer`; false if that peer did not have exactly this prefix.
    pub fn remove(&mut self, net: IpNet, peer: PeerId) -> bool {
        let net = net.trunc();
        let has = self.prefixes.contains(&(peer, net));
        if has {
            Arc::make_mut(&mut self.routes).remove(net);
            Arc::make_mut(&mut self.prefixes).remove(&(peer, net));
        }
        has
    }

    /// Takes all prefixes away from `peer`.
    pub fn remove_peer(&mut self, peer: PeerId) {
        let nets = self.of(peer);
        if nets.is_empty() {
            return;
        }
        let (prefixes, routes) = (Arc::make_mut(&mut self.prefixes), Arc::make_mut(&mut self.routes));
        for net in nets {
            prefixes.remove(&(peer, net));
            routes.remove(net);
        }
    }

    /// The peer with the longest prefix that contains `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<PeerId> {
        self.routes.lookup(address).copied()
    }

    /// The prefixes of `peer`, in a stable order.
    pub fn of(&self, peer: PeerId) -> Vec<IpNet> {
        let from = (peer, IpNet::V4(Ipv4Net::default()));
        self.prefixes.range(from..).take_while(|(other, _)| *other == peer).map(|(_, net)| *net).collect()
    }
}

impl fmt::Debug for AllowedIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.prefixes.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    #[test]
    fn host_bits_are_cut_and_snapshots_stay() {
        let mut table = AllowedIps::default();
        assert_eq!(table.insert(net("10.1.2.3/8"), PeerId(1)), None);
        let snapshot = table.clone();
        assert_eq!(table.insert(net("10.9.9.9/8"), PeerId(2)), Some(PeerId(1)));
        assert_eq!(table.of(PeerId(2)), [net("10.0.0.0/8")]);
        assert!(table.of(PeerId(1)).is_empty());
        assert_eq!(snapshot.lookup(IpAddr::from([10, 0, 0, 1])), Some(PeerId(1)));
        assert!(!table.remove(net("10.0.0.0/8"), PeerId(1)) && table.remove(net("10.0.0.1/8"), PeerId(2)));
        assert_eq!(table.lookup(IpAddr::from([10, 0, 0, 1])), None);
    }

    #[test]
    fn a_hundred_thousand_prefixes() {
        let mut table = AllowedIps::default();
        for i in 0..100_000_u32 {
            let address = IpAddr::from((0x0a00_0000 + i * 2).to_be_bytes());
            table.insert(IpNet::new(address, 32).expect("a host prefix"), PeerId(i % 10_000));
        }
        assert_eq!(table.of(PeerId(7)).len(), 10);
        assert_eq!(table.lookup(IpAddr::from((0x0a00_0000_u32 + 2 * 12_345).to_be_bytes())), Some(PeerId(2_345)));
        assert_eq!(table.lookup(IpAddr::from([10, 0, 0, 1])), None);
        for peer in 0..10_000 {
            table.remove_peer(PeerId(peer));
        }
        assert_eq!(table.lookup(IpAddr::from([10, 0, 0, 0])), None);
    }

    /// Only few bits vary, so that prefixes collide and nest.
    fn any_net() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<[bool; 2]>(), 0..4_u8, 0..=32_u8)
            .prop_map(|(high, low, len)| IpNet::new(v4(high, low), len).expect("a length in range"));
        let v6 = (0..4_u8, prop_oneof![0..=16_u8, 120..=128_u8])
            .prop_map(|(low, len)| IpNet::new(v6(low), len).expect("a length in range"));
        prop_oneof![v4, v6]
    }

    fn v4([a, b]: [bool; 2], low: u8) -> IpAddr {
        IpAddr::from([if a { 10 } else { 192 }, if b { 255 } else { 0 }, 0, low])
    }

    fn v6(low: u8) -> IpAddr {
        IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low])
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(IpNet, PeerId),
        Remove(IpNet, PeerId),
        RemovePeer(PeerId),
        Snapshot,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let peer = || (0..3_u32).prop_map(PeerId);
        prop_oneof![
            6 => (any_net(), peer()).prop_map(|(net, peer)| Step::Insert(net, peer)),
            3 => (any_net(), peer()).prop_map(|(net, peer)| Step::Remove(net, peer)),
            1 => peer().prop_map(Step::RemovePeer),
            1 => Just(Step::Snapshot),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_scan(steps in proptest::collection::vec(any_step(), 0..120)) {
            let mut table = AllowedIps::default();
            let mut model: BTreeMap<IpNet, PeerId> = BTreeMap::new();
            let mut snapshot = table.clone();
            for step in steps {
                match step {
                    Step::Insert(net, peer) => prop_assert_eq!(table.insert(net, peer), model.insert(net.trunc(), peer)),
                    Step::Remove(net, peer) => {
                        let has = model.get(&net.trunc()) == Some(&peer);
                        prop_assert_eq!(table.remove(net, peer), has);
                        if has {
                            model.remove(&net.trunc());
                        }
                    }
                    Step::RemovePeer(peer) => {
                        table.remove_peer(peer);
                        model.retain(|_, owner| *owner != peer);
                    }
                    Step::Snapshot => snapshot = table.clone(),
                }
                for low in 0..5 {
                    for address in [v4([true, false], low), v4([false, false], low), v4([true, true], low), v6(low)] {
                        let best = model.iter().filter(|(net, _)| net.contains(&address)).max_by_key(|(net, _)| net.prefix_len());
                        prop_assert_eq!(table.lookup(address), best.map(|(_, peer)| *peer));
                    }
                }
                for peer in (0..3).map(PeerId) {
                    let expected: Vec<IpNet> = model.iter().filter(|(_, owner)| **owner == peer).map(|(net, _)| *net).collect();
                    prop_assert_eq!(table.of(peer), expected);
                }
            }
            drop(snapshot);
        }
    }
}
