//! Sent packets: the waiting messages for a neighbour are written into as few packets as possible.
use super::Babel;
use crate::{
    name::Name,
    neighbour::{
        Neighbour,
        outbox::{Reliable, SentUpdate, ack_timeout},
    },
    params::{IHU_EVERY, PROBE_PACE, UPDATE_INTERVAL, to_centis},
    table::{
        route::{Entry, Table},
        source::Sources,
    },
    wire::{
        build::Packet,
        ip,
        types::{Announcement, RouterId, micros},
    },
};
use core::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::Action, time::Instant};

impl Babel {
    /// Sends the messages that are due to a neighbour.
    pub(super) fn transmit(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        neighbour.out.resend(now);
        if neighbour.dump_due(now, &mut self.jitter) {
            neighbour.out.everything(true, now);
        }
        if neighbour.update_due(now, &mut self.jitter) {
            neighbour.out.everything(false, now);
        }
        self.work += 1;
        let mut packets =
            Packets { peer, now, source: self.address, packet: Packet::new(), sent: Reliable::default(), out };
        if neighbour.probe_due(now) {
            let opaque = neighbour.out.opaque();
            packets.room(neighbour).ack_request(opaque, to_centis(PROBE_PACE));
        }
        if neighbour.out.hello_due(now) {
            let interval = neighbour.hello_interval(now);
            let next = now + self.jitter.shorten(interval, 10);
            packets.hello(neighbour, interval, next);
        }
        if neighbour.is_acquired() && neighbour.out.flush_due(now) {
            self.work += neighbour.out.fill(peer, &self.table, now);
            packets.requests(neighbour);
            let called =
                |router_id| if router_id == self.identity.router_id() { self.name } else { self.names.get(router_id) };
            self.work += packets.updates(neighbour, &self.table, &mut self.sources, self.address_v4, called);
        }
        packets.close(neighbour);
    }

    /// Retracts everything towards all neighbours.
    pub(super) fn retract_everything(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        for (&peer, neighbour) in self.neighbours.iter_mut().filter(|(_, neighbour)| neighbour.is_acquired()) {
            let mut packets =
                Packets { peer, now, source: self.address, packet: Packet::new(), sent: Reliable::default(), out };
            packets.room(neighbour).retract_all(to_centis(UPDATE_INTERVAL));
            packets.close(neighbour);
        }
    }
}

/// An update that is going to be written.
struct QueuedUpdate {
    /// The announcement; `None`: a retraction.
    route: Option<Announcement>,
    prefix: IpNet,
    /// How many copies were sent before, if it has to be acknowledged.
    copies: Option<u8>,
    /// The number of the hold that the acknowledgment of a retraction ends.
    hold: Option<u64>,
}

/// Packets to one neighbour.
struct Packets<'a> {
    peer: PeerId,
    now: Instant,
    source: Ipv6Addr,
    packet: Packet,
    sent: Reliable,
    out: &'a mut Vec<Action>,
}

impl Packets<'_> {
    /// A packet with room for one more TLV.
    fn room(&mut self, neighbour: &mut Neighbour) -> &mut Packet {
        if !self.packet.has_room() {
            self.close(neighbour);
        }
        &mut self.packet
    }

    /// Sends the packet, and begins another.
    fn close(&mut self, neighbour: &mut Neighbour) {
        let timeout = ack_timeout(neighbour.rtt.smoothed());
        let sent = core::mem::take(&mut self.sent);
        if let Some((opaque, timeout)) = neighbour.out.sent(sent, timeout, self.now) {
            self.packet.ack_request(opaque, to_centis(timeout));
        }
        if self.packet.is_empty() {
            return;
        }
        let body = core::mem::replace(&mut self.packet, Packet::new()).finish(micros(self.now));
        let destination = neighbour.address.unwrap_or(ip::MULTICAST);
        self.out.push(Action::Send { peer: self.peer, packet: ip::wrap(self.source, destination, &body) });
    }

    /// Writes a Hello, and an IHU if it is due. The next Hello is due at `next`.
    fn hello(&mut self, neighbour: &mut Neighbour, interval: Duration, next: Instant) {
        let seqno = neighbour.out.hello_sent(interval, next);
        self.room(neighbour).hello(seqno, to_centis(interval));
        let Some(address) = neighbour.address else { return };
        if neighbour.out.ihu_in == 0 {
            neighbour.out.ihu_in = IHU_EVERY;
            let (rxcost, timestamps) = (neighbour.rxcost(), neighbour.rtt.timestamps());
            let interval = to_centis(interval * u32::from(IHU_EVERY));
            self.room(neighbour).ihu(address, rxcost, interval, timestamps);
        }
        neighbour.out.ihu_in -= 1;
    }

    /// Writes acknowledgments and all requests.
    fn requests(&mut self, neighbour: &mut Neighbour) {
        for opaque in core::mem::take(&mut neighbour.out.acks) {
            self.room(neighbour).ack(opaque);
        }
        if let Some(copies) = neighbour.out.wildcard_request.take() {
            self.room(neighbour).route_request(None);
            self.sent.wildcard = true;
            self.sent.copies = self.sent.copies.max(copies);
        }
        for prefix in core::mem::take(&mut neighbour.out.route_requests) {
            self.room(neighbour).route_request(Some(prefix));
        }
        for ((prefix, router_id), (seqno, hop_count)) in core::mem::take(&mut neighbour.out.seqno_requests) {
            self.room(neighbour).seqno_request(prefix, router_id, seqno, hop_count);
        }
    }

    /// Writes updates, ordered by origin and then by prefix: so each origin is named once, and similar prefixes are
    /// compressed. Returns how many.
    fn updates(
        &mut self,
        neighbour: &mut Neighbour,
        table: &Table,
        sources: &mut Sources,
        v4: Option<Ipv4Addr>,
        called: impl Fn(RouterId) -> Option<Name>,
    ) -> u64 {
        let updates = self.take_updates(neighbour, table, sources);
        let (interval, count) = (to_centis(UPDATE_INTERVAL), updates.len() as u64);
        for QueuedUpdate { route, prefix, copies, hold } in updates {
            // Urgent updates contain names, because the neighbour may not know the origin yet.
            let wanted = route.filter(|_| copies.is_some() || neighbour.out.names);
            if let Some((router_id, name)) = wanted.and_then(|route| Some((route.router_id, called(route.router_id)?)))
            {
                if !self.packet.has_room_for_name() {
                    self.close(neighbour);
                }
                self.packet.name(router_id, name);
            }
            let packet = self.room(neighbour);
            match route {
                Some(route) => packet.update(prefix, route, interval, v4),
                None => packet.retraction(prefix, interval),
            }
            if let Some(copies) = copies {
                self.sent.prefixes.push(SentUpdate { prefix, hold });
                self.sent.copies = self.sent.copies.max(copies);
            }
        }
        neighbour.out.names_sent();
        count
    }

    /// The updates of the next batch, by origin and then by prefix.
    fn take_updates(&self, neighbour: &mut Neighbour, table: &Table, sources: &mut Sources) -> Vec<QueuedUpdate> {
        let (urgent, normal) = neighbour.out.take_updates(self.now);
        let copies = urgent.into_iter().map(|(prefix, copies)| (prefix, Some(copies)));
        let all = copies.chain(normal.into_iter().map(|prefix| (prefix, None)));
        let queued = all.map(|(prefix, copies)| {
            let entry = table.entries.get(&prefix);
            // The next hop gets a retraction: there is no other route here.
            let route = entry.filter(|entry| entry.via() != Some(self.peer)).and_then(|entry| entry.announced);
            if let Some(route) = route {
                sources.announced(prefix, route, entry.and_then(Entry::via), self.now);
            }
            let hold = entry.and_then(|entry| entry.hold.as_ref()).map(|hold| hold.number);
            QueuedUpdate { route, prefix, copies, hold }
        });
        let mut queued: Vec<QueuedUpdate> = queued.collect();
        queued.sort_by_key(|update| (update.route.map(|route| route.router_id), update.prefix));
        queued
    }
}
