//! How a device is made: the settings before it starts.

use crate::{
    binder::Binder,
    config::{Change, PeerUpdate, SourceCheck},
    device::Device,
    error::StartError,
    filter,
    foreign::{Datagrams, ForeignProtocol},
    relay::Relay,
    settings::Settings,
    status::Counter,
};
use ipnet::IpNet;
use rustguard_core::routing::RoutingEngine;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_tun::TunQueue;
use std::num::NonZeroUsize;
use tokio::sync::mpsc;

#[cfg(feature = "kernel")]
mod on_kernel;

/// The settings of a device that is to start. [`Device::update`] changes some of them later.
#[derive(Default)]
pub struct Builder {
    pub(crate) settings: Settings,
    queues: Option<NonZeroUsize>,
    offload: Offload,
    io: Io,
}

/// How workers talk to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Io {
    /// A system call for each batch, and ppoll where there is nothing to do.
    #[default]
    Poll,
    /// io_uring: reads that go on by themselves, and whole batches of writes at once. Linux 6.7 or newer.
    Uring,
}

/// Whether whole runs of packets are exchanged with the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// As far as the kernel is able to.
    #[default]
    On,
    /// Every packet is a system call: for kernels that get it wrong, and to measure what it brings.
    Off,
}

impl Device {
    /// Begins a device.
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

    /// Sets the firewall mark (SO_MARK) of all datagrams that the device sends; 0, the default, for none.
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

    /// Sets how often a name that cannot be resolved is tried again, with growing pauses of up to 30 s; without limit by default.
    #[must_use]
    pub fn resolution_retries(mut self, retries: u32) -> Self {
        self.settings.resolution_retries = Some(retries);
        self
    }

    /// Sets whether a handshake begins with each peer as soon as it has an endpoint, without a packet to send; off by default.
    /// Peers that still use a session from before a crash of this program then get a new one at once, instead of after 15 seconds.
    /// At most 1,000 handshakes begin each second.
    #[must_use]
    pub fn greet(mut self, greet: bool) -> Self {
        self.settings.greet = greet;
        self
    }

    /// How many queues the interface has, each with sockets and a thread of its own; by default [`default_queues`]. All
    /// packets of one peer come in by one queue, and those of a flow go out by one: they stay in order.
    #[must_use]
    pub fn queues(mut self, queues: NonZeroUsize) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Whether whole runs of packets are exchanged with the kernel (TUN and UDP segmentation offload); by default they are,
    /// as far as the kernel is able to.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Sets how workers talk to the kernel; [`Io::Poll`] by default.
    #[must_use]
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Sets what happens to a packet that one peer sends to another; [`Relay::Auto`] by default.
    #[must_use]
    pub fn relay(mut self, relay: Relay) -> Self {
        self.settings.relay = relay;
        self
    }

    /// Relays also while netfilter has rules for what the host forwards: base chains of nftables at prerouting, forward or
    /// postrouting, or tables of legacy iptables. Relayed packets pass none of them. Over transports of the embedder's own there
    /// is no such host, and this is always so.
    #[must_use]
    pub fn relay_unfiltered(mut self) -> Self {
        self.settings.relay_unfiltered = true;
        self
    }

    /// Lets `engine` decide about routes. Allowed IPs are then the limit of what a peer may carry, and may overlap. Without an engine
    /// they are the routes, as in WireGuard ([`StaticRoutes`](crate::routing::StaticRoutes)).
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

    /// Sets what happens to a router's packets with sources that it has not announced; they are dropped by default.
    #[must_use]
    pub fn source_check(mut self, mode: SourceCheck) -> Self {
        self.settings.source_check = mode;
        self
    }

    /// Lets `filter` decide about each packet: see [`filter`](crate::filter). Several workers call it at the same time, once for each
    /// packet. It has to be quick, and should neither block nor allocate. A panic in it ends the device.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&filter::Packet<'_>) -> filter::Verdict + Send + Sync + 'static) -> Self {
        self.settings.filter = Some(Box::new(filter));
        self
    }

    /// Adds prefixes that the engine announces as this host's own.
    #[must_use]
    pub fn announce(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.settings.update.announce.get_or_insert_default().extend(prefixes);
        self
    }

    /// Lets another protocol share the tunnel's UDP port. A datagram that is no WireGuard message is queued when `recognises`
    /// returns true for it; [`DeviceHandle::send`](crate::DeviceHandle::send) answers. `recognises` runs on the data path, for
    /// datagrams of anybody: it has to be quick. Stock WireGuard peers drop unknown messages without an answer.
    ///
    /// At most `queued` datagrams wait; more are dropped and counted. Half of the places are kept for sources that send little,
    /// so that a flood does not keep them out.
    #[must_use]
    pub fn datagrams(mut self, recognises: fn(&[u8]) -> bool, queued: usize) -> (Self, Datagrams) {
        let (queue, receiver) = mpsc::channel(queued);
        self.settings.foreign = Some(ForeignProtocol::new(recognises, queue));
        (self, Datagrams::new(receiver))
    }

    /// The embedder's counters, which are shown with the device's in [`Status::counters`](crate::Status::counters) and `show`. The
    /// control thread calls the function for each status: it must not block.
    #[must_use]
    pub fn counters(mut self, counters: impl Fn() -> Vec<Counter> + Send + 'static) -> Self {
        self.settings.counters = Some(Box::new(counters));
        self
    }

    /// Starts over the embedder's own transports: packets in memory, a network stack in the program, another kind of network.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with<T: TunQueue, B: Binder>(self, tun: T, binder: B) -> Result<Device, StartError> {
        Device::launch(self.settings, vec![vec![tun]], binder, None)
    }
}

/// One queue for two cores, at least 1 and at most 8. A worker moves packets both ways, and leaves a core for the programs that
/// send and receive them.
pub fn default_queues() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((cores / 2).clamp(1, 8)).expect("it is clamped")
}
