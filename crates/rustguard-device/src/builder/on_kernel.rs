//! A device on an interface of the Linux kernel.

use super::{Builder, Io, Offload, default_queues};
use crate::{
    binder::{Binder, UdpBinder, UringBinder, WithTransport},
    device::Device,
    error::StartError,
    interface::Interface,
    kernel::{LearnedTables, Redistribute},
    worker::LANES,
};
use rustguard_tun::{
    TunQueue,
    tun::{MAX_QUEUES, Tun, TunOptions},
    uring::UringTun,
};
use std::io;

impl Builder {
    /// Sets the kernel's tables into which the engine's routes go. By default only the workers use these routes, and
    /// the host's own packets need other routes.
    #[must_use]
    pub fn routing_tables(mut self, tables: LearnedTables) -> Self {
        self.settings.tables = Some(tables);
        self
    }

    /// Adds routes of the kernel's main table that the engine also announces, for as long as they exist. Routes into
    /// the tunnel, routes that a mesh has learned (`proto babel`), and link-local and multicast routes are left out.
    /// The embedder's own transports have no such routes.
    #[must_use]
    pub fn redistribute(mut self, which: impl IntoIterator<Item = Redistribute>) -> Self {
        self.settings.redistribute.extend(which);
        self
    }

    /// Starts the device on a new kernel interface with this name, and on UDP sockets. The interface is down and has no
    /// addresses; the crate `rustguard-quick` sets up the rest of the host.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self, interface: &str) -> Result<Device, StartError> {
        self.start_on(interface, None)
    }

    /// The same as [`start`](Self::start), with an embedder's own transport beside the UDP sockets: see
    /// [`WithTransport`]. If routes of the host lead into the tunnel, the transport's own packets must not take these
    /// routes: give its sockets the [mark](Self::fwmark) of the device.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with_transport(self, interface: &str, transport: impl Binder) -> Result<Device, StartError> {
        self.start_on(interface, Some(Box::new(transport)))
    }

    fn start_on(self, interface: &str, transport: Option<Box<dyn Binder>>) -> Result<Device, StartError> {
        let workers = self.queues.unwrap_or_else(default_queues).get();
        let offload = self.offload == Offload::On;
        let options = TunOptions::new(interface).mtu(self.settings.mtu).offload(offload);
        // More than 51 workers have fewer lanes each.
        let each = LANES.min(MAX_QUEUES / workers).max(1);
        let lanes = Tun::create_queues(&options, workers * each)?;
        let interface = Interface { name: lanes[0].name().to_owned(), index: lanes[0].index() };
        let (settings, interface) = (self.settings, Some(interface));
        let (lanes, udp): (Vec<Box<dyn TunQueue>>, Box<dyn Binder>) = match self.io {
            Io::Poll => {
                (lanes.into_iter().map(|lane| Box::new(lane) as _).collect(), Box::new(UdpBinder::new(offload)))
            }
            Io::Uring => {
                let ring = |lane| Ok(Box::new(UringTun::new(lane)?) as _);
                let lanes = lanes.into_iter().map(ring).collect::<io::Result<_>>();
                (lanes.map_err(StartError::Uring)?, Box::new(UringBinder::new(offload)))
            }
        };
        let binder = match transport {
            Some(transport) => Box::new(WithTransport { udp, transport }),
            None => udp,
        };
        Device::launch(settings, by_worker(lanes, each), binder, interface)
    }
}

/// Groups the queues by worker.
fn by_worker<T>(lanes: Vec<T>, each: usize) -> Vec<Vec<T>> {
    let mut lanes = lanes.into_iter().peekable();
    let mut workers = Vec::new();
    while lanes.peek().is_some() {
        workers.push(lanes.by_ref().take(each).collect());
    }
    workers
}
