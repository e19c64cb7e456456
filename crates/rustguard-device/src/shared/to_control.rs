//! The channels from the workers to control, except for handshake messages: see [`handshakes`](crate::handshakes).

use crate::{
    shared::peer::{LocationChange, PeerShared},
    way::Way,
};
use rustguard_core::{
    control_message::Kind,
    fec, lanes,
    node::PeerId,
    path_mtu,
    paths::{Candidates, Probe},
};
use std::{io, net::IpAddr, sync::atomic::Ordering};
use tokio::sync::mpsc;

/// How many messages may wait in each bounded queue.
pub(crate) struct Capacity {
    /// Questions for routes.
    pub(crate) routes: usize,
    /// Packets for the routing engine.
    pub(crate) engine: usize,
    /// Probes.
    pub(crate) probes: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            routes: ROUTE_QUEUE,
            // A burst of updates from some hundred neighbours.
            engine: 1024,
            // Simultaneous probes of a few hundred peers with several paths each.
            probes: 1024,
        }
    }
}

/// The most questions for routes that may wait, and that are sent to the kernel together.
pub(crate) const ROUTE_QUEUE: usize = 256;

/// The workers' end.
#[derive(Clone)]
pub(crate) struct ToControl {
    /// Source and destination of packets for which the kernel is to be asked. A question that finds its queue full is
    /// dropped: one of the next packets asks again.
    routes: mpsc::Sender<RouteQuestion>,
    /// Packets for the routing engine.
    pub(crate) engine: mpsc::Sender<(PeerId, Box<[u8]>)>,
    /// Probes, and the way by which they came.
    pub(crate) probes: mpsc::Sender<(PeerId, Way, ProbeMessage)>,
    /// Peers that need a handshake, each at most once.
    handshake_requests: mpsc::UnboundedSender<PeerId>,
    /// Bounded by its senders: one [`Notice::Confirmed`] for each session, one queued [`Notice::Roamed`] and one
    /// queued `SourceNew` for each peer, one [`Notice::Activity`] for each peer and check of the timers, one
    /// [`Notice::LanesWanted`] for each peer and second, one [`Notice::SourceRefused`] for each peer and hour.
    notices: mpsc::UnboundedSender<Notice>,
}

/// Control's end.
pub(crate) struct FromWorkers {
    pub(crate) routes: mpsc::Receiver<RouteQuestion>,
    pub(crate) engine: mpsc::Receiver<(PeerId, Box<[u8]>)>,
    pub(crate) probes: mpsc::Receiver<(PeerId, Way, ProbeMessage)>,
    pub(crate) handshake_requests: mpsc::UnboundedReceiver<PeerId>,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
}

/// Makes both ends.
pub(crate) fn channels(capacity: &Capacity) -> (ToControl, FromWorkers) {
    let (routes, routes_in) = mpsc::channel(capacity.routes);
    let (engine, engine_in) = mpsc::channel(capacity.engine);
    let (probes, probes_in) = mpsc::channel(capacity.probes);
    let (handshake_requests, handshake_requests_in) = mpsc::unbounded_channel();
    let (notices, notices_in) = mpsc::unbounded_channel();
    (
        ToControl { routes, engine, probes, handshake_requests, notices },
        FromWorkers {
            routes: routes_in,
            engine: engine_in,
            probes: probes_in,
            handshake_requests: handshake_requests_in,
            notices: notices_in,
        },
    )
}

/// Asks whether the kernel would route a peer's packet with these addresses back into the interface. The source matters
/// too: routing rules and reverse-path filters use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteQuestion {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// The text of a transport message that is not a packet, but a message from the peer's RustGuard to this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeMessage {
    /// About one of several paths.
    Path(Probe),
    /// About the longest packet that arrives.
    PathMtu(path_mtu::Message),
    /// About addresses at which the peer may be reached.
    Candidates(Box<Candidates>),
    /// About parities.
    Parity(fec::Message),
    /// About lanes.
    Lanes(lanes::Message),
}

impl ProbeMessage {
    /// Whether a text is such a message, by its first bytes.
    pub(crate) fn is_one(text: &[u8]) -> bool {
        Kind::of(text).is_some_and(|kind| !matches!(kind, Kind::Forwarded | Kind::Roster))
    }

    /// Reads a text of this kind.
    pub(crate) fn parse(kind: Kind, text: &[u8]) -> Option<Self> {
        match kind {
            Kind::ProbeRequest | Kind::ProbeReply => Probe::parse(text).map(Self::Path),
            Kind::PathMtuRequest | Kind::PathMtuReply => path_mtu::Message::parse(text).map(Self::PathMtu),
            Kind::Candidates => Candidates::parse(text).map(Box::new).map(Self::Candidates),
            Kind::ParityOffer | Kind::ParityAccept => fec::Message::parse(text).map(Self::Parity),
            Kind::LanesQuestion | Kind::LanesAnswer | Kind::LaneRequest | Kind::LaneReply => {
                lanes::Message::parse(text).map(Self::Lanes)
            }
            // These are for the worker and for the embedder.
            Kind::Forwarded | Kind::Roster => None,
        }
    }
}

/// An observation of a worker.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The first data of the session with this index was authenticated.
    Confirmed(u32),
    /// Data was sent or received: a timer of the peer may have started.
    Activity(PeerId),
    /// Authenticated data moved the peer's endpoint.
    Roamed(PeerId),
    /// Authenticated data came to another address of ours than before.
    SourceNew(PeerId),
    /// There is a stream to the peer without lanes: once a second for each peer.
    LanesWanted(PeerId),
    /// The peer sends from an address that its allowed IPs do not permit.
    SourceRefused(PeerId),
    /// The worker ended.
    WorkerEnded(io::Result<()>),
}

impl ToControl {
    pub(crate) fn notify(&self, notice: Notice) {
        // Control is gone only while the device shuts down.
        let _ = self.notices.send(notice);
    }

    /// Asks the kernel.
    #[cold]
    pub(crate) fn ask_route(&self, question: RouteQuestion) {
        // If the queue is full, one of the next packets asks again.
        let _ = self.routes.try_send(question);
    }

    /// Tells control how authenticated data changed the endpoint of `peer`.
    pub(crate) fn location_change(&self, peer: &PeerShared, change: LocationChange) {
        match change {
            LocationChange::None => {}
            LocationChange::Endpoint => self.roamed(peer),
            LocationChange::Source if peer.source_new.swap(true, Ordering::AcqRel) => {}
            LocationChange::Source => self.notify(Notice::SourceNew(peer.id)),
        }
    }

    /// Tells control that authenticated data moved `peer`, unless such a notice is queued already: control reads the
    /// newest endpoint.
    fn roamed(&self, peer: &PeerShared) {
        if !peer.roamed.swap(true, Ordering::AcqRel) {
            self.notify(Notice::Roamed(peer.id));
        }
    }

    /// Requests a handshake with `peer`, because packets wait, or a sealer or an opener is due for a rekey. Does
    /// nothing if a request is queued already.
    pub(crate) fn want_handshake(&self, peer: &PeerShared) {
        if !peer.handshake_wanted.swap(true, Ordering::AcqRel) {
            // Control is gone only while the device shuts down.
            let _ = self.handshake_requests.send(peer.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_tun::Endpoint;
    use std::sync::Arc;

    #[test]
    fn a_peer_that_moves_with_every_packet_has_one_signal_in_the_queue() {
        let (control, mut from_workers) = channels(&Capacity::default());
        let peer = PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        for port in 1..1_000 {
            let from = Endpoint::new(([192, 0, 2, 1], port).into());
            control.location_change(&peer, peer.seen_at(&from.into()));
        }
        assert!(matches!(from_workers.notices.try_recv(), Ok(Notice::Roamed(PeerId(1)))));
        assert!(from_workers.notices.try_recv().is_err());
    }
}
