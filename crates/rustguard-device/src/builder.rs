//! The settings of a device before it starts.

use crate::{
    binder::Binder,
    config::{Change, EndpointSpec, PeerUpdate, SourceCheck},
    device::Device,
    error::StartError,
    filter,
    foreign::{Datagrams, ForeignProtocol},
    policy::Policy,
    relay::Relay,
    settings::Settings,
    shared::own_protocol::OwnProtocol,
    status::Counter,
    texts::Texts,
};
use ipnet::IpNet;
use rustguard_core::routing::RoutingEngine;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_tun::TunQueue;
use std::{net::IpAddr, num::NonZeroUsize};
use tokio::sync::mpsc;

#[cfg(feature = "kernel")]
mod on_kernel;

/// The settings of a device before it starts. [`Device::update`] changes some of them later.
#[derive(Default)]
pub struct Builder {
    pub(crate) settings: Settings,
    queues: Option<NonZeroUsize>,
    offload: Offload,
    io: Io,
}

/// The way in which workers exchange packets with the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Io {
    /// A system call for each batch, and ppoll while there is nothing to do.
    #[default]
    Poll,
    /// io_uring: reads continue by themselves, and one system call writes a whole batch. Needs Linux 6.7 or newer.
    Uring,
}

/// Whether runs of packets are exchanged with the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// As far as the kernel supports it.
    #[default]
    On,
    /// Every packet is a system call. This is for kernels with bugs, and for measuring the effect of offload.
    Off,
}

impl Device {
    /// Begins the settings of a device.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Sets the private key. A device without one neither sends nor answers.
    #[must_use]
    pub fn private_key(mut self, key: StaticSecret) -> Self {
        self.settings.update.private_key = Change::Set(key);
        self
    }

    /// Sets the UDP port; 0, the default, lets the system choose one.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.settings.update.listen_port = Some(port);
        self
    }

    /// Sets further UDP ports, so that the hash of a bond or of several routes sees several flows: with
    /// [`listen_port`](Self::listen_port) at most eight, all different, none of them 0. Each answer leaves from the
    /// port to which the peer sent. If no port is known yet, the peer's address chooses it.
    #[must_use]
    pub fn more_listen_ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.settings.more_listen_ports = ports.into_iter().collect();
        self
    }

    /// Sets the addresses of this host at which the device listens, and from which it sends: at most one of each IP
    /// version. A version without an address is not used. By default the device listens at all addresses. An address
    /// that the host does not have is an error of the start.
    #[must_use]
    pub fn listen_addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.settings.listen_addresses = addresses.into_iter().collect();
        self
    }

    /// Sets the firewall mark (SO_MARK) of all datagrams that the device sends; 0, the default, means no mark.
    #[must_use]
    pub fn fwmark(mut self, mark: u32) -> Self {
        self.settings.update.fwmark = Some(mark);
        self
    }

    /// Adds a peer.
    #[must_use]
    pub fn peer(mut self, peer: PeerUpdate) -> Self {
        self.settings.update.peers.push(peer);
        self
    }

    /// Sets the MTU of the interface, in bytes; 1,420 by default.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.settings.mtu = mtu;
        self
    }

    /// Sets how often a name that cannot be resolved is tried again; without limit by default. The pauses grow to 30 s.
    #[must_use]
    pub fn resolution_retries(mut self, retries: u32) -> Self {
        self.settings.resolution_retries = Some(retries);
        self
    }

    /// Sets whether a handshake begins with each peer as soon as it has an endpoint and the interface is up, even if
    /// there is no packet to send; off by default. A peer that still uses a session from before a crash of this
    /// program then gets a new session at once, instead of after 15 seconds. At most 1,000 handshakes begin each
    /// second. Of the peers that are reached through others ([`EndpointSpec::Peer`](crate::EndpointSpec::Peer)),
    /// the first 16 are greeted.
    #[must_use]
    pub fn greet(mut self, greet: bool) -> Self {
        self.settings.greet = greet;
        self
    }

    /// Sets the number of the interface's queues; [`default_queues`] by default. Each queue has its own sockets and
    /// thread. All packets of one peer arrive through one queue, and all packets of a flow leave through one queue, so
    /// they stay in order.
    #[must_use]
    pub fn queues(mut self, queues: NonZeroUsize) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Sets whether runs of packets are exchanged with the kernel (TUN and UDP segmentation offload); by default, as
    /// far as the kernel supports it.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Sets the way in which workers exchange packets with the kernel; [`Io::Poll`] by default.
    #[must_use]
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Sets how packets from one peer to another are treated; [`Relay::Auto`] by default.
    #[must_use]
    pub fn relay(mut self, relay: Relay) -> Self {
        self.settings.relay = relay;
        self
    }

    /// Sets whether the device forwards the sealed datagrams of sessions between its peers, so that two peers that
    /// cannot reach each other have a way through this device ([`EndpointSpec::Peer`](crate::EndpointSpec::Peer)); off
    /// by default. The device cannot read what it forwards, and forwards only to and from its own peers. This is
    /// independent of [`relay`](Self::relay), which is about packets that are addressed to this device's peers, and
    /// that it decrypts.
    #[must_use]
    pub fn forward(mut self, forward: bool) -> Self {
        self.settings.update.forward = Some(forward);
        self
    }

    /// Relays packets even while netfilter has rules for packets that the host forwards: base chains of nftables at
    /// prerouting, forward or postrouting, or tables of legacy iptables. Relayed packets do not pass through them. Over
    /// the embedder's own transports there is no such host, so packets are always relayed unfiltered.
    #[must_use]
    pub fn relay_unfiltered(mut self) -> Self {
        self.settings.relay_unfiltered = true;
        self
    }

    /// Lets `engine` decide about routes. Allowed IPs may overlap then. For an engine that learns routes, they limit
    /// the addresses that a peer may carry; for [`Members`](crate::routing::Members), they are the addresses that the
    /// peer has. Without an engine, the allowed IPs are the routes, as in WireGuard
    /// ([`StaticRoutes`](crate::routing::StaticRoutes)).
    #[must_use]
    pub fn routing(mut self, engine: impl RoutingEngine + Send + 'static) -> Self {
        self.settings.engine = Some(Box::new(engine));
        self
    }

    /// Sets the function that stores the state which the engine needs after a restart. The control thread calls it.
    #[must_use]
    pub fn routing_state(mut self, sink: impl FnMut(&[u8]) + Send + 'static) -> Self {
        self.settings.state_sink = Some(Box::new(sink));
        self
    }

    /// Sets the treatment of packets whose source a router has not announced; they are dropped by default.
    #[must_use]
    pub fn source_check(mut self, mode: SourceCheck) -> Self {
        self.settings.source_check = mode;
        self
    }

    /// Lets `filter` decide about each packet: see [`filter`](crate::filter). Several workers call it at the same time,
    /// once for each packet. It has to be quick, and should neither block nor allocate. A panic in it ends the device.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&filter::Packet<'_>) -> filter::Verdict + Send + Sync + 'static) -> Self {
        self.settings.filter = Some(Box::new(filter));
        self
    }

    /// Sets what peers may send here: see [`policy`](crate::policy). It is in force before the first packet. `None`,
    /// the default, means no policy. If there is a filter too, the filter decides first.
    #[must_use]
    pub fn policy(self, policy: Option<Policy>) -> Self {
        self.settings.policy.set(policy);
        self
    }

    /// Adds prefixes that the engine announces as this host's own.
    #[must_use]
    pub fn announce(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.settings.update.announce.get_or_insert_default().extend(prefixes);
        self
    }

    /// Adds networks in which peers have their addresses: see [`Role::Server`](rustguard_core::routing::Role::Server).
    #[must_use]
    pub fn pools(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.settings.update.pools.get_or_insert_default().extend(prefixes);
        self
    }

    /// Adds endpoints at which this node is reached, besides the addresses that it finds itself. They are told to peers
    /// to which [direct paths](PeerUpdate::direct) are looked for.
    #[must_use]
    pub fn public_endpoints(mut self, endpoints: impl IntoIterator<Item = EndpointSpec>) -> Self {
        self.settings.update.public_endpoints.get_or_insert_default().extend(endpoints);
        self
    }

    /// Sets whether the router of this network is asked to map the UDP port (PCP, NAT-PMP, UPnP) while direct paths to
    /// a peer are looked for; on by default, in a program with the feature `port-mapping`.
    #[must_use]
    pub fn port_mapping(mut self, on: bool) -> Self {
        self.settings.update.port_mapping = Some(on);
        self
    }

    /// Lets another protocol share the tunnel's UDP port. A datagram that is not a WireGuard message is queued if
    /// `recognises` returns true for it. [`DeviceHandle::send`](crate::DeviceHandle::send) sends the answers.
    /// `recognises` runs on the data path, for datagrams from any sender, so it has to be quick. Other WireGuard
    /// implementations drop unknown messages without an answer.
    ///
    /// At most `queued` datagrams wait. More are dropped and counted. Half of the places are reserved for sources that
    /// send little, so that a flood does not exclude them.
    #[must_use]
    pub fn datagrams(mut self, recognises: fn(&[u8]) -> bool, queued: usize) -> (Self, Datagrams) {
        let (queue, receiver) = mpsc::channel(queued);
        self.settings.foreign = Some(ForeignProtocol::new(recognises, queue));
        (self, Datagrams::new(receiver))
    }

    /// Lets the embedder speak a protocol of its own inside the sessions: texts that are no IP packets. The text of a
    /// transport message is queued if `recognises` returns true for it. [`DeviceHandle::say`](crate::DeviceHandle::say)
    /// sends them. `recognises` runs on the data path, for texts of peers that are no packets and no messages of
    /// RustGuard's own, so it has to be quick. Other WireGuard implementations drop such texts without an answer.
    ///
    /// First bytes from 0x80 to 0xff are the embedder's: RustGuard will never use them. Others are permitted, except
    /// those from 0x40 to 0x6f, which IP packets have, and texts that begin with a byte from 1 to 31 and `RG`: these
    /// are RustGuard's own [control messages](rustguard_core::control_message), also of later versions. `recognises` is
    /// not asked about these exceptions, and they are not sent. The one exception is
    /// [`Kind::Roster`](rustguard_core::control_message::Kind::Roster), which a program sends and not the device.
    ///
    /// At most `queued` texts wait. More are dropped and counted, and so are texts of one peer beyond 4,000 in a
    /// second.
    #[must_use]
    pub fn texts(mut self, recognises: fn(&[u8]) -> bool, queued: usize) -> (Self, Texts) {
        let (queue, receiver) = mpsc::channel(queued);
        self.settings.own_protocol = Some(OwnProtocol::new(recognises, queue));
        (self, Texts::new(receiver))
    }

    /// Sets the function that returns the embedder's own counters. They are shown with the device's in
    /// [`Status::counters`](crate::Status::counters) and `show`. The control thread calls the function for each status,
    /// so it must not block.
    #[must_use]
    pub fn counters(mut self, counters: impl Fn() -> Vec<Counter> + Send + 'static) -> Self {
        self.settings.counters = Some(Box::new(counters));
        self
    }

    /// Starts the device over the embedder's own transports: packets in memory, a network stack in the program, or
    /// another kind of network. With [`WithTransport`](crate::WithTransport) as the binder, such a network is one more
    /// way to peers, beside UDP.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(self, tun: impl TunQueue, binder: impl Binder) -> Result<Device, StartError> {
        Device::launch(self.settings, vec![vec![Box::new(tun)]], Box::new(binder), None)
    }
}

/// The default number of queues: one for two cores, at least 1 and at most 8. A worker processes packets in both
/// directions, and leaves one core to the programs that send and receive them.
pub fn default_queues() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((cores / 2).clamp(1, 8)).expect("it is clamped")
}
