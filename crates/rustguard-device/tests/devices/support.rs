//! Shared by these tests: numbered devices over an in-memory network, and peers whose protocol the test runs itself.
//!
//! Device `n` has a secret key in which every byte is `n`, the outer address 192.0.2.n and the inner address 10.0.0.n.

use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{HEADROOM, Ignored, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{Binder, Builder, Device, DropReason, MemoryBinder, PeerUpdate, Update};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{self, MemoryHost, MemoryNet, MemorySocket},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// A limit far above every wait in these tests. Only a hang reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(80);
/// The protocol number of ordinary test packets: for experiments (RFC 3692).
pub(crate) const EXPERIMENT: u8 = 253;
/// The protocol number of packets between routing engines, also for experiments.
pub(crate) const ENGINE: u8 = 254;

pub(crate) fn secret(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

pub(crate) fn key(n: u8) -> PublicKey {
    secret(n).public_key()
}

/// The outer address of device `n`.
pub(crate) fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51_820))
}

/// The inner address of device `n`.
pub(crate) fn inner(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// An IPv4 packet from device `from` to device `to`.
pub(crate) fn packet(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    ipv4(inner(from), inner(to), EXPERIMENT, payload)
}

/// An IPv4 packet. Its header checksum is zero: neither devices nor in-memory hosts check it.
pub(crate) fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet.extend(from.octets().iter().chain(&to.octets()).chain(payload));
    packet
}

/// The next packet that a host receives from its tunnel.
pub(crate) fn next(host: &MemoryHost) -> Vec<u8> {
    let mut buffer = [0; 65_535];
    let n = host.recv(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

/// Device `n` and its host.
pub(crate) struct Node {
    pub(crate) device: Device,
    pub(crate) host: MemoryHost,
    pub(crate) n: u8,
}

impl Node {
    pub(crate) fn start(net: &MemoryNet, n: u8, builder: Builder) -> Self {
        Self::start_on(MemoryBinder::new(net.clone(), at(n)), n, builder)
    }

    /// A device on the sockets of `binder`.
    pub(crate) fn start_on(binder: impl Binder, n: u8, builder: Builder) -> Self {
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(LONG)).unwrap();
        let device = builder.private_key(secret(n)).start_with(tun, binder).unwrap();
        Self { device, host, n }
    }

    /// Adds `other` as a peer with these allowed IPs.
    pub(crate) async fn knows(&self, other: &Self, allowed: &[ipnet::IpNet], with_endpoint: bool) {
        let peer = allowed.iter().fold(PeerUpdate::new(key(other.n)), |peer, &net| peer.allowed_ip(net));
        let peer = if with_endpoint { peer.endpoint(at(other.n)) } else { peer };
        self.device.update(Update::new().peer(peer)).await.unwrap();
    }

    /// The next packet that the host receives.
    pub(crate) fn next(&self) -> Vec<u8> {
        next(&self.host)
    }

    /// The number of packets that the device has dropped for this reason.
    pub(crate) async fn dropped(&self, reason: DropReason) -> u64 {
        self.device.status().await.unwrap().dropped(reason)
    }

    /// Waits until the device has dropped at least `packets` for this reason. The control thread counts a drop a moment
    /// later.
    pub(crate) async fn until_dropped(&self, reason: DropReason, packets: u64) {
        let counted = async {
            while self.dropped(reason).await < packets {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(LONG, counted).await.is_err() {
            panic!("{reason:?}: {} of {packets}", self.dropped(reason).await);
        }
    }

    /// Waits until the device has dropped `packets` for this reason, and checks that there are no more.
    pub(crate) async fn has_dropped(&self, reason: DropReason, packets: u64) {
        self.until_dropped(reason, packets).await;
        assert_eq!(self.dropped(reason).await, packets, "{reason:?}");
    }
}

/// A socket of the test's own. Everything that it sends goes to device 2.
pub(crate) struct Socket {
    pub(crate) socket: MemorySocket,
    slab: Vec<u8>,
}

impl Socket {
    pub(crate) fn bind(net: &MemoryNet, address: SocketAddr) -> Self {
        let socket = net.bind(address).unwrap();
        let slab = vec![0; socket.recv_slab_len()];
        Self { socket, slab }
    }

    pub(crate) fn send(&mut self, datagram: &[u8]) {
        let len = datagram.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        self.socket.send(datagram, &[Transmit { to: Endpoint::new(at(2)), segments, ds: 0 }]);
    }

    /// The datagrams that have arrived since the last call. Does not wait.
    pub(crate) fn arrived(&mut self) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        self.socket.recv(&mut self.slab, &mut received).unwrap();
        assert!(received.iter().all(|received| received.from.remote == at(2)), "only device 2 sends to the test");
        let spans = received.iter().flat_map(|received| received.segments.pieces());
        spans.map(|span| self.slab[span.offset..span.offset + span.len].to_vec()).collect()
    }

    /// The next datagrams, at least one.
    pub(crate) async fn receive(&mut self) -> Vec<Vec<u8>> {
        let some = async {
            loop {
                let arrived = self.arrived();
                if !arrived.is_empty() {
                    return arrived;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, some).await.expect("device 2 sends a datagram")
    }
}

/// A peer of device 2 with secret key `n`. The test carries its datagrams and sets its clock.
pub(crate) struct Peer {
    pub(crate) tunnel: Tunnel,
    pub(crate) now: Now,
}

impl Peer {
    pub(crate) fn new(n: u8) -> Self {
        // Any time after 1970 is valid: timestamps in handshakes are unsigned.
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1 << 30) };
        let mut tunnel = Tunnel::new(1_420, now, &mut rand::rng());
        tunnel.set_private_key(Some(secret(n)), now, &mut rand::rng());
        let (other, any) = (PeerConfig::new(key(2)), "0.0.0.0/0".parse().unwrap());
        tunnel.add_peer(other, Some(at(2)), &[any], now, &mut rand::rng()).unwrap();
        Self { tunnel, now }
    }

    /// The datagrams that the protocol wants to send now.
    pub(crate) fn outgoing(&mut self) -> Vec<Vec<u8>> {
        let outputs = std::iter::from_fn(|| self.tunnel.poll());
        outputs
            .filter_map(|out| if let Output::Transmit { datagram, .. } = out { Some(datagram) } else { None })
            .collect()
    }

    /// The datagrams that carry `packet`. Without a session, this is an initiation, and the packet waits.
    pub(crate) fn sends(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut buffer = [&[0; HEADROOM][..], packet, &[0; TAILROOM]].concat();
        let sealed = self.tunnel.send(&mut buffer, packet.len(), self.now, &mut rand::rng()).unwrap();
        let mut datagrams: Vec<_> = sealed.map(|sealed| sealed.datagram.to_vec()).into_iter().collect();
        datagrams.extend(self.outgoing());
        datagrams
    }

    /// Takes a datagram of device 2, and returns the packet in it, if there is one.
    pub(crate) fn takes(&mut self, mut datagram: Vec<u8>) -> Result<Option<Vec<u8>>, Ignored> {
        let received = self.tunnel.receive(at(2), &mut datagram, self.now, &mut rand::rng())?;
        Ok(received.map(|received| received.packet.to_vec()))
    }
}
