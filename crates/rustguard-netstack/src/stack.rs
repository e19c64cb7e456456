//! The stack: its addresses, and the task that moves packets.

use crate::{
    inner::{Shared, to_smol},
    tcp::{self, TcpListener, TcpStream},
    udp::UdpSocket,
};
use ipnet::IpNet;
use rustguard_crypto::random;
use rustguard_device::AsyncMemoryHost;
use smoltcp::socket::dns;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// The most addresses (smoltcp's `iface-max-addr-count-8`).
const MAX_ADDRESSES: usize = 8;
/// How many packets are taken from the tunnel before answers are sent.
const BATCH: usize = 64;
/// The longest time of [`Stack::close`].
const CLOSING: Duration = Duration::from_secs(1);

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
        Ok(Self(Arc::new(Shared::new(addresses, mtu)?)))
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
            if self.0.lock().is_told() {
                self.0.told.notify_one();
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
        let _ = tokio::time::timeout(CLOSING, self.0.told.notified()).await;
    }

    /// Connects to an address inside the tunnel.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`] after 20 s,
    /// [`io::ErrorKind::AddrNotAvailable`] without an address of this family,
    /// [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS),
    /// [`io::ErrorKind::NotConnected`] if the device has ended.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        tcp::connect(&self.0, to).await
    }

    /// Accepts connections at a port of all addresses.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]; [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS).
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        TcpListener::new(&self.0, port)
    }

    /// A UDP socket at a port of all addresses; 0 is a free one.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]; [`io::ErrorKind::ResourceBusy`] with [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS).
    pub fn bind(&self, port: u16) -> io::Result<UdpSocket> {
        UdpSocket::new(&self.0, port)
    }
}

/// The output of a future that is ready now.
fn now_or_never<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
