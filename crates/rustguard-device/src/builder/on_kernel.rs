//! A device on an interface of the Linux kernel.

use super::{Builder, Io, Offload, default_queues};
use crate::{
    binder::{UdpBinder, UringBinder},
    device::Device,
    error::StartError,
    interface::Interface,
    kernel::{LearnedTables, Redistribute},
    worker::LANES,
};
use rustguard_tun::{
    tun::{Tun, TunOptions},
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
        let workers = self.queues.unwrap_or_else(default_queues).get();
        let offload = self.offload == Offload::On;
        let options = TunOptions::new(interface).mtu(self.settings.mtu).offload(offload);
        let lanes = Tun::create_queues(&options, workers * LANES)?;
        let interface = Interface { name: lanes[0].name().to_owned(), index: lanes[0].index() };
        let (settings, interface) = (self.settings, Some(interface));
        match self.io {
            Io::Poll => Device::launch(settings, by_worker(lanes), UdpBinder::new(offload), interface),
            Io::Uring => {
                let lanes = lanes.into_iter().map(UringTun::new).collect::<io::Result<_>>();
                let lanes = by_worker(lanes.map_err(StartError::Uring)?);
                Device::launch(settings, lanes, UringBinder::new(offload), interface)
            }
        }
    }
}

/// Groups the queues by worker.
fn by_worker<T>(lanes: Vec<T>) -> Vec<Vec<T>> {
    let mut lanes = lanes.into_iter().peekable();
    let mut workers = Vec::new();
    while lanes.peek().is_some() {
        workers.push(lanes.by_ref().take(LANES).collect());
    }
    workers
}
