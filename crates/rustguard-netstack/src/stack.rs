//! The stack: its addresses, its sockets, and the task that moves packets.

use crate::{
    queues::Queues,
    tcp::{self, TcpListener, TcpStream},
    udp::UdpSocket,
};
use ipnet::IpNet;
use rustguard_crypto::random;
use rustguard_device::AsyncMemoryHost;
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    socket::{dns, tcp as smol_tcp},
    time::Instant,
    wire::{HardwareAddress, IpAddress, IpCidr},
};
use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant as Clock},
};
use tokio::sync::Notify;

/// The most connections and sockets at once, of both directions.
pub const MAX_CONNECTIONS: usize = 4_096;
/// The most accepted connections of one address.
pub const MAX_FROM_ONE: usize = 512;
/// The most addresses (smoltcp's `iface-max-addr-count-8`).
const MAX_ADDRESSES: usize = 8;
/// The ports for connections that begin here (RFC 6335 section 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// How many packets are taken from the tunnel before answers are sent.
const BATCH: usize = 64;
/// How long [`Stack::close`] takes, and how often it looks.
const CLOSING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(2);
/// The longest time that a closed connection waits for the other end.
const LINGER: Duration = Duration::from_secs(60);

/// Why there is no stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// There is no address, or there are too many.
    #[error("{0} addresses: a stack has from 1 to {MAX_ADDRESSES}")]
    Addresses(usize),
    /// The MTU does not suit IP.
    #[error("an MTU of {0}: it has to be from 576 to 9216, and for IPv6 at least 1280")]
    Mtu(usize),
    /// The system has no random bytes.
    #[error(transparent)]
    Random(#[from] random::Unavailable),
}

/// A network stack with addresses inside a tunnel. Clones are the same stack.
#[derive(Clone)]
pub struct Stack(pub(crate) Arc<Shared>);

/// What the stack, its sockets and its task share.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// A socket has something for the task to do.
    work: Notify,
}

pub(crate) struct Inner {
    pub(crate) interface: Interface,
    pub(crate) sockets: SocketSet<'static>,
    queues: Queues,
    began: Clock,
    /// The local ports of connections that began here, and of sockets.
    ports: HashSet<u16>,
    next_port: u16,
    /// How many sockets there are.
    count: usize,
    /// The places of each port at which others begin connections.
    pub(crate) backlogs: HashMap<u16, Vec<SocketHandle>>,
    /// How many accepted connections each address has.
    pub(crate) accepted: HashMap<IpAddr, usize>,
    /// Connections that nobody has any more, with the time at which they are given up.
    closing: Vec<(SocketHandle, Clock)>,
    pub(crate) resolver: Option<SocketHandle>,
    /// How many names are asked for.
    pub(crate) queries: usize,
    has_ended: bool,
}

impl Stack {
    /// Makes a stack with these addresses. The stack sends no packets longer than `mtu` bytes.
    ///
    /// # Errors
    /// See [`StackError`].
    pub fn new(addresses: &[IpNet], mtu: usize) -> Result<Self, StackError> {
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return Err(StackError::Addresses(addresses.len()));
        }
        let least = if addresses.iter().any(|net| net.addr().is_ipv6()) { 1_280 } else { 576 };
        if !(least..=9_216).contains(&mtu) {
            return Err(StackError::Mtu(mtu));
        }
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
        Ok(Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                interface,
                sockets: SocketSet::new(Vec::new()),
                queues,
                began: Clock::now(),
                ports: HashSet::new(),
                next_port,
                count: 0,
                backlogs: HashMap::new(),
                accepted: HashMap::new(),
                closing: Vec::new(),
                resolver: None,
                queries: 0,
                has_ended: false,
            }),
            work: Notify::new(),
        })))
    }

    /// Names are asked of these servers, inside the tunnel; the first four are used.
    #[must_use]
    pub fn with_name_servers(self, servers: &[IpAddr]) -> Self {
        let servers: Vec<_> = servers.iter().take(4).map(|server| to_smol(*server)).collect();
        if !servers.is_empty() {
            let mut inner = self.0.lock();
            let resolver = inner.sockets.add(dns::Socket::new(&servers, Vec::new()));
            inner.resolver = Some(resolver);
        }
        self
    }

    /// Moves packets between the stack and the tunnel until the device ends. Run it as a task. Afterwards all
    /// connections are broken.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when the device has ended.
    pub async fn run(&self, host: AsyncMemoryHost) -> io::Result<()> {
        let ended = self.packets(&host).await;
        self.0.end();
        ended
    }

    async fn packets(&self, host: &AsyncMemoryHost) -> io::Result<()> {
        let mut buffer = vec![0; 65_535];
        let mut leaving = Vec::new();
        loop {
            let delay = self.0.lock().step(&mut leaving);
            let has_sent = !leaving.is_empty();
            for packet in leaving.drain(..) {
                // While this waits for room, packets that arrive wait as well.
                host.send(&packet).await?;
            }
            if has_sent {
                // There may be more that had no room.
                continue;
            }
            let due = async {
                match delay {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                len = host.recv(&mut buffer) => {
                    let mut packets = vec![buffer[..len?].to_vec()];
                    while packets.len() < BATCH {
                        let Some(len) = now_or_never(std::pin::pin!(host.recv(&mut buffer))) else { break };
                        packets.push(buffer[..len?].to_vec());
                    }
                    self.0.lock().take_in(packets);
                }
                () = self.0.work.notified() => {}
                () = due => {}
            }
        }
    }

    /// Resets all connections, before the device is ended, so that the other ends do not wait for this one. Nothing new
    /// begins afterwards. Waits for at most a second, if the tunnel takes no packets.
    pub async fn close(&self) {
        self.0.end();
        self.0.wake();
        let told = async {
            while !self.0.lock().is_told() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(CLOSING, told).await;
    }

    /// Connects to an address inside the tunnel.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`] after 20 s,
    /// [`io::ErrorKind::AddrNotAvailable`] without an address of this family,
    /// [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`], [`io::ErrorKind::NotConnected`] if the device has
    /// ended.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        tcp::connect(&self.0, to).await
    }

    /// Accepts connections at a port of all addresses.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]; [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`].
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        TcpListener::new(&self.0, port)
    }

    /// A UDP socket at a port of all addresses; 0 is a free one.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]; [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`].
    pub fn bind(&self, port: u16) -> io::Result<UdpSocket> {
        UdpSocket::new(&self.0, port)
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics in the middle of a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task has something to do.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    /// Breaks all connections.
    fn end(&self) {
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
    fn step(&mut self, leaving: &mut Vec<Vec<u8>>) -> Option<Duration> {
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
    fn take_in(&mut self, packets: Vec<Vec<u8>>) {
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
            if matches!(socket.state(), smol_tcp::State::Closed | smol_tcp::State::TimeWait) {
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
        let listening: usize = self.backlogs.values().map(Vec::len).sum();
        match self.count.saturating_sub(listening) {
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
        if self.count >= MAX_CONNECTIONS {
            let why = format!("there are {MAX_CONNECTIONS} connections");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        Ok(())
    }

    /// Whether all resets were given to the tunnel.
    fn is_told(&self) -> bool {
        let is_told = |socket: &smoltcp::socket::Socket<'_>| match socket {
            smoltcp::socket::Socket::Tcp(socket) => socket.remote_endpoint().is_none(),
            _ => true,
        };
        self.queues.leaving.is_empty() && self.sockets.iter().all(|(_, socket)| is_told(socket))
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

    pub(crate) fn add(&mut self, socket: impl smoltcp::socket::AnySocket<'static>) -> SocketHandle {
        self.count += 1;
        self.sockets.add(socket)
    }

    pub(crate) fn remove(&mut self, handle: SocketHandle) {
        self.count -= 1;
        self.sockets.remove(handle);
    }

    /// Nobody has this connection any more. It goes when both ends have closed it.
    pub(crate) fn close(&mut self, handle: SocketHandle) {
        self.sockets.get_mut::<smol_tcp::Socket<'_>>(handle).close();
        self.closing.push((handle, Clock::now() + LINGER));
    }
}

/// The output of a future that is ready now.
fn now_or_never<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

pub(crate) fn to_smol(address: IpAddr) -> IpAddress {
    address.into()
}
