//! Two stacks at the ends of a real tunnel, over UDP of the loopback interface.

use ipnet::IpNet;
use rustguard_device::{AsyncMemoryHost, Device, UdpBinder, prelude::*, tun::memory};
use rustguard_netstack::{MAX_CONNECTIONS, MAX_FROM_ONE, Stack, StackError};
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

const MTU: usize = 1_420;
/// Long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct End {
    stack: Stack,
    device: Device,
}

fn nets(addresses: &[&str]) -> Vec<IpNet> {
    addresses.iter().map(|net| net.parse().unwrap()).collect()
}

/// Alice has 10.0.0.1 and fd00::1, Bob has 10.0.0.2 and fd00::2.
async fn pair() -> (End, End) {
    let (alice_key, bob_key) = (StaticSecret::generate().unwrap(), StaticSecret::generate().unwrap());
    let [alice_nets, bob_nets] = [nets(&["10.0.0.1/32", "fd00::1/128"]), nets(&["10.0.0.2/32", "fd00::2/128"])];
    let end = |key, peer: PeerUpdate, own: &[IpNet]| {
        let (tun, host) = memory::tun().unwrap();
        let builder = Device::builder().private_key(key).mtu(u32::try_from(MTU).unwrap()).peer(peer);
        let device = builder.start_with(tun, UdpBinder::default()).unwrap();
        let stack = Stack::new(own, MTU).unwrap().with_name_servers(&["10.0.0.2".parse().unwrap()]);
        let (packets, host) = (stack.clone(), AsyncMemoryHost::new(host).unwrap());
        tokio::spawn(async move { packets.run(host).await });
        End { stack, device }
    };
    let with = |peer: PeerUpdate, nets: &[IpNet]| nets.iter().fold(peer, |peer, net| peer.allowed_ip(*net));
    let bob = end(bob_key.clone(), with(PeerUpdate::new(alice_key.public_key()), &alice_nets), &bob_nets);
    let at = SocketAddr::from(([127, 0, 0, 1], bob.device.status().await.unwrap().listen_port));
    let alice = end(alice_key, with(PeerUpdate::new(bob_key.public_key()).endpoint(at), &bob_nets), &alice_nets);
    (alice, bob)
}

/// Bytes that depend on their place, so that an exchange or a loss is seen.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8 ^ seed).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_carry_every_byte_both_ways_and_end_where_they_are_closed() {
    let (alice, bob) = pair().await;
    let mut listener = bob.stack.listen(80).unwrap();
    let server = tokio::spawn(async move {
        for _ in 0..4 {
            let mut stream = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut got = Vec::new();
                // Up to the end of the other direction.
                stream.read_to_end(&mut got).await.unwrap();
                stream.write_all(&got).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
        listener
    });
    let mut clients = Vec::new();
    for (n, at) in ["10.0.0.2:80", "[fd00::2]:80", "10.0.0.2:80", "[fd00::2]:80"].into_iter().enumerate() {
        let mut stream = alice.stack.connect(at.parse().unwrap()).await.unwrap();
        clients.push(tokio::spawn(async move {
            // More than the buffers hold.
            let sent = bytes(3_000_000 + n, n as u8);
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            assert!(got == sent, "{} of {} bytes, or other ones", got.len(), sent.len());
        }));
    }
    timeout(LIMIT, async {
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_closed_port_refuses_and_a_broken_connection_says_so() {
    let (alice, bob) = pair().await;
    let to = "10.0.0.2:80".parse().unwrap();
    let refused = timeout(LIMIT, alice.stack.connect(to)).await.unwrap().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    let mut listener = bob.stack.listen(80).unwrap();
    assert_eq!(bob.stack.listen(80).err().unwrap().kind(), ErrorKind::AddrInUse);
    let mut near = alice.stack.connect(to).await.unwrap();
    let mut far = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    assert_eq!(far.peer_addr().ip(), IpAddr::from([10, 0, 0, 1]));
    far.write_all(b"hello").await.unwrap();
    let mut got = [0; 5];
    near.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"hello");
    // The end of the tunnel breaks what goes on, and refuses what begins.
    let reading = tokio::spawn(async move { near.read(&mut [0; 1]).await });
    alice.device.shutdown().await;
    let broken = timeout(LIMIT, reading).await.unwrap().unwrap().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::NotConnected);
    assert_eq!(alice.stack.connect(to).await.err().unwrap().kind(), ErrorKind::NotConnected);
    assert_eq!(alice.stack.bind(0).err().unwrap().kind(), ErrorKind::NotConnected);
    drop(listener);
    assert!(bob.stack.listen(80).is_ok(), "the port is free again");
}

#[tokio::test]
async fn the_other_end_learns_that_a_stack_is_closed() {
    let (alice, bob) = pair().await;
    let mut listener = bob.stack.listen(80).unwrap();
    let near = alice.stack.connect("10.0.0.2:80".parse().unwrap()).await.unwrap();
    let mut far = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let reading = tokio::spawn(async move { far.read(&mut [0; 1]).await });
    alice.stack.close().await;
    alice.device.shutdown().await;
    let broken = timeout(LIMIT, reading).await.unwrap().unwrap().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::ConnectionReset);
    drop(near);
}

#[tokio::test]
async fn a_dropped_connection_still_sends_what_was_written() {
    let (alice, bob) = pair().await;
    let mut listener = bob.stack.listen(7).unwrap();
    let mut near = alice.stack.connect("10.0.0.2:7".parse().unwrap()).await.unwrap();
    let sent = bytes(200_000, 1);
    near.write_all(&sent).await.unwrap();
    drop(near);
    let mut far = listener.accept().await.unwrap();
    let mut got = Vec::new();
    timeout(LIMIT, far.read_to_end(&mut got)).await.unwrap().unwrap();
    assert!(got == sent);
}

#[tokio::test]
async fn datagrams_keep_their_bounds() {
    let (alice, bob) = pair().await;
    let (near, far) = (alice.stack.bind(0).unwrap(), bob.stack.bind(53).unwrap());
    let mut buffer = vec![0; 70_000];
    for (to, len) in [("10.0.0.2:53", 0), ("[fd00::2]:53", 1_372), ("10.0.0.2:53", 1_392), ("10.0.0.2:53", 5_000)] {
        let sent = bytes(len, 3);
        near.send_to(&sent, to.parse().unwrap()).await.unwrap();
        let (len, from) = timeout(LIMIT, far.recv_from(&mut buffer)).await.unwrap().unwrap();
        assert_eq!((&buffer[..len], from.port()), (&sent[..], near.port()), "{to}");
        far.send_to(b"answer", from).await.unwrap();
        let (len, from) = timeout(LIMIT, near.recv_from(&mut buffer)).await.unwrap().unwrap();
        assert_eq!((&buffer[..len], from), (&b"answer"[..], to.parse().unwrap()));
    }
    let too_long = near.send_to(&vec![0; 200_000], "10.0.0.2:53".parse().unwrap()).await.unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::InvalidInput);
    assert_eq!(bob.stack.bind(53).err().unwrap().kind(), ErrorKind::AddrInUse);
}

/// The answers of a name server that knows `web.lab`, as RFC 1035 writes them.
#[tokio::test]
async fn names_are_asked_inside_the_tunnel() {
    let (alice, bob) = pair().await;
    let server = bob.stack.bind(53).unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((len, from)) = server.recv_from(&mut buffer).await {
            let query = &buffer[..len];
            let is_web = query[12..].starts_with(b"\x03web\x03lab\0");
            let kind = u16::from_be_bytes([query[len - 4], query[len - 3]]);
            let mut answer = query.to_vec();
            (answer[2], answer[3]) = (0x81, if is_web { 0x80 } else { 0x83 });
            if is_web {
                answer[7] = 1;
                answer.extend_from_slice(&[0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 60]);
                match kind {
                    1 => answer.extend_from_slice(&[0, 4, 10, 0, 0, 2]),
                    _ => answer.extend_from_slice(&[0, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
                }
            }
            let _ = server.send_to(&answer, from).await;
        }
    });
    let found = timeout(LIMIT, alice.stack.resolve("web.lab")).await.unwrap().unwrap();
    assert_eq!(found, ["fd00::2".parse::<IpAddr>().unwrap(), "10.0.0.2".parse().unwrap()]);
    let unknown = timeout(LIMIT, alice.stack.resolve("nobody.lab")).await.unwrap().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let no_name = alice.stack.resolve(&"x".repeat(300)).await.unwrap_err();
    assert_eq!(no_name.kind(), ErrorKind::NotFound);
}

/// Two machines in one: each address has its share, and nobody more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_no_more_connections_than_its_share() {
    let (alice, bob) = pair().await;
    let mut listener = bob.stack.listen(80).unwrap();
    let accepting = tokio::spawn(async move {
        let mut streams = Vec::new();
        while streams.len() < 2 * MAX_FROM_ONE {
            streams.push(listener.accept().await.unwrap());
        }
        (listener, streams)
    });
    let [v4, v6]: [SocketAddr; 2] = ["10.0.0.2:80", "[fd00::2]:80"].map(|at| at.parse().unwrap());
    let mut streams = Vec::new();
    timeout(LIMIT, async {
        for to in [v4, v6] {
            for _ in 0..MAX_FROM_ONE {
                streams.push(alice.stack.connect(to).await.unwrap());
            }
        }
    })
    .await
    .unwrap();
    let (mut listener, mut accepted) = timeout(LIMIT, accepting).await.unwrap().unwrap();
    let (mut near, mut far) = (streams.pop().unwrap(), accepted.pop().unwrap());
    near.write_all(b"x").await.unwrap();
    assert_eq!(timeout(LIMIT, far.read_u8()).await.unwrap().unwrap(), b'x');
    // One more of the first address is reset, and one has room again when another has ended.
    let mut more = alice.stack.connect(v4).await.unwrap();
    let mut ended = [0; 1];
    let (accepted_more, read) =
        tokio::join!(timeout(Duration::from_millis(500), listener.accept()), timeout(LIMIT, more.read(&mut ended)));
    assert!(accepted_more.is_err() && read.unwrap().is_err());
    drop((accepted.swap_remove(0), streams.swap_remove(0)));
    let _one = alice.stack.connect(v4).await.unwrap();
    timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
}

/// An IPv4 packet with a SYN and nothing else.
fn syn(from: [u8; 4], to: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend_from_slice(&from);
    packet.extend_from_slice(&to);
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = |bytes: &[u8], more: u32| {
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum = words.sum::<u32>() + more;
        let sum = (sum & 0xffff) + (sum >> 16);
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let header = sum(&packet[..20], 0);
    packet[10..12].copy_from_slice(&header);
    // The pseudo-header has the addresses, the protocol and the length.
    let whole = sum(&packet[12..], 6 + 20);
    packet[36..38].copy_from_slice(&whole);
    packet
}

/// A machine that begins connections and never completes them keeps no other one out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_of_one_keep_nobody_else_out() {
    let [alice_key, bob_key, eve_key] = [(); 3].map(|()| StaticSecret::generate().unwrap());
    let device = |key, peers: Vec<PeerUpdate>| {
        let (tun, host) = memory::tun().unwrap();
        let builder = Device::builder().private_key(key).mtu(u32::try_from(MTU).unwrap());
        let builder = peers.into_iter().fold(builder, |builder, peer| builder.peer(peer));
        (builder.start_with(tun, UdpBinder::default()).unwrap(), AsyncMemoryHost::new(host).unwrap())
    };
    let peer =
        |key: &StaticSecret, net: &str| PeerUpdate::new(key.public_key()).allowed_ip(net.parse::<IpNet>().unwrap());
    let (bob, host) = device(bob_key.clone(), vec![peer(&alice_key, "10.0.0.1/32"), peer(&eve_key, "10.0.0.3/32")]);
    let at = SocketAddr::from(([127, 0, 0, 1], bob.status().await.unwrap().listen_port));
    let stack = |own: &str, host| {
        let stack = Stack::new(&nets(&[own]), MTU).unwrap();
        let packets = stack.clone();
        tokio::spawn(async move { packets.run(host).await });
        stack
    };
    let bob_stack = stack("10.0.0.2/32", host);
    let (_alice, host) = device(alice_key, vec![peer(&bob_key, "10.0.0.2/32").endpoint(at)]);
    let alice_stack = stack("10.0.0.1/32", host);
    let (_eve, eve_host) = device(eve_key, vec![peer(&bob_key, "10.0.0.2/32").endpoint(at)]);
    let mut listener = bob_stack.listen(80).unwrap();
    let accepting = tokio::spawn(async move {
        let mut streams = Vec::new();
        while streams.len() < 20 {
            streams.push(listener.accept().await.unwrap());
        }
        streams
    });
    // Eve goes on all the time, and does not look at answers.
    let flood = tokio::spawn(async move {
        for port in (1_024..60_000_u16).cycle() {
            eve_host.send(&syn([10, 0, 0, 3], [10, 0, 0, 2], [port, 80])).await.unwrap();
            if port % 32 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let mut streams = Vec::new();
    timeout(LIMIT, async {
        for _ in 0..20 {
            streams.push(alice_stack.connect("10.0.0.2:80".parse().unwrap()).await.unwrap());
        }
    })
    .await
    .unwrap();
    let accepted = timeout(LIMIT, accepting).await.unwrap().unwrap();
    assert!(accepted.iter().all(|stream| stream.peer_addr().ip() == IpAddr::from([10, 0, 0, 1])));
    flood.abort();
}

#[tokio::test]
async fn there_are_no_more_sockets_than_the_limit() {
    let (alice, _bob) = pair().await;
    let mut sockets = Vec::new();
    let full = loop {
        match alice.stack.bind(0) {
            Ok(socket) => sockets.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!((full.kind(), sockets.len()), (ErrorKind::ResourceBusy, MAX_CONNECTIONS));
    drop(sockets);
    assert!(alice.stack.bind(0).is_ok());
}

#[test]
fn addresses_and_mtu_that_no_stack_can_have_are_refused() {
    assert!(matches!(Stack::new(&[], 1_420), Err(StackError::Addresses(0))));
    assert!(matches!(Stack::new(&nets(&["10.0.0.1/32"; 9]), 1_420), Err(StackError::Addresses(9))));
    assert!(matches!(Stack::new(&nets(&["fd00::1/64"]), 1_279), Err(StackError::Mtu(1_279))));
    assert!(matches!(Stack::new(&nets(&["10.0.0.1/32"]), 9_217), Err(StackError::Mtu(9_217))));
    assert!(Stack::new(&nets(&["10.0.0.1/32"]), 576).is_ok());
}
