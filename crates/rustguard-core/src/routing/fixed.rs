//! WireGuard's own routing: allowed IPs decide in both directions.
use super::{Action, Event, NextHops, RoutingEngine, SourceRule};
use crate::{allowed_ips::AllowedIps, peer::PeerId, time::Instant};
use alloc::vec::Vec;
use ipnet::IpNet;

/// A peer's allowed IPs are its addresses. A prefix belongs to the peer that got it last.
#[derive(Clone, Debug, Default)]
pub struct StaticRoutes {
    table: AllowedIps,
}

impl RoutingEngine for StaticRoutes {
    fn handle(&mut self, event: Event<'_>, _: Instant, out: &mut Vec<Action>) {
        match event {
            Event::Peer { peer, config } => self.set(peer, &config.allowed_ips, out),
            Event::PeerRemoved { peer } => self.set(peer, &[], out),
            // No event changes a static route.
            Event::Packet { .. }
            | Event::Signal { .. }
            | Event::Announce { .. }
            | Event::Withdraw { .. }
            | Event::Pools { .. }
            | Event::Time => {}
        }
    }
}

impl StaticRoutes {
    fn set(&mut self, peer: PeerId, allowed_ips: &[IpNet], out: &mut Vec<Action>) {
        for prefix in self.table.of(peer) {
            if !allowed_ips.iter().any(|net| net.trunc() == prefix) {
                self.table.remove(prefix, peer);
                out.extend([Action::Forbid { peer, prefix }, Action::Remove { prefix }]);
            }
        }
        for prefix in allowed_ips.iter().map(IpNet::trunc) {
            let before = self.table.insert(prefix, peer);
            if before == Some(peer) {
                continue;
            }
            out.extend(before.map(|before| Action::Forbid { peer: before, prefix }));
            out.push(Action::Permit { peer, prefix, rule: SourceRule::Longest });
            out.push(Action::Install { prefix, hops: NextHops::single(peer) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{PeerRoutes, Role, Signal},
        *,
    };
    use alloc::{collections::BTreeMap, vec};

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    /// An engine, and a host that carries out its actions.
    #[derive(Default)]
    struct Host {
        engine: StaticRoutes,
        routes: BTreeMap<IpNet, PeerId>,
        sources: BTreeMap<IpNet, Vec<PeerId>>,
    }

    impl Host {
        fn tell(&mut self, event: Event<'_>) -> usize {
            let mut actions = Vec::new();
            self.engine.handle(event, Instant::default(), &mut actions);
            let count = actions.len();
            for action in actions {
                match action {
                    Action::Install { prefix, hops } => {
                        self.routes.insert(prefix, hops.pick(0, |_| true).expect("static routes have a next hop"));
                    }
                    Action::Remove { prefix } => drop(self.routes.remove(&prefix).expect("it was installed")),
                    Action::Permit { peer, prefix, rule } => {
                        assert_eq!(rule, SourceRule::Longest);
                        self.sources.entry(prefix).or_default().push(peer);
                    }
                    Action::Forbid { peer, prefix } => {
                        self.sources.get_mut(&prefix).expect("it was permitted").retain(|&other| other != peer);
                    }
                    other => panic!("{other:?}"),
                }
            }
            count
        }

        fn set(&mut self, peer: PeerId, nets: &[&str]) -> usize {
            let allowed_ips = nets.iter().map(|text| net(text)).collect();
            self.tell(Event::Peer { peer, config: &PeerRoutes { allowed_ips, role: Role::Router } })
        }
    }

    #[test]
    fn prefixes_come_move_and_go() {
        let mut host = Host::default();
        host.set(A, &["10.0.0.9/8", "fd00::/8"]);
        assert_eq!(host.routes, BTreeMap::from([(net("10.0.0.0/8"), A), (net("fd00::/8"), A)]));
        host.set(B, &["10.0.0.0/8"]);
        assert_eq!(host.routes[&net("10.0.0.0/8")], B);
        assert_eq!(host.sources[&net("10.0.0.0/8")], vec![B], "one owner");
        assert_eq!(host.set(B, &["10.0.0.0/8"]), 0, "nothing changed");
        host.set(B, &["192.0.2.0/24"]);
        assert_eq!(host.routes, BTreeMap::from([(net("192.0.2.0/24"), B), (net("fd00::/8"), A)]));
        host.tell(Event::PeerRemoved { peer: A });
        host.tell(Event::PeerRemoved { peer: B });
        assert!(host.routes.is_empty() && host.sources.values().all(Vec::is_empty));
    }

    #[test]
    fn nothing_else_moves_it() {
        let mut host = Host::default();
        host.set(A, &["10.0.0.0/8"]);
        let prefix = net("10.0.0.0/8");
        for event in [
            Event::Time,
            Event::Announce { prefix, metric: 0 },
            Event::Withdraw { prefix },
            Event::Packet { peer: A, packet: &[0x60] },
            Event::Signal { peer: A, signal: Signal::HandshakeFailed },
        ] {
            assert_eq!(host.tell(event), 0);
        }
        assert!(host.engine.deadline().is_none() && host.engine.claims().is_none());
    }
}
