//! Handshakes: messages from the network go to the node, and the node's messages to the peers' endpoints.
//!
//! The node decides when a handshake is retried (`rustguard_core::node`, `retry.rs`); each attempt comes here to be
//! sent.

use super::{Control, timer::now};
use crate::{
    drops::DropReason,
    handshakes::HandshakeDatagram,
    way::{Sender, Way},
};
use rustguard_core::{
    node::{Dropped, PeerId},
    routing::Signal,
    wire::Message,
};
use std::{sync::Arc, time::Duration};

/// The DS field of handshake messages: AF41, as in the kernel's WireGuard (HANDSHAKE_DSCP). Data has no DSCP, because
/// it would show an observer what is inside.
pub(super) const HANDSHAKE_DS: u8 = 0x88;
/// The pause between the first initiations to peers that are greeted. They take a tenth of control's time.
const GREETING_PAUSE: Duration = Duration::from_millis(1);
/// The number of peers behind relays that are greeted. A member of a network has a thousand such peers, and begins
/// sessions only with those that it talks to.
const GREETED_THROUGH_RELAYS: u32 = 16;

impl Control {
    /// A handshake message or cookie reply from the network.
    pub(super) fn handshake(&mut self, datagram: &HandshakeDatagram) {
        let bytes = &datagram.bytes[..datagram.len];
        let (from, rng, out) = (datagram.from.origin(), &mut rand::rng(), &mut self.actions);
        let handled = match datagram.standing {
            Some(standing) => self.node.handle_judged(from, bytes, standing, now(), rng, out),
            None => self.node.handle(from, bytes, now(), rng, out),
        };
        if let Err(dropped) = handled {
            tracing::debug!(from = ?datagram.from, "handshake message refused: {dropped:?}");
            let reason = match dropped {
                Dropped::CookieSent | Dropped::RateLimited => DropReason::UnderLoad,
                _ => DropReason::HandshakeRefused,
            };
            self.shared.drops.count(reason, 1);
            // Forwarded messages are only counted: the relay's word is the only evidence of their sender.
            if let Sender::Direct(from) = datagram.from {
                match dropped {
                    Dropped::UnknownPeer => self.unknown_key(from.remote, bytes),
                    Dropped::Mac1 => self.not_for_us(from.remote),
                    _ => {}
                }
            }
        }
        self.apply(Some(datagram));
    }

    /// The peer's endpoint is known: handshakes that waited for it begin.
    pub(super) fn start(&mut self, peer: PeerId) {
        let now = now();
        self.node.start(peer, now, &mut rand::rng(), &mut self.actions);
        let relayed = self.peers.get(&peer).is_some_and(|entry| entry.shared.relayed_by().is_some());
        if relayed && self.greeted_through_relays >= GREETED_THROUGH_RELAYS {
            return;
        }
        if let Some(next) = &mut self.next_greeting {
            self.greeted_through_relays += u32::from(relayed);
            let at = (*next).max(now.instant);
            *next = at + GREETING_PAUSE;
            self.node.greet(peer, at);
        }
    }

    /// A worker asks for a handshake with this peer.
    pub(super) fn handshake_requested(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get(&peer) else { return };
        // Cleared first, so that a request that comes meanwhile is reported again.
        entry.shared.handshake_wanted.store(false, std::sync::atomic::Ordering::Release);
        self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
        self.engine_signal(peer, Signal::SessionWanted);
    }

    /// Starts a handshake with every peer whose endpoint is known. The node's ticks send the initiations.
    pub(super) fn handshake_now(&mut self) {
        let now = now().instant;
        for (&peer, entry) in &self.peers {
            if entry.way().is_some() {
                self.node.handshake_at(peer, now);
            }
        }
    }

    /// Sends an initiation to the peer's endpoint, or to all its endpoints if none is known to work: the peer answers
    /// the copy that arrives first, and takes the others for replays. A response goes where its initiation came from.
    /// Nothing is sent while no endpoint is known: its name is not resolved yet, or the peer has to begin.
    pub(super) fn send_handshake(
        &mut self,
        peer: PeerId,
        datagram: &[u8],
        attempt: u32,
        handled: Option<&HandshakeDatagram>,
    ) {
        if attempt > 0 {
            // There was no answer: our address may have changed, or the peer's.
            if let Some(entry) = self.peers.get(&peer) {
                entry.shared.forget_source();
            }
            self.resolve_again(peer, attempt);
        }
        let Some(shared) = self.peers.get(&peer).map(|entry| Arc::clone(&entry.shared)) else { return };
        let answered = handled.filter(|_| matches!(Message::parse(datagram), Some(Message::Response(_))));
        let ways = match answered.map(|handled| handled.from) {
            Some(Sender::Direct(from)) => vec![Way::Direct(self.answer_to(peer, from))],
            Some(Sender::Relayed { relay, .. }) => vec![Way::Relayed(relay)],
            None => {
                let ways = self.initiation_ways(peer, attempt == 0);
                self.race(peer, datagram, attempt, &ways);
                ways
            }
        };
        if let Some(index) = datagram.get(4..).and_then(|rest| rest.first_chunk()) {
            // The workers must know it before they can read the datagram from the TUN, if a route leads it there.
            shared.handshake_index.store(u32::from_le_bytes(*index), std::sync::atomic::Ordering::Relaxed);
        }
        let (called, mut refused) = (!ways.is_empty(), true);
        for way in ways {
            if let Some(entry) = self.peers.get_mut(&peer) {
                entry.count_sent(datagram.len());
            }
            refused &= !self.transmit_to(&shared, way, HANDSHAKE_DS, datagram);
        }
        match answered {
            Some(_) => self.response_sent(peer),
            None if called => {
                self.initiation_sent(peer, refused);
                self.source_learned(peer);
            }
            None => {}
        }
    }
}
