//! Another protocol on the tunnel's port.

use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Datagram, Datagrams, Device, DropReason, MemoryBinder};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{self, MemoryHost, MemoryNet},
};
use std::{net::SocketAddr, time::Duration};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);

fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51820))
}

/// A device that knows datagrams which begin with an `x`, and hears one at a time.
fn device(net: &MemoryNet) -> (Device, MemoryHost, Datagrams) {
    let (tun, host) = memory::tun().unwrap();
    let (builder, datagrams) = Device::builder().datagrams(|datagram| datagram.first() == Some(&b'x'), 1);
    let binder = MemoryBinder::new(net.clone(), at(2));
    (builder.private_key(StaticSecret::from_bytes([2; 32])).start_with(tun, binder).unwrap(), host, datagrams)
}

fn send(socket: &mut impl Network, datagram: &[u8]) {
    let len = datagram.len();
    let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
    socket.send(datagram, &[Transmit { to: Endpoint { remote: at(2), local: None }, segments, ds: 0 }]);
}

async fn until_dropped(device: &Device, reason: DropReason, packets: u64) {
    let counted = async {
        while device.status().await.unwrap().dropped(reason) != packets {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, counted).await.expect("a drop is counted");
}

#[tokio::test]
async fn its_own_datagrams_come_and_go_and_others_are_dropped() {
    let net = MemoryNet::default();
    let (device, _host, mut datagrams) = device(&net);
    let mut socket = net.bind(at(1)).unwrap();
    // Nobody's; and a WireGuard message is never the other protocol's.
    send(&mut socket, b"nobody's");
    send(&mut socket, b"x marks it");
    let got = tokio::time::timeout(LONG, datagrams.recv()).await.unwrap().unwrap();
    assert_eq!((got.endpoint.remote, &*got.bytes), (at(1), &b"x marks it"[..]));
    until_dropped(&device, DropReason::Malformed, 1).await;

    device.handle().send(Datagram::new(got.endpoint, *b"y is the answer")).await;
    let (mut slab, mut received) = (vec![0; socket.recv_slab_len()], Vec::new());
    let answered = async {
        while received.is_empty() {
            tokio::task::yield_now().await;
            socket.recv(&mut slab, &mut received).unwrap();
        }
    };
    tokio::time::timeout(LONG, answered).await.unwrap();
    assert_eq!(received[0].from.remote, at(2));
    let span = received[0].segments.pieces().next().unwrap();
    assert_eq!(slab[span.offset..span.offset + span.len], b"y is the answer"[..]);
}

#[tokio::test]
async fn those_that_nobody_takes_are_counted_and_end_with_the_listener() {
    let net = MemoryNet::default();
    let (device, _host, mut datagrams) = device(&net);
    let mut socket = net.bind(at(1)).unwrap();
    for _ in 0..3 {
        send(&mut socket, b"x");
    }
    until_dropped(&device, DropReason::DatagramQueueFull, 2).await;
    assert_eq!(&*datagrams.recv().await.unwrap().bytes, b"x");
    drop(datagrams);
    send(&mut socket, b"x");
    until_dropped(&device, DropReason::DatagramQueueFull, 3).await;
    device.shutdown().await;
}
