//! The messages to peers after a change of the network under the tunnel.
//!
//! A peer that is in use gets two things. A keepalive in the live session updates our endpoint at the peer at once, and
//! costs a microsecond. A handshake shows whether the way works in both directions: the node begins the handshakes of
//! many peers a few at a time ([`Node::tick`](rustguard_core::node::Node::tick)).

use super::{Control, timer::now};
use rustguard_core::{node::PeerId, time::Instant};
use std::time::Duration;

/// The number of peers that are greeted in one turn of control.
const SLICE: usize = 64;
/// The minimum time between two greetings of one peer. A link that flaps costs one handshake a second with each peer.
/// The last change is never lost: its greeting waits for the end of this time.
const GAP: Duration = Duration::from_secs(1);

/// The peers that are to be greeted. The last one is next.
#[derive(Default)]
pub(super) struct Greetings(Vec<PeerId>);

impl Control {
    /// Greets, in several turns, all peers with an endpoint that were in use at the time `at`. The peers that sent data
    /// last come first.
    pub(super) fn greet_in_use(&mut self, at: Instant) {
        let mut peers: Vec<_> = self
            .peers
            .iter()
            .filter(|(peer, entry)| entry.way().is_some() && self.node.is_in_use(**peer, at))
            .map(|(&peer, entry)| (entry.shared.activity.data_received_at(), peer))
            .collect();
        peers.sort_unstable();
        self.greetings.0 = peers.into_iter().map(|(_, peer)| peer).collect();
    }

    /// When [`greetings_tick`](Self::greetings_tick) is due.
    pub(super) fn greetings_deadline(&self) -> Option<Instant> {
        (!self.greetings.0.is_empty()).then(|| Instant::from_nanos(0))
    }

    pub(super) fn greetings_tick(&mut self) {
        let rest = self.greetings.0.len().saturating_sub(SLICE);
        for peer in self.greetings.0.split_off(rest).into_iter().rev() {
            self.greet(peer);
        }
    }

    /// Tells the peer our present address, and finds out whether the peer can be reached.
    pub(super) fn greet(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let now = now().instant;
        let at = entry.source().greeted.map_or(now, |greeted| (greeted + GAP).max(now));
        if entry.source().greeted.is_some_and(|greeted| greeted > now) {
            return; // The next greeting is planned already.
        }
        entry.source().greeted = Some(at);
        self.node.handshake_at(peer, at);
        if at == now {
            self.keepalive(peer);
        }
    }
}
