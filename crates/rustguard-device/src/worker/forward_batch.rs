//! Forwarding: a peer's message for another peer is sent on sealed. A message for us is handled as if it had arrived
//! directly. See [`rustguard_core::forward`].
//!
//! The header is rewritten and the text is sealed again in place; runs stay runs. For each datagram that arrives, one
//! of the same length leaves. So no limit is needed: a member cannot make this relay send more than the member itself
//! sends.

use crate::{
    drops::DropReason,
    seal::{self, Batch, Ecn},
    shared::{Shared, peer::PeerShared, table::Table},
    way::Sender as Origin,
};
use rustguard_core::{
    forward::{self, HEADER_LEN, Header, Members, Name, Refused, Sender, Step},
    node::PeerId,
    time::Instant,
};
use rustguard_crypto::aead::Frame;
use rustguard_tun::{Network, Transmit};
use std::sync::atomic::Ordering;

/// Messages in a usual batch. A larger batch costs an allocation, once.
const USUAL: usize = 512;

/// The forwarded messages of a batch. It keeps its memory between batches, and has none before the first message.
#[derive(Default)]
pub(super) struct ForwardBatch {
    /// The last decision, with its sender and header: the messages of a run have the same header.
    last: Option<(PeerId, Header, Step)>,
    /// The texts to send on: `peers[i]` gets `frames[i]` with the ECN field `ecn[i]`.
    peers: Vec<PeerId>,
    frames: Vec<Frame>,
    ecn: Vec<u8>,
    transmits: Vec<Transmit>,
    /// The messages for us.
    pub(super) own: Vec<Inner>,
}

/// A message for us, inside an opened text.
#[derive(Clone, Copy)]
pub(super) struct Inner {
    pub(super) from: Origin,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The ECN field of the datagram.
    pub(super) ecn: u8,
}

impl ForwardBatch {
    /// Takes a text from `sender`.
    pub(super) fn take(
        &mut self,
        slab: &mut [u8],
        sender: &PeerShared,
        frame: Frame,
        ecn: u8,
        members: &View<'_>,
        shared: &Shared,
    ) {
        let text = &mut slab[frame.offset..frame.offset + frame.len];
        let step = match Header::parse(text) {
            Some(header) => match self.last {
                Some((peer, last, step)) if peer == sender.id && last == header => Ok(step),
                _ => forward::decide(text, &sender_of(sender), members)
                    .inspect(|step| self.last = Some((sender.id, header, *step))),
            },
            None => Err(Refused::Malformed),
        };
        // A host that forwards nothing needs no room for it.
        if step.is_ok() && self.frames.capacity() == 0 {
            self.make_room();
        }
        match step {
            Ok(Step::Next { to, header }) => {
                text[..HEADER_LEN].copy_from_slice(&header.to_bytes());
                self.peers.push(to);
                self.frames.push(frame);
                self.ecn.push(ecn);
            }
            Ok(Step::Own { from }) => {
                if !shared.has_relayed.load(Ordering::Relaxed) {
                    shared.has_relayed.store(true, Ordering::Relaxed);
                }
                let from = Origin::Relayed { relay: sender.id, peer: from };
                let (offset, len) = (frame.offset + HEADER_LEN, frame.len - HEADER_LEN);
                self.own.push(Inner { from, offset, len, ecn });
            }
            Err(refused) => shared.dropped(sender, reason(refused), 1),
        }
    }

    #[cold]
    fn make_room(&mut self) {
        self.peers.reserve(USUAL);
        self.frames.reserve(USUAL);
        self.ecn.reserve(USUAL);
        self.transmits.reserve(USUAL);
        self.own.reserve(USUAL);
    }

    /// Seals the texts and sends them on.
    pub(super) fn flush(
        &mut self,
        slab: &mut [u8],
        network: &mut dyn Network,
        table: &Table,
        now: Instant,
        shared: &Shared,
    ) {
        self.last = None;
        if self.frames.is_empty() {
            return;
        }
        let (mut frames, mut ecn) = (&mut *self.frames, &*self.ecn);
        let mut batch = Batch {
            slab: &mut *slab,
            transmits: &mut self.transmits,
            relayed: None,
            parities: None,
            lane: network.lane(),
            table,
            now,
            shared,
        };
        for run in self.peers.chunk_by(|a, b| a == b) {
            let (these, rest) = frames.split_at_mut(run.len());
            let (given, others) = ecn.split_at(run.len());
            (frames, ecn) = (rest, others);
            if let Some(peer) = table.peers.get(&run[0]) {
                batch.seal(peer, these, Ecn::Given(given));
            }
        }
        let peers = self.peers.chunk_by(|a, b| a == b).filter_map(|run| table.peers.get(&run[0]));
        seal::send(network, slab, &self.transmits, peers.map(|peer| &**peer), shared);
        shared.forwarded.fetch_add(self.frames.len() as u64, Ordering::Relaxed);
        self.peers.clear();
        self.frames.clear();
        self.ecn.clear();
        self.transmits.clear();
    }
}

fn sender_of(peer: &PeerShared) -> Sender {
    Sender { peer: peer.id, router: peer.is_router() }
}

fn reason(refused: Refused) -> DropReason {
    match refused {
        Refused::Malformed => DropReason::ForwardMalformed,
        Refused::Off => DropReason::ForwardOff,
        Refused::Sender => DropReason::ForwardSender,
        Refused::Unknown => DropReason::ForwardUnknown,
        Refused::Relays => DropReason::ForwardLoop,
        Refused::NoWay => DropReason::ForwardNoWay,
    }
}

/// The peers, as a relay sees them in one batch.
pub(super) struct View<'a> {
    pub(super) table: &'a Table,
    pub(super) now: Instant,
}

impl View<'_> {
    /// A peer to which a relay can send directly, because it has an address.
    fn direct(&self, id: PeerId) -> Option<&PeerShared> {
        self.table.peers.get(&id).map(|peer| &**peer).filter(|peer| peer.endpoint().is_some())
    }
}

impl Members for View<'_> {
    fn is_own(&self, name: &Name) -> bool {
        self.table.own_name.as_ref() == Some(name) || self.table.second_name.as_ref() == Some(name)
    }

    fn peer(&self, name: &Name) -> Option<PeerId> {
        self.table.names.get(name).copied()
    }

    fn forwards(&self) -> bool {
        self.table.forward
    }

    /// First the peer itself, if it has a session and the routing engine does not consider it unreachable. Second the
    /// engine's next hop. Last the peer again: the text then waits for a session.
    fn next(&self, to: PeerId) -> Option<PeerId> {
        let itself = self.direct(to);
        let in_session =
            |peer: &PeerShared| peer.sealer.load().as_deref().is_some_and(|sealer| sealer.usable(self.now));
        if itself.is_some_and(|peer| in_session(peer) && peer.usable.load(Ordering::Relaxed)) {
            return Some(to);
        }
        let address = self.table.peers.get(&to)?.own_address.load();
        let hop = address.as_deref().and_then(|address| self.table.hop_to(*address, to));
        hop.filter(|hop| *hop != to && self.direct(*hop).is_some()).or(itself.map(|peer| peer.id))
    }
}
