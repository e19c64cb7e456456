//! Two devices over in-memory transports: these tests cover threads, queues and snapshots, beyond the protocol's own
//! tests.

use super::support::{EXPERIMENT, LONG, Node, at, inner, ipv4, key, packet, secret};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Closed, Device, DropReason, EndpointSpec, Event, Events, PeerUpdate, UdpBinder, Update, uapi};
use rustguard_tun::memory::{self, MemoryNet};
use std::net::{Ipv4Addr, UdpSocket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Methods for these tests only.
impl Node {
    fn public(&self) -> PublicKey {
        key(self.n)
    }

    /// Adds `other` as a peer with its address as the only allowed IP.
    async fn pairs_with(&self, other: &Self, with_endpoint: bool) {
        self.knows(other, &[host_net(inner(other.n))], with_endpoint).await;
    }

    fn send(&self, to: &Self, payload: &[u8]) {
        self.host.send(&packet(self.n, to.n, payload)).unwrap();
    }

    fn expect(&self, from: &Self, payload: &[u8]) {
        assert_eq!(self.next(), packet(from.n, self.n, payload), "padding is cut, and nothing else changes");
    }
}

fn start(net: &MemoryNet, n: u8) -> Node {
    Node::start(net, n, Device::builder())
}

fn host_net(address: Ipv4Addr) -> ipnet::IpNet {
    ipnet::Ipv4Net::from(address).into()
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
    let (a, b) = (start(&net, 1), start(&net, 2));
    a.pairs_with(&b, true).await;
    b.pairs_with(&a, false).await;
    (a, b)
}

#[tokio::test]
async fn the_first_packets_wait_for_the_handshake_and_arrive_in_order() {
    let (a, b) = pair().await;
    let mut events = a.device.events();
    for n in 0..20 {
        a.send(&b, &[n; 40]);
    }
    for n in 0..20 {
        b.expect(&a, &[n; 40]);
    }
    assert_eq!(handshake(&mut events).await, b.public());
    b.send(&a, b"back");
    a.expect(&b, b"back");
    assert_eq!(b.device.status().await.unwrap().peers[0].endpoint, Some(at(a.n)), "learned from the handshake");
}

#[tokio::test]
async fn both_sides_count_the_same_bytes() {
    let (a, b) = pair().await;
    a.send(&b, b"ping");
    b.expect(&a, b"ping");
    b.send(&a, b"pong");
    a.expect(&b, b"pong");
    let (a, b) = (a.device.status().await.unwrap(), b.device.status().await.unwrap());
    // An initiation, a response, and a packet of 24 bytes, padded to 32, each way.
    assert_eq!(a.peers[0].tx_bytes, 148 + 64);
    assert_eq!(a.peers[0].rx_bytes, 92 + 64);
    assert_eq!((b.peers[0].rx_bytes, b.peers[0].tx_bytes), (a.peers[0].tx_bytes, a.peers[0].rx_bytes));
    assert!(a.peers[0].last_handshake.is_some());
    assert!(a.up && a.peers[0].handshakes == 1 && b.peers[0].handshakes == 1);
}

#[tokio::test]
async fn an_inner_source_of_another_peer_is_rejected_and_counted() {
    let (a, b) = pair().await;
    let other = PeerUpdate::new(key(9)).allowed_ip(host_net(inner(9)));
    b.device.update(Update::new().peer(other)).await.unwrap();
    a.host.send(&packet(9, b.n, b"not mine")).unwrap();
    a.send(&b, b"mine");
    b.expect(&a, b"mine");
    assert_eq!(b.dropped(DropReason::SourceNotAllowed).await, 1);
}

#[tokio::test]
async fn packets_for_nobody_are_counted() {
    let (a, b) = pair().await;
    a.host.send(&ipv4(inner(1), Ipv4Addr::new(172, 16, 0, 1), EXPERIMENT, b"nobody")).unwrap();
    a.host.send(&[0; 40]).unwrap();
    a.send(&b, b"somebody");
    b.expect(&a, b"somebody");
    assert_eq!(a.dropped(DropReason::NoRoute).await, 1);
    assert_eq!(a.dropped(DropReason::NotIp).await, 1);
}

#[tokio::test]
async fn a_removed_peer_is_deaf_and_mute_at_once_and_can_come_back() {
    let (a, b) = pair().await;
    a.send(&b, b"one");
    b.expect(&a, b"one");
    let remove = PeerUpdate::remove(a.public());
    b.device.update(Update::new().peer(remove)).await.unwrap();
    assert!(b.device.status().await.unwrap().peers.is_empty());
    a.send(&b, b"lost");
    while b.dropped(DropReason::UnknownIndex).await == 0 {
        tokio::task::yield_now().await;
    }
    b.pairs_with(&a, true).await;
    let mut events = b.device.events();
    b.send(&a, b"two");
    a.expect(&b, b"two");
    assert_eq!(handshake(&mut events).await, a.public());
}

#[tokio::test]
async fn allowed_ips_move_from_peer_to_peer_while_the_sessions_live() {
    let net = MemoryNet::default();
    let (a, b, c) = (start(&net, 1), start(&net, 2), start(&net, 3));
    for other in [&b, &c] {
        a.pairs_with(other, true).await;
        other.pairs_with(&a, false).await;
    }
    let moving = Ipv4Addr::new(10, 9, 9, 9);
    for holder in [&b, &c, &b] {
        let peer = PeerUpdate::new(holder.public()).allowed_ip(host_net(moving));
        a.device.update(Update::new().peer(peer)).await.unwrap();
        let sent = ipv4(inner(a.n), moving, EXPERIMENT, b"where?");
        a.host.send(&sent).unwrap();
        assert_eq!(holder.next(), sent);
    }
    let status = a.device.status().await.unwrap();
    assert!(status.peers[0].allowed_ips.contains(&host_net(moving)));
    assert!(!status.peers[1].allowed_ips.contains(&host_net(moving)));
    // The status of a single peer is the same.
    let of_one = a.device.peer(&c.public()).await.unwrap().expect("a peer");
    assert_eq!((of_one.public_key, &of_one.allowed_ips), (c.public(), &status.peers[1].allowed_ips));
    assert!(of_one.last_handshake.is_some() && of_one.rx_bytes > 0);
    assert!(a.device.peer(&a.public()).await.unwrap().is_none());
}

#[tokio::test]
async fn two_devices_end_independently_and_give_their_addresses_back() {
    let net = MemoryNet::default();
    let (a, b) = (start(&net, 1), start(&net, 2));
    let closed = a.device.handle();
    a.device.shutdown().await;
    assert_eq!(closed.status().await.err(), Some(Closed));
    assert_eq!(closed.peer(&b.public()).await.err(), Some(Closed));
    assert!(b.device.status().await.is_ok());
    let a = start(&net, 1);
    drop(a);
    drop(start(&net, 1));
}

/// When the device reports that it listens at another port, it no longer holds the old port.
#[tokio::test]
async fn a_port_that_was_left_is_free_at_once() {
    let (tun, _host) = memory::tun().unwrap();
    let device = Device::builder().private_key(secret(1)).start_with(tun, UdpBinder::default()).unwrap();
    for _ in 0..200 {
        let left = device.status().await.unwrap().listen_port;
        device.update(Update::new().listen_port(0)).await.unwrap();
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, left)).unwrap();
    }
}

#[tokio::test]
async fn the_uapi_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (a, _b) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    let server = uapi::Server::start_in(dir.path(), "wgtest", a.device.handle()).unwrap();
    // connect(2) needs write permission.
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
    // A request in pieces, then an invalid request, then a valid request on the same connection.
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
    let node = Node::start(&MemoryNet::default(), 1, Device::builder().resolution_retries(0));
    let mut events = node.device.events();
    // RFC 6761: this name never exists.
    let peer = PeerUpdate::new(key(2)).endpoint(EndpointSpec::Name("peer.invalid".into(), 51820));
    node.device.update(Update::new().peer(peer)).await.unwrap();
    loop {
        let event = tokio::time::timeout(LONG, events.recv()).await.expect("an event").unwrap();
        if let Event::EndpointUnresolved { name, given_up, .. } = event {
            assert_eq!((name.as_str(), given_up), ("peer.invalid:51820", true));
            break;
        }
    }
}
