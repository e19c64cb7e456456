//! The receiving direction: UDP → session by receiver index → opened in place → replay → endpoint → source check → in
//! order → TUN, or another peer.

use super::{
    busiest::Busiest,
    decision::{Decision, Outcome, is_for_all},
    fec::Inbound,
    forward_batch::{ForwardBatch, Inner, View},
    lanes::Lanes,
    now,
    refuse::Refuse,
    relay_batch::RelayBatch,
    resequence::Resequence,
};
use crate::{
    drops::DropReason,
    policy::{Scope, gate::Gate},
    shared::{
        Shared,
        peer::{ENGINE_PATH, PeerShared},
        sessions::{Pinned, Session},
        to_control::{Notice, ProbeMessage},
    },
    way::{Sender, Way},
};
use rustguard_core::{
    control_message, ecn,
    fec::Cover,
    lanes::lane_of,
    node::PeerId,
    packet::IpHead,
    session::{HEADER_LEN, OVERHEAD, Replay},
    time::Instant,
    wire::Kind,
};
use rustguard_crypto::aead::Frame;
use rustguard_tun::{Endpoint, Network, Received, Span, wait::Ready};
use std::{io, sync::atomic::Ordering};

/// Runs of datagrams and frames in a usual batch. A larger batch costs an allocation, once.
const RECEIVED: usize = 64;
const FRAMES: usize = 512;

/// The buffers of one worker's receiving direction.
pub(super) struct Rx {
    slab: Box<[u8]>,
    received: Vec<Received>,
    /// The run being collected: frames of one session, from one sender, with one ECN codepoint.
    frames: Vec<Frame>,
    opened: Vec<bool>,
    relay: RelayBatch,
    forward: ForwardBatch,
    busiest: Busiest<Endpoint>,
    /// A sender that has just become one of the busiest, until its socket is made.
    busy: Option<(Endpoint, PeerId)>,
    resequence: Resequence,
    parities: Inbound,
    gate: Gate,
    refuse: Refuse,
}

/// The properties that all frames of a run share.
struct Run<'a> {
    session: &'a Session,
    index: u32,
    from: Sender,
    /// The ECN field of the datagrams' headers.
    ecn: u8,
    /// The [lane of the session](rustguard_core::lanes) that the counters are of.
    lane: u8,
}

impl Rx {
    pub(super) fn new(network: &dyn Network) -> Self {
        Self {
            slab: vec![0; network.recv_slab_len()].into(),
            received: Vec::with_capacity(RECEIVED),
            frames: Vec::with_capacity(FRAMES),
            opened: Vec::with_capacity(FRAMES),
            relay: RelayBatch::default(),
            forward: ForwardBatch::default(),
            busiest: Busiest::default(),
            busy: None,
            resequence: Resequence::default(),
            parities: Inbound::default(),
            gate: Gate::default(),
            refuse: Refuse::default(),
        }
    }

    /// Prepares for other sockets.
    pub(super) fn replace_network(&mut self, network: &dyn Network) {
        let resequence = std::mem::take(&mut self.resequence);
        let gate = std::mem::take(&mut self.gate);
        *self = Self { resequence, gate, ..Self::new(network) };
    }

    /// Handles one batch from the ready sockets. Returns whether there were datagrams.
    ///
    /// # Errors
    /// When reading fails, after the datagrams that were read before are handled; and when the TUN is gone.
    pub(super) fn run(
        &mut self,
        network: &mut dyn Network,
        ready: Ready,
        lanes: &mut Lanes,
        shared: &Shared,
    ) -> io::Result<bool> {
        self.received.clear();
        let room = self.parities.received_len(&self.slab);
        let result = network.recv_ready(ready, &mut self.slab[..room], &mut self.received);
        if self.received.is_empty() {
            return result.map(|()| false);
        }
        let table = shared.table.load();
        let now = now();
        self.parities.begin();
        self.collect(lanes, &Decision::new(&table, shared), now, shared);
        if let Some((from, peer)) = self.busy.take() {
            network.separate(&from, peer.0.into());
        }
        self.relay.flush(&mut self.slab, network, &table, now, shared);
        self.forward.flush(&mut self.slab, network, &table, now, shared);
        self.refuse.flush(network, &table, now, shared);
        let refused = lanes.flush(&mut self.slab)? + self.resequence.release(lanes, now)?;
        shared.drops.count(DropReason::HostRefused, refused);
        result.map(|()| true)
    }

    /// When packets have waited long enough for those before them.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.resequence.deadline()
    }

    /// Delivers packets that have waited long enough.
    ///
    /// # Errors
    /// When the TUN is gone.
    pub(super) fn release(&mut self, lanes: &mut Lanes, shared: &Shared) -> io::Result<()> {
        if self.deadline().is_some() {
            let refused = self.resequence.release(lanes, now())?;
            shared.drops.count(DropReason::HostRefused, refused);
        }
        Ok(())
    }

    /// Sorts datagrams into runs of one session; opens each run when it ends. Then does the same for the messages
    /// inside them that peers have forwarded.
    fn collect(&mut self, lanes: &mut Lanes, decision: &Decision<'_>, now: Instant, shared: &Shared) {
        let sessions = shared.sessions.pin();
        let mut run: Option<Run<'_>> = None;
        for i in 0..self.received.len() {
            let Received { from, segments, ecn } = self.received[i];
            for piece in 0..segments.count {
                let offset = segments.offset + piece * segments.stride;
                let len = if piece + 1 == segments.count { segments.last_len } else { segments.len };
                let datagram = Inner { from: Sender::Direct(from), offset, len, ecn };
                self.sort(datagram, &sessions, &mut run, lanes, decision, now, shared);
            }
        }
        if let Some(run) = run.take() {
            self.open(&run, lanes, decision, now, shared);
        }
        // A forwarded message inside a forwarded message is not allowed: `sort_out` drops it.
        for i in 0..self.forward.own.len() {
            let datagram = self.forward.own[i];
            self.sort(datagram, &sessions, &mut run, lanes, decision, now, shared);
        }
        if let Some(run) = run {
            self.open(&run, lanes, decision, now, shared);
        }
        self.forward.own.clear();
    }

    /// Puts a datagram into the run that it belongs to, or hands it to control.
    #[expect(clippy::too_many_arguments, reason = "the state of a batch, from the one place that it is sorted in")]
    #[inline]
    fn sort<'s>(
        &mut self,
        Inner { from, offset, len, ecn }: Inner,
        sessions: &'s Pinned<'_>,
        run: &mut Option<Run<'s>>,
        lanes: &mut Lanes,
        decision: &Decision<'_>,
        now: Instant,
        shared: &Shared,
    ) {
        let datagram = &self.slab[offset..offset + len];
        match Kind::of(datagram) {
            Some(Kind::Data { receiver, counter }) => {
                let lane = lane_of(counter);
                let continues =
                    |run: &Run<'_>| run.index == receiver && run.from == from && run.ecn == ecn && run.lane == lane;
                if !run.as_ref().is_some_and(continues) {
                    if let Some(run) = run.take() {
                        self.open(&run, lanes, decision, now, shared);
                    }
                    let Some(session) = sessions.get(receiver) else {
                        return shared.drops.count(DropReason::UnknownIndex, 1);
                    };
                    if let Sender::Relayed { peer, .. } = from
                        && peer != session.peer.id
                    {
                        return shared.drops.count(DropReason::ForwardSender, 1);
                    }
                    *run = Some(Run { session, index: receiver, from, ecn, lane });
                }
                self.frames.push(Frame { offset: offset + HEADER_LEN, len: len - OVERHEAD, counter });
            }
            Some(_) => shared.handshakes.take(from, datagram, now, &shared.drops),
            None => match (&shared.foreign, from) {
                (Some(foreign), Sender::Direct(from)) if (foreign.recognises)(datagram) => {
                    foreign.take(from, datagram, now, &shared.drops);
                }
                _ if datagram.is_empty() => shared.drops.count(DropReason::Empty, 1),
                _ => shared.drops.count(DropReason::Malformed, 1),
            },
        }
    }

    /// Authenticates a run, lets it move the endpoint, and lists what the host gets.
    fn open(&mut self, run: &Run<'_>, lanes: &mut Lanes, decision: &Decision<'_>, now: Instant, shared: &Shared) {
        let peer = &run.session.peer;
        let opener = run.session.opener();
        let Some(opener) = opener.as_deref() else {
            // Control has just removed the session.
            shared.dropped(peer, DropReason::UnknownIndex, self.frames.len());
            return self.frames.clear();
        };
        if !opener.usable(now) {
            shared.dropped(peer, DropReason::SessionExpired, self.frames.len());
            return self.frames.clear();
        }
        self.opened.clear();
        self.opened.resize(self.frames.len(), false);
        opener.open(&mut self.slab, &self.frames, &mut self.opened);

        // Windows of lanes are made for authentic packets only.
        let authentic = self.opened.contains(&true);
        let Some(window) = run.session.window(if authentic { run.lane } else { 0 }) else {
            let copies = self.opened.iter().filter(|&&opened| opened).count();
            shared.dropped(peer, DropReason::Forged, self.frames.len() - copies);
            shared.dropped(peer, DropReason::Replayed, copies);
            return self.frames.clear();
        };
        // Packets in a lane have no parities, and do not change the peer's endpoint.
        let in_lane = run.lane > 0 && run.session.knows_lanes();
        let kept = run.session.kept().filter(|_| !in_lane);
        let (mut forged, mut replayed, mut late) = (0, 0, 0);
        let (mut elsewhere, mut data, mut bytes) = (false, false, 0);
        let overtaken = {
            let mut window = window.lock();
            let before = window.overtaken();
            for (frame, opened) in self.frames.iter().zip(&mut self.opened) {
                if !*opened {
                    forged += 1;
                } else if kept.is_some() && Cover::of(frame.counter).is_some() {
                    // A parity: it may be a copy, so it proves nothing alone.
                } else if let Err(why) = window.accept(frame.counter) {
                    *opened = false;
                    match why {
                        Replay::Duplicate => replayed += 1,
                        Replay::Outside => late += 1,
                    }
                } else {
                    let probe = ProbeMessage::is_one(&self.slab[frame.offset..frame.offset + frame.len]);
                    elsewhere |= !probe && !in_lane;
                    data |= frame.len > 0 && !probe;
                    bytes += (frame.len + OVERHEAD) as u64;
                }
            }
            // A packet that is rebuilt from a parity is no sign of a link that reorders.
            let overtaken = window.overtaken() != before;
            if let Some(kept) = kept {
                let made = self.parities.rebuild(kept, &mut window, &mut self.slab, &mut self.frames, &mut self.opened);
                data |= made.packets > 0;
                bytes += made.bytes;
                peer.parities.count_rebuilt(made.packets);
            }
            overtaken
        };
        shared.dropped(peer, DropReason::Forged, forged);
        shared.dropped(peer, DropReason::Replayed, replayed);
        shared.dropped(peer, DropReason::Late, late);
        if bytes > 0 {
            if let Sender::Direct(from) = run.from {
                let authentic = self.opened.iter().filter(|&&opened| opened).count();
                if self.busiest.count(from, authentic, now) {
                    self.busy = Some((from, peer.id));
                }
            }
            if opener.first_use() {
                peer.confirmed(run.index);
                shared.control.notify(Notice::Confirmed(run.index));
            }
            // A probe tests a path. It does not mean that the peer's endpoint has changed.
            if elsewhere {
                shared.control.location_change(peer, peer.seen_at(&run.from.way()));
            }
            if opener.rekey_on_receive(now) {
                shared.control.want_handshake(peer);
            }
            if !data {
                peer.activity.keepalive_received(now, bytes);
            } else if peer.activity.data_received(now, bytes) {
                shared.control.notify(Notice::Activity(peer.id));
            }
        }

        let mtu = shared.mtu.load(Ordering::Relaxed) as usize;
        let accepted = || self.frames.iter().zip(&self.opened).filter(|&(_, &opened)| opened).map(|(frame, _)| frame);
        let first = || accepted().map(|frame| frame.counter).min();
        let watched = self.resequence.watched((peer.id, run.lane), run.index, overtaken, first, now);
        for n in 0..self.frames.len() {
            let frame = self.frames[n];
            if !self.opened[n] {
                continue;
            }
            let to_host = if frame.len > 0 { self.sort_out(frame, run, decision, mtu, now, shared) } else { None };
            match (to_host, watched) {
                (Some(packet), None) => lanes.deliver(&self.slab, packet),
                (Some(packet), Some(watched)) => {
                    let bytes = &self.slab[packet.offset..packet.offset + packet.len];
                    if self.resequence.take(watched, frame.counter, bytes, now) {
                        lanes.deliver(&self.slab, packet);
                    }
                }
                (None, Some(watched)) => self.resequence.passed(watched, frame.counter, now),
                (None, None) => {}
            }
        }
        self.frames.clear();
    }

    /// Determines the kind of a packet, and hands it to its destination. Returns it if that is the host.
    #[inline]
    fn sort_out(
        &mut self,
        frame: Frame,
        run: &Run<'_>,
        decision: &Decision<'_>,
        mtu: usize,
        now: Instant,
        shared: &Shared,
    ) -> Option<Span> {
        let peer = &run.session.peer;
        let packet = &self.slab[frame.offset..frame.offset + frame.len];
        let Some(head) = IpHead::parse(packet) else {
            let kind = control_message::Kind::of(packet);
            if kind == Some(control_message::Kind::Forwarded) {
                if let Sender::Relayed { .. } = run.from {
                    shared.dropped(peer, DropReason::ForwardNested, 1);
                } else {
                    let members = View { table: decision.table(), now };
                    self.forward.take(&mut self.slab, peer, frame, run.ecn, &members, shared);
                }
            } else if let Some(probe) = kind.and_then(|kind| ProbeMessage::parse(kind, packet)) {
                peer.overhead_rx.fetch_add((frame.len + OVERHEAD) as u64, Ordering::Relaxed);
                to_paths(peer, run.from.way(), probe, now, shared);
            } else if let Some(own) = shared.own_protocol.as_ref().filter(|own| own.recognises(packet)) {
                own.take(peer, packet, now, shared);
            } else {
                shared.dropped(peer, DropReason::NotIp, 1);
            }
            return None;
        };
        if shared.is_engine_packet.is_some_and(|claims| claims(&packet[..head.len])) {
            // Packets between engines have link-local addresses, to which routes and the source check do not apply.
            peer.overhead_rx.fetch_add((frame.len + OVERHEAD) as u64, Ordering::Relaxed);
            to_engine(peer, &packet[..head.len], mtu, now, shared);
            return None;
        }
        if let Err(reason) = decision.admit(peer, &head, now) {
            refused(peer, reason, &head, now, shared);
            return None;
        }
        if run.ecn != ecn::NOT_ECT {
            ecn::decapsulate(&mut self.slab[frame.offset..frame.offset + head.len], run.ecn);
        }
        let packet = &self.slab[frame.offset..frame.offset + frame.len];
        // Bytes after the packet's length are padding.
        let span = Span { offset: frame.offset, len: head.len };
        match decision.outcome(Some(peer), &head, packet) {
            Outcome::Forward(to) => {
                let admitted = self.admits(span, &head, Scope::Relayed, peer, decision, mtu, now, shared);
                if !admitted || self.relay.take(&mut self.slab, to, frame, &head, mtu) {
                    return None;
                }
            }
            Outcome::Deliver => {}
            Outcome::Drop(reason) => {
                shared.dropped(peer, reason, 1);
                return None;
            }
            Outcome::Ignore => return None,
        }
        self.admits(span, &head, Scope::Host, peer, decision, mtu, now, shared).then_some(span)
    }

    /// Whether the policy allows a packet of a peer. A refused packet is answered.
    #[expect(clippy::too_many_arguments, reason = "what is known of a packet, in the one place that decides about it")]
    #[inline]
    fn admits(
        &mut self,
        span: Span,
        head: &IpHead,
        scope: Scope,
        peer: &PeerShared,
        decision: &Decision<'_>,
        mtu: usize,
        now: Instant,
        shared: &Shared,
    ) -> bool {
        let Some((policy, _)) = decision.policy() else { return true };
        let packet = &self.slab[span.offset..span.offset + span.len];
        match self.gate.admit(packet, head, scope, peer.id, policy, now) {
            Ok(()) => true,
            Err(refused) => {
                self.refuse.packet(packet, head, refused, peer, mtu, now, shared);
                false
            }
        }
    }
}

/// Counts a packet of a peer whose source was refused. A host sends multicast to every interface, from any address of
/// the interface, so refused multicast is no sign of wrong allowed IPs.
#[cold]
fn refused(peer: &PeerShared, reason: DropReason, head: &IpHead, now: Instant, shared: &Shared) {
    let reason = match reason {
        DropReason::SourceNotAllowed if is_for_all(head.destination) => DropReason::Multicast,
        reason => reason,
    };
    shared.dropped(peer, reason, 1);
    if reason == DropReason::SourceNotAllowed && peer.refused_source.note(head.source, now) {
        shared.control.notify(Notice::SourceRefused(peer.id));
    }
}

/// Hands a probe to control.
#[cold]
fn to_paths(from: &PeerShared, way: Way, probe: ProbeMessage, now: Instant, shared: &Shared) {
    if !from.may_probe(now) || shared.control.probes.try_send((from.id, way, probe)).is_err() {
        shared.dropped(from, DropReason::ProbeLimit, 1);
    }
}

/// Copies a packet to the routing engine, if the sender is a router, the packet fits the interface, and the sender is
/// within its limit.
///
/// RFC 8966 §4 requires a speaker to receive packets up to the interface's MTU, and babeld and BIRD send packets of
/// that size.
#[cold]
fn to_engine(from: &PeerShared, packet: &[u8], mtu: usize, now: Instant, shared: &Shared) {
    let refused = if from.is_client() {
        Some(DropReason::EngineNotARouter)
    } else if packet.len() > mtu.max(ENGINE_PATH) {
        Some(DropReason::EngineTooLong)
    } else if !from.may_send_to_engine(packet.len(), now) {
        Some(DropReason::EngineLimit)
    } else {
        match shared.control.engine.try_reserve() {
            Ok(place) => {
                place.send((from.id, packet.into()));
                None
            }
            Err(_) => Some(DropReason::EngineQueueFull),
        }
    };
    if let Some(reason) = refused {
        shared.dropped(from, reason, 1);
    }
}

#[cfg(test)]
mod tests;
