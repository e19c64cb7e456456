//! The state that the stack, its sockets and its task share.

use crate::queues::Queues;
use ipnet::IpNet;
use rustguard_crypto::random;
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    socket::{AnySocket, tcp as smol_tcp},
    time::Instant,
    wire::{HardwareAddress, IpAddress, IpCidr},
};
use std::{
    collections::{HashMap, HashSet},
    io,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::{Duration, Instant as Clock},
};
use tokio::sync::Notify;

/// The most connections and UDP sockets at once.
pub const MAX_CONNECTIONS: usize = 4_096;
/// How many of them may be connections that others have begun, so that those of this end have room.
const MAX_ACCEPTED: usize = MAX_CONNECTIONS / 2;
/// The most accepted connections of one address.
pub const MAX_FROM_ONE: usize = 512;
/// The ports for connections that begin here (RFC 6335 section 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// The longest time that a closed connection waits for the other end.
const LINGER: Duration = Duration::from_secs(60);

/// What the stack, its sockets and its task share.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// A socket has something for the task to do.
    pub(crate) work: Notify,
    /// All resets of [`Stack::close`](crate::Stack::close) were given to the tunnel.
    pub(crate) told: Notify,
}

pub(crate) struct Inner {
    pub(crate) interface: Interface,
    pub(crate) sockets: SocketSet<'static>,
    queues: Queues,
    began: Clock,
    /// The local ports of connections that began here, and of sockets.
    ports: HashSet<u16>,
    next_port: u16,
    /// The places of each port at which others begin connections.
    pub(crate) backlogs: HashMap<u16, Vec<SocketHandle>>,
    /// Where each connection and UDP socket comes from, until it is removed.
    origins: HashMap<SocketHandle, Origin>,
    /// How many accepted connections each address has, until both ends have closed them.
    accepted: HashMap<IpAddr, usize>,
    /// The tasks that accept connections when there is room again.
    acceptors: Vec<Waker>,
    /// Connections that nobody has any more, with the time at which they are given up.
    closing: Vec<(SocketHandle, Clock)>,
    pub(crate) resolver: Option<SocketHandle>,
    /// How many names are asked for.
    pub(crate) queries: usize,
    has_ended: bool,
}

enum Origin {
    /// It began here, and has this port.
    Port(u16),
    /// It was accepted from this address.
    From(IpAddr),
}

impl Shared {
    /// The addresses and the MTU have been checked.
    pub(crate) fn new(addresses: &[IpNet], mtu: usize) -> Result<Self, random::Unavailable> {
        let mut queues = Queues::new(mtu);
        let seed = random::bytes::<10>()?;
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_le_bytes(*seed.first_chunk().expect("ten bytes"));
        let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
        interface.update_ip_addrs(|own| {
            for net in addresses {
                // There is room: the number was checked.
                let _ = own.push(IpCidr::new(to_smol(net.addr()), net.prefix_len()));
            }
        });
        // Everything goes into the tunnel. The gateways are never asked for, because there is no link layer.
        let _ = interface.routes_mut().add_default_ipv4_route([0, 0, 0, 1].into());
        let _ = interface.routes_mut().add_default_ipv6_route([0, 0, 0, 0, 0, 0, 0, 1].into());
        let span = EPHEMERAL.end() - EPHEMERAL.start();
        let next_port = EPHEMERAL.start() + u16::from_le_bytes([seed[8], seed[9]]) % span;
        Ok(Self {
            inner: Mutex::new(Inner {
                interface,
                sockets: SocketSet::new(Vec::new()),
                queues,
                began: Clock::now(),
                ports: HashSet::new(),
                next_port,
                backlogs: HashMap::new(),
                origins: HashMap::new(),
                accepted: HashMap::new(),
                acceptors: Vec::new(),
                closing: Vec::new(),
                resolver: None,
                queries: 0,
                has_ended: false,
            }),
            work: Notify::new(),
            told: Notify::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics in the middle of a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task has something to do.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    /// Breaks all connections.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.has_ended = true;
        for (_, socket) in inner.sockets.iter_mut() {
            match socket {
                smoltcp::socket::Socket::Tcp(socket) => socket.abort(),
                smoltcp::socket::Socket::Udp(socket) => socket.close(),
                smoltcp::socket::Socket::Dns(_) => {}
            }
        }
    }
}

impl Inner {
    /// Handles what has arrived and what is due. Returns the time until something is due again.
    pub(crate) fn step(&mut self, leaving: &mut Vec<Vec<u8>>) -> Option<Duration> {
        let now = self.now();
        self.interface.poll(now, &mut self.queues, &mut self.sockets);
        self.sweep();
        leaving.extend(self.queues.leaving.drain(..));
        let delay = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        // Until the next connection is given up.
        let closing = self.closing.iter().map(|(_, at)| at.saturating_duration_since(Clock::now())).min();
        delay.into_iter().chain(closing).min()
    }

    /// Takes packets of the tunnel in. Each of them counts for the next one.
    pub(crate) fn take_in(&mut self, packets: Vec<Vec<u8>>) {
        let now = self.now();
        for packet in packets {
            if self.admits(&packet) {
                self.queues.arrived.push_back(packet);
                self.interface.poll_ingress_single(now, &mut self.queues, &mut self.sockets);
            }
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Removes connections that have ended, and gives those up whose other end is silent.
    fn sweep(&mut self) {
        let now = Clock::now();
        let mut gone = Vec::new();
        for (handle, until) in &self.closing {
            let socket = self.sockets.get_mut::<smol_tcp::Socket<'_>>(*handle);
            if *until <= now {
                socket.abort();
            }
            // A reset is sent before the socket goes.
            let is_closed = socket.state() == smol_tcp::State::Closed && socket.remote_endpoint().is_none();
            if is_closed || socket.state() == smol_tcp::State::TimeWait {
                gone.push(*handle);
            }
        }
        self.closing.retain(|(handle, _)| !gone.contains(handle));
        for handle in gone {
            self.remove(handle);
        }
    }

    /// How large the buffers of a connection are that begins now. A few connections are fast over long paths, and many
    /// take no more memory than that.
    pub(crate) fn buffer(&self) -> usize {
        match self.origins.len() {
            ..128 => 256 * 1_024,
            128..1_024 => 64 * 1_024,
            1_024.. => 16 * 1_024,
        }
    }

    /// Fails if the device has ended, or there is no room for another socket.
    pub(crate) fn check_room(&self) -> io::Result<()> {
        if self.has_ended {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the tunnel has ended"));
        }
        if self.origins.len() >= MAX_CONNECTIONS {
            let why = format!("there are {MAX_CONNECTIONS} connections");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        Ok(())
    }

    /// Whether the stack is closed, and all resets were given to the tunnel.
    pub(crate) fn is_told(&self) -> bool {
        let is_told = |socket: &smoltcp::socket::Socket<'_>| match socket {
            smoltcp::socket::Socket::Tcp(socket) => socket.remote_endpoint().is_none(),
            _ => true,
        };
        self.has_ended && self.sockets.iter().all(|(_, socket)| is_told(socket))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A free port, or this one if it is free.
    pub(crate) fn take_port(&mut self, wanted: u16) -> io::Result<u16> {
        if wanted > 0 {
            return match self.ports.insert(wanted) {
                true => Ok(wanted),
                false => Err(io::Error::new(io::ErrorKind::AddrInUse, format!("port {wanted} is taken"))),
            };
        }
        // There are fewer sockets than ports, so one is free.
        for _ in EPHEMERAL {
            let port = self.next_port;
            self.next_port = if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            if self.ports.insert(port) {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))
    }

    pub(crate) fn free_port(&mut self, port: u16) {
        self.ports.remove(&port);
    }

    /// Adds a connection that begins here, or a UDP socket. The port is free again when it is removed.
    pub(crate) fn add(&mut self, socket: impl AnySocket<'static>, port: u16) -> SocketHandle {
        let handle = self.sockets.add(socket);
        self.origins.insert(handle, Origin::Port(port));
        handle
    }

    /// Whether another connection may be accepted. If not, the task is woken when one may be.
    pub(crate) fn may_accept(&mut self, waker: &Waker) -> bool {
        let accepted: usize = self.accepted.values().sum();
        let may = accepted < MAX_ACCEPTED && self.check_room().is_ok();
        if !may && !self.acceptors.iter().any(|known| known.will_wake(waker)) {
            self.acceptors.push(waker.clone());
        }
        may
    }

    /// Counts a connection as accepted, unless the address has too many.
    pub(crate) fn accept(&mut self, handle: SocketHandle, from: IpAddr) -> bool {
        let of_one = self.accepted.entry(from).or_default();
        if *of_one >= MAX_FROM_ONE {
            return false;
        }
        *of_one += 1;
        self.origins.insert(handle, Origin::From(from));
        true
    }

    pub(crate) fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
        match self.origins.remove(&handle) {
            Some(Origin::Port(port)) => self.free_port(port),
            Some(Origin::From(from)) => {
                if let Some(of_one) = self.accepted.get_mut(&from) {
                    *of_one -= 1;
                    if *of_one == 0 {
                        self.accepted.remove(&from);
                    }
                }
            }
            // It was a place of a port.
            None => return,
        }
        self.acceptors.drain(..).for_each(Waker::wake);
    }

    /// Nobody has this connection any more. It goes when both ends have closed it.
    pub(crate) fn close(&mut self, handle: SocketHandle) {
        self.sockets.get_mut::<smol_tcp::Socket<'_>>(handle).close();
        self.closing.push((handle, Clock::now() + LINGER));
    }
}

pub(crate) fn to_smol(address: IpAddr) -> IpAddress {
    address.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol_tcp::{Socket, SocketBuffer};
    use std::{
        net::Ipv4Addr,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Wake,
    };

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shared() -> Shared {
        Shared::new(&["10.0.0.1/32".parse().unwrap()], 1_420).unwrap()
    }

    fn socket() -> Socket<'static> {
        Socket::new(SocketBuffer::new(vec![0; 1]), SocketBuffer::new(vec![0; 1]))
    }

    #[test]
    fn others_leave_room_for_connections_of_this_end_and_wait_for_it() {
        let shared = shared();
        let mut inner = shared.lock();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut accepted = Vec::new();
        while inner.may_accept(&waker) {
            let from = Ipv4Addr::from_bits(u32::try_from(accepted.len() / MAX_FROM_ONE).unwrap());
            let handle = inner.sockets.add(socket());
            assert!(inner.accept(handle, from.into()));
            accepted.push(handle);
        }
        assert_eq!(accepted.len(), MAX_ACCEPTED);
        assert!(inner.check_room().is_ok(), "this end has no room");
        assert!(!inner.may_accept(&waker));
        inner.remove(accepted.pop().unwrap());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it waits once, and is told of room once");
        assert!(inner.may_accept(&waker));
    }

    /// Two connections with the same ports and addresses would get each other's segments.
    #[test]
    fn a_port_is_taken_until_both_ends_have_closed() {
        let shared = shared();
        let mut inner = shared.lock();
        let port = inner.take_port(0).unwrap();
        let handle = inner.add(socket(), port);
        inner.close(handle);
        assert_eq!(inner.take_port(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        inner.sweep();
        assert!(inner.take_port(port).is_ok() && inner.closing.is_empty());
    }
}
