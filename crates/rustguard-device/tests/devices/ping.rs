//! Pings between devices, with each result.

use super::support::{LONG, Node, at, key};
use rustguard_device::{Device, PathSpec, PeerUpdate, PingError, Update, Way, uapi};
use rustguard_tun::memory::MemoryNet;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

/// A timeout for pings that get no answer.
const SHORT: Duration = Duration::from_millis(1);

fn start(net: &MemoryNet, n: u8) -> Node {
    Node::start(net, n, Device::builder())
}

async fn pair() -> (Node, Node) {
    let net = MemoryNet::default();
    let (a, b) = (start(&net, 1), start(&net, 2));
    a.knows(&b, &[], true).await;
    b.knows(&a, &[], false).await;
    (a, b)
}

#[tokio::test]
async fn a_ping_brings_the_session_and_says_its_way() {
    let (a, b) = pair().await;
    assert_eq!(b.device.ping(&key(1), LONG).await, Err(PingError::NoEndpoint), "nothing was heard of it yet");
    for _ in 0..3 {
        let pong = a.device.ping(&key(2), LONG).await.unwrap();
        assert_eq!((pong.asked, pong.way), (Way::Direct(at(2)), Way::Direct(at(2))));
        assert!(pong.is_direct() && pong.round_trip > Duration::ZERO);
    }
    // The other side has learned the endpoint of the first.
    assert_eq!(b.device.ping(&key(1), LONG).await.unwrap().way, Way::Direct(at(1)));
    let status = a.device.status().await.unwrap();
    assert_eq!(status.peers[0].handshakes, 1);
    assert_eq!(status.peers[0].way(), Some(Way::Direct(at(2))));
    // An initiation, three requests, a reply: nothing else was sent.
    assert_eq!(status.peers[0].tx_bytes, 148 + 3 * 48 + 48);
}

#[tokio::test]
async fn a_peer_that_is_reached_stays_where_it_is_when_it_gets_more_endpoints() {
    let (a, _b) = pair().await;
    a.device.ping(&key(2), LONG).await.unwrap();
    // No device has the first of these addresses.
    for endpoints in [vec![at(9), at(2)], vec![at(8), at(9), at(2)]] {
        let more = PeerUpdate::new(key(2)).replace_endpoints(endpoints.into_iter().map(PathSpec::from));
        a.device.update(Update::new().peer(more)).await.unwrap();
        let pong = a.device.ping(&key(2), LONG).await.unwrap();
        assert_eq!((pong.asked, pong.way), (Way::Direct(at(2)), Way::Direct(at(2))));
    }
    assert_eq!(a.device.status().await.unwrap().peers[0].handshakes, 1);
}

#[tokio::test]
async fn causes_are_told_apart() {
    let net = MemoryNet::default();
    let a = start(&net, 1);
    assert_eq!(a.device.ping(&key(2), LONG).await, Err(PingError::UnknownPeer));
    a.device.update(Update::new().peer(PeerUpdate::new(key(2)).endpoint(at(2)))).await.unwrap();
    // No device has this address.
    assert_eq!(a.device.ping(&key(2), SHORT).await, Err(PingError::NoSession));
    let (to, handle) = (key(2), a.device.handle());
    let waits = tokio::spawn(async move { handle.ping(&to, LONG).await });
    // Commands are handled in order, and the task has run by then.
    tokio::task::yield_now().await;
    a.device.update(Update::new().peer(PeerUpdate::remove(key(2)))).await.unwrap();
    assert_eq!(waits.await.unwrap(), Err(PingError::UnknownPeer), "it was removed meanwhile");
    let handle = a.device.handle();
    drop(a);
    assert_eq!(handle.ping(&key(2), LONG).await, Err(PingError::Closed));
}

#[tokio::test]
async fn the_control_socket_pings() {
    let (a, _b) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    let server = uapi::Server::start_in(dir.path(), "wgtest", a.device.handle()).unwrap();
    let (read, mut write) = tokio::net::UnixStream::connect(server.path()).await.unwrap().into_split();
    let mut read = BufReader::new(read).lines();
    for (peer, known) in [(key(2), true), (key(9), false)] {
        write.write_all(format!("{}\n", uapi::ping_request(&peer, LONG)).as_bytes()).await.unwrap();
        let line = read.next_line().await.unwrap().unwrap();
        let view: uapi::PingView = serde_json::from_str(line.strip_prefix("rustguard_ping=").unwrap()).unwrap();
        match view {
            uapi::PingView::Answer { way, .. } if known => {
                assert_eq!(way, uapi::WayView::Direct(at(2).to_string()));
            }
            uapi::PingView::Error { kind, .. } if !known => assert_eq!(kind, "unknown-peer"),
            view => panic!("{view:?}"),
        }
        assert_eq!(read.next_line().await.unwrap().as_deref(), Some("errno=0"));
        assert_eq!(read.next_line().await.unwrap().as_deref(), Some(""));
    }
}
