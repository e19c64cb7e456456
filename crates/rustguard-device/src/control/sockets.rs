//! The sockets of a device, and the workers that receive by them.

use crate::{
    binder::{Binder, Bound},
    config::UpdateError,
    shared::Shared,
    worker::WorkerHandle,
};
use rustguard_tun::{Lane, LocalAddr, Network, TunQueue, udp::UdpOptions};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long control waits for all workers together to close their sockets.
const CLOSED: Duration = Duration::from_secs(1);

/// The sockets, the ports and the mark with which they were bound, and the workers.
pub(super) struct Sockets {
    binder: Box<dyn Binder>,
    /// One for each worker, the same sockets as the workers'. Control sends by the first.
    networks: Vec<Box<dyn Network>>,
    workers: Vec<WorkerHandle>,
    port: u16,
    /// The ports beyond the first.
    more_ports: Vec<u16>,
    fwmark: u32,
    /// The addresses at which the sockets listen; if there are none, they listen everywhere.
    addresses: Vec<IpAddr>,
    /// The interface was set down, and has not been set up since.
    closed: bool,
}

impl Sockets {
    /// Binds sockets for that many workers, and also returns the workers' sockets: see
    /// [`start_workers`](Self::start_workers).
    pub(super) fn bind(
        mut binder: Box<dyn Binder>,
        port: u16,
        more_ports: Vec<u16>,
        fwmark: u32,
        addresses: Vec<IpAddr>,
        workers: usize,
    ) -> Result<(Self, Vec<Box<dyn Network>>), UpdateError> {
        let Bound { workers, control, port, .. } = bind(&mut *binder, port, &more_ports, fwmark, &addresses, workers)?;
        Ok((
            Self { binder, networks: control, workers: Vec::new(), port, more_ports, fwmark, addresses, closed: false },
            workers,
        ))
    }

    /// Starts a thread for each of these sockets and the TUN queues that belong to it.
    pub(super) fn start_workers(
        &mut self,
        device: &str,
        shared: &Arc<Shared>,
        queues: Vec<Vec<Box<dyn TunQueue>>>,
        networks: Vec<Box<dyn Network>>,
    ) -> io::Result<()> {
        for (n, (queues, network)) in queues.into_iter().zip(networks).enumerate() {
            let name = if n == 0 { format!("rg-{device}") } else { format!("rg-{device}-{n}") };
            self.workers.push(WorkerHandle::start(name, Arc::clone(shared), queues, network)?);
        }
        Ok(())
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The ports beyond the first.
    pub(super) fn more_ports(&self) -> &[u16] {
        &self.more_ports
    }

    /// All ports beyond the first from which datagrams leave: those of lanes as well.
    pub(super) fn other_ports(&self) -> Vec<u16> {
        self.more_ports.iter().copied().chain(self.lanes().map(|lane| lane.port)).collect()
    }

    /// The lanes of the workers.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        self.networks.iter().filter_map(Network::lane)
    }

    /// The socket by which control sends in a lane.
    pub(super) fn by_lane(&mut self, number: u8) -> Option<(Lane, &mut dyn Network)> {
        let mut networks = self.networks.iter_mut().filter_map(|network| Some((network.lane()?, &mut **network)));
        networks.find(|(lane, _)| lane.number == number)
    }

    /// The addresses at which the sockets listen; if there are none, they listen everywhere.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The address from which datagrams to `remote` leave, if the sockets are bound to one.
    pub(super) fn source_to(&self, remote: SocketAddr) -> Option<LocalAddr> {
        let ip = *self.addresses.iter().find(|address| address.is_ipv6() == remote.is_ipv6())?;
        Some(LocalAddr { ip, interface: 0, bound: false })
    }

    pub(super) fn fwmark(&self) -> u32 {
        self.fwmark
    }

    /// Whether the interface was set down, and has not been set up since.
    pub(super) fn are_closed(&self) -> bool {
        self.closed
    }

    /// The socket by which control sends; `None` while the interface is down.
    pub(super) fn first(&mut self) -> Option<&mut dyn Network> {
        self.networks.first_mut().map(|network| &mut **network)
    }

    /// Moves to another port, which replaces all present ports. Returns whether there are new sockets.
    pub(super) fn listen(&mut self, port: u16, fwmark: u32) -> Result<bool, UpdateError> {
        if self.more_ports.contains(&port) {
            let cause = "it is one of the tunnel's further ports: choose another, or change ListenPort in its file and restart it";
            return Err(UpdateError::Port { port, cause: io::Error::new(io::ErrorKind::AddrInUse, cause) });
        }
        if port == self.port {
            return Ok(false);
        }
        if self.closed {
            // As in the kernel's WireGuard, the port is bound when the interface is set up.
            self.port = port;
            self.more_ports.clear();
            return Ok(false);
        }
        self.rebind(port, Vec::new(), fwmark)?;
        Ok(true)
    }

    /// Binds new sockets for all workers. The old ones are closed only when the new ones are there.
    fn rebind(&mut self, port: u16, more_ports: Vec<u16>, fwmark: u32) -> Result<(), UpdateError> {
        let Bound { workers, control, port, .. } =
            bind(&mut *self.binder, port, &more_ports, fwmark, &self.addresses, self.workers.len())?;
        for (worker, network) in self.workers.iter().zip(workers) {
            worker.replace_network(Some(network));
        }
        (self.networks, self.port, self.more_ports, self.fwmark) = (control, port, more_ports, fwmark);
        self.wait_for_closed();
        Ok(())
    }

    /// Waits until the workers have closed the old sockets: the caller may want the port back at once, or need it for
    /// another program.
    fn wait_for_closed(&self) {
        let deadline = Instant::now() + CLOSED;
        self.workers.iter().for_each(|worker| worker.wait_for_replaced(deadline));
    }

    /// Sets the mark of the bound sockets.
    pub(super) fn set_fwmark(&mut self, mark: u32) -> Result<(), UpdateError> {
        let set = self.networks.iter().try_for_each(|network| network.set_fwmark(mark));
        set.map_err(|cause| UpdateError::Fwmark { mark, cause })?;
        self.fwmark = mark;
        Ok(())
    }

    /// Closes all sockets, because the interface was set down. Returns false if it was down already.
    pub(super) fn close(&mut self) -> bool {
        if std::mem::replace(&mut self.closed, true) {
            return false;
        }
        self.networks.clear();
        for worker in &self.workers {
            worker.replace_network(None);
        }
        self.wait_for_closed();
        true
    }

    /// Binds the port again, because the interface was set up. Returns false if it was up already.
    pub(super) fn reopen(&mut self) -> Result<bool, UpdateError> {
        if self.closed {
            self.rebind(self.port, self.more_ports.clone(), self.fwmark)?;
            self.closed = false;
            return Ok(true);
        }
        Ok(false)
    }
}

fn bind(
    binder: &mut dyn Binder,
    port: u16,
    more_ports: &[u16],
    fwmark: u32,
    addresses: &[IpAddr],
    workers: usize,
) -> Result<Bound, UpdateError> {
    let options = UdpOptions::new(port)
        .more_ports(more_ports.iter().copied())
        .fwmark(fwmark)
        .addresses(addresses.iter().copied());
    binder.bind(&options, workers).map_err(|cause| UpdateError::Port { port, cause })
}
