//! The part of control for parities: they are offered to a peer in each session, and accepted from it, if the
//! configurations on both sides enable them for the other side. See [`rustguard_core::fec`].

use super::{
    Control,
    peer::{
        Peer,
        fec::{Offer, Parities},
    },
    tasks::Task,
    timer::now,
    transmit::Payload,
};
use crate::{fec::Outgoing, status::ParityStatus};
use rustguard_core::{
    fec::{Message, SIZES},
    node::PeerId,
    time::Instant,
};
use std::{sync::Arc, time::Duration};

/// The time from the beginning of a session to the first offer.
const AFTER: Duration = Duration::from_millis(50);
/// The time from one offer to the next, without an answer.
const AGAIN: Duration = Duration::from_secs(1);
/// The number of offers in one session. Stock peers answer none.
const TRIES: u8 = 10;

impl Control {
    /// Sets the number of bytes of data for one byte of parity; `None` for no parity.
    pub(super) fn set_parity(&mut self, peer: PeerId, size: Option<u8>) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let size = size.map(|size| size.clamp(*SIZES.start(), *SIZES.end()));
        if entry.parities.as_ref().map(|parities| parities.size) == size {
            return;
        }
        entry.shared.outgoing_parities.store(None);
        self.tasks.cancel(peer, Task::Fec);
        entry.parities = size.map(|size| Box::new(Parities { size, offer: None }));
        self.lanes_rebound(peer);
        self.offer_parities(peer);
    }

    /// A session with the peer has begun or ended: the agreement of the last session is void.
    pub(super) fn offer_parities(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(parities) = &mut entry.parities else { return };
        let index = entry.shared.sealer.load().as_deref().map(|sealer| sealer.receiver());
        parities.offer = index.map(|index| Offer { index, tries: 0 });
        self.tasks.plan(peer, Task::Fec, index.map(|_| now().instant + AFTER));
    }

    /// A peer offers parities, or accepts them.
    pub(super) fn parity_message(&mut self, peer: PeerId, message: Message) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(parities) = &mut entry.parities else { return };
        match message {
            Message::Offer(index) => {
                let sessions = self.shared.sessions.pin();
                let Some(session) = sessions.get(index).filter(|session| session.peer.id == peer) else { return };
                session.accept_parities();
                drop(sessions);
                self.send_about_parities(peer, Message::Accept(index));
            }
            Message::Accept(index) => {
                let is_offered = parities.offer.as_ref().is_some_and(|offer| offer.index == index);
                if !is_offered || !self.tasks.cancel(peer, Task::Fec) {
                    return;
                }
                entry.shared.outgoing_parities.store(Some(Arc::new(Outgoing::new(index, parities.size))));
            }
        }
    }

    /// Offers parities again.
    pub(super) fn fec_due(&mut self, peer: PeerId, instant: Instant) {
        let offer = self.peers.get_mut(&peer).and_then(|entry| entry.parities.as_mut()?.offer.as_mut());
        let Some(offer) = offer else { return };
        offer.tries += 1;
        if offer.tries < TRIES {
            self.tasks.set(peer, Task::Fec, instant + AGAIN);
        }
        let message = Message::Offer(offer.index);
        self.send_about_parities(peer, message);
    }

    fn send_about_parities(&mut self, peer: PeerId, message: Message) {
        let Some(sealer) = self.sealer(peer) else { return };
        let Some(way) = self.peers.get(&peer).and_then(|entry| entry.way()) else { return };
        self.seal_and_send(peer, &sealer, &message.to_bytes(), Payload::Probe(way));
    }
}

/// The state of parities for `show`.
pub(super) fn status(entry: &Peer) -> Option<ParityStatus> {
    let size = entry.parities.as_ref()?.size;
    let sealer = entry.shared.sealer.load();
    let outgoing = entry.shared.outgoing_parities.load();
    let accepted = sealer.as_deref().zip(outgoing.as_deref()).is_some_and(|(sealer, outgoing)| outgoing.is_for(sealer));
    let counts = &entry.shared.parities;
    Some(ParityStatus { size, accepted, sent: counts.sent(), rebuilt: counts.rebuilt() })
}
