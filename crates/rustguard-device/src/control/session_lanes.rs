//! The part of control for lanes of sessions: asks a peer for lanes if there is a stream to it, and answers a peer that
//! asks. See [`rustguard_core::lanes`].
//!
//! A peer's message costs control no more than a probe does, and has the same rate limit: each question has one answer
//! of the same length, to the peer's endpoint. A peer that acknowledges falsely loses only its own packets.

use super::{
    Control,
    peer::{Peer, session_lanes::SessionLanes},
    tasks::Task,
    timer::now,
    transmit::Payload,
};
use crate::{session_lanes::InUse, way::Way};
use rustguard_core::{
    lanes::{Lanes, Message, Negotiation, Observation, Say},
    node::PeerId,
    session::{HEADER_LEN, Sealer},
    time::Instant,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Segments, Transmit};
use std::sync::Arc;

impl Control {
    /// A worker has a stream to the peer and does not use its lane.
    pub(super) fn lanes_wanted(&mut self, peer: PeerId) {
        let count = self.sockets.lanes().count();
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        // With parities, all packets have to be in one order.
        if count == 0 || entry.parities.is_some() {
            return;
        }
        let Some((session, at)) = session(entry).zip(endpoint(entry)) else { return };
        let new = || SessionLanes { negotiation: Negotiation::new(count as u8), counters: None };
        let lanes = entry.lanes.get_or_insert_with(|| Box::new(new()));
        lanes.negotiation.wanted(session, at, now().instant);
        self.lanes_changed(peer);
    }

    /// A peer asks for lanes, or answers.
    pub(super) fn lanes_message(&mut self, peer: PeerId, message: Message) {
        let sessions = self.shared.sessions.pin();
        let known = |index| sessions.get(index).filter(|session| session.peer.id == peer);
        let answer = match message {
            Message::Question { session } => known(session).map(|known| {
                known.accept_lanes();
                Message::Answer { session, threads: self.sockets.lanes().next().map_or(1, |lane| lane.workers) }
            }),
            Message::Request { session, lane, round } => {
                known(session).filter(|known| known.knows_lanes()).map(|_| Message::Reply { session, lane, round })
            }
            Message::Answer { .. } | Message::Reply { .. } => {
                drop(sessions);
                let Some(lanes) = self.peers.get_mut(&peer).and_then(|entry| entry.lanes.as_mut()) else { return };
                lanes.negotiation.heard(message, now().instant);
                return self.lanes_changed(peer);
            }
        };
        drop(sessions);
        let Some(answer) = answer else { return };
        self.send_about_lanes(peer, answer);
        if let Message::Question { .. } = message {
            // If the peer sends a stream in a lane, the answers to the stream have to come to the thread that sends it.
            self.lanes_wanted(peer);
        }
    }

    /// Sends the messages that are due.
    pub(super) fn lanes_due(&mut self, peer: PeerId, now: Instant) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let (session, at) = (session(entry), endpoint(entry));
        let received = entry.shared.activity.rx_bytes();
        let Some(lanes) = entry.lanes.as_mut() else { return };
        let taken = lanes.counters.as_ref().map_or(0, |counters| counters.taken());
        for say in lanes.negotiation.tick(&Observation { session, at, taken, received }, now) {
            match say {
                Say::Keepalive => self.keepalive(peer),
                Say::Message(message @ Message::Request { lane, .. }) => self.send_in_lane(peer, lane, message),
                Say::Message(message) => self.send_about_lanes(peer, message),
            }
        }
        self.lanes_changed(peer);
    }

    /// A session with the peer has begun or ended: the counters end with their key.
    pub(super) fn lanes_session(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(lanes) = &mut entry.lanes else { return };
        let sealer = entry.shared.sealer.load();
        if !lanes.counters.as_ref().zip(sealer.as_ref()).is_some_and(|(it, sealer)| Arc::ptr_eq(it.sealer(), sealer)) {
            lanes.counters = None;
            entry.shared.lanes.store(None);
        }
    }

    /// The ports of lanes have changed, or the peer may have no lanes from now on.
    pub(super) fn lanes_rebound(&mut self, peer: PeerId) {
        if let Some(lanes) = self.peers.get_mut(&peer).and_then(|entry| entry.lanes.as_mut()) {
            lanes.negotiation.stop();
            self.lanes_changed(peer);
        }
    }

    /// Gives the workers the agreed lanes, and puts the peer into the schedule.
    fn lanes_changed(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(lanes) = &mut entry.lanes else { return };
        self.tasks.plan(peer, Task::Lanes, lanes.negotiation.deadline());
        let agreed = lanes.negotiation.in_use().zip(lanes.counters.as_ref()).and_then(|((session, at), counters)| {
            (counters.sealer().receiver() == session).then(|| InUse { lanes: Arc::clone(counters), at })
        });
        let known = entry.shared.lanes.load().as_deref().map(|in_use| in_use.at);
        if agreed.as_ref().map(|agreed| agreed.at) != known {
            entry.shared.lanes.store(agreed.map(Arc::new));
        }
    }

    fn send_about_lanes(&mut self, peer: PeerId, message: Message) {
        let Some(sealer) = self.sealer(peer) else { return };
        let Some(way) = self.peers.get(&peer).and_then(|entry| entry.way()) else { return };
        self.seal_and_send(peer, &sealer, &message.to_bytes(), Payload::Probe(way));
    }

    /// Sends a request in its lane, by the lane's own port.
    fn send_in_lane(&mut self, peer: PeerId, number: u8, message: Message) {
        let count = self.sockets.lanes().count() as u8;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let (Some(at), Some(sealer)) = (endpoint(entry), entry.shared.sealer.load_full()) else { return };
        let Some(lanes) = &mut entry.lanes else { return };
        if lanes.counters.is_none() {
            lanes.counters = Lanes::of(&sealer, count).map(Arc::new);
        }
        let Some(counters) = lanes.counters.as_ref().filter(|counters| Arc::ptr_eq(counters.sealer(), &sealer)) else {
            return;
        };
        let now = now().instant;
        let (Some((lane, network)), Some(reserved)) = (self.sockets.by_lane(number), counters.reserve(number, now, 1))
        else {
            return;
        };
        let datagram = sealed(&sealer, reserved.first, &message.to_bytes());
        let len = datagram.len();
        entry.overhead_tx += len as u64;
        entry.shared.activity.keepalive_sent(now, len as u64);
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        let to = Endpoint { local_port: lane.port, ..at };
        // A request that could not be sent counts as lost.
        network.send(&datagram, &[Transmit { to, segments, ds: 0 }]);
    }
}

fn sealed(sealer: &Sealer, counter: u64, text: &[u8]) -> Vec<u8> {
    let mut slab = vec![0; HEADER_LEN];
    slab.extend_from_slice(text);
    slab.resize(HEADER_LEN + text.len() + TAG_LEN, 0);
    sealer.seal(&mut slab, &[Frame { offset: HEADER_LEN, len: text.len(), counter }]);
    slab
}

/// The index by which the peer knows the session in use.
fn session(entry: &Peer) -> Option<u32> {
    entry.shared.sealer.load().as_deref().map(Sealer::receiver)
}

/// The endpoint in use, if there is only one way to the peer and it is by UDP.
fn endpoint(entry: &Peer) -> Option<Endpoint> {
    if entry.shared.path_set.load().as_deref().is_some_and(crate::path_set::PathSet::spreads) {
        return None;
    }
    entry.way().as_ref().and_then(Way::udp).copied()
}

/// How many lanes are used towards the peer.
pub(super) fn in_use(entry: &Peer) -> u8 {
    let (lanes, sealer) = (entry.shared.lanes.load(), entry.shared.sealer.load());
    let here =
        |in_use: &&InUse| endpoint(entry).zip(sealer.as_ref()).is_some_and(|(at, sealer)| in_use.are_for(sealer, &at));
    lanes.as_deref().filter(here).map_or(0, |in_use| in_use.lanes.count())
}
