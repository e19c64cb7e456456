//! The embedder's own protocol inside the sessions.

use super::support::{LONG, Node, inner, key, packet};
use rustguard_device::{Device, DropReason, Text, Texts};
use rustguard_tun::memory::MemoryNet;

fn is_ours(text: &[u8]) -> bool {
    text.starts_with(b"\x07ours")
}

fn start(net: &MemoryNet, n: u8, recognises: fn(&[u8]) -> bool, queued: usize) -> (Node, Texts) {
    let (builder, texts) = Device::builder().texts(recognises, queued);
    (Node::start(net, n, builder), texts)
}

async fn pair(recognises: fn(&[u8]) -> bool, queued: usize) -> [(Node, Texts); 2] {
    let net = MemoryNet::default();
    let (a, b) = (start(&net, 1, recognises, queued), start(&net, 2, recognises, queued));
    a.0.knows(&b.0, &[std::net::IpAddr::from(inner(2)).into()], true).await;
    b.0.knows(&a.0, &[std::net::IpAddr::from(inner(1)).into()], false).await;
    [a, b]
}

async fn next(texts: &mut Texts) -> (u8, Vec<u8>) {
    let text = tokio::time::timeout(LONG, texts.recv()).await.expect("a text").expect("the device runs");
    let from = (1..=2).find(|n| key(*n) == text.peer).expect("a peer");
    let len = text.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (from, text.bytes[..len].to_vec())
}

#[tokio::test]
async fn texts_go_both_ways_and_the_first_brings_the_session() {
    let [(a, mut to_a), (b, mut to_b)] = pair(is_ours, 16).await;
    a.device.handle().say(Text::new(key(2), *b"\x07ours: hello")).await;
    assert_eq!(next(&mut to_b).await, (1, b"\x07ours: hello".to_vec()));
    b.device.handle().say(Text::new(key(1), *b"\x07ours: and to you")).await;
    assert_eq!(next(&mut to_a).await, (2, b"\x07ours: and to you".to_vec()));
    // The hosts got no texts: their next packets are these.
    let from_a = packet(1, 2, b"a packet");
    a.host.send(&from_a).unwrap();
    assert_eq!(b.next(), from_a);
}

async fn dropped(node: &Node, reason: DropReason) -> u64 {
    node.device.status().await.unwrap().peers[0].dropped(reason)
}

#[tokio::test]
async fn what_is_not_of_the_protocol_is_not_sent_and_nobody_gets_more_than_is_read() {
    let [(a, _to_a), (b, mut to_b)] = pair(is_ours, 4).await;
    a.device.handle().say(Text::new(key(2), *b"something else")).await;
    assert_eq!(dropped(&a, DropReason::NotIp).await, 1);
    // The first text is for an unknown peer, the second for a peer without an endpoint.
    a.device.handle().say(Text::new(key(3), *b"\x07ours")).await;
    b.device.handle().say(Text::new(key(1), *b"\x07ours")).await;
    assert_eq!(dropped(&b, DropReason::NoEndpoint).await, 1);
    for n in 0..10 {
        a.device.handle().say(Text::new(key(2), [&b"\x07ours"[..], &[n + 1]].concat())).await;
    }
    let all = async {
        while dropped(&b, DropReason::TextLimit).await != 6 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("six of ten are dropped");
    for n in 1..=4 {
        assert_eq!(next(&mut to_b).await, (1, [&b"\x07ours"[..], &[n]].concat()));
    }
}

#[tokio::test]
async fn messages_of_the_device_are_never_the_embedders_nor_the_other_way_round() {
    let [(a, mut to_a), (b, mut to_b)] = pair(|_| true, 16).await;
    // A complete ping, a ping of a later version, a message kind of a later version, and a packet.
    let ping = *b"\x03RG\x01\x01\0\0\x80\x10\0\0\0\0\0\0\0";
    let refused = [ping.to_vec(), b"\x03RG\x02".to_vec(), b"\x1fRG\x01".to_vec(), packet(1, 2, b"a packet")];
    for text in &refused {
        a.device.handle().say(Text::new(key(2), &text[..])).await;
    }
    assert_eq!(dropped(&a, DropReason::NotIp).await, refused.len() as u64);
    // The devices exchange a ping, and the embedders do not see it.
    a.device.handle().ping(&key(2), LONG).await.expect("an answer");
    a.device.handle().say(Text::new(key(2), *b"\x80RG\x01")).await;
    assert_eq!(next(&mut to_b).await, (1, b"\x80RG\x01".to_vec()));
    b.device.handle().say(Text::new(key(1), *b"\x07RG\x01 of a roster")).await;
    assert_eq!(next(&mut to_a).await, (2, b"\x07RG\x01 of a roster".to_vec()));
}
