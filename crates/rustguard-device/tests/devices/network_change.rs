//! The datagrams to peers when the embedder reports that the network has changed.

use super::support::{Node, Peer, Socket, at, inner, key, packet};
use ipnet::IpNet;
use rustguard_core::wire::Kind;
use rustguard_device::{Builder, PeerUpdate, Update};
use rustguard_tun::memory::MemoryNet;
use std::{net::IpAddr, time::Instant};

/// A keepalive is a transport message without content.
const KEEPALIVE: usize = 32;

#[tokio::test]
async fn a_peer_in_use_gets_a_keepalive_and_a_handshake_and_others_get_nothing() {
    let net = MemoryNet::default();
    let node = Node::start(&net, 2, Builder::default());
    let (mut used, mut unused) = (Socket::bind(&net, at(1)), Socket::bind(&net, at(3)));
    for n in [1, 3] {
        let peer = PeerUpdate::new(key(n)).endpoint(at(n)).allowed_ip(IpNet::from(IpAddr::V4(inner(n))));
        node.device.update(Update::new().peer(peer)).await.unwrap();
    }
    let mut peer = Peer::new(1);
    for datagram in peer.sends(&packet(1, 2, b"hello")) {
        used.send(&datagram);
    }
    for response in used.receive().await {
        peer.takes(response).unwrap();
    }
    for datagram in peer.outgoing() {
        used.send(&datagram);
    }
    assert_eq!(node.next(), packet(1, 2, b"hello"));

    let before = Instant::now();
    node.device.network_changed().await;
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        kinds.extend(used.receive().await.iter().map(|datagram| (Kind::of(datagram), datagram.len())));
    }
    assert!(matches!(kinds[..], [(Some(Kind::Data { .. }), KEEPALIVE), (Some(Kind::Initiation), 148)]), "{kinds:?}");
    // Further reports cause at most one initiation a second.
    for _ in 0..100 {
        node.device.network_changed().await;
    }
    node.device.status().await.unwrap();
    let initiations = used.arrived().iter().filter(|datagram| Kind::of(datagram) == Some(Kind::Initiation)).count();
    assert!(initiations as u64 <= 1 + before.elapsed().as_secs(), "{initiations} in {:?}", before.elapsed());
    assert_eq!(unused.arrived().len(), 0);
}
