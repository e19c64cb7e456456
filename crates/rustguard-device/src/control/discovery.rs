//! The part of control for the search for direct ways to peers. It knows the addresses at which this node may be
//! reached ([`own_addresses`](super::own_addresses)), asks other nodes at which address they see this node, and carries
//! candidates between peers and [`Paths`], which does the search.
//!
//! A peer to which no direct way is searched for costs nothing here.

use super::{
    Control,
    own_addresses::{Found, News, Ports},
    peer::Peer,
    tasks::Task,
    timer::now,
    transmit::Payload,
};
use crate::config::{EndpointSpec, PathSpec};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    paths::{Candidates, Locator, Observer, Paths, Relayed, Reply},
    time::Instant,
};
use std::collections::BTreeSet;

/// The number of peers that are asked in one round at which address they see this node. Two answers show whether a NAT
/// maps ports per destination.
const OBSERVERS: usize = 4;

/// Control's state of the search, besides [`Search`](rustguard_core::paths::Search).
#[derive(Default)]
pub(super) struct Searching {
    /// The peers to which direct ways are searched for.
    peers: BTreeSet<PeerId>,
    /// The prefixes inside the tunnel may differ from those that `Search` knows.
    stale: bool,
}

/// Whether direct ways are searched for, as the setting says. Without a setting, they are if an endpoint leads through
/// another peer.
pub(super) fn looks_for_direct_ways(setting: Option<bool>, endpoints: &[PathSpec]) -> bool {
    setting.unwrap_or_else(|| endpoints.iter().any(|path| matches!(path.endpoint, EndpointSpec::Peer(_))))
}

impl Control {
    pub(super) fn ports(&self) -> Ports {
        Ports { listen: self.sockets.port(), mark: self.sockets.fwmark() }
    }

    /// The peer joins the search, or leaves it.
    pub(super) fn set_searching(&mut self, peer: PeerId, searches: bool) {
        let changed = match searches {
            true => self.searching.peers.insert(peer),
            false => self.searching.peers.remove(&peer),
        };
        if changed {
            self.want_own_addresses();
        }
    }

    pub(super) fn is_searching(&self, peer: PeerId) -> bool {
        self.searching.peers.contains(&peer)
    }

    /// The addresses at which this node may be reached matter while direct ways are searched for and a port is open.
    pub(super) fn want_own_addresses(&mut self) {
        let wanted = !self.searching.peers.is_empty() && !self.sockets.are_closed();
        self.own_addresses.want(wanted, self.ports());
    }

    /// The peer was removed.
    pub(super) fn forget_searching(&mut self, peer: PeerId) {
        self.search.forget(peer);
        self.set_searching(peer, false);
    }

    /// The host's network may have changed.
    pub(super) fn look_at_own_addresses(&mut self) {
        self.own_addresses.look(self.ports());
    }

    /// Other prefixes may lie in the tunnel now.
    pub(super) fn tunnel_prefixes_changed(&mut self) {
        self.searching.stale = true;
    }

    /// Takes results about the addresses at which this node may be reached.
    pub(super) fn own_addresses_found(&mut self, found: Found) {
        let instant = now().instant;
        match self.own_addresses.found(found, self.ports()) {
            News::Nothing => return,
            News::Candidates => {}
            News::Network => {
                self.searching.stale = true;
                self.search.network_changed(instant);
                self.each_search(|paths| paths.network_changed(instant));
            }
        }
        self.own_candidates_changed();
    }

    /// The addresses at which this node may be reached have changed: peers are told.
    pub(super) fn own_candidates_changed(&mut self) {
        let instant = now().instant;
        self.refresh_forbidden();
        let own = self.own_addresses.candidates(self.ports(), |ip| self.allowed.leads_into_tunnel(ip));
        if self.search.set_candidates(own, instant) {
            self.each_search(|paths| paths.candidates_changed(instant));
        }
    }

    /// A peer's candidates have come, or its answer to ours.
    pub(super) fn candidates_heard(&mut self, peer: PeerId, message: Box<Candidates>) {
        let ports = self.ports();
        match &mut self.candidate_routes {
            _ if !self.searching.peers.contains(&peer) => {}
            Some(routes) if !message.list.is_empty() => routes.check(ports, (peer, message)),
            _ => self.peer_candidates(peer, &message),
        }
    }

    /// Takes a peer's candidates, or its answer to ours.
    pub(super) fn peer_candidates(&mut self, peer: PeerId, message: &Candidates) {
        if !self.searching.peers.contains(&peer) {
            return;
        }
        self.refresh_forbidden();
        let Some(peer_paths) = self.peers.get_mut(&peer).and_then(|entry| entry.paths.as_mut()) else { return };
        let mut orders = Vec::new();
        peer_paths.paths.candidates(message, &mut self.search, now().instant, &mut orders);
        self.carry_out_orders(peer, orders);
        self.paths_changed(peer);
    }

    /// Sends our candidates, or the answer to the peer's.
    pub(super) fn tell_candidates(&mut self, peer: PeerId, to: Locator, message: &Candidates) {
        if let Some(sealer) = self.sealer(peer) {
            let mut text = message.to_bytes();
            text.resize(text.len().next_multiple_of(16), 0);
            self.seal_and_send(peer, &sealer, &text, Payload::Probe(to.into()));
        }
    }

    /// A peer has answered a probe: the answer may contain the address at which the peer sees this node.
    pub(super) fn observed(&mut self, peer: PeerId, reply: &Reply) {
        let mut seen = reply.seen.filter(|_| self.searching.peers.contains(&peer));
        self.with_observer(peer, |observer| seen = observer.reply(reply).or(seen));
        let instant = now().instant;
        if seen.is_some_and(|seen| self.search.seen_by(peer, seen, instant)) {
            self.each_search(|paths| paths.candidates_changed(instant));
        }
    }

    /// Asks this peer's relays, and some other peers, at which address they see this node.
    pub(super) fn observe(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let relays = entry.endpoints.iter().filter_map(|path| match &path.spec.endpoint {
            EndpointSpec::Peer(key) => self.node.peer_by_key(key),
            _ => None,
        });
        let relays: Vec<_> = relays.collect();
        let others = self.peers.iter().filter(|(other, entry)| {
            let has_session = entry.shared.sealer.load().is_some() && entry.endpoint().is_some();
            **other != peer && !relays.contains(other) && has_session
        });
        let others: Vec<_> = others.map(|(other, _)| *other).take(OBSERVERS).collect();
        for observer in relays.into_iter().chain(others).take(OBSERVERS) {
            if let Some(entry) = self.peers.get_mut(&observer) {
                entry.observer.get_or_insert_default();
                self.with_observer(observer, |observer| observer.ask(now().instant));
            }
        }
    }

    /// Asks a relay at which address it sees this node, before a search through the relay begins: the first list that
    /// peers get is then complete.
    pub(super) fn observe_early(&mut self, relay: PeerId) {
        let searches = !self.searching.peers.is_empty() && !self.searching.peers.contains(&relay);
        if searches && !self.search.is_seen_by(relay) {
            if let Some(entry) = self.peers.get_mut(&relay) {
                entry.observer.get_or_insert_default();
            }
            self.with_observer(relay, |observer| observer.ask(now().instant));
        }
    }

    /// Asks the peer at which address it sees this node, if the question is due.
    pub(super) fn observer_due(&mut self, peer: PeerId, instant: Instant) {
        let mut question = None;
        self.with_observer(peer, |observer| question = observer.tick(instant));
        // Only a datagram by UDP comes from an address that the peer can see.
        let endpoint = self.peers.get(&peer).and_then(|entry| entry.way()).and_then(|way| way.udp().copied());
        if let (Some(question), Some(endpoint), Some(sealer)) = (question, endpoint, self.sealer(peer)) {
            self.seal_and_send(peer, &sealer, &question.to_bytes(), Payload::Probe(endpoint.into()));
        }
    }

    /// The reason why no direct way to the peer is used.
    pub(super) fn not_direct(&self, peer: PeerId, entry: &Peer) -> Option<Relayed> {
        let Some(peer_paths) = &entry.paths else {
            return self.is_at_rest(peer).then_some(Relayed::Idle);
        };
        let indirect = || peer_paths.choice.active.is_some_and(|locator| locator.is_indirect());
        if !self.searching.peers.contains(&peer) && !indirect() {
            return None;
        }
        peer_paths.paths.relayed(&self.search)
    }

    fn with_observer(&mut self, peer: PeerId, tell: impl FnOnce(&mut Observer)) {
        let Some(observer) = self.peers.get_mut(&peer).and_then(|entry| entry.observer.as_mut()) else { return };
        tell(observer);
        self.tasks.plan(peer, Task::Observer, observer.deadline());
    }

    fn each_search(&mut self, tell: impl Fn(&mut Paths)) {
        let peers: Vec<_> = self.searching.peers.iter().copied().collect();
        for peer in peers {
            if let Some(peer_paths) = self.peers.get_mut(&peer).and_then(|entry| entry.paths.as_mut()) {
                tell(&mut peer_paths.paths);
                self.paths_changed(peer);
            }
        }
    }

    /// No probe may go into the tunnel itself.
    fn refresh_forbidden(&mut self) {
        if std::mem::take(&mut self.searching.stale) {
            let routed = self.peers.keys().flat_map(|&peer| self.allowed.routes_of(peer));
            let all: Vec<_> = routed.chain(self.own_addresses.tunnel_networks().iter().copied()).collect();
            self.search.forbid(IpNet::aggregate(&all));
        }
    }
}
