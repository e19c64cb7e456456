//! The values that an embedder may set for parities.

use super::support::{Node, key};
use rustguard_device::{Change, Device, PeerUpdate, Update};
use rustguard_tun::memory::MemoryNet;

#[tokio::test]
async fn a_size_that_there_is_not_becomes_the_nearest() {
    let net = MemoryNet::default();
    let (a, b) = (Node::start(&net, 1, Device::builder()), Node::start(&net, 2, Device::builder()));
    a.knows(&b, &[], true).await;
    for (wanted, size) in [(0, 2), (1, 2), (2, 2), (7, 7), (20, 20), (21, 20), (255, 20)] {
        a.device.update(Update::new().peer(PeerUpdate::new(key(2)).parity(wanted))).await.unwrap();
        assert_eq!(a.device.status().await.unwrap().peers[0].parity.map(|parity| parity.size), Some(size));
    }
    a.device.update(Update::new().peer(PeerUpdate::new(key(2)).parity(Change::Remove))).await.unwrap();
    assert_eq!(a.device.status().await.unwrap().peers[0].parity, None);
}
