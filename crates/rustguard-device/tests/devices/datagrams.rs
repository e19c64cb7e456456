//! Another protocol on the tunnel's port.

use super::support::{LONG, Node, Socket, at};
use rustguard_device::{Datagram, Datagrams, Device, DropReason};
use rustguard_tun::memory::MemoryNet;

/// Device 2, which takes datagrams that begin with an `x` for the other protocol, and queues one at a time.
fn start(net: &MemoryNet) -> (Node, Datagrams) {
    let (builder, datagrams) = Device::builder().datagrams(|datagram| datagram.first() == Some(&b'x'), 1);
    (Node::start(net, 2, builder), datagrams)
}

#[tokio::test]
async fn its_own_datagrams_come_and_go_and_others_are_dropped() {
    let net = MemoryNet::default();
    let (node, mut datagrams) = start(&net);
    let mut socket = Socket::bind(&net, at(1));
    // The first datagram belongs to neither protocol.
    socket.send(b"nobody's");
    socket.send(b"x marks it");
    let got = tokio::time::timeout(LONG, datagrams.recv()).await.unwrap().unwrap();
    assert_eq!((got.endpoint.remote, &*got.bytes), (at(1), &b"x marks it"[..]));
    node.has_dropped(DropReason::Malformed, 1).await;

    node.device.handle().send(Datagram::new(got.endpoint, *b"y is the answer")).await;
    assert_eq!(socket.receive().await, [b"y is the answer"]);
}

#[tokio::test]
async fn those_that_nobody_takes_are_counted_and_end_with_the_listener() {
    let net = MemoryNet::default();
    let (node, mut datagrams) = start(&net);
    let mut socket = Socket::bind(&net, at(1));
    for _ in 0..3 {
        socket.send(b"x");
    }
    node.has_dropped(DropReason::DatagramQueueFull, 2).await;
    assert_eq!(&*datagrams.recv().await.unwrap().bytes, b"x");
    drop(datagrams);
    socket.send(b"x");
    node.has_dropped(DropReason::DatagramQueueFull, 3).await;
    node.device.shutdown().await;
}
