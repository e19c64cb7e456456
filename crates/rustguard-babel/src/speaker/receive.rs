//! Received packets: the TLVs about the link to a neighbour (Hello, IHU, acknowledgments). Updates are in
//! `speaker/updates.rs`, requests in `speaker/requests.rs`.
use super::{Babel, updates::Update};
use crate::{
    name::Name,
    neighbour::hello::Restarted,
    table::{request::SeqnoRequest, route::Route},
    wire::{
        ip,
        parse::Tlvs,
        tlv::{Timestamps, Tlv},
        types::{Announcement, RouterId, Seqno, micros},
    },
};
use core::net::{IpAddr, Ipv6Addr};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::Action};
use std::collections::BTreeSet;

/// A packet that is being read.
struct Reading {
    peer: PeerId,
    source: Ipv6Addr,
    /// The timestamp of its Hello.
    hello_sent: Option<u32>,
    /// The timestamps of its IHU.
    ihu_timestamps: Option<Timestamps>,
    /// The last Name TLV.
    name: Option<(RouterId, Name)>,
    /// Whether Hellos of the peer came recently, so that it is a neighbour (§3.3).
    acquired: bool,
    /// Whether the neighbour's Hello count began again.
    restarted: bool,
    /// Whether the packet is authenticated.
    has_mac: bool,
    /// Prefixes whose unfeasible updates are not followed. All routes of a prefix are examined at most once for each
    /// packet.
    unfeasible: BTreeSet<IpNet>,
}

/// A name that came with an update.
#[derive(Debug)]
pub(super) struct NameClaim {
    peer: PeerId,
    prefix: IpNet,
    router_id: RouterId,
    name: Name,
}

impl Babel {
    pub(super) fn receive(&mut self, peer: PeerId, packet: &[u8], out: &mut Vec<Action>) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else {
            self.counters.not_a_router += 1;
            return;
        };
        neighbour.heard(now);
        neighbour.out.heard(now);
        let Some((source, mut tlvs)) =
            ip::unwrap(packet).and_then(|(source, datagram)| Some((source, Tlvs::new(datagram).ok()?)))
        else {
            self.counters.not_babel += 1;
            return;
        };
        let mut reading = Reading {
            peer,
            source,
            hello_sent: None,
            ihu_timestamps: None,
            name: None,
            acquired: neighbour.is_acquired(),
            restarted: false,
            has_mac: false,
            unfeasible: BTreeSet::new(),
        };
        for tlv in tlvs.by_ref() {
            self.work += 1;
            self.read(tlv, &mut reading, out);
        }
        self.counters.malformed += u64::from(tlvs.malformed());
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        neighbour.wants_macs = reading.has_mac;
        if let Some(sent) = reading.hello_sent {
            neighbour.rtt.hello(sent, reading.ihu_timestamps, micros(now));
        }
        self.work += 1;
        let change = neighbour.assess(now);
        self.link_changed(peer, change, out);
    }

    fn read(&mut self, tlv: Tlv, reading: &mut Reading, out: &mut Vec<Action>) {
        let (peer, now) = (reading.peer, self.now);
        match tlv {
            Tlv::Hello { unicast, seqno, interval, sent } => {
                reading.hello_sent = sent;
                self.hello(reading, unicast, seqno, interval);
            }
            Tlv::Ihu { address, rxcost, interval, timestamps } => {
                if address.is_none_or(|address| address == IpAddr::from(self.address))
                    && let Some(neighbour) = self.neighbours.get_mut(&peer)
                {
                    neighbour.ihu(rxcost, interval, now);
                    reading.ihu_timestamps = timestamps;
                }
            }
            Tlv::PacketCounter => reading.has_mac = true,
            // A peer whose Hellos never came is no neighbour (§3.3). An ignored update must not be acknowledged either,
            // because the peer would not send it again.
            _ if !reading.acquired => {}
            Tlv::AckRequest { opaque, .. } => {
                if let Some(neighbour) = self.neighbours.get_mut(&peer) {
                    neighbour.out.ack(opaque, now);
                }
            }
            Tlv::Ack { opaque } => self.acknowledged(peer, opaque),
            Tlv::Update { prefix, router_id, seqno, metric, interval } => {
                let announcement = Announcement { router_id, seqno, metric };
                self.update(peer, &Update { prefix, announcement, interval }, &mut reading.unfeasible, out);
                if let Some((_, name)) = reading.name.filter(|&(named, _)| named == router_id) {
                    self.name_claims.push(NameClaim { peer, prefix, router_id, name });
                }
            }
            Tlv::Name { router_id, name } => reading.name = Some((router_id, name)),
            Tlv::Retraction { prefix: Some(prefix) } => self.retraction(prefix, peer),
            Tlv::Retraction { prefix: None } => self.retract_all(peer),
            Tlv::RouteRequest { prefix } => self.route_request(peer, prefix),
            Tlv::SeqnoRequest { prefix, router_id, seqno, hop_count } => {
                self.seqno_request(peer, SeqnoRequest { prefix, router_id, seqno }, hop_count);
            }
        }
    }

    fn hello(&mut self, reading: &mut Reading, unicast: bool, seqno: Seqno, interval: u16) {
        let now = self.now;
        let Some(neighbour) = self.neighbours.get_mut(&reading.peer) else { return };
        let mut forgotten = false;
        let first = match neighbour.hello(unicast, seqno, interval, now) {
            Ok(first) => first,
            // A neighbour restarts once in a packet at most. A packet that contradicts itself has no new information.
            Err(Restarted) if reading.restarted => return,
            Err(Restarted) => {
                (reading.restarted, forgotten) = (true, true);
                neighbour.forget(now);
                neighbour.hello(unicast, seqno, interval, now).unwrap_or(true)
            }
        };
        reading.acquired = true;
        neighbour.address = Some(reading.source);
        if first {
            // Two neighbours that find each other need not wait for their timers.
            neighbour.out.hello_now(now);
        }
        if forgotten {
            self.discard_all_of(reading.peer);
        }
    }

    fn acknowledged(&mut self, peer: PeerId, opaque: u16) {
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        for sent in neighbour.out.acknowledged(opaque) {
            let hold = self.table.entries.get_mut(&sent.prefix).and_then(|entry| entry.hold.as_mut());
            if let Some(hold) = hold.filter(|hold| sent.hold == Some(hold.number)) {
                hold.owed.remove(&peer);
                self.holds.acknowledged(sent.prefix, peer);
                self.stale.insert(sent.prefix);
            }
        }
    }

    /// Takes the names in a packet. The next hop to an origin decides the origin's name. As long as there is no name,
    /// any neighbour with a route to the origin is believed, because its route may be selected later.
    pub(super) fn take_names(&mut self) {
        let now = self.now;
        for NameClaim { peer, prefix, router_id, name } in self.name_claims.drain(..) {
            self.work += 1;
            let Some(entry) = self.table.entries.get(&prefix) else { continue };
            let leads = entry.via() == Some(peer) && entry.announced.is_some_and(|route| route.router_id == router_id);
            let may = |route: &Route| route.is_finite() && route.router_id == router_id;
            if leads || self.names.get(router_id).is_none() && entry.routes.get(&peer).is_some_and(may) {
                self.names.learn(router_id, name, peer, now);
            }
        }
    }
}
