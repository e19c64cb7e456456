//! Direct ways: two devices that reach each other through a translator tell each other their addresses, and find the
//! way without it.

use super::support::{LONG, Node, at, inner, key, packet};
use ipnet::IpNet;
use rustguard_device::{Builder, EndpointSpec, PathState, PathStatus, PeerUpdate, Update};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{MemoryNet, MemorySocket},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Forwards datagrams between devices 1 and 2. Each device sees the other at an address of the translator: 101 for
/// device 2, and 102 for device 1.
struct Translator {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Translator {
    fn start(net: &MemoryNet) -> Self {
        let sockets = [101, 102].map(|n| net.bind(at(n)).unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let [mut one, mut two] = sockets;
            let mut slab = vec![0; one.recv_slab_len()];
            while !until.load(Ordering::Relaxed) {
                pass_on(&mut one, at(1), &mut two, at(2), &mut slab);
                pass_on(&mut two, at(2), &mut one, at(1), &mut slab);
                std::thread::yield_now();
            }
        });
        Self { ends, thread: Some(thread) }
    }

    fn stop(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn pass_on(inside: &mut MemorySocket, from: SocketAddr, outside: &mut MemorySocket, to: SocketAddr, slab: &mut [u8]) {
    let mut received = Vec::new();
    inside.recv(slab, &mut received).unwrap();
    for received in received.iter().filter(|received| received.from.remote == from) {
        for piece in received.segments.pieces() {
            let segments =
                Segments { offset: piece.offset, stride: piece.len, count: 1, len: piece.len, last_len: piece.len };
            outside.send(slab, &[Transmit { to: Endpoint::new(to), segments, ds: 0 }]);
        }
    }
}

async fn start(net: &MemoryNet, n: u8, public: &[SocketAddr]) -> Node {
    start_with(net, n, public, true).await
}

async fn start_with(net: &MemoryNet, n: u8, public: &[SocketAddr], direct: bool) -> Node {
    let public = public.iter().map(|at| EndpointSpec::Address(*at));
    let node = Node::start(net, n, Builder::default().public_endpoints(public));
    let other = 3 - n;
    let peer = PeerUpdate::new(key(other)).allowed_ip(IpNet::from(IpAddr::V4(inner(other)))).direct(direct);
    // Only device 1 has an endpoint of the other.
    let peer = if n == 1 { peer.endpoint(at(101)) } else { peer };
    node.device.update(Update::new().peer(peer)).await.unwrap();
    node
}

async fn paths(node: &Node) -> Vec<PathStatus> {
    node.device.status().await.unwrap().peers.remove(0).paths
}

/// Waits until a path to this address works.
async fn until_found(node: &Node, address: SocketAddr) {
    let found = async {
        while !paths(node).await.iter().any(|path| path.endpoint == Some(address) && path.state == PathState::Up) {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(LONG, found).await.is_err() {
        panic!("no way to {address} among {:?}", paths(node).await);
    }
}

#[tokio::test]
async fn a_direct_way_is_found_by_what_both_tell_and_takes_over_when_the_first_way_fails() {
    let net = MemoryNet::default();
    let translator = Translator::start(&net);
    let (one, two) = (start(&net, 1, &[at(1)]).await, start(&net, 2, &[at(2)]).await);
    one.host.send(&packet(1, 2, b"through")).unwrap();
    assert_eq!(two.next(), packet(1, 2, b"through"));
    until_found(&one, at(2)).await;
    until_found(&two, at(1)).await;

    translator.stop();
    let mut sent = 0_u32;
    two.host.set_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
    let mut buffer = [0; 2_000];
    let start = std::time::Instant::now();
    while two.host.recv(&mut buffer).is_err() {
        assert!(start.elapsed() < LONG, "{sent} packets were lost: {:?}", paths(&one).await);
        one.host.send(&packet(1, 2, &sent.to_be_bytes())).unwrap();
        sent += 1;
    }
    assert_eq!(one.device.status().await.unwrap().peers[0].endpoint, Some(at(2)));
}

#[tokio::test]
async fn an_address_inside_the_tunnel_is_not_probed_whatever_the_peer_says() {
    let net = MemoryNet::default();
    let _translator = Translator::start(&net);
    let inside = SocketAddr::from((inner(2), 51_820));
    let mut trap = net.bind(inside).unwrap();
    let (one, _two) = (start(&net, 1, &[at(1)]).await, start(&net, 2, &[inside, at(2)]).await);
    one.host.send(&packet(1, 2, b"through")).unwrap();
    until_found(&one, at(2)).await;
    let (mut slab, mut received) = (vec![0; trap.recv_slab_len()], Vec::new());
    trap.recv(&mut slab, &mut received).unwrap();
    assert!(received.is_empty(), "{} datagrams", received.len());
}

#[tokio::test]
async fn a_peer_that_does_not_look_for_direct_ways_is_left_alone() {
    let net = MemoryNet::default();
    let translator = Translator::start(&net);
    // Device 2 is started with this setting, because device 1 greets it at once.
    let (one, two) = (start(&net, 1, &[at(1)]).await, start_with(&net, 2, &[at(2)], false).await);
    one.host.send(&packet(1, 2, b"through")).unwrap();
    assert_eq!(two.next(), packet(1, 2, b"through"));
    two.host.send(&packet(2, 1, b"and back")).unwrap();
    assert_eq!(one.next(), packet(2, 1, b"and back"));
    assert!(paths(&one).await.iter().all(|path| path.endpoint != Some(at(2))));
    assert!(paths(&two).await.is_empty());
    assert_eq!(two.device.status().await.unwrap().peers[0].not_direct, None, "none is looked for");
    translator.stop();
}
