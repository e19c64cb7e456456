//! The part of control for path MTUs: sends the probes of [`PathMtu`](rustguard_core::path_mtu::PathMtu), answers the
//! probes of peers, and reports the results.

use super::{
    Control,
    peer::{PathMtuChecks, Peer},
    tasks::Task,
    timer::now,
    transmit::Payload,
};
use crate::{
    shared::Shared,
    status::{PathMtu, Problem},
    way::Way,
};
use rustguard_core::{
    forward,
    node::PeerId,
    path_mtu::{Known, Message},
    paths::TransportAddress,
    session::OVERHEAD,
    time::Instant,
};
use std::{net::SocketAddr, sync::atomic::Ordering::Relaxed};

/// The number of bytes that must have been sent before a check begins. Fewer bytes contain no long packet, and a peer
/// that only listens to us gets its passive keepalives as from any WireGuard.
const LONG: u64 = 1_280;

impl Control {
    /// There is traffic with the peer: a check may be due.
    pub(super) fn path_mtu_traffic(&mut self, peer: PeerId) {
        let longest = longest(&self.shared);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if entry.shared.sealer.load().is_some() {
            entry.path_mtu.get_or_insert_default().checks.traffic(longest, now().instant);
            self.schedule_path_mtu(peer);
        }
    }

    /// A peer asks about a length, or answers. Our answer goes to the peer's known address, and not to the source of
    /// the datagram: the source is the one part of a datagram that is not authentic.
    pub(super) fn path_mtu_message(&mut self, peer: PeerId, from: Way, message: Message) {
        match message {
            Message::Request(probe) => {
                self.send_path_mtu(peer, Message::Reply(probe));
                if probe.is_ping() {
                    self.paths_asked(peer);
                }
            }
            Message::Reply(probe) if probe.is_ping() => {
                if !self.engine_answered(peer, probe) {
                    self.pong(peer, from, probe);
                }
            }
            Message::Reply(probe) => {
                let problem = self.peers.get(&peer).and_then(|entry| self.path_mtu_problem(entry));
                let Some(path_mtu) = self.path_mtu_checks(peer) else { return };
                let before = path_mtu.checks.known();
                path_mtu.checks.reply(probe, now().instant);
                self.schedule_path_mtu(peer);
                self.tell_path_mtu(peer, before, problem);
            }
        }
    }

    /// Sends the next probe.
    pub(super) fn path_mtu_due(&mut self, peer: PeerId, instant: Instant) {
        let problem = self.peers.get(&peer).and_then(|entry| self.path_mtu_problem(entry));
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(path_mtu) = &mut entry.path_mtu else { return };
        let before = path_mtu.checks.known();
        let sent = entry.shared.activity.tx_bytes().saturating_sub(entry.overhead_tx);
        let begins = path_mtu.checks.begins();
        let worth_it = !begins || sent.saturating_sub(path_mtu.sent) >= LONG;
        let mut request = None;
        if entry.shared.sealer.load().is_none() || !worth_it && !entry.shared.activity.is_watched() {
            // The next session, or the next data, begins the checks again.
            path_mtu.checks.stop();
        } else if !worth_it {
            // Workers report no more data while the node watches the peer.
            path_mtu.checks.postpone(instant);
        } else {
            if begins {
                path_mtu.sent = sent;
            }
            request = path_mtu.checks.tick(instant);
        }
        self.schedule_path_mtu(peer);
        self.tell_path_mtu(peer, before, problem);
        if let Some(request) = request {
            self.send_path_mtu(peer, request);
        }
    }

    /// The peer's address has changed.
    pub(super) fn path_mtu_moved(&mut self, peer: PeerId) {
        if let Some(path_mtu) = self.path_mtu_checks(peer) {
            path_mtu.checks.moved();
            self.schedule_path_mtu(peer);
        }
    }

    /// The network of this host has changed: the paths to all peers may have changed.
    pub(super) fn path_mtus_changed(&mut self) {
        let all = self.peers.values_mut().filter_map(|entry| entry.path_mtu.as_mut());
        all.for_each(|path_mtu| path_mtu.checks.check_again());
    }

    fn send_path_mtu(&mut self, peer: PeerId, message: Message) {
        let Some(sealer) = self.sealer(peer) else { return };
        let Some(way) = self.peers.get(&peer).and_then(|entry| entry.way()) else { return };
        self.seal_and_send(peer, &sealer, &message.to_bytes(), Payload::Probe(way));
    }

    fn schedule_path_mtu(&mut self, peer: PeerId) {
        let Some(path_mtu) = self.path_mtu_checks(peer) else { return };
        let due = path_mtu.checks.deadline();
        self.tasks.plan(peer, Task::PathMtu, due);
    }

    /// Reports a changed result.
    fn tell_path_mtu(&mut self, peer: PeerId, known: Known, problem: Option<Problem>) {
        let path_mtu = self.path_mtu_checks(peer).filter(|path_mtu| path_mtu.checks.known() != known);
        if let Some(path_mtu) = path_mtu {
            path_mtu.since = Some(now().instant);
            self.path_mtu_changed(peer, problem);
        }
    }

    /// The checks of a peer with which there was traffic.
    fn path_mtu_checks(&mut self, peer: PeerId) -> Option<&mut PathMtuChecks> {
        self.peers.get_mut(&peer)?.path_mtu.as_deref_mut()
    }

    /// The known path MTU to a peer.
    pub(super) fn path_mtu(&self, entry: &Peer) -> Option<PathMtu> {
        let (packet, limited) = match entry.path_mtu.as_ref()?.checks.known() {
            Known::Nothing | Known::Silent => return None,
            Known::Reaches(packet) => (packet, false),
            Known::Limit(packet) => (packet, packet < longest(&self.shared)),
        };
        // The datagram to the relay contains the sealed message.
        let (endpoint, inside) = match entry.way()? {
            Way::Direct(endpoint) => (endpoint, 0),
            Way::Relayed(relay) => (self.peers.get(&relay)?.endpoint()?, OVERHEAD + forward::HEADER_LEN),
        };
        let headers = match endpoint.remote {
            // The embedder's overhead is not known here.
            remote if TransportAddress::of(remote).is_some() => 0,
            SocketAddr::V4(_) => 20 + 8,
            SocketAddr::V6(_) => 40 + 8,
        };
        Some(PathMtu { packet, datagram: u32::from(packet) + (inside + OVERHEAD) as u32 + headers, limited })
    }
}

/// The longest text of a packet: padding ends at the MTU.
fn longest(shared: &Shared) -> u16 {
    /// The capacity of a UDP datagram (65,535 bytes less an IP and a UDP header), less a message's own header and tag.
    const MOST: u32 = 65_535 - 48 - OVERHEAD as u32;
    shared.mtu.load(Relaxed).min(MOST) as u16
}
