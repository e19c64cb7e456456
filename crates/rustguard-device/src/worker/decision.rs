//! The decisions about one batch: whether the peer may use this source, where routing sends the packet, and what the
//! embedder's filter decides.

use crate::{
    config::SourceCheck,
    drops::DropReason,
    filter::{self, Packet, RouteDecision},
    key::to_base64,
    policy::seat::InForce,
    relay::RelayRule,
    shared::{Shared, peer::PeerShared, table::Table, to_control::RouteQuestion},
};
use arc_swap::Guard;
use rustguard_core::{node::PeerId, packet::IpHead, routing::Role, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// One batch's view of the routing table. It remembers the last answers, because the packets of a run mostly have the
/// same addresses.
pub(super) struct Decision<'a> {
    table: &'a Table,
    shared: &'a Shared,
    policy: Guard<Option<Arc<InForce>>>,
    /// When the batch began, if there is a policy.
    began: Instant,
    last_source: Cell<Option<(PeerId, IpAddr)>>,
    last_decision: Cell<Option<(RouteQuestion, RelayDecision)>>,
    last_key: Cell<Option<(PeerId, PublicKey)>>,
}

/// The final decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// To the host.
    Deliver,
    /// To a peer.
    Forward(PeerId),
    /// Nowhere.
    Drop(DropReason),
    /// Nowhere, without a count: multicast and broadcast of the host that no peer gets.
    Ignore,
}

/// The decision, by addresses, about a packet for which routing has a peer.
#[derive(Clone, Copy)]
enum RelayDecision {
    Relay,
    ToHost,
    Refuse,
}

/// Whether this is a multicast or broadcast address: neighbour discovery, mDNS and the like, which a host sends to
/// every interface.
pub(super) fn is_for_all(destination: IpAddr) -> bool {
    destination.is_multicast() || destination == IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl<'a> Decision<'a> {
    pub(super) fn new(table: &'a Table, shared: &'a Shared) -> Self {
        let (last_source, last_decision, last_key) = Default::default();
        let policy = shared.policy.in_force();
        let began = if policy.is_some() { super::now() } else { Instant::default() };
        Self { table, shared, policy, began, last_source, last_decision, last_key }
    }

    /// The policy of the batch, if there is one, and when the batch began.
    #[inline]
    pub(super) fn policy(&self) -> Option<(&InForce, Instant)> {
        Some((self.policy.as_deref()?, self.began))
    }

    /// The table of the batch.
    pub(super) fn table(&self) -> &'a Table {
        self.table
    }

    /// Checks whether `from` may send a packet with this source. Neither routing nor the filter sees a packet that
    /// fails.
    ///
    /// # Errors
    /// The reason why the peer may not.
    pub(super) fn admit(&self, from: &PeerShared, head: &IpHead, now: Instant) -> Result<(), DropReason> {
        if self.last_source.get() == Some((from.id, head.source)) {
            return Ok(());
        }
        let bounds = from.bounds.load();
        let permitted = self.table.routes.permits(from.id, head.source);
        match bounds.as_deref() {
            // Cryptokey routing.
            None if !permitted => return Err(DropReason::SourceNotAllowed),
            None => {}
            // The allowed IPs are the limit in every mode, even if a routing engine permits more.
            Some(bounds) if !bounds.contain(head.source) => return Err(DropReason::SourceNotAllowed),
            Some(_) if permitted => {}
            // Only a router's sources depend on announcements, so `SourceCheck` applies to routers alone.
            Some(bounds) if bounds.role != Role::Router => return Err(DropReason::SourceNotAllowed),
            Some(_) => match self.shared.source_check {
                SourceCheck::Enforce => return Err(DropReason::SourceNotAnnounced),
                SourceCheck::Log => {
                    self.let_through(from, head, now);
                    // Not remembered: each of these packets is counted.
                    return Ok(());
                }
                SourceCheck::Off => {}
            },
        }
        self.last_source.set(Some((from.id, head.source)));
        Ok(())
    }

    #[cold]
    fn let_through(&self, from: &PeerShared, head: &IpHead, now: Instant) {
        if self.shared.unannounced.count(now) {
            let IpHead { source, destination, .. } = head;
            tracing::warn!(
                peer = *to_base64(&from.public_key().0),
                "let through a packet from {source} for {destination}, a source that the peer does not announce; there may \
                 be more: `show` counts them (SourceCheck = log)"
            );
        }
    }

    /// Decides about an admitted packet of `from`, or of the host without `from`.
    pub(super) fn outcome(&self, from: Option<&PeerShared>, head: &IpHead, bytes: &[u8]) -> Outcome {
        let routed = self.route(from.is_some(), head, bytes);
        match &self.shared.filter {
            None => routed,
            Some(filter) => {
                let origin = from.map_or(filter::Origin::Host, |from| filter::Origin::Peer(from.public_key()));
                let seen = self.as_seen(routed);
                let packet = Packet { origin, head: *head, bytes: &bytes[..head.len], route: seen };
                match filter(&packet) {
                    filter::Verdict::Pass => routed,
                    filter::Verdict::Deliver | filter::Verdict::Bounce => Outcome::Deliver,
                    filter::Verdict::Forward(key) => {
                        self.peer(&key).map_or(Outcome::Drop(DropReason::NoRoute), Outcome::Forward)
                    }
                    filter::Verdict::Drop => Outcome::Drop(DropReason::Filtered),
                }
            }
        }
    }

    /// Whether the packets of a super-packet have to be looked at one by one.
    pub(super) fn is_filtered(&self) -> bool {
        self.shared.filter.is_some()
    }

    /// The routing decision, as a filter sees it.
    fn as_seen(&self, routed: Outcome) -> RouteDecision {
        match routed {
            Outcome::Deliver => RouteDecision::Deliver,
            Outcome::Forward(peer) => self.key(peer).map_or(RouteDecision::Unreachable, RouteDecision::Forward),
            Outcome::Drop(DropReason::Isolated) => RouteDecision::Isolated,
            Outcome::Drop(_) | Outcome::Ignore => RouteDecision::Unreachable,
        }
    }

    fn key(&self, peer: PeerId) -> Option<PublicKey> {
        if let Some((last, key)) = self.last_key.get()
            && last == peer
        {
            return Some(key);
        }
        let key = self.table.peers.get(&peer)?.public_key();
        self.last_key.set(Some((peer, key)));
        Some(key)
    }

    fn peer(&self, key: &PublicKey) -> Option<PeerId> {
        if let Some((peer, last)) = self.last_key.get()
            && last == *key
        {
            return Some(peer);
        }
        let peer = *self.table.keys.get(key)?;
        self.last_key.set(Some((peer, *key)));
        Some(peer)
    }

    fn relay_decision(&self, question: RouteQuestion) -> RelayDecision {
        let yes = match &self.table.relay_rule {
            RelayRule::Never => false,
            RelayRule::Isolate => return RelayDecision::Refuse,
            // Packets for this host stay here: otherwise they would loop until their hop limit is used up.
            RelayRule::Always { local } => {
                !local.contains(&question.destination) && !question.destination.is_multicast()
            }
            RelayRule::AskKernel => match self.shared.kernel_answers.pin().get(&question) {
                Some(&routed) => routed,
                None => {
                    self.shared.control.ask_route(question);
                    false
                }
            },
        };
        if yes { RelayDecision::Relay } else { RelayDecision::ToHost }
    }

    /// Where the routing engine sends a packet. A packet from a peer is relayed only if the setting permits.
    fn route(&self, from_peer: bool, packet: &IpHead, bytes: &[u8]) -> Outcome {
        if !from_peer {
            return self.table.next_hop(packet, bytes).map_or(Outcome::Drop(DropReason::NoRoute), Outcome::Forward);
        }
        if matches!(self.table.relay_rule, RelayRule::Never) {
            return Outcome::Deliver;
        }
        // The host gets packets for which there is no route or whose next hop is unreachable, because it sends the ICMP
        // answer.
        let Some(peer) = self.table.next_hop(packet, bytes) else { return Outcome::Deliver };
        let question = RouteQuestion { source: packet.source, destination: packet.destination };
        let decision = match self.last_decision.get() {
            Some((last, decision)) if last == question => decision,
            _ => {
                let decision = self.relay_decision(question);
                self.last_decision.set(Some((question, decision)));
                decision
            }
        };
        match decision {
            RelayDecision::Relay => Outcome::Forward(peer),
            RelayDecision::ToHost => Outcome::Deliver,
            RelayDecision::Refuse => Outcome::Drop(DropReason::Isolated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing;
    use rustguard_core::routing::{NextHops, RouteTable, SourceRule};

    const A: PeerId = PeerId(1);
    const C: PeerId = PeerId(2);

    /// A has 10.0.0.1; C has all other addresses, multicast and broadcast too.
    fn table(relay_rule: RelayRule) -> Table {
        let mut routes = RouteTable::default();
        routes.install("0.0.0.0/0".parse().unwrap(), NextHops::single(C).into());
        routes.permit(A, "10.0.0.1/32".parse().unwrap(), SourceRule::Longest);
        routes.permit(C, "10.0.0.3/32".parse().unwrap(), SourceRule::Longest);
        let peer = |id: PeerId| (id, Arc::new(PeerShared::new(id, PublicKey([1; 32]), Arc::default())));
        Table {
            routes: routes.snapshot(),
            peers: [peer(A), peer(C)].into_iter().collect(),
            relay_rule,
            ..Table::default()
        }
    }

    fn head(from: u8, to: [u8; 4]) -> IpHead {
        IpHead { source: [10, 0, 0, from].into(), destination: to.into(), len: 20 }
    }

    /// The remembered answer belongs to a peer and a source, not to a source alone.
    #[test]
    fn a_source_is_one_peers() {
        let (table, (shared, _inbox)) = (table(RelayRule::Never), testing::shared(2));
        let (a, c, now) = (&table.peers[&A], &table.peers[&C], Instant::default());
        let decision = Decision::new(&table, &shared);
        for _ in 0..2 {
            assert_eq!(decision.admit(a, &head(1, [10, 0, 0, 2]), now), Ok(()));
            assert_eq!(decision.admit(c, &head(1, [10, 0, 0, 2]), now), Err(DropReason::SourceNotAllowed));
            assert_eq!(decision.admit(c, &head(3, [10, 0, 0, 2]), now), Ok(()));
            assert_eq!(decision.admit(a, &head(3, [10, 0, 0, 2]), now), Err(DropReason::SourceNotAllowed));
        }
    }

    /// The remembered answer belongs to both addresses. Packets for the host's own addresses and multicast go to the
    /// host.
    #[test]
    fn what_is_for_the_host_is_not_relayed() {
        let local = Arc::new([[10, 0, 0, 2].into()].into());
        let (table, (shared, _inbox)) = (table(RelayRule::Always { local }), testing::shared(2));
        let decision = Decision::new(&table, &shared);
        let outcome = |to| decision.outcome(Some(&table.peers[&A]), &head(1, to), &[0; 20]);
        for _ in 0..2 {
            assert_eq!(outcome([10, 0, 0, 3]), Outcome::Forward(C));
            assert_eq!(outcome([10, 0, 0, 2]), Outcome::Deliver);
            assert_eq!(outcome([10, 0, 0, 4]), Outcome::Forward(C));
            assert_eq!(outcome([224, 0, 0, 5]), Outcome::Deliver);
        }
        assert_eq!(
            decision.outcome(None, &head(2, [10, 0, 0, 2]), &[0; 20]),
            Outcome::Forward(C),
            "the host knows why"
        );
    }
}
