//! Carries out the node's actions, and reports its events.

use super::{
    Control,
    peer_log::{Line, Topic},
};
use crate::{drops::DropReason, event::Event, handshakes::HandshakeDatagram, shared::peer::LocationChange};
use rustguard_core::{
    node::{Action, Event as NodeEvent, PeerId},
    routing::Signal,
};
use rustguard_tun::Endpoint;
use std::sync::Arc;

impl Control {
    /// Carries out all actions, including those that arise meanwhile. `handled` is the datagram that caused them.
    pub(super) fn apply(&mut self, handled: Option<&HandshakeDatagram>) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.apply_one(action, handled);
            }
        }
    }

    fn apply_one(&mut self, action: Action, handled: Option<&HandshakeDatagram>) {
        match action {
            Action::Send { peer, datagram, attempt } => self.send_handshake(peer, &datagram, attempt, handled),
            Action::Reply { datagram } => {
                if let Some(handled) = handled {
                    self.reply(handled.from, &datagram);
                }
            }
            Action::SetScreen(screen) => self.shared.handshakes.screen.store(screen.map(Arc::new)),
            Action::Endpoint { peer } => {
                let (Some(handled), Some(entry)) = (handled, self.peers.get(&peer)) else { return };
                entry.count_received(handled.len);
                let way = handled.from.way();
                if entry.shared.handshake_at(&way) == LocationChange::Endpoint {
                    self.moved(peer);
                }
                self.source_learned(peer);
                self.path_heard(peer, &way);
            }
            Action::AddOpener { peer, opener, next } => {
                let Some(entry) = self.peers.get(&peer) else { return };
                entry.shared.waiting.lock().next = next.map(|sealer| (opener.index(), sealer));
                self.shared.sessions.insert(opener, Arc::clone(&entry.shared));
            }
            Action::RemoveOpener { index } => self.shared.sessions.remove(index),
            Action::SetSealer { peer, sealer } => self.set_sealer(peer, sealer),
            // Packets that waited have left with the sealer's first counters.
            Action::Flush { peer, or_keepalive } => {
                if or_keepalive && self.sealer(peer).is_some_and(|sealer| sealer.is_unused()) {
                    self.keepalive(peer);
                }
            }
            Action::Keepalive { peer } => self.keepalive(peer),
            Action::DropStaged { peer } => {
                if let Some(entry) = self.peers.get(&peer) {
                    let dropped = entry.shared.waiting.lock().clear(&self.shared.waiting_bytes);
                    self.shared.dropped(&entry.shared, DropReason::NoSession, dropped);
                }
            }
            Action::Event(event) => self.report(&event),
        }
    }

    /// Reports that the peer's endpoint has changed.
    pub(super) fn moved(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(public_key) = self.node.peer_config(peer).map(|config| config.public_key) else { return };
        let (label, way) = (entry.label(&public_key), entry.way());
        let told = self.tell_way(peer);
        let Some(way) = way else { return };
        if let Some(&Endpoint { remote: endpoint, .. }) = way.udp() {
            if !told {
                self.tell(peer, Topic::Endpoint, Line::new(label, format_args!("endpoint is {endpoint}")));
            }
            self.emit(Event::PeerRoamed { peer: public_key, endpoint });
        }
        self.path_mtu_moved(peer);
        self.tell_endpoints(peer);
    }

    /// Reports the node's events to the engine, the log and the embedder, which knows peers by their keys.
    fn report(&mut self, event: &NodeEvent) {
        let peer = event.peer();
        match *event {
            NodeEvent::HandshakeComplete { peer, took } => {
                if let Some(entry) = self.peers.get_mut(&peer) {
                    entry.handshakes += 1;
                }
                self.paths_established(peer);
                self.race_won(peer);
                self.engine_signal(peer, Signal::HandshakeComplete);
                if let Some(took) = took {
                    self.engine_signal(peer, Signal::RoundTrip(took));
                }
            }
            NodeEvent::SessionExpired { peer } => self.paths_ended(peer),
            NodeEvent::HandshakeFailed { peer } => self.engine_signal(peer, Signal::HandshakeFailed),
            NodeEvent::ClockBehind { peer, by } => self.clock_behind(peer, by),
            _ => {}
        }
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(config) = self.node.peer_config(peer) else { return };
        let key = config.public_key;
        let name = entry.label(&key);
        match *event {
            NodeEvent::HandshakeComplete { took, .. } => {
                self.tell(peer, Topic::Handshake, Line::new(name, format_args!("handshake complete")));
                self.emit(Event::HandshakeComplete { peer: key, took });
                self.link_complete(peer);
                if took.is_some() {
                    self.session_begun(peer);
                }
            }
            NodeEvent::HandshakeFailed { .. } => {
                self.emit(Event::HandshakeFailed { peer: key });
                if self.link_failed(peer) {
                    tracing::warn!(peer = name, "no answer to handshake initiations for 90 s");
                }
            }
            NodeEvent::SessionExpired { .. } => {
                tracing::info!(peer = name, "session keys erased");
                self.emit(Event::SessionExpired { peer: key });
            }
            _ => {}
        }
    }
}
