//! Two devices over in-memory transports: what threads, queues and snapshots add to the protocol's own tests.

use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{Device, DropReason, EndpointSpec, Event, Events, MemoryBinder, PeerUpdate, Update, uapi};
use rustguard_tun::memory::{self, MemoryHost, MemoryNet};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);

struct Node {
    device: Device,
    host: MemoryHost,
    key: StaticSecret,
    at: SocketAddr,
    inner: Ipv4Addr,
}

impl Node {
    fn start(net: &MemoryNet, n: u8) -> Self {
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(LONG)).unwrap();
        let key = StaticSecret::from_bytes([n; 32]);
        let at = SocketAddr::from(([192, 0, 2, n], 51820));
        let binder = MemoryBinder::new(net.clone(), at);
        let device = Device::builder().private_key(key.clone()).start_with(tun, binder).unwrap();
        Self { device, host, key, at, inner: Ipv4Addr::new(10, 0, 0, n) }
    }

    fn public(&self) -> PublicKey {
        self.key.public_key()
    }

    /// Adds `other` as a peer with its address as the only allowed IP.
    async fn knows(&self, other: &Self, with_endpoint: bool) {
        let mut peer = PeerUpdate::new(other.public()).allowed_ip(host_net(other.inner));
        if with_endpoint {
            peer = peer.endpoint(other.at);
        }
        self.device.update(Update::new().peer(peer)).await.unwrap();
    }

    fn send(&self, to: Ipv4Addr, payload: &[u8]) {
        self.host.send(&packet(self.inner, to, payload)).unwrap();
    }

    fn expect(&self, from: Ipv4Addr, payload: &[u8]) {
        let mut buffer = [0; 65_535];
        let n = self.host.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..n], packet(from, self.inner, payload)[..], "padding is cut, nothing else changed");
    }

    async fn dropped(&self, reason: DropReason) -> u64 {
        self.device.status().await.unwrap().dropped(reason)
    }
}

fn host_net(address: Ipv4Addr) -> ipnet::IpNet {
    ipnet::Ipv4Net::from(address).into()
}

fn packet(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 253, 0, 0]);
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&to.octets());
    packet.extend_from_slice(payload);
    packet
}

async fn handshake(events: &mut Events) -> PublicKey {
    loop {
        let event = tokio::time::timeout(LONG, events.recv()).await.expect("a handshake").unwrap();
        if let Event::HandshakeComplete { peer, .. } = event {
            return peer;
        }
    }
}

async fn pair() -> (Node, Node) {
    let net = MemoryNet::default();
    let (a, b) = (Node::start(&net, 1), Node::start(&net, 2));
    a.knows(&b, true).await;
    b.knows(&a, false).await;
    (a, b)
}

#[tokio::test]
async fn the_first_packets_wait_for_the_handshake_and_arrive_in_order() {
    let (a, b) = pair().await;
    let mut events = a.device.events();
    for n in 0..20 {
        a.send(b.inner, &[n; 40]);
    }
    for n in 0..20 {
        b.expect(a.inner, &[n; 40]);
    }
    assert_eq!(handshake(&mut events).await, b.public());
    b.send(a.inner, b"back");
    a.expect(b.inner, b"back");
    assert_eq!(b.device.status().await.unwrap().peers[0].endpoint, Some(a.at), "learned from the handshake");
}

#[tokio::test]
async fn both_sides_count_the_same_bytes() {
    let (a, b) = pair().await;
    a.send(b.inner, b"ping");
    b.expect(a.inner, b"ping");
    b.send(a.inner, b"pong");
    a.expect(b.inner, b"pong");
    let (a, b) = (a.device.status().await.unwrap(), b.device.status().await.unwrap());
    // An initiation, a response, and a packet of 24 bytes padded to 32 either way.
    assert_eq!(a.peers[0].tx_bytes, 148 + 64);
    assert_eq!(a.peers[0].rx_bytes, 92 + 64);
    assert_eq!((b.peers[0].rx_bytes, b.peers[0].tx_bytes), (a.peers[0].tx_bytes, a.peers[0].rx_bytes));
    assert!(a.peers[0].last_handshake.is_some());
}

#[tokio::test]
async fn an_inner_source_of_another_peer_is_rejected_and_counted() {
    let (a, b) = pair().await;
    let other = PeerUpdate::new(StaticSecret::from_bytes([9; 32]).public_key())
        .allowed_ip(host_net(Ipv4Addr::new(10, 0, 0, 9)));
    b.device.update(Update::new().peer(other)).await.unwrap();
    a.host.send(&packet(Ipv4Addr::new(10, 0, 0, 9), b.inner, b"not mine")).unwrap();
    a.send(b.inner, b"mine");
    b.expect(a.inner, b"mine");
    assert_eq!(b.dropped(DropReason::SourceNotAllowed).await, 1);
}

#[tokio::test]
async fn packets_for_nobody_are_counted() {
    let (a, b) = pair().await;
    a.send(Ipv4Addr::new(172, 16, 0, 1), b"nobody");
    a.host.send(&[0; 40]).unwrap();
    a.send(b.inner, b"somebody");
    b.expect(a.inner, b"somebody");
    assert_eq!(a.dropped(DropReason::NoRoute).await, 1);
    assert_eq!(a.dropped(DropReason::NotIp).await, 1);
}

#[tokio::test]
async fn a_removed_peer_is_deaf_and_mute_at_once_and_can_come_back() {
    let (a, b) = pair().await;
    a.send(b.inner, b"one");
    b.expect(a.inner, b"one");
    let remove = PeerUpdate::remove(a.public());
    b.device.update(Update::new().peer(remove)).await.unwrap();
    assert!(b.device.status().await.unwrap().peers.is_empty());
    a.send(b.inner, b"lost");
    while b.dropped(DropReason::UnknownIndex).await == 0 {
        tokio::task::yield_now().await;
    }
    b.knows(&a, true).await;
    let mut events = b.device.events();
    b.send(a.inner, b"two");
    a.expect(b.inner, b"two");
    assert_eq!(handshake(&mut events).await, a.public());
}

#[tokio::test]
async fn allowed_ips_move_from_peer_to_peer_while_the_sessions_live() {
    let net = MemoryNet::default();
    let (a, b, c) = (Node::start(&net, 1), Node::start(&net, 2), Node::start(&net, 3));
    for other in [&b, &c] {
        a.knows(other, true).await;
        other.knows(&a, false).await;
    }
    let moving = Ipv4Addr::new(10, 9, 9, 9);
    for (holder, host) in [(&b, &b.host), (&c, &c.host), (&b, &b.host)] {
        let peer = PeerUpdate::new(holder.public()).allowed_ip(host_net(moving));
        a.device.update(Update::new().peer(peer)).await.unwrap();
        let sent = packet(a.inner, moving, b"where?");
        a.host.send(&sent).unwrap();
        let mut buffer = [0; 2048];
        let n = host.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..n], sent[..]);
    }
    let status = a.device.status().await.unwrap();
    assert!(status.peers[0].allowed_ips.contains(&host_net(moving)));
    assert!(!status.peers[1].allowed_ips.contains(&host_net(moving)));
}

#[tokio::test]
async fn two_devices_end_independently_and_give_their_addresses_back() {
    let net = MemoryNet::default();
    let (a, b) = (Node::start(&net, 1), Node::start(&net, 2));
    let closed = a.device.handle();
    a.device.shutdown().await;
    assert!(closed.status().await.is_none());
    assert!(b.device.status().await.is_some());
    let a = Node::start(&net, 1);
    drop(a);
    drop(Node::start(&net, 1));
}

#[tokio::test]
async fn the_uapi_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (a, _b) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    let server = uapi::Server::start_in(dir.path(), "wgtest", a.device.handle()).unwrap();
    // connect(2) takes the permission to write.
    assert_eq!(std::fs::metadata(server.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn the_uapi_socket_answers_serves_one_and_refuses_a_second() {
    let (a, b) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    let server = uapi::Server::start_in(dir.path(), "wgtest", a.device.handle()).unwrap();
    assert!(matches!(
        uapi::Server::start_in(dir.path(), "wgtest", b.device.handle()),
        Err(uapi::ServerError::InUse(_))
    ));
    let mut client = tokio::net::UnixStream::connect(server.path()).await.unwrap();
    // A request in pieces, then a bad one, then a good one on the same connection.
    for (request, answer) in [
        ("set=1\nfwm", ""),
        ("ark=0\n\n", "errno=0\n\n"),
        ("set=1\nlisten_port=x\n\n", "errno=-22\n\n"),
        ("get=1\n\n", "errno=0\n\n"),
    ] {
        client.write_all(request.as_bytes()).await.unwrap();
        if answer.is_empty() {
            continue;
        }
        let mut got = String::new();
        while !got.ends_with("\n\n") {
            let mut buffer = [0; 1024];
            let n = client.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the connection stays open");
            got.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        }
        assert!(got.ends_with(answer), "{got}");
    }
    let path = server.path().to_owned();
    drop(server);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced() {
    let (a, _b) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("wgtest.sock")).unwrap());
    let server = uapi::Server::start_in(dir.path(), "wgtest", a.device.handle()).unwrap();
    tokio::net::UnixStream::connect(server.path()).await.unwrap();
}

#[tokio::test]
async fn a_name_that_is_nobodys_is_reported_and_given_up_when_told_to() {
    let (tun, _host) = memory::tun().unwrap();
    let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse().unwrap());
    let device = Device::builder().resolution_retries(0).start_with(tun, binder).unwrap();
    let mut events = device.events();
    let peer = PeerUpdate::new(StaticSecret::from_bytes([2; 32]).public_key());
    // RFC 6761: this name never exists.
    let peer = peer.endpoint(EndpointSpec::Name("peer.invalid".into(), 51820));
    device.update(Update::new().peer(peer)).await.unwrap();
    loop {
        let event = tokio::time::timeout(LONG, events.recv()).await.expect("an event").unwrap();
        if let Event::EndpointUnresolved { name, given_up, .. } = event {
            assert_eq!((name.as_str(), given_up), ("peer.invalid:51820", true));
            break;
        }
    }
}
