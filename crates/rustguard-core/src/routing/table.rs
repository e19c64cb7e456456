//! The table in which workers look up packets: the result of an engine's actions.
use super::{
    NextHops, SourceRule,
    prefixes::{Prefixes, Snapshot},
};
use crate::{peer::PeerId, sync::Arc};
use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::net::IpAddr;
use ipnet::IpNet;

/// Where packets for a prefix go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this host: the prefix is the host's own, or a network behind it.
    Host,
    /// To this peer.
    Peer(PeerId),
    /// To one of several peers.
    Several(Arc<NextHops>),
    /// To no peer, even if a shorter prefix is known.
    Nobody,
}

/// An immutable snapshot, cheap to clone and to look up. It shares its unchanged parts with the master copy and with
/// other snapshots.
#[derive(Clone, Default)]
pub struct Routes {
    targets: Snapshot<Target>,
    sources: Snapshot<Owners>,
}

/// The peers that may present a source whose longest prefix this is.
#[derive(Clone, Debug)]
enum Owners {
    One(PeerId),
    Many(Arc<[PeerId]>),
}

/// The master copy.
#[derive(Clone, Default)]
pub struct RouteTable {
    targets: Prefixes<Target>,
    sources: Prefixes<Owners>,
    permitted: BTreeMap<IpNet, Vec<(PeerId, SourceRule)>>,
    /// The number of permissions with [`SourceRule::Any`]: while there is none, prefixes do not affect each other.
    any: usize,
}

impl Routes {
    /// Where packets for this destination go: the longest prefix decides.
    pub fn target(&self, destination: IpAddr) -> Option<&Target> {
        self.targets.lookup(destination)
    }

    /// Whether `from` may present this source: see [`SourceRule`].
    pub fn permits(&self, from: PeerId, source: IpAddr) -> bool {
        match self.sources.lookup(source) {
            Some(Owners::One(peer)) => *peer == from,
            Some(Owners::Many(peers)) => peers.contains(&from),
            None => false,
        }
    }
}

impl core::fmt::Debug for Routes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl RouteTable {
    /// The tables as they are now.
    pub fn snapshot(&self) -> Routes {
        Routes { targets: self.targets.snapshot(), sources: self.sources.snapshot() }
    }

    /// Packets for `prefix` go to this target. Replaces an earlier target.
    pub fn install(&mut self, prefix: IpNet, target: Target) {
        self.targets.insert(prefix.trunc(), target);
    }

    /// Packets for `prefix` follow the next shorter prefix again.
    pub fn remove(&mut self, prefix: IpNet) {
        self.targets.remove(prefix.trunc());
    }

    /// `peer` may present sources of `prefix` by this rule. Replaces an earlier rule.
    pub fn permit(&mut self, peer: PeerId, prefix: IpNet, rule: SourceRule) {
        let prefix = prefix.trunc();
        // Usually one peer has it. There is a list for each prefix, so its capacity starts small.
        let owners = self.permitted.entry(prefix).or_insert_with(|| Vec::with_capacity(1));
        let before = owners.iter().position(|&(owner, _)| owner == peer).map(|at| owners.swap_remove(at).1);
        owners.push((peer, rule));
        self.publish(prefix, before, Some(rule));
    }

    /// `peer` loses the permission to present sources that it had because of `prefix`.
    pub fn forbid(&mut self, peer: PeerId, prefix: IpNet) {
        let prefix = prefix.trunc();
        let Some(owners) = self.permitted.get_mut(&prefix) else { return };
        let before = owners.iter().position(|&(owner, _)| owner == peer).map(|at| owners.swap_remove(at).1);
        if owners.is_empty() {
            self.permitted.remove(&prefix);
        }
        self.publish(prefix, before, None);
    }

    /// Updates the owners in the snapshot: those of `prefix`, and if a rule also affects longer prefixes, those of
    /// these prefixes.
    fn publish(&mut self, prefix: IpNet, before: Option<SourceRule>, after: Option<SourceRule>) {
        let is_any = |rule: Option<SourceRule>| usize::from(rule == Some(SourceRule::Any));
        self.any = self.any + is_any(after) - is_any(before);
        if is_any(before) + is_any(after) == 0 {
            return self.publish_one(prefix);
        }
        // Prefixes are ordered by address, then by length: the prefixes inside of one follow it.
        let inside: Vec<IpNet> =
            self.permitted.range(prefix..).map(|(net, _)| *net).take_while(|net| prefix.contains(net)).collect();
        if !self.permitted.contains_key(&prefix) {
            self.publish_one(prefix);
        }
        for net in inside {
            self.publish_one(net);
        }
    }

    fn publish_one(&mut self, prefix: IpNet) {
        let sources = &mut self.sources;
        let Some(here) = self.permitted.get(&prefix) else {
            sources.remove(prefix);
            return;
        };
        let mut owners: Vec<PeerId> = here.iter().map(|&(peer, _)| peer).collect();
        if self.any > 0 {
            for len in 0..prefix.prefix_len() {
                let above = IpNet::new(prefix.addr(), len).expect("shorter than a valid length").trunc();
                let above = self.permitted.get(&above).into_iter().flatten();
                owners.extend(above.filter(|(_, rule)| *rule == SourceRule::Any).map(|&(peer, _)| peer));
            }
            owners.sort_unstable();
            owners.dedup();
        }
        let owners = match *owners {
            [peer] => Owners::One(peer),
            _ => Owners::Many(Box::<[PeerId]>::from(owners).into()),
        };
        sources.insert(prefix, owners);
    }
}

impl From<NextHops> for Target {
    fn from(hops: NextHops) -> Self {
        match (hops.members(), hops.backup()) {
            ([], None) => Self::Nobody,
            ([only], None) => Self::Peer(only.peer),
            _ => Self::Several(Arc::new(hops)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_longest_prefix_decides_and_snapshots_stay() {
        let mut table = RouteTable::default();
        table.install(net("10.0.0.9/8"), Target::Peer(PeerId(1)));
        table.install(net("10.1.0.0/16"), Target::Host);
        let before = table.snapshot();
        table.install(net("10.1.0.0/16"), NextHops::UNREACHABLE.into());
        assert_eq!(before.target(address("10.1.0.1")), Some(&Target::Host));
        assert_eq!(table.snapshot().target(address("10.1.0.1")), Some(&Target::Nobody));
        table.remove(net("10.1.0.0/16"));
        assert_eq!(table.snapshot().target(address("10.1.0.1")), Some(&Target::Peer(PeerId(1))));
        assert_eq!(table.snapshot().target(address("11.0.0.1")), None);
    }

    #[test]
    fn a_routers_source_is_good_below_others() {
        let (client, router) = (PeerId(1), PeerId(2));
        let mut table = RouteTable::default();
        table.permit(router, net("10.0.0.0/8"), SourceRule::Any);
        table.permit(client, net("10.1.0.1/32"), SourceRule::Longest);
        table.permit(PeerId(3), net("10.0.0.0/8"), SourceRule::Longest);
        let permits = |table: &RouteTable, peer, source| table.snapshot().permits(peer, address(source));
        assert!(permits(&table, client, "10.1.0.1") && permits(&table, router, "10.1.0.1"));
        assert!(!permits(&table, PeerId(3), "10.1.0.1") && permits(&table, PeerId(3), "10.2.0.1"));
        assert!(!permits(&table, client, "10.2.0.1"));
        // If the same prefix is a client's, longer prefixes of others take precedence.
        table.permit(router, net("10.0.0.0/8"), SourceRule::Longest);
        assert!(!permits(&table, router, "10.1.0.1") && permits(&table, router, "10.2.0.1"));
        table.forbid(client, net("10.1.0.1/32"));
        assert!(permits(&table, router, "10.1.0.1"));
        table.forbid(router, net("10.0.0.0/8"));
        table.forbid(PeerId(3), net("10.0.0.0/8"));
        table.forbid(PeerId(3), net("10.0.0.0/8"));
        assert!(!permits(&table, router, "10.1.0.1") && table.permitted.is_empty() && table.any == 0);
    }

    /// The rule in the words of [`SourceRule`], without optimisation.
    fn by_the_rule(permitted: &[(IpNet, PeerId, SourceRule)], from: PeerId, source: IpAddr) -> bool {
        let covering = || permitted.iter().filter(|(net, ..)| net.contains(&source));
        covering().filter(|(_, peer, _)| *peer == from).any(|(net, _, rule)| {
            *rule == SourceRule::Any
                || !covering().any(|(other, peer, _)| *peer != from && other.prefix_len() > net.prefix_len())
        })
    }

    proptest! {
        #[test]
        fn permissions_are_as_the_rule_says(
            steps in proptest::collection::vec((0_u8..8, 0_u8..4, 0_u32..3, any::<bool>(), any::<bool>()), 1..40),
        ) {
            let mut table = RouteTable::default();
            let mut model: Vec<(IpNet, PeerId, SourceRule)> = Vec::new();
            for (high, len, peer, any, add) in steps {
                let net = IpNet::new(IpAddr::from([high << 5, 0, 0, 0]), len).expect("a length").trunc();
                let peer = PeerId(peer);
                model.retain(|&(other, owner, _)| (other, owner) != (net, peer));
                if add {
                    let rule = if any { SourceRule::Any } else { SourceRule::Longest };
                    model.push((net, peer, rule));
                    table.permit(peer, net, rule);
                } else {
                    table.forbid(peer, net);
                }
                let routes = table.snapshot();
                for high in 0..8 {
                    let source = IpAddr::from([high << 5, 0, 0, 1]);
                    for peer in (0..3).map(PeerId) {
                        prop_assert_eq!(routes.permits(peer, source), by_the_rule(&model, peer, source));
                    }
                }
            }
        }
    }
}
