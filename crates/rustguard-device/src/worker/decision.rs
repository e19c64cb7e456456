//! The decisions about one batch: may the peer use this source, where does routing send the packet, and what does the
//! embedder's filter say to that.

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

/// One batch's view of the routing table. It remembers the last answers: the packets of a run mostly have the same
/// addresses.
pub(super) struct Decision<'a> {
    table: &'a Table,
    shared: &'a Shared,
    policy: Guard<Option<Arc<InForce>>>,
    /// When the batch began, where there is a policy.
    began: Instant,
    last_source: Cell<Option<(PeerId, IpAddr)>>,
    last_decision: Cell<Option<(RouteQuestion, RelayDecision)>>,
    last_key: Cell<Option<(PeerId, PublicKey)>>,
}

/// What becomes of a packet in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// To the host.
    Deliver,
    /// To a peer.
    Forward(PeerId),
    /// Nowhere.
    Drop(DropReason),
    /// Nowhere, and it is not counted: multicast and broadcast of the host's that no peer gets.
    Ignore,
}

/// What is to become of a packet that some peer has, by its addresses.
#[derive(Clone, Copy)]
enum RelayDecision {
    Relay,
    ToHost,
    Refuse,
}

/// Whether packets for this address are for no single host: neighbour discovery, mDNS and the like, which a host sends
/// to every interface.
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

    /// The policy of the batch, where there is one, and when the batch began.
    #[inline]
    pub(super) fn policy(&self) -> Option<(&InForce, Instant)> {
        Some((self.policy.as_deref()?, self.began))
    }

    /// The table of the batch.
    pub(super) fn table(&self) -> &'a Table {
        self.table
    }

    /// Whether `from` may send a packet with this source. Checked first: neither routing nor the filter sees a packet
    /// that fails.
    ///
    /// # Errors
    /// Why not.
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
            // The allowed IPs are the limit, whatever a routing engine permits, and in every mode.
            Some(bounds) if !bounds.contain(head.source) => return Err(DropReason::SourceNotAllowed),
            Some(_) if permitted => {}
            // It is the peer's own matter what it has, and not the routing protocol's.
            Some(bounds) if bounds.role != Role::Router => return Err(DropReason::SourceNotAllowed),
            Some(_) => match self.shared.source_check {
                SourceCheck::Enforce => return Err(DropReason::SourceNotAnnounced),
                SourceCheck::Log => {
                    self.let_through(from, head, now);
                    // Each of them is counted.
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

    /// What becomes of an admitted packet of `from`, or, without it, of a packet of the host's.
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

    /// What routing decided, as a filter sees it.
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
            // Packets for this host stay here: otherwise they would go back and forth until their hops are used up.
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

    /// Where the routing engine sends a packet. A packet that came from a peer is relayed only where the setting says
    /// so.
    fn route(&self, from_peer: bool, packet: &IpHead, bytes: &[u8]) -> Outcome {
        if !from_peer {
            return self.table.next_hop(packet, bytes).map_or(Outcome::Drop(DropReason::NoRoute), Outcome::Forward);
        }
        if matches!(self.table.relay_rule, RelayRule::Never) {
            return Outcome::Deliver;
        }
        // The host gets packets that no peer has a route for, and packets whose next hop is unreachable: it answers for
        // us.
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

    /// A has 10.0.0.1, C all the rest, also what is for everybody.
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

    /// What was last found out is about a peer, and not about a source alone.
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

    /// What was last found out is about both addresses; the host's own, and what is for everybody, is the host's.
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
