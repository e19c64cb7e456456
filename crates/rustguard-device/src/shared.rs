//! All state that control and the workers share: see "What they share" in ARCHITECTURE.md.
//!
//! Control writes, workers read. The exceptions are the sealing counter, the replay window, the endpoint and the
//! activity stamps; each is accessed once per run of packets.

pub(crate) mod listen_ports;
pub(crate) mod own_protocol;
pub(crate) mod peer;
pub(crate) mod peer_names;
pub(crate) mod refused_source;
pub(crate) mod sessions;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod to_control;

use crate::{
    config::SourceCheck,
    drops::{DropReason, Drops},
    filter::Filter,
    foreign::ForeignProtocol,
    handshakes::HandshakeQueues,
    logged_counter::LoggedCounter,
    policy::seat::Seat,
    waiting::WaitingBytes,
};
use arc_swap::ArcSwap;
use ipnet::Ipv4Net;
use listen_ports::ListenPorts;
use own_protocol::OwnProtocol;
use peer::PeerShared;
use sessions::Sessions;
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64},
    },
    time::Duration,
};
use table::Table;
use to_control::{RouteQuestion, ToControl};

/// One per device.
pub(crate) struct Shared {
    /// Receiver index → session.
    pub(crate) sessions: Sessions,
    /// Routes and peers, replaced as a whole.
    pub(crate) table: ArcSwap<Table>,
    /// The interface's MTU: packets are padded up to it, never past it.
    pub(crate) mtu: AtomicU32,
    /// The kernel's answers to [`RouteQuestion`]s. Emptied when its routes change.
    pub(crate) kernel_answers: papaya::HashMap<RouteQuestion, bool>,
    /// Packets that were relayed from peer to peer, including those that then waited for a session or had no endpoint.
    pub(crate) relayed: AtomicU64,
    /// Sealed datagrams that were forwarded from peer to peer, including those that then waited for a session.
    pub(crate) forwarded: AtomicU64,
    /// A peer is or was reached through another one.
    pub(crate) has_relayed: AtomicBool,
    /// How a router's packets with sources that it has not announced are treated.
    pub(crate) source_check: SourceCheck,
    /// Packets with such sources that were let through.
    pub(crate) unannounced: LoggedCounter,
    /// The broadcast addresses of the interface's own networks. Read only for packets that no peer gets.
    pub(crate) broadcasts: ArcSwap<Vec<Ipv4Addr>>,
    /// The UDP ports of the sockets.
    pub(crate) ports: ListenPorts,
    /// The tunnel's own datagrams that the host's routes led back into the interface.
    pub(crate) looped: LoggedCounter,
    /// The embedder's filter, which has the last word about packets.
    pub(crate) filter: Option<Filter>,
    /// The policy, if there is one.
    pub(crate) policy: Arc<Seat>,
    /// Packets of the host that no peer gets.
    pub(crate) unrouted: LoggedCounter,
    /// Everything dropped, by reason.
    pub(crate) drops: Drops,
    /// Bytes that wait for sessions.
    pub(crate) waiting_bytes: WaitingBytes,
    /// The channels to control.
    pub(crate) control: ToControl,
    /// The queues of handshake messages to control. Outsiders can fill them, so they carry nothing else.
    pub(crate) handshakes: HandshakeQueues,
    /// Tells the routing engine's own packets from others.
    pub(crate) is_engine_packet: Option<fn(&[u8]) -> bool>,
    /// Another protocol on the tunnel's port.
    pub(crate) foreign: Option<ForeignProtocol>,
    /// The embedder's own protocol inside the sessions.
    pub(crate) own_protocol: Option<OwnProtocol>,
}

impl Shared {
    /// For a device without a filter, a routing engine or another protocol: those fields are set afterwards.
    pub(crate) fn new(mtu: u32, ports: ListenPorts, control: ToControl, handshakes: HandshakeQueues) -> Self {
        Self {
            sessions: Sessions::default(),
            table: ArcSwap::default(),
            mtu: AtomicU32::new(mtu),
            kernel_answers: papaya::HashMap::new(),
            relayed: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            has_relayed: AtomicBool::new(false),
            source_check: SourceCheck::default(),
            unannounced: LoggedCounter::default(),
            broadcasts: ArcSwap::default(),
            ports,
            looped: LoggedCounter::default(),
            filter: None,
            policy: Arc::default(),
            unrouted: LoggedCounter::every(Duration::from_secs(3_600)),
            drops: Drops::default(),
            waiting_bytes: WaitingBytes::default(),
            control,
            handshakes,
            is_engine_packet: None,
            foreign: None,
            own_protocol: None,
        }
    }

    /// Whether this is the broadcast address of one of the interface's own networks.
    #[cold]
    pub(crate) fn is_broadcast(&self, destination: IpAddr) -> bool {
        matches!(destination, IpAddr::V4(address) if self.broadcasts.load().contains(&address))
    }

    /// The interface has, or has lost, an address of this network. Two addresses of one network share one broadcast
    /// address, which is removed with the first of them: broadcasts are then counted needlessly.
    pub(crate) fn set_network(&self, network: Ipv4Net, present: bool) {
        // RFC 3021: networks of two addresses have no broadcast.
        if network.prefix_len() < 31 {
            let mut all = Vec::clone(&self.broadcasts.load());
            all.retain(|known| *known != network.broadcast());
            all.extend(present.then(|| network.broadcast()));
            self.broadcasts.store(Arc::new(all));
        }
    }

    /// Counts `n` packets of `peer`, or for it, as dropped. Drops whose peer is not known are counted in
    /// [`drops`](Self::drops) alone.
    pub(crate) fn dropped(&self, peer: &PeerShared, reason: DropReason, n: usize) {
        self.drops.count(reason, n);
        peer.drops.count(reason, n);
    }
}
